//! The report: the most contended latches and call sites, for people or as JSON lines.

use std::collections::HashMap;
use std::io::{self, Write};

use latchwork_profile::{Class, Row, Snapshot};
use serde_json::json;

use crate::output::{self, WIDTH, count, time};
use crate::symbols::{Name, Symbols};

/// What to print.
pub(crate) struct Options {
    pub(crate) top: usize,
    pub(crate) json: bool,
    pub(crate) colour: bool,
    /// What one record costs, in nanoseconds.
    pub(crate) cost: f64,
}

/// A latch or a call site, of one process or of many that run one program.
struct Item {
    row: Row,
    pid: u32,
    program: String,
    name: Name,
}

/// Prints what the processes said.
pub(crate) fn print(
    snapshots: &[Snapshot],
    options: &Options,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut symbols = Symbols::default();
    let latches = latches(snapshots, &mut symbols);
    let sites = sites(snapshots, &mut symbols);
    if options.json {
        return print_json(snapshots, &latches, &sites, options, out);
    }
    head_lines(snapshots, options, out)?;
    if latches.is_empty() {
        return Ok(());
    }
    latch_table(&latches, options, out)?;
    site_table(&sites, options, out)?;
    tail_lines(snapshots, options, out)
}

fn program(snapshot: &Snapshot) -> String {
    snapshot.exe.rsplit('/').next().unwrap_or_default().to_owned()
}

/// By what was waited in all, then by how often they were taken.
fn order(items: &mut [Item]) {
    items.sort_by_key(|item| {
        let row = &item.row;
        (std::cmp::Reverse((row.wait_total, row.acquisitions)), row.address, item.pid)
    });
}

fn latches(snapshots: &[Snapshot], symbols: &mut Symbols) -> Vec<Item> {
    let mut items = Vec::new();
    for snapshot in snapshots {
        for row in &snapshot.latches {
            let name = symbols_for(row.peer, snapshot, symbols);
            let (pid, program) = (snapshot.pid, program(snapshot));
            items.push(Item { row: row.clone(), pid, program, name });
        }
    }
    order(&mut items);
    items
}

fn symbols_for(address: u64, snapshot: &Snapshot, symbols: &mut Symbols) -> Name {
    if address == 0 { Name::default() } else { symbols.name(snapshot, address) }
}

/// Call sites; the same place in the same file is one, whichever process it was in.
fn sites(snapshots: &[Snapshot], symbols: &mut Symbols) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    let mut known: HashMap<(String, u64, u8), usize> = HashMap::new();
    for snapshot in snapshots {
        for row in &snapshot.sites {
            let place = snapshot.place(row.address.saturating_sub(1));
            let key =
                place.map(|(mapping, offset)| (mapping.path.clone(), offset, row.class as u8));
            if let Some(index) = key.as_ref().and_then(|key| known.get(key)) {
                items[*index].row.add(row);
                continue;
            }
            if let Some(key) = key {
                known.insert(key, items.len());
            }
            let name = symbols.name(snapshot, row.address);
            let (pid, program) = (snapshot.pid, program(snapshot));
            items.push(Item { row: row.clone(), pid, program, name });
        }
    }
    order(&mut items);
    items
}

fn class(class: Class) -> &'static str {
    match class {
        Class::Mutex => "mutex",
        Class::Read => "read",
        Class::Write => "write",
        Class::Spin => "spin",
    }
}

/// A latch has one class: of a reader-writer lock it does not matter who came last.
fn latch_class(of: Class) -> &'static str {
    match of {
        Class::Read | Class::Write => "rwlock",
        of => class(of),
    }
}

fn share(row: &Row) -> String {
    let percent = 100.0 * row.contended as f64 / row.acquisitions.max(1) as f64;
    match row.contended {
        0 => "-".to_owned(),
        _ if percent < 0.095 => "<0.1".to_owned(),
        _ => format!("{percent:.1}"),
    }
}

fn waits(row: &Row) -> [String; 4] {
    let quantile = |share| row.wait_quantile(share).map_or("-".to_owned(), time);
    let max = if row.contended == 0 { "-".to_owned() } else { time(row.wait_max) };
    let total = if row.contended == 0 { "-".to_owned() } else { time(row.wait_total) };
    [quantile(0.5), quantile(0.99), max, total]
}

fn head_lines(snapshots: &[Snapshot], options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let rows = snapshots.iter().flat_map(|s| &s.latches);
    let taken: u64 = snapshots.iter().map(Snapshot::acquisitions).sum();
    if taken == 0 {
        return writeln!(
            out,
            "latchwork: 0 locks seen: the program does not use pthread mutexes, rwlocks or spin \
             locks.\n(Go, Rust's std and much of Java lock by other means; a static program is not \
             seen at all.)"
        );
    }
    let contended: u64 = rows.clone().map(|row| row.contended).sum();
    let waited: u64 = rows.clone().fold(0, |sum, row| sum.saturating_add(row.wait_total));
    let processes = match snapshots {
        [one] => format!("{} ({})", program(one), one.pid),
        many => format!("{} processes", many.len()),
    };
    let latch = snapshots.first().map_or("", |s| s.latch.as_str());
    writeln!(
        out,
        "latchwork: {processes} on {latch}: {} latches taken {} times, {:.2} % contended, {} waited.",
        rows.count(),
        count(taken),
        100.0 * contended as f64 / taken as f64,
        time(waited),
    )?;
    let cost = options.cost * taken as f64 / 1e9;
    writeln!(
        out,
        "Recording cost about {:.0} ns each, {} in all threads; the waits include some of it.",
        options.cost,
        time((cost * 1e9) as u64)
    )
}

/// The columns that numbers take, and what is left for words.
const NUMBERS: [&str; 7] = ["taken", "cont. %", "wait p50", "p99", "max", "total", ""];
const WORDS: usize = WIDTH - 66;

fn numbers(row: &Row) -> [String; 6] {
    let [p50, p99, max, total] = waits(row);
    [count(row.acquisitions), share(row), p50, p99, max, total]
}

fn latch_table(items: &[Item], options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let many = items.iter().any(|item| item.pid != items[0].pid);
    let mut header = vec!["latch"];
    header.extend(NUMBERS);
    header[7] = "at, longest waited for in";
    let mut table = output::table(&header, 1..7, options.colour);
    for item in items.iter().take(options.top) {
        let mut at = format!("{:x}", item.row.address);
        if many {
            at += &format!(" {}", item.pid);
        }
        if item.row.peer != 0 {
            let left = WORDS - at.len() - 1;
            at = format!("{at} {}", item.name.text(left));
        }
        let mut cells = vec![latch_class(item.row.class).to_owned()];
        cells.extend(numbers(&item.row));
        cells.push(at);
        table.add_row(cells);
    }
    fit(&table.to_string(), out)
}

fn site_table(items: &[Item], options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let mut header = vec!["call"];
    header.extend(NUMBERS);
    header[7] = "in";
    let mut table = output::table(&header, 1..7, options.colour);
    for item in items.iter().take(options.top) {
        let mut cells = vec![class(item.row.class).to_owned()];
        cells.extend(numbers(&item.row));
        cells.push(item.name.text(WORDS));
        table.add_row(cells);
    }
    writeln!(out)?;
    fit(&table.to_string(), out)
}

/// Prints a table, cut to the width that everything fits. Escapes are not counted.
fn fit(table: &str, out: &mut dyn Write) -> io::Result<()> {
    for line in table.lines() {
        let line = line.trim_end();
        let mut shown = String::new();
        let (mut width, mut escape) = (0, false);
        for c in line.chars() {
            escape |= c == '\u{1b}';
            width += usize::from(!escape);
            if width <= WIDTH || escape {
                shown.push(c);
            }
            escape &= c != 'm';
        }
        writeln!(out, "{}", shown.trim_end())?;
    }
    Ok(())
}

fn tail_lines(snapshots: &[Snapshot], options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let sum = |of: fn(&Snapshot) -> u64| snapshots.iter().map(of).fold(0, u64::saturating_add);
    let latches: usize = snapshots.iter().map(|s| s.latches.len()).sum();
    writeln!(out)?;
    if latches > options.top {
        writeln!(out, "{} more latches: --top N shows more.", latches - options.top)?;
    }
    let refused = sum(|s| s.refused);
    if refused > 0 {
        writeln!(out, "{} tries failed or timed out.", count(refused))?;
    }
    let lost = (sum(|s| s.lost_latches), sum(|s| s.lost_sites));
    if lost != (0, 0) {
        writeln!(
            out,
            "The tables were full: {} acquisitions are in no latch's row, {} in no site's.",
            count(lost.0),
            count(lost.1)
        )?;
    }
    writeln!(
        out,
        "p50 and p99 are exact to a factor of two. Not seen: semaphores, barriers, atomics, C11 \
         mutexes,\nlocks inside the C library, and time spent in condition variables."
    )
}

fn print_json(
    snapshots: &[Snapshot],
    latches: &[Item],
    sites: &[Item],
    options: &Options,
    out: &mut dyn Write,
) -> io::Result<()> {
    for snapshot in snapshots {
        let row = json!({
            "kind": "process", "pid": snapshot.pid, "exe": snapshot.exe,
            "latch": snapshot.latch, "began_unix_ns": snapshot.began,
            "acquisitions": snapshot.acquisitions(), "refused": snapshot.refused,
            "lost_latches": snapshot.lost_latches, "lost_sites": snapshot.lost_sites,
            "record_ns": options.cost,
        });
        writeln!(out, "{row}")?;
    }
    for (kind, items) in [("latch", latches), ("site", sites)] {
        for item in items.iter().take(options.top) {
            let row = &item.row;
            let class = if kind == "latch" { latch_class(row.class) } else { class(row.class) };
            let line = json!({
                "kind": kind, "class": class, "address": format!("{:#x}", row.address),
                "pid": item.pid, "program": item.program,
                "acquisitions": row.acquisitions, "contended": row.contended,
                "wait_total_ns": row.wait_total, "wait_max_ns": row.wait_max,
                "wait_p50_ns": row.wait_quantile(0.5), "wait_p99_ns": row.wait_quantile(0.99),
                "first_seen_ns": row.first_seen, "function": item.name.function,
                "line": item.name.line, "module": item.name.module,
            });
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}

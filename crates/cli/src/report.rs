//! The report: the most contended latches and call sites, for display or as JSON lines.

use std::collections::BTreeMap;
use std::io::{self, Write};

use latchwork_profile::{Cost, Row, Snapshot};
use serde_json::{Value, json};

use crate::found::Found;
use crate::output::{self, count, plural, time};
use crate::places::{Latch, Places, Site, class, latch_class, program};
use crate::runtime::Runtime;
use crate::symbols::{Name, Symbols};

/// Options of a report.
pub(crate) struct Options {
    pub(crate) top: usize,
    /// How many callers of a place, including the place itself; zero if no stacks were recorded.
    pub(crate) depth: usize,
    pub(crate) json: bool,
    pub(crate) colour: bool,
    /// The columns of the terminal; none in a file, where nothing is cut.
    pub(crate) width: Option<usize>,
    pub(crate) cost: Cost,
}

/// Prints the report.
pub(crate) fn print(
    found: &Found,
    symbols: &mut Symbols,
    options: &Options,
    out: &mut dyn Write,
) -> io::Result<()> {
    let snapshots = &found.snapshots[..];
    let places = Places::of(snapshots, options.depth, options.top, symbols);
    if options.json {
        return print_json(snapshots, &places, options, out);
    }
    if places.latches.is_empty() {
        nothing(found, out)?;
        return notes(found, out);
    }
    head_lines(snapshots, options, out)?;
    notes(found, out)?;
    latch_table(&places.latches, options, out)?;
    site_table(&places.sites, options, out)?;
    holder_table(&places.sites, options, out)?;
    tail_lines(snapshots, options, out)
}

/// Reports that no latch was taken, and by which programs.
fn nothing(found: &Found, out: &mut dyn Write) -> io::Result<()> {
    if !found.idle.is_empty() {
        let names = named(found.idle.iter().map(program));
        return writeln!(
            out,
            "latchwork: 0 locks seen in {names}: no pthread mutexes, rwlocks or spin locks.\n(Go, \
             Rust's std and much of Java lock by other means; a static program is not seen at all.)"
        );
    }
    if !found.others.is_empty() {
        let names = named(found.others.iter().cloned());
        return writeln!(
            out,
            "latchwork: 0 locks seen: --only is the name of none of the programs that ran: {names}."
        );
    }
    writeln!(
        out,
        "latchwork: 0 locks seen: no program said anything. (A static program does not load our \
         library.)"
    )
}

/// Names with their counts: `sh, true (3 processes)`.
fn named(names: impl Iterator<Item = String>) -> String {
    let mut counts = BTreeMap::new();
    names.for_each(|name| *counts.entry(name).or_insert(0u64) += 1);
    let each = counts.into_iter().map(|(name, n)| match n {
        1 => name,
        n => format!("{name} ({})", plural(n, "process", "processes")),
    });
    each.collect::<Vec<_>>().join(", ")
}

/// Notes about programs of which a profile shows little.
fn notes(found: &Found, out: &mut dyn Write) -> io::Result<()> {
    let mut told = Vec::new();
    for snapshot in found.snapshots.iter().chain(&found.idle) {
        let name = program(snapshot);
        if told.contains(&name) {
            continue;
        }
        if let Some(runtime) = Runtime::of(snapshot) {
            writeln!(out, "Note: {name} {}", runtime.note())?;
        }
        told.push(name);
    }
    Ok(())
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
    let contended: u64 = rows.clone().map(|row| row.contended).sum();
    let waited: u64 = rows.clone().fold(0, |sum, row| sum.saturating_add(row.wait_total));
    let processes = match snapshots {
        [one] => format!("{} ({})", program(one), one.pid),
        many => plural(many.len() as u64, "process", "processes"),
    };
    let latch = snapshots.first().map_or("", |s| s.latch.as_str());
    writeln!(
        out,
        "latchwork: {processes} on {latch}: {} taken {}, {:.2} % contended, {} waited.",
        plural(rows.count() as u64, "latch", "latches"),
        plural(taken, "time", "times"),
        100.0 * contended as f64 / taken as f64,
        time(waited),
    )?;
    let Cost { record, wait } = options.cost;
    let each_wait = match options.depth {
        0 => String::new(),
        _ => format!(" and {} for each wait", time(wait as u64)),
    };
    let all = record * taken as f64 + wait * contended as f64;
    writeln!(
        out,
        "Recording cost about {record:.0} ns each{each_wait}, {} in all threads.",
        time(all as u64)
    )
}

/// The columns of numbers; the rest is for words.
const NUMBERS: [&str; 6] = ["taken", "cont. %", "wait p50", "p99", "max", "total"];
const NUMBERS_WIDTH: usize = 66;
const WORDS_MIN: usize = 14;

impl Options {
    /// The columns of a table's words, after so many of numbers.
    fn words(&self, numbers: usize) -> usize {
        self.width.map_or(usize::MAX, |width| width.saturating_sub(numbers).max(WORDS_MIN))
    }
}

fn numbers(row: &Row, counted: bool) -> [String; 6] {
    let [p50, p99, max, total] = waits(row);
    if counted {
        [count(row.acquisitions), share(row), p50, p99, max, total]
    } else {
        [format!("{}+", count(row.acquisitions)), "-".to_owned(), p50, p99, max, total]
    }
}

/// A place and its callers, a line each.
fn chain(frames: &[Name], width: usize) -> String {
    let line = |(at, name): (usize, &Name)| match at {
        0 => name.text(width),
        _ => format!("  < {}", name.text(width.saturating_sub(4).max(WORDS_MIN))),
    };
    frames.iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
}

fn latch_table(latches: &[Latch], options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let many = latches.iter().any(|latch| latch.pid != latches[0].pid);
    let mut header = vec!["latch"];
    header.extend(NUMBERS);
    header.push("name, longest wait");
    let mut table = output::table(&header, 1..7, options.colour);
    let words = options.words(NUMBERS_WIDTH);
    for latch in latches.iter().take(options.top) {
        let process = if many { format!(" ({})", latch.pid) } else { String::new() };
        let name = output::head(&latch.name, words.saturating_sub(process.len()));
        let mut lines = vec![name + &process];
        let first = latch.first_at.as_ref().map(|(what, name)| (*what, name));
        let waited = latch.waited_at.as_ref().map(|name| ("waited in", name));
        let held = latch.held_at.as_ref().map(|name| ("held by", name));
        for (what, name) in [first, waited, held].into_iter().flatten() {
            let left = words.saturating_sub(what.len() + 1).max(WORDS_MIN);
            lines.push(format!("{what} {}", name.text(left)));
        }
        let mut cells = vec![latch_class(latch.row.class).to_owned()];
        cells.extend(numbers(&latch.row, true));
        cells.push(lines.join("\n"));
        table.add_row(cells);
    }
    fit(&table.to_string(), options, out)
}

fn site_table(sites: &[Site], options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let mut header = vec!["call"];
    header.extend(NUMBERS);
    header.push("in");
    let mut table = output::table(&header, 1..7, options.colour);
    for site in sites.iter().take(options.top) {
        let mut cells = vec![class(site.row.class).to_owned()];
        cells.extend(numbers(&site.row, site.counted));
        cells.push(chain(&site.frames, options.words(NUMBERS_WIDTH)));
        table.add_row(cells);
    }
    writeln!(out)?;
    fit(&table.to_string(), options, out)
}

/// The places from which latches were held while others waited for them.
fn holder_table(sites: &[Site], options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let mut holders: Vec<_> = sites.iter().filter(|site| site.row.blocked > 0).collect();
    holders.sort_by_key(|site| std::cmp::Reverse(site.row.blocked_total));
    if holders.is_empty() {
        return Ok(());
    }
    let header = ["held", "others waited", "in all", "taken in"];
    let mut table = output::table(&header, 1..3, options.colour);
    for site in holders.iter().take(options.top) {
        let row = &site.row;
        table.add_row([
            class(row.class).to_owned(),
            count(row.blocked),
            time(row.blocked_total),
            chain(&site.frames, options.words(34)),
        ]);
    }
    writeln!(out)?;
    fit(&table.to_string(), options, out)
}

/// Prints a table, cut to the width of the terminal.
fn fit(table: &str, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    for line in table.lines() {
        let line = output::crop(line.trim_end(), options.width.unwrap_or(usize::MAX));
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

fn tail_lines(snapshots: &[Snapshot], options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let sum = |of: fn(&Snapshot) -> u64| snapshots.iter().map(of).fold(0, u64::saturating_add);
    let latches: usize = snapshots.iter().map(|s| s.latches.len()).sum();
    writeln!(out)?;
    if latches > options.top {
        let more = plural((latches - options.top) as u64, "more latch", "more latches");
        writeln!(out, "{more}: --top N shows more.")?;
    }
    let refused = sum(|s| s.refused);
    if refused > 0 {
        writeln!(out, "{} failed or timed out.", plural(refused, "try", "tries"))?;
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
    let unknown = sum(|s| s.lost_chains);
    if unknown > 0 {
        let waits = plural(unknown, "wait", "waits");
        let why = "the table was full, or the kernel did not copy their stacks";
        writeln!(out, "The callers of {waits} are not known: {why}.")?;
    }
    writeln!(
        out,
        "p50 and p99 are exact to a factor of two. Not seen: semaphores, barriers, atomics, C11 \
         mutexes,\nlocks inside the C library, and time spent in condition variables."
    )
}

fn print_json(
    snapshots: &[Snapshot],
    places: &Places,
    options: &Options,
    out: &mut dyn Write,
) -> io::Result<()> {
    for snapshot in snapshots {
        let row = json!({
            "kind": "process", "pid": snapshot.pid, "exe": snapshot.exe,
            "latch": snapshot.latch, "began_unix_ns": snapshot.began,
            "acquisitions": snapshot.acquisitions(), "refused": snapshot.refused,
            "lost_latches": snapshot.lost_latches, "lost_sites": snapshot.lost_sites,
            "lost_chains": snapshot.lost_chains, "record_ns": options.cost.record,
            "record_wait_ns": options.cost.wait,
        });
        writeln!(out, "{row}")?;
    }
    for latch in places.latches.iter().take(options.top) {
        let waited = latch.waited_at.clone().unwrap_or_default();
        let mut line = counts("latch", latch_class(latch.row.class), &latch.row, true);
        line["pid"] = latch.pid.into();
        line["program"] = latch.program.as_str().into();
        line["name"] = latch.name.as_str().into();
        line["first_locked"] = latch.first_at.as_ref().map(|(_, name)| place(name)).into();
        line["held_by"] = latch.held_at.as_ref().map(place).into();
        with_place(&mut line, &waited);
        writeln!(out, "{line}")?;
    }
    for site in places.sites.iter().take(options.top) {
        let mut line = counts("site", class(site.row.class), &site.row, site.counted);
        line["pid"] = site.pid.into();
        line["program"] = site.program.as_str().into();
        line["others_waited"] = site.row.blocked.into();
        line["others_waited_ns"] = site.row.blocked_total.into();
        line["callers"] = site.frames.iter().skip(1).map(place).collect();
        with_place(&mut line, site.frames.first().unwrap_or(&Name::default()));
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// The common fields of latches and places.
fn counts(kind: &str, class: &str, row: &Row, counted: bool) -> Value {
    json!({
        "kind": kind, "class": class, "address": format!("{:#x}", row.address),
        "acquisitions": counted.then_some(row.acquisitions),
        "acquisitions_at_least": row.acquisitions, "contended": row.contended,
        "wait_total_ns": row.wait_total, "wait_max_ns": row.wait_max,
        "wait_p50_ns": row.wait_quantile(0.5), "wait_p99_ns": row.wait_quantile(0.99),
        "first_seen_ns": row.first_seen,
    })
}

fn place(name: &Name) -> Value {
    json!({ "function": name.function, "line": name.line, "module": name.module })
}

fn with_place(line: &mut Value, name: &Name) {
    line["function"] = name.function.as_deref().into();
    line["line"] = name.line.as_deref().into();
    line["module"] = name.module.as_deref().into();
}

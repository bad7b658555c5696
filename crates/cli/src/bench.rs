//! `latchwork bench latch`: our latches compared with others.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use latchwork_bench::{Bench, Kind, Reached, Report, Row, Settings, Subject};

use crate::figures::reached;
use crate::output;

/// Measure our latches and those of std, parking_lot and pthread, interleaved in one run
///
/// Exits with 1 if a latch does not exclude, a thread does not return, or a benchmark of contention
/// had none. A slow result is no failure, except with --strict.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these workloads
    #[arg(long, value_delimiter = ',', value_name = "WORKLOAD", value_parser = workload())]
    only: Vec<Bench>,

    /// Numbers of threads, except for `uncontended` [default: 2,32, and 8 in a mix]
    #[arg(long, value_delimiter = ',', value_name = "N",
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096))]
    threads: Vec<usize>,

    /// Only these latches, by name or family (`shfl`, `pthread`); rivals stay unless one is named
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = latch)]
    latch: Vec<String>,

    /// Percentages of writes in a mix
    #[arg(long, value_delimiter = ',', value_name = "PERCENT", default_value = "0,1,50",
          value_parser = percent)]
    writes: Vec<f64>,

    /// Number of runs of each measurement [default: 7]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1000))]
    runs: Option<usize>,

    /// Duration of one measurement in milliseconds [default: 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    ms: Option<u64>,

    /// Nanoseconds of a long section, and of the pause after it
    #[arg(long, value_name = "N", default_value = "1500",
          value_parser = clap::value_parser!(u32).range(0..=100_000_000))]
    section_ns: u32,

    /// Nanoseconds between sections, each a table of its own [default: 100; after a long one, as
    /// long as the section]
    #[arg(long, value_delimiter = ',', value_name = "N",
          value_parser = clap::value_parser!(u32).range(0..=100_000_000))]
    outside_ns: Vec<u32>,

    /// Bind thread i to processor i
    #[arg(long)]
    pin: bool,

    /// 3 runs of 20 ms: a functional check of a few seconds
    #[arg(long)]
    quick: bool,

    /// Exit with 1 if a goal is missed
    #[arg(long)]
    strict: bool,

    /// Print JSON lines, one object per row; goals go to stderr
    #[arg(long)]
    json: bool,

    /// List latches and workloads without measuring
    #[arg(long, conflicts_with_all = ["json", "strict"])]
    list: bool,
}

fn workload() -> impl TypedValueParser<Value = Bench> {
    let named = |name: String| Bench::ALL.into_iter().find(|bench| bench.name() == name);
    PossibleValuesParser::new(Bench::ALL.map(Bench::name))
        .try_map(move |name| named(name).ok_or("unknown workload"))
}

fn latch(name: &str) -> Result<String, String> {
    let all = Subject::all();
    let names: Vec<&str> = all.iter().map(|subject| subject.name).collect();
    let known = format!("no latch has this name; there are {}", names.join(", "));
    match Subject::select(all, &[name.to_owned()]) {
        Ok(_) => Ok(name.to_owned()),
        Err(_) => Err(known),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("not a number from 0 to 100".to_owned()),
    }
}

impl Args {
    fn settings(&self) -> Settings {
        let default = if self.quick { Settings::quick() } else { Settings::default() };
        Settings {
            only: if self.only.is_empty() { default.only } else { self.only.clone() },
            threads: (!self.threads.is_empty()).then(|| self.threads.clone()),
            writes: self.writes.clone(),
            runs: self.runs.unwrap_or(default.runs),
            window: self.ms.map_or(default.window, Duration::from_millis),
            section_ns: self.section_ns,
            outside_ns: self.outside_ns.clone(),
            pin: self.pin,
            ..default
        }
    }
}

/// Runs the benchmark and prints the results.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.list {
        return printed(list(&mut io::stdout().lock())).map(|()| ExitCode::SUCCESS);
    }
    let subjects = Subject::select(Subject::all(), &args.latch)
        .map_err(|name| anyhow::anyhow!("no latch is called {name}"))?;
    // Not drawn if stderr is no terminal. It is drawn between measurements only.
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{bar:24} {pos}/{len} {eta:>4} {msg}")?;
    bar.set_style(style);
    let report = latchwork_bench::run(args.settings(), subjects, &mut |step| {
        bar.set_length(step.total as u64);
        bar.set_position(step.done as u64);
        bar.set_message(format!("{}: {}", step.cell, step.subject));
    });
    bar.finish_and_clear();
    let report = match report {
        Ok(report) => report,
        // A latch was found to be incorrect.
        Err(why) => {
            output::complain(&why.to_string());
            return Ok(ExitCode::FAILURE);
        }
    };
    let rows = report.rows();
    if rows.is_empty() {
        eprintln!("latchwork: none of these latches takes part in these workloads");
        return Ok(ExitCode::from(2));
    }

    let figures = latchwork_bench::figures(&report);
    let stdout = io::stdout();
    let mut out = stdout.lock();
    if args.json {
        printed(json(&rows, &mut out))?;
        let stderr = io::stderr();
        printed(reached(&figures, stderr.is_terminal(), &mut stderr.lock()))?;
    } else {
        let colour = stdout.is_terminal();
        printed(tables(&report, &rows, colour, &mut out))?;
        printed(reached(&figures, colour, &mut out))?;
    }
    let missed = figures.iter().any(|figure| figure.reached == Reached::Missed);
    Ok(if args.strict && missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A reader that closed the pipe is no error.
fn printed(result: io::Result<()>) -> anyhow::Result<()> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

fn list(out: &mut impl Write) -> io::Result<()> {
    for subject in Subject::all() {
        let whose = if subject.rival { "rival" } else { "ours" };
        let kind = match subject.kind {
            Kind::Exclusive => "exclusive",
            Kind::Shared => "reader-writer",
        };
        writeln!(out, "{:<20} {whose:<7} {kind}", subject.name)?;
    }
    let workloads = Bench::ALL.map(Bench::name).join(", ");
    writeln!(out, "workloads: {workloads}")
}

fn json(rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    for row in rows {
        serde_json::to_writer(&mut *out, row)?;
        writeln!(out)?;
    }
    out.flush()
}

/// Returns a table that fits 100 columns, coloured if `colour` and the user's settings allow it.
fn table(header: &[&str], colour: bool) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(100);
    table.set_header(header.iter().map(|name| Cell::new(name).add_attribute(Attribute::Dim)));
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if colour && !refused {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    table
}

fn align_right(table: &mut Table, columns: core::ops::Range<usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

fn tables(report: &Report, rows: &[Row], colour: bool, out: &mut impl Write) -> io::Result<()> {
    let settings = &report.settings;
    writeln!(
        out,
        "{} runs of {} ms, in turn, on {} processors; medians. spread: interquartile range / \
         median.\nspeed: throughput / the best rival's, run by run; above 1 is faster. fair: the busier half of \
         the\nthreads' share; 0.5 is fair.",
        settings.runs,
        settings.window.as_millis(),
        rows[0].params.cpus,
    )?;
    let mut from = 0;
    while from < rows.len() {
        let series = &report.series[from];
        let same = |at: &usize| {
            let other = &report.series[*at];
            other.cell == series.cell && other.role == series.role
        };
        let to = from + (from..rows.len()).take_while(same).count();
        let cell = &report.cells[series.cell];
        writeln!(out, "\n{}", title(cell, &rows[from]))?;
        writeln!(out, "{}", block(&rows[from..to], colour))?;
        from = to;
    }
    Ok(())
}

fn title(cell: &latchwork_bench::Cell, row: &Row) -> String {
    let mut title = cell.to_string();
    if cell.bench == Bench::Mix {
        title += &format!(": {}s", row.role.name());
    }
    if cell.lines > 0 {
        let lines =
            if cell.lines == 1 { "1 line".to_owned() } else { format!("{} lines", cell.lines) };
        title += &format!(" ({lines}, {} ns inside, {} between)", cell.section_ns, cell.outside_ns);
    }
    title
}

/// A table of comparable rows.
fn block(rows: &[Row], colour: bool) -> Table {
    let uncontended = rows[0].params.workload == Bench::Uncontended.name();
    let times = if uncontended { ["p50", "p99", "max"] } else { ["wait p50", "p99", "max"] };
    let header =
        ["", "M/s", "ns each", "spread", "speed", times[0], times[1], times[2], "fair", ""];
    let mut table = table(&header, colour);
    for row in rows {
        let name = Cell::new(row.subject);
        let name = if row.rival { name } else { name.add_attribute(Attribute::Bold) };
        let speed = match row.ratio {
            Some(ratio) => format!("{ratio:.2}"),
            None if row.rival => "best".to_owned(),
            None => "-".to_owned(),
        };
        let time = |ns: Option<f64>| Cell::new(ns.map_or("-".to_owned(), nanoseconds));
        let fairness = row.fairness.map_or("-".to_owned(), |share| format!("{share:.2}"));
        table.add_row([
            name,
            Cell::new(format!("{:.3}", row.ops_per_s / 1e6)),
            Cell::new(digits(row.ns_per_op, 1)),
            Cell::new(format!("{:.0} %", row.spread * 100.0)),
            Cell::new(speed),
            time(row.p50_ns),
            time(row.p99_ns),
            time(row.max_ns),
            Cell::new(fairness),
            Cell::new(if row.noisy { "noisy" } else { "" }).fg(Color::Yellow),
        ]);
    }
    align_right(&mut table, 1..9);
    table
}

/// Formats with so many decimals, but no more than are significant.
fn digits(value: f64, decimals: usize) -> String {
    let decimals = if value < 999.0 { decimals } else { 0 };
    format!("{value:.decimals$}")
}

fn nanoseconds(ns: f64) -> String {
    match ns {
        ns if ns < 999.5 => format!("{ns:.0} ns"),
        ns if ns < 999_500.0 => format!("{:.1} us", ns / 1e3),
        ns if ns < 999_500_000.0 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.1} s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        let times = [3.4, 999.6, 12_345.0, 2_500_000.0, 3.2e9].map(nanoseconds);
        assert_eq!(times, ["3 ns", "1.0 us", "12.3 us", "2.5 ms", "3.2 s"]);
    }

    #[test]
    fn misuse_is_told_apart() {
        assert!(latch("shfl-mutex").is_ok() && latch("pthread").is_ok());
        assert!(latch("mcs").unwrap_err().contains("shfl-mutex, shfl-spin"));
        assert_eq!((percent("1"), percent("0.1")), (Ok(1.0), Ok(0.1)));
        assert!(percent("-1").is_err() && percent("nan").is_err() && percent("101").is_err());
    }

    #[test]
    fn what_is_printed_fits_a_hundred_columns() {
        let settings = Settings { runs: 1, window: Duration::from_millis(2), ..Settings::quick() };
        let report = latchwork_bench::run(settings, Subject::all(), &mut |_| ()).unwrap();
        let mut out = Vec::new();
        tables(&report, &report.rows(), false, &mut out).unwrap();
        reached(&latchwork_bench::figures(&report), false, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
            assert!(!line.contains('\u{1b}'), "{line}");
        }
        assert!(text.contains(" best ") && text.contains("figures"));
    }
}

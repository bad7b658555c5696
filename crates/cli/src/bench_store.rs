//! `latchwork bench store`: our store compared with others.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use comfy_table::{Attribute, Cell, Color, Table};
use indicatif::{ProgressBar, ProgressStyle};
use latchwork_bench::store::{self, FIGURES, Figure, Report, Row, Settings};
use latchwork_bench::store::{Subject, Unit, Workload};

use crate::{bench_store_plot, output};

/// Measure our store and other embedded stores, interleaved in one run
///
/// Ours, and Berkeley DB, LMDB, redb, RocksDB, fjall and SQLite, each configured for speed by its
/// manual without giving up its guarantees. Berkeley DB and RocksDB are used where the system has
/// them; the others are built only on request, because that takes minutes:
///
///   cargo build --release --features stores
///
/// A missing store is named, and the others run. Each measurement runs in processes of its own.
/// Exits with 1 if a store fails. A slow result is no failure.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
#[command(after_help = "Examples:
  latchwork bench store --quick
  latchwork bench store --only get,put,durable --runs 9
  latchwork bench store --only tproc-b-1,tproc-b-10 --store berkeley-db,lmdb
  latchwork bench store --only ycsb-a --rows 4000000 --plot ycsb.svg
  latchwork bench store --only load --rows 5000000 --runs 3
  latchwork bench store --only held-snapshot --bytes 10GB --runs 1 --patience 3600
  latchwork bench store --only kill-one,kill-all --kills 100
  latchwork bench store --only crash --bytes 1GiB --store ours,berkeley-db
  latchwork bench store --json > rows.jsonl")]
pub(crate) struct Args {
    /// Only these workloads; load, held-snapshot, kill-one, kill-all, crash run only if named
    #[arg(long, value_delimiter = ',', value_name = "WORKLOAD", value_parser = workload())]
    only: Vec<Workload>,

    /// Only these stores
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = subject())]
    store: Vec<Subject>,

    /// Number of runs of each measurement [default: 5]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1000))]
    runs: Option<usize>,

    /// Duration of one measurement in milliseconds [default: 500]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    ms: Option<u64>,

    /// Records of 116 bytes; a quarter as many rows of YCSB [default: 400000]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(100..=1_000_000_000))]
    rows: Option<usize>,

    /// Branches of tproc-b-10 [default: 10]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    scale: Option<usize>,

    /// Bytes that held-snapshot writes, and of log that a crash leaves: 1GiB, 10GB [default: 64MiB]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    bytes: Option<u64>,

    /// Processes that one measurement of kill-one kills [default: 20]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=100_000))]
    kills: Option<usize>,

    /// MiB of each store's cache [default: 512]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    cache: Option<usize>,

    /// Bytes of log between two checkpoints of our store: 64MiB [default: the store's own]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    budget: Option<u64>,

    /// Where to create stores that do not wait for the disk [default: /dev/shm, or as --disk]
    #[arg(long, value_name = "DIRECTORY")]
    memory: Option<PathBuf>,

    /// Where to create stores that wait for the disk [default: the directory for temporary files]
    #[arg(long, value_name = "DIRECTORY")]
    disk: Option<PathBuf>,

    /// Seconds after which a measurement counts as stuck
    #[arg(long, value_name = "N", default_value = "180", value_parser = clap::value_parser!(u64).range(1..=36_000))]
    patience: u64,

    /// Little data, one run of 40 ms, few threads: a functional check of less than two minutes
    #[arg(long)]
    quick: bool,

    /// Print JSON lines, one object per row
    #[arg(long)]
    json: bool,

    /// Draw rates by threads into this file (SVG)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    /// Act as the measuring process
    #[arg(long, hide = true)]
    serve: bool,
}

fn workload() -> impl TypedValueParser<Value = Workload> {
    let named = |name: String| Workload::ALL.into_iter().find(|workload| workload.name() == name);
    PossibleValuesParser::new(Workload::ALL.map(Workload::name))
        .try_map(move |name| named(name).ok_or("unknown workload"))
}

/// Parses a number of bytes, with or without a unit.
fn bytes(text: &str) -> Result<u64, String> {
    let (digits, unit) =
        text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit = match unit {
        "" | "B" => 1,
        "kB" | "KB" => 1_000,
        "KiB" => 1 << 10,
        "MB" => 1_000_000,
        "MiB" => 1 << 20,
        "GB" => 1_000_000_000,
        "GiB" => 1 << 30,
        _ => return Err("a number of bytes, as 64MiB or 10GB".to_owned()),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes
        .filter(|bytes| (1 << 20..=1 << 40).contains(bytes))
        .ok_or_else(|| "from 1MiB to 1TiB".to_owned())
}

fn subject() -> impl TypedValueParser<Value = Subject> {
    let named = |name: String| Subject::all().into_iter().find(|store| store.name() == name);
    PossibleValuesParser::new(Subject::all().into_iter().map(Subject::name))
        .try_map(move |name| named(name).ok_or("unknown store"))
}

impl Args {
    fn settings(&self) -> Settings {
        let default = if self.quick { Settings::quick() } else { Settings::default() };
        Settings {
            only: if self.only.is_empty() { default.only } else { self.only.clone() },
            subjects: if self.store.is_empty() { default.subjects } else { self.store.clone() },
            runs: self.runs.unwrap_or(default.runs),
            window: self.ms.map_or(default.window, Duration::from_millis),
            rows: self.rows.unwrap_or(default.rows),
            scale: self.scale.unwrap_or(default.scale),
            bytes: self.bytes.unwrap_or(default.bytes),
            kills: self.kills.unwrap_or(default.kills),
            cache: self.cache.map_or(default.cache, |mib| mib << 20),
            budget: self.budget,
            memory: self.memory.clone(),
            disk: self.disk.clone(),
            patience: Duration::from_secs(self.patience),
            ..default
        }
    }
}

/// Runs the benchmark and prints the results.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.serve {
        store::serve();
    }
    if let Some(path) = &args.plot
        && let Err(error) = output::writable(path)
    {
        // A benchmark takes minutes; a file that cannot be written is reported before.
        output::complain(&format!("--plot {}: {error}", path.display()));
        return Ok(ExitCode::from(2));
    }
    let program = std::env::current_exe()?;
    let launch = || {
        let mut command = Command::new(&program);
        command.args(["bench", "store", "--serve"]);
        command
    };
    // Not drawn if stderr is no terminal. It is drawn between measurements only.
    let bar = ProgressBar::new(0);
    bar.set_style(ProgressStyle::with_template("{bar:24} {pos}/{len} {eta:>4} {msg}")?);
    let report = store::run(args.settings(), &launch, &mut |step| {
        bar.set_length(step.total as u64);
        bar.set_position(step.done as u64);
        bar.set_message(format!("{}: {}", step.cell, step.subject.name()));
    });
    bar.finish_and_clear();
    let report = report?;
    let rows = report.rows();
    for (subject, why) in &report.absent {
        output::complain(&format!("{} is missing: {why}", subject.name()));
    }
    if args.json {
        output::print(|out| {
            for row in &rows {
                serde_json::to_writer(&mut *out, row)?;
                writeln!(out)?;
            }
            Ok(())
        })?;
    } else {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colour = !refused && io::stdout().is_terminal();
        output::print(|out| tables(&report, &rows, colour, out))?;
    }
    for (subject, cell, why) in &report.failures {
        output::complain(&format!("{} failed ({cell}): {why}", subject.name()));
    }
    // Last: an error of the plot must not lose the rows.
    if let Some(path) = &args.plot {
        let svg = bench_store_plot::draw(&rows)?;
        std::fs::write(path, svg).with_context(|| path.display().to_string())?;
    }
    Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tables(report: &Report, rows: &[Row], colour: bool, out: &mut impl Write) -> io::Result<()> {
    let settings = &report.settings;
    for (subject, release) in &report.releases {
        writeln!(out, "{} {release}", subject.name())?;
    }
    for (subject, why) in &report.absent {
        writeln!(out, "{}: {why}", subject.name())?;
    }
    writeln!(
        out,
        "{} runs of {} ms, in turn, on {} processors; medians. spread: interquartile range /\n\
         median. speed: rate / the best other store's, run by run.",
        settings.runs,
        settings.window.as_millis(),
        rows.first().map_or(0, |row| row.params.cpus),
    )?;
    for workload in Workload::ALL {
        let of = |row: &&Row| row.params.workload == workload.name();
        let rows: Vec<&Row> = rows.iter().filter(of).collect();
        if !rows.is_empty() {
            writeln!(out, "\n{}: {}", workload.name(), workload.operation())?;
            writeln!(out, "{}", block(&rows, colour))?;
        }
    }
    if report.loads.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nloaded, with the log: in random order, 1,000 in a transaction")?;
    writeln!(out, "{}", loads(report, colour))
}

/// Threads, and processes if there are several.
fn crew(threads: usize, procs: usize) -> String {
    if procs == 1 { threads.to_string() } else { format!("{threads} in {procs}") }
}

/// The table of a workload.
fn block(rows: &[&Row], colour: bool) -> Table {
    let there = |figure: &&Figure| rows.iter().any(|row| row.figures.contains_key(figure.name));
    let figures: Vec<&Figure> = FIGURES.iter().filter(there).collect();
    if !figures.is_empty() {
        return block_of_figures(rows, &figures, colour);
    }
    let header = ["threads", "", "per s", "each", "spread", "speed", "p50", "p99", "", ""];
    let mut table = output::table(&header, 2..8, colour);
    for row in rows {
        table.add_row([
            Cell::new(crew(row.threads, row.procs)),
            name(row),
            Cell::new(rate(row.ops_per_s)),
            Cell::new(output::time(row.ns_per_op as u64)),
            Cell::new(format!("{:.0} %", row.spread * 100.0)),
            Cell::new(speed(row)),
            Cell::new(output::time(row.p50_ns as u64)),
            Cell::new(output::time(row.p99_ns as u64)),
            Cell::new(besides(row)),
            Cell::new(if row.noisy { "noisy" } else { "" }).fg(Color::Yellow),
        ]);
    }
    table
}

/// The table of a workload with additional figures, which replace columns that can be computed.
fn block_of_figures(rows: &[&Row], figures: &[&Figure], colour: bool) -> Table {
    let mut header = vec!["threads", "", "per s", "speed", "p50", "p99"];
    header.extend(figures.iter().map(|figure| figure.label));
    let mut table = output::table(&header, 2..header.len(), colour);
    for row in rows {
        let mut cells = vec![
            Cell::new(crew(row.threads, row.procs)),
            name(row),
            Cell::new(rate(row.ops_per_s)),
            if row.noisy { Cell::new("noisy").fg(Color::Yellow) } else { Cell::new(speed(row)) },
            Cell::new(output::time(row.p50_ns as u64)),
            Cell::new(output::time(row.p99_ns as u64)),
        ];
        let shown = |figure: &&Figure| row.figures.get(figure.name).map(|n| (figure.unit, *n));
        cells.extend(figures.iter().map(|figure| Cell::new(number(shown(figure)))));
        table.add_row(cells);
    }
    table
}

fn name(row: &Row) -> Cell {
    let name = Cell::new(row.subject);
    if row.rival { name } else { name.add_attribute(Attribute::Bold) }
}

fn speed(row: &Row) -> String {
    row.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"))
}

/// Formats a figure in at most eight characters.
fn number(figure: Option<(Unit, f64)>) -> String {
    match figure {
        None => "-".to_owned(),
        Some((Unit::Count, number)) => output::count(number as u64),
        Some((Unit::Time, number)) => output::time(number as u64),
        Some((Unit::Bytes, number)) => output::bytes(number as u64),
        Some((_, number)) if number < 99.95 => format!("{number:.2}"),
        Some((_, number)) => format!("{number:.0}"),
    }
}

/// Additional results of a workload.
fn besides(row: &Row) -> String {
    if row.again_per_op > 0.0005 {
        return format!("{:.3} run again", row.again_per_op);
    }
    String::new()
}

fn loads(report: &Report, colour: bool) -> Table {
    let header = ["for", "", "per s", "B a record"];
    let mut table = output::table(&header, 2..4, colour);
    for load in &report.loads {
        table.add_row([
            Cell::new(load.cell.workload.name()),
            Cell::new(load.subject.name()),
            Cell::new(rate(load.records_per_s)),
            Cell::new(format!("{:.0}", load.bytes_per_record)),
        ]);
    }
    table
}

/// Formats a rate in at most six characters.
fn rate(per_s: f64) -> String {
    match per_s {
        _ if per_s >= 999_500.0 => format!("{:.2}M", per_s / 1e6),
        _ if per_s >= 999.5 => format!("{:.1}k", per_s / 1e3),
        _ => format!("{per_s:.1}"),
    }
}

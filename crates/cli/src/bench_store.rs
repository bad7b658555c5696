//! `latchwork bench store`: our store and other people's beside each other.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use comfy_table::{Attribute, Cell, Color, Table};
use indicatif::{ProgressBar, ProgressStyle};
use latchwork_bench::store::{self, Report, Row, Settings, Subject, Workload};

use crate::{bench_store_plot, output};

/// Measure our store and other embedded stores beside each other, in turn and in one run
///
/// Ours, and Berkeley DB, LMDB, redb, RocksDB, fjall and SQLite, each as quick as its manual says
/// that it can be with its own promises kept. Berkeley DB and RocksDB are used where the system has
/// them; the others are built in only if asked for, because that takes minutes:
///
///   cargo build --release --features stores
///
/// A store that is missing is named, and the others run. Each measurement is made in processes of
/// its own. Exits with 1 if a store fails; never because something is slow.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
#[command(after_help = "Examples:
  latchwork bench store --quick
  latchwork bench store --only get,put,durable --runs 9
  latchwork bench store --only tproc-b-1,tproc-b-10 --store berkeley-db,lmdb
  latchwork bench store --only ycsb-a --rows 4000000 --plot ycsb.svg
  latchwork bench store --json > rows.jsonl")]
pub(crate) struct Args {
    /// Only these workloads
    #[arg(long, value_delimiter = ',', value_name = "WORKLOAD", value_parser = workload())]
    only: Vec<Workload>,

    /// Only these stores
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = subject())]
    store: Vec<Subject>,

    /// How often to measure each [default: 5]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1000))]
    runs: Option<usize>,

    /// Milliseconds of one measurement [default: 500]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    ms: Option<u64>,

    /// Records of 116 bytes; a quarter as many rows of YCSB [default: 400000]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(100..=1_000_000_000))]
    rows: Option<usize>,

    /// Branches of tproc-b-10 [default: 10]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    scale: Option<usize>,

    /// MiB of each store's cache [default: 512]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    cache: Option<usize>,

    /// Where stores lie that do not wait for the disk [default: /dev/shm, or as --disk]
    #[arg(long, value_name = "DIRECTORY")]
    memory: Option<PathBuf>,

    /// Where stores lie that wait for the disk [default: the directory for temporary files]
    #[arg(long, value_name = "DIRECTORY")]
    disk: Option<PathBuf>,

    /// Seconds after which a measurement counts as stuck
    #[arg(long, value_name = "N", default_value = "180", value_parser = clap::value_parser!(u64).range(1..=36_000))]
    patience: u64,

    /// Little data, one run of 40 ms, few threads: to see that all works, in less than two minutes
    #[arg(long)]
    quick: bool,

    /// JSON lines, one object a row
    #[arg(long)]
    json: bool,

    /// Draw rates by threads into this file (SVG)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    /// Be the process that measures
    #[arg(long, hide = true)]
    serve: bool,
}

fn workload() -> impl TypedValueParser<Value = Workload> {
    let named = |name: String| Workload::ALL.into_iter().find(|workload| workload.name() == name);
    PossibleValuesParser::new(Workload::ALL.map(Workload::name))
        .try_map(move |name| named(name).ok_or("unknown workload"))
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
            cache: self.cache.map_or(default.cache, |mib| mib << 20),
            memory: self.memory.clone(),
            disk: self.disk.clone(),
            patience: Duration::from_secs(self.patience),
            ..default
        }
    }
}

/// Runs the benchmark and prints what came of it.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.serve {
        store::serve();
    }
    if let Some(path) = &args.plot
        && let Err(error) = std::fs::write(path, "")
    {
        // A benchmark takes minutes; a file that cannot be written is told before.
        output::complain(&format!("--plot {}: {error}", path.display()));
        return Ok(ExitCode::from(2));
    }
    let program = std::env::current_exe()?;
    let launch = || {
        let mut command = Command::new(&program);
        command.args(["bench", "store", "--serve"]);
        command
    };
    // Nothing is drawn if stderr is no terminal. It is drawn between measurements only.
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
    if let Some(path) = &args.plot {
        std::fs::write(path, bench_store_plot::draw(&rows)?)?;
    }
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
    Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What an operation of a workload is.
fn operation(workload: Workload) -> &'static str {
    match workload {
        Workload::Get => "a read in a snapshot of its own; 16 and 100 bytes, uniform",
        Workload::GetLong => "a read, 1,000 in a transaction",
        Workload::GetRw => "a read in a transaction of its own that could write",
        Workload::Put => "an update in a transaction of its own, no wait for the disk",
        Workload::Batch => "an update, 1,000 in a transaction, no wait for the disk",
        Workload::Durable => "an update in a transaction of its own, on the disk when it returns",
        Workload::Range10 => "10 records in order from a random key",
        Workload::Scan100 => "100 records in order from a random key",
        Workload::ScanAll => "a record of a scan of all in order",
        Workload::ReadWhileWriting => "a read as in get, beside one thread that writes",
        Workload::Rrand => "a read without a transaction; keys of 4 bytes in native order",
        Workload::Rhot => "the same, always key 0",
        Workload::Wrand => "an update of such a record, on the disk when it returns",
        Workload::Sepdb => "a read, each thread in a table of its own",
        Workload::Snap => "a read in a snapshot as long as the window",
        Workload::TprocB1 => "a transfer: 3 reads and updates, an insert; one branch",
        Workload::TprocB10 => "the same, many branches",
        Workload::YcsbA => "half reads, half updates of rows of 1,000 bytes; Zipf 0.99",
        Workload::YcsbB => "95 % reads, 5 % updates",
        Workload::YcsbC => "reads",
        Workload::YcsbD => "95 % reads of the latest, 5 % inserts",
        Workload::YcsbE => "95 % scans of 1 to 100 rows, 5 % inserts",
        Workload::YcsbF => "half reads, half read-modify-write",
    }
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
            writeln!(out, "\n{}: {}", workload.name(), operation(workload))?;
            writeln!(out, "{}", block(&rows, colour))?;
        }
    }
    writeln!(out, "\nload: records in random order, 1,000 in a transaction")?;
    writeln!(out, "{}", loads(report, colour))
}

/// Threads, and processes if there are several.
fn crew(threads: usize, procs: usize) -> String {
    if procs == 1 { threads.to_string() } else { format!("{threads} in {procs}") }
}

/// The rows of a workload.
fn block(rows: &[&Row], colour: bool) -> Table {
    let header = ["threads", "", "per s", "each", "spread", "speed", "p50", "p99", "", ""];
    let mut table = output::table(&header, 2..8, colour);
    for row in rows {
        let name = Cell::new(row.subject);
        let name = if row.rival { name } else { name.add_attribute(Attribute::Bold) };
        table.add_row([
            Cell::new(crew(row.threads, row.procs)),
            name,
            Cell::new(rate(row.ops_per_s)),
            Cell::new(output::time(row.ns_per_op as u64)),
            Cell::new(format!("{:.0} %", row.spread * 100.0)),
            Cell::new(row.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"))),
            Cell::new(output::time(row.p50_ns as u64)),
            Cell::new(output::time(row.p99_ns as u64)),
            Cell::new(besides(row)),
            Cell::new(if row.noisy { "noisy" } else { "" }).fg(Color::Yellow),
        ]);
    }
    table
}

/// What a workload has to say besides.
fn besides(row: &Row) -> String {
    if let Some(writes) = row.writes_per_s {
        return format!("{} writes/s", rate(writes));
    }
    if let Some(syncs) = row.syncs_per_op {
        return format!("{syncs:.2} syncs each");
    }
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

/// A rate, in at most six characters.
fn rate(per_s: f64) -> String {
    match per_s {
        _ if per_s >= 999_500.0 => format!("{:.2}M", per_s / 1e6),
        _ if per_s >= 999.5 => format!("{:.1}k", per_s / 1e3),
        _ => format!("{per_s:.1}"),
    }
}

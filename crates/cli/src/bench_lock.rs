//! `latchwork bench lock`: our lock manager compared with Berkeley DB's.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use comfy_table::{Attribute, Cell, Color};
use indicatif::{ProgressBar, ProgressStyle};
use latchwork_bench::Reached;
use latchwork_bench::lock::{self, Report, Row, Settings, Subject, Workload};

use crate::figures::reached;
use crate::output;

/// Measure our lock manager and Berkeley DB's, interleaved in one run
///
/// Each measurement runs in a process of its own; where processes are compared, in one per worker.
/// Without Berkeley DB 5.3 at build time (Debian: libdb5.3-dev), only ours is measured, and a
/// message says so. Exits with 1 if a measurement fails or its subject never occurred. A slow
/// result is no failure, except with --strict.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork bench lock --quick
  latchwork bench lock --only weak,strong,one-object --runs 15
  latchwork bench lock --only cycle-2,cycle-100 --waiters 10000 --rival-waiters 2000
  latchwork bench lock --subject lockmgr --only held --held 4000000
  latchwork bench lock --only steep
  latchwork bench lock --json > rows.jsonl")]
pub(crate) struct Args {
    /// Only these workloads; steep is all that end in -beside and -behind
    #[arg(long, value_delimiter = ',', value_name = "WORKLOAD", value_parser = workload())]
    only: Vec<Only>,

    /// Only these lock managers
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = subject())]
    subject: Vec<Subject>,

    /// Number of runs of each measurement [default: 7]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1000))]
    runs: Option<usize>,

    /// Duration of one measurement of a rate in milliseconds [default: 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=20_000))]
    ms: Option<u64>,

    /// Waiting requests during searches for deadlocks [default: 10000]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=100_000))]
    waiters: Option<usize>,

    /// Waiting requests for Berkeley DB, which needs a thread for each [default: 1000]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=20_000))]
    rival_waiters: Option<usize>,

    /// Locks held at a time to measure their size [default: 1000000]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1000..=100_000_000))]
    held: Option<usize>,

    /// Where to create shared memory [default: /dev/shm, or the directory for temporary files]
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,

    /// Seconds after which a measurement counts as stuck
    #[arg(long, value_name = "N", default_value = "60", value_parser = clap::value_parser!(u64).range(1..=3600))]
    patience: u64,

    /// 3 runs of 20 ms, few waiters, few held locks: a functional check of a few seconds
    #[arg(long)]
    quick: bool,

    /// Exit with 1 if a goal is missed, or Berkeley DB is missing
    #[arg(long)]
    strict: bool,

    /// Print JSON lines, one object per row; goals go to stderr
    #[arg(long)]
    json: bool,

    /// Act as the measuring process
    #[arg(long, hide = true)]
    serve: bool,
}

/// The argument of `--only`: a workload, or several.
#[derive(Clone, Copy)]
enum Only {
    One(Workload),
    Steep,
}

impl Only {
    fn workloads(self) -> Vec<Workload> {
        match self {
            Self::One(workload) => vec![workload],
            Self::Steep => Workload::STEEP.to_vec(),
        }
    }
}

fn workloads() -> impl Iterator<Item = Workload> {
    Workload::ALL.into_iter().chain(Workload::STEEP)
}

fn workload() -> impl TypedValueParser<Value = Only> {
    let named = |name: String| match name.as_str() {
        "steep" => Some(Only::Steep),
        name => workloads().find(|workload| workload.name() == name).map(Only::One),
    };
    PossibleValuesParser::new(workloads().map(Workload::name).chain(["steep"]))
        .try_map(move |name| named(name).ok_or("unknown workload"))
}

fn subject() -> impl TypedValueParser<Value = Subject> {
    let named = |name: String| Subject::ALL.into_iter().find(|subject| subject.name() == name);
    PossibleValuesParser::new(Subject::ALL.map(Subject::name))
        .try_map(move |name| named(name).ok_or("unknown lock manager"))
}

impl Args {
    fn settings(&self) -> Settings {
        let default = if self.quick { Settings::quick() } else { Settings::default() };
        Settings {
            only: match &self.only[..] {
                [] => default.only,
                only => only.iter().flat_map(|only| only.workloads()).collect(),
            },
            subjects: if self.subject.is_empty() { default.subjects } else { self.subject.clone() },
            runs: self.runs.unwrap_or(default.runs),
            window: self.ms.map_or(default.window, Duration::from_millis),
            waiters: self.waiters.unwrap_or(default.waiters),
            rival_waiters: self.rival_waiters.unwrap_or(default.rival_waiters),
            held: self.held.unwrap_or(default.held),
            dir: self.dir.clone(),
            patience: Duration::from_secs(self.patience),
            ..default
        }
    }
}

/// Runs the benchmark and prints the results.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.serve {
        lock::serve();
    }
    let program = std::env::current_exe()?;
    let launch = || {
        let mut command = Command::new(&program);
        command.args(["bench", "lock", "--serve"]);
        command
    };
    // Not drawn if stderr is no terminal. It is drawn between measurements only.
    let bar = ProgressBar::new(0);
    bar.set_style(ProgressStyle::with_template("{bar:24} {pos}/{len} {eta:>4} {msg}")?);
    let report = lock::run(args.settings(), &launch, &mut |step| {
        bar.set_length(step.total as u64);
        bar.set_position(step.done as u64);
        bar.set_message(format!("{}: {}", step.cell, step.subject.name()));
    });
    bar.finish_and_clear();
    let report = report?;
    if let Some(why) = &report.absent {
        output::complain(&format!("THE RIVAL IS MISSING, nothing is compared: {why}"));
    }
    let figures = lock::figures(&report);
    let rows = report.rows();
    if args.json {
        output::print(|out| {
            for row in &rows {
                serde_json::to_writer(&mut *out, row)?;
                writeln!(out)?;
            }
            Ok(())
        })?;
        let _ = reached(&figures, output::colour_on_stderr(), &mut io::stderr().lock());
    } else {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colour = !refused && io::stdout().is_terminal();
        output::print(|out| {
            tables(&report, &rows, colour, out)?;
            reached(&figures, colour, out)
        })?;
    }
    let missed = figures.iter().any(|figure| figure.reached == Reached::Missed);
    let failed = args.strict && (missed || report.absent.is_some());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Describes an operation of a workload.
fn operation(workload: Workload) -> &'static str {
    match workload {
        Workload::Weak => "read-lock and unlock; 16 objects of one's own",
        Workload::Strong => "write-lock and unlock; 16 objects of one's own",
        Workload::Table => "write-lock and unlock; a thousand objects of one's own",
        Workload::Cold => "write-lock and unlock; a million objects of one's own",
        Workload::OneObject => "read-lock and unlock; one object of all",
        Workload::Zipf => "lock and unlock; 100,000 objects of all, a few hot, one in ten to write",
        Workload::ReleaseAll => "release of 1,000 write locks",
        Workload::Cycle2 => "2 owners wait for each other, until one is told",
        Workload::Cycle100 => "100 owners in a cycle, until one gets the error",
        Workload::Calm => "write-lock and unlock; others wait, and nobody looks for deadlocks",
        Workload::Detecting => "write-lock and unlock; others form cycles of 2, which are resolved",
        Workload::Held => "write-lock, and keep it",
        Workload::StrongBeside => "X on a new name; others have IX on another",
        Workload::SharedBehind => "S, 1 ms and gives up; others have IX on the name",
        Workload::ReleaseBehind => "one of those gives its IX back",
        Workload::LookBehind => "a look for deadlocks; others wait for X on one name",
        Workload::WaitBehind => "X, 1 ms and gives up; others wait before it",
        Workload::OwnerBeside => "an owner made and dropped; others of its session",
        Workload::SessionBeside => "a session and an owner; others, 1,500 at most",
        Workload::RangeBeside => "a range of one key; others have ranges all around",
    }
}

fn tables(report: &Report, rows: &[Row], colour: bool, out: &mut impl Write) -> io::Result<()> {
    let settings = &report.settings;
    let rival = match (&report.release, &report.absent) {
        (Some(release), _) => format!("Berkeley DB {release}"),
        (None, Some(why)) => format!("no rival: {why}"),
        (None, None) => "no rival was asked for".to_owned(),
    };
    writeln!(
        out,
        "{rival}\n{} runs, rates over {} ms, in turn, on {} processors; medians. spread: \
         interquartile\nrange / median. speed: rate / Berkeley DB's, run by run. fast: requests \
         without a shared store.\nby: workers, threads or processes.",
        settings.runs,
        settings.window.as_millis(),
        rows.first().map_or(0, |row| row.params.cpus),
    )?;
    for workload in workloads() {
        let of = |row: &&Row| row.params.workload == workload.name();
        let rows: Vec<&Row> = rows.iter().filter(of).collect();
        if !rows.is_empty() {
            writeln!(out, "\n{}: {}", workload.name(), operation(workload))?;
            writeln!(out, "{}", block(&rows, colour))?;
        }
    }
    Ok(())
}

/// The table of a workload.
fn block(rows: &[&Row], colour: bool) -> comfy_table::Table {
    let header = ["place", "by", "", "per s", "each", "spread", "speed", "p50", "p99", "", ""];
    let mut table = output::table(&header, 3..9, colour);
    for row in rows {
        let name = Cell::new(row.subject);
        let name = if row.rival { name } else { name.add_attribute(Attribute::Bold) };
        table.add_row([
            Cell::new(row.params.place),
            Cell::new(row.threads),
            name,
            Cell::new(rate(row.ops_per_s)),
            Cell::new(time(row.ns_per_op)),
            Cell::new(format!("{:.0} %", row.spread * 100.0)),
            Cell::new(row.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"))),
            Cell::new(time(row.p50_ns)),
            Cell::new(time(row.p99_ns)),
            Cell::new(besides(row)),
            Cell::new(if row.noisy { "noisy" } else { "" }).fg(Color::Yellow),
        ]);
    }
    table
}

/// Additional results of a workload.
fn besides(row: &Row) -> String {
    if let Some(bytes) = row.bytes_per_lock {
        return format!("{bytes:.0} B a lock");
    }
    if let Some(others) = row.params.others {
        return format!("beside {}", output::count(others));
    }
    match (row.params.waiters, row.fast) {
        (Some(waiters), _) => format!("{} wait", output::count(waiters)),
        (None, Some(fast)) if fast > 0.0 => format!("{:.0} % fast", fast * 100.0),
        _ => String::new(),
    }
}

/// Formats a rate in at most six characters.
fn rate(per_s: f64) -> String {
    match per_s {
        _ if per_s >= 999_500.0 => format!("{:.2}M", per_s / 1e6),
        _ if per_s >= 999.5 => format!("{:.1}k", per_s / 1e3),
        _ => format!("{per_s:.1}"),
    }
}

/// Formats a time, with a decimal where it is significant.
fn time(ns: f64) -> String {
    if ns < 99.95 { format!("{ns:.1} ns") } else { output::time(ns as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([3.2, 4321.0, 13_101_000.0].map(rate), ["3.2", "4.3k", "13.10M"]);
        assert_eq!([46.53, 598.2, 16_500.0].map(time), ["46.5 ns", "598 ns", "16.5 us"]);
    }
}

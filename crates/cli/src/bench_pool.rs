//! `latchwork bench pool`: our buffer pool compared with Berkeley DB's, a mapped file, and `pread`.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use indicatif::{ProgressBar, ProgressStyle};
use latchwork_bench::Reached;
use latchwork_bench::pool::{self, Report, Row, Settings, Workload};

use crate::figures::reached;
use crate::output;

/// Measure our buffer pool, Berkeley DB's, a mapped file, and pread, interleaved
///
/// Without Berkeley DB 5.3 at build time (Debian: libdb5.3-dev), ours is compared with the others
/// only, and a message says so. Exits with 1 if a page has wrong content, or if the subject of a
/// workload did not occur. A slow result is no failure, except with --strict.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork bench pool --quick
  latchwork bench pool --only hot,uniform --threads 1,2,4 --runs 15
  latchwork bench pool --only scan,scan-told,write-back --frames 32768
  latchwork bench pool --json > rows.jsonl")]
pub(crate) struct Args {
    /// Only these workloads
    #[arg(long, value_delimiter = ',', value_name = "WORKLOAD", value_parser = workload())]
    only: Vec<Workload>,

    /// Numbers of threads, and of processes [default: 1,2]
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1000))]
    threads: Vec<usize>,

    /// Number of runs of each measurement [default: 7]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1000))]
    runs: Option<usize>,

    /// Duration of one measurement in milliseconds [default: 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=20_000))]
    ms: Option<u64>,

    /// Frames of the pools, of 8 KiB [default: 8192]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..=1 << 24))]
    frames: Option<u32>,

    /// Where to create the file of pages [default: the directory for temporary files]
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,

    /// 3 runs of 20 ms in small pools: a functional check of a few seconds
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

fn workload() -> impl TypedValueParser<Value = Workload> {
    let named = |name: String| Workload::ALL.into_iter().find(|workload| workload.name() == name);
    PossibleValuesParser::new(Workload::ALL.map(Workload::name))
        .try_map(move |name| named(name).ok_or("unknown workload"))
}

impl Args {
    fn settings(self) -> Settings {
        let default = if self.quick { Settings::quick() } else { Settings::default() };
        Settings {
            only: if self.only.is_empty() { default.only } else { self.only },
            threads: if self.threads.is_empty() { default.threads } else { self.threads },
            runs: self.runs.unwrap_or(default.runs),
            window: self.ms.map_or(default.window, Duration::from_millis),
            frames: self.frames.unwrap_or(default.frames),
            dir: self.dir.unwrap_or(default.dir),
        }
    }
}

/// Runs the benchmark and prints the results.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.serve {
        pool::serve();
    }
    let (json, strict) = (args.json, args.strict);
    let program = std::env::current_exe()?;
    let launch = || {
        let mut command = Command::new(&program);
        command.args(["bench", "pool", "--serve"]);
        command
    };
    // Not drawn if stderr is no terminal.
    let bar = ProgressBar::new(0);
    bar.set_style(ProgressStyle::with_template("{bar:24} {pos}/{len} {eta:>4} {msg}")?);
    let report = pool::run(args.settings(), &launch, &mut |step| {
        bar.set_length(step.total as u64);
        bar.set_position(step.done as u64);
        bar.set_message(format!("{}: {}", step.cell, step.subject.name()));
    });
    bar.finish_and_clear();
    let report = report?;
    if let Some(why) = &report.absent {
        output::complain(&format!("THE RIVAL IS MISSING, nothing is compared: {why}"));
    }
    if let Some(why) = &report.no_direct {
        output::complain(&format!("beyond-direct is left out, its file cannot be had: {why}"));
    }
    let (figures, rows) = (pool::figures(&report), report.rows());
    if json {
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
            table(&report, &rows, colour, out)?;
            reached(&figures, colour, out)
        })?;
    }
    let missed = figures.iter().any(|figure| figure.reached == Reached::Missed);
    let failed = strict && (missed || report.absent.is_some());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn table(report: &Report, rows: &[Row], colour: bool, out: &mut impl Write) -> io::Result<()> {
    let header =
        ["workload", "by", "pool", "ns/op", "spread", "p50", "p99", "stores", "hits", "ratio"];
    let mut table = output::table(&header, 3..10, colour);
    let share = |value: Option<f64>, digits| {
        value.map_or(String::new(), |value| format!("{value:.digits$}"))
    };
    for row in rows {
        let workers = row.threads * row.procs;
        let noisy = if row.noisy { "*" } else { "" };
        table.add_row([
            row.params.workload.to_owned(),
            format!("{workers} {}", if row.procs > 1 { "procs" } else { "threads" }),
            row.subject.to_owned(),
            format!("{:.1}", row.ns_per_op),
            format!("{:.0} %{noisy}", row.spread * 100.0),
            output::time(row.p50_ns as u64),
            output::time(row.p99_ns as u64),
            share(row.stores_per_read, 4),
            share(row.hit_rate, 3),
            share(row.ratio, 2),
        ]);
    }
    writeln!(
        out,
        "{table}\nns/op: of one worker; spread: interquartile range / median, * if the runs do not \
         agree on\nwhich is faster; p50, p99: of operations timed alone, the clock's own time \
         included; stores:\nwhere other threads load, for each read, counted by the reader; hits: of \
         a hot set, where there is\none; ratio: throughput over Berkeley DB's."
    )?;
    if report.absent.is_some() {
        writeln!(out, "Berkeley DB is missing: no ratios.")?;
    }
    Ok(())
}

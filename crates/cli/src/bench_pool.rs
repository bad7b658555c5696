//! `latchwork bench pool`: our buffer pool beside Berkeley DB's, a mapped file, and `pread`.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use indicatif::{ProgressBar, ProgressStyle};
use latchwork_bench::pool::{self, Report, Row, Settings, Workload};

use crate::output;

/// Measure our buffer pool beside Berkeley DB's, a mapped file, and pread, in turn
///
/// Without Berkeley DB 5.3 (Debian: libdb5.3-dev, when this was built) ours runs beside the others
/// alone, and that is said. Exits with 1 if a page holds what nobody put there, or if the
/// optimistic path was never taken; never because something is slow.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork bench pool --quick
  latchwork bench pool --only hot,uniform --threads 1,2,4 --runs 15
  latchwork bench pool --json > rows.jsonl")]
pub(crate) struct Args {
    /// Only these workloads
    #[arg(long, value_delimiter = ',', value_name = "WORKLOAD", value_parser = workload())]
    only: Vec<Workload>,

    /// Numbers of threads [default: 1,2]
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1000))]
    threads: Vec<usize>,

    /// How often to measure each [default: 7]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1000))]
    runs: Option<usize>,

    /// Milliseconds of one measurement [default: 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=20_000))]
    ms: Option<u64>,

    /// Frames of the pools, of 8 KiB [default: 8192]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..=1 << 24))]
    frames: Option<u32>,

    /// Where the file of pages is made [default: the directory for temporary files]
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,

    /// 3 runs of 20 ms in small pools: to see that all works, in some seconds
    #[arg(long)]
    quick: bool,

    /// JSON lines, one object a row
    #[arg(long)]
    json: bool,
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

/// Runs the benchmark and prints what came of it.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let json = args.json;
    // Nothing is drawn if stderr is no terminal.
    let bar = ProgressBar::new(0);
    bar.set_style(ProgressStyle::with_template("{bar:24} {pos}/{len} {eta:>4} {msg}")?);
    let report = pool::run(args.settings(), &mut |step| {
        bar.set_length(step.total as u64);
        bar.set_position(step.done as u64);
        bar.set_message(format!("{}: {}", step.workload.name(), step.subject.name()));
    });
    bar.finish_and_clear();
    let report = report?;
    if let Some(why) = &report.absent {
        output::complain(&format!("THE RIVAL IS MISSING, nothing is compared: {why}"));
    }
    let rows = report.rows();
    if json {
        output::print(|out| {
            for row in &rows {
                serde_json::to_writer(&mut *out, row)?;
                writeln!(out)?;
            }
            Ok(())
        })?;
    } else {
        table(&report, &rows)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(report: &Report, rows: &[Row]) -> anyhow::Result<()> {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colour = !refused && std::io::stdout().is_terminal();
    let header =
        ["workload", "threads", "pool", "ns/op", "ops/s", "spread", "stores/read", "hits", "ratio"];
    let mut table = output::table(&header, 3..9, colour);
    let share = |value: Option<f64>, digits| {
        value.map_or(String::new(), |value| format!("{value:.digits$}"))
    };
    for row in rows {
        let noisy = if row.noisy { " (noisy)" } else { "" };
        table.add_row([
            row.params.workload.to_owned(),
            row.threads.to_string(),
            row.subject.to_owned(),
            format!("{:.1}", row.ns_per_op),
            output::count(row.ops_per_s as u64),
            format!("{:.0} %{noisy}", row.spread * 100.0),
            share(row.stores_per_read, 4),
            share(row.hit_rate, 3),
            share(row.ratio, 2),
        ]);
    }
    output::print(|out| {
        writeln!(out, "{table}")?;
        writeln!(
            out,
            "ratio: throughput over Berkeley DB's; ns/op: of one thread; stores/read: where other\n\
             threads load, counted by the reader."
        )?;
        if report.absent.is_some() {
            writeln!(out, "Berkeley DB is missing: no ratios.")?;
        }
        Ok(())
    })?;
    Ok(())
}

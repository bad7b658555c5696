//! Published figures compared with simulated ones: curves point by point, and the founding
//! findings.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use comfy_table::Table;
use indicatif::{ProgressBar, ProgressStyle};
use latchwork_bench::sim::{CLAIMS, FIGURES, Figure, Judged, RunError, SeedFinding};

use super::row;
use crate::output;

/// Predict published curves, point by point
///
/// Predicted over published millions of operations per second. A star marks the points that a
/// figure's fit has used; the others are predictions.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork sim judge
  latchwork sim judge sosp13-5 --json")]
pub(crate) struct JudgeArgs {
    /// Only these figures
    #[arg(value_name = "FIGURE", value_parser = figure())]
    figures: Vec<Figure>,

    /// Print JSON lines, one object per point
    #[arg(long)]
    json: bool,
}

/// Run the four findings on which this project is based
///
/// Each is a quotient of two simulated runs, with the published value. Exits with 1 if one does not
/// agree.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork sim seeds
  latchwork sim seeds --json")]
pub(crate) struct SeedsArgs {
    /// Print JSON lines, one object per claim
    #[arg(long)]
    json: bool,
}

fn figure() -> impl TypedValueParser<Value = Figure> {
    let named = |name: String| Figure::named(&name).ok_or("unknown figure");
    PossibleValuesParser::new(FIGURES.iter().map(|figure| figure.name)).try_map(named)
}

/// Applies `each` to all items, as many at once as the host has processors, in their order.
fn all<T: Sync, R: Send>(
    items: &[T],
    each: impl Fn(&T) -> Result<R, RunError> + Sync,
) -> Result<Vec<R>, RunError> {
    let bar = ProgressBar::new(items.len() as u64);
    let style = ProgressStyle::with_template("{bar:24} {pos}/{len} {eta:>4}");
    bar.set_style(style.expect("a template that makes sense"));
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<Result<R, RunError>>>> =
        items.iter().map(|_| Mutex::default()).collect();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                // Relaxed: only the number matters; the scope's end publishes the results.
                while let Some((item, done)) = {
                    let turn = next.fetch_add(1, Relaxed);
                    items.get(turn).zip(done.get(turn))
                } {
                    *done.lock().expect("nobody panics with it") = Some(each(item));
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let result = |cell: Mutex<Option<_>>| cell.into_inner().ok().flatten().expect("it was done");
    done.into_iter().map(result).collect()
}

fn colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && !refused
}

/// `sim judge`.
pub(super) fn judge(args: &JudgeArgs) -> anyhow::Result<ExitCode> {
    let figures = if args.figures.is_empty() { FIGURES } else { &args.figures };
    for figure in figures {
        let points = all(&figure.judged_points(), |point| figure.judge(*point))?;
        let is_read = output::is_read(|out| match args.json {
            true => row::json(&points, out),
            false => writeln!(out, "{}\n\n{}\n", figure.source, curves(figure, &points)),
        })?;
        if !is_read {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A row for each number of threads, with the predicted and the published value for each curve.
fn curves(figure: &Figure, points: &[Judged]) -> Table {
    let mut series: Vec<(&str, &str)> = Vec::new();
    for point in points.iter().map(|p| (p.series, p.subject)) {
        if !series.contains(&point) {
            series.push(point);
        }
    }
    let mut header = vec!["threads".to_owned()];
    header.extend(series.iter().map(|(theirs, ours)| format!("{theirs}: {ours}")));
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut table = output::table(&header, 0..header.len(), colour());
    for threads in figure.threads {
        let mut cells = vec![threads.to_string()];
        for (theirs, _) in &series {
            let found = points.iter().find(|p| p.series == *theirs && p.threads == *threads);
            cells.push(found.map_or_else(String::new, |p| {
                let star = if p.fitted { "*" } else { " " };
                let quotient = p.predicted / p.published;
                format!("{}/{} {quotient:.2}{star}", short(p.predicted), short(p.published))
            }));
        }
        table.add_row(cells);
    }
    table
}

/// Formats three digits, so that five curves fit next to each other.
fn short(value: f64) -> String {
    let places = match value {
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{value:.places$}")
}

/// `sim seeds`.
pub(super) fn seeds(args: &SeedsArgs) -> anyhow::Result<ExitCode> {
    let found = all(CLAIMS, latchwork_bench::sim::Claim::judge)?;
    output::print(|out| match args.json {
        true => row::json(&found, out),
        false => writeln!(out, "{}", findings(&found)),
    })?;
    Ok(ExitCode::from(u8::from(found.iter().any(|v| !v.agrees))))
}

fn findings(found: &[SeedFinding]) -> String {
    let mut text = String::new();
    let mut last = 0;
    for v in found {
        if v.seed != last {
            text += FINDINGS[v.seed - 1];
            text += "\n";
            last = v.seed;
        }
        let word = if v.agrees { "agrees" } else { "DIFFERS" };
        text += &format!("  {}\n", v.claim);
        text += &format!("    published  {}\n", v.published);
        let (over, under) = (output::count(v.over as u64), output::count(v.under as u64));
        text += &format!("    simulated  {over} / {under} = {:.2}   {word}", v.simulated);
        text += &format!(" (from {} to {})\n", v.least, v.most);
    }
    text
}

const FINDINGS: [&str; 4] = [
    "Berkeley DB's locker latch, exclusive and shared (2026)",
    "Berkeley DB's buffer headers, packed and isolated (2026)",
    "PostgreSQL's LWLock, under a spinlock and atomic (2013)",
    "Files created in one directory: Linux's mutex, CST, ShflLock (2019)",
];

//! `pool stat`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use comfy_table::Table;
use latchwork_pool::{FrameInfo, Timed, Times};
use serde_json::{Value, json};

use super::{Scene, colour, print_json};
use crate::output;

/// Print counts of frames, files and operations
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork pool stat store.region
  latchwork pool stat store.region --histograms
  latchwork pool stat store.region --json

Per file: reads, hits, faults, pages evicted and written, waits for a thread that held the page.
Times of faults, writes and waits are in powers of two of a nanosecond. A handle stores its counts
after some thousand reads, after some hundred evictions, and when it ends.")]
pub(crate) struct Args {
    /// The region, or the folder of a store
    file: PathBuf,
    /// Print histograms of the durations of faults, writes and waits
    #[arg(long)]
    histograms: bool,
    /// Print a JSON line, including the histograms
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let scene = Scene::open(&args.file)?;
    let (pool, stats) = (&scene.pool, scene.pool.stats()?);
    let frames: Vec<FrameInfo> = pool.list()?.collect();
    let files = file_rows(&scene, &frames)?;
    let times = Timed::ALL.map(|of| pool.times(of).map(|times| (of, times)));
    let times = times.into_iter().collect::<Result<Vec<_>, _>>()?;
    let count = |which: &dyn Fn(&FrameInfo) -> bool| frames.iter().filter(|f| which(f)).count();
    let (dirty, held) = (count(&|frame| frame.dirty), count(&|frame| frame.holder.is_some()));
    let (active, pinned) = (pool.active()?, pool.pins().count());
    let misses = stats.faults + stats.prefetched + stats.failed;
    let looks = stats.reads + misses;
    let hits = if looks == 0 { 1.0 } else { stats.reads as f64 / looks as f64 };
    if args.json {
        let counts: serde_json::Map<_, _> =
            stats.named().into_iter().map(|(name, n)| (name.to_owned(), json!(n))).collect();
        print_json([json!({
            "frames": active, "frame_bytes": pool.frame_bytes(), "in_use": frames.len(),
            "dirty": dirty, "held": held, "pinned": pinned, "hit_rate": hits, "counts": counts,
            "files": files, "times": times.iter().map(times_line).collect::<Vec<_>>(),
        })])?;
        return Ok(ExitCode::SUCCESS);
    }
    output::print(|out| {
        let used = frames.len();
        writeln!(out, "frames     {active} of {} bytes", pool.frame_bytes())?;
        writeln!(out, "in use     {used}, {dirty} dirty, {held} latched, {pinned} pinned")?;
        writeln!(out, "hits       {:.2} %\n", hits * 100.0)?;
        for (name, n) in stats.named().into_iter().filter(|(_, n)| *n != 0) {
            writeln!(out, "{:<14} {}", name.replace('_', " "), output::count(n))?;
        }
        writeln!(out, "\n{}", pages_table(&files))?;
        writeln!(out, "\n{}", work_table(&files))?;
        writeln!(out, "\n{}", times_table(&times))?;
        if args.histograms {
            times.iter().try_for_each(|(of, times)| histogram(out, *of, times))?;
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// An object for each file: its pages in the pool, and the operations on them.
fn file_rows(scene: &Scene, frames: &[FrameInfo]) -> anyhow::Result<Vec<Value>> {
    let of = |number, which: &dyn Fn(&FrameInfo) -> bool| {
        frames.iter().filter(|frame| frame.page.0 == number && which(frame)).count()
    };
    let mut rows = Vec::new();
    for (id, path) in &scene.files {
        let (number, stats) = (id.number(), scene.pool.file_stats(*id)?);
        let mut row = json!({
            "file": number, "path": path, "page_bytes": id.page_bytes(),
            "sparse": id.is_sparse(), "pages": scene.pool.pages(*id)?,
            "free": scene.pool.free_pages(*id).ok(), "in_pool": of(number, &|_| true),
            "dirty": of(number, &|frame| frame.dirty), "used": of(number, &|frame| frame.marked),
            "hit_rate": stats.hit_rate(),
        });
        for (name, n) in stats.named() {
            row[name] = json!(n);
        }
        rows.push(row);
    }
    Ok(rows)
}

/// The pages of files in the pool.
fn pages_table(files: &[Value]) -> Table {
    let header = ["file", "pages", "free", "in pool", "dirty", "used", "bytes", "path"];
    let mut table = output::table(&header, 0..7, colour());
    for row in files {
        let keys = ["file", "pages", "free", "in_pool", "dirty", "used", "page_bytes"];
        let cells = keys.map(|key| row[key].to_string());
        let path = output::tail(row["path"].as_str().unwrap_or_default(), 40);
        table.add_row(cells.into_iter().chain([path]));
    }
    table
}

/// The operations on the pages of files.
fn work_table(files: &[Value]) -> Table {
    let header = ["file", "reads", "hits %", "faults", "failed", "evicted", "written", "waits"];
    let mut table = output::table(&header, 0..8, colour());
    for row in files {
        let count = |key: &str| output::count(row[key].as_u64().unwrap_or(0));
        let hits = format!("{:.2}", row["hit_rate"].as_f64().unwrap_or(1.0) * 100.0);
        let counts = ["faults", "failed", "evicted", "written", "waits"].map(count);
        let first = [row["file"].to_string(), count("reads"), hits];
        table.add_row(first.into_iter().chain(counts));
    }
    table
}

/// Durations of operations: the upper ends of their classes.
fn times_table(times: &[(Timed, Times)]) -> Table {
    let mut table = output::table(&["", "count", "p50 <", "p99 <", "longest <"], 1..5, colour());
    for (of, times) in times.iter().filter(|(_, times)| times.count() != 0) {
        let at = |share| output::time(times.quantile(share));
        let count = output::count(times.count());
        table.add_row([of.name().to_owned(), count, at(0.5), at(0.99), at(1.0)]);
    }
    table
}

/// Durations for programs: each class by its lower end in nanoseconds.
fn times_line((of, times): &(Timed, Times)) -> Value {
    let classes = (0..).zip(times.0).filter(|(_, count)| *count != 0);
    let classes = classes.map(|(class, count)| json!({"from_ns": 1u64 << class, "count": count}));
    json!({
        "of": of.name(), "count": times.count(), "p50_ns": times.quantile(0.5),
        "p99_ns": times.quantile(0.99), "classes": classes.collect::<Vec<_>>(),
    })
}

/// A line for each class from the first that is not empty to the last.
fn histogram(out: &mut dyn Write, of: Timed, times: &Times) -> std::io::Result<()> {
    const WIDTH: f64 = 40.0;
    let used = |count: &u64| *count != 0;
    let (Some(first), Some(last)) = (times.0.iter().position(used), times.0.iter().rposition(used))
    else {
        return Ok(());
    };
    let most = times.0.into_iter().max().unwrap_or(1) as f64;
    writeln!(out, "\n{}", of.name())?;
    for (class, count) in (0..).zip(times.0).skip(first).take(last - first + 1) {
        let bar = "#".repeat((count as f64 / most * WIDTH).ceil() as usize);
        let ends = format!("< {}", output::time((2u64 << class) - 1));
        writeln!(out, "{}", format!("  {ends:>10} {:>7}  {bar}", output::count(count)).trim_end())?;
    }
    Ok(())
}

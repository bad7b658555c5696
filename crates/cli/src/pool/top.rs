//! `pool top`: the operations of a pool, live.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use serde_json::json;

use super::{Scene, print_json};
use crate::output;
use crate::terminal::Pace;

/// Watch reads, evictions, writes, and the holders of pages
///
/// Ends on q and Ctrl-C. Without a terminal it prints one frame, after one interval.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork pool top store.region
  latchwork pool top store.region --interval 0.2 --once")]
pub(crate) struct Args {
    /// The region, or the folder of a store
    file: PathBuf,
    #[command(flatten)]
    pace: Pace,
}

/// The counts at one moment.
struct Look {
    at: Instant,
    counts: Vec<(&'static str, u64)>,
}

impl Look {
    fn take(scene: &Scene) -> anyhow::Result<Self> {
        scene.pool.region().refresh()?;
        Ok(Self { at: Instant::now(), counts: scene.pool.stats()?.named() })
    }

    /// Returns for each count its name, its value, and its rate per second since `before`.
    fn rates(&self, before: &Self) -> Vec<(&'static str, u64, f64)> {
        let seconds = self.at.duration_since(before.at).as_secs_f64().max(1e-3);
        let pairs = self.counts.iter().zip(&before.counts);
        pairs.map(|((name, n), (_, b))| (*name, *n, n.wrapping_sub(*b) as f64 / seconds)).collect()
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let scene = Scene::open(&args.file)?;
    let mut before = Look::take(&scene)?;
    let Some(screen) = args.pace.screen() else {
        std::thread::sleep(args.pace.interval);
        let rates = Look::take(&scene)?.rates(&before);
        if args.pace.json {
            print_json(
                rates.iter().map(
                    |(name, sum, rate)| json!({"count": name, "sum": sum, "per_second": rate}),
                ),
            )?;
        } else {
            let lines = frame(&scene, &rates, 40)?;
            output::print(|out| lines.iter().try_for_each(|l| writeln!(out, "{}", l.trim_end())))?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    args.pace.watch(&screen, args.pace.interval, |rows| {
        let now = Look::take(&scene)?;
        let lines = frame(&scene, &now.rates(&before), rows)?;
        before = now;
        Ok(lines)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns at most so many lines.
fn frame(scene: &Scene, rates: &[(&str, u64, f64)], rows: usize) -> anyhow::Result<Vec<String>> {
    let frames: Vec<_> = scene.pool.list()?.collect();
    let dirty = frames.iter().filter(|frame| frame.dirty).count();
    let mut lines = vec![format!(
        "frames {}, in use {}, dirty {dirty}, pinned {}",
        scene.pool.active()?,
        frames.len(),
        scene.pool.pins().count()
    )];
    let mut table = output::table(&["", "so far", "a second"], 1..3, false);
    for (name, sum, rate) in rates.iter().filter(|(_, sum, _)| *sum != 0) {
        let rate = output::count(rate.round() as u64);
        table.add_row([name.replace('_', " "), output::count(*sum), rate]);
    }
    lines.push(String::new());
    lines.extend(table.lines());
    let mut table = output::table(&["held by", "file", "page", "state"], 1..3, false);
    let held = frames.iter().filter_map(|frame| frame.holder.map(|slot| (frame, slot)));
    for (frame, slot) in held.take(20) {
        let (file, page) = frame.page;
        let cells = [file.to_string(), page.to_string(), frame.state.to_owned()];
        table.add_row([scene.place(slot)].into_iter().chain(cells));
    }
    lines.push(String::new());
    lines.extend(table.lines());
    lines.truncate(rows);
    Ok(lines)
}

//! `locks top`: the most contended objects and the longest waiters, live.

use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use latchwork_lockmgr::{LockInfo, Snapshot};
use serde_json::json;

use super::print_json;
use super::scene::{Scene, clean, named};
use crate::output;
use crate::terminal::Pace;

/// Watch the most contended objects and the longest waiters
///
/// Ends on q and Ctrl-C. Without a terminal it prints one frame.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork locks top locks.region
  latchwork locks top locks.region --interval 0.2
  latchwork locks top locks.region | head           # one frame

Objects are ordered by the number of waiting owners, then by the number of holders.")]
pub(crate) struct Args {
    /// The region, or the folder of a store
    file: PathBuf,
    #[command(flatten)]
    pace: Pace,
}

/// The locks on an object.
#[derive(Default)]
struct Heat<'a> {
    any: Option<&'a LockInfo>,
    waiting: usize,
    held: usize,
    longest: u64,
    first: Option<&'a LockInfo>,
}

fn heat<'a>(picture: &'a Snapshot) -> Vec<Heat<'a>> {
    let mut heats: HashMap<&[u8], Heat<'a>> = HashMap::new();
    for row in &picture.rows {
        let heat = heats.entry(&row.object).or_default();
        heat.any = heat.any.or(Some(row));
        heat.waiting += usize::from(row.wanted.is_some());
        heat.held += usize::from(row.held.is_some());
        heat.longest = heat.longest.max(row.waited_ns);
        if row.held.is_some() {
            heat.first = heat.first.or(Some(row));
        }
    }
    let mut heats: Vec<_> = heats.into_values().collect();
    let name = |heat: &Heat<'a>| heat.any.map(|row| &row.object);
    heats.sort_by(|a, b| (b.waiting, b.held, name(a)).cmp(&(a.waiting, a.held, name(b))));
    heats
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut scene = Scene::open(&args.file)?;
    if args.pace.json {
        let picture = scene.look()?;
        let line = |heat: &Heat<'_>| {
            json!({
                "object": heat.any.map(|row| scene.of(row)), "waiting": heat.waiting, "held": heat.held,
                "longest_wait_ns": heat.longest,
            })
        };
        print_json(&heat(&picture).iter().map(line).collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(screen) = args.pace.screen() else {
        let lines = frame(&scene, &scene.look()?, 40);
        output::print(|out| {
            lines.iter().try_for_each(|line| writeln!(out, "{}", line.trim_end()))
        })?;
        return Ok(ExitCode::SUCCESS);
    };
    args.pace.watch(&screen, Duration::ZERO, |rows| {
        scene.greet()?;
        Ok(frame(&scene, &scene.look()?, rows))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns at most so many lines. The two tables have half of them each, or what the other leaves.
fn frame(scene: &Scene, picture: &Snapshot, rows: usize) -> Vec<String> {
    let heats = heat(picture);
    let mut waiters: Vec<&LockInfo> =
        picture.rows.iter().filter(|row| row.wanted.is_some()).collect();
    waiters.sort_by_key(|row| std::cmp::Reverse(row.waited_ns));
    let alive = scene.view.region().processes().iter().filter(|process| process.alive).count();
    let mut lines = vec![format!(
        "processes {alive}, owners {}, objects {}, waiting {}",
        picture.owners.len(),
        heats.len(),
        waiters.len()
    )];
    // All lines except the first, two empty ones, and two headers.
    let room = rows.saturating_sub(5);
    let hottest = heats.len().min((room / 2).max(room.saturating_sub(waiters.len())));
    let header = ["hottest objects", "wait", "hold", "longest", "held by", "pid/thread"];
    let mut table = output::table(&header, 1..4, false);
    for heat in heats.iter().take(hottest) {
        table.add_row([
            output::tail(&heat.any.map_or(String::new(), |row| scene.of(row)), 30),
            heat.waiting.to_string(),
            heat.held.to_string(),
            if heat.waiting == 0 { String::new() } else { output::time(heat.longest) },
            heat.first.map_or(String::new(), |row| output::head(&named(row), 24)),
            heat.first.map_or(String::new(), |row| scene.place(row.thread)),
        ]);
    }
    lines.push(String::new());
    lines.extend(table.lines());
    let header = ["longest waiters", "label", "object", "wants", "waited", "pid/thread"];
    let mut table = output::table(&header, 4..5, false);
    for row in waiters.iter().take(room - hottest) {
        table.add_row([
            row.owner.to_string(),
            output::head(&clean(&row.label), 18),
            output::tail(&scene.of(row), 24),
            row.wanted.map_or(String::new(), |mode| output::head(&scene.mode(mode), 9)),
            output::time(row.waited_ns),
            scene.place(row.thread),
        ]);
    }
    lines.push(String::new());
    lines.extend(table.lines());
    lines.truncate(rows);
    lines
}

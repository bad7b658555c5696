//! `locks deadlocks`: the last deadlocks with their cycles.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use latchwork_lockmgr::{Deadlock, ThreadRef, Waiter};
use serde_json::{Value, json};

use super::print_json;
use super::scene::{Scene, clean};
use super::svg::{self, Drawing};
use crate::output;

/// Show the last deadlocks: each waiter, its lock, and the victim
///
/// A region keeps the last 16 deadlocks that were broken by a victim. Deadlocks that were broken by
/// moving a waiter forward are not recorded. Names are cut to 64 bytes.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork locks deadlocks locks.region
  latchwork locks deadlocks locks.region --last 1 --svg cycle.svg
  latchwork locks deadlocks locks.region --json | jq .cycle")]
pub(crate) struct Args {
    /// The region, or the folder of a store
    file: PathBuf,
    /// Only the last N
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u32).range(1..=16))]
    last: u32,
    /// Print JSON lines, one object per deadlock
    #[arg(long)]
    json: bool,
    /// Draw the last one
    #[arg(long, value_name = "FILE.svg", conflicts_with = "json")]
    svg: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let scene = Scene::open(&args.file)?;
    let ever = scene.view.deadlocks_ever()?;
    let mut found = scene.view.deadlocks()?;
    found.drain(..found.len().saturating_sub(args.last as usize));
    if args.json {
        print_json(&found.iter().map(|deadlock| line(&scene, deadlock)).collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(path) = &args.svg {
        let Some(last) = found.last() else { anyhow::bail!("there was no deadlock to draw") };
        svg::write(path, &draw(&scene, last))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::print(|out| {
        if ever == 0 {
            return writeln!(out, "no deadlocks");
        }
        for deadlock in &found {
            text(&scene, deadlock, out)?;
        }
        writeln!(out, "{ever} since the region was made, {} shown", found.len())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn text(scene: &Scene, deadlock: &Deadlock, out: &mut impl Write) -> io::Result<()> {
    let ago = deadlock.ago.map_or(String::new(), |ns| format!(", {} ago", output::time(ns)));
    let finder = deadlock.finder.map_or(String::new(), |p| format!(", found by {}", place(p)));
    let (number, owners) = (deadlock.number, deadlock.owners);
    writeln!(out, "deadlock {number}: {}{ago}, {owners} owners{finder}", date(deadlock.at))?;
    for (at, waiter) in deadlock.cycle.iter().enumerate() {
        let who = output::head(&who(waiter), 40);
        let place = waiter.thread.map_or(String::new(), |p| format!(" ({})", place(p)));
        let role = if at == 0 { "VICTIM " } else { "       " };
        writeln!(out, "  {role}{who}{place}")?;
        let how = if waiter.link.hard { "held by" } else { "wanted before by" };
        let next = match deadlock.cycle.get(at + 1) {
            Some(next) => next.link.owner.to_string(),
            None if deadlock.cycle.len() < deadlock.owners as usize => "one not kept".to_owned(),
            None => format!("{}, the victim", deadlock.cycle[0].link.owner),
        };
        writeln!(out, "           wants {}, {how} {next}", wanted(scene, waiter, 32))?;
    }
    let more = (deadlock.owners as usize).saturating_sub(deadlock.cycle.len());
    if more != 0 {
        writeln!(out, "  and {more} more, for which there was no room")?;
    }
    writeln!(out)
}

fn line(scene: &Scene, deadlock: &Deadlock) -> Value {
    let pid = |party: Option<ThreadRef>| party.and_then(|party| party.pid);
    let cycle = deadlock.cycle.iter().map(|waiter| {
        json!({
            "owner": waiter.link.owner.to_string(), "label": waiter.label,
            "pid": pid(waiter.thread), "thread": waiter.thread.map(|party| party.thread),
            "object": scene.object(&waiter.link.object, None), "name_length": waiter.name_length,
            "held": waiter.link.held.map(|mode| scene.mode(mode)),
            "wanted": scene.mode(waiter.link.wanted), "hard": waiter.link.hard,
        })
    });
    let victim = deadlock.cycle.first().map(|waiter| waiter.link.owner.to_string());
    json!({
        "number": deadlock.number, "time": date(deadlock.at), "unix_ns": deadlock.at,
        "ago_ns": deadlock.ago, "owners": deadlock.owners, "victim": victim,
        "finder_pid": pid(deadlock.finder), "cycle": cycle.collect::<Vec<_>>(),
    })
}

fn draw(scene: &Scene, deadlock: &Deadlock) -> Drawing {
    let ago = date(deadlock.at);
    let mut drawing =
        Drawing::new(format!("deadlock {}, {ago}, {} owners", deadlock.number, deadlock.owners));
    let places: Vec<usize> = deadlock
        .cycle
        .iter()
        .enumerate()
        .map(|(at, waiter)| {
            let party = waiter.thread.map_or(String::new(), place);
            let wants = format!("wants {}", wanted(scene, waiter, 24));
            let victim = if at == 0 { "VICTIM" } else { "" };
            drawing.node(vec![who(waiter), party, wants], true, victim)
        })
        .collect();
    let whole = deadlock.cycle.len() == deadlock.owners as usize;
    for (at, waiter) in deadlock.cycle.iter().enumerate() {
        let Some(next) = places.get(at + 1).or(places.first().filter(|_| whole)) else { continue };
        let label = if waiter.link.hard { "held" } else { "before" };
        drawing.edge(places[at], *next, label.to_owned(), waiter.link.hard, true);
    }
    drawing
}

fn who(waiter: &Waiter) -> String {
    if waiter.label.is_empty() {
        waiter.link.owner.to_string()
    } else {
        format!("{} {}", waiter.link.owner, clean(&waiter.label))
    }
}

/// The lock and mode that it waited for.
fn wanted(scene: &Scene, waiter: &Waiter, width: usize) -> String {
    let cut = if waiter.name_length > waiter.link.object.len() { ".." } else { "" };
    let object = output::tail(&format!("{}{cut}", scene.object(&waiter.link.object, None)), width);
    let wanted = scene.mode(waiter.link.wanted);
    match waiter.link.held {
        Some(held) => format!("{object} in {wanted}, has it in {}", scene.mode(held)),
        None => format!("{object} in {wanted}"),
    }
}

fn place(party: ThreadRef) -> String {
    match party.pid {
        Some(pid) => format!("{pid}/{}", party.thread),
        None => format!("?/{}", party.thread),
    }
}

/// Formats an instant by RFC 3339.
fn date(unix_ns: u64) -> String {
    let (seconds, ms) = (unix_ns / 1_000_000_000, unix_ns / 1_000_000 % 1000);
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    // Calendar years repeat after 400, which have 146,097 days; each begins in March here, so that
    // a leap day is the last day.
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let march = (5 * of_year + 2) / 153;
    let date = of_year - (153 * march + 2) / 5 + 1;
    let month = if march < 10 { march + 3 } else { march - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let of = |seconds: u64| date(seconds * 1_000_000_000);
        assert_eq!(of(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(of(951_782_399), "2000-02-28T23:59:59.000Z");
        assert_eq!(of(951_782_400), "2000-02-29T00:00:00.000Z");
        assert_eq!(of(951_868_800), "2000-03-01T00:00:00.000Z");
        assert_eq!(of(4_107_542_400), "2100-03-01T00:00:00.000Z");
        assert_eq!(date(1_234_567_890_123_456_789), "2009-02-13T23:31:30.123Z");
    }
}

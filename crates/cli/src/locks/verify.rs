//! `locks verify`.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;

use super::print_json;
use super::scene::Scene;
use crate::output;

/// How often a region in use is read before a repeated flaw counts.
const TRIES: u32 = 8;

/// Check the consistency of a region
///
/// Follows every list, compares redundant data, and looks for owners with conflicting locks. If no
/// thread uses the region, it also counts every cell. Operations that killed processes left
/// unfinished are no flaw: the next thread that meets them repairs them.
#[derive(clap::Args)]
#[command(after_help = "Example:
  latchwork locks verify locks.region && echo sound

Exits with 0 if the region is valid, 1 if it is damaged, 2 if it could not be checked.")]
pub(crate) struct Args {
    /// The region, or the folder of a store
    file: PathBuf,
    /// Print a JSON line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let scene = Scene::open(&args.file)?;
    let (view, modes) = (&scene.view, scene.modes.as_ref().map(|(_, modes)| modes));
    let processes = view.region().processes();
    let alive = processes.iter().filter(|process| process.alive).count();
    let mut found = view.verify(modes)?;
    let mut flaws: BTreeSet<String> = found.flaws.drain(..).collect();
    for _ in 1..if alive == 0 { 1 } else { TRIES } {
        if flaws.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
        found = view.verify(modes)?;
        flaws.retain(|flaw| found.flaws.contains(flaw));
    }
    if alive == 0 {
        let audit = view.region().audit()?;
        let wrong = [
            (audit.lost, "free cells are in no list"),
            (audit.doubled, "cells are in two places"),
            (audit.wrong, "links lead nowhere"),
        ];
        // A killed process may leave a cell in no list; it is found and freed together with the
        // slot.
        let unmet = view.region().threads().next().is_some();
        let wrong =
            wrong.into_iter().filter(|(n, what)| *n != 0 && !(unmet && what.contains("free")));
        flaws.extend(wrong.map(|(count, what)| format!("region: {count} {what}")));
    }
    let latched = found.latched.len();
    if args.json {
        print_json(&[json!({
            "sound": flaws.is_empty(), "flaws": flaws, "objects": found.objects,
            "requests": found.requests, "owners": found.owners, "latched": latched,
            "processes": alive, "modes_known": modes.is_some(), "cells_counted": alive == 0,
        })])?;
    } else {
        output::print(|out| {
            flaws.iter().try_for_each(|flaw| writeln!(out, "{flaw}"))?;
            writeln!(
                out,
                "{}: {} objects, {} requests, {} owners; {latched} partitions passed over, \
                 for their latch is held",
                if flaws.is_empty() { "sound" } else { "NOT SOUND" },
                found.objects,
                found.requests,
                found.owners,
            )?;
            if alive != 0 {
                writeln!(out, "cells not counted: processes at work: {alive}")?;
            }
            if modes.is_none() {
                writeln!(out, "conflicts not looked for: its modes are unknown here")?;
            }
            Ok(())
        })?;
    }
    Ok(if flaws.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

//! `pool verify`.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;

use super::{Scene, print_json};
use crate::output;

/// How often a pool in use is read before a repeated flaw counts.
const TRIES: u32 = 8;

/// Check the consistency of a pool, and its files' checksums
///
/// Compares frames, translation and files; with --files it reads each page of each file that is not
/// dirty in the pool. Operations that killed processes left unfinished are no flaw: the next thread
/// that meets them repairs them.
#[derive(clap::Args)]
#[command(after_help = "Example:
  latchwork pool verify store.region --files && echo sound

Exits with 0 if the pool is valid, 1 if it is damaged, 2 if it could not be checked.")]
pub(crate) struct Args {
    /// The region, or the folder of a store
    file: PathBuf,
    /// Also read the files
    #[arg(long)]
    files: bool,
    /// Print a JSON line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let scene = Scene::open(&args.file)?;
    let mut found = scene.pool.verify()?;
    let mut flaws: BTreeSet<String> = found.flaws.drain(..).collect();
    for _ in 1..TRIES {
        if flaws.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
        found = scene.pool.verify()?;
        flaws.retain(|flaw| found.flaws.contains(flaw));
    }
    let mut read = 0;
    for (id, _) in scene.files.iter().filter(|_| args.files) {
        read += scene.pool.verify_file(*id, &mut |_, error| {
            flaws.insert(error.to_string());
        })?;
    }
    if args.json {
        print_json([json!({
            "sound": flaws.is_empty(), "flaws": flaws, "pages": found.pages,
            "latched": found.latched, "poisoned": found.poisoned, "read_from_disk": read,
        })])?;
    } else {
        output::print(|out| {
            flaws.iter().try_for_each(|flaw| writeln!(out, "{flaw}"))?;
            writeln!(
                out,
                "{}: {} pages in the pool, {} of them left half changed; {read} read from disk; \
                 {} frames passed over, for their latch is held",
                if flaws.is_empty() { "sound" } else { "NOT SOUND" },
                found.pages,
                found.poisoned,
                found.latched,
            )
        })?;
    }
    Ok(if flaws.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

//! `store forget-memory`: what killed processes left in `/dev/shm`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use latchwork_store::{
    SharedMemoryInfo, discard_abandoned_memory, discard_shared_memory, list_shared_memory,
};
use serde_json::json;

use super::print_json;
use crate::output;

/// Take away shared memory that killed processes left and nobody needs
///
/// What a living process has open is never taken away.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork store forget-memory --list
  latchwork store forget-memory
  latchwork store forget-memory /tmp/shop

With a store's folder it is that store's, and its files alone count then, as after a crash of the
machine: commits that were not synced are lost. Without one, that of stores whose folders are gone,
or that do not know of it; a folder that is not mounted counts as gone. Where a process died before
it had said whose the memory is, that is taken away when it is ten minutes old.

A store that is opened goes on with its memory, or clears it away; this is for those that are not.
Exits with 0, or 2 if it could not be done.")]
pub(crate) struct Args {
    /// A store's folder
    path: Option<PathBuf>,
    /// Only show what there is
    #[arg(long, conflicts_with = "path")]
    list: bool,
    /// JSON lines
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.path {
        let bytes = discard_shared_memory(path)?;
        if args.json {
            print_json(&json!({"store": path.to_string_lossy(), "bytes": bytes}))?;
        } else {
            output::print(|out| writeln!(out, "{} kB taken away", bytes / 1000))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let found = if args.list { list_shared_memory() } else { discard_abandoned_memory() };
    for memory in &found {
        if args.json {
            print_json(&json!({
                "memory": memory.at.to_string_lossy(), "bytes": memory.bytes,
                "store": memory.store.as_ref().map(|store| store.to_string_lossy()),
                "processes": memory.processes, "needed": memory.needed,
            }))?;
        } else {
            output::print(|out| writeln!(out, "{}", line(memory, args.list)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn line(memory: &SharedMemoryInfo, list: bool) -> String {
    let (at, bytes) = (memory.at.display(), memory.bytes / 1000);
    let of = memory.store.as_ref().map_or("?".into(), |store| store.display().to_string());
    let state = match (list, memory.processes.len(), memory.needed) {
        (false, ..) => "taken away".to_owned(),
        (true, 0, true) => "needed: its processes were killed".to_owned(),
        (true, 0, false) if memory.store.is_none() => "not known whose".to_owned(),
        (true, 0, false) => "nobody needs it".to_owned(),
        (true, open, _) => {
            format!("open in {}", output::plural(open as u64, "process", "processes"))
        }
    };
    format!("{at}  {bytes} kB, {state}, of {of}")
}

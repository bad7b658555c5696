//! `store forget-memory`: shared memory that killed processes left in `/dev/shm`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use latchwork_store::{
    SharedMemoryInfo, discard_abandoned_memory, discard_shared_memory, list_shared_memory,
};
use serde_json::json;

use super::print_json;
use crate::output;

/// Remove shared memory that killed processes left and no store needs
///
/// Memory that a living process has open is never removed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork store forget-memory --list
  latchwork store forget-memory
  latchwork store forget-memory /tmp/shop

With a store's folder, its memory is removed, and the store is then recovered from its files, as
after a crash of the machine: commits that were not synced are lost. Without one, memory is removed
whose store's folder was removed, or names other memory. The memory of a store that is not to be
seen from here, on a disk that is not mounted or in another container, stays: if that store will
not come back, remove the folder that --list shows. Where a process died before it had said which
store the memory belongs to, it is removed ten minutes after it was made.

Opening a store uses its memory or removes it; this command is for stores that are not opened.
Exits with 0, or 2 if it could not be done.")]
pub(crate) struct Args {
    /// A store's folder
    path: Option<PathBuf>,
    /// Only list it
    #[arg(long, conflicts_with = "path")]
    list: bool,
    /// Print JSON lines
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.path {
        let bytes = discard_shared_memory(path)?;
        if args.json {
            print_json(&json!({"store": path.to_string_lossy(), "bytes": bytes}))?;
        } else {
            output::print(|out| writeln!(out, "{} kB removed", bytes / 1000))?;
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
        (false, ..) => "removed".to_owned(),
        (true, 0, true) => "kept: its store may need it".to_owned(),
        (true, 0, false) if memory.store.is_none() => "not known whose".to_owned(),
        (true, 0, false) => "not needed".to_owned(),
        (true, open, _) => {
            format!("open in {}", output::plural(open as u64, "process", "processes"))
        }
    };
    format!("{at}  {bytes} kB, {state}, of {of}")
}

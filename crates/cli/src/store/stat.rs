//! `store stat`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use latchwork_machine::Shared;
use latchwork_region::{Options, Region};
use latchwork_store::Sizes;
use serde_json::json;

use super::rows::escape;
use super::{open, print_json};
use crate::output;

/// Print sizes, counts, and the processes that have the store open
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork store stat /tmp/shop
  latchwork store stat /tmp/shop --json

The processes are those that had it open before this command did: `store processes` shows what they
do.")]
pub(crate) struct Args {
    /// The store's folder
    path: PathBuf,
    /// Print a JSON line
    #[arg(long)]
    json: bool,
}

/// The shared memory of a store, before this process joins it.
struct Memory {
    at: PathBuf,
    bytes: u64,
    /// The living processes: pid, and number of threads.
    processes: Vec<(u32, usize)>,
}

impl Memory {
    /// Whether it lies in the store's folder, which may have another name.
    fn is_beside(&self, path: &Path) -> bool {
        fs::canonicalize(path).is_ok_and(|path| self.at.starts_with(path))
    }
}

/// Reads the shared memory; none if the store is closed.
fn memory(path: &Path) -> Option<Memory> {
    let text = fs::read_to_string(path.join("region")).ok()?;
    let folder = Path::new(text.lines().nth(1)?);
    let at = folder.join("region");
    let region =
        Region::<Shared>::view(&at, &Options { mode: 0o777, ..Options::default() }).ok()?;
    let threads: Vec<_> = region.threads().collect();
    let alive = region.processes().into_iter().filter(|process| process.alive);
    let processes = alive.map(|process| {
        let its = threads.iter().filter(|thread| {
            thread.process == process.slot && thread.process_generation == process.generation
        });
        (process.pid, its.count())
    });
    Some(Memory { bytes: bytes_in(folder), processes: processes.collect(), at })
}

/// Returns the bytes of the files in a folder.
fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.metadata().ok()).map(|about| about.len()).sum()
}

/// The current sizes, for programs.
fn sizes_row(sizes: &Sizes) -> serde_json::Value {
    json!({
        "cache": sizes.cache, "page": sizes.page, "log_buffer": sizes.log_buffer,
        "log_segment": sizes.log_segment, "locks": sizes.locks, "threads": sizes.threads,
    })
}

/// Writes the current sizes for display.
fn write_sizes(out: &mut dyn Write, sizes: &Sizes) -> std::io::Result<()> {
    writeln!(
        out,
        "sizes      pages of {} KiB, cache to {} MiB, log buffer to {} MiB, segments to {} MiB",
        sizes.page >> 10,
        sizes.cache >> 20,
        sizes.log_buffer >> 20,
        sizes.log_segment >> 20,
    )?;
    writeln!(
        out,
        "           {} thread slots, locks to {} MiB",
        output::count(sizes.threads.into()),
        output::count(sizes.locks >> 20),
    )
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let path = &args.path;
    let memory = memory(path);
    let store = open(path, false)?;
    let tables = store.tables()?;
    let (end, prepared, sizes) = (store.log_end(), store.prepared()?, store.sizes()?);
    let kept_from = prepared.iter().map(|one| one.since).min();
    let data = fs::metadata(path.join("data")).map_or(0, |about| about.len());
    let log = bytes_in(&path.join("log"));
    if args.json {
        let processes = memory.iter().flat_map(|memory| &memory.processes);
        let processes: Vec<_> =
            processes.map(|(pid, threads)| json!({"pid": pid, "threads": threads})).collect();
        print_json(&json!({
            "tables": tables, "data_bytes": data, "log_bytes": log, "log_end": end,
            "open": !processes.is_empty(), "processes": processes,
            "memory": memory.as_ref().map(|memory| &memory.at),
            "memory_bytes": memory.as_ref().map(|memory| memory.bytes),
            "memory_beside": memory.as_ref().map(|memory| memory.is_beside(path)),
            "prepared": prepared.len(), "prepared_since": kept_from,
            "file_system": latchwork_store::file_system(path)?.name,
            "sizes": sizes_row(&sizes),
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::print(|out| {
        writeln!(out, "tables     {}", tables.len())?;
        writeln!(out, "data       {} kB", data / 1000)?;
        writeln!(out, "log        {} kB, its end at {end}", log / 1000)?;
        write_sizes(out, &sizes)?;
        if let Some(from) = kept_from {
            writeln!(out, "prepared   {}, which keep the log from {from} on", prepared.len())?;
        }
        match &memory {
            None => writeln!(out, "closed")?,
            Some(Memory { at, bytes, processes }) => {
                writeln!(out, "memory     {} kB, {}", bytes / 1000, at.display())?;
                if memory.as_ref().is_some_and(|memory| memory.is_beside(path)) {
                    writeln!(out, "           beside the data: /dev/shm had no room")?;
                }
                if processes.is_empty() {
                    writeln!(out, "left by processes that were killed")?;
                }
                for (pid, threads) in processes {
                    let threads = output::plural(*threads as u64, "thread", "threads");
                    writeln!(out, "open       in process {pid}, {threads}")?;
                }
            }
        }
        for table in &tables {
            writeln!(out, "table      {}", escape(table.as_bytes()))?;
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

//! `store salvage`, `compact`: a new store from an old one.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use latchwork_store::{Store, salvage};
use serde_json::json;

use super::interrupt::until_signal;
use super::rows::escape;
use super::{Progress, open, print_json};
use crate::output;

/// Copy the readable part of a store that cannot be opened into a new one
///
/// Writes nothing to the old store except `opening`, an empty file. Reports what could not be read.
#[derive(clap::Args)]
#[command(after_help = "Example:
  latchwork store salvage /tmp/shop /tmp/shop-again

Valid pages are read, with their changes in the log. Leaves without a parent go to their table if
the log names it, otherwise to a table named salvaged-... Changes without a commit in the log are
rolled back. The store is written to NAME.new; after a kill the next run of that name removes it.
Exits with 0 if nothing is missing, 1 if something is, 2 if no store was made.")]
pub(crate) struct SalvageArgs {
    /// The store's folder
    from: PathBuf,
    /// Where to create the new store: a folder that does not exist
    to: PathBuf,
    /// Print a JSON line
    #[arg(long)]
    json: bool,
}

/// Copy a store into full pages, or return free pages to the file system
///
/// Other processes may write at the same time. A new store has the records of one moment.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork store compact /tmp/shop /tmp/shop-small
  latchwork store compact /tmp/shop --in-place

With a new folder: once no process has the old store open, the new one can be renamed to it.
Ctrl-C removes the new one while records are written.
With --in-place: pages without records become free, and the space of all free pages is returned to
the file system. The length of the file does not change, and half-empty pages remain. Ctrl-C ends
the command; pages freed so far stay free, and the next run continues.
Bytes are those on disk, as reported by du. Exits with 0 if it is done, 2 if not, 128+n if signal
n ended it.")]
pub(crate) struct CompactArgs {
    /// The store's folder
    path: PathBuf,
    /// Where to create the new store: a folder that does not exist
    #[arg(required_unless_present = "in_place")]
    to: Option<PathBuf>,
    /// Return free pages of the store itself to the file system
    #[arg(long, conflicts_with = "to")]
    in_place: bool,
    /// Print a JSON line
    #[arg(long)]
    json: bool,
}

pub(super) fn run_salvage(args: &SalvageArgs) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    progress.tell("reading".to_owned());
    let found = salvage(&args.from, &args.to)?;
    drop(progress);
    let whole = found.is_whole();
    if args.json {
        let tables = found.tables.iter();
        let tables: Vec<_> =
            tables.map(|(name, records)| json!({"table": name, "records": records})).collect();
        print_json(&json!({
            "whole": whole, "tables": tables, "pages": found.pages, "lost": found.lost,
            "old": found.old, "orphans": found.orphans, "undone": found.undone, "cut": found.cut,
            "prepared": found.prepared.iter().map(|gid| escape(gid)).collect::<Vec<_>>(),
            "gaps": found.gaps, "no_control": found.no_control, "no_log": found.no_log,
            "no_memory": found.no_memory,
        }))?;
    } else {
        output::print(|out| {
            for (table, records) in &found.tables {
                let table = escape(table.as_bytes());
                writeln!(out, "table      {table}, {records} records")?;
            }
            writeln!(out, "pages      {}, {} cannot be read", found.pages, found.lost.len())?;
            if !found.old.is_empty() {
                writeln!(out, "older      {} pages, than the log says", found.old.len())?;
            }
            if found.orphans > 0 {
                writeln!(out, "orphans    {} leaves, whose parents are lost", found.orphans)?;
            }
            if found.undone > 0 {
                writeln!(out, "undone     {} records, not committed", found.undone)?;
            }
            for gid in &found.prepared {
                writeln!(out, "prepared   {}, not decided, left out", escape(gid))?;
            }
            if found.cut > 0 {
                writeln!(out, "cut        {} long values, left out", found.cut)?;
            }
            for (from, to) in &found.gaps {
                writeln!(out, "log        cannot be read from {from} to {to}")?;
            }
            if let Some(why) = &found.no_control {
                writeln!(out, "log        read from its first record on: {why}")?;
            }
            if let Some(why) = &found.no_log {
                writeln!(out, "log        {why}")?;
            }
            match &found.no_memory {
                Some(why) => writeln!(out, "memory     of killed processes may have more: {why}"),
                None => Ok(()),
            }
        })?;
    }
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(super) fn compact(args: &CompactArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.path, false)?;
    match &args.to {
        Some(to) => compact_into(&store, args, to),
        None => reclaim(&store, args),
    }
}

fn compact_into(store: &Store, args: &CompactArgs, to: &Path) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    let records = until_signal(|look| {
        store.compact_into(to, &mut |records| {
            progress.tell(format!("{} records", output::count(records)));
            look();
        })
    })?;
    drop(progress);
    let of = |folder: &Path| -> std::io::Result<_> {
        Ok((on_disk(&folder.join("data"))?, on_disk(folder)?))
    };
    let (before, after) = (of(&args.path)?, of(to)?);
    if args.json {
        print_json(&json!({
            "records": records, "before": before.0, "after": after.0, "folder_before": before.1,
            "folder_after": after.1,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::print(|out| {
        writeln!(out, "{records} records; on the disk, before and after:")?;
        for (what, before, after) in [("data", before.0, after.0), ("folder", before.1, after.1)] {
            writeln!(out, "{what:<8}{:>12}{:>12}", output::bytes(before), output::bytes(after))?;
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn reclaim(store: &Store, args: &CompactArgs) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    let (before, after) = until_signal(|look| {
        store.reclaim(&mut |leaves| {
            progress.tell(format!("{} leaves", output::count(leaves)));
            look();
        })
    })?;
    drop(progress);
    if args.json {
        print_json(&json!({
            "before": before.on_disk, "after": after.on_disk, "pages": after.pages,
            "free_pages": after.free, "free_before": before.free,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::print(|out| {
        let (was, is) = (output::bytes(before.on_disk), output::bytes(after.on_disk));
        writeln!(out, "data on the disk: {was} before, {is} after")?;
        let (free, pages) = (output::count(after.free), output::count(after.pages));
        writeln!(out, "{free} of {pages} pages are free")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the size on disk of a file, or of a folder with its content, as `du` reports it.
fn on_disk(path: &Path) -> std::io::Result<u64> {
    let about = path.symlink_metadata()?;
    let mut bytes = about.blocks() * 512;
    if about.is_dir() {
        for entry in std::fs::read_dir(path)? {
            // Another process may recycle a file of the log at the same time.
            bytes += on_disk(&entry?.path()).unwrap_or(0);
        }
    }
    Ok(bytes)
}

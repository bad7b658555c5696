//! `store backup`, `restore`: copies of stores.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use latchwork_store::{Copied, restore};
use serde_json::json;

use super::interrupt::until_signal;
use super::{OPENED, Progress, open, print_json};
use crate::output;

/// Copy a store while others write it
///
/// The copy is a store with every transaction that was committed when the command began.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork store backup /tmp/shop /tmp/shop-monday
  latchwork store backup /tmp/shop /tmp/shop-monday --json

The copy is written to NAME.new and renamed when it is durable. Ctrl-C removes NAME.new; after a
kill the next backup of that name removes it. Exits with 0 if the copy is complete, 2 if not,
128+n if signal n ended it.")]
pub(crate) struct BackupArgs {
    /// The store's folder
    path: PathBuf,
    /// Where to create the copy: a folder that does not exist
    to: PathBuf,
    /// Print the result as a JSON line
    #[arg(long)]
    json: bool,
}

/// Create a store from a copy, and check all of its pages
///
/// The copy does not change. It may be any store that no process has open.
#[derive(clap::Args)]
#[command(after_help = "Example:
  latchwork store restore /tmp/shop-monday /tmp/shop

The store is written to NAME.new. Its log is replayed and each page is checked before it is
renamed. Ctrl-C removes it while files are copied. Exits with 0 if the store is complete, 2 if
not, 128+n if signal n ended it; then nothing is at NAME.")]
pub(crate) struct RestoreArgs {
    /// The copy
    from: PathBuf,
    /// Where to create the store: a folder that does not exist
    to: PathBuf,
    /// Print the result as a JSON line
    #[arg(long)]
    json: bool,
}

pub(super) fn backup(args: &BackupArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.path, false)?;
    let progress = Progress::new();
    let copied = until_signal(|look| {
        store.backup(&args.to, &mut |copied| {
            progress.tell(sentence(copied));
            look();
        })
    })?;
    drop(progress);
    say(&copied, args.json, "copied")
}

pub(super) fn run_restore(args: &RestoreArgs) -> anyhow::Result<ExitCode> {
    OPENED.get_or_init(|| args.from.clone());
    let progress = Progress::new();
    let copied = until_signal(|look| {
        restore(&args.from, &args.to, &mut |copied| {
            progress.tell(sentence(copied));
            look();
        })
    })?;
    drop(progress);
    say(&copied, args.json, "copied, and sound")
}

fn sentence(copied: &Copied) -> String {
    let (pages, log) = (copied.page_bytes / 1000, copied.log_bytes / 1000);
    format!("{} pages ({pages} kB) and {log} kB of log", output::count(copied.pages))
}

fn say(copied: &Copied, as_json: bool, what: &str) -> anyhow::Result<ExitCode> {
    if as_json {
        print_json(&json!({
            "pages": copied.pages, "page_bytes": copied.page_bytes,
            "log_bytes": copied.log_bytes, "end": copied.end,
        }))?;
    } else {
        output::print(|out| writeln!(out, "{} {what}", sentence(copied)))?;
    }
    Ok(ExitCode::SUCCESS)
}

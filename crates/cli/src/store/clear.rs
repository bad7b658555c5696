//! `store clear`: a table is emptied.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;

use super::interrupt::until_signal;
use super::{Progress, open, print_json, rows};
use crate::output;

/// Remove all records of a table, of whatever types: so a table is dropped
///
/// A thousand records at a time, while others use the store. Its pages are used again.
#[derive(clap::Args)]
#[command(after_help = "Example:
  latchwork store clear /tmp/shop cities

A table without records is not listed, nor dumped. Exits with 0 if all records that it had at the
beginning are removed, also if it had none; 1 if there never was such a table; 2 if it is not known
whether all are removed; 128+n if signal n ended it when a part was removed.")]
pub(crate) struct Args {
    /// The store's folder
    path: PathBuf,
    /// The table
    table: String,
    /// A JSON line: `removed`
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let store = open(&args.path, false)?;
    if !store.has_table(&args.table)? {
        return Err(output::Absent(format!(
            "there is no table {}",
            rows::escape(args.table.as_bytes())
        ))
        .into());
    }
    let progress = Progress::new();
    let removed = until_signal(|look| {
        store.drop_table(&args.table, &mut |removed| {
            progress.tell(format!("{removed} records removed"));
            look();
        })
    })?;
    drop(progress);
    if args.json {
        print_json(&json!({"table": args.table, "removed": removed}))?;
    } else {
        output::print(|out| {
            writeln!(out, "{removed} record{} removed", if removed == 1 { "" } else { "s" })
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

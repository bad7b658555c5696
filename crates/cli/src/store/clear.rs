//! `store clear`: empties a table.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;

use super::interrupt::until_signal;
use super::{Progress, open, print_json, rows};
use crate::output;

/// Remove all records of a table, whatever its types, and with that drop it
///
/// Removes a thousand records per transaction, while others use the store. Its pages are reused.
#[derive(clap::Args)]
#[command(after_help = "Example:
  latchwork store clear /tmp/shop cities

A table without records is neither listed nor dumped. Exits with 0 if all records present at the
beginning are removed, also if there were none; 1 if the table never existed; 2 on an error, when
some records may remain; 128+n if signal n ended it after some records were removed.")]
pub(crate) struct Args {
    /// The store's folder
    path: PathBuf,
    /// The table
    table: String,
    /// Print a JSON line: `removed`
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

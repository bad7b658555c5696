//! `store copy`: a store to a database server, and back.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use latchwork_remote::{CopyProgress, CopySummary, from_server, is_server, to_server};
use serde_json::json;

use super::{Progress, open, print_json};
use crate::output;

/// Copy a store to a PostgreSQL server, or back
///
/// The copy is one snapshot; programs may read and write the source during the copy. Types and
/// schema versions are copied with the records.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork store copy /tmp/shop postgres://ann@db.example.com/shop
  latchwork store copy postgres://ann@db.example.com/shop /tmp/shop

The target is a database without tables of ours, or a folder that does not exist. If the command is
killed, run it again: it continues, and corrects the records that have changed since. Until it
has finished, programs refuse the database, and the folder is called NAME.copying. At the end all
records are read again and compared by counts and checksums. Exits with 0 if the copy is complete, 2
if not.")]
pub(crate) struct Args {
    /// A store's folder, or the address of a database
    from: String,
    /// The address of a database, or a folder
    to: String,
    /// Say what was copied in a JSON line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    let mut told = |so_far: &CopyProgress| progress.tell(sentence(so_far));
    let copied = match (is_server(&args.from), is_server(&args.to)) {
        (false, true) => to_server(&open(Path::new(&args.from), false)?, &args.to, &mut told)?,
        (true, false) => from_server(&args.from, Path::new(&args.to), &mut told)?,
        (false, false) => {
            anyhow::bail!("neither is a server; `latchwork store backup` copies folders")
        }
        (true, true) => anyhow::bail!("both are servers; copy to a folder first"),
    };
    drop(progress);
    say(&copied, args.json)?;
    Ok(ExitCode::SUCCESS)
}

fn sentence(so_far: &CopyProgress) -> String {
    let (records, megabytes) = (output::count(so_far.records), so_far.bytes / 1_000_000);
    let what = if so_far.verifying { "compared" } else { "copied" };
    format!("{records} records {what}, {megabytes} MB")
}

fn say(copied: &CopySummary, as_json: bool) -> std::io::Result<()> {
    if as_json {
        return print_json(&json!({
            "tables": copied.tables, "records": copied.records, "bytes": copied.bytes,
            "found": copied.found, "crc32c": format!("{:08x}", copied.checksum),
        }));
    }
    let records = output::count(copied.records);
    output::print(|out| {
        write!(out, "{records} records in {} tables copied and compared", copied.tables)?;
        match copied.found {
            0 => writeln!(out),
            found => writeln!(out, "; {} were there already", output::count(found)),
        }
    })
}

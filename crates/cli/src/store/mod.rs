//! `latchwork store`: a store's folder, for a shell.
//!
//! Each command opens the store as any program does, so it may be used by others at the same time,
//! and by commands of several terminals at once.
//!
//! | file | what |
//! |---|---|
//! | `rows` | `put`, `get`, `del`, `scan`: text keys of one table |
//! | `stat` | `stat`: what is there, and who has it open |

mod rows;
mod stat;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use latchwork_store::{Error, Options, Store};

use crate::output;

/// The exit code of a command that could not do what it was asked to: 1 is an answer here.
const NOT_DONE: u8 = 2;

/// What to do with a store
#[derive(Subcommand)]
pub(crate) enum What {
    Put(rows::PutArgs),
    Get(rows::GetArgs),
    Del(rows::DelArgs),
    Scan(rows::ScanArgs),
    Stat(stat::Args),
    Verify(VerifyArgs),
    Checkpoint(CheckpointArgs),
}

/// Look at every page of every table
///
/// While nobody writes: a page that is being changed may pass for a damaged one.
#[derive(clap::Args)]
#[command(after_help = "Example:
  latchwork store verify /tmp/shop

Exits with 0 if all is sound, 1 if something is wrong, 2 if that is not known.")]
pub(crate) struct VerifyArgs {
    /// The store's folder
    path: PathBuf,
    /// A JSON line
    #[arg(long)]
    json: bool,
}

/// Write all changed pages to the data file, and give up the log before them
#[derive(clap::Args)]
#[command(after_help = "Example:
  latchwork store checkpoint /tmp/shop

The last process that closes a store does it, too, and so do all now and then as they write.")]
pub(crate) struct CheckpointArgs {
    /// The store's folder
    path: PathBuf,
    /// A JSON line
    #[arg(long)]
    json: bool,
}

/// Does it.
pub(crate) fn run(what: What) -> anyhow::Result<ExitCode> {
    let done = match what {
        What::Put(args) => rows::put(&args),
        What::Get(args) => rows::get(&args),
        What::Del(args) => rows::del(&args),
        What::Scan(args) => rows::scan(&args),
        What::Stat(args) => stat::run(&args),
        What::Verify(args) => verify(&args),
        What::Checkpoint(args) => checkpoint(&args),
    };
    done.or_else(|error| {
        output::complain(&format!("{error:#}"));
        Ok(ExitCode::from(NOT_DONE))
    })
}

/// Opens a store with what a command needs of memory. If others have it open, theirs is used.
fn open(path: &Path, create: bool) -> anyhow::Result<Store> {
    if !create && !path.join("identity").exists() {
        let what = if path.exists() { "no store" } else { "there is no such store" };
        anyhow::bail!("{}: {what}; `latchwork store put` makes one", path.display());
    }
    let mut options = Options { create, ..Options::default() };
    options.sizes.cache = 8 << 20;
    options.sizes.log_buffer = 4 << 20;
    options.sizes.log_segment = 16 << 20;
    Ok(Store::open_with(path, &options)?)
}

fn print_json(row: &serde_json::Value) -> std::io::Result<()> {
    output::print(|out| writeln!(out, "{row}"))
}

fn verify(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.path, false)?;
    let found = store.verify();
    let (pages, why) = match &found {
        Ok(pages) => (Some(*pages), None),
        Err(why @ (Error::Tree(_) | Error::Damaged { .. } | Error::Pool(_))) => {
            (None, Some(why.to_string()))
        }
        Err(_) => (None, None),
    };
    if pages.is_none() && why.is_none() {
        found?;
    }
    if args.json {
        print_json(&serde_json::json!({"sound": why.is_none(), "pages": pages, "why": why}))?;
    } else {
        output::print(|out| match (&why, pages) {
            (Some(why), _) => writeln!(out, "NOT SOUND: {why}"),
            (None, pages) => writeln!(out, "sound, {} pages", pages.unwrap_or_default()),
        })?;
    }
    Ok(if why.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn checkpoint(args: &CheckpointArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.path, false)?;
    store.checkpoint()?;
    let end = store.log_end();
    if args.json {
        print_json(&serde_json::json!({"log_end": end}))?;
    } else {
        output::print(|out| writeln!(out, "checkpoint made, the log ends at {end}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

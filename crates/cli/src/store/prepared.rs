//! `store prepared`: transactions that are prepared and not decided.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use latchwork_store::{Prepared, Store};
use serde_json::json;

use super::look::hex;
use super::rows::escape;
use super::{open_as, print_json, small};
use crate::output;

/// List prepared transactions, or decide one
///
/// Each holds its locks, a thread slot, and the log from its first record on, until it is decided.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork store prepared /tmp/shop
  latchwork store prepared /tmp/shop --commit 'transfer 1'
  latchwork store prepared /tmp/shop --roll-back 'transfer 1'

One line per transaction: the id, its age in seconds, the log position from which it keeps the
log, and the bytes of log kept. An id is given as it is, or as it is shown here. The coordinator
knows the decision.
Exits with 0, 1 if there is no such id, 2 on an error.")]
pub(crate) struct Args {
    /// The store's folder
    path: PathBuf,
    /// Commit this one
    #[arg(long, value_name = "ID", conflicts_with = "roll_back")]
    commit: Option<String>,
    /// Roll this one back
    #[arg(long, value_name = "ID")]
    roll_back: Option<String>,
    /// For at least N threads, if no process has it open
    #[arg(long, value_name = "N")]
    threads: Option<u32>,
    /// Print JSON lines
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut options = small(false);
    options.sizes.threads = args.threads.unwrap_or(options.sizes.threads);
    let store = open_as(&args.path, options)?;
    let all = store.prepared()?;
    let (id, commits) = match (&args.commit, &args.roll_back) {
        (Some(id), _) => (id, true),
        (None, Some(id)) => (id, false),
        (None, None) => return list(&store, &all, args.json),
    };
    // An id may look like another one that is escaped. A displayed id is unique.
    let shown = all.iter().find(|one| escape(&one.gid) == *id);
    let Some(one) = shown.or_else(|| all.iter().find(|one| one.gid == id.as_bytes())) else {
        output::complain(&format!("no transaction {id} is prepared"));
        return Ok(ExitCode::FAILURE);
    };
    match commits {
        true => drop(store.commit_prepared(&one.gid)?),
        false => store.roll_back_prepared(&one.gid)?,
    }
    let end = if commits { "committed" } else { "rolled back" };
    match args.json {
        true => print_json(&json!({"gid": escape(&one.gid), "end": end}))?,
        false => output::print(|out| writeln!(out, "{}\t{end}", escape(&one.gid)))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn list(store: &Store, all: &[Prepared], json: bool) -> anyhow::Result<ExitCode> {
    let (now, end) = (SystemTime::now(), store.log_end());
    for one in all {
        // The clock may have been set back.
        let age = now.duration_since(one.when).unwrap_or_default().as_secs();
        let (gid, since, bytes) = (escape(&one.gid), one.since, end.saturating_sub(one.since));
        match json {
            true => print_json(&json!({
                "gid": gid, "hex": hex(&one.gid), "age_s": age, "since": since, "prepared_at": one.at,
                "keeps": bytes,
            }))?,
            false => output::print(|out| writeln!(out, "{gid}\t{age} s\t{since}\t{bytes}"))?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

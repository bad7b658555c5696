//! `store upgrade`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use latchwork_store::{Upgraded, upgrade};
use serde_json::json;

use super::print_json;
use crate::output;

/// Convert a store of an older format to the format of this program, in place
#[derive(clap::Args)]
#[command(after_help = "Example:
  cp -a --reflink=auto /tmp/shop /tmp/shop-before
  latchwork store upgrade /tmp/shop

No process may have the store open. Programs of the older format cannot open it afterwards. A
store in the present format is not changed.")]
pub(crate) struct Args {
    /// The store's folder
    path: PathBuf,
    /// Print a JSON line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Upgraded { from, to, .. } = upgrade(&args.path)?;
    match args.json {
        true => print_json(&json!({"from": from, "to": to}))?,
        false if from == to => output::print(|out| writeln!(out, "the store has format {to}"))?,
        false => output::print(|out| writeln!(out, "converted from format {from} to {to}"))?,
    }
    Ok(ExitCode::SUCCESS)
}

//! `store metrics`: for a monitoring system.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;

use super::{open, print_json};
use crate::output;

/// Print counts and sizes in the text format of Prometheus
///
/// They cover all processes that have the store open, since the first of them opened it.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork store metrics /tmp/shop
  latchwork store metrics /tmp/shop --json

For the node exporter of Prometheus, write them periodically into its directory of text files:
  latchwork store metrics /tmp/shop > /var/lib/node_exporter/shop.new
  mv /var/lib/node_exporter/shop.new /var/lib/node_exporter/shop.prom

With --json, one line for each value. A store that no process has open has counts of zero.
Exits with 0, 2 if the store cannot be opened.")]
pub(crate) struct Args {
    /// The store's folder
    path: PathBuf,
    /// Print JSON lines
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let metrics = open(&args.path, false)?.metrics()?;
    if !args.json {
        output::print(|out| write!(out, "{metrics}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    for metric in metrics.iter() {
        for sample in &metric.samples {
            let mut row = json!({
                "name": format!("{}{}", metric.name, sample.suffix), "kind": metric.kind.name(),
                "value": sample.value,
            });
            if let Some((label, value)) = &sample.label {
                row[*label] = value.as_str().into();
            }
            print_json(&row)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

//! `store tables`: the list of tables.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;

use super::rows::escape;
use super::{open, print_json};
use crate::output;

/// List the tables with the types of their keys and values
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork store tables /tmp/shop
  latchwork store tables /tmp/shop --json

Columns: name, key type, value type, schema version. A table has the types `-` until a program
writes to it with this version of the store. Tables without records are listed too. Exits with 0.")]
pub(crate) struct Args {
    /// The store's folder
    path: PathBuf,
    /// Print JSON lines: `table`, `key`, `value`, `version`
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let tables = open(&args.path, false)?.table_infos()?;
    if args.json {
        for table in &tables {
            print_json(&json!({
                "table": table.name, "key": table.key, "value": table.value,
                "version": table.version,
            }))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = vec![["table", "key", "value", "version"].map(str::to_owned)];
    rows.extend(tables.iter().map(|table| {
        let of = |text: &Option<String>| text.clone().unwrap_or("-".to_owned());
        let name = escape(table.name.as_bytes());
        [name, of(&table.key), of(&table.value), table.version.to_string()]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths = [0, 1, 2].map(|column| width(column).unwrap_or(0).min(40));
    output::print(|out| {
        rows.iter().try_for_each(|[name, key, value, version]| {
            let [one, two, three] = widths;
            writeln!(out, "{name:one$}  {key:two$}  {value:three$}  {version}")
        })
    })?;
    Ok(ExitCode::SUCCESS)
}

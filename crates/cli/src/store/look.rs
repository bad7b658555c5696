//! `store log`, `store pages`: what is in a store's files.

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use latchwork_store::{LogRecord, TablePages, read_log};
use serde_json::{Value, json};

use super::rows::escape;
use super::{open, print_json};
use crate::output::{self, Absent};

/// The commands find that something is wrong by this.
const DAMAGED: ExitCode = ExitCode::FAILURE;

/// Print the records of a store's log
///
/// The files are read, and nothing is written: of a live store, or one that cannot be opened.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork store log /tmp/shop
  latchwork store log /tmp/shop --kind insert --kind commit --limit 20
  latchwork store log /tmp/shop --from 4096 --to 8192 --json

A line each: position, thread slot, kind, tree, page, marks, key. Marks: C commits, U undoes, S of
no transaction. Kinds: insert, replace, delete, ghost, restore, purge, image, split, attach,
complete, grow, clear, incomplete, absorb, commit, end, prepare, locks, other. What is not in the
files yet is not shown.
Exits with 0, 1 if a part cannot be read that was there, or the table, tree or slot has no record,
2 if there is no log.")]
pub(crate) struct LogArgs {
    /// The store's folder
    path: PathBuf,
    /// The first position, if a record is there; else the next
    #[arg(long, value_name = "LSN", default_value_t = 0)]
    from: u64,
    /// The position before which it ends
    #[arg(long, value_name = "LSN")]
    to: Option<u64>,
    /// At most N records
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Of this thread slot
    #[arg(long, value_name = "N")]
    slot: Option<u16>,
    /// Of this kind; may be given again
    #[arg(long, value_name = "KIND", hide_possible_values = true)]
    #[arg(value_parser = PossibleValuesParser::new(LogRecord::KINDS))]
    kind: Vec<String>,
    /// Of this tree: the page of its root, as `pages` shows it
    #[arg(long, value_name = "N")]
    tree: Option<u32>,
    /// Of this table; the store is opened to find it
    #[arg(long, value_name = "NAME", conflicts_with = "tree")]
    table: Option<String>,
    /// JSON lines
    #[arg(long)]
    json: bool,
}

/// Count the pages of each table: how full they are, and of what
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork store pages /tmp/shop
  latchwork store pages /tmp/shop --json

`a record` is all bytes of a table's pages divided by its records. Removed records are there until
their page is written anew. The first line is the catalog. The last line says how many pages of the
file are free: they are taken when a table needs one. Others may write meanwhile.")]
pub(crate) struct PagesArgs {
    /// The store's folder
    path: PathBuf,
    /// JSON lines
    #[arg(long)]
    json: bool,
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn record_row(record: &LogRecord) -> Value {
    let text = |bytes: &Option<Vec<u8>>| bytes.as_ref().map(|bytes| hex(bytes));
    json!({
        "at": record.at, "next": record.next, "slot": record.slot, "kind": record.kind,
        "tree": record.tree, "page": record.page, "commits": record.commits,
        "undoes": record.undoes, "system": record.system, "prev": record.prev,
        "page_prev": record.page_prev, "key_hex": text(&record.key),
        "before_hex": text(&record.before), "after_hex": text(&record.after),
    })
}

fn record_line(record: &LogRecord) -> String {
    let number = |n: Option<u64>| n.map_or("-".to_owned(), |n| n.to_string());
    let mut marks = String::new();
    for (is, mark) in [(record.commits, 'C'), (record.undoes, 'U'), (record.system, 'S')] {
        marks.push(if is { mark } else { '.' });
    }
    let key = record.key.as_ref().map_or(String::new(), |key| output::head(&escape(key), 40));
    let (tree, page) = (number(record.tree.map(u64::from)), number(record.page));
    let (at, slot, kind) = (record.at, record.slot, record.kind);
    format!("{at:>12} {slot:>5} {kind:<8} {tree:>7} {page:>8} {marks} {key}").trim_end().to_owned()
}

pub(super) fn log(args: &LogArgs) -> anyhow::Result<ExitCode> {
    let there = args.path.join("log").try_exists();
    if !there.with_context(|| args.path.display().to_string())? {
        anyhow::bail!("{}: there is no store, and no log of one", args.path.display());
    }
    let tree = match &args.table {
        None => args.tree,
        Some(name) => {
            let tables = open(&args.path, false)?.pages()?;
            // The first two are the store's own, and a table may have such a name.
            let table = tables.into_iter().skip(2).find(|table| table.name == *name);
            let none = || Absent(format!("there is no table {}", escape(name.as_bytes())));
            Some(table.ok_or_else(none)?.root)
        }
    };
    let (mut read, mut left, mut found) = (None, args.limit.unwrap_or(u64::MAX), 0_u64);
    output::print(|out| {
        let mut out = BufWriter::new(out);
        let mut failed = Ok(());
        read = Some(read_log(&args.path, args.from, &mut |record| {
            if args.to.is_some_and(|to| record.at >= to) || left == 0 {
                return false;
            }
            let meant = tree.is_none_or(|tree| record.tree == Some(tree))
                && args.slot.is_none_or(|slot| record.slot == slot)
                && (args.kind.is_empty() || args.kind.iter().any(|kind| kind == record.kind));
            if meant {
                (left, found) = (left - 1, found + 1);
                failed = match args.json {
                    true => writeln!(out, "{}", record_row(record)),
                    false => writeln!(out, "{}", record_line(record)),
                };
            }
            failed.is_ok()
        }));
        failed?;
        out.flush()
    })?;
    let read = read.transpose()?.unwrap_or_default();
    for (from, to) in &read.gaps {
        output::complain(&format!("from {from} to {to} nothing can be read"));
    }
    if found == 0 && read.gaps.is_empty() {
        if let Some(slot) = args.slot {
            return Err(Absent(format!("the log has no such record of thread slot {slot}")).into());
        }
        if let Some(tree) = args.tree {
            return Err(Absent(format!("the log has no such record of tree {tree}")).into());
        }
    }
    Ok(if read.gaps.is_empty() { ExitCode::SUCCESS } else { DAMAGED })
}

pub(super) fn pages(args: &PagesArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.path, false)?;
    let (tables, (free, all)) = (store.pages()?, store.free_pages()?);
    if args.json {
        for table in &tables {
            print_json(&page_row(table))?;
        }
        print_json(&json!({"file_pages": all, "free_pages": free}))?;
        return Ok(ExitCode::SUCCESS);
    }
    let header =
        ["table", "root", "depth", "inner", "leaves", "full", "records", "removed", "a record"];
    let mut shown = output::table(&header, 1..9, false);
    for table in &tables {
        let name = if table.root == 0 { "(catalog)" } else { &table.name };
        let full = 100.0 * (1.0 - table.free as f64 / table.bytes.max(1) as f64);
        let each = table.bytes.checked_div(table.records);
        shown.add_row([
            output::head(&escape(name.as_bytes()), 24),
            table.root.to_string(),
            table.depth.to_string(),
            output::count(table.inner),
            output::count(table.leaves),
            format!("{full:.0} %"),
            output::count(table.records),
            output::count(table.ghosts),
            each.map_or("-".to_owned(), |each| format!("{each} B")),
        ]);
    }
    output::print(|out| {
        shown.lines().try_for_each(|line| writeln!(out, "{}", line.trim_end()))?;
        writeln!(out, "{} of {} pages are free", output::count(free), output::count(all))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn page_row(table: &TablePages) -> Value {
    json!({
        "table": table.name, "root": table.root, "depth": table.depth, "inner": table.inner,
        "leaves": table.leaves, "incomplete": table.incomplete, "records": table.records,
        "ghosts": table.ghosts, "key_bytes": table.key_bytes, "value_bytes": table.value_bytes,
        "bytes": table.bytes, "free": table.free,
    })
}

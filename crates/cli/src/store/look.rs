//! `store log`, `store pages`: the content of a store's files.

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use latchwork_store::{DataFile, LogRecord, TablePages, read_log};
use serde_json::{Value, json};

use super::rows::escape;
use super::{open, print_json};
use crate::output::{self, Absent};

/// The exit code of a command that finds damage.
const DAMAGED: ExitCode = ExitCode::FAILURE;

/// Print the records of a store's log
///
/// Reads files and writes nothing, also for a store that is open or cannot be opened.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork store log /tmp/shop
  latchwork store log /tmp/shop --kind insert --kind commit --limit 20
  latchwork store log /tmp/shop --from 4096 --to 8192 --json

A line each: position, thread slot, kind, tree, page, marks, key. Marks: C commits, U undoes, S of
no transaction. Kinds: insert, replace, delete, ghost, restore, purge, image, split, attach,
complete, grow, clear, incomplete, absorb, commit, end, prepare, locks, other. What is not in the
files yet is not shown. With --json, `before_hex` and `after_hex` are the values, or, with `offset`,
the parts from there on that differ.
Exits with 0, 1 if a part cannot be read that was there, or the table, tree or slot has no record,
2 if there is no log.")]
pub(crate) struct LogArgs {
    /// The store's folder
    path: PathBuf,
    /// The first position; the next record if none begins there
    #[arg(long, value_name = "LSN", default_value_t = 0)]
    from: u64,
    /// The position before which the output ends
    #[arg(long, value_name = "LSN")]
    to: Option<u64>,
    /// Print at most N records
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Only this thread slot
    #[arg(long, value_name = "N")]
    slot: Option<u16>,
    /// Only this kind; may be repeated
    #[arg(long, value_name = "KIND", hide_possible_values = true)]
    #[arg(value_parser = PossibleValuesParser::new(LogRecord::KINDS))]
    kind: Vec<String>,
    /// Only this tree: the page of its root, as `pages` shows it
    #[arg(long, value_name = "N")]
    tree: Option<u32>,
    /// Only this table; the store is opened to find it
    #[arg(long, value_name = "NAME", conflicts_with = "tree")]
    table: Option<String>,
    /// Print JSON lines
    #[arg(long)]
    json: bool,
}

/// Show what uses the bytes of a store's file, by table
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork store pages /tmp/shop
  latchwork store pages /tmp/shop --json

All numbers of a table are bytes, but for depth, pages and records. `keys` and `values` are those of
records in the table's own pages. `long` is the part of its long values that the pages of
`(long values)` hold for all tables. `free` is room in the table's pages. `removed` counts removed
records that are in their page until it is written again. `bytes` is all bytes of its pages.
The lines below the tables add up to what `du` reports for the file `data`: pages of tables, free
pages, which the next table that grows takes, pages in use by a transaction that is not finished,
room behind the last page, less the holes. Other processes may write meanwhile; the sum is then
approximate.")]
pub(crate) struct PagesArgs {
    /// The store's folder
    path: PathBuf,
    /// Print JSON lines
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
        "offset": record.offset,
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
            // The first two are the store's own, and a table may have the same name.
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
    let (tables, file) = (store.pages()?, store.data_file()?);
    let lines = parts(&tables, &file);
    if args.json {
        for table in &tables {
            print_json(&page_row(table))?;
        }
        let mut row = json!({
            "file_pages": file.pages, "free_pages": file.free, "page_bytes": file.page_bytes,
            "file_bytes": file.length,
        });
        for (name, bytes, _) in &lines {
            row[format!("{}_bytes", name.replace(' ', "_"))] = (*bytes).into();
        }
        print_json(&row)?;
        return Ok(ExitCode::SUCCESS);
    }
    let header = [
        "table", "root", "depth", "pages", "records", "removed", "keys", "values", "long", "free",
        "bytes",
    ];
    let mut shown = output::table(&header, 1..header.len(), false);
    for table in &tables {
        let name = if table.root == 0 { "(catalog)" } else { &table.name };
        shown.add_row([
            output::head(&escape(name.as_bytes()), 18),
            table.root.to_string(),
            table.depth.to_string(),
            output::count(table.inner + table.leaves),
            output::count(table.records),
            output::count(table.ghosts),
            size(table.key_bytes),
            size(table.value_bytes),
            size(table.long_bytes),
            size(table.free),
            size(table.bytes),
        ]);
    }
    let mut below = output::table(&["", "bytes", ""], 1..2, false);
    for (name, bytes, what) in &lines {
        below.add_row([name.to_string(), bytes.to_string(), what.clone()]);
    }
    output::print(|out| {
        shown.lines().try_for_each(|line| writeln!(out, "{}", line.trim_end()))?;
        writeln!(out)?;
        below.lines().try_for_each(|line| writeln!(out, "{}", line.trim_end()))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Formats a number of bytes in at most six characters.
fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => bytes.to_string(),
        _ => format!("{}B", output::count(bytes)),
    }
}

/// The parts of the file: name, bytes, description. The last is the size on disk: the sum of the
/// others without the holes.
fn parts(tables: &[TablePages], file: &DataFile) -> Vec<(&'static str, i64, String)> {
    let page = u64::from(file.page_bytes);
    let used: u64 = tables.iter().map(|table| table.inner + table.leaves).sum();
    let other = file.pages.saturating_sub(used + file.free);
    let (length, on_disk) = (file.length as i64, file.on_disk as i64);
    // Pages that are not written yet may lie behind the end of the file.
    let reserved = length - ((used + file.free + other) * page) as i64;
    let of = |pages: u64| format!("{} of {}", output::count(pages), output::count(file.pages));
    vec![
        ("tables", (used * page) as i64, format!("{} pages", of(used))),
        ("free", (file.free * page) as i64, format!("{} pages are free", of(file.free))),
        ("other", (other * page) as i64, format!("{} pages, of unfinished changes", of(other))),
        ("reserved", reserved, "behind the last page".to_owned()),
        ("holes", (on_disk - length).min(0), "of the file, which take no space".to_owned()),
        ("list", (on_disk - length).max(0), "of the file's blocks, by the file system".to_owned()),
        ("on disk", on_disk, "as `du` reports".to_owned()),
    ]
}

fn page_row(table: &TablePages) -> Value {
    json!({
        "table": table.name, "root": table.root, "depth": table.depth, "inner": table.inner,
        "leaves": table.leaves, "incomplete": table.incomplete, "records": table.records,
        "ghosts": table.ghosts, "key_bytes": table.key_bytes, "value_bytes": table.value_bytes,
        "long_values": table.long_values, "long_bytes": table.long_bytes, "bytes": table.bytes,
        "free": table.free,
    })
}

//! `store put`, `get`, `del`, `scan`: records of one table. Keys and values are parsed and printed
//! by the types of the table (`records.rs`); without types keys are text or JSON (`keys.rs`), and
//! values are bytes.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use latchwork_store::{Error, Store, Table, VALUE_MAX};
use serde_json::json;

use super::interrupt::look;
use super::records::Records;
use super::{keys, open, print_json};
use crate::output;

/// The default table.
const DEFAULT: &str = "default";

/// The table of a command.
#[derive(clap::Args)]
struct Of {
    /// The store's folder
    path: PathBuf,
    /// The table
    #[arg(long, value_name = "NAME", default_value = DEFAULT)]
    table: String,
    #[command(flatten)]
    keys: keys::How,
}

impl Of {
    /// The table.
    fn records(&self, store: &Store) -> anyhow::Result<Records> {
        Records::find(store, &self.table, &self.keys)
    }

    /// Returns whether the command line names the table.
    fn is_named(&self) -> bool {
        self.table != DEFAULT
    }
}

/// Write a value under a key, whether it exists or not
///
/// The first put creates the store and its folder. When the command returns, the value is durable.
#[derive(clap::Args)]
#[command(after_help = keys::with_types("Examples:
  latchwork store put /tmp/shop pear 3
  latchwork store put /tmp/shop --table cities -- Bergen -2
  latchwork store put /tmp/shop --table prices pear 3        # a number, if the table has numbers
  latchwork store put /tmp/shop --table orders '[\"ann\", 8]' '{\"what\": \"tea\", \"count\": 2}'
  latchwork store put /tmp/shop photo --file pear.jpg
  date | latchwork store put /tmp/shop now --file -

Key and value are of the types of the table (`store tables`): a number is written in digits, a tuple
as a JSON array, a struct as a JSON object. A new table is of text and bytes. Exits with 0 if it is
written, 2 if not, also if the key or the value is not of the table's type."))]
pub(crate) struct PutArgs {
    #[command(flatten)]
    of: Of,
    /// The key, by the table's type; text in a new table
    #[arg(allow_negative_numbers = true)]
    key: String,
    /// The value, by the table's type; any bytes in a new table
    #[arg(allow_negative_numbers = true, required_unless_present = "file")]
    value: Option<OsString>,
    /// Read the value from this file; `-` is the standard input
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    file: Option<PathBuf>,
    /// Print a JSON line: `written`
    #[arg(long)]
    json: bool,
}

/// Print the value of a key
#[derive(clap::Args)]
#[command(after_help = keys::with_types("Examples:
  latchwork store get /tmp/shop pear
  latchwork store get /tmp/shop pear || echo none
  latchwork store get /tmp/shop --table orders '[\"ann\", 8]'
  latchwork store get /tmp/shop photo --raw > pear.jpg

The value by the table's type, and a line end; with --raw its bytes and nothing else. Exits with 0
if there is one, 1 and nothing on stdout if there is none or no such table, 2 if the store cannot
be read or the key is not of the table's type."))]
pub(crate) struct GetArgs {
    #[command(flatten)]
    of: Of,
    /// The key
    #[arg(allow_negative_numbers = true)]
    key: String,
    /// Print the bytes of the value as stored, without a line end
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    /// Print a JSON line: `value`, or `hex` if it is no text
    #[arg(long)]
    json: bool,
}

/// Remove a key
#[derive(clap::Args)]
#[command(after_help = keys::with_types("Example:
  latchwork store del /tmp/shop pear

Exits with 0 if it was there and is removed, 1 if there was none or no such table, 2 if that is not
known."))]
pub(crate) struct DelArgs {
    #[command(flatten)]
    of: Of,
    /// The key
    #[arg(allow_negative_numbers = true)]
    key: String,
    /// Print a JSON line: `removed`
    #[arg(long)]
    json: bool,
}

/// Print keys and values in order, from one snapshot
#[derive(clap::Args)]
#[command(after_help = keys::with_types("Examples:
  latchwork store scan /tmp/shop
  latchwork store scan /tmp/shop a b                # keys that begin with an a
  latchwork store scan /tmp/shop --limit 10 --json
  latchwork store scan /tmp/shop --table orders '[\"ann\"]' '[\"bob\"]'

A line each: the key, a tab, the value. What would make another line or column of it is escaped, as
\\t, \\n, \\r, \\\\ and \\xNN; so are bytes that are no text. A key of several parts is shown in
parentheses, bytes of a key as 0x..; with --json it is as --typed reads it. A bound of a key of
several parts may have the first parts alone. Exits with 0, 1 if there is no such table, 2 if the
store cannot be read or a bound is not of the table's type."))]
pub(crate) struct ScanArgs {
    #[command(flatten)]
    of: Of,
    /// The first key
    #[arg(allow_negative_numbers = true)]
    from: Option<String>,
    /// The key before which the output ends
    #[arg(allow_negative_numbers = true)]
    to: Option<String>,
    /// Print at most N records
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Print in descending order
    #[arg(long)]
    reverse: bool,
    /// Print JSON lines: `key`, and `value`, or `hex` if that is no text
    #[arg(long)]
    json: bool,
}

impl PutArgs {
    /// Returns the bytes of the value.
    fn value(&self) -> anyhow::Result<Cow<'_, [u8]>> {
        let Some(path) = &self.file else {
            return Ok(Cow::Borrowed(self.value.as_deref().unwrap_or_default().as_bytes()));
        };
        let read = || {
            let from: Box<dyn Read> = match path.as_os_str() == "-" {
                true => Box::new(io::stdin().lock()),
                false => Box::new(File::open(path)?),
            };
            let mut bytes = Vec::new();
            from.take(VALUE_MAX as u64 + 1).read_to_end(&mut bytes)?;
            io::Result::Ok(bytes)
        };
        let bytes = read().with_context(|| path.display().to_string())?;
        anyhow::ensure!(bytes.len() <= VALUE_MAX, "{}: a value has 1 GiB at most", path.display());
        Ok(Cow::Owned(bytes))
    }
}

/// Prints that the table named on the command line does not exist.
fn no_table(name: &str) -> ExitCode {
    output::complain(&format!("there is no table {}", escape(name.as_bytes())));
    ExitCode::FAILURE
}

pub(super) fn put(args: &PutArgs) -> anyhow::Result<ExitCode> {
    let value = args.value()?;
    if !args.of.path.join("identity").exists() {
        // Before a store is created in vain.
        args.of.keys.read(&args.key)?;
    }
    let store = open(&args.of.path, true)?;
    let records = args.of.records(&store)?;
    let key = records.key(&args.key, false)?;
    let bytes = records.value(&value, args.file.is_some())?;
    if records.there || args.of.keys.typed {
        store.put(&records.table, &key, &bytes)?;
    } else {
        // A table of this command's own types: text to bytes.
        store.put(&Table::<&str, &[u8]>::named(&args.of.table), &args.key, &bytes)?;
    }
    if args.json {
        print_json(&json!({"key": records.key_json(&key), "written": true}))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn get(args: &GetArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.of.path, false)?;
    let records = args.of.records(&store)?;
    if !records.there && args.of.is_named() {
        return Ok(no_table(&args.of.table));
    }
    let key = records.key(&args.key, false)?;
    let Some(value) = store.get(&records.table, &key)? else {
        return Ok(ExitCode::FAILURE);
    };
    if args.json {
        print_json(&records.json(&key, &value))?;
    } else {
        output::print(|out| {
            if args.raw {
                return out.write_all(&value);
            }
            out.write_all(&records.value_text(&value))?;
            writeln!(out)
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn del(args: &DelArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.of.path, false)?;
    let records = args.of.records(&store)?;
    if !records.there && args.of.is_named() {
        return Ok(no_table(&args.of.table));
    }
    let key = records.key(&args.key, false)?;
    // A transaction creates the tables that it names, but a table that was never written must not
    // be created.
    let removed = records.there && store.remove(&records.table, &key)?;
    if args.json {
        print_json(&json!({"key": records.key_json(&key), "removed": removed}))?;
    }
    Ok(if removed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(super) fn scan(args: &ScanArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.of.path, false)?;
    let records = args.of.records(&store)?;
    if !records.there && args.of.is_named() {
        return Ok(no_table(&args.of.table));
    }
    let bound = |key: &Option<String>| key.as_deref().map(|key| records.key(key, true)).transpose();
    let (from, to) = (bound(&args.from)?, bound(&args.to)?);
    let from = from.as_ref().map_or(Bound::Unbounded, |key| Bound::Included(&key[..]));
    let to = to.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(&key[..]));
    let limit = args.limit.map_or(usize::MAX, |limit| limit as usize);
    let mut said = Ok(());
    store.read(|tx| {
        let rows = tx.range(&records.table, (from, to))?;
        let rows = if args.reverse { rows.rev() } else { rows };
        let mut failed = None;
        said = output::print(|out| {
            let mut out = io::BufWriter::new(out);
            for row in rows.take(limit) {
                look()?;
                match row {
                    Ok((key, value)) if args.json => {
                        writeln!(out, "{}", records.json(&key, &value))?;
                    }
                    Ok((key, value)) => {
                        let key = escape(records.key_text(&key).as_bytes());
                        writeln!(out, "{key}\t{}", escape(&records.value_text(&value)))?;
                    }
                    Err(why) => {
                        failed = Some(why);
                        break;
                    }
                }
            }
            out.flush()
        });
        failed.map_or(Ok::<(), Error>(()), Err)
    })?;
    said?;
    Ok(ExitCode::SUCCESS)
}

/// Formats text on one line, with invalid bytes as `\xNN`.
pub(super) fn escape(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '\\' => text.push_str("\\\\"),
                '\t' => text.push_str("\\t"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                // Some programs treat these non-ASCII characters as line ends.
                char if char.is_control() || ['\u{2028}', '\u{2029}'].contains(&char) => {
                    let bytes = char.to_string().into_bytes().into_iter();
                    bytes.for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
                }
                char => text.push(char),
            }
        }
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn a_record_stays_in_its_line() {
        assert_eq!(escape("pear".as_bytes()), "pear");
        assert_eq!(escape(b"a\tb\nc\\d\re"), "a\\tb\\nc\\\\d\\re");
        assert_eq!(escape("\u{1b}[1m\u{e9}".as_bytes()), "\\x1b[1m\u{e9}");
        assert_eq!(escape(b"\xff\x00z"), "\\xff\\x00z");
        assert_eq!(escape("\u{85}\u{2028}".as_bytes()), "\\xc2\\x85\\xe2\\x80\\xa8");
    }
}

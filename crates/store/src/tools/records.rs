//! The records of a store's log.
//!
//! This reads the files and writes nothing, so it works for a store that other processes write and
//! for a store that can no longer be opened. Records that are not yet in the files are not shown.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use latchwork_disk::{Disk, System};
use latchwork_log::{Entry, Flags, LogFiles};
use latchwork_tree::{Change, Difference};

use crate::Error;
use crate::files::kinds::{CHANGE, COMMIT, END, LOCKS, PREPARE};
use crate::tables::{CATALOG, root_of};

/// A record of a store's log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogRecord {
    /// The position of the record.
    pub at: u64,
    /// The position of the next record.
    pub next: u64,
    /// The thread slot that wrote it.
    pub slot: u16,
    /// The kind: one of [`KINDS`](Self::KINDS).
    pub kind: &'static str,
    /// The tree that it changes, identified by the page of its root.
    pub tree: Option<u32>,
    /// The page that it changes.
    pub page: Option<u64>,
    /// Whether its transaction commits with it.
    pub commits: bool,
    /// Whether it rolls back another record.
    pub undoes: bool,
    /// Whether it belongs to no transaction.
    pub system: bool,
    /// The previous record of its transaction, or the next one to roll back; 0 if there is none.
    pub prev: u64,
    /// The page's position before the change.
    pub page_prev: u64,
    /// The key, if a single record changes.
    pub key: Option<Vec<u8>>,
    /// The old value, or the part of it that changes.
    pub before: Option<Vec<u8>>,
    /// The new value, or the part of it that changed.
    pub after: Option<Vec<u8>>,
    /// Where `before` and `after` begin in the values, if they are only the part in which the
    /// values differ.
    pub offset: Option<u64>,
}

impl LogRecord {
    /// All kinds of records: changes of a record, changes of a page's structure, records about
    /// transactions, and those unknown to this version.
    pub const KINDS: &[&str] = &[
        "insert",
        "replace",
        "delete",
        "ghost",
        "restore",
        "purge",
        "image",
        "split",
        "attach",
        "complete",
        "grow",
        "clear",
        "incomplete",
        "absorb",
        "commit",
        "end",
        "prepare",
        "locks",
        "other",
    ];

    fn of(entry: &Entry) -> Self {
        let (head, change) = (entry.head, Change::decode(&entry.payload));
        let changes = head.kind == CHANGE;
        let (kind, key, before, after, offset) = match (head.kind, change) {
            (COMMIT, _) => ("commit", None, None, None, None),
            (END, _) => ("end", None, None, None, None),
            (PREPARE, _) => ("prepare", None, None, None, None),
            (LOCKS, _) => ("locks", None, None, None, None),
            (CHANGE, Some(change)) => parts(change),
            _ => ("other", None, None, None, None),
        };
        let own = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
        Self {
            at: entry.lsn.0,
            next: entry.next().0,
            slot: entry.slot,
            kind,
            tree: changes.then_some(head.aux),
            page: changes.then_some(head.page),
            commits: head.flags.has(Flags::LAST),
            undoes: head.flags.has(Flags::CLR),
            system: head.flags.has(Flags::SYSTEM),
            prev: head.prev.0,
            page_prev: head.page_prev.0,
            key: own(key),
            before: own(before),
            after: own(after),
            offset: offset.map(|offset| offset as u64),
        }
    }
}

type Bytes<'b> = Option<&'b [u8]>;
type Parts<'b> = (&'static str, Bytes<'b>, Bytes<'b>, Bytes<'b>, Option<usize>);

/// Returns the name, the key, the old and new values of a change, and where these begin if they are
/// parts.
fn parts(change: Change<'_>) -> Parts<'_> {
    let (kind, key, before, after) = match change {
        Change::Insert { key, value, .. } => ("insert", Some(key), None, Some(value)),
        Change::Update { key, difference, .. } => {
            return part("replace", key, difference);
        }
        Change::Replace { key, before, value, .. } => {
            ("replace", Some(key), Some(before), Some(value))
        }
        Change::Delete { key, before, .. } => ("delete", Some(key), Some(before), None),
        Change::Ghost { key, .. } => ("ghost", Some(key), None, None),
        Change::Revert { key, difference, .. } => {
            return part("restore", key, difference);
        }
        Change::Restore { key, value, .. } => ("restore", Some(key), None, Some(value)),
        Change::Purge { key } => ("purge", Some(key), None, None),
        Change::Image { .. } => ("image", None, None, None),
        Change::Split { separator, .. } => ("split", Some(separator), None, None),
        Change::Attach { key, .. } => ("attach", Some(key), None, None),
        Change::Complete => ("complete", None, None, None),
        Change::Clear { .. } => ("clear", None, None, None),
        Change::Incomplete => ("incomplete", None, None, None),
        Change::Absorb { key, .. } => ("absorb", Some(key), None, None),
        Change::Grow { separator, .. } => ("grow", Some(separator), None, None),
        _ => ("other", None, None, None),
    };
    (kind, key, before, after, None)
}

fn part<'b>(kind: &'static str, key: &'b [u8], difference: Difference<'b>) -> Parts<'b> {
    let Difference { at, before, after } = difference;
    (kind, Some(key), Some(before), Some(after), Some(at))
}

/// A summary of a log's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogRead {
    /// The position of the first record.
    pub oldest: Option<u64>,
    /// The position where recovery would begin.
    pub redo: u64,
    /// Up to where the log was durable, according to its control file.
    pub flushed: u64,
    /// The position after the last record.
    pub end: u64,
    /// Ranges that could not be read, before the durable end or before later records.
    pub gaps: Vec<(u64, u64)>,
    /// The names of tables by tree, for tables that were created in this part of the log.
    pub tables: BTreeMap<u32, String>,
}

/// Calls `each` for the records in the log of the store in a folder, from a position on, until it
/// returns `false`. The store may be open, closed, or damaged. Nothing is written.
///
/// # Errors
///
/// [`Error::Log`] if no control file can be read; [`Error::Disk`].
///
/// # Examples
///
/// ```
/// use latchwork_store::{Store, Table, read_log};
///
/// const FRUIT: Table<&str, u64> = Table::new("fruit");
/// # let path = std::env::temp_dir().join(format!("store-log-{}", std::process::id()));
/// let store = Store::open(&path)?;
/// store.write(|tx| tx.put(&FRUIT, "pear", 3))?;
/// let mut inserts = 0;
/// read_log(&path, 0, &mut |record| {
///     inserts += u32::from(record.kind == "insert");
///     true
/// })?;
/// assert!(inserts >= 2, "the table in the catalog, and the pear");
/// # drop(store);
/// # std::fs::remove_dir_all(&path).unwrap();
/// # Ok::<(), latchwork_store::Error>(())
/// ```
pub fn read_log(
    folder: impl AsRef<Path>,
    from: u64,
    each: &mut dyn FnMut(&LogRecord) -> bool,
) -> Result<LogRead, Error> {
    let disk: Arc<dyn Disk> = Arc::new(System::new());
    let log = &folder.as_ref().join("log");
    let files = LogFiles::open(disk.clone(), log)?;
    let mut read = LogRead::default();
    entries(&files, (from, false), &mut read, &mut |entry| {
        let record = LogRecord::of(entry);
        if let (Some(CATALOG), Some(name), Some(root)) = (record.tree, &record.key, &record.after)
            && let Ok(root) = root_of(root)
        {
            return (Some((root, String::from_utf8_lossy(name).into_owned())), each(&record));
        }
        (None, each(&record))
    })?;
    // Processes that have the store open may have released what is older than the redo point since.
    let now = LogFiles::open(disk, log)?.redo();
    if now > files.redo() {
        read.gaps.retain(|gap| gap.1 > now.0);
    }
    Ok(read)
}

/// The table that a record names, and whether to continue.
type Noted = (Option<(u32, String)>, bool);

/// Visits the records from a position on, and skips damaged parts. If the position is not `exact`,
/// it may be in the middle of a record.
pub(crate) fn entries(
    files: &LogFiles,
    (from, exact): (u64, bool),
    read: &mut LogRead,
    each: &mut dyn FnMut(&Entry) -> Noted,
) -> Result<(), Error> {
    (read.redo, read.flushed) = (files.redo().0, files.flushed().0);
    read.oldest = files.oldest()?.map(|lsn| lsn.0);
    let oldest = read.oldest.unwrap_or(read.flushed);
    // Only records older than the redo point may be missing.
    if from <= read.redo && read.redo < oldest {
        read.gaps.push((read.redo, oldest));
    }
    let mut scan = files.scan(latchwork_log::Lsn(from.max(oldest)));
    let mut first = !exact && from > oldest;
    loop {
        while let Some(entry) = scan.next_entry()? {
            first = false;
            let (table, more) = each(&entry);
            read.tables.extend(table);
            read.end = entry.next().0;
            if !more {
                return Ok(());
            }
        }
        let (stopped, cut) = (scan.position().0.max(oldest), scan.is_cut());
        match scan.skip()? {
            Some(_) if core::mem::take(&mut first) => {}
            Some(next) => read.gaps.push((stopped, next.0)),
            _ if (stopped < read.flushed || cut) && !first => {
                read.gaps.push((stopped, read.flushed.max(stopped)));
                return Ok(());
            }
            _ => return Ok(()),
        }
    }
}

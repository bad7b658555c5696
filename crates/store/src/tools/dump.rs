//! Dumping a store, and loading a dump into a store.
//!
//! A dump is a snapshot. Other transactions can write during the dump, and the log is retained from
//! its position until it ends. Loading uses transactions of limited size in the order of the dump,
//! and waits for the disk once, at the end. A killed load leaves a prefix of the dump in the store.

use std::io::{BufRead, Write};

use latchwork_lockmgr::Wait;
use latchwork_log::Mode;
use latchwork_machine::ConstMachine;

use crate::entry::Entry;
use crate::tables::tables;
use crate::tools::text::{DumpError, DumpItem, DumpReader, DumpSummary, DumpWriter};
use crate::{Error, ReadTxn, Store, TableInfo, TxnOptions};

/// The number of records between two progress reports of `dump`.
const TELL: u64 = 4096;

/// A callback that is called from time to time with the progress so far.
pub type LoadProgress<'t> = dyn FnMut(&DumpSummary) + 't;

/// Options of a load.
///
/// # Examples
///
/// ```
/// use latchwork_store::{DumpReader, Load, Store, Table};
///
/// const FRUIT: Table<&str, u64> = Table::new("fruit");
/// # let path = std::env::temp_dir().join(format!("store-load-{}", std::process::id()));
/// # let other = std::env::temp_dir().join(format!("store-loaded-{}", std::process::id()));
/// let store = Store::open(&path)?;
/// store.write(|tx| tx.put(&FRUIT, "pear", 3))?;
/// let (text, written) = store.dump(Vec::new(), None, &mut |_| {})?;
///
/// let copy = Store::open(&other)?;
/// let loaded = copy.load(DumpReader::new(&text[..])?, &Load::default(), &mut |_| {})?;
/// assert_eq!(loaded, written);
/// assert_eq!(copy.read(|tx| tx.get(&FRUIT, "pear"))?, Some(3));
/// # drop((store, copy));
/// # std::fs::remove_dir_all(&path).unwrap();
/// # std::fs::remove_dir_all(&other).unwrap();
/// # Ok::<(), latchwork_store::DumpError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Load {
    /// Whether tables may contain records. Records with keys of the dump are overwritten.
    pub merge: bool,
    /// Maximum number of records in a transaction.
    pub records: usize,
    /// Approximate maximum of the bytes of keys and values in a transaction.
    pub bytes: usize,
}

impl Default for Load {
    /// Loads into tables that are empty or do not exist, with transactions of 1,000 records or 256
    /// KiB.
    fn default() -> Self {
        Self { merge: false, records: 1000, bytes: 256 << 10 }
    }
}

impl<M: ConstMachine> Store<M> {
    /// Writes all tables, or one, at one position of the log. Returns the flushed writer, and a
    /// summary of the dump.
    ///
    /// # Errors
    ///
    /// [`DumpError::NoTable`]; [`DumpError::Io`]; [`DumpError::Store`], which may be
    /// [`Error::SnapshotTooOld`](crate::Error::SnapshotTooOld) if other transactions write much.
    /// After an error the dump has no last line, so that no reader accepts it as complete.
    pub fn dump<W: Write>(
        &self,
        to: W,
        only: Option<&str>,
        progress: &mut LoadProgress<'_>,
    ) -> Result<(W, DumpSummary), DumpError> {
        let page = self.home().file.page_bytes();
        // Errors that are not the store's are returned through this variable.
        let (mut to, mut dump) = (Some(to), None);
        let read = self.read(|tx| {
            dump = to.take().map(|to| dump_all(tx, to, page, only, progress));
            Ok(())
        });
        read?;
        dump.unwrap_or(Err(DumpError::Store(Error::Engine("the dump was not begun".to_owned()))))
    }

    /// Writes the records of a dump into their tables, and waits until all are durable. Creates
    /// tables that do not exist.
    ///
    /// The dump is read once, so an error in it may be found after a part of it was loaded.
    /// [Check](DumpReader::check) the dump first if it can be read twice. `progress` is called with
    /// the progress after each transaction.
    ///
    /// # Errors
    ///
    /// [`DumpError::NotEmpty`]; those of [`DumpReader::next_item`]; [`DumpError::Store`]. Records
    /// that were loaded before the error remain.
    pub fn load<R: BufRead>(
        &self,
        mut from: DumpReader<R>,
        options: &Load,
        progress: &mut LoadProgress<'_>,
    ) -> Result<DumpSummary, DumpError> {
        let mut into = None;
        let (mut batch, mut bytes) = (Vec::new(), 0);
        loop {
            let read = from.summary();
            let item = from.next_item()?;
            let full = batch.len() >= options.records.max(1) || bytes >= options.bytes.max(1);
            let ends = !matches!(item, Some(DumpItem::Record { .. }));
            if let Some(tree) = into.filter(|_| full || ends) {
                self.put_all(tree, &batch)?;
                batch.clear();
                bytes = 0;
                progress(&read);
            }
            match item {
                Some(DumpItem::Table(name)) => into = Some(self.table_to_load(&name, options)?),
                Some(DumpItem::Record { key, value }) => {
                    bytes += key.len() + value.len();
                    batch.push((key, value));
                }
                None => break,
            }
        }
        // A transaction without changes waits for the earlier commits.
        let options = TxnOptions { mode: Some(Mode::Full), label: "load", ..TxnOptions::default() };
        self.write_with(&options, |_| Ok(()))?;
        Ok(from.summary())
    }

    /// Creates a table with these types, or records them if it has none.
    #[doc(hidden)]
    pub fn make_table_of(&self, table: &TableInfo) -> Result<(), Error> {
        match self.table_to_load(table, &Load { merge: true, ..Load::default() }) {
            Ok(_) => Ok(()),
            Err(DumpError::Store(why)) => Err(why),
            Err(other) => Err(Error::Engine(other.to_string())),
        }
    }

    /// Returns the tree of a table for a load.
    fn table_to_load(&self, table: &TableInfo, options: &Load) -> Result<u32, DumpError> {
        let (name, wanted) = (&table.name[..], table.wanted());
        let session = self.session()?;
        let found = self.catalog().find(&session.worker, name)?;
        let entry = match &found {
            // Record the types of the dump if the table has none.
            Some(entry) if entry.types.is_some() || wanted.0.is_none() => entry.clone(),
            _ => self.catalog().make(name, &wanted, Wait::Detect)?,
        };
        if entry.moving {
            return Err(Error::Migrating { table: name.to_owned() }.into());
        }
        if !entry.takes(&wanted) {
            let (table, stored) = (name.to_owned(), entry.said());
            let requested = Entry::new(0, wanted.0, wanted.1).said();
            return Err(Error::TableType { table, stored, requested }.into());
        }
        if found.is_none() {
            return Ok(entry.tree);
        }
        let tree = entry.tree;
        let mut empty = true;
        self.read(|tx| {
            tx.snapshot.scan_raw(tree, .., false, &mut |_, _| {
                empty = false;
                Ok(false)
            })
        })?;
        match empty || options.merge {
            true => Ok(tree),
            false => Err(DumpError::NotEmpty { table: name.to_owned() }),
        }
    }

    /// Writes records in one transaction, which does not wait for the disk.
    pub(crate) fn put_all(&self, tree: u32, records: &[(Vec<u8>, Vec<u8>)]) -> Result<(), Error> {
        if records.is_empty() {
            return Ok(());
        }
        let options = TxnOptions { mode: Some(Mode::None), label: "load", ..TxnOptions::default() };
        self.write_with(&options, |tx| {
            tx.tables.kept.worker.tables_are_found()?;
            let txn = tx.txn()?;
            records.iter().try_for_each(|(key, value)| txn.write_raw(tree, key, Some(value)))
        })?;
        Ok(())
    }
}

fn dump_all<W: Write, M: ConstMachine>(
    tx: &ReadTxn<'_, M>,
    to: W,
    page: u32,
    only: Option<&str>,
    progress: &mut LoadProgress<'_>,
) -> Result<(W, DumpSummary), DumpError> {
    let mut tables = tables(&tx.snapshot)?;
    tables.retain(|table| only.is_none_or(|only| only == table.0));
    if let Some(only) = only.filter(|_| tables.is_empty()) {
        return Err(DumpError::NoTable { table: only.to_owned() });
    }
    let mut dump = DumpWriter::new(to, page, tx.at())?;
    for (name, entry) in tables {
        let tree = entry.tree;
        dump.table_of(&TableInfo::of(name, entry))?;
        let mut failed = None;
        tx.snapshot.scan_raw(tree, .., false, &mut |key, value| {
            failed = dump.record(key, value).err();
            if dump.summary().records.is_multiple_of(TELL) {
                progress(&dump.summary());
            }
            Ok(failed.is_none())
        })?;
        failed.map_or(Ok(()), Err)?;
    }
    dump.finish()
}

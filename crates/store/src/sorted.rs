//! Bulk load: creates a table from rows in the order of their keys.
//!
//! The transaction first writes the table's name into the catalog. No other transaction sees it
//! before the commit. All rows have the stamp of that record, so that they become visible with the
//! commit, also for snapshots; an earlier snapshot finds by the stamp that they did not exist.

use std::cell::Cell;

use latchwork_machine::ConstMachine;
use latchwork_tree::{Error as TreeError, Header};

use crate::engine::Engine;
use crate::entry::{Entry, Types};
use crate::files::tree_journal::ChangeOrigin;
use crate::idle::Kept;
use crate::tables::{CATALOG, fits};
use crate::{Error, Key, Store, Table, TxnOptions, Value, retry};

impl<M: ConstMachine> Store<M> {
    /// Creates a table from rows in ascending order of their keys, in one transaction, and returns
    /// their number. Pages are filled from left to right and logged once. This is several times as
    /// fast as single writes, and no page is left half empty.
    ///
    /// The log is retained from the beginning of the load to its end, and contains all pages. If a
    /// load fails or is killed, its pages are reused; freeing a page logs some hundred bytes.
    ///
    /// # Errors
    ///
    /// [`Error::TableExists`] if a table of this name exists, with or without records: every
    /// transaction that may write creates the tables that it names. [`Error::OutOfOrder`];
    /// [`Error::Tree`] with [`RecordTooLong`](latchwork_tree::Error::RecordTooLong) for a long
    /// value, which only [`put`](crate::WriteTxn::put) accepts; [`Error::KeyTooLong`];
    /// [`Error::RowsTaken`]; errors of the [store's parts](Error). After an error the table does
    /// not exist.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Store, Table};
    ///
    /// const SQUARES: Table<u64, u64> = Table::new("squares");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-load-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// assert_eq!(store.load_sorted(&SQUARES, (0..10_000).map(|n| (n, n * n)))?, 10_000);
    /// assert_eq!(store.read(|tx| tx.get(&SQUARES, 99))?, Some(9801));
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn load_sorted<'r, K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        rows: impl IntoIterator<Item = (K::Of<'r>, V::Of<'r>)>,
    ) -> Result<u64, Error> {
        fits(table.name().as_bytes())?;
        // A record of the maximum length would count as a long value.
        let limit = self.home().record_max - 1;
        let encoded = rows.into_iter().map(|(key, value)| {
            let (key, value) = (table.key(&key)?, table.value(&value));
            match key.len() + value.len() {
                length if length > limit => Err(TreeError::RecordTooLong { length, limit }.into()),
                _ => Ok::<_, Error>((key, value)),
            }
        });
        let once = Cell::new(Some(encoded));
        let name = table.name().as_bytes();
        let options = TxnOptions { label: "load", ..TxnOptions::default() };
        let _settles = Settles(self);
        let run = |kept: &Kept<M>, _| {
            let (worker, made) = (&kept.worker, Cell::new(None));
            let done = retry::run(worker, worker.locks()?, worker.slot(), &options, |txn| {
                // It may be set by an earlier attempt.
                made.set(None);
                worker.tables_are_found()?;
                worker.settle_all(worker.slot(), true)?;
                if txn.get_raw_for_update(CATALOG, name)?.is_some() {
                    return Err(Error::TableExists { table: table.name().to_owned() });
                }
                let tree = worker.make_root()?;
                let entry = Entry::new(tree, Types::of(K::TYPE, V::TYPE), table.version());
                txn.write_raw(CATALOG, name, Some(&entry.bytes(limit - name.len())))?;
                let stamp = worker.newest(CATALOG, name, &mut Vec::new())?.stamp;
                // No other thread may roll the transaction back while the load runs.
                let _work = worker.enter()?;
                let Some(rows) = once.take() else { return Err(Error::RowsTaken) };
                let header = Header::from_bits(stamp.get());
                let count = worker.with(tree, ChangeOrigin::System, |tree| tree.load(header, rows));
                let count = count.map_err(|why: Error| why.of_table(|| table.name().to_owned()))?;
                made.set(Some(u64::from(tree)));
                Ok(count)
            })?;
            // Searching the catalog for a root would read all of it. The slot still belongs to this
            // thread.
            if let Some(root) = made.get() {
                worker.home.shared.let_go(worker.slot(), root)?;
            }
            Ok::<_, Error>(done)
        };
        let done = self.attempts(&options, run, Error::with_end)?;
        Ok(done.value)
    }
}

/// Decides about the root of a table when its load has ended, also by a panic of the rows. If that
/// fails, the next load or owner of the slot tries again.
struct Settles<'s, M: ConstMachine>(&'s Store<M>);

impl<M: ConstMachine> Drop for Settles<'_, M> {
    fn drop(&mut self) {
        if let Ok(session) = self.0.session() {
            let _ = session.worker.settle_all(session.worker.slot(), true);
        }
    }
}

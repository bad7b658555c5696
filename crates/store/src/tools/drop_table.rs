//! Removes all records of a table, with transactions of limited size.

use std::ops::Bound;

use latchwork_machine::ConstMachine;

use crate::{Error, Store, TxnOptions};

/// Approximate limits of a transaction: number and bytes of records.
const RECORDS: u64 = 1000;
const BYTES: usize = 1 << 20;

impl<M: ConstMachine> Store<M> {
    /// Returns whether a table of this name exists, with or without records. One lookup in the
    /// catalog.
    ///
    /// # Errors
    ///
    /// [`Error::NameTooLong`]; errors of the [store's parts](Error).
    pub fn has_table(&self, table: &str) -> Result<bool, Error> {
        Ok(self.catalog().find(&self.session()?.worker, table)?.is_some())
    }

    /// Removes all records of a table, of any types, and returns their number. This drops the
    /// table, because [`tables`](Self::tables) names only tables with records. All but about three
    /// of its pages are reused.
    ///
    /// It uses transactions of at most a thousand records, from the first key to the last key at
    /// the beginning of the call. So a table of any size can be removed. Other transactions can use
    /// the table at the same time, and see a part of it. Records that they write before the current
    /// position, or after that last key, remain. To remove all records atomically, or together with
    /// other changes, use [`WriteTxn::remove_range`](crate::WriteTxn::remove_range) with `..`.
    /// `progress` is called with the number so far.
    ///
    /// While a snapshot in any process may still see removed records, their pages stay with the
    /// table; another call after the snapshot's end frees them.
    ///
    /// The table keeps its types and its schema version: [`migrate`](Self::migrate) changes them.
    ///
    /// Sequences are records of the table `latchwork sequences`. If that table is cleared, they
    /// start again at 1.
    ///
    /// # Errors
    ///
    /// [`Error::NameTooLong`]; those of [`write`](Self::write). After an error a part of the
    /// records is removed.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Store, Table};
    ///
    /// const FRUIT: Table<&str, u64> = Table::new("fruit");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-clear-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// store.put(&FRUIT, "pear", 3)?;
    /// assert_eq!(store.drop_table(FRUIT.name(), &mut |_| {})?, 1);
    /// assert!(store.tables()?.is_empty());
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn drop_table(&self, table: &str, progress: &mut dyn FnMut(u64)) -> Result<u64, Error> {
        let session = self.session()?;
        let Some(entry) = self.catalog().find(&session.worker, table)? else { return Ok(0) };
        if entry.moving {
            return Err(Error::Migrating { table: table.to_owned() });
        }
        let tree = entry.tree;
        // Records removed long ago are now visible to no snapshot; the scans note their leaves.
        session.worker.tidy_all();
        // The following transactions share this thread's session.
        drop(session);
        let (mut removed, mut from) = (0, Bound::Unbounded);
        if let Some(end) = self.last_of(tree)? {
            while let Some(last) = self.end_of_some(tree, (&from, &end))? {
                removed += self.remove_some(tree, (&from, &last))?;
                // A commit unlinks only a few empty leaves, and this leaves many.
                self.session()?.worker.tidy_all();
                progress(removed);
                from = Bound::Excluded(last);
            }
        }
        self.session()?.worker.tidy_all();
        Ok(removed)
    }

    /// Returns the last key of a tree.
    fn last_of(&self, tree: u32) -> Result<Option<Vec<u8>>, Error> {
        let mut last = None;
        self.read(|tx| {
            tx.snapshot.scan_raw(tree, .., true, &mut |key, _| {
                last = Some(key.to_vec());
                Ok(false)
            })
        })?;
        Ok(last)
    }

    /// Returns the last key of the records that one transaction removes.
    fn end_of_some(
        &self,
        tree: u32,
        (from, end): (&Bound<Vec<u8>>, &[u8]),
    ) -> Result<Option<Vec<u8>>, Error> {
        let (mut records, mut bytes, mut last) = (0, 0, None);
        let range = (from.as_ref().map(|key| &key[..]), Bound::Included(end));
        self.read(|tx| {
            tx.snapshot.scan_raw(tree, range, false, &mut |key, value| {
                last = Some(key.to_vec());
                records += 1;
                bytes += key.len() + value.len();
                Ok(records < RECORDS && bytes < BYTES)
            })
        })?;
        Ok(last)
    }

    fn remove_some(&self, tree: u32, (from, last): (&Bound<Vec<u8>>, &[u8])) -> Result<u64, Error> {
        let range = (from.as_ref().map(|key| &key[..]), Bound::Included(last));
        let options = TxnOptions { label: "clear", ..TxnOptions::default() };
        let done = self.write_with(&options, |tx| {
            tx.tables.kept.worker.tables_are_found()?;
            tx.txn()?.remove_range_raw(tree, range)
        })?;
        Ok(done.value)
    }
}

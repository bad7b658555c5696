//! A table is emptied, some records in a transaction.

use std::ops::Bound;

use latchwork_machine::ConstMachine;

use crate::{Error, Store, TxnOptions};

/// How many records are removed in one transaction, and how many bytes, about.
const RECORDS: u64 = 1000;
const BYTES: usize = 1 << 20;

impl<M: ConstMachine> Store<M> {
    /// Whether there is a table of this name, with records or without. One look into the catalog.
    ///
    /// # Errors
    ///
    /// [`Error::NameTooLong`]; those of the parts.
    pub fn has_table(&self, table: &str) -> Result<bool, Error> {
        Ok(self.catalog().find(&self.session()?.worker, table)?.is_some())
    }

    /// Removes all records of a table, whatever their types, and says how many there were: so a
    /// table is dropped, for [`tables`](Self::tables) names those that have a record. Its pages
    /// are used again, all but some three.
    ///
    /// It goes in transactions of a thousand records at most, from the first key to what is the
    /// last one at the beginning: so a table of any size goes, and others work in the table
    /// meanwhile and see a part of it. What they write before the place that it has come to stays,
    /// and what they write behind that last key. To have it gone at one instant, or
    /// together with other changes, there is
    /// [`WriteTxn::remove_range`](crate::WriteTxn::remove_range) of `..`. `told` is called with the
    /// number so far.
    ///
    /// While a snapshot may still see what was removed, in any process, the pages stay the table's;
    /// clearing the table again, behind that, gives them back.
    ///
    /// The table keeps its types and its schema version: [`migrate`](Self::migrate) changes them.
    ///
    /// Sequences are records of the table `latchwork sequences`: if that is cleared, they begin
    /// anew.
    ///
    /// # Errors
    ///
    /// [`Error::NameTooLong`]; others as for [`write`](Self::write). Then a part is removed.
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
    pub fn drop_table(&self, table: &str, told: &mut dyn FnMut(u64)) -> Result<u64, Error> {
        let session = self.session()?;
        let Some(entry) = self.catalog().find(&session.worker, table)? else { return Ok(0) };
        if entry.moving {
            return Err(Error::Migrating { table: table.to_owned() });
        }
        let tree = entry.tree;
        // What was removed long ago is seen to be, and its leaves are noted by the scans.
        session.worker.tidy_all();
        // The transactions below have this thread's one session by turns.
        drop(session);
        let (mut removed, mut from) = (0, Bound::Unbounded);
        if let Some(end) = self.last_of(tree)? {
            while let Some(last) = self.end_of_some(tree, (&from, &end))? {
                removed += self.remove_some(tree, (&from, &last))?;
                // A commit unlinks a few leaves, and these are many.
                self.session()?.worker.tidy_all();
                told(removed);
                from = Bound::Excluded(last);
            }
        }
        self.session()?.worker.tidy_all();
        Ok(removed)
    }

    /// The last key of a tree.
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

    /// The last key of as many records as one transaction removes.
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
            tx.txn.remove_range_raw(tree, range)
        })?;
        Ok(done.value)
    }
}

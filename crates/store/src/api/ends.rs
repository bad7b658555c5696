//! Reading and writing a record with a closure, the ends of a table, and counting its records.

use core::ops::{Bound, RangeBounds};

use latchwork_lockmgr::granular::U;
use latchwork_machine::ConstMachine;

use crate::engine::Engine;
use crate::snapshot::FEW;
use crate::typed::{ReadTxn, WriteTxn};
use crate::{Error, Key, Table, Value};

/// A record, as a call returns it.
type Record<K, V> = (<K as Key>::Owned, <V as Value>::Owned);
type Bytes = (Vec<u8>, Vec<u8>);

/// What happens to a record at an end of a table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Take {
    /// It stays.
    No,
    Now,
    /// Its removal and the commit are one log record.
    AsCommit,
}

impl<M: ConstMachine> ReadTxn<'_, M> {
    /// Returns the first record of a table. O(log n), and one step for each removed record before
    /// it that a snapshot may still see.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Store, Table};
    ///
    /// const JOBS: Table<u64, &str> = Table::new("jobs");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-ends-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// store.write(|tx| {
    ///     let jobs = ["one", "two", "three"].iter().zip(1..);
    ///     jobs.into_iter().try_for_each(|(job, number)| tx.put(&JOBS, number, job))
    /// })?;
    /// assert_eq!(store.read(|tx| tx.last(&JOBS))?, Some((3, "three".to_owned())));
    /// let job = store.write(|tx| tx.pop_first(&JOBS))?;
    /// assert_eq!(job, Some((1, "one".to_owned())));
    /// assert_eq!(store.read(|tx| tx.count(&JOBS, ..))?, 2);
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn first<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error> {
        self.range(table, ..)?.next().transpose()
    }

    /// Returns the last record of a table. The cost is that of [`first`](Self::first).
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    pub fn last<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error> {
        self.range(table, ..)?.rev().next().transpose()
    }

    /// Returns whether a record with this key exists. O(log n).
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    pub fn contains<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<bool, Error> {
        Ok(self.get_with(table, key, |_| ())?.is_some())
    }

    /// Counts the records of a range. O(records): it reads all of them. The store keeps no count,
    /// because every writer would have to update it.
    ///
    /// # Errors
    ///
    /// Those of [`range`](Self::range).
    pub fn count<'k, K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<u64, Error> {
        let mut count = 0;
        self.scan(table, range, &mut |_, _| {
            count += 1;
            Ok(true)
        })?;
        Ok(count)
    }
}

impl<M: ConstMachine> WriteTxn<'_, '_, M> {
    /// Reads a value and writes the closure's result; `None` removes the record. Returns the new
    /// value. No other transaction can read it [for update](Self::get_for_update) until this one
    /// ends.
    ///
    /// # Errors
    ///
    /// Those of [`get_for_update`](Self::get_for_update) and [`put`](Self::put).
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Store, Table};
    ///
    /// const VISITS: Table<&str, u64> = Table::new("visits");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-update-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// for _ in 0..3 {
    ///     store.write(|tx| tx.update(&VISITS, "ann", |old| Some(old.unwrap_or(0) + 1)))?;
    /// }
    /// assert_eq!(store.read(|tx| tx.get(&VISITS, "ann"))?, Some(3));
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn update<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        change: impl FnOnce(Option<V::Owned>) -> Option<V::Owned>,
    ) -> Result<Option<V::Owned>, Error> {
        let (tree, key) = (self.tree(table)?, table.key(&key)?);
        let txn = self.inner.txn(Some((tree, &key, U)))?;
        let old = txn.get_raw_for_update(tree, &key)?;
        let was = old.is_some();
        let new = change(old.map(|old| table.value_of(&old)).transpose()?);
        match &new {
            Some(value) => {
                let value = table.value(&V::lend(value));
                txn.write_raw(tree, &key, Some(&value))?;
            }
            None if was => txn.write_raw(tree, &key, None)?,
            None => {}
        }
        Ok(new)
    }

    /// Returns whether a record with this key exists. That does not change until the transaction
    /// ends.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    pub fn contains<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<bool, Error> {
        let (tree, key) = (self.tree(table)?, table.key(&key)?);
        self.inner.get_into(tree, &key, &mut Vec::new())
    }

    /// Counts the records of a range. The count does not change until the transaction ends.
    /// O(records).
    ///
    /// # Errors
    ///
    /// Those of [`range`](Self::range).
    pub fn count<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<u64, Error> {
        let mut count = 0;
        self.scan(table, range, &mut |_, _| {
            count += 1;
            Ok(true)
        })?;
        Ok(count)
    }

    /// Returns the first record of a table. It remains the first until the transaction ends. Only
    /// the range up to it is locked, so other transactions can write after it. O(log n), and one
    /// step for each record before it that another transaction has removed and a snapshot may still
    /// see.
    ///
    /// # Errors
    ///
    /// Those of [`range`](Self::range).
    pub fn first<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error> {
        self.end(table, false, Take::No)
    }

    /// Returns the last record of a table; see [`first`](Self::first).
    ///
    /// # Errors
    ///
    /// Those of [`range`](Self::range).
    pub fn last<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error> {
        self.end(table, true, Take::No)
    }

    /// Removes the first record of a table and returns it. Transactions that do this at the same
    /// time wait for each other, and each gets another record. At [`Level::ReadCommitted`] they do
    /// not wait: each passes over records that others have locked, unless it finds no other among
    /// the first 16. The cost is that of [`first`](Self::first).
    ///
    /// [`Level::ReadCommitted`]: crate::Level::ReadCommitted
    ///
    /// # Errors
    ///
    /// Those of [`range`](Self::range) and [`remove`](Self::remove).
    pub fn pop_first<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error> {
        self.end(table, false, Take::Now)
    }

    /// Removes the last record of a table and returns it; see [`pop_first`](Self::pop_first).
    ///
    /// # Errors
    ///
    /// Those of [`range`](Self::range) and [`remove`](Self::remove).
    pub fn pop_last<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error> {
        self.end(table, true, Take::Now)
    }

    /// Removes the first record of a table, or the last with `back`, as the last operation of the
    /// transaction; see [`put_final`](Self::put_final).
    ///
    /// # Errors
    ///
    /// Those of [`pop_first`](Self::pop_first) and [`put_final`](Self::put_final).
    pub fn pop_final<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        back: bool,
    ) -> Result<Option<Record<K, V>>, Error> {
        self.end(table, back, Take::AsCommit)
    }

    /// Returns the last key of a table, committed or not. Locks nothing, so other transactions may
    /// write after it. O(log n), and one step for each removed record after it.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    pub fn last_key<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
    ) -> Result<Option<K::Owned>, Error> {
        let tree = self.tree(table)?;
        // As in `end`.
        self.txn()?.savepoint()?;
        self.candidate(tree, true)?.map(|key| table.key_of(&key)).transpose()
    }

    /// Writes a value as the last operation of the transaction, if the record does not exist and no
    /// other transaction has locked its key. Returns whether it did.
    ///
    /// # Errors
    ///
    /// Those of [`put_final`](Self::put_final).
    pub fn try_insert_final<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<bool, Error> {
        let (tree, key) = (self.tree(table)?, table.key(&key)?);
        let txn = self.txn()?;
        let free =
            txn.try_lock(tree, &key)? && !txn.get_for_update_into(tree, &key, &mut Vec::new())?;
        if free {
            txn.write_last(tree, &key, Some(&table.value(&value)))?;
        }
        Ok(free)
    }

    fn end<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        back: bool,
        take: Take,
    ) -> Result<Option<Record<K, V>>, Error> {
        let tree = self.tree(table)?;
        // The transaction's own deferred write must be in the tree.
        self.txn()?.savepoint()?;
        let Some((key, value)) = self.end_raw(tree, back, take != Take::No)? else {
            return Ok(None);
        };
        // Decode before the removal, so that a record that cannot be decoded stays.
        let record = (table.key_of(&key)?, table.value_of(&value)?);
        match take {
            Take::No => return Ok(Some(record)),
            Take::Now => self.txn()?.write_raw(tree, &key, None)?,
            Take::AsCommit => self.txn()?.write_last(tree, &key, None)?,
        }
        self.txn()?.note_empty(tree, back, &key);
        Ok(Some(record))
    }

    /// Returns the first or the last record, and locks the range up to it. To remove the record
    /// (`take`), its key is locked first, so that two transactions do not both hold the range.
    fn end_raw(&mut self, tree: u32, back: bool, take: bool) -> Result<Option<Bytes>, Error> {
        if take
            && !self.txn()?.locks_ranges()
            && let Some(record) = self.free_end(tree, back)?
        {
            return Ok(Some(record));
        }
        loop {
            let candidate = self.candidate(tree, back)?;
            if let (Some(key), true) = (&candidate, take)
                && self.txn()?.get_raw_for_update(tree, key)?.is_none()
            {
                // Another transaction has removed it.
                continue;
            }
            let upto = candidate.as_ref().map_or(Bound::Unbounded, |key| Bound::Included(&key[..]));
            let mut found = None;
            self.txn()?.scan_end(tree, upto, back, &mut |key, value| {
                found = Some((key.to_vec(), value.to_vec()));
                Ok(false)
            })?;
            match (found, &candidate) {
                // A record that was added since. With `take`, lock it and read it again: at a level
                // that locks no ranges, another transaction may have removed it.
                (Some((key, _)), _) if take && candidate.as_ref() != Some(&key) => {
                    if let Some(value) = self.txn()?.get_raw_for_update(tree, &key)? {
                        return Ok(Some((key, value)));
                    }
                }
                // Its removal was unfinished, or it has been removed now: try the next one.
                (None, Some(_)) => {}
                (found, _) => return Ok(found),
            }
        }
    }

    /// Locks and returns the first or the last record that no other transaction has locked. Returns
    /// `None` if others have locked the first few, or if no record exists: the caller waits.
    fn free_end(&mut self, tree: u32, back: bool) -> Result<Option<Bytes>, Error> {
        let worker = &self.tables.kept.worker;
        let (txn, mut batch) = (self.inner.txn(None)?, worker.spare());
        let (mut found, mut gone) = (None, true);
        while found.is_none() && core::mem::take(&mut gone) {
            let from = txn.behind_empty(tree, back);
            worker.scan(tree, from, back, FEW, &mut batch)?;
            for row in batch.iter().filter(|row| !row.ghost) {
                if !txn.try_lock(tree, row.key)? {
                    continue;
                }
                if let Some(value) = txn.get_raw_for_update(tree, row.key)? {
                    found = Some((row.key.to_vec(), value));
                    break;
                }
                // It was removed since the scan, and others may have been added.
                gone = true;
            }
        }
        worker.keep(batch);
        Ok(found)
    }

    /// Returns the first or the last key whose newest version, of any transaction, exists.
    fn candidate(&mut self, tree: u32, back: bool) -> Result<Option<Vec<u8>>, Error> {
        let worker = &self.tables.kept.worker;
        let (mut batch, mut next, mut limit) = (worker.spare(), None::<Vec<u8>>, FEW);
        let empty = self.txn()?.behind_empty(tree, back);
        let found = loop {
            let from = match (&next, back) {
                (None, _) => empty,
                (Some(next), false) => Bound::Included(&next[..]),
                (Some(next), true) => Bound::Excluded(&next[..]),
            };
            worker.scan(tree, from, back, limit, &mut batch)?;
            limit = usize::MAX;
            if let Some(row) = batch.iter().find(|row| !row.ghost) {
                break Some(row.key.to_vec());
            }
            match batch.next() {
                Some(more) => next = Some(more.to_vec()),
                None => break None,
            }
        };
        worker.keep(batch);
        Ok(found)
    }
}

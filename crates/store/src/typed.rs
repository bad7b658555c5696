//! Typed access to tables for the closures of [`Store::read`](crate::Store::read) and
//! [`Store::write`](crate::Store::write).

use core::fmt;
use core::marker::PhantomData;
use core::ops::{Bound, Range, RangeBounds};

use latchwork_lockmgr::granular::{U, X};
use latchwork_machine::{ConstMachine, Shared as Machine};
use latchwork_tree::{Batch, Header, Row};

use crate::files::session::StoreSession;
use crate::idle::Scratch;
use crate::retry::Runs;
use crate::snapshot::Snapshot;
use crate::snapshot::{EachRecord, FEW, Slices};
use crate::table::{after, checked};
use crate::tables::Tables;
use crate::txn::Txn;
use crate::txn::early::Wanted;
use crate::{Error, Key, Savepoint, StartsWith, Table, Value};

pub(crate) type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// A snapshot of all tables: see [`Store::read`](crate::Store::read).
pub struct ReadTxn<'s, M: ConstMachine = Machine> {
    pub(crate) snapshot: Snapshot<'s, StoreSession<M>>,
    pub(crate) tables: Tables<'s, M>,
}

/// A transaction: see [`Store::write`](crate::Store::write).
///
/// Each call creates the table that it names if the table does not exist, also a call that only
/// reads. The empty table remains even if the transaction is rolled back.
pub struct WriteTxn<'x, 's, M: ConstMachine = Machine> {
    pub(crate) inner: TxnRef<'x, 's, M>,
    pub(crate) tables: Tables<'x, M>,
}

/// The transaction of a closure.
pub(crate) enum TxnRef<'x, 's, M: ConstMachine> {
    /// It locks what it reads.
    Txn(&'x mut Txn<'s, StoreSession<M>, M>),
    /// It may not have begun to lock.
    Runs(&'x mut Runs<'s, StoreSession<M>, M>),
}

pub(crate) fn bounds<'k, K: Key, V>(
    table: &Table<K, V>,
    range: &impl RangeBounds<K::Of<'k>>,
) -> Result<Bounds, Error> {
    let bound = |bound: Bound<&K::Of<'k>>| {
        Ok::<_, Error>(match bound {
            Bound::Included(key) => Bound::Included(table.key(key)?),
            Bound::Excluded(key) => Bound::Excluded(table.key(key)?),
            Bound::Unbounded => Bound::Unbounded,
        })
    };
    Ok((bound(range.start_bound())?, bound(range.end_bound())?))
}

pub(crate) fn prefixed<P: Key, K: StartsWith<P>>(
    table: &str,
    prefix: &P::Of<'_>,
) -> Result<Bounds, Error> {
    let mut bytes = Vec::new();
    K::encode_prefix(prefix, &mut bytes);
    checked(table, &bytes)?;
    let range = after(&bytes, bytes.clone());
    Ok((Bound::Included(range.start), Bound::Excluded(range.end)))
}

pub(crate) fn as_slices(range: &Bounds) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (range.0.as_ref().map(Vec::as_slice), range.1.as_ref().map(Vec::as_slice))
}

/// Reads all records of a range, which the transaction locks.
pub(crate) fn all_of<M: ConstMachine>(
    txn: &mut Txn<'_, StoreSession<M>, M>,
    tree: u32,
    range: &Bounds,
) -> Result<Batch, Error> {
    let mut all = Batch::default();
    txn.scan_raw(tree, as_slices(range), false, &mut |key, value| {
        all.push(Row { key, value, header: Header::NONE, ghost: false });
        Ok(true)
    })?;
    Ok(all)
}

impl<M: ConstMachine> ReadTxn<'_, M> {
    /// Reads a value. O(log n).
    ///
    /// # Errors
    ///
    /// [`Error::KeyTooLong`], [`Error::Value`]; [`Error::SnapshotTooOld`]; errors of the [store's
    /// parts](Error).
    pub fn get<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        self.get_with(table, key, |value| table.value_of(value))?.transpose()
    }

    /// Calls `with` for the encoded bytes of a value and returns its result; [`Table::value_of`]
    /// decodes them. Allocates nothing.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    #[inline]
    pub fn get_with<K: Key, V: Value, R>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        with: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, Error> {
        let Some(tree) = self.tables.find(table, &self.snapshot)? else { return Ok(None) };
        self.tables.with_scratch(|scratch| {
            table.key_into(&key, &mut scratch.key)?;
            let there = self.snapshot.get_into(tree, &scratch.key, &mut scratch.value)?;
            Ok(there.then(|| with(&scratch.value)))
        })
    }

    /// Returns the records of a range, in order; `rev` of the iterator reverses the direction. The
    /// iterator reads them in batches.
    ///
    /// # Errors
    ///
    /// [`Error::KeyTooLong`]; the iterator returns those of [`get`](Self::get).
    pub fn range<'k, K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<Rows<'_, K, V>, Error> {
        self.rows(table, bounds(table, &range)?)
    }

    /// Returns the records whose keys begin with these parts, in order. For texts that begin with
    /// certain letters use a [`range`](Self::range), for example from `"user:"` to before
    /// `"user;"`.
    ///
    /// # Errors
    ///
    /// Those of [`range`](Self::range).
    pub fn prefix<P: Key, K: StartsWith<P>, V: Value>(
        &self,
        table: &Table<K, V>,
        prefix: P::Of<'_>,
    ) -> Result<Rows<'_, K, V>, Error> {
        self.rows(table, prefixed::<P, K>(table.name(), &prefix)?)
    }

    fn rows<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        range: Bounds,
    ) -> Result<Rows<'_, K, V>, Error> {
        let tree = self.tables.find(table, &self.snapshot)?;
        let fetch = move |range: Slices<'_>, back: bool, limit: usize, batch: &mut Batch| match tree
        {
            Some(tree) => self.snapshot.some(tree, range, back, limit, batch),
            None => Ok(()),
        };
        Ok(Rows::new(*table, range, Box::new(fetch)))
    }

    /// Calls `each` for the encoded key and value of the records of a range, until it returns
    /// `false`; [`Table::key_of`] and [`Table::value_of`] decode them. The bytes are a copy, and no
    /// page is held during the call.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get); errors that `each` returns.
    pub fn scan<'k, K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
        each: &mut EachRecord<'_>,
    ) -> Result<(), Error> {
        let range = bounds(table, &range)?;
        match self.tables.find(table, &self.snapshot)? {
            Some(tree) => self.snapshot.scan_raw(tree, as_slices(&range), false, each),
            None => Ok(()),
        }
    }

    /// Calls `each` as [`scan`](Self::scan) does, from the last record of the range to the first.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get); errors that `each` returns.
    pub fn scan_back<'k, K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
        each: &mut EachRecord<'_>,
    ) -> Result<(), Error> {
        let range = bounds(table, &range)?;
        match self.tables.find(table, &self.snapshot)? {
            Some(tree) => self.snapshot.scan_raw(tree, as_slices(&range), true, each),
            None => Ok(()),
        }
    }

    /// Returns the position of the snapshot in the log.
    pub fn at(&self) -> u64 {
        self.snapshot.at()
    }
}

impl<'s, M: ConstMachine> TxnRef<'_, 's, M> {
    /// Returns the transaction, which requests the lock `first` next; see [`Runs::txn`].
    ///
    /// # Errors
    ///
    /// Those of [`Runs::txn`].
    #[inline]
    pub(crate) fn txn(
        &mut self,
        first: Option<Wanted<'_>>,
    ) -> Result<&mut Txn<'s, StoreSession<M>, M>, Error> {
        match self {
            Self::Txn(txn) => Ok(txn),
            Self::Runs(runs) => runs.txn(first),
        }
    }

    /// Reads a record into `value`; see [`Txn::get_into`].
    #[inline]
    pub(crate) fn get_into(
        &mut self,
        tree: u32,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        match self {
            Self::Txn(txn) => txn.get_into(tree, key, value),
            Self::Runs(runs) => runs.get_into(tree, key, value),
        }
    }
}

impl<'s, M: ConstMachine> WriteTxn<'_, 's, M> {
    /// Returns the tree of a table. Creates the table if it does not exist.
    #[inline]
    pub(crate) fn tree<K: Key, V: Value>(&mut self, table: &Table<K, V>) -> Result<u32, Error> {
        match self.tables.ready(table)? {
            Some(tree) => Ok(tree),
            None => {
                let tables = self.tables;
                tables.make_asked(&table.asked(), self.txn()?)
            }
        }
    }

    /// Returns the position at which the transaction is serialized if it ends without a lock;
    /// `None` if it has read nothing, or has begun to lock.
    #[cfg(feature = "internals")]
    pub fn reads_at(&self) -> Option<u64> {
        match &self.inner {
            TxnRef::Runs(runs) => runs.reads_at(),
            TxnRef::Txn(_) => None,
        }
    }

    /// Returns the transaction, which locks from now on what it reads.
    ///
    /// # Errors
    ///
    /// Those of [`Runs::txn`].
    #[inline]
    pub(crate) fn txn(&mut self) -> Result<&mut Txn<'s, StoreSession<M>, M>, Error> {
        self.inner.txn(None)
    }

    /// Runs `work` with the tree of a table and the bytes of a key. Creates the table if it does
    /// not exist, so that reading an absent key can be locked.
    #[inline]
    fn with_key<K: Key, V: Value, R>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        work: impl FnOnce(&mut TxnRef<'_, 's, M>, u32, &mut Scratch) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let tree = self.tree(table)?;
        self.tables.with_scratch(|scratch| {
            table.key_into(&key, &mut scratch.key)?;
            work(&mut self.inner, tree, scratch)
        })
    }

    /// Reads a value. No other transaction can change it until this one ends. O(log n).
    ///
    /// In the closure of a serializable [`Store::write`], the first reads of single records take no
    /// lock and wait for no writer: they return the state at the first of them, without uncommitted
    /// changes of others. The first other call, usually a write, locks these records. If one of
    /// them has changed since, that call fails with [`Error::ReadChanged`], and the closure is run
    /// again, with locks from its first call on. A closure that makes no other call locks nothing.
    /// To lock a record at once, call [`get_for_update`](Self::get_for_update).
    ///
    /// [`Store::write`]: crate::Store::write
    ///
    /// # Errors
    ///
    /// [`Error::Lock`], [`Error::ReadChanged`] and [`Error::TransactionTooOld`], after which the
    /// transaction can only be rolled back; [`Error::KeyTooLong`], [`Error::Value`]; errors of the
    /// [store's parts](Error).
    pub fn get<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        self.with_key(table, key, |txn, tree, Scratch { key, value }| {
            let there = txn.get_into(tree, key, value)?;
            there.then(|| table.value_of(value)).transpose()
        })
    }

    /// Reads a value as [`get`](Self::get) does; calls `with` for its bytes and returns the result.
    /// Allocates nothing.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    #[inline]
    pub fn get_with<K: Key, V: Value, R>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        with: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, Error> {
        self.with_key(table, key, |txn, tree, Scratch { key, value }| {
            let there = txn.get_into(tree, key, value)?;
            Ok(there.then(|| with(value)))
        })
    }

    /// Reads a value as [`get_for_update`](Self::get_for_update) does; calls `with` for its bytes
    /// and returns the result. Allocates nothing.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    pub fn get_for_update_with<K: Key, V: Value, R>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        with: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, Error> {
        self.with_key(table, key, |txn, tree, Scratch { key, value }| {
            let txn = txn.txn(Some((tree, key, U)))?;
            let there = txn.get_for_update_into(tree, key, value)?;
            Ok(there.then(|| with(value)))
        })
    }

    /// Reads a value that the transaction will write. No other transaction can read it for update
    /// until this one ends. With [`get`](Self::get), two transactions that both read and then write
    /// would deadlock.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    pub fn get_for_update<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        self.with_key(table, key, |txn, tree, Scratch { key, value }| {
            let txn = txn.txn(Some((tree, key, U)))?;
            let there = txn.get_for_update_into(tree, key, value)?;
            there.then(|| table.value_of(value)).transpose()
        })
    }

    /// Writes a value, whether the record exists or not. O(log n). A value that is longer than a
    /// quarter of a page is written in pieces, O(length).
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get); [`Error::ValueTooLong`].
    pub fn put<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error> {
        self.with_key(table, key, |txn, tree, scratch| {
            table.value_into(&value, &mut scratch.value);
            let txn = txn.txn(Some((tree, &scratch.key, X)))?;
            txn.write_raw(tree, &scratch.key, Some(&scratch.value))
        })
    }

    /// Writes a value as the last call of the transaction: the write and the commit are one log
    /// record, which saves one. If another call follows, it carries out the write first.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put). Some of them are returned by the commit, or by the call that
    /// follows instead; the transaction can then only be rolled back.
    pub fn put_final<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error> {
        self.with_key(table, key, |txn, tree, scratch| {
            table.value_into(&value, &mut scratch.value);
            let txn = txn.txn(Some((tree, &scratch.key, X)))?;
            txn.write_last(tree, &scratch.key, Some(&scratch.value))
        })
    }

    /// Writes a value if the record does not exist. O(log n).
    ///
    /// # Errors
    ///
    /// [`Error::Exists`], after which the transaction remains usable and nothing was written; those
    /// of [`put`](Self::put).
    pub fn insert<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error> {
        let (tree, key) = (self.tree(table)?, table.key(&key)?);
        let txn = self.inner.txn(Some((tree, &key, X)))?;
        txn.insert_raw(tree, &key, &table.value(&value))
    }

    /// Removes a record. Returns whether it existed.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    pub fn remove<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<bool, Error> {
        let (tree, key) = (self.tree(table)?, table.key(&key)?);
        let txn = self.inner.txn(Some((tree, &key, X)))?;
        let there = txn.get_for_update_into(tree, &key, &mut Vec::new())?;
        if there {
            txn.write_raw(tree, &key, None)?;
        }
        Ok(there)
    }

    /// Returns the records of a range, in order; `rev` of the iterator reverses the direction. The
    /// call reads all of them into memory, O(records); [`scan`](Self::scan) does not. At
    /// [`Level::Serializable`](crate::Level::Serializable), no other transaction can change them or
    /// insert between them until this one ends.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    pub fn range<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<Rows<'static, K, V>, Error> {
        self.rows(table, &bounds(table, &range)?)
    }

    /// Returns the records whose keys begin with these parts; see [`range`](Self::range).
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
    /// /// The lines of orders, by customer, order and line.
    /// const LINES: Table<(&str, u64, u16), u32> = Table::new("lines");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-prefix-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// let sum = store.write(|tx| {
    ///     for (order, line, price) in [(7, 1, 20), (7, 2, 5), (8, 1, 1)] {
    ///         tx.put(&LINES, ("ann", order, line), price)?;
    ///     }
    ///     // No other transaction can add a line to the order before the sum is written.
    ///     let lines = tx.prefix::<(&str, u64), _, _>(&LINES, ("ann", 7))?;
    ///     lines.map(|line| line.map(|(_, price)| price)).sum::<Result<u32, _>>()
    /// })?;
    /// assert_eq!(sum, 25);
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn prefix<P: Key, K: StartsWith<P>, V: Value>(
        &mut self,
        table: &Table<K, V>,
        prefix: P::Of<'_>,
    ) -> Result<Rows<'static, K, V>, Error> {
        self.rows(table, &prefixed::<P, K>(table.name(), &prefix)?)
    }

    fn rows<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: &Bounds,
    ) -> Result<Rows<'static, K, V>, Error> {
        let tree = self.tree(table)?;
        Ok(Rows::of(*table, all_of(self.txn()?, tree, range)?))
    }

    /// Calls `each` for the bytes of the records of a range, until it returns `false`. Locks the
    /// whole range, as [`range`](Self::range) does.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get); errors that `each` returns.
    pub fn scan<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
        each: &mut EachRecord<'_>,
    ) -> Result<(), Error> {
        let (range, tree) = (bounds(table, &range)?, self.tree(table)?);
        self.txn()?.scan_raw(tree, as_slices(&range), false, each)
    }

    /// Calls `each` as [`scan`](Self::scan) does, from the last record of the range to the first. A
    /// serializable transaction locks the whole range, also the part before the record at which
    /// `each` stopped, so choose a range that begins as late as possible.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get); errors that `each` returns.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Store, Table};
    ///
    /// const PRICES: Table<u64, u64> = Table::new("prices, by day");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-back-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// let price = store.write(|tx| {
    ///     for (day, price) in [(3, 20), (8, 25), (12, 30)] {
    ///         tx.put(&PRICES, day, price)?;
    ///     }
    ///     // The price set on day 10 or in the week before. Earlier days are not locked.
    ///     let mut price = None;
    ///     tx.scan_back(&PRICES, 3..=10, &mut |_, value| {
    ///         price = Some(PRICES.value_of(value)?);
    ///         Ok(false)
    ///     })?;
    ///     Ok(price)
    /// })?;
    /// assert_eq!(price, Some(25));
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn scan_back<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
        each: &mut EachRecord<'_>,
    ) -> Result<(), Error> {
        let (range, tree) = (bounds(table, &range)?, self.tree(table)?);
        self.txn()?.scan_raw(tree, as_slices(&range), true, each)
    }

    /// Removes all records of a range. Returns their number. O(records), with a lock and a log
    /// record for each; [`Store::drop_table`](crate::Store::drop_table) empties a large table in
    /// many transactions.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    pub fn remove_range<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<u64, Error> {
        let range = bounds(table, &range)?;
        let tree = self.tree(table)?;
        self.txn()?.remove_range_raw(tree, as_slices(&range))
    }

    /// Creates a savepoint, valid until the transaction ends or is rolled back to an earlier one.
    /// Carries out a deferred [last write](Self::put_final) first.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put) after a last write; [`Error::TransactionTooOld`]; errors of the
    /// [store's parts](Error).
    pub fn savepoint(&mut self) -> Result<Savepoint, Error> {
        self.txn()?.savepoint()
    }

    /// Rolls back to a savepoint, which remains valid. Later savepoints do not, and locks that were
    /// taken since are kept. O(records written since).
    ///
    /// # Errors
    ///
    /// [`Error::Savepoint`]; errors of the [store's parts](Error).
    pub fn roll_back_to(&mut self, savepoint: Savepoint) -> Result<(), Error> {
        self.txn()?.roll_back_to(savepoint)
    }
}

/// Reads up to a number of records of a range, forwards or backwards.
type Fetch<'r> = Box<dyn FnMut(Slices<'_>, bool, usize, &mut Batch) -> Result<(), Error> + 'r>;

/// The records of a range. After an error the iterator is at its end. From a snapshot it reads in
/// batches, so an error may come after some records.
pub struct Rows<'r, K: Key, V: Value> {
    table: Table<K, V>,
    range: Bounds,
    back: bool,
    /// `None` if the batch contains all remaining records.
    fetch: Option<Fetch<'r>>,
    batch: Batch,
    /// The records of the batch that have not been returned yet.
    left: Range<usize>,
    limit: usize,
    of: PhantomData<fn(K, V)>,
}

impl<'r, K: Key, V: Value> Rows<'r, K, V> {
    pub(crate) fn new(table: Table<K, V>, range: Bounds, fetch: Fetch<'r>) -> Self {
        let mut rows = Self::of(table, Batch::default());
        (rows.range, rows.fetch) = (range, Some(fetch));
        rows
    }

    /// Creates an iterator over records that have been read.
    pub(crate) fn of(table: Table<K, V>, batch: Batch) -> Self {
        let range = (Bound::Unbounded, Bound::Unbounded);
        let (back, fetch, left, limit) = (false, None, 0..batch.len(), FEW);
        Self { table, range, back, fetch, batch, left, limit, of: PhantomData }
    }

    /// Reverses the direction: the remaining records, the last one first.
    #[must_use]
    pub fn rev(mut self) -> Self {
        if self.fetch.is_some() {
            // The rest of the batch is read again, in the other order. If all of it was returned,
            // the range already begins after it.
            let next = core::mem::take(&mut self.left).next();
            if let Some(row) = next.and_then(|next| self.batch.get(next)) {
                let end = if self.back { &mut self.range.1 } else { &mut self.range.0 };
                *end = Bound::Included(row.key.to_vec());
            }
            // The next read must not continue from the batch's page, because the direction may
            // change again.
            self.batch.forget();
        }
        self.back = !self.back;
        self
    }

    #[allow(clippy::type_complexity, reason = "an item of an iterator")]
    fn take(&mut self) -> Result<Option<(K::Owned, V::Owned)>, Error> {
        loop {
            // With no more to read, the batch is in order, and is returned from its end if
            // backwards.
            let whole = self.fetch.is_none() && self.back;
            let index = if whole { self.left.next_back() } else { self.left.next() };
            if let Some(row) = index.and_then(|index| self.batch.get(index)) {
                if row.ghost {
                    continue;
                }
                return Ok(Some((self.table.key_of(row.key)?, self.table.value_of(row.value)?)));
            }
            let Some(fetch) = &mut self.fetch else { return Ok(None) };
            fetch(as_slices(&self.range), self.back, self.limit, &mut self.batch)?;
            (self.left, self.limit) = (0..self.batch.len(), self.limit.saturating_mul(4));
            match (self.batch.next(), self.back) {
                // The last batch is already in the order of the scan.
                (None, _) => (self.fetch, self.back) = (None, false),
                (Some(next), false) => self.range.0 = Bound::Included(next.to_vec()),
                (Some(next), true) => self.range.1 = Bound::Excluded(next.to_vec()),
            }
        }
    }
}

impl<K: Key, V: Value> Iterator for Rows<'_, K, V> {
    type Item = Result<(K::Owned, V::Owned), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.take();
        if next.is_err() {
            self.fetch = None;
            self.batch.clear();
        }
        next.transpose()
    }
}

impl<K: Key, V: Value> fmt::Debug for Rows<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("table", &self.table.name()).finish()
    }
}

impl<M: ConstMachine> fmt::Debug for ReadTxn<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadTxn({})", self.at())
    }
}

impl<M: ConstMachine> fmt::Debug for WriteTxn<'_, '_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WriteTxn")
    }
}

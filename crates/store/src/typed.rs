//! What a closure of [`Store::read`](crate::Store::read) and [`Store::write`](crate::Store::write)
//! has in hand: tables with types.

use core::fmt;
use core::marker::PhantomData;
use core::ops::{Bound, Range, RangeBounds};

use latchwork_machine::{ConstMachine, Shared as Machine};
use latchwork_tree::{Batch, Header, Row};

use crate::files::session::StoreSession;
use crate::idle::Scratch;
use crate::snapshot::{EachRecord, FEW, Slices};
use crate::table::{after, checked};
use crate::tables::Tables;
use crate::{Error, Key, Savepoint, Snapshot, StartsWith, Table, Txn, Value};

pub(crate) type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The tables at one position of the log: see [`Store::read`](crate::Store::read).
pub struct ReadTxn<'s, M: ConstMachine = Machine> {
    pub(crate) snapshot: Snapshot<'s, StoreSession<M>>,
    pub(crate) tables: Tables<'s, M>,
}

/// A transaction: see [`Store::write`](crate::Store::write).
///
/// Each of its calls makes the table that it names, if there is none, also one that only reads: an
/// empty table stays, whatever becomes of the transaction.
pub struct WriteTxn<'x, 's, M: ConstMachine = Machine> {
    pub(crate) txn: &'x mut Txn<'s, StoreSession<M>, M>,
    pub(crate) tables: Tables<'x, M>,
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

/// All records of a range, which the transaction holds from then on.
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
    /// [`Error::KeyTooLong`], [`Error::Value`]; [`Error::SnapshotTooOld`]; those of the parts.
    pub fn get<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        self.get_with(table, key, |value| table.value_of(value))?.transpose()
    }

    /// Reads a value's bytes, and returns what `with` makes of them: nothing is allocated.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
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

    /// The records of a range, in order; `rev` of the iterator goes backwards. They are read some
    /// at a time.
    ///
    /// # Errors
    ///
    /// [`Error::KeyTooLong`]; the iterator gives those of [`get`](Self::get).
    pub fn range<'k, K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<Rows<'_, K, V>, Error> {
        self.rows(table, bounds(table, &range)?)
    }

    /// The records whose keys begin with these parts, in order. For text that begins with some
    /// letters ask for a [`range`](Self::range): from `"user:"` to before `"user;"`.
    ///
    /// # Errors
    ///
    /// As [`range`](Self::range).
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

    /// Calls `each` for the bytes of the records of a range, until it returns `false`.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get); what `each` returns.
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

    /// As [`scan`](Self::scan), from the last record of the range to the first.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get); what `each` returns.
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

    /// Its position in the log.
    pub fn at(&self) -> u64 {
        self.snapshot.at()
    }
}

impl<'s, M: ConstMachine> WriteTxn<'_, 's, M> {
    /// The tree of a table, which is made if it is not there.
    #[inline]
    pub(crate) fn tree<K: Key, V: Value>(&mut self, table: &Table<K, V>) -> Result<u32, Error> {
        self.tables.make(table, self.txn)
    }

    /// Does something with a table's tree and a key's bytes. A table that is not there is made:
    /// what it has not is what the transaction has read.
    #[inline]
    fn with_key<K: Key, V: Value, R>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        work: impl FnOnce(&mut Txn<'s, StoreSession<M>, M>, u32, &mut Scratch) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let tree = self.tree(table)?;
        self.tables.with_scratch(|scratch| {
            table.key_into(&key, &mut scratch.key)?;
            work(self.txn, tree, scratch)
        })
    }

    /// Reads a value, which nobody changes until the transaction ends. O(log n).
    ///
    /// # Errors
    ///
    /// [`Error::Lock`], [`Error::TransactionTooOld`], with which the transaction can only be rolled
    /// back; [`Error::KeyTooLong`], [`Error::Value`]; those of the parts.
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

    /// Reads a value's bytes, and returns what `with` makes of them: nothing is allocated. As
    /// [`get`](Self::get).
    ///
    /// # Errors
    ///
    /// As there.
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

    /// Reads a value that the transaction means to write, as
    /// [`get_for_update`](Self::get_for_update), without a copy: calls `with` for its bytes.
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
            let there = txn.get_for_update_into(tree, key, value)?;
            Ok(there.then(|| with(value)))
        })
    }

    /// Reads a value that the transaction means to write. As [`get`](Self::get), and no other
    /// transaction reads it thus meanwhile: two that both read first and then write would wait for
    /// each other.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn get_for_update<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        self.with_key(table, key, |txn, tree, Scratch { key, value }| {
            let there = txn.get_for_update_into(tree, key, value)?;
            there.then(|| table.value_of(value)).transpose()
        })
    }

    /// Writes a value, whether there is one or not. O(log n); a value that is too long for a
    /// quarter of a page is written in pieces, O(length).
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get); [`Error::ValueTooLong`].
    pub fn put<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error> {
        self.with_key(table, key, |txn, tree, scratch| {
            table.value_into(&value, &mut scratch.value);
            txn.write_raw(tree, &scratch.key, Some(&scratch.value))
        })
    }

    /// Writes a value as the last thing that the transaction does: the write and the commit are one
    /// record of the log. What is called all the same comes behind the write. As
    /// [`put`](Self::put).
    ///
    /// # Errors
    ///
    /// As there, some of them from the commit, or from what is called instead of it: the
    /// transaction can only be rolled back then.
    pub fn put_final<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error> {
        self.with_key(table, key, |txn, tree, scratch| {
            table.value_into(&value, &mut scratch.value);
            txn.write_last(tree, &scratch.key, Some(&scratch.value))
        })
    }

    /// Writes a value where there is none.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]; as [`put`](Self::put).
    pub fn insert<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error> {
        let tree = self.tree(table)?;
        self.txn.insert_raw(tree, &table.key(&key)?, &table.value(&value))
    }

    /// Removes a record; says whether there was one.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    pub fn remove<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<bool, Error> {
        let (tree, key) = (self.tree(table)?, table.key(&key)?);
        let there = self.txn.get_for_update_into(tree, &key, &mut Vec::new())?;
        if there {
            self.txn.write_raw(tree, &key, None)?;
        }
        Ok(there)
    }

    /// The records of a range, in order, all of them read now; `rev` of the iterator goes
    /// backwards. Until the transaction ends nobody changes them, or writes between them.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    pub fn range<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<Rows<'static, K, V>, Error> {
        self.rows(table, &bounds(table, &range)?)
    }

    /// The records whose keys begin with these parts. As [`range`](Self::range).
    ///
    /// # Errors
    ///
    /// As there.
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
    ///     // Nobody adds a line to the order before the sum is written.
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
        Ok(Rows::of(*table, all_of(self.txn, tree, range)?))
    }

    /// Calls `each` for the bytes of the records of a range, until it returns `false`. The whole
    /// range is held, as by [`range`](Self::range).
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get); what `each` returns.
    pub fn scan<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
        each: &mut EachRecord<'_>,
    ) -> Result<(), Error> {
        let (range, tree) = (bounds(table, &range)?, self.tree(table)?);
        self.txn.scan_raw(tree, as_slices(&range), false, each)
    }

    /// As [`scan`](Self::scan), from the last record of the range to the first. A serializable
    /// transaction keeps others from writing anywhere in the range, also before the record at which
    /// `each` has stopped: let the range begin as late as may be.
    ///
    /// # Errors
    ///
    /// As there.
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
    ///     // The last one that was set on day 10, or in the week before: none before is held.
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
        self.txn.scan_raw(tree, as_slices(&range), true, each)
    }

    /// Removes all records of a range; says how many there were.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    pub fn remove_range<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<u64, Error> {
        let range = bounds(table, &range)?;
        let tree = self.tree(table)?;
        self.txn.remove_range_raw(tree, as_slices(&range))
    }

    /// Notes where the transaction is. What was [written last](Self::put_final) is written first.
    ///
    /// # Errors
    ///
    /// Behind a last write those of [`put`](Self::put); [`Error::TransactionTooOld`]; those of the
    /// parts.
    pub fn savepoint(&mut self) -> Result<Savepoint, Error> {
        self.txn.savepoint()
    }

    /// Undoes what was written since a savepoint.
    ///
    /// # Errors
    ///
    /// [`Error::Savepoint`]; those of the parts.
    pub fn roll_back_to(&mut self, savepoint: Savepoint) -> Result<(), Error> {
        self.txn.roll_back_to(savepoint)
    }
}

/// Fetches some more records of a range, forwards or back, at most so many.
type Fetch<'r> = Box<dyn FnMut(Slices<'_>, bool, usize, &mut Batch) -> Result<(), Error> + 'r>;

/// The records of a range. After an error there are no more.
pub struct Rows<'r, K: Key, V: Value> {
    table: Table<K, V>,
    range: Bounds,
    back: bool,
    /// None if all records are in the batch.
    fetch: Option<Fetch<'r>>,
    batch: Batch,
    /// Which records of the batch were not taken yet.
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

    /// Records that were read.
    pub(crate) fn of(table: Table<K, V>, batch: Batch) -> Self {
        let range = (Bound::Unbounded, Bound::Unbounded);
        let (back, fetch, left, limit) = (false, None, 0..batch.len(), FEW);
        Self { table, range, back, fetch, batch, left, limit, of: PhantomData }
    }

    /// The records that were not taken yet, the last one first.
    #[must_use]
    pub fn rev(mut self) -> Self {
        if self.fetch.is_some() {
            // What is in the batch is fetched again, in the other order. If all of it was taken,
            // the range begins behind that already.
            let next = core::mem::take(&mut self.left).next();
            if let Some(row) = next.and_then(|next| self.batch.get(next)) {
                let end = if self.back { &mut self.range.1 } else { &mut self.range.0 };
                *end = Bound::Included(row.key.to_vec());
            }
            // Nor does the next fetch go on from what it has of the page: it may be turned again.
            self.batch.forget();
        }
        self.back = !self.back;
        self
    }

    #[allow(clippy::type_complexity, reason = "an item of an iterator")]
    fn take(&mut self) -> Result<Option<(K::Owned, V::Owned)>, Error> {
        loop {
            // Without more to come, the batch is in order, and read from its end if backwards.
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
                // The last batch is in the order of the scan already.
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

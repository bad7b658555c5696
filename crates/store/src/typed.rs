//! What a closure of [`Store::read`](crate::Store::read) and [`Store::write`](crate::Store::write)
//! has in hand: tables with types.

use core::fmt;
use core::marker::PhantomData;
use core::ops::{Bound, RangeBounds};
use std::vec;

use latchwork_machine::ConstMachine;

use crate::files::worker::Worker;
use crate::snapshot::EachRecord;
use crate::table::after;
use crate::tables::Tables;
use crate::{Error, Key, Savepoint, Snapshot, StartsWith, Table, Txn, Value};

/// A key's and a value's bytes.
type Pair = (Vec<u8>, Vec<u8>);
type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The tables at one position of the log: see [`Store::read`](crate::Store::read).
pub struct ReadTxn<'s, M: ConstMachine> {
    pub(crate) snapshot: Snapshot<'s, Worker<M>>,
    pub(crate) tables: Tables<'s, M>,
}

/// A transaction: see [`Store::write`](crate::Store::write).
pub struct WriteTxn<'x, 's, M: ConstMachine> {
    pub(crate) txn: &'x mut Txn<'s, Worker<M>, M>,
    pub(crate) tables: Tables<'x, M>,
}

fn bounds<'k, K: Key, V>(
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

fn prefixed<P: Key, K: StartsWith<P>>(prefix: &P::Of<'_>) -> Bounds {
    let mut bytes = Vec::new();
    K::encode_prefix(prefix, &mut bytes);
    let range = after(&bytes, bytes.clone());
    (Bound::Included(range.start), Bound::Excluded(range.end))
}

fn as_slices(range: &Bounds) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (range.0.as_ref().map(Vec::as_slice), range.1.as_ref().map(Vec::as_slice))
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
        match self.tables.find(table.name())? {
            Some(tree) => self.snapshot.get(tree, table, key),
            None => Ok(None),
        }
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

    /// The records whose keys begin with these parts, in order.
    ///
    /// # Errors
    ///
    /// As [`range`](Self::range).
    pub fn prefix<P: Key, K: StartsWith<P>, V: Value>(
        &self,
        table: &Table<K, V>,
        prefix: P::Of<'_>,
    ) -> Result<Rows<'_, K, V>, Error> {
        self.rows(table, prefixed::<P, K>(&prefix))
    }

    fn rows<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        range: Bounds,
    ) -> Result<Rows<'_, K, V>, Error> {
        let tree = self.tables.find(table.name())?;
        let more = move |range: &Bounds, back: bool| match tree {
            Some(tree) => self.snapshot.some(tree, as_slices(range), back),
            None => Ok((Vec::new(), None)),
        };
        Ok(Rows::new(*table, range, Box::new(more)))
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
        match self.tables.find(table.name())? {
            Some(tree) => self.snapshot.scan_raw(tree, as_slices(&range), false, each),
            None => Ok(()),
        }
    }

    /// Its position in the log.
    pub fn at(&self) -> u64 {
        self.snapshot.at()
    }
}

impl<M: ConstMachine> WriteTxn<'_, '_, M> {
    /// Reads a value, which nobody changes until the transaction ends. O(log n).
    ///
    /// # Errors
    ///
    /// [`Error::Lock`]; [`Error::KeyTooLong`], [`Error::Value`]; those of the parts.
    pub fn get<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        // A table that is not there is made: what it has not is what the transaction has read.
        let tree = self.tables.make(table.name())?;
        self.txn.get(tree, table, key)
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
        let tree = self.tables.make(table.name())?;
        let value = self.txn.get_raw_for_update(tree, &table.key(&key)?)?;
        value.map(|bytes| table.value_of(&bytes)).transpose()
    }

    /// Writes a value, whether there is one or not. O(log n).
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get); [`Error::Tree`] for a record that is too long for a page.
    pub fn put<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error> {
        let tree = self.tables.make(table.name())?;
        self.txn.put(tree, table, key, value)
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
        let tree = self.tables.make(table.name())?;
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
        let (tree, key) = (self.tables.make(table.name())?, table.key(&key)?);
        let there = self.txn.get_raw_for_update(tree, &key)?.is_some();
        if there {
            self.txn.write_raw(tree, &key, None)?;
        }
        Ok(there)
    }

    /// The records of a range, in order, all of them read now. Until the transaction ends nobody
    /// changes them, or writes between them.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    pub fn range<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<Rows<'static, K, V>, Error> {
        let range = bounds(table, &range)?;
        let tree = self.tables.make(table.name())?;
        let mut all = Vec::new();
        self.txn.scan_raw(tree, as_slices(&range), false, &mut |key, value| {
            all.push((key.to_vec(), value.to_vec()));
            Ok(true)
        })?;
        let mut all = Some(all);
        let more = move |_: &Bounds, back: bool| {
            let mut all = all.take().unwrap_or_default();
            if back {
                all.reverse();
            }
            Ok((all, None))
        };
        Ok(Rows::new(*table, range, Box::new(more)))
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
        let tree = self.tables.make(table.name())?;
        let mut keys = Vec::new();
        self.txn.scan_raw(tree, as_slices(&range), false, &mut |key, _| {
            keys.push(key.to_vec());
            Ok(true)
        })?;
        for key in &keys {
            self.txn.write_raw(tree, key, None)?;
        }
        Ok(keys.len() as u64)
    }

    /// Notes where the transaction is.
    pub fn savepoint(&self) -> Savepoint {
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

/// Reads some more records of a range, and says what is left of it.
type More<'r> =
    Box<dyn FnMut(&Bounds, bool) -> Result<(Vec<Pair>, Option<Bound<Vec<u8>>>), Error> + 'r>;

/// The records of a range. After an error there are no more.
pub struct Rows<'r, K: Key, V: Value> {
    table: Table<K, V>,
    range: Bounds,
    back: bool,
    over: bool,
    ready: vec::IntoIter<Pair>,
    more: More<'r>,
    of: PhantomData<fn(K, V)>,
}

impl<'r, K: Key, V: Value> Rows<'r, K, V> {
    fn new(table: Table<K, V>, range: Bounds, more: More<'r>) -> Self {
        let ready = Vec::new().into_iter();
        Self { table, range, back: false, over: false, ready, more, of: PhantomData }
    }

    /// The same records, the last one first. To be called before any is taken.
    #[must_use]
    pub fn rev(mut self) -> Self {
        self.back = !self.back;
        self
    }

    #[allow(clippy::type_complexity, reason = "an item of an iterator")]
    fn take(&mut self) -> Result<Option<(K::Owned, V::Owned)>, Error> {
        loop {
            if let Some((key, value)) = self.ready.next() {
                return Ok(Some((self.table.key_of(&key)?, self.table.value_of(&value)?)));
            }
            if self.over {
                return Ok(None);
            }
            let (rows, next) = (self.more)(&self.range, self.back)?;
            self.ready = rows.into_iter();
            match (next, self.back) {
                (None, _) => self.over = true,
                (Some(next), false) => self.range.0 = next,
                (Some(next), true) => self.range.1 = next,
            }
        }
    }
}

impl<K: Key, V: Value> Iterator for Rows<'_, K, V> {
    type Item = Result<(K::Owned, V::Owned), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.take();
        self.over |= next.is_err();
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

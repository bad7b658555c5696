//! A read-write transaction of a thread.

use core::fmt;
use core::ops::{Range as Numbers, RangeBounds};
use std::sync::Arc;
use std::time::Instant;

use latchwork_store::elsewhere::{Named, pairs_of, rows_of};
use latchwork_store::{
    Batch, Error, Key, Multi, ReadOps, Record, Rows, Sequence, StartsWith, Table, Value, WriteOps,
};

use crate::blocking::{Blocking, reads};
use crate::calls::{Calls, prefix_of, range_of, values_in};
use crate::catalog::Catalog;
use crate::pool::Taken;
use crate::range::Range;
use crate::retry::End;
use crate::rows::fill;
use crate::session::Driven;
use crate::state::{Savepoint, Writing};

/// A transaction on a server: see [`Postgres::write`](crate::Postgres::write).
///
/// A call that returns what it has read waits for the server: one round trip.
/// [`put`](WriteOps::put) does not wait: it is sent with the next call that does, or with the
/// commit.
pub struct WriteTxn {
    inner: Blocking<Writing>,
}

impl WriteTxn {
    pub(crate) fn new(taken: Taken<Driven>, catalog: Arc<Catalog>, deadline: Instant) -> Self {
        Self { inner: Blocking::new(taken, catalog, deadline) }
    }

    fn call<T>(
        &mut self,
        call: impl AsyncFnOnce(&mut Calls<'_, Writing>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.inner.call(call)
    }

    /// Ends, and gives the connection back.
    pub(crate) fn end<R, E>(self, result: Result<R, E>) -> Result<R, End<E>> {
        self.inner.end(result)
    }

    /// Removes the record of a key that is bytes, and waits for the answer.
    pub(crate) fn remove_bytes<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: Vec<u8>,
    ) -> Result<bool, Error> {
        self.call(async |on| on.remove(table, key).await)
    }

    /// Writes a record of bytes, with the next statement that is waited for.
    pub(crate) fn put_bytes<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: Vec<u8>,
        value: Vec<u8>,
    ) -> Result<(), Error> {
        self.call(async |on| on.put(table, key, value).await)
    }

    /// Claims numbers of a sequence.
    pub(crate) fn claim(&mut self, sequence: &Sequence) -> Result<Numbers<u64>, Error> {
        self.call(async |on| on.claim(sequence).await)
    }

    fn rows<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: &Range,
    ) -> Result<Rows<'static, K, V>, Error> {
        let named = Named::new(table);
        let answer = self.call(async |on| on.scan(&named, range, false, usize::MAX).await)?;
        let mut batch = Batch::default();
        fill(&mut batch, &answer)?;
        Ok(rows_of(*table, batch))
    }
}

impl ReadOps<'static> for WriteTxn {
    reads!();

    fn range<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<Rows<'static, K, V>, Error> {
        self.rows(table, &range_of(table, &range)?)
    }

    fn prefix<P: Key, K: StartsWith<P>, V: Value>(
        &mut self,
        table: &Table<K, V>,
        prefix: P::Of<'_>,
    ) -> Result<Rows<'static, K, V>, Error> {
        self.rows(table, &prefix_of::<P, K>(table.name(), &prefix)?)
    }
}

impl WriteOps for WriteTxn {
    type Savepoint = Savepoint;

    fn get_for_update<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        let key = table.key(&key)?;
        self.call(async |on| on.get_for_update(table, key).await)
    }

    fn put<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error> {
        self.put_bytes(table, table.key(&key)?, table.value(&value))
    }

    fn insert<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error> {
        let (key, value) = (table.key(&key)?, table.value(&value));
        self.call(async |on| on.insert(table, key, value).await)
    }

    fn update<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        change: impl FnOnce(Option<V::Owned>) -> Option<V::Owned>,
    ) -> Result<Option<V::Owned>, Error> {
        let key = table.key(&key)?;
        self.call(async |on| on.update(table, key, change).await)
    }

    fn remove<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<bool, Error> {
        self.remove_bytes(table, table.key(&key)?)
    }

    fn remove_range<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<u64, Error> {
        let range = range_of(table, &range)?;
        self.call(async |on| on.remove_range(table, range).await)
    }

    fn pop_first<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error> {
        self.call(async |on| on.pop(table, false).await)
    }

    fn pop_last<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error> {
        self.call(async |on| on.pop(table, true).await)
    }

    fn remove_values<K: Key, V: Key>(
        &mut self,
        table: &Multi<K, V>,
        key: K::Of<'_>,
    ) -> Result<u64, Error> {
        let (table, range) = (pairs_of(table), values_in(table, &key)?);
        self.call(async |on| on.remove_range(table, range).await)
    }

    fn savepoint(&mut self) -> Result<Savepoint, Error> {
        self.call(async |on| on.savepoint().await)
    }

    fn roll_back_to(&mut self, savepoint: Savepoint) -> Result<(), Error> {
        self.call(async |on| on.roll_back_to(savepoint).await)
    }
}

impl fmt::Debug for WriteTxn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WriteTxn")
    }
}

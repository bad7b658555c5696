//! A read-only transaction of a thread.

use core::cell::RefCell;
use core::fmt;
use core::ops::RangeBounds;
use std::sync::Arc;
use std::time::Instant;

use latchwork_store::elsewhere::{Named, rows};
use latchwork_store::{Error, Key, ReadOps, Record, Rows, StartsWith, Table, TableInfo, Value};

use crate::blocking::{Blocking, reads};
use crate::calls::{Calls, prefix_of, range_of};
use crate::catalog::Catalog;
use crate::pool::Taken;
use crate::range::Range;
use crate::retry::End;
use crate::rows::{fill, most_after, next_of};
use crate::session::Driven;
use crate::state::Reading;

/// A snapshot on a server: see [`Postgres::read`](crate::Postgres::read).
///
/// The rows of a range are read some at a time.
pub struct ReadTxn {
    inner: RefCell<Blocking<Reading>>,
}

/// How many records of a range are read at first.
pub(crate) const FIRST: usize = 256;

impl ReadTxn {
    pub(crate) fn new(taken: Taken<Driven>, catalog: Arc<Catalog>, deadline: Instant) -> Self {
        Self { inner: RefCell::new(Blocking::new(taken, catalog, deadline)) }
    }

    fn call<T>(
        &self,
        call: impl AsyncFnOnce(&mut Calls<'_, Reading>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.inner.borrow_mut().call(call)
    }

    /// Ends, and gives the connection back: the reads are valid if this succeeds.
    pub(crate) fn end<R, E>(self, result: Result<R, E>) -> Result<R, End<E>> {
        self.inner.into_inner().end(result)
    }

    /// Reads the value of a key that is bytes.
    pub(crate) fn get_bytes<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: Vec<u8>,
    ) -> Result<Option<V::Owned>, Error> {
        self.call(async |on| on.get(table, key).await)
    }

    /// The catalog's entries of all tables.
    pub(crate) fn tables(&self) -> Result<Vec<TableInfo>, Error> {
        self.call(async |on| on.tables().await)
    }

    fn rows<K: Key, V: Value>(&self, table: &Table<K, V>, range: Range) -> Rows<'_, K, V> {
        let (named, mut most) = (Named::new(table), FIRST);
        rows(*table, range.bounds(), move |(from, to), back, wanted, batch| {
            let range = Range::new(from, to);
            let limit = wanted.max(FIRST).min(most);
            let scan = async |on: &mut Calls<'_, _>| on.scan(&named, &range, back, limit).await;
            let answer = self.call(scan)?;
            fill(batch, &answer)?;
            most = most_after(&answer);
            batch.set_next(next_of(&answer, back, limit)?.as_deref());
            Ok(())
        })
    }
}

impl<'r> ReadOps<'r> for &'r ReadTxn {
    reads!();

    fn range<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<Rows<'r, K, V>, Error> {
        let tx = *self;
        Ok(tx.rows(table, range_of(table, &range)?))
    }

    fn prefix<P: Key, K: StartsWith<P>, V: Value>(
        &mut self,
        table: &Table<K, V>,
        prefix: P::Of<'_>,
    ) -> Result<Rows<'r, K, V>, Error> {
        let tx = *self;
        Ok(tx.rows(table, prefix_of::<P, K>(table.name(), &prefix)?))
    }
}

impl fmt::Debug for ReadTxn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadTxn")
    }
}

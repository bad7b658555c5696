//! A transaction of a task.

use core::fmt;
use core::ops::RangeBounds;
use std::sync::Arc;

use latchwork_store::elsewhere::{Named, pairs_of};
use latchwork_store::{Error, Key, Multi, Record, ServerFailure, StartsWith, Table, Value};
use tokio::sync::Mutex;

use crate::calls::{Transaction, keys_of, prefix_of, range_of, values_in};
use crate::error::server;
use crate::link::Answer;
use crate::pool::Taken;
use crate::range::Range;
use crate::read::FIRST;
use crate::rows::{most_after, next_of, record_at};
use crate::session::Session;
use crate::state::{Reading, Savepoint, Steps, Writing};

/// A transaction of a task: [`AsyncReadTxn`] or [`AsyncWriteTxn`]. A clone is the same transaction;
/// calls that are made at the same time take turns.
///
/// A call that is dropped before its answer came ends the transaction, which runs again.
pub struct AsyncTxn<S> {
    /// None after its end.
    pub(crate) open: Arc<Mutex<Option<Open<S>>>>,
}

pub(crate) struct Open<S> {
    pub(crate) taken: Taken<Session>,
    pub(crate) transaction: Transaction<S>,
}

/// Makes a call of a transaction.
macro_rules! call {
    ($tx:ident, $call:ident($($with:expr),*)) => {{
        let mut open = $tx.open.lock().await;
        let $crate::task_txn::Open { taken, transaction } =
            open.as_mut().ok_or_else($crate::task_txn::ended)?;
        let session = taken.connection()?;
        let (mut on, limit) = transaction.begin(session);
        let done = limit.within(on.$call($($with),*)).await;
        transaction.answered(session, done)
    }};
}

pub(crate) use call;

/// The error of a call of a transaction that has ended.
pub(crate) fn ended() -> Error {
    server(ServerFailure::Other, "the transaction has ended")
}

/// A transaction of a task that only reads: see
/// [`AsyncPostgres::read`](crate::AsyncPostgres::read).
pub type AsyncReadTxn = AsyncTxn<Reading>;
/// A transaction of a task: see [`AsyncPostgres::write`](crate::AsyncPostgres::write).
pub type AsyncWriteTxn = AsyncTxn<Writing>;

impl<S: Steps> AsyncTxn<S> {
    pub(crate) fn new(open: Open<S>) -> Self {
        Self { open: Arc::new(Mutex::new(Some(open))) }
    }

    /// Ends all calls of clones.
    pub(crate) async fn close(&self) -> Option<Open<S>> {
        self.open.lock().await.take()
    }

    /// Reads a value.
    ///
    /// # Errors
    ///
    /// Those of [`ReadOps::get`](latchwork_store::ReadOps::get).
    pub async fn get<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        let key = table.key(&key)?;
        call!(self, get(table, key))
    }

    /// Reads the values of several keys in one round trip, in the order of the keys.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    pub async fn get_many<'k, K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        keys: impl IntoIterator<Item = K::Of<'k>>,
    ) -> Result<Vec<Option<V::Owned>>, Error> {
        let keys = keys_of(table, keys)?;
        call!(self, get_many(table, keys))
    }

    /// Returns whether a record exists.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    pub async fn contains<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<bool, Error> {
        let key = table.key(&key)?;
        call!(self, contains(table, key))
    }

    /// Reads the first record of a table.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    pub async fn first<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error> {
        call!(self, end(table, false))
    }

    /// Reads the last record of a table.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    pub async fn last<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error> {
        call!(self, end(table, true))
    }

    /// Counts the records of a range.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    pub async fn count<'k, K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<u64, Error> {
        let range = range_of(table, &range)?;
        call!(self, count(table, range))
    }

    /// The records of a range in order; some at a time are read.
    ///
    /// # Errors
    ///
    /// [`Error::KeyTooLong`].
    pub fn range<'k, K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<AsyncRows<S, K, V>, Error> {
        Ok(self.rows(table, range_of(table, &range)?))
    }

    /// The records whose keys begin with these parts: see
    /// [`ReadOps::prefix`](latchwork_store::ReadOps::prefix).
    ///
    /// # Errors
    ///
    /// [`Error::KeyTooLong`].
    pub fn prefix<P: Key, K: StartsWith<P>, V: Value>(
        &self,
        table: &Table<K, V>,
        prefix: P::Of<'_>,
    ) -> Result<AsyncRows<S, K, V>, Error> {
        Ok(self.rows(table, prefix_of::<P, K>(table.name(), &prefix)?))
    }

    fn rows<K: Key, V: Value>(&self, table: &Table<K, V>, range: Range) -> AsyncRows<S, K, V> {
        let (rest, answer) = (Some(range), Answer::default());
        AsyncRows {
            tx: self.clone(),
            table: *table,
            rest,
            back: false,
            limit: FIRST,
            answer,
            at: 0,
        }
    }
}

impl AsyncWriteTxn {
    /// Reads a value that this transaction may change: no other transaction changes it before the
    /// end of this one.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    pub async fn get_for_update<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        let key = table.key(&key)?;
        call!(self, get_for_update(table, key))
    }

    /// Writes a value. It is sent with the next call that waits, or with the commit.
    ///
    /// # Errors
    ///
    /// Those of [`WriteOps::put`](latchwork_store::WriteOps::put).
    pub async fn put<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error> {
        let (key, value) = (table.key(&key)?, table.value(&value));
        call!(self, put(table, key, value))
    }

    /// Writes a record that does not exist.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]; those of [`put`](Self::put).
    pub async fn insert<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error> {
        let (key, value) = (table.key(&key)?, table.value(&value));
        call!(self, insert(table, key, value))
    }

    /// Reads a value and writes what the closure makes of it, or removes the record; returns the
    /// new value.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put).
    pub async fn update<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        change: impl FnOnce(Option<V::Owned>) -> Option<V::Owned>,
    ) -> Result<Option<V::Owned>, Error> {
        let key = table.key(&key)?;
        call!(self, update(table, key, change))
    }

    /// Removes a record; returns whether it existed.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put).
    pub async fn remove<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<bool, Error> {
        let key = table.key(&key)?;
        call!(self, remove(table, key))
    }

    /// Removes the records of a range; returns how many there were.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put).
    pub async fn remove_range<'k, K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<u64, Error> {
        let range = range_of(table, &range)?;
        call!(self, remove_range(table, range))
    }

    /// Removes the first record of a table, and returns it.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put).
    pub async fn pop_first<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error> {
        call!(self, pop(table, false))
    }

    /// Removes the last record of a table, and returns it.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put).
    pub async fn pop_last<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error> {
        call!(self, pop(table, true))
    }

    /// Adds a value to a key of a multimap; returns whether it is new.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put).
    pub async fn insert_value<'v, K: Key, V: Key>(
        &self,
        table: &Multi<K, V>,
        key: K::Of<'v>,
        value: V::Of<'v>,
    ) -> Result<bool, Error> {
        match self.insert(pairs_of(table), (key, value), ()).await {
            Ok(()) => Ok(true),
            Err(Error::Exists { .. }) => Ok(false),
            Err(why) => Err(why),
        }
    }

    /// Removes all values of a key of a multimap; returns how many there were.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put).
    pub async fn remove_values<K: Key, V: Key>(
        &self,
        table: &Multi<K, V>,
        key: K::Of<'_>,
    ) -> Result<u64, Error> {
        let (table, range) = (pairs_of(table), values_in(table, &key)?);
        call!(self, remove_range(table, range))
    }

    /// Sets a savepoint.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put).
    pub async fn savepoint(&self) -> Result<Savepoint, Error> {
        call!(self, savepoint())
    }

    /// Undoes what this transaction has written since a savepoint.
    ///
    /// # Errors
    ///
    /// [`Error::Savepoint`] if it is not one of this transaction, or was undone.
    pub async fn roll_back_to(&self, savepoint: Savepoint) -> Result<(), Error> {
        call!(self, roll_back_to(savepoint))
    }
}

/// Records of a range, read some at a time.
pub struct AsyncRows<S, K, V> {
    tx: AsyncTxn<S>,
    table: Table<K, V>,
    /// The part of the range that was not requested yet.
    rest: Option<Range>,
    back: bool,
    limit: usize,
    answer: Answer,
    /// The next row of the answer.
    at: usize,
}

impl<S: Steps, K: Key, V: Value> AsyncRows<S, K, V> {
    /// The same records from the last one on, before the first was read.
    #[must_use]
    pub fn rev(mut self) -> Self {
        self.back = !self.back;
        self
    }

    /// The next record; none at the end.
    ///
    /// # Errors
    ///
    /// Those of [`AsyncTxn::get`].
    pub async fn next(&mut self) -> Result<Option<Record<K, V>>, Error> {
        while self.at == self.answer.rows.len() {
            let Some(range) = self.rest.take() else { return Ok(None) };
            let (named, back, limit) = (Named::new(&self.table), self.back, self.limit);
            let tx = &self.tx;
            let answer = call!(tx, scan(&named, &range, back, limit))?;
            let most = most_after(&answer);
            self.rest = next_of(&answer, back, limit)?.map(|next| match back {
                false => Range { from: next, to: range.to },
                true => Range { from: range.from, to: Some(next) },
            });
            (self.answer, self.at, self.limit) = (answer, 0, (limit * 4).min(most));
        }
        self.at += 1;
        record_at(&self.table, &self.answer, self.at - 1)
    }
}

impl<S> Clone for AsyncTxn<S> {
    fn clone(&self) -> Self {
        Self { open: self.open.clone() }
    }
}

impl<S> fmt::Debug for AsyncTxn<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncTxn").finish_non_exhaustive()
    }
}

impl<S, K, V> fmt::Debug for AsyncRows<S, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncRows").finish_non_exhaustive()
    }
}

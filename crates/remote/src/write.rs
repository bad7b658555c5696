//! A transaction that may write, for a thread.

use core::fmt;
use core::ops::RangeBounds;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use latchwork_store::elsewhere::{Named, bounds, pairs_of, prefixed, rows_of};
use latchwork_store::{
    Batch, Error, Key, Multi, ReadOps, Record, Rows, ServerFailure, StartsWith, Table, Value,
    WriteOps,
};

use crate::catalog::Catalog;
use crate::error::server;
use crate::link::{Answer, Link, Message, Params};
use crate::pool::Taken;
use crate::range::Range;
use crate::rows::{fill, number, record, value, values_of};
use crate::sql::Sql;
use crate::state::{VALUE_MAX, Writing};

/// A transaction on a server: see [`Postgres::write`](crate::Postgres::write).
///
/// A call that returns what it has read waits for the server: one round trip.
/// [`put`](WriteOps::put) does not wait: it is sent with the next call that does, or with the
/// commit.
pub struct WriteTxn<'d> {
    taken: Taken<'d>,
    catalog: &'d Catalog,
    state: Writing,
    deadline: Instant,
    /// Of all transactions of this process this one.
    id: u64,
}

/// Where a transaction on a server can be rolled back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint {
    transaction: u64,
    number: u64,
}

/// How many transactions this process has begun.
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// Refuses a value that no message has room for.
pub(crate) fn checked(table: &str, value: &[u8]) -> Result<(), Error> {
    if value.len() <= VALUE_MAX {
        return Ok(());
    }
    let length = value.len();
    let what = format!("a value of {length} bytes in {table}; a server takes {VALUE_MAX}");
    Err(server(ServerFailure::TooLarge, what))
}

impl<'d> WriteTxn<'d> {
    pub(crate) fn new(taken: Taken<'d>, catalog: &'d Catalog, deadline: Instant) -> Self {
        let id = BEGUN.fetch_add(1, Relaxed);
        Self { taken, catalog, state: Writing::default(), deadline, id }
    }

    /// Runs a step of the transaction on its connection.
    fn run<T>(
        &mut self,
        step: impl AsyncFnOnce(&Link, &mut Writing, &Catalog) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Self { taken, catalog, state, deadline, .. } = self;
        let session = taken.session()?;
        // Until it is ended, the connection is no other transaction's.
        session.is_clean = false;
        let done = session.run(*deadline, async |link| step(link, state, catalog).await);
        if let Err(why) = &done
            && is_lost(why)
        {
            // Also if there was no answer in time: what was sent is not known.
            state.set_failed(why);
        }
        done
    }

    fn read<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        statement: impl FnOnce(i64) -> (Sql, Params),
    ) -> Result<Answer, Error> {
        let named = Named::new(table);
        self.run(async |link, state, catalog| {
            let (sql, params) = statement(state.table(link, catalog, &named).await?);
            state.read(link, sql, params).await
        })
    }

    fn change<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        statement: impl FnOnce(i64) -> (Sql, Params),
    ) -> Result<u64, Error> {
        let named = Named::new(table);
        self.run(async |link, state, catalog| {
            let (sql, params) = statement(state.table(link, catalog, &named).await?);
            state.change(link, sql, params).await
        })
    }

    fn put_off<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        bytes: usize,
        statement: impl FnOnce(i64) -> (Sql, Params),
    ) -> Result<(), Error> {
        let named = Named::new(table);
        self.run(async |link, state, catalog| {
            let (sql, params) = statement(state.table(link, catalog, &named).await?);
            state.put_off(link, (Message::Bound(sql, params), bytes)).await
        })
    }

    /// Removes the record of a key that is bytes, and waits for the answer.
    pub(crate) fn remove_bytes<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: Vec<u8>,
    ) -> Result<bool, Error> {
        let removed =
            self.change(table, |tree| (Sql::Remove, vec![Box::new(tree), Box::new(key)]))?;
        Ok(removed > 0)
    }

    /// Writes a record of bytes, with the next statement that is waited for.
    pub(crate) fn put_bytes<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: Vec<u8>,
        value: Vec<u8>,
    ) -> Result<(), Error> {
        checked(table.name(), &value)?;
        let bytes = key.len() + value.len();
        self.put_off(table, bytes, |tree| {
            (Sql::Put, vec![Box::new(tree), Box::new(key), Box::new(value)])
        })
    }

    fn remove_later<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: Vec<u8>,
    ) -> Result<(), Error> {
        let bytes = key.len();
        self.put_off(table, bytes, |tree| (Sql::Remove, vec![Box::new(tree), Box::new(key)]))
    }

    fn get_for_update_bytes<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: Vec<u8>,
    ) -> Result<Answer, Error> {
        self.read(table, |tree| (Sql::GetForUpdate, vec![Box::new(tree), Box::new(key)]))
    }

    fn rows<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: &Range,
    ) -> Result<Rows<'static, K, V>, Error> {
        let answer = self.read(table, |tree| range.scan(tree, false, i64::MAX))?;
        let mut batch = Batch::default();
        fill(&mut batch, &answer)?;
        Ok(rows_of(*table, batch))
    }

    fn end<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        back: bool,
    ) -> Result<Option<Record<K, V>>, Error> {
        let all = Range { from: Vec::new(), to: None };
        record(table, &self.read(table, |tree| all.scan(tree, back, 1))?)
    }

    fn pop<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        sql: Sql,
    ) -> Result<Option<Record<K, V>>, Error> {
        let answer = self.read(table, |tree| (sql, vec![Box::new(tree)]))?;
        // Before it is removed: what cannot be read stays.
        let found = record(table, &answer)?;
        if let Some(row) = answer.rows.first() {
            self.remove_later(table, crate::rows::bytes(row, 0)?.to_vec())?;
        }
        Ok(found)
    }

    /// Why it can only be rolled back, if it can.
    pub(crate) fn failed(&self) -> Option<Error> {
        self.state.failed().cloned()
    }

    /// Commits, and gives the connection back.
    pub(crate) fn commit(mut self) -> Result<(), Error> {
        let Self { taken, catalog, state, deadline, .. } = &mut self;
        let session = taken.session()?;
        session.is_clean = false;
        let done = session.run(*deadline, async |link| state.commit(link, catalog).await);
        match done {
            Ok(()) => {
                session.is_clean = true;
                Ok(())
            }
            // There was no answer in time.
            Err(why) if state.failed().is_none() => Err(crate::error::commit_unknown(why)),
            Err(why) => {
                self.roll_back_now();
                Err(why)
            }
        }
    }

    /// Rolls back, and gives the connection back.
    pub(crate) fn roll_back(mut self) {
        self.roll_back_now();
    }

    fn roll_back_now(&mut self) {
        let (begun, failed) = (self.state.is_begun(), self.state.failed());
        if failed.is_some_and(|why| is_lost(why) || matches!(why, Error::CommitUnknown { .. })) {
            return;
        }
        let Ok(session) = self.taken.session() else { return };
        let state = &mut self.state;
        let soon = self.deadline.max(Instant::now() + Duration::from_secs(1));
        let is_over = !begun || session.run(soon, async |link| state.roll_back(link).await).is_ok();
        session.is_clean = is_over;
    }
}

/// Whether the connection is of no use any more.
fn is_lost(why: &Error) -> bool {
    matches!(why, Error::Server(why) if why.kind == ServerFailure::ConnectionLost)
}

impl ReadOps<'static> for WriteTxn<'_> {
    fn get<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        let key = table.key(&key)?;
        let answer = self.read(table, |tree| (Sql::Get, vec![Box::new(tree), Box::new(key)]))?;
        value(table, &answer)
    }

    fn get_many<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        keys: impl IntoIterator<Item = K::Of<'k>>,
    ) -> Result<Vec<Option<V::Owned>>, Error> {
        let keys: Result<Vec<_>, _> = keys.into_iter().map(|key| table.key(&key)).collect();
        let keys = keys?;
        let asked = keys.clone();
        let answer =
            self.read(table, |tree| (Sql::GetMany, vec![Box::new(tree), Box::new(asked)]))?;
        values_of(table, &keys, &answer)
    }

    fn contains<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<bool, Error> {
        let key = table.key(&key)?;
        let answer = self.read(table, |tree| (Sql::Get, vec![Box::new(tree), Box::new(key)]))?;
        Ok(!answer.rows.is_empty())
    }

    fn range<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<Rows<'static, K, V>, Error> {
        let (from, to) = bounds(table, &range)?;
        self.rows(table, &Range::new(from, to))
    }

    fn prefix<P: Key, K: StartsWith<P>, V: Value>(
        &mut self,
        table: &Table<K, V>,
        prefix: P::Of<'_>,
    ) -> Result<Rows<'static, K, V>, Error> {
        let (from, to) = prefixed::<P, K>(table.name(), &prefix)?;
        self.rows(table, &Range::new(from, to))
    }

    fn first<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error> {
        self.end(table, false)
    }

    fn last<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error> {
        self.end(table, true)
    }

    fn count<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<u64, Error> {
        let (from, to) = bounds(table, &range)?;
        let range = Range::new(from, to);
        number(&self.read(table, |tree| range.count(tree))?)
    }
}

impl WriteOps for WriteTxn<'_> {
    type Savepoint = Savepoint;

    fn get_for_update<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        let answer = self.get_for_update_bytes(table, table.key(&key)?)?;
        value(table, &answer)
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
        checked(table.name(), &value)?;
        let asked = key.clone();
        let inserted = self.change(table, |tree| {
            (Sql::Insert, vec![Box::new(tree), Box::new(asked), Box::new(value)])
        })?;
        match inserted {
            0 => Err(exists(table.name(), key)),
            _ => Ok(()),
        }
    }

    fn update<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        change: impl FnOnce(Option<V::Owned>) -> Option<V::Owned>,
    ) -> Result<Option<V::Owned>, Error> {
        let key = table.key(&key)?;
        let old = value(table, &self.get_for_update_bytes(table, key.clone())?)?;
        let was = old.is_some();
        let new = change(old);
        match &new {
            Some(new) => self.put_bytes(table, key, table.value(&V::lend(new)))?,
            None if was => self.remove_later(table, key)?,
            None => {}
        }
        Ok(new)
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
        let (from, to) = bounds(table, &range)?;
        let range = Range::new(from, to);
        self.change(table, |tree| range.remove(tree))
    }

    fn pop_first<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error> {
        self.pop(table, Sql::FirstForUpdate)
    }

    fn pop_last<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error> {
        self.pop(table, Sql::LastForUpdate)
    }

    fn remove_values<K: Key, V: Key>(
        &mut self,
        table: &Multi<K, V>,
        key: K::Of<'_>,
    ) -> Result<u64, Error> {
        let (from, to) = prefixed::<K, (K, V)>(table.name(), &key)?;
        let range = Range::new(from, to);
        self.change(pairs_of(table), |tree| range.remove(tree))
    }

    fn savepoint(&mut self) -> Result<Savepoint, Error> {
        let number = self.run(async |link, state, _| state.savepoint(link).await)?;
        Ok(Savepoint { transaction: self.id, number })
    }

    fn roll_back_to(&mut self, savepoint: Savepoint) -> Result<(), Error> {
        if savepoint.transaction != self.id {
            return Err(Error::Savepoint);
        }
        self.run(async |link, state, _| state.roll_back_to(link, savepoint.number).await)
    }
}

/// The error of an insert where a record exists. Its fields are the store's to make.
fn exists(table: &str, key: Vec<u8>) -> Error {
    Error::Exists { table: table.to_owned(), key }
}

impl fmt::Debug for WriteTxn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WriteTxn")
    }
}

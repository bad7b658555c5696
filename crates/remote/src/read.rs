//! A transaction that only reads, for a thread.

use core::cell::RefCell;
use core::fmt;
use core::ops::RangeBounds;
use std::time::{Duration, Instant};

use latchwork_store::elsewhere::{Named, bounds, prefixed, rows};
use latchwork_store::{
    Batch, Error, Key, ReadOps, Record, Rows, ServerFailure, StartsWith, Table, Value,
};

use crate::catalog::Catalog;
use crate::link::{Answer, Params};
use crate::pool::Taken;
use crate::range::{Range, behind};
use crate::rows::{bytes, fill, number, record, value, values_of};
use crate::sql::{Sql, tree_of};
use crate::state::Reading;

/// A snapshot on a server: see [`Postgres::read`](crate::Postgres::read).
///
/// The rows of a range are read some at a time.
pub struct ReadTxn<'d> {
    inner: RefCell<Inner<'d>>,
}

struct Inner<'d> {
    taken: Taken<'d>,
    catalog: &'d Catalog,
    state: Reading,
    deadline: Instant,
}

/// How many records of a range are read at first.
const FIRST: usize = 256;
/// And at most.
const MOST: usize = 16 << 10;

impl Inner<'_> {
    fn ask(
        &mut self,
        named: &Named,
        alone: bool,
        statement: impl Fn(i64) -> (Sql, Params) + Send + 'static,
    ) -> Result<Answer, Error> {
        let Self { taken, catalog, state, deadline } = self;
        let session = taken.session()?;
        session.is_clean = false;
        let done = session.run(*deadline, async |link| {
            let found = state.table(link, catalog, named).await?;
            let tree = tree_of(named.name);
            let sql = statement(tree).0;
            let answer = state.read(link, sql, move || statement(tree).1, alone).await?;
            if found.is_none() && !answer.rows.is_empty() && sql_reads_records(sql) {
                return Err(state.created_meanwhile());
            }
            Ok(answer)
        });
        match &done {
            Ok(_) if !state.is_begun() => session.is_clean = true,
            Err(why @ Error::Server(_)) => state.set_failed(why),
            _ => {}
        }
        done
    }
}

/// Whether a row of the answer is a record, or a number.
fn sql_reads_records(sql: Sql) -> bool {
    !matches!(sql, Sql::CountFrom | Sql::CountBetween)
}

impl<'d> ReadTxn<'d> {
    pub(crate) fn new(taken: Taken<'d>, catalog: &'d Catalog, deadline: Instant) -> Self {
        let state = Reading::default();
        Self { inner: RefCell::new(Inner { taken, catalog, state, deadline }) }
    }

    fn ask<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        alone: bool,
        statement: impl Fn(i64) -> (Sql, Params) + Send + 'static,
    ) -> Result<Answer, Error> {
        self.inner.borrow_mut().ask(&Named::new(table), alone, statement)
    }

    /// Why it can only be run again, if it can.
    pub(crate) fn failed(&self) -> Option<Error> {
        self.inner.borrow().state.failed().cloned()
    }

    /// Ends, and gives the connection back: what was read is valid if this succeeds.
    pub(crate) fn commit(self) -> Result<(), Error> {
        let Inner { mut taken, mut state, deadline, .. } = self.inner.into_inner();
        let session = taken.session()?;
        session.run(deadline, async |link| state.commit(link).await)?;
        session.is_clean = true;
        Ok(())
    }

    /// Ends without a result.
    pub(crate) fn roll_back(self) {
        let Inner { mut taken, mut state, deadline, .. } = self.inner.into_inner();
        let lost = |why: &Error| matches!(why, Error::Server(why) if why.kind == ServerFailure::ConnectionLost);
        if state.failed().is_some_and(lost) {
            return;
        }
        let Ok(session) = taken.session() else { return };
        let soon = deadline.max(Instant::now() + Duration::from_secs(1));
        session.is_clean = session.run(soon, async |link| state.roll_back(link).await).is_ok();
    }

    /// Reads the value of a key that is bytes.
    pub(crate) fn get_bytes<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: Vec<u8>,
    ) -> Result<Option<V::Owned>, Error> {
        let get = move |tree: i64| -> (Sql, Params) {
            (Sql::Get, vec![Box::new(tree), Box::new(key.clone())])
        };
        value(table, &self.ask(table, true, get)?)
    }

    fn rows<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        range: (core::ops::Bound<Vec<u8>>, core::ops::Bound<Vec<u8>>),
    ) -> Rows<'_, K, V> {
        let named = Named::new(table);
        rows(*table, range, move |(from, to), back, wanted, batch| {
            let range = Range::new(from, to);
            let limit = wanted.clamp(FIRST, MOST);
            let scan = move |tree| range.scan(tree, back, limit as i64);
            let answer = self.inner.borrow_mut().ask(&named, false, scan)?;
            fill(batch, &answer)?;
            go_on(batch, &answer, back, limit)
        })
    }

    fn end<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        back: bool,
    ) -> Result<Option<Record<K, V>>, Error> {
        let all = Range { from: Vec::new(), to: None };
        record(table, &self.ask(table, true, move |tree| all.scan(tree, back, 1))?)
    }
}

/// Says where the next batch begins, if there may be one.
fn go_on(batch: &mut Batch, answer: &Answer, back: bool, limit: usize) -> Result<(), Error> {
    let Some(last) = answer.rows.last().filter(|_| answer.rows.len() == limit) else {
        batch.set_next(None);
        return Ok(());
    };
    let last = bytes(last, 0)?;
    match back {
        false => batch.set_next(Some(&behind(last))),
        true => batch.set_next(Some(last)),
    }
    Ok(())
}

impl<'r> ReadOps<'r> for &'r ReadTxn<'_> {
    fn get<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        self.get_bytes(table, table.key(&key)?)
    }

    fn get_many<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        keys: impl IntoIterator<Item = K::Of<'k>>,
    ) -> Result<Vec<Option<V::Owned>>, Error> {
        let keys: Result<Vec<_>, _> = keys.into_iter().map(|key| table.key(&key)).collect();
        let keys = keys?;
        let asked = keys.clone();
        let get = move |tree: i64| -> (Sql, Params) {
            (Sql::GetMany, vec![Box::new(tree), Box::new(asked.clone())])
        };
        values_of(table, &keys, &self.ask(table, true, get)?)
    }

    fn contains<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<bool, Error> {
        let key = table.key(&key)?;
        let get = move |tree: i64| -> (Sql, Params) {
            (Sql::Get, vec![Box::new(tree), Box::new(key.clone())])
        };
        Ok(!self.ask(table, true, get)?.rows.is_empty())
    }

    fn range<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<Rows<'r, K, V>, Error> {
        let range = bounds(table, &range)?;
        let tx = *self;
        Ok(tx.rows(table, range))
    }

    fn prefix<P: Key, K: StartsWith<P>, V: Value>(
        &mut self,
        table: &Table<K, V>,
        prefix: P::Of<'_>,
    ) -> Result<Rows<'r, K, V>, Error> {
        let range = prefixed::<P, K>(table.name(), &prefix)?;
        let tx = *self;
        Ok(tx.rows(table, range))
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
        number(&self.ask(table, false, move |tree| range.count(tree))?)
    }
}

impl fmt::Debug for ReadTxn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadTxn")
    }
}

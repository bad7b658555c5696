//! The calls of transactions, asynchronous: threads and tasks make the same.

use core::ops::{Range as Numbers, RangeBounds};
use std::sync::Arc;
use std::time::{Duration, Instant};

use latchwork_store::elsewhere::{Named, bounds, prefixed};
use latchwork_store::{
    Error, Key, Multi, Record, Sequence, ServerFailure, StartsWith, Table, TableInfo, Value,
};

use crate::catalog::{Catalog, all_tables};
use crate::error::{commit_unknown, server};
use crate::link::{Answer, Link, Message, Params, params};
use crate::range::Range;
use crate::retry::End;
use crate::rows::{bytes, number, record, value, values_of};
use crate::session::{Limit, Session};
use crate::sql::Sql;
use crate::state::{Savepoint, Steps, VALUE_MAX, Writing, roll_back};

/// A transaction: all but its connection.
pub(crate) struct Transaction<S> {
    catalog: Arc<Catalog>,
    state: S,
    deadline: Instant,
    /// Whether a call has begun and not returned.
    is_called: bool,
}

/// A transaction during a call.
pub(crate) struct Calls<'c, S> {
    link: &'c Link,
    catalog: &'c Catalog,
    state: &'c mut S,
}

impl<S: Steps> Transaction<S> {
    pub(crate) fn new(catalog: Arc<Catalog>, deadline: Instant) -> Self {
        Self { catalog, state: S::default(), deadline, is_called: false }
    }

    /// Begins a call.
    pub(crate) fn begin<'c>(&'c mut self, session: &'c mut Session) -> (Calls<'c, S>, Limit<'c>) {
        self.refuse_unanswered();
        self.is_called = true;
        let (link, limit) = session.begin(self.deadline);
        (Calls { link, catalog: &self.catalog, state: &mut self.state }, limit)
    }

    /// Ends a call.
    pub(crate) fn answered<T>(
        &mut self,
        session: &mut Session,
        done: Result<T, Error>,
    ) -> Result<T, Error> {
        self.is_called = false;
        match &done {
            // Also after a timeout: it is not known which messages were sent.
            Err(why) if is_lost(why) => drop(self.state.fail(why.clone())),
            // Until it is ended, the connection is no other transaction's.
            _ => {
                let (begun, failed) = self.state.ends();
                session.is_clean = !*begun && failed.is_none();
            }
        }
        done
    }

    /// Ends a transaction in which a task has dropped a call before its answer came.
    fn refuse_unanswered(&mut self) {
        if self.is_called {
            let what = "a call was dropped before its answer came";
            self.state.fail(server(ServerFailure::ConnectionLost, what));
        }
    }

    /// Whether a commit has nothing to do: nothing was sent, or reads that were transactions of
    /// their own.
    pub(crate) fn has_no_work(&mut self) -> bool {
        !self.is_called && !self.state.has_work() && self.state.ends().1.is_none()
    }

    /// Ends with the result of its closure: commits, or rolls back.
    pub(crate) async fn end<R, E>(
        &mut self,
        session: &mut Session,
        result: Result<R, E>,
    ) -> Result<R, End<E>> {
        match result {
            Ok(value) => {
                self.commit(session).await?;
                Ok(value)
            }
            Err(returned) => {
                let failed = self.state.ends().1.clone().map(Box::new);
                self.roll_back(session).await;
                Err(End::Returned(returned, failed))
            }
        }
    }

    /// Commits, or rolls back if that fails.
    async fn commit(&mut self, session: &mut Session) -> Result<(), Error> {
        self.refuse_unanswered();
        let Self { catalog, state, deadline, .. } = self;
        if !state.has_work() {
            return state.check();
        }
        let (link, limit) = session.begin(*deadline);
        match limit.within(state.kind().commit(link, catalog)).await {
            Ok(()) => {
                session.is_clean = true;
                Ok(())
            }
            // There was no answer in time.
            Err(why) if state.ends().1.is_none() => {
                let why = if S::WRITES && state.is_begun() { commit_unknown(why) } else { why };
                Err(state.fail(why))
            }
            Err(why) => {
                self.roll_back(session).await;
                Err(why)
            }
        }
    }

    /// Rolls back.
    async fn roll_back(&mut self, session: &mut Session) {
        self.refuse_unanswered();
        let Self { state, deadline, .. } = self;
        let failed = state.ends().1.as_ref();
        if failed.is_some_and(|why| is_lost(why) || matches!(why, Error::CommitUnknown { .. })) {
            return;
        }
        if !state.is_begun() {
            session.is_clean = true;
            return;
        }
        let soon = (*deadline).max(Instant::now() + Duration::from_secs(1));
        let (link, limit) = session.begin(soon);
        session.is_clean = limit.within(roll_back(state, link)).await.is_ok();
    }
}

/// Whether the connection is of no use any more.
fn is_lost(why: &Error) -> bool {
    matches!(why, Error::Server(why) if why.kind == ServerFailure::ConnectionLost)
}

/// Refuses a value that no message has room for.
pub(crate) fn checked(table: &str, value: &[u8]) -> Result<(), Error> {
    if value.len() <= VALUE_MAX {
        return Ok(());
    }
    let length = value.len();
    let what = format!("a value of {length} bytes in {table}; a server takes {VALUE_MAX}");
    Err(server(ServerFailure::TooLarge, what))
}

impl<S: Steps> Calls<'_, S> {
    /// Reads. `alone`: the statement may be a transaction of its own.
    async fn ask<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        alone: bool,
        statement: impl FnOnce(i64) -> (Sql, Params),
    ) -> Result<Answer, Error> {
        self.state.kind().ask(self.link, self.catalog, &Named::new(table), alone, statement).await
    }

    pub(crate) async fn get<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: Vec<u8>,
    ) -> Result<Option<V::Owned>, Error> {
        value(table, &self.ask(table, true, |tree| (Sql::Get, params![tree, key])).await?)
    }

    pub(crate) async fn get_many<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        keys: Vec<Vec<u8>>,
    ) -> Result<Vec<Option<V::Owned>>, Error> {
        let asked = keys.clone();
        let get = |tree| (Sql::GetMany, params![tree, asked]);
        values_of(table, &keys, &self.ask(table, true, get).await?)
    }

    pub(crate) async fn contains<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: Vec<u8>,
    ) -> Result<bool, Error> {
        let answer = self.ask(table, true, |tree| (Sql::Get, params![tree, key])).await?;
        Ok(!answer.rows.is_empty())
    }

    /// Reads at most so many records of a range.
    pub(crate) async fn scan(
        &mut self,
        table: &Named,
        range: &Range,
        back: bool,
        limit: usize,
    ) -> Result<Answer, Error> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let scan = |tree| range.scan(tree, back, limit);
        self.state.kind().ask(self.link, self.catalog, table, false, scan).await
    }

    /// Reads the first record, or the last one.
    pub(crate) async fn end<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        back: bool,
    ) -> Result<Option<Record<K, V>>, Error> {
        let all = Range { from: Vec::new(), to: None };
        record(table, &self.ask(table, true, |tree| all.scan(tree, back, 1)).await?)
    }

    pub(crate) async fn count<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: Range,
    ) -> Result<u64, Error> {
        number(&self.ask(table, false, |tree| range.count(tree)).await?)
    }

    /// The catalog's entries of all tables.
    pub(crate) async fn tables(&mut self) -> Result<Vec<TableInfo>, Error> {
        self.state.check()?;
        all_tables(self.link).await
    }
}

impl Calls<'_, Writing> {
    /// Writes, and waits for the answer: how many records were changed.
    async fn change<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        statement: impl FnOnce(i64) -> (Sql, Params),
    ) -> Result<u64, Error> {
        let tree = self.state.table(self.link, self.catalog, &Named::new(table)).await?;
        self.state.change(self.link, statement(tree)).await
    }

    /// Writes with the next statement that is waited for.
    async fn put_off<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        size: usize,
        statement: impl FnOnce(i64) -> (Sql, Params),
    ) -> Result<(), Error> {
        let tree = self.state.table(self.link, self.catalog, &Named::new(table)).await?;
        let (sql, params) = statement(tree);
        self.state.put_off(self.link, (Message::Bound(sql, params), size)).await
    }

    pub(crate) async fn get_for_update<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: Vec<u8>,
    ) -> Result<Option<V::Owned>, Error> {
        let get = |tree| (Sql::GetForUpdate, params![tree, key]);
        value(table, &self.ask(table, false, get).await?)
    }

    pub(crate) async fn put<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: Vec<u8>,
        value: Vec<u8>,
    ) -> Result<(), Error> {
        checked(table.name(), &value)?;
        let size = key.len() + value.len();
        self.put_off(table, size, |tree| (Sql::Put, params![tree, key, value])).await
    }

    pub(crate) async fn insert<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: Vec<u8>,
        value: Vec<u8>,
    ) -> Result<(), Error> {
        checked(table.name(), &value)?;
        let asked = key.clone();
        let insert = |tree| (Sql::Insert, params![tree, asked, value]);
        match self.change(table, insert).await? {
            0 => Err(Error::Exists { table: table.name().to_owned(), key }),
            _ => Ok(()),
        }
    }

    pub(crate) async fn update<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: Vec<u8>,
        change: impl FnOnce(Option<V::Owned>) -> Option<V::Owned>,
    ) -> Result<Option<V::Owned>, Error> {
        let old = self.get_for_update(table, key.clone()).await?;
        let was = old.is_some();
        let new = change(old);
        match &new {
            Some(new) => self.put(table, key, table.value(&V::lend(new))).await?,
            None if was => self.remove_later(table, key).await?,
            None => {}
        }
        Ok(new)
    }

    pub(crate) async fn remove<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: Vec<u8>,
    ) -> Result<bool, Error> {
        Ok(self.change(table, |tree| (Sql::Remove, params![tree, key])).await? > 0)
    }

    async fn remove_later<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: Vec<u8>,
    ) -> Result<(), Error> {
        let size = key.len();
        self.put_off(table, size, |tree| (Sql::Remove, params![tree, key])).await
    }

    pub(crate) async fn remove_range<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: Range,
    ) -> Result<u64, Error> {
        self.change(table, |tree| range.remove(tree)).await
    }

    /// Reads the first record, or the last one, and removes it.
    pub(crate) async fn pop<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        back: bool,
    ) -> Result<Option<Record<K, V>>, Error> {
        let sql = if back { Sql::LastForUpdate } else { Sql::FirstForUpdate };
        let answer = self.ask(table, false, |tree| (sql, params![tree])).await?;
        // Before it is removed: a record that cannot be read stays.
        let found = record(table, &answer)?;
        if let Some(row) = answer.rows.first() {
            self.remove_later(table, bytes(row, 0)?.to_vec()).await?;
        }
        Ok(found)
    }

    /// Claims numbers of a sequence.
    pub(crate) async fn claim(&mut self, sequence: &Sequence) -> Result<Numbers<u64>, Error> {
        let key = SEQUENCES.key(&sequence.name())?;
        let from = self.get_for_update(&SEQUENCES, key.clone()).await?.unwrap_or(1);
        let to = from.saturating_add(sequence.batch_size());
        if from == to {
            return Err(sequence_over());
        }
        self.put(&SEQUENCES, key, SEQUENCES.value(&to)).await?;
        Ok(from..to)
    }

    pub(crate) async fn savepoint(&mut self) -> Result<Savepoint, Error> {
        self.state.savepoint(self.link).await
    }

    pub(crate) async fn roll_back_to(&mut self, savepoint: Savepoint) -> Result<(), Error> {
        self.state.roll_back_to(self.link, savepoint).await
    }
}

/// The table of sequences, which the store has as well.
const SEQUENCES: Table<&str, u64> = Table::new("latchwork sequences");

/// The error of a sequence without more numbers.
pub(crate) fn sequence_over() -> Error {
    Error::Engine("the sequence is at its end".to_owned())
}

/// The bytes of keys.
pub(crate) fn keys_of<'k, K: Key, V: Value>(
    table: &Table<K, V>,
    keys: impl IntoIterator<Item = K::Of<'k>>,
) -> Result<Vec<Vec<u8>>, Error> {
    keys.into_iter().map(|key| table.key(&key)).collect()
}

/// A range of the keys of a table.
pub(crate) fn range_of<'k, K: Key, V: Value>(
    table: &Table<K, V>,
    range: &impl RangeBounds<K::Of<'k>>,
) -> Result<Range, Error> {
    let (from, to) = bounds(table, range)?;
    Ok(Range::new(from, to))
}

/// The range of all keys of a table that begin with a prefix.
pub(crate) fn prefix_of<P: Key, K: StartsWith<P>>(
    table: &str,
    prefix: &P::Of<'_>,
) -> Result<Range, Error> {
    let (from, to) = prefixed::<P, K>(table, prefix)?;
    Ok(Range::new(from, to))
}

/// The range of the values of a key of a multimap.
pub(crate) fn values_in<K: Key, V: Key>(
    table: &Multi<K, V>,
    key: &K::Of<'_>,
) -> Result<Range, Error> {
    prefix_of::<K, (K, V)>(table.name(), key)
}

//! A transaction on a server, between two of its calls.
//!
//! | the transaction | sends | round trips |
//! |---|---|---|
//! | reads | `BEGIN` with the first, writes that were put off with the next | 1 |
//! | writes what nothing depends on | nothing yet | 0 |
//! | commits | the writes that were put off, and `COMMIT` | 1 |
//!
//! Invariants: no write is sent before the server has answered `BEGIN`, because a write behind a
//! `BEGIN` that failed would commit by itself. Each answer to a write is looked at before the
//! transaction counts as committed. After an error nothing more is sent but `ROLLBACK`.
//!
//! A transaction that only reads sends its first read alone: one statement is a transaction. If
//! a second read comes, both are sent in a transaction, and the first must return what it has
//! returned; so a transaction of one read takes one round trip, and one of several takes no more
//! than with `BEGIN` at once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use latchwork_store::elsewhere::Named;
use latchwork_store::{Error, ServerFailure};
use tokio_postgres::Row;

use crate::catalog::{Catalog, Found, add, compare, find, fits, wanted};
use crate::error::{commit_unknown, leaves_commit_unknown, of, server};
use crate::link::{Answer, Link, Message, Params, text};
use crate::rows::{cell, number};
use crate::sql::{BEGIN, BEGIN_READ, Sql, tree_of};

/// The largest value that is sent. PostgreSQL's messages and fields have less than 1 GiB.
pub const VALUE_MAX: usize = (1 << 30) - (1 << 16);

/// A transaction that may write.
#[derive(Default)]
pub struct Writing {
    begun: bool,
    /// Statements that nothing depends on yet.
    put_off: Vec<Message>,
    put_off_bytes: usize,
    /// Tables that this transaction has found or added, and that are not known before it commits.
    fresh: Vec<Named>,
    /// The number of savepoints so far, and the savepoints that exist.
    savepoints: u64,
    alive: BTreeSet<u64>,
    /// Of all transactions of this process with savepoints this one.
    id: Option<u64>,
    failed: Option<Error>,
}

/// Where a transaction on a server can be rolled back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint {
    transaction: u64,
    number: u64,
}

/// How many transactions of this process have set savepoints.
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// Writes that were put off are sent without a read when they have so many bytes.
const PUT_OFF_MAX: usize = 4 << 20;
/// And when they are so many.
const PUT_OFF_COUNT: usize = 10_000;

/// The first error of answers: later ones are its consequences.
fn first_error<'a>(
    answers: impl IntoIterator<Item = &'a Result<Answer, tokio_postgres::Error>>,
) -> Option<Error> {
    answers.into_iter().find_map(|answer| answer.as_ref().err()).map(of)
}

/// Both kinds of transactions. Functions of a trait that return futures would do, but a compiler
/// that has to prove such a future `Send` for all lifetimes gives up.
pub enum Kind<'s> {
    /// A transaction that only reads.
    Reading(&'s mut Reading),
    /// A transaction that may write.
    Writing(&'s mut Writing),
}

impl Kind<'_> {
    /// Reads. `alone`: the statement may be a transaction of its own.
    pub(crate) async fn ask(
        self,
        link: &Link,
        catalog: &Catalog,
        named: &Named,
        alone: bool,
        statement: impl FnOnce(i64) -> (Sql, Params),
    ) -> Result<Answer, Error> {
        match self {
            Self::Reading(reading) => reading.ask(link, catalog, named, alone, statement).await,
            Self::Writing(writing) => writing.ask(link, catalog, named, statement).await,
        }
    }

    /// Commits, or ends a read-only transaction: the reads are valid if this succeeds.
    pub(crate) async fn commit(self, link: &Link, catalog: &Catalog) -> Result<(), Error> {
        match self {
            Self::Reading(reading) => reading.commit(link).await,
            Self::Writing(writing) => writing.commit(link, catalog).await,
        }
    }
}

/// The common part of both kinds of transactions.
pub trait Steps: Default + Send {
    /// Whether a commit without an answer leaves open whether something was written.
    const WRITES: bool;

    /// Whether the server has a transaction of it, and why it can only be rolled back, if it can.
    fn ends(&mut self) -> (&mut bool, &mut Option<Error>);

    /// Whether the server has a transaction of it.
    fn is_begun(&mut self) -> bool {
        *self.ends().0
    }

    /// Whether a commit has anything to send.
    fn has_work(&mut self) -> bool {
        self.is_begun()
    }

    /// Notes why nothing more may be sent.
    fn fail(&mut self, why: Error) -> Error {
        self.ends().1.get_or_insert_with(|| why.clone());
        why
    }

    /// Refuses to continue after a failure.
    fn check(&mut self) -> Result<(), Error> {
        match self.ends().1 {
            Some(why) => Err(Error::Aborted { why: Box::new(why.clone()) }),
            None => Ok(()),
        }
    }

    /// Which kind it is.
    fn kind(&mut self) -> Kind<'_>;
}

/// Rolls back. If that fails, the caller closes the connection.
pub(crate) async fn roll_back(state: &mut impl Steps, link: &Link) -> Result<(), Error> {
    if !core::mem::take(state.ends().0) {
        return Ok(());
    }
    first_error(&link.exchange(&[text("ROLLBACK")]).await).map_or(Ok(()), Err)
}

impl Writing {
    /// Sends what was put off and then `last`; returns the answer to that.
    async fn send(
        &mut self,
        link: &Link,
        last: Option<Message>,
        reads: bool,
    ) -> Result<Answer, Error> {
        self.check()?;
        let mut sends = Vec::new();
        if !self.begun {
            if !self.put_off.is_empty() || !reads {
                let answers = link.exchange(&[text(BEGIN)]).await;
                if let Some(why) = first_error(&answers) {
                    return Err(self.fail(why));
                }
                self.begun = true;
            } else {
                sends.push(text(BEGIN));
            }
        }
        sends.append(&mut self.put_off);
        self.put_off_bytes = 0;
        sends.extend(last);
        let mut answers = link.exchange(&sends).await;
        self.begun = true;
        if let Some(why) = first_error(&answers) {
            return Err(self.fail(why));
        }
        Ok(answers.pop().and_then(Result::ok).unwrap_or_default())
    }

    /// Writes, and waits for the answer.
    pub(crate) async fn change(
        &mut self,
        link: &Link,
        (sql, params): (Sql, Params),
    ) -> Result<u64, Error> {
        Ok(self.send(link, Some(Message::Bound(sql, params)), false).await?.changed)
    }

    /// Writes with the next statement that is waited for.
    pub(crate) async fn put_off(
        &mut self,
        link: &Link,
        (send, bytes): (Message, usize),
    ) -> Result<(), Error> {
        self.check()?;
        self.put_off.push(send);
        self.put_off_bytes += bytes;
        if self.put_off_bytes >= PUT_OFF_MAX || self.put_off.len() >= PUT_OFF_COUNT {
            self.send(link, None, false).await?;
        }
        Ok(())
    }

    /// The number of a table, whose types are compared at its first use, and which is added to the
    /// catalog if it is not there.
    pub(crate) async fn table(
        &mut self,
        link: &Link,
        catalog: &Catalog,
        named: &Named,
    ) -> Result<i64, Error> {
        let tree = tree_of(named.name);
        let is_it = |fresh: &Named| fresh.tag == named.tag && fresh.name == named.name;
        if catalog.knows(named) || self.fresh.iter().any(is_it) {
            self.check()?;
            return Ok(tree);
        }
        fits(named)?;
        let answer = self.send(link, Some(find(named)), true).await?;
        let found = compare(named, answer.rows.first())?;
        if !matches!(found, Found::Typed) {
            let is_there = matches!(found, Found::Untyped);
            self.put_off(link, (add(named.name, &wanted(named), is_there), 0)).await?;
        }
        self.fresh.push(*named);
        Ok(tree)
    }

    /// Sets a savepoint.
    pub(crate) async fn savepoint(&mut self, link: &Link) -> Result<Savepoint, Error> {
        self.savepoints += 1;
        let number = self.savepoints;
        self.put_off(link, (Message::Text(format!("SAVEPOINT s{number}").into()), 0)).await?;
        self.alive.insert(number);
        let transaction = *self.id.get_or_insert_with(|| BEGUN.fetch_add(1, Relaxed));
        Ok(Savepoint { transaction, number })
    }

    /// Undoes what was written since a savepoint.
    pub(crate) async fn roll_back_to(
        &mut self,
        link: &Link,
        Savepoint { transaction, number }: Savepoint,
    ) -> Result<(), Error> {
        self.check()?;
        if self.id != Some(transaction) || !self.alive.contains(&number) {
            return Err(Error::Savepoint);
        }
        self.alive.split_off(&(number + 1));
        // The tables that were added since are no more.
        self.fresh.clear();
        self.put_off(link, (Message::Text(format!("ROLLBACK TO SAVEPOINT s{number}").into()), 0))
            .await
    }
}

impl Steps for Writing {
    const WRITES: bool = true;

    fn ends(&mut self) -> (&mut bool, &mut Option<Error>) {
        (&mut self.begun, &mut self.failed)
    }

    fn has_work(&mut self) -> bool {
        self.begun || !self.put_off.is_empty()
    }

    fn kind(&mut self) -> Kind<'_> {
        Kind::Writing(self)
    }
}

impl Writing {
    /// Reads.
    async fn ask(
        &mut self,
        link: &Link,
        catalog: &Catalog,
        named: &Named,
        statement: impl FnOnce(i64) -> (Sql, Params),
    ) -> Result<Answer, Error> {
        let (sql, params) = statement(self.table(link, catalog, named).await?);
        self.send(link, Some(Message::Bound(sql, params)), true).await
    }

    /// Commits.
    async fn commit(&mut self, link: &Link, catalog: &Catalog) -> Result<(), Error> {
        self.check()?;
        if !self.begun {
            let answers = link.exchange(&[text(BEGIN)]).await;
            if let Some(why) = first_error(&answers) {
                return Err(self.fail(why));
            }
            self.begun = true;
        }
        let mut sends = core::mem::take(&mut self.put_off);
        sends.push(text("COMMIT"));
        let mut answers = link.exchange(&sends).await;
        let end = answers.pop();
        // The server answers in order: if it has refused a write, it has not committed. A lost
        // connection fails the answers of writes and that of the commit.
        let refused = answers.iter().filter_map(|answer| answer.as_ref().err());
        if let Some(why) = refused.clone().find(|why| why.as_db_error().is_some()) {
            return Err(self.fail(of(why)));
        }
        match end {
            Some(Err(why)) if leaves_commit_unknown(&why) => {
                Err(self.fail(commit_unknown(of(&why))))
            }
            Some(Err(why)) => Err(self.fail(of(&why))),
            _ if refused.count() > 0 => {
                Err(self.fail(server(ServerFailure::Other, "an answer to a write is missing")))
            }
            _ => {
                self.begun = false;
                self.fresh.drain(..).for_each(|named| catalog.insert(&named));
                Ok(())
            }
        }
    }
}

/// A read that was sent alone.
struct Alone {
    sql: Sql,
    params: Params,
    rows: Arc<Vec<Row>>,
}

/// A transaction that only reads.
#[derive(Default)]
pub struct Reading {
    begun: bool,
    alone: Option<Alone>,
    failed: Option<Error>,
}

/// Whether two answers to a statement have the same rows.
fn are_same(one: &[Row], other: &[Row]) -> Result<bool, Error> {
    if one.len() != other.len() {
        return Ok(false);
    }
    for (one, other) in one.iter().zip(other) {
        for at in 0..one.len() {
            if cell(one, at)? != cell(other, at)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

impl Reading {
    /// Reads. `alone`: if nothing was read before, the statement may be a transaction of its own.
    pub(crate) async fn read(
        &mut self,
        link: &Link,
        (sql, params): (Sql, Params),
        alone: bool,
    ) -> Result<Answer, Error> {
        self.check()?;
        let mut sends = Vec::new();
        let before = self.alone.take();
        let is_alone = alone && !self.begun && before.is_none();
        if !self.begun && !is_alone {
            sends.push(text(BEGIN_READ));
        }
        if let Some(before) = &before {
            sends.push(Message::Bound(before.sql, before.params.clone()));
        }
        sends.push(Message::Bound(sql, params.clone()));
        let mut answers = link.exchange(&sends).await;
        self.begun |= !is_alone;
        if let Some(why) = first_error(&answers) {
            return Err(self.fail(why));
        }
        let answer = answers.pop().and_then(Result::ok).unwrap_or_default();
        if let Some(before) = before
            && let Some(Ok(again)) = answers.pop()
            && !are_same(&again.rows, &before.rows)?
        {
            let what = "what the transaction has read first has changed";
            return Err(self.fail(server(ServerFailure::Conflict, what)));
        }
        if is_alone {
            self.alone = Some(Alone { sql, params, rows: answer.rows.clone() });
        }
        Ok(answer)
    }

    /// The number of a table, and whether the catalog has it: none if it is not there yet.
    pub(crate) async fn table(
        &mut self,
        link: &Link,
        catalog: &Catalog,
        named: &Named,
    ) -> Result<Option<i64>, Error> {
        let tree = tree_of(named.name);
        if catalog.knows(named) {
            return Ok(Some(tree));
        }
        fits(named)?;
        // A row of the catalog does not change: it need not be read in the transaction.
        let answers = link.exchange(&[find(named)]).await;
        if let Some(why) = first_error(&answers) {
            return Err(self.fail(why));
        }
        let row = answers.first().and_then(|answer| answer.as_ref().ok());
        match compare(named, row.and_then(|answer| answer.rows.first()))? {
            Found::Absent => Ok(None),
            Found::Untyped => Ok(Some(tree)),
            Found::Typed => {
                catalog.insert(named);
                Ok(Some(tree))
            }
        }
    }
}

impl Steps for Reading {
    const WRITES: bool = false;

    fn ends(&mut self) -> (&mut bool, &mut Option<Error>) {
        (&mut self.begun, &mut self.failed)
    }

    fn kind(&mut self) -> Kind<'_> {
        Kind::Reading(self)
    }
}

impl Reading {
    /// Reads. `alone`: the statement may be a transaction of its own.
    async fn ask(
        &mut self,
        link: &Link,
        catalog: &Catalog,
        named: &Named,
        alone: bool,
        statement: impl FnOnce(i64) -> (Sql, Params),
    ) -> Result<Answer, Error> {
        let found = self.table(link, catalog, named).await?;
        let (sql, params) = statement(tree_of(named.name));
        let answer = self.read(link, (sql, params), alone).await?;
        if found.is_none() && has_records(sql, &answer)? {
            // Its types were not compared.
            let what = "a table was created during the transaction";
            return Err(self.fail(server(ServerFailure::Conflict, what)));
        }
        Ok(answer)
    }

    /// Ends. The values that it has read are valid if this succeeds.
    async fn commit(&mut self, link: &Link) -> Result<(), Error> {
        self.check()?;
        let answers = link.exchange(&[text("COMMIT")]).await;
        if let Some(why) = first_error(&answers) {
            return Err(self.fail(why));
        }
        self.begun = false;
        Ok(())
    }
}

/// Whether the answer has a record.
fn has_records(sql: Sql, answer: &Answer) -> Result<bool, Error> {
    let mut rows = answer.rows.iter();
    Ok(match sql {
        Sql::CountFrom | Sql::CountBetween => number(answer)? > 0,
        Sql::GetMany => {
            rows.try_fold(false, |has, row| Ok::<_, Error>(has || cell(row, 1)?.is_some()))?
        }
        _ => rows.len() > 0,
    })
}

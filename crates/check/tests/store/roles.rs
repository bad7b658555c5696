//! Roles of dialogues: the steps that a thread or a process can run in a transaction.
//!
//! On files a writing transaction is an object, because only objects can be prepared. In memory it
//! is a closure, which is run until it commits.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use latchwork_check::memory_engine::Memory;
use latchwork_lockmgr::{Error as Lock, Session};
use latchwork_machine::Shared;
use latchwork_store::internals::{self, Snapshot, Txn};
use latchwork_store::{Error, ReadTxn, Savepoint, Store, Table, TxnOptions, WriteTxn};

use crate::dialogue::Level;

type Rows = Vec<(u64, i64)>;

/// An end of a table, and whether its record is removed.
#[derive(Clone, Copy)]
struct End {
    last: bool,
    take: bool,
}

/// The steps of a transaction in any engine. Rows from 100 on are in a second table.
trait Hand {
    fn get(&mut self, row: u64) -> Result<Option<i64>, Error>;
    fn range(&mut self, from: u64, to: u64) -> Result<Rows, Error>;

    /// This step and those below write; a snapshot has none of them.
    fn get_for_update(&mut self, _row: u64) -> Result<Option<i64>, Error> {
        panic!("it only reads")
    }

    fn put(&mut self, _row: u64, _value: i64) -> Result<(), Error> {
        panic!("it only reads")
    }

    fn put_final(&mut self, _row: u64, _value: i64) -> Result<(), Error> {
        panic!("it only reads")
    }

    fn insert(&mut self, _row: u64, _value: i64) -> Result<(), Error> {
        panic!("it only reads")
    }

    fn remove(&mut self, _row: u64) -> Result<bool, Error> {
        panic!("it only reads")
    }

    fn remove_range(&mut self, _from: u64, _to: u64) -> Result<u64, Error> {
        panic!("it only reads")
    }

    /// The first or last row of the first table.
    fn end(&mut self, _which: End) -> Result<Option<(u64, i64)>, Error> {
        panic!("only a store has it: {STORES_ALONE:?}")
    }

    fn savepoint(&mut self) -> Result<Savepoint, Error> {
        panic!("it only reads")
    }

    fn roll_back_to(&mut self, _savepoint: Savepoint) -> Result<(), Error> {
        panic!("it only reads")
    }
}

/// Steps that the engine in memory does not have.
const STORES_ALONE: [&str; 5] = ["first", "last", "pop-first", "pop-last", "prepare"];

/// Returns whether only a store on files has this step.
pub(crate) fn is_of_stores_alone(step: &str) -> bool {
    STORES_ALONE.contains(&step.split(' ').next().unwrap_or_default())
}

/// The savepoints of a transaction, by name.
type Savepoints = BTreeMap<String, Savepoint>;

fn number(word: &str) -> i64 {
    word.parse().unwrap_or_else(|_| panic!("no number: {word}"))
}

fn row(word: &str) -> u64 {
    number(word) as u64
}

fn rows(rows: &[(u64, i64)]) -> String {
    let rows = rows.iter().map(|(row, value)| format!("{row}={value}"));
    let rows = rows.collect::<Vec<_>>().join(" ");
    if rows.is_empty() { "none".to_owned() } else { rows }
}

/// Runs a step and returns its answer.
fn step(hand: &mut dyn Hand, text: &str, savepoints: &mut Savepoints) -> Result<String, Error> {
    let value = |found: Option<i64>| found.map_or("none".to_owned(), |value| value.to_string());
    let done = |_: ()| "done".to_owned();
    let end = |found: Option<(u64, i64)>| rows(found.as_slice());
    let words: Vec<_> = text.split_whitespace().collect();
    let said = match words.as_slice() {
        // The first step begins the transaction in any case.
        ["begin" | "begin-no-wait"] => Ok("done".to_owned()),
        ["get", at] => hand.get(row(at)).map(value),
        ["get-for-update", at] => hand.get_for_update(row(at)).map(value),
        ["put", at, to] => hand.put(row(at), number(to)).map(done),
        ["put-last", at, to] => hand.put_final(row(at), number(to)).map(done),
        ["insert", at, to] => hand.insert(row(at), number(to)).map(done),
        ["remove", at] => {
            hand.remove(row(at)).map(|there| if there { "done" } else { "none" }.to_owned())
        }
        ["all"] => hand.range(0, 99).map(|found| rows(&found)),
        ["range", from, to] => hand.range(row(from), row(to)).map(|found| rows(&found)),
        ["remove-range", from, to] => {
            hand.remove_range(row(from), row(to)).map(|removed| removed.to_string())
        }
        ["first"] => hand.end(End { last: false, take: false }).map(end),
        ["last"] => hand.end(End { last: true, take: false }).map(end),
        ["pop-first"] => hand.end(End { last: false, take: true }).map(end),
        ["pop-last"] => hand.end(End { last: true, take: true }).map(end),
        ["savepoint", name] => hand.savepoint().map(|savepoint| {
            savepoints.insert((*name).to_owned(), savepoint);
            "done".to_owned()
        }),
        ["roll-back-to", name] => hand.roll_back_to(savepoints[*name]).map(done),
        _ => panic!("no such step: {text}"),
    };
    match said {
        Err(Error::Exists { .. }) => Ok("exists".to_owned()),
        Err(Error::Savepoint) => Ok("gone".to_owned()),
        said => said,
    }
}

/// The source of a role's steps, and the sink of its answers.
pub(crate) struct Lines<'l> {
    pub(crate) next: &'l mut dyn FnMut() -> String,
    pub(crate) say: &'l mut dyn FnMut(&str),
}

/// The call after a transaction whose steps all succeeded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Commit,
    Prepare,
}

/// How a transaction ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    Well(Next),
    RollBack,
    /// As the victim of a deadlock.
    Deadlock,
    /// With a lock timeout.
    TimedOut,
    /// Together with the role.
    Exit,
}

fn rejected() -> Error {
    Error::Rejected("as told".to_owned())
}

/// Runs a transaction, beginning with its first step.
fn play(hand: &mut dyn Hand, first: &str, lines: &mut Lines<'_>) -> Result<Ended, Error> {
    let (mut text, mut savepoints) = (first.to_owned(), Savepoints::new());
    loop {
        match text.as_str() {
            "commit" => return Ok(Ended::Well(Next::Commit)),
            "prepare" => return Ok(Ended::Well(Next::Prepare)),
            "roll-back" => return Ok(Ended::RollBack),
            "end" => return Ok(Ended::Exit),
            other => (lines.say)(&step(hand, other, &mut savepoints)?),
        }
        text = (lines.next)();
    }
}

/// The steps of a transaction, run on an engine.
type Body<'b> = dyn FnMut(&mut dyn Hand) -> Result<Next, Error> + 'b;

/// An engine in which a role's transactions run.
trait Place {
    /// Runs a transaction with this time limit until it is committed or prepared.
    fn transaction(&self, time: Duration, body: &mut Body<'_>) -> Result<(), Error>;

    /// Commits or rolls back a prepared transaction.
    fn decide(&self, _commit: bool, _gid: &str) -> Result<(), Error> {
        panic!("only a store has it")
    }
}

/// Runs transactions one after another until the role ends.
fn perform(lines: &mut Lines<'_>, place: &impl Place) {
    loop {
        let first = (lines.next)();
        let decision = match first.split_once(' ') {
            Some(("commit-prepared", gid)) => Some(place.decide(true, gid)),
            Some(("roll-back-prepared", gid)) => Some(place.decide(false, gid)),
            _ if first == "end" => return,
            _ => None,
        };
        let answer = match decision {
            Some(Ok(())) => "done",
            Some(Err(Error::NotPrepared { .. })) => "none",
            Some(Err(why)) => panic!("{why}"),
            None => match transaction(&first, lines, place) {
                Some(answer) => answer,
                None => return,
            },
        };
        (lines.say)(answer);
    }
}

/// Runs a transaction and returns its result, or None if the role ends.
fn transaction(first: &str, lines: &mut Lines<'_>, place: &impl Place) -> Option<&'static str> {
    let patient = first != "begin-no-wait";
    let (mut ended, mut run) = (Ended::Exit, false);
    let time = if patient { TIME } else { Duration::ZERO };
    let result = place.transaction(time, &mut |hand| {
        // A retry after a failure is refused.
        if std::mem::replace(&mut run, true) {
            return Err(rejected());
        }
        ended = play(hand, first, lines).inspect_err(|error| {
            ended = match error {
                Error::Lock { why: Lock::Deadlock(_), .. } => Ended::Deadlock,
                Error::Lock { why: Lock::TimedOut, .. } => Ended::TimedOut,
                other => panic!("{other}"),
            };
        })?;
        match ended {
            Ended::Well(next) => Ok(next),
            _ => Err(rejected()),
        }
    });
    match (ended, result) {
        (Ended::Well(_), Ok(())) | (Ended::RollBack, Err(Error::Rejected(_))) => Some("done"),
        // A last write is done by the commit; a closure would be retried.
        (Ended::Well(_), Err(Error::Lock { why: Lock::Deadlock(_), .. } | Error::Rejected(_)))
        | (Ended::Deadlock, Err(_)) => Some("deadlock"),
        (Ended::TimedOut, Err(_)) if patient => Some("waits too long"),
        (Ended::TimedOut, Err(_)) => Some("refused"),
        (Ended::Exit, _) => None,
        (_, result) => panic!("{result:?}"),
    }
}

/// Time limit of a transaction for locks, so that a wrong dialogue ends.
const TIME: Duration = Duration::from_secs(5);

fn patience(role: &'static str, level: Level, time: Duration) -> TxnOptions {
    let level = match level {
        Level::ReadCommitted => latchwork_store::Level::ReadCommitted,
        _ => latchwork_store::Level::Serializable,
    };
    TxnOptions { label: role, level, time, ..TxnOptions::default() }
}

pub(crate) const ROWS: Table<u64, i64> = Table::new("rows");
pub(crate) const OTHERS: Table<u64, i64> = Table::new("others");

fn table(row: u64) -> &'static Table<u64, i64> {
    if row < 100 { &ROWS } else { &OTHERS }
}

impl Hand for WriteTxn<'_, '_, Shared> {
    fn get(&mut self, row: u64) -> Result<Option<i64>, Error> {
        WriteTxn::get(self, table(row), row)
    }

    fn get_for_update(&mut self, row: u64) -> Result<Option<i64>, Error> {
        WriteTxn::get_for_update(self, table(row), row)
    }

    fn put(&mut self, row: u64, value: i64) -> Result<(), Error> {
        WriteTxn::put(self, table(row), row, value)
    }

    fn put_final(&mut self, row: u64, value: i64) -> Result<(), Error> {
        WriteTxn::put_final(self, table(row), row, value)
    }

    fn insert(&mut self, row: u64, value: i64) -> Result<(), Error> {
        WriteTxn::insert(self, table(row), row, value)
    }

    fn remove(&mut self, row: u64) -> Result<bool, Error> {
        WriteTxn::remove(self, table(row), row)
    }

    fn range(&mut self, from: u64, to: u64) -> Result<Rows, Error> {
        WriteTxn::range(self, table(from), from..=to)?.collect()
    }

    fn remove_range(&mut self, from: u64, to: u64) -> Result<u64, Error> {
        WriteTxn::remove_range(self, table(from), from..=to)
    }

    fn end(&mut self, which: End) -> Result<Option<(u64, i64)>, Error> {
        match (which.last, which.take) {
            (false, false) => self.first(&ROWS),
            (true, false) => self.last(&ROWS),
            (false, true) => self.pop_first(&ROWS),
            (true, true) => self.pop_last(&ROWS),
        }
    }

    fn savepoint(&mut self) -> Result<Savepoint, Error> {
        WriteTxn::savepoint(self)
    }

    fn roll_back_to(&mut self, savepoint: Savepoint) -> Result<(), Error> {
        WriteTxn::roll_back_to(self, savepoint)
    }
}

/// A snapshot of a store.
struct Reads<'r, 's>(&'r ReadTxn<'s, Shared>);

impl Hand for Reads<'_, '_> {
    fn get(&mut self, row: u64) -> Result<Option<i64>, Error> {
        self.0.get(table(row), row)
    }

    fn range(&mut self, from: u64, to: u64) -> Result<Rows, Error> {
        self.0.range(table(from), from..=to)?.collect()
    }
}

/// The access of a role to a store on files.
struct InStore<'s> {
    store: &'s Store,
    role: &'static str,
    level: Level,
}

impl Place for InStore<'_> {
    fn transaction(&self, time: Duration, body: &mut Body<'_>) -> Result<(), Error> {
        if self.level == Level::Snapshot {
            return self.store.read(|tx| body(&mut Reads(tx)).map(drop));
        }
        let mut txn = self.store.begin_with(&patience(self.role, self.level, time))?;
        match txn.with(|tx| body(tx)) {
            Ok(Next::Commit) => txn.commit().map(drop),
            Ok(Next::Prepare) => txn.prepare(self.role.as_bytes()),
            Err(why) => txn.roll_back().and(Err(why)),
        }
    }

    fn decide(&self, commit: bool, gid: &str) -> Result<(), Error> {
        match commit {
            true => self.store.commit_prepared(gid.as_bytes()).map(drop),
            false => self.store.roll_back_prepared(gid.as_bytes()),
        }
    }
}

/// Runs a role in a store until it ends.
pub(crate) fn act_in(store: &Store, role: &'static str, level: Level, lines: &mut Lines<'_>) {
    perform(lines, &InStore { store, role, level });
}

fn tree(row: u64) -> u32 {
    1 + u32::from(row >= 100)
}

fn value(bytes: Option<Vec<u8>>) -> Option<i64> {
    bytes.map(|bytes| i64::from_le_bytes(bytes.try_into().expect("8 bytes")))
}

/// Returns all rows of a range, read by a scan.
fn scanned(
    (from, to): (u64, u64),
    scan: impl FnOnce(
        Bound<&[u8]>,
        Bound<&[u8]>,
        &mut latchwork_store::EachRecord<'_>,
    ) -> Result<(), Error>,
) -> Result<Rows, Error> {
    let mut rows = Vec::new();
    let (from, to) = (from.to_be_bytes(), to.to_be_bytes());
    scan(Bound::Included(&from), Bound::Included(&to), &mut |key, value| {
        let key = u64::from_be_bytes(key.try_into().expect("8 bytes"));
        rows.extend(self::value(Some(value.to_vec())).map(|value| (key, value)));
        Ok(true)
    })?;
    Ok(rows)
}

impl Hand for Txn<'_, Memory> {
    fn get(&mut self, row: u64) -> Result<Option<i64>, Error> {
        self.get_raw(tree(row), &row.to_be_bytes()).map(value)
    }

    fn get_for_update(&mut self, row: u64) -> Result<Option<i64>, Error> {
        self.get_raw_for_update(tree(row), &row.to_be_bytes()).map(value)
    }

    fn put(&mut self, row: u64, value: i64) -> Result<(), Error> {
        self.write_raw(tree(row), &row.to_be_bytes(), Some(&value.to_le_bytes()))
    }

    fn put_final(&mut self, row: u64, value: i64) -> Result<(), Error> {
        self.write_last(tree(row), &row.to_be_bytes(), Some(&value.to_le_bytes()))
    }

    fn insert(&mut self, row: u64, value: i64) -> Result<(), Error> {
        self.insert_raw(tree(row), &row.to_be_bytes(), &value.to_le_bytes())
    }

    fn remove(&mut self, row: u64) -> Result<bool, Error> {
        let there = Hand::get_for_update(self, row)?.is_some();
        if there {
            self.write_raw(tree(row), &row.to_be_bytes(), None)?;
        }
        Ok(there)
    }

    fn remove_range(&mut self, from: u64, to: u64) -> Result<u64, Error> {
        let rows = Hand::range(self, from, to)?;
        for (row, _) in &rows {
            self.write_raw(tree(*row), &row.to_be_bytes(), None)?;
        }
        Ok(rows.len() as u64)
    }

    fn savepoint(&mut self) -> Result<Savepoint, Error> {
        Txn::savepoint(self)
    }

    fn roll_back_to(&mut self, savepoint: Savepoint) -> Result<(), Error> {
        Txn::roll_back_to(self, savepoint)
    }

    fn range(&mut self, from: u64, to: u64) -> Result<Rows, Error> {
        scanned((from, to), |a, b, each| self.scan_raw(tree(from), (a, b), false, each))
    }
}

impl Hand for Snapshot<'_, Memory> {
    fn get(&mut self, row: u64) -> Result<Option<i64>, Error> {
        self.get_raw(tree(row), &row.to_be_bytes()).map(value)
    }

    fn range(&mut self, from: u64, to: u64) -> Result<Rows, Error> {
        scanned((from, to), |a, b, each| self.scan_raw(tree(from), (a, b), false, each))
    }
}

/// The access of a role to the engine in memory. Each role has its own session.
struct InEngine<'e> {
    memory: &'e Memory,
    session: &'e Session,
    slot: u16,
    role: &'static str,
    level: Level,
}

impl Place for InEngine<'_> {
    fn transaction(&self, time: Duration, body: &mut Body<'_>) -> Result<(), Error> {
        if self.level == Level::Snapshot {
            return body(&mut Snapshot::new(self.memory, self.slot)?).map(drop);
        }
        let patience = patience(self.role, self.level, time);
        let run = internals::run(self.memory, self.session, self.slot, &patience, |txn| {
            body(txn).map(|next| assert!(next == Next::Commit, "it prepares nothing"))
        });
        run.map(drop)
    }
}

/// Runs a role in the engine in memory to its end.
pub(crate) fn act_in_memory(
    (memory, session, slot): (&Memory, &Session, u16),
    role: &'static str,
    level: Level,
    lines: &mut Lines<'_>,
) {
    perform(lines, &InEngine { memory, session, slot, role, level });
}

/// The rows of the beginning.
pub(crate) fn set_in_memory(memory: &Memory, session: &Session) {
    let level = latchwork_store::Level::Serializable;
    let mut txn = Txn::new(memory, session.owner().unwrap(), 99, level);
    Hand::put(&mut txn, 1, 10).unwrap();
    Hand::put(&mut txn, 2, 20).unwrap();
    txn.commit().unwrap();
}

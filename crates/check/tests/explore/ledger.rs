//! Threads that use a store on the simulated machine, and a ledger of their transactions.
//!
//! Reads and writes are recorded outside of the simulation. Afterwards the transactions are run one
//! after the other in the order of their commit records (`latchwork_check::serial`), and each read
//! must return the same as before. A snapshot must also see every commit that had returned before
//! it began: the ledger records the last such commit.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use latchwork_check::explore::{Schedule, body, two_by_two};
use latchwork_check::serial::{Done, Step, replay};
use latchwork_machine::{Clock, Machine};
use latchwork_sim::{Explorer, Simulated, Simulation};
use latchwork_store::{Error, Level};

use crate::house::Dice;
use crate::records::{Place, Reads, Rows, TREE, Writes};

/// Number of accesses after which a run counts as endless.
const LIMIT: u64 = 4_000_000;
/// Approximate accesses of a run, within which priorities are changed.
const LENGTH: u64 = 12_000;
pub(crate) const THREADS: usize = 4;

/// A thread whose wake-up was lost checks again after at least 20 ms. Programs with many retries
/// may take as long without a lost wake-up, and use `LATER`.
pub(crate) const SOON: Duration = Duration::from_millis(19);
pub(crate) const LATER: Duration = Duration::from_secs(5);

/// Deliberate variations, and errors for controls.
#[derive(Clone, Copy)]
pub(crate) struct Odd {
    /// Bytes of the log after which a checkpoint is due.
    pub(crate) budget: u64,
    /// Isolation level of writing transactions.
    pub(crate) level: Level,
    /// Error: a read that is recorded in a transaction happens before it begins.
    pub(crate) early: bool,
    /// Error: one transaction or snapshot is split in two.
    pub(crate) in_two: bool,
}

pub(crate) const PLAIN: Odd =
    Odd { budget: 1 << 30, level: Level::Serializable, early: false, in_two: false };

/// State that the threads of a run share, outside of the simulation.
#[derive(Default)]
pub(crate) struct Ledger {
    done: RefCell<Vec<Done>>,
    flaw: RefCell<Option<String>>,
    /// The call that each thread began last.
    calls: RefCell<Vec<&'static str>>,
    /// The position of the last commit that has returned.
    committed: Cell<u64>,
    /// For each thread, how many of its transactions have begun to commit, and have committed.
    pub(crate) begun: [Cell<u64>; THREADS],
    pub(crate) ended: [Cell<u64>; THREADS],
    /// A transaction has committed, but its thread died before it could record the position.
    pub(crate) unknown: Cell<bool>,
    /// Number of retries.
    pub(crate) again: Cell<u64>,
}

impl Ledger {
    pub(crate) fn flaw(&self, text: String) {
        self.flaw.borrow_mut().get_or_insert(text);
    }
}

/// One thread of a run.
pub(crate) struct Life<'a> {
    pub(crate) me: usize,
    threads: usize,
    pub(crate) place: &'a dyn Place,
    pub(crate) ledger: &'a Ledger,
    pub(crate) dice: Dice,
    pub(crate) odd: Odd,
    /// Kills the first thread.
    pub(crate) kill: &'a dyn Fn(),
    patience: Duration,
}

fn name(key: u64) -> (u32, Vec<u8>) {
    (TREE, key.to_be_bytes().to_vec())
}

fn scanned(from: u64, to: u64, found: &Rows) -> Step {
    let rows = found.iter().map(|(key, value)| (name(*key).1, value.clone()));
    Step::Scan(TREE, name(from).1, name(to).1, rows.collect())
}

/// A snapshot that records its reads.
pub(crate) struct Seen<'t> {
    reads: &'t mut dyn Reads,
    steps: Vec<Step>,
}

impl Seen<'_> {
    pub(crate) fn get(&mut self, key: u64) -> Result<Option<Vec<u8>>, Error> {
        let found = self.reads.get(key)?;
        self.steps.push(Step::Read(name(key), found.clone()));
        Ok(found)
    }

    pub(crate) fn scan(&mut self, from: u64, to: u64, back: bool) -> Result<Rows, Error> {
        let found = self.reads.scan(from, to, back)?;
        self.steps.push(scanned(from, to, &found));
        Ok(found)
    }
}

/// A transaction that records its reads and writes.
pub(crate) struct Acts<'t> {
    writes: &'t mut dyn Writes,
    steps: Vec<Step>,
}

impl Acts<'_> {
    pub(crate) fn get(&mut self, key: u64, for_update: bool) -> Result<Option<Vec<u8>>, Error> {
        let found = match for_update {
            true => self.writes.get_for_update(key)?,
            false => self.writes.get(key)?,
        };
        self.steps.push(Step::Read(name(key), found.clone()));
        Ok(found)
    }

    pub(crate) fn scan(&mut self, from: u64, to: u64, back: bool) -> Result<Rows, Error> {
        let found = self.writes.scan(from, to, back)?;
        self.steps.push(scanned(from, to, &found));
        Ok(found)
    }

    pub(crate) fn put(&mut self, key: u64, value: Option<&[u8]>) -> Result<(), Error> {
        self.writes.put(key, value)?;
        self.steps.push(Step::Write(name(key), value.map(<[u8]>::to_vec)));
        Ok(())
    }

    pub(crate) fn put_final(&mut self, key: u64, value: &[u8]) -> Result<(), Error> {
        self.writes.put_final(key, value)?;
        self.steps.push(Step::Write(name(key), Some(value.to_vec())));
        Ok(())
    }

    /// Inserts a record unless it exists.
    pub(crate) fn insert(&mut self, key: u64, value: &[u8]) -> Result<(), Error> {
        match self.writes.insert(key, value) {
            Ok(()) => {
                self.steps.push(Step::Read(name(key), None));
                self.steps.push(Step::Write(name(key), Some(value.to_vec())));
                Ok(())
            }
            Err(Error::Exists { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Runs `work` and rolls its writes back. Its reads stay recorded.
    pub(crate) fn in_vain(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (here, before) = (self.writes.savepoint()?, self.steps.len());
        work(self)?;
        self.writes.roll_back_to(here)?;
        // A read after a write of its own cannot be compared with other transactions.
        let kept = self.steps[before..].iter().take_while(|step| !matches!(step, Step::Write(..)));
        let kept = kept.count();
        self.steps.truncate(before + kept);
        Ok(())
    }
}

impl Life<'_> {
    pub(crate) fn is_last(&self) -> bool {
        self.me + 1 == self.threads
    }

    pub(crate) fn begins(&self, call: &'static str) {
        self.ledger.calls.borrow_mut()[self.me] = call;
    }

    pub(crate) fn flaw(&self, what: impl std::fmt::Display) {
        let call = self.ledger.calls.borrow()[self.me];
        self.ledger.flaw(format!("thread {} in {call}: {what}", self.me));
    }

    fn in_time(&self) {
        if u128::from(Simulated::now(Clock::Monotonic)) >= self.patience.as_nanos() {
            self.flaw("a thread slept through a wake-up");
        }
    }

    /// Runs a transaction until it commits; rolls it back if `body` returns `Rejected`.
    pub(crate) fn write(&self, mut body: impl FnMut(&mut Acts<'_>) -> Result<(), Error>) -> bool {
        let (mut did, mut end) = (Vec::new(), 0);
        let ended = self.place.write(self.odd.level, &mut |writes| {
            let mut acts = Acts { writes, steps: Vec::new() };
            body(&mut acts)?;
            did = acts.steps;
            // The locks are still held: everything it read is before this position.
            end = self.place.end();
            Ok(())
        });
        self.in_time();
        match ended {
            Ok((at, runs)) => {
                self.ledger.again.set(self.ledger.again.get() + u64::from(runs) - 1);
                let one = Done { at: at.unwrap_or(end), wrote: at.is_some(), steps: did };
                self.ledger.done.borrow_mut().push(one);
                let last = &self.ledger.committed;
                last.set(last.get().max(at.unwrap_or(0)));
                true
            }
            Err(Error::Rejected(_)) => false,
            Err(error) => {
                self.flaw(error);
                false
            }
        }
    }

    pub(crate) fn checkpoint(&self) {
        self.begins("a checkpoint");
        if let Err(error) = self.place.checkpoint() {
            self.flaw(error);
        }
        self.in_time();
    }

    /// Undoes the transaction of the first thread, which is dead.
    pub(crate) fn sweep(&self) {
        self.begins("a sweep");
        if let Err(error) = self.place.sweep() {
            self.flaw(error);
        }
    }

    /// Reads in a snapshot.
    pub(crate) fn read(&self, mut look: impl FnMut(&mut Seen<'_>) -> Result<(), Error>) {
        let (mut saw, least) = (Vec::new(), self.ledger.committed.get());
        let read = self.place.read(&mut |reads| {
            let mut seen = Seen { reads, steps: Vec::new() };
            look(&mut seen)?;
            saw = seen.steps;
            Ok(())
        });
        self.in_time();
        match read {
            Ok(at) if at < least => {
                self.flaw(format!("snapshot at {at}, but {least} was committed"))
            }
            Ok(at) => self.ledger.done.borrow_mut().push(Done { at, wrote: false, steps: saw }),
            Err(error) => self.flaw(error),
        }
    }
}

/// The initial state of a run and the work of each thread.
#[derive(Clone, Copy)]
pub(crate) struct Program {
    pub(crate) begins: fn(&Life<'_>),
    pub(crate) does: fn(&Life<'_>),
    /// Called by the last thread when all others have ended.
    pub(crate) ends: fn(&Life<'_>),
    /// Longer than any run without a lost wake-up.
    pub(crate) patience: Duration,
}

/// Totals of many runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) reads: u64,
    pub(crate) again: u64,
    /// Pages of tables and free pages at the end.
    pub(crate) used: u64,
    pub(crate) free: u64,
    /// Threads that died in a transaction.
    pub(crate) died: u64,
}

impl Tally {
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            reads: self.reads + other.reads,
            again: self.again + other.again,
            used: self.used + other.used,
            free: self.free + other.free,
            died: self.died + other.died,
        }
    }
}

/// Runs the bodies and checks the ledger.
pub(crate) fn run(
    schedule: Schedule,
    odd: Odd,
    program: Program,
    places: &[&dyn Place],
    kill: &dyn Fn(),
) -> Result<Tally, String> {
    let ledger = Ledger::default();
    ledger.calls.borrow_mut().resize(places.len(), "nothing");
    let threads = places.len();
    let life = |me: usize| {
        let dice = Dice::new(schedule.0 << 3 | me as u64);
        Life {
            me,
            threads,
            place: places[me],
            ledger: &ledger,
            dice,
            odd,
            kill,
            patience: program.patience,
        }
    };
    let lives: Vec<_> = (0..threads).map(life).collect();
    (program.begins)(&lives[0]);
    for life in &lives {
        // Each thread has a session and has looked up the table.
        life.read(|seen| seen.get(0).map(drop));
        life.write(|acts| acts.get(0, false).map(drop));
    }
    let bodies = lives.iter().map(|life| body(move || (program.does)(life))).collect();
    let explorer = match schedule.0 % 2 {
        0 => Explorer::random(schedule.0),
        _ => Explorer::pct(schedule.0, 1 + (schedule.0 / 2 % 4) as usize, LENGTH),
    };
    let simulation = Simulation::new(&two_by_two(), schedule.0);
    let ended = simulation.explore(explorer).limit(LIMIT).run(bodies);
    if let Err(stuck) = ended {
        ledger.flaw(stuck.to_string());
    } else {
        (program.ends)(&lives[threads - 1]);
    }
    if let Some(text) = ledger.flaw.take() {
        return Err(format!("{text}\n{}", ledger.calls.borrow().join("; ")));
    }
    if ledger.unknown.get() {
        return Ok(Tally { died: 1, ..Tally::default() });
    }
    let reads = replay(ledger.done.take()).map_err(|wrong| wrong.to_string())? as u64;
    let died = u64::from(ledger.begun[0] != ledger.ended[0]);
    Ok(Tally { reads, died, again: ledger.again.get(), ..Tally::default() })
}

/// The end of most programs.
pub(crate) fn nothing(_: &Life<'_>) {}

/// The number in a record, or zero if it does not exist.
pub(crate) fn number(found: Option<Vec<u8>>) -> u64 {
    found.and_then(|bytes| bytes.first_chunk().copied()).map_or(0, u64::from_be_bytes)
}

/// The record of a number.
pub(crate) fn has(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

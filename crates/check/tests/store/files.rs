//! Stores on trees and a log: many threads, checked by the serial replay oracle, and crashes of the
//! machine at every disk call.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;

use latchwork_check::random::Random;
use latchwork_check::serial::{Done, Step, replay};
use latchwork_disk::{Disk, Fault, Operation, Simulated};
use latchwork_machine::Native;
use latchwork_store::{Error, Mode, Store, TxnOptions};

use crate::stage::{Shape, TABLE, TREE, all, begin, step};

/// Ways in which a sync fails: the data can still be read afterwards, or not.
const FAILS: [Fault; 3] = [Fault::Device, Fault::NoSpace, Fault::Dropped];

const MODES: [Mode; 3] = [Mode::Full, Mode::Write, Mode::None];

/// Transactions of several threads and what they did, including read-only ones and snapshots.
pub(crate) fn crowd(
    store: &Store<Native>,
    shape: Shape,
    threads: u64,
    each: u64,
    seed: u64,
) -> Vec<Done> {
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for thread in 0..threads {
            let done = &done;
            scope.spawn(move || {
                let mut random = Random(seed * 1000 + thread + 1);
                for _ in 0..each {
                    let one = match random.below(4) {
                        0 => Some(look(store, shape, &mut random)),
                        _ => change(store, shape, &mut random),
                    };
                    done.lock().unwrap().extend(one);
                }
            });
        }
    });
    done.into_inner().unwrap()
}

fn look(store: &Store<Native>, shape: Shape, random: &mut Random) -> Done {
    loop {
        match look_once(store, shape, random) {
            Err(Error::SnapshotTooOld { .. }) => {}
            looked => return looked.unwrap(),
        }
    }
}

fn look_once(store: &Store<Native>, shape: Shape, random: &mut Random) -> Result<Done, Error> {
    store.read(|tx| {
        let mut steps = Vec::new();
        for _ in 0..3 {
            let key = shape.key(random);
            let found = tx.get(&TABLE, &key)?;
            steps.push(Step::Read((TREE, key), found));
            thread::yield_now();
        }
        let found = all(tx, random.below(2) == 0)?;
        steps.push(Step::Scan(TREE, Vec::new(), vec![0xff], found));
        Ok(Done { at: tx.at(), wrote: false, steps })
    })
}

/// Runs a transaction. Returns None if it was rolled back on purpose.
fn change(store: &Store<Native>, shape: Shape, random: &mut Random) -> Option<Done> {
    let rejected = random.below(8) == 0;
    let length = 1 + random.below(5);
    let ended = store.write_with(&TxnOptions::default(), |txn| {
        let mut steps = Vec::new();
        for _ in 0..length {
            step(txn, random, shape, &mut steps)?;
            if random.below(3) == 0 {
                thread::yield_now();
            }
        }
        if rejected {
            return Err(Error::Rejected("on purpose".to_owned()));
        }
        // If locks are held, they still are: everything it read is before this position.
        let at = txn.reads_at().unwrap_or_else(|| store.log_end() - 1);
        Ok((steps, at))
    });
    match ended {
        Ok(done) => {
            let (steps, end) = done.value;
            Some(Done { at: done.at.unwrap_or(end), wrote: done.at.is_some(), steps })
        }
        Err(error) => {
            assert_eq!(error, Error::Rejected("on purpose".to_owned()));
            None
        }
    }
}

/// The records after these transactions.
pub(crate) fn model(done: &[Done]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut sorted: Vec<_> = done.iter().filter(|done| done.wrote).collect();
    sorted.sort_by_key(|done| done.at);
    let mut model = BTreeMap::new();
    for step in sorted.into_iter().flat_map(|done| &done.steps) {
        match step {
            Step::Write((_, key), Some(value)) => drop(model.insert(key.clone(), value.clone())),
            Step::Write((_, key), None) => drop(model.remove(key)),
            _ => {}
        }
    }
    model
}

pub(crate) fn dump(store: &Store<Native>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    try_dump(store).unwrap()
}

fn try_dump(store: &Store<Native>) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Error> {
    Ok(store.read(|tx| all(tx, false))?.into_iter().collect())
}

#[test]
fn every_read_equals_that_of_a_serial_run() {
    let shapes = [Shape { keys: 6, longest: 40 }, Shape { keys: 300, longest: 2500 }];
    for (seed, (mode, shape)) in (1..).zip(MODES.into_iter().flat_map(|m| shapes.map(|s| (m, s)))) {
        let disk = Simulated::new();
        let store = begin(&disk, mode).unwrap();
        let done = crowd(&store, shape, 4, 150, seed);
        assert!(store.verify().unwrap() > 2);
        let expected = model(&done);
        assert_eq!(dump(&store), expected, "{mode:?} {shape:?}");
        let reads = replay(done).unwrap_or_else(|wrong| panic!("{mode:?} {shape:?}: {wrong}"));
        assert!(reads > 500, "only {reads} reads were compared");
        // A crash of the machine, with all memory lost.
        store.checkpoint().unwrap();
        drop(store);
        disk.crash();
        disk.restart(seed);
        let store = begin(&disk, mode).unwrap();
        assert_eq!(dump(&store), expected, "{mode:?} {shape:?}, after a crash");
        store.verify().unwrap();
    }
}

/// A scripted run: the state after each transaction, and how many were acknowledged.
#[derive(Default)]
struct Script {
    /// The state after each transaction, beginning with the one before the first.
    states: Vec<BTreeMap<Vec<u8>, Vec<u8>>>,
    answered: usize,
    /// Whether the last state may be missing, because its transaction failed.
    unsure: bool,
}

const SHAPE: Shape = Shape { keys: 60, longest: 2500 };

impl Script {
    fn new() -> Self {
        Self { states: vec![BTreeMap::new()], answered: 0, unsure: false }
    }

    /// Runs transactions until one fails or `count` have run.
    fn run(&mut self, store: &Store<Native>, count: u64, random: &mut Random) -> Result<(), Error> {
        for number in 0..count {
            let mut next = self.states.last().unwrap().clone();
            let rejected = random.below(6) == 0;
            let length = 1 + random.below(4);
            let written = store.write(|txn| {
                for _ in 0..length {
                    let key = SHAPE.key(random);
                    if random.below(4) == 0 {
                        txn.remove(&TABLE, &key)?;
                        next.remove(&key);
                    } else {
                        let value = SHAPE.value(random);
                        txn.put(&TABLE, &key, &value)?;
                        next.insert(key, value);
                    }
                }
                if rejected { Err(Error::Rejected(String::new())) } else { Ok(()) }
            });
            match written {
                Err(Error::Rejected(_)) => continue,
                Ok(()) => {
                    self.states.push(next);
                    self.answered = self.states.len() - 1;
                }
                Err(error) => {
                    // The transaction may be in the log.
                    self.states.push(next);
                    self.unsure = true;
                    return Err(error);
                }
            }
            if number % 16 == 15 {
                store.checkpoint()?;
            }
        }
        Ok(())
    }

    /// Continues from a recovered state, which must include all acknowledged transactions.
    fn found(&mut self, found: &BTreeMap<Vec<u8>, Vec<u8>>, mode: Mode) -> Result<(), String> {
        let least = if mode == Mode::Full { self.answered } else { 0 };
        match self.states.iter().rposition(|state| state == found) {
            Some(at) if at >= least => {
                self.states.truncate(at + 1);
                (self.answered, self.unsure) = (at, false);
                Ok(())
            }
            Some(at) => Err(format!("state {at}, but {least} were acknowledged")),
            None => Err(format!("an unknown state of {} records", found.len())),
        }
    }
}

fn text(error: &Error) -> String {
    error.to_string()
}

/// A trial: a run that the fault ends, a recovery that may be interrupted, and a second recovery.
fn trial(mode: Mode, number: u64, fault: Fault, seed: u64) -> Result<(), String> {
    let disk = Simulated::new();
    let mut script = Script::new();
    let mut random = Random(7);
    disk.plan(number, fault);
    if let Ok(store) = begin(&disk, mode) {
        let _ = script.run(&store, 48, &mut random);
        disk.crash();
    }
    disk.crash();
    disk.restart(seed);
    if seed % 2 == 1 {
        // A crash in recovery.
        disk.plan(disk.calls().total() + seed % 40, Fault::Crash);
        drop(begin(&disk, mode));
        disk.crash();
        disk.restart(seed + 1);
    }
    let store = begin(&disk, mode).map_err(|why| text(&why))?;
    store.verify().map_err(|why| text(&why))?;
    script.found(&try_dump(&store).map_err(|why| text(&why))?, mode)?;
    script.run(&store, 10, &mut Random(seed)).map_err(|why| text(&why))?;
    if dump(&store) != *script.states.last().unwrap() {
        return Err("a write after recovery was lost".to_owned());
    }
    Ok(())
}

/// Number of disk calls of a complete run.
fn calls(mode: Mode) -> u64 {
    let disk = Simulated::new();
    let store = begin(&disk, mode).unwrap();
    Script::new().run(&store, 48, &mut Random(7)).unwrap();
    disk.calls().total()
}

fn trials(fault: Fault, step: usize, seeds: u64) -> (u64, Vec<String>) {
    let (mut count, mut failures) = (0, Vec::new());
    for mode in MODES {
        for number in (0..calls(mode)).step_by(step) {
            for seed in 0..seeds {
                count += 1;
                if let Err(why) = trial(mode, number, fault, seed + number) {
                    failures
                        .push(format!("{mode:?}, call {number}, seed {}: {why}", seed + number));
                }
            }
        }
    }
    (count, failures)
}

/// A sync fails and the machine continues: the processes end, and the next open reads what the
/// system has or has not kept. Then the machine crashes.
fn trial_of_sync(mode: Mode, number: u64, fault: Fault, seed: u64) -> Result<(), String> {
    let disk = Simulated::with_seed(seed);
    let mut script = Script::new();
    disk.plan(number, fault);
    if let Ok(store) = begin(&disk, mode) {
        let _ = script.run(&store, 48, &mut Random(7));
        for round in 0..4 {
            if !script.unsure {
                let _ = script.run(&store, 12, &mut Random(seed + round));
            }
        }
    }
    for life in 0..2 {
        let store = begin(&disk, mode).map_err(|why| format!("life {life}: {why}"))?;
        store.verify().map_err(|why| format!("life {life}: {why}"))?;
        let found = try_dump(&store).map_err(|why| text(&why))?;
        script.found(&found, mode).map_err(|why| format!("life {life}: {why}"))?;
        if seed.is_multiple_of(2) {
            disk.drop_cache();
        }
        script.run(&store, 20, &mut Random(seed + life)).map_err(|why| text(&why))?;
        drop(store);
        disk.restart(seed + life);
    }
    Ok(())
}

fn trials_of_sync(seeds: u64) -> (u64, Vec<String>) {
    let (mut count, mut failures) = (0, Vec::new());
    for mode in MODES {
        let disk = Simulated::new();
        let store = begin(&disk, mode).unwrap();
        Script::new().run(&store, 48, &mut Random(7)).unwrap();
        let calls = (0..).zip(disk.history()).filter(|(_, at)| *at == Operation::Sync);
        for (number, fault) in calls.flat_map(|(number, _)| FAILS.map(|fault| (number, fault))) {
            for seed in number..number + seeds {
                count += 1;
                if let Err(why) = trial_of_sync(mode, number, fault, seed) {
                    failures.push(format!("{mode:?}, {fault:?} at {number}, seed {seed}: {why}"));
                }
            }
        }
    }
    (count, failures)
}

#[test]
fn a_failed_sync_at_each_call_loses_no_acknowledged_commit() {
    let (count, failures) = trials_of_sync(1);
    println!("{count} failed syncs");
    assert!(count > 100);
    assert!(failures.is_empty(), "{} of {count}, the first: {}", failures.len(), failures[0]);
}

#[test]
#[ignore = "long: cargo test --release -p latchwork-check --test store -- --ignored"]
fn a_failed_sync_at_each_call_loses_no_acknowledged_commit_long() {
    let (count, failures) = trials_of_sync(20);
    println!("{count} failed syncs");
    assert!(failures.is_empty(), "{} of {count}, the first: {}", failures.len(), failures[0]);
}

#[test]
fn a_crash_at_each_call_loses_no_acknowledged_commit() {
    let (count, failures) = trials(Fault::Crash, 1, 1);
    println!("{count} crashes");
    assert!(count > 100);
    assert!(failures.is_empty(), "{} of {count}, the first: {}", failures.len(), failures[0]);
}

#[test]
#[ignore = "long: cargo test --release -p latchwork-check --test store -- --ignored"]
fn a_crash_at_each_call_loses_no_acknowledged_commit_long() {
    let (count, failures) = trials(Fault::Crash, 1, 20);
    println!("{count} crashes");
    assert!(failures.is_empty(), "{} of {count}, the first: {}", failures.len(), failures[0]);
}

/// The control: a disk that skips a sync is detected.
#[test]
fn a_skipped_sync_is_detected() {
    let (count, failures) = trials(Fault::LostSync, 1, 1);
    assert!(!failures.is_empty(), "none of {count} was detected");
}

/// A thread that has used up its credit overwrites a record: it requests more credit once.
#[test]
fn a_write_requests_credit_once() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    let value = vec![7; 900];
    for round in 0..200u64 {
        let key = (round % 3).to_be_bytes();
        store.write(|tx| tx.put(&TABLE, &key, &value[..(round * 37 % 900) as usize])).unwrap();
        if round % 10 == 0 {
            // The next change of a page logs the page in full.
            store.checkpoint().unwrap();
        }
        // A new thread has no credit.
        let other = || store.write(|tx| tx.put(&TABLE, &key, &value)).unwrap();
        thread::scope(|scope| scope.spawn(other).join().unwrap());
    }
}

/// Whatever disk call fails, an error means that nothing was written or that the result is unknown.
/// An error of a checkpoint must not be reported as an error of the write, which would be retried.
#[test]
fn a_failed_write_changes_nothing() {
    let key = |number: u64| number.to_be_bytes();
    let mut failed = 0;
    for call in 0..120 {
        let disk = Simulated::new();
        let store = begin(&disk, Mode::None).unwrap();
        disk.plan(disk.calls().total() + call, Fault::Device);
        for number in 0..400 {
            let written = store.put(&TABLE, &key(number), &[7; 700]);
            let found = store.get(&TABLE, &key(number));
            match written {
                Ok(()) => assert!(matches!(found, Ok(Some(_)) | Err(_)), "{call}: {found:?}"),
                Err(Error::CommitUnknown { .. }) => {}
                Err(why) => {
                    failed += 1;
                    assert!(matches!(found, Ok(None) | Err(_)), "{call}, {number}: {why}");
                }
            }
        }
    }
    assert!(failed > 100, "only {failed} writes failed");
}

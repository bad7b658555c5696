//! Transactions of many threads, checked by the serial replay oracle; deliberate bugs are detected.

use std::ops::Bound;
use std::sync::Mutex;
use std::thread;

use latchwork_check::memory_engine::{Bug, Memory};
use latchwork_check::random::Random;
use latchwork_check::serial::{Done, Step, replay};
use latchwork_lockmgr::{Manager, granular};
use latchwork_store::internals::{self, Snapshot, Txn};
use latchwork_store::{Attempts, Error, Level, TxnOptions};

const TREE: u32 = 1;

fn scale() -> u64 {
    std::env::var("LATCHWORK_STORE_SCALE").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

fn key(random: &mut Random, keys: u64) -> Vec<u8> {
    vec![b'a' + random.below(keys) as u8]
}

/// A random step of a transaction.
fn step(
    txn: &mut Txn<'_, Memory>,
    random: &mut Random,
    keys: u64,
    steps: &mut Vec<Step>,
) -> Result<(), Error> {
    let key = key(random, keys);
    let value = random.below(1 << 40).to_be_bytes().to_vec();
    match random.below(10) {
        0..=2 => {
            let found = txn.get_raw(TREE, &key)?;
            steps.push(Step::Read((TREE, key), found));
        }
        3 => {
            let found = txn.get_raw_for_update(TREE, &key)?;
            steps.push(Step::Read((TREE, key), found));
        }
        4 => match txn.insert_raw(TREE, &key, &value) {
            Ok(()) => {
                steps.push(Step::Read((TREE, key.clone()), None));
                steps.push(Step::Write((TREE, key), Some(value)));
            }
            Err(Error::Exists { .. }) => {}
            Err(error) => return Err(error),
        },
        5 => {
            txn.write_raw(TREE, &key, None)?;
            steps.push(Step::Write((TREE, key), None));
        }
        6 => {
            let to = vec![key[0] + 1 + random.below(3) as u8];
            let mut found = Vec::new();
            let back = random.below(2) == 0;
            let range = (Bound::Included(&key[..]), Bound::Excluded(&to[..]));
            txn.scan_raw(TREE, range, back, &mut |key, value| {
                found.push((key.to_vec(), value.to_vec()));
                Ok(true)
            })?;
            if back {
                found.reverse();
            }
            steps.push(Step::Scan(TREE, key, to, found));
        }
        7 => {
            // Rolled back to a savepoint: the reads stay, the writes do not.
            let here = txn.savepoint()?;
            let before = steps.len();
            step(txn, random, keys, steps)?;
            txn.roll_back_to(here)?;
            let mut at = 0;
            steps.retain(|step| {
                at += 1;
                at <= before || !matches!(step, Step::Write(..)) && at == before + 1
            });
        }
        _ => {
            match random.below(2) {
                0 => txn.write_raw(TREE, &key, Some(&value))?,
                // The write is deferred to the next call or to the commit.
                _ => txn.write_last(TREE, &key, Some(&value))?,
            }
            steps.push(Step::Write((TREE, key), Some(value)));
        }
    }
    if random.below(3) == 0 {
        thread::yield_now();
    }
    Ok(())
}

/// The results of many transactions.
struct Outcome {
    done: Vec<Done>,
    again: u32,
    open: usize,
}

fn crowd(bug: Bug, level: Level, threads: u16, transactions: u64, seed: u64) -> Outcome {
    let keys = 6;
    let memory = Memory::new(bug);
    let manager = Manager::private(granular::modes()).unwrap();
    let done = Mutex::new(Vec::new());
    let again = Mutex::new(0);
    thread::scope(|scope| {
        for slot in 1..=threads {
            let (memory, manager, done, again) = (&memory, &manager, &done, &again);
            scope.spawn(move || {
                let session = manager.session().unwrap();
                let mut random = Random(seed * 1000 + u64::from(slot));
                let patience = TxnOptions { level, ..TxnOptions::default() };
                for _ in 0..transactions {
                    if random.below(4) == 0 {
                        done.lock().unwrap().push(look(memory, slot, &mut random, keys));
                        continue;
                    }
                    let rejected = random.below(8) == 0;
                    let length = 1 + random.below(5);
                    let ended = internals::run(memory, &session, slot, &patience, |txn| {
                        let mut steps = Vec::new();
                        for _ in 0..length {
                            step(txn, &mut random, keys, &mut steps)?;
                        }
                        if rejected {
                            return Err(Error::Rejected("on purpose".to_owned()));
                        }
                        // The locks are still held: everything it read is before this position.
                        Ok((steps, memory.end()))
                    });
                    match ended {
                        Ok(Attempts { value: (steps, end), at, runs }) => {
                            *again.lock().unwrap() += runs - 1;
                            let (at, wrote) = (at.unwrap_or(end), at.is_some());
                            done.lock().unwrap().push(Done { at, wrote, steps });
                        }
                        Err(error) => assert_eq!(error, Error::Rejected("on purpose".to_owned())),
                    }
                }
            });
        }
    });
    Outcome {
        done: done.into_inner().unwrap(),
        again: again.into_inner().unwrap(),
        open: memory.open(),
    }
}

/// Reads in a snapshot.
fn look(memory: &Memory, slot: u16, random: &mut Random, keys: u64) -> Done {
    let snapshot = Snapshot::new(memory, slot).unwrap();
    let mut steps = Vec::new();
    for _ in 0..3 {
        let key = key(random, keys);
        let found = snapshot.get_raw(TREE, &key).unwrap();
        steps.push(Step::Read((TREE, key), found));
        thread::yield_now();
    }
    let (from, to) = (vec![b'a'], vec![b'z']);
    let mut found = Vec::new();
    let mut each = |key: &[u8], value: &[u8]| {
        found.push((key.to_vec(), value.to_vec()));
        Ok(true)
    };
    snapshot.scan_raw(TREE, &from[..]..&to[..], false, &mut each).unwrap();
    steps.push(Step::Scan(TREE, from, to, found));
    Done { at: snapshot.at(), wrote: false, steps }
}

#[test]
fn every_read_equals_that_of_a_serial_run() {
    let mut again = 0;
    for seed in 1..=4 * scale() {
        let outcome = crowd(Bug::None, Level::Serializable, 4, 400, seed);
        assert_eq!(outcome.open, 0, "a transaction was left open");
        again += outcome.again;
        let reads = replay(outcome.done).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        assert!(reads > 1000, "only {reads} reads were compared");
    }
    assert!(again > 0, "no transaction was retried, so nothing was contended");
}

/// Runs until the oracle detects an error. A build with this bug must not pass for long.
fn found(bug: Bug, level: Level) -> bool {
    (1..=200).any(|seed| replay(crowd(bug, level, 4, 200, seed).done).is_err())
}

#[test]
fn planted_bugs_are_detected() {
    for bug in [Bug::UndoKeepsValue, Bug::ClaimsIgnored, Bug::LowTooHigh, Bug::NoOldVersions] {
        assert!(found(bug, Level::Serializable), "{bug:?} passed");
    }
}

#[test]
fn a_lower_level_is_detected() {
    assert!(found(Bug::None, Level::ReadCommitted), "read committed looks serializable");
}

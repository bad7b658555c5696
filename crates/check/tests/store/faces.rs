//! Transactions and snapshots as objects, cursors, multimaps, sequences, ends of tables: checked by
//! the serial replay oracle and against collections of the standard library.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use latchwork_check::random::Random;
use latchwork_check::serial::{Done, Step, replay};
use latchwork_disk::Simulated;
use latchwork_machine::Native;
use latchwork_store::{
    Error, KeptSnapshot, Mode, Multi, Sequence, Store, Table, Transaction, TxnOptions, Value,
    WriteTxn,
};

use crate::stage::{self, Shape, TABLE, TREE, begin};

const SHAPE: Shape = Shape { keys: 30, longest: 40 };

/// A transaction that waits for its next thread, and its steps so far.
type Begun = (Transaction<Native>, Vec<Step>, u64);

/// The smallest key greater than `key`.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// A step at an end of the table, or an update.
fn end(
    txn: &mut WriteTxn<'_, '_, Native>,
    random: &mut Random,
    steps: &mut Vec<Step>,
) -> Result<(), Error> {
    let whole = || Step::Scan(TREE, Vec::new(), vec![0xff], Vec::new());
    let (back, take) = (random.below(2) == 0, random.below(2) == 0);
    match random.below(3) {
        0 => {
            let (key, value) = (SHAPE.key(random), SHAPE.value(random));
            let mut old = None;
            let new = txn.update(&TABLE, &key, |found| {
                old = found;
                (value[0] % 3 != 0).then_some(value)
            })?;
            steps.push(Step::Read((TREE, key.clone()), old));
            steps.push(Step::Write((TREE, key), new));
        }
        1 => {
            let key = SHAPE.key(random);
            let found = txn.get(&TABLE, &key)?;
            assert_eq!(txn.contains(&TABLE, &key)?, found.is_some());
            let rows = txn.range(&TABLE, &key[..]..)?.collect::<Result<Vec<_>, _>>()?;
            assert_eq!(txn.count(&TABLE, &key[..]..)?, rows.len() as u64);
            steps.push(Step::Read((TREE, key.clone()), found));
            steps.push(Step::Scan(TREE, key, vec![0xff], rows));
        }
        _ => {
            let found = match (back, take) {
                (false, false) => txn.first(&TABLE)?,
                (true, false) => txn.last(&TABLE)?,
                (false, true) => txn.pop_first(&TABLE)?,
                (true, true) => txn.pop_last(&TABLE)?,
            };
            // There is no record beyond it.
            let Some((key, value)) = found else {
                steps.push(whole());
                return Ok(());
            };
            let (from, to) =
                if back { (key.clone(), vec![0xff]) } else { (Vec::new(), after(&key)) };
            steps.push(Step::Scan(TREE, from, to, vec![(key.clone(), value)]));
            if take {
                steps.push(Step::Write((TREE, key), None));
            }
        }
    }
    Ok(())
}

/// Runs some steps of a transaction, then commits it or leaves it to another thread.
fn go_on(
    store: &Store<Native>,
    (mut txn, mut steps, left): Begun,
    random: &mut Random,
    begun: &Mutex<Vec<Begun>>,
    done: &Mutex<Vec<Done>>,
) {
    let stepped = txn.with(|tx| match random.below(2) {
        0 => stage::step(tx, random, SHAPE, &mut steps),
        _ => end(tx, random, &mut steps),
    });
    match stepped {
        Ok(()) if left > 0 => begun.lock().unwrap().push((txn, steps, left - 1)),
        Ok(()) if random.below(8) == 0 => txn.roll_back().unwrap(),
        Ok(()) => {
            let end = store.log_end() - 1;
            // The last write may be performed by the commit and meet ranges of others.
            let at = match txn.commit() {
                Ok(at) => at,
                Err(error) => return assert!(error.is_retryable(), "{error}"),
            };
            done.lock().unwrap().push(Done { at: at.unwrap_or(end), wrote: at.is_some(), steps });
        }
        Err(error) if error.is_retryable() && random.below(2) == 0 => {
            txn.restart().unwrap();
            begun.lock().unwrap().push((txn, Vec::new(), 2));
        }
        Err(error) => assert!(error.is_retryable(), "{error}"),
    }
}

/// Reads in an older snapshot, with a cursor in both directions.
fn look(snapshot: &KeptSnapshot<Native>, random: &mut Random) -> Done {
    let key = SHAPE.key(random);
    let found = snapshot.get(&TABLE, &key).unwrap();
    assert_eq!(snapshot.contains(&TABLE, &key).unwrap(), found.is_some());
    let mut steps = vec![Step::Read((TREE, key), found)];
    let mut cursor = snapshot.cursor(&TABLE).unwrap();
    let mut rows = Vec::new();
    if random.below(2) == 0 {
        while let Some(row) = cursor.next().unwrap() {
            rows.push(row);
        }
        assert_eq!(cursor.prev().unwrap(), rows.last().cloned());
    } else {
        let mut next = cursor.last().unwrap();
        while let Some(row) = next {
            rows.insert(0, row);
            next = cursor.prev().unwrap();
        }
        assert_eq!(cursor.next().unwrap(), rows.first().cloned());
    }
    assert_eq!(snapshot.first(&TABLE).unwrap(), rows.first().cloned());
    assert_eq!(snapshot.last(&TABLE).unwrap(), rows.last().cloned());
    assert_eq!(snapshot.count(&TABLE, ..).unwrap(), rows.len() as u64);
    steps.push(Step::Scan(TREE, Vec::new(), vec![0xff], rows));
    Done { at: snapshot.at(), wrote: false, steps }
}

/// Transactions that move between threads between their steps, and stored snapshots.
fn crowd(mode: Mode, seed: u64) -> usize {
    let disk = Simulated::new();
    let store = begin(&disk, mode).unwrap();
    let (begun, done, kept) =
        (Mutex::new(Vec::new()), Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    // A thread may wait for a transaction that no thread works on, so time is limited.
    let patience = TxnOptions { time: Duration::from_millis(4), ..TxnOptions::default() };
    thread::scope(|scope| {
        for thread in 0..3 {
            let (store, begun, done, kept, patience) = (&store, &begun, &done, &kept, &patience);
            scope.spawn(move || {
                let mut random = Random(seed * 1000 + thread + 1);
                for _ in 0..250 {
                    let waiting = begun.lock().unwrap().pop();
                    let next = match waiting {
                        // Number of transactions for which there are thread slots.
                        Some(next) if random.below(3) != 0 || begun.lock().unwrap().len() > 8 => {
                            Some(next)
                        }
                        other => {
                            begun.lock().unwrap().extend(other);
                            None
                        }
                    };
                    let next = next.unwrap_or_else(|| {
                        (store.begin_with(patience).unwrap(), Vec::new(), random.below(4))
                    });
                    go_on(store, next, &mut random, begun, done);
                    if random.below(4) == 0 && kept.lock().unwrap().len() < 8 {
                        kept.lock().unwrap().push(store.snapshot().unwrap());
                    }
                    let old = random.below(4) == 0 && kept.lock().unwrap().len() > 3;
                    let snapshot = if old { kept.lock().unwrap().pop() } else { None };
                    if let Some(snapshot) = snapshot {
                        let seen = look(&snapshot, &mut random);
                        done.lock().unwrap().push(seen);
                    }
                }
            });
        }
    });
    begun.into_inner().unwrap().clear();
    kept.into_inner().unwrap().clear();
    let counts = store.counts().unwrap();
    assert_eq!((counts.locks, counts.transactions), (0, 0), "{counts:?}");
    store.verify().unwrap();
    replay(done.into_inner().unwrap()).unwrap_or_else(|wrong| panic!("{mode:?}, {seed}: {wrong}"))
}

#[test]
fn transactions_moved_between_threads_are_serializable() {
    for (seed, mode) in (1..).zip([Mode::Full, Mode::None, Mode::None]) {
        let reads = crowd(mode, seed);
        assert!(reads > 200, "only {reads} reads were compared");
    }
}

/// A transaction that has written sees the ends as it left them.
#[test]
fn ends_reflect_the_transactions_own_changes() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    store.write(|tx| (1..4).try_for_each(|key| tx.put(&NUMBERS, key, key))).unwrap();
    let left = store.write(|tx| {
        assert_eq!(tx.pop_first(&NUMBERS)?, Some((1, 1)));
        assert_eq!(tx.pop_first(&NUMBERS)?, Some((2, 2)));
        tx.put(&NUMBERS, 0, 7)?;
        assert_eq!(tx.first(&NUMBERS)?, Some((0, 7)));
        tx.remove(&NUMBERS, 3)?;
        assert_eq!(tx.pop_last(&NUMBERS)?, Some((0, 7)));
        Ok((tx.pop_last(&NUMBERS)?, tx.count(&NUMBERS, ..)?))
    });
    assert_eq!(left, Ok((None, 0)));
}

fn is_send<T: Send>() {}

#[test]
fn a_dropped_transaction_is_rolled_back() {
    is_send::<Transaction>();
    is_send::<KeptSnapshot>();
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let mut txn = store.begin().unwrap();
    txn.put(&TABLE, b"a", b"1").unwrap();
    let here = txn.savepoint().unwrap();
    txn.put(&TABLE, b"a", b"2").unwrap();
    txn.roll_back_to(here).unwrap();
    assert_eq!(txn.get(&TABLE, b"a"), Ok(Some(b"1".to_vec())));
    // A second transaction waits for it and gets an error in the end.
    let short = TxnOptions { time: Duration::ZERO, ..TxnOptions::default() };
    let mut other = store.begin_with(&short).unwrap();
    let refused = other.get(&TABLE, b"a").unwrap_err();
    let aborted = Error::Aborted { why: Box::new(refused) };
    assert_eq!(other.get(&TABLE, b"b"), Err(aborted), "it must be rolled back");
    other.restart().unwrap();
    assert_eq!(other.get(&TABLE, b"b"), Ok(None));
    drop(txn);
    assert_eq!(other.get(&TABLE, b"a"), Ok(None));
    assert_eq!(other.commit(), Ok(None), "a transaction without writes was logged");
    // More objects than pooled sessions.
    let all: Vec<_> = (0..30).map(|_| store.snapshot().unwrap()).collect();
    assert!(all.iter().all(|one| one.get(&TABLE, b"a") == Ok(None)));
    drop(all);
    assert_eq!(store.counts().unwrap().transactions, 0);
    // The store is closed when the last object is dropped.
    let last = store.snapshot().unwrap();
    drop(store);
    assert_eq!(last.get(&TABLE, b"a"), Ok(None));
}

/// Log space that a rollback frees is not lost.
#[test]
fn a_long_transaction_is_rolled_back() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let key = |number: u32| number.to_be_bytes();
    let ended = store.write(|tx| {
        (0..60_000).try_for_each(|number| tx.put(&TABLE, &key(number), b""))?;
        Err::<(), _>(Error::Rejected(String::new()))
    });
    assert_eq!(ended, Err(Error::Rejected(String::new())));
    assert_eq!(store.read(|tx| Ok(tx.range(&TABLE, ..)?.count())), Ok(0));
    store.write(|tx| tx.put(&TABLE, b"a", b"1")).unwrap();
}

/// The position of the model's cursor.
#[derive(Clone, Debug)]
enum At {
    Start,
    Key(u64),
    Gap(u64),
    End,
}

fn step_model(model: &BTreeMap<u64, u64>, at: &mut At, back: bool) -> Option<(u64, u64)> {
    let found = match (&at, back) {
        (At::Start, false) => model.iter().next(),
        (At::End, true) => model.iter().next_back(),
        (At::Start, true) | (At::End, false) => None,
        (At::Key(key), false) => model.range((Bound::Excluded(*key), Bound::Unbounded)).next(),
        (At::Gap(key), false) => model.range(*key..).next(),
        (At::Key(key) | At::Gap(key), true) => model.range(..*key).next_back(),
    };
    *at = match found {
        Some((key, _)) => At::Key(*key),
        None if back => At::Start,
        None => At::End,
    };
    found.map(|(key, value)| (*key, *value))
}

const NUMBERS: Table<u64, u64> = Table::new("numbers");

#[test]
fn a_cursor_moves_as_in_a_map() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let mut random = Random(11);
    let mut model = BTreeMap::new();
    for _ in 0..40 {
        store
            .write(|tx| {
                for _ in 0..40 {
                    let key = random.below(1500);
                    tx.put(&NUMBERS, key, key * 3)?;
                    model.insert(key, key * 3);
                }
                let from = random.below(1500);
                tx.remove_range(&NUMBERS, from..from + 20)?;
                model.retain(|key, _| !(from..from + 20).contains(key));
                Ok(())
            })
            .unwrap();
    }
    let snapshot = store.snapshot().unwrap();
    // Later changes are not visible.
    store.write(|tx| tx.remove_range(&NUMBERS, 100..700)).unwrap();
    let mut cursor = snapshot.cursor(&NUMBERS).unwrap();
    let mut at = At::Start;
    let mut far = 0;
    for step in 0..20_000 {
        let key = random.below(1500);
        let (found, expected) = match random.below(12) {
            0 => (cursor.first(), {
                at = At::Start;
                step_model(&model, &mut at, false)
            }),
            1 => (cursor.last(), {
                at = At::End;
                step_model(&model, &mut at, true)
            }),
            2 => (cursor.seek(key), {
                at = At::Gap(key);
                step_model(&model, &mut at, false)
            }),
            3 => (cursor.seek_back(key), {
                at = At::Gap(key + 1);
                step_model(&model, &mut at, true)
            }),
            4 => (cursor.seek_exact(key), {
                let found = model.get(&key).map(|value| (key, *value));
                at = if found.is_some() { At::Key(key) } else { At::Gap(key) };
                found
            }),
            // Long runs in one direction, and short ones in both.
            _ if step / 500 % 3 == 0 => (cursor.prev(), step_model(&model, &mut at, true)),
            _ if step / 500 % 3 == 1 => (cursor.next(), step_model(&model, &mut at, false)),
            5..=7 => (cursor.prev(), step_model(&model, &mut at, true)),
            _ => (cursor.next(), step_model(&model, &mut at, false)),
        };
        assert_eq!(found, Ok(expected), "step {step}");
        assert_eq!(cursor.current(), Ok(expected), "step {step}");
        far += u64::from(expected.is_some());
    }
    assert!(far > 10_000 && model.len() > 500, "{far} of {}", model.len());
    // A table without records.
    const NONE: Table<u64, u64> = Table::new("none");
    let mut cursor = snapshot.cursor(&NONE).unwrap();
    assert_eq!((cursor.seek(1), cursor.prev(), cursor.last()), (Ok(None), Ok(None), Ok(None)));
}

const PAIRS: Multi<u64, &str> = Multi::new("pairs");

#[test]
fn a_multimap_is_a_set_of_pairs() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let mut random = Random(12);
    let mut model: BTreeSet<(u64, String)> = BTreeSet::new();
    for round in 0..300 {
        let of = |model: &BTreeSet<(u64, String)>, key: u64| {
            let pairs = model.iter().filter(|pair| pair.0 == key);
            pairs.map(|pair| pair.1.clone()).collect::<Vec<_>>()
        };
        store
            .write(|tx| {
                for _ in 0..5 {
                    let (key, value) = (random.below(6), format!("{}", random.below(30)));
                    let pair = (key, value.clone());
                    match random.below(6) {
                        0 => assert_eq!(tx.remove_value(&PAIRS, key, &value)?, model.remove(&pair)),
                        1 if random.below(4) == 0 => {
                            let there = of(&model, key).len() as u64;
                            assert_eq!(tx.remove_values(&PAIRS, key)?, there);
                            model.retain(|pair| pair.0 != key);
                        }
                        2 => {
                            let found = tx.values(&PAIRS, key)?.collect::<Result<Vec<_>, _>>()?;
                            assert_eq!(found, of(&model, key));
                            assert_eq!(tx.has_value(&PAIRS, key, &value)?, model.contains(&pair));
                        }
                        _ => assert_eq!(tx.insert_value(&PAIRS, key, &value)?, model.insert(pair)),
                    }
                }
                Ok(())
            })
            .unwrap();
        let key = round % 6;
        let seen = store.read(|tx| {
            let back = tx.values(&PAIRS, key)?.rev().collect::<Result<Vec<_>, _>>()?;
            let all = tx.pairs(&PAIRS)?.collect::<Result<Vec<_>, _>>()?;
            assert!(all.iter().all(|(key, value)| tx.has_value(&PAIRS, *key, value) == Ok(true)));
            Ok((back, all))
        });
        let (mut back, all) = seen.unwrap();
        back.reverse();
        assert_eq!((back, all), (of(&model, key), model.iter().cloned().collect()));
    }
    assert!(model.len() > 20);
}

const TICKETS: Sequence = Sequence::new("tickets").batch(10);
const OTHERS: Sequence = Sequence::new("others");

/// Takes numbers in several threads. Each thread sees them rise.
fn take(store: &Store<Native>, threads: u64, each: u64) -> Vec<u64> {
    let all = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mine: Vec<_> =
                    (0..each).map(|_| store.next_number(&TICKETS).unwrap()).collect();
                assert!(mine.is_sorted_by(|one, next| one < next));
                all.lock().unwrap().extend(mine);
            });
        }
    });
    all.into_inner().unwrap()
}

#[test]
fn a_sequence_repeats_no_value_even_after_crashes() {
    let disk = Simulated::new();
    let mut given = BTreeSet::new();
    for life in 0..6 {
        let store = begin(&disk, Mode::Full).unwrap();
        for number in take(&store, 3, 35 + life) {
            assert!(given.insert(number), "{number} was given twice");
        }
        assert!(store.next_number(&OTHERS).unwrap() <= 64 * (life + 1));
        // A number taken in a transaction that is rolled back stays used.
        let mut inside = 0;
        let rejected = store.write(|tx| {
            inside = store.next_number(&TICKETS)?;
            tx.put(&NUMBERS, inside, 1)?;
            Err::<(), _>(Error::Rejected(String::new()))
        });
        assert!(rejected.is_err() && given.insert(inside));
        disk.crash();
        drop(store);
        disk.restart(life);
    }
    assert!(*given.last().unwrap() < 2 * given.len() as u64, "gaps larger than batches");
}

/// Several threads take jobs from both ends while others add: each job is taken once.
#[test]
fn a_queue_neither_loses_nor_repeats_an_element() {
    const JOBS: Table<u64, u64> = Table::new("jobs");
    const COUNT: u64 = 300;
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let taken = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for taker in 0..3 {
            let (store, taken) = (&store, &taken);
            scope.spawn(move || {
                while (taken.lock().unwrap().len() as u64) < COUNT {
                    let job = store.write(|tx| match taker {
                        0 => tx.pop_last(&JOBS),
                        _ => tx.pop_first(&JOBS),
                    });
                    match job.unwrap() {
                        Some((job, _)) => taken.lock().unwrap().push(job),
                        None => thread::yield_now(),
                    }
                }
            });
        }
        for half in 0..2 {
            let store = &store;
            scope.spawn(move || {
                for job in (0..COUNT).filter(|job| job % 2 == half) {
                    store.write(|tx| tx.insert(&JOBS, job, 0)).unwrap();
                }
            });
        }
    });
    let mut taken = taken.into_inner().unwrap();
    taken.sort_unstable();
    assert!(taken.into_iter().eq(0..COUNT));
    assert_eq!(store.read(|tx| tx.first(&JOBS)), Ok(None));
}

/// For each type, a value that was read can be written again.
fn lends<V: Value>(value: V::Of<'_>) {
    let mut bytes = Vec::new();
    V::encode(&value, &mut bytes);
    let owned = V::decode(&bytes).unwrap();
    let mut again = Vec::new();
    V::encode(&V::lend(&owned), &mut again);
    assert_eq!(bytes, again);
}

#[test]
fn decoded_values_can_be_passed_to_calls() {
    lends::<u64>(7);
    lends::<f64>(0.5);
    lends::<&str>("text");
    lends::<String>("text");
    lends::<&[u8]>(b"bytes");
    lends::<Vec<u8>>(b"bytes");
    lends::<[u8; 3]>([1, 2, 3]);
    lends::<bool>(true);
    lends::<()>(());
}

//! The ends of tables in repeated operations of one transaction; and transactions with very many
//! operations.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};
use std::sync::Barrier;

use latchwork_check::random::Random;
use latchwork_disk::Simulated;
use latchwork_machine::Native;
use latchwork_store::{Error, Level, Mode, Raw, Refusal, Store, Table, TxnOptions, WriteTxn};

use crate::stage::{begin, begin_within, sizes};

const ROWS: Table<u64, u64> = Table::new("rows");
const OTHERS: Table<u64, u64> = Table::new("others");
const LONG: Table<u64, &[u8]> = Table::new("long");

fn read_committed() -> TxnOptions {
    TxnOptions { level: Level::ReadCommitted, ..TxnOptions::default() }
}

/// One step at either end, or before its records, of the table and of a map.
fn step(
    tx: &mut WriteTxn<'_, '_, Native>,
    map: &mut BTreeMap<u64, u64>,
    random: &mut Random,
) -> Result<(), Error> {
    let (key, value) = (random.below(60), random.below(1000));
    match random.below(10) {
        0 => assert_eq!(tx.pop_first(&ROWS)?, map.pop_first()),
        1 => assert_eq!(tx.pop_last(&ROWS)?, map.pop_last()),
        2 => assert_eq!(tx.first(&ROWS)?, map.iter().next().map(|(k, v)| (*k, *v))),
        3 => assert_eq!(tx.last(&ROWS)?, map.iter().next_back().map(|(k, v)| (*k, *v))),
        4 => {
            tx.remove(&ROWS, key)?;
            map.remove(&key);
        }
        5 => {
            let rows = tx.range(&ROWS, ..=key)?.collect::<Result<Vec<_>, _>>()?;
            assert!(rows.into_iter().eq(map.range(..=key).map(|(k, v)| (*k, *v))));
        }
        6 => {
            let range = (Bound::Excluded(key), Bound::Unbounded);
            assert_eq!(tx.count(&ROWS, range)?, map.range(range).count() as u64);
        }
        7 => {
            let (mut last, most) = (Vec::new(), 1 + random.below(4) as usize);
            tx.scan_back(&ROWS, ..=key, &mut |key, value| {
                last.push((ROWS.key_of(key)?, ROWS.value_of(value)?));
                Ok(last.len() < most)
            })?;
            assert!(last.into_iter().eq(map.range(..=key).rev().take(most).map(|(k, v)| (*k, *v))));
        }
        8 => {
            tx.put_final(&ROWS, key, value)?;
            map.insert(key, value);
        }
        _ => {
            tx.put(&ROWS, key, value)?;
            map.insert(key, value);
        }
    }
    Ok(())
}

/// A transaction finds the same records at the ends as a map does, after any writes and rollbacks.
#[test]
fn first_and_last_records_equal_a_map() {
    let store = begin(&Simulated::default(), Mode::None).unwrap();
    let mut random = Random(0x5eed);
    for round in 0..400 {
        let patience = if round % 4 == 0 { read_committed() } else { TxnOptions::default() };
        let done = store.write_with(&patience, |tx| {
            let rows = tx.range(&ROWS, ..)?.collect::<Result<BTreeMap<_, _>, _>>()?;
            let mut map = rows;
            for _ in 0..random.below(60) {
                if random.below(8) == 0 {
                    let (savepoint, kept) = (tx.savepoint()?, map.clone());
                    for _ in 0..random.below(12) {
                        step(tx, &mut map, &mut random)?;
                    }
                    if random.below(2) == 0 {
                        tx.roll_back_to(savepoint)?;
                        map = kept;
                    }
                }
                step(tx, &mut map, &mut random)?;
            }
            let rows = tx.range(&ROWS, ..)?.collect::<Result<BTreeMap<_, _>, _>>()?;
            assert_eq!(rows, map);
            Ok(())
        });
        done.unwrap();
    }
}

/// No other transaction writes a record at an end that a transaction has emptied or read, before
/// that transaction ends.
#[test]
fn no_other_writes_outside_a_locked_end() {
    let store = begin(&Simulated::default(), Mode::None).unwrap();
    store.write(|tx| (10..40).try_for_each(|row| tx.put(&ROWS, row, row))).unwrap();
    let hasty = TxnOptions { time: std::time::Duration::from_millis(20), ..TxnOptions::default() };
    let mut one = store.begin().unwrap();
    for row in 10..20 {
        let ends = one.with(|tx| Ok((tx.pop_first(&ROWS)?, tx.pop_last(&ROWS)?))).unwrap();
        assert_eq!(ends, (Some((row, row)), Some((49 - row, 49 - row))));
    }
    assert_eq!(one.with(|tx| tx.first(&ROWS)).unwrap(), Some((20, 20)));
    std::thread::scope(|threads| {
        let (store, hasty) = (&store, &hasty);
        let puts = |row| {
            let put = threads.spawn(move || store.write_with(hasty, |tx| tx.put(&ROWS, row, 0)));
            put.join().unwrap().map(drop)
        };
        for row in [0, 5, 11, 15, 19, 20, 30, 35, 39, 60] {
            assert!(matches!(puts(row), Err(Error::Deadline { .. })), "row {row}");
        }
        assert!(puts(25).is_ok(), "it is not locked");
    });
    assert_eq!(one.with(|tx| tx.first(&ROWS)).unwrap(), Some((20, 20)));
    one.commit().unwrap();
    assert_eq!(store.read(|tx| tx.count(&ROWS, ..)).unwrap(), 10);
}

/// A bound at a key, or none.
fn bound(random: &mut Random) -> Bound<u64> {
    let key = random.below(8);
    match random.below(5) {
        0 | 1 => Bound::Included(key),
        2 | 3 => Bound::Excluded(key),
        _ => Bound::Unbounded,
    }
}

/// A transaction holds each key of the ranges that it has read, also if they overlap, and no other
/// key.
#[test]
fn a_read_locks_its_records_and_no_others() {
    let store = begin(&Simulated::default(), Mode::None).unwrap();
    let hasty = TxnOptions { time: std::time::Duration::from_micros(100), ..TxnOptions::default() };
    let mut random = Random(0xe2d5);
    for round in 0..300 {
        let mut one = store.begin().unwrap();
        let mut ranges = Vec::new();
        for _ in 0..1 + random.below(8) {
            let range = (bound(&mut random), bound(&mut random));
            if matches!(range, (Bound::Unbounded, Bound::Unbounded)) {
                continue;
            }
            one.with(|tx| tx.count(&ROWS, range)).unwrap();
            ranges.push(range);
        }
        let (store, hasty, ranges) = (&store, &hasty, &ranges);
        std::thread::scope(|threads| {
            threads.spawn(move || {
                for key in 0..8 {
                    let put = store.write_with(hasty, |tx| {
                        tx.put(&ROWS, key, 0)?;
                        tx.remove(&ROWS, key).map(drop)
                    });
                    let held = ranges.iter().any(|range| range.contains(&key));
                    match put {
                        Ok(_) => assert!(!held, "round {round}, {key} in {ranges:?}"),
                        Err(Error::Deadline { .. }) => {
                            assert!(held, "round {round}, {key} in {ranges:?}");
                        }
                        Err(why) => panic!("{why}"),
                    }
                }
            });
        });
        one.commit().unwrap();
    }
}

/// Inserts records, and increments each if it still exists. Returns the sum of all values.
fn put_all(store: &Store<Native>, patience: &TxnOptions, rows: impl Iterator<Item = u64>) -> u64 {
    let mut sum = 0;
    for row in rows {
        store.put(&ROWS, row, 1).unwrap();
        let raise = |old: Option<u64>| old.map(|old| old + 1);
        let raised = store.write_with(patience, |tx| tx.update(&ROWS, row, raise)).unwrap();
        sum += raised.value.unwrap_or(1);
    }
    sum
}

/// Takes records from an end until none was found for long.
fn take_all(store: &Store<Native>, patience: &TxnOptions, back: bool) -> Vec<(u64, u64)> {
    let (mut taken, mut idle) = (Vec::new(), 0);
    while idle < 400 {
        let pop = |tx: &mut WriteTxn<'_, '_, Native>| match back {
            false => tx.pop_first(&ROWS),
            true => tx.pop_last(&ROWS),
        };
        let found = store.write_with(patience, pop).unwrap().value;
        idle = if found.is_some() { 0 } else { idle + 1 };
        taken.extend(found);
        std::thread::yield_now();
    }
    taken
}

/// Threads that take from one queue at the same time get each record once, with its last value,
/// also where their level holds no range and the queue is sometimes empty.
#[test]
fn each_record_is_popped_once() {
    const EACH: u64 = 1500;
    for level in [Level::ReadCommitted, Level::Serializable] {
        let store = begin(&Simulated::default(), Mode::None).unwrap();
        let patience = TxnOptions { level, ..TxnOptions::default() };
        let (sum, taken) = std::thread::scope(|threads| {
            let (store, patience) = (&store, &patience);
            let puts = [0, 1].map(|half| {
                threads.spawn(move || put_all(store, patience, (half..2 * EACH).step_by(2)))
            });
            let takes = [false, true, false, true]
                .map(|back| threads.spawn(move || take_all(store, patience, back)));
            let sum: u64 = puts.into_iter().map(|put| put.join().unwrap()).sum();
            let taken: Vec<_> = takes.into_iter().flat_map(|take| take.join().unwrap()).collect();
            (sum, taken)
        });
        let left = store.read(|tx| tx.range(&ROWS, ..)?.collect::<Result<Vec<_>, _>>()).unwrap();
        let (mut rows, values): (Vec<_>, Vec<_>) = taken.into_iter().chain(left).unzip();
        rows.sort_unstable();
        assert!(rows.iter().copied().eq(0..2 * EACH), "{level:?}: {} were taken", rows.len());
        assert_eq!(values.into_iter().sum::<u64>(), sum, "{level:?}");
    }
}

/// Two transactions that remove the same range concurrently count each record once.
#[test]
fn records_of_a_removed_range_are_counted_once() {
    let store = begin(&Simulated::default(), Mode::None).unwrap();
    for level in [Level::ReadCommitted, Level::Serializable] {
        let patience = TxnOptions { level, ..TxnOptions::default() };
        for _ in 0..60 {
            store.write(|tx| (0..300).try_for_each(|row| tx.put(&ROWS, row, row))).unwrap();
            let begin = Barrier::new(2);
            let remove = || {
                begin.wait();
                store.write_with(&patience, |tx| tx.remove_range(&ROWS, ..)).unwrap().value
            };
            let removed = std::thread::scope(|threads| {
                let other = threads.spawn(remove);
                remove() + other.join().unwrap()
            });
            assert_eq!(removed, 300, "{level:?}");
        }
    }
}

/// A lock is counted to 65,535; a transaction may touch a record more often.
#[test]
fn a_record_may_be_touched_more_often_than_locks_are_counted() {
    const OFTEN: u64 = 70_000;
    let store = begin(&Simulated::default(), Mode::None).unwrap();
    store.put(&ROWS, 1, 0).unwrap();
    for patience in [TxnOptions::default(), read_committed()] {
        let done = store.write_with(&patience, |tx| {
            for _ in 0..OFTEN {
                tx.get(&ROWS, 1)?;
            }
            let value = tx.get_for_update(&ROWS, 1)?.unwrap_or(0);
            for more in 1..=OFTEN {
                tx.put(&ROWS, 1, value + more)?;
            }
            tx.get(&ROWS, 1)
        });
        assert_eq!(done.unwrap().value.unwrap() % OFTEN, 0);
        let counts = store.counts().unwrap();
        assert_eq!((counts.locks, counts.transactions), (0, 0));
    }
    // The lock is held throughout.
    let mut one = store.begin().unwrap();
    for _ in 0..OFTEN {
        one.get_for_update(&ROWS, 1).unwrap();
    }
    let hasty = TxnOptions { time: std::time::Duration::from_millis(20), ..TxnOptions::default() };
    let other = std::thread::scope(|threads| {
        threads.spawn(|| store.write_with(&hasty, |tx| tx.put(&ROWS, 1, 7))).join().unwrap()
    });
    assert!(matches!(other, Err(Error::Deadline { .. })));
}

/// No room for the locks of all records of a range: none of them is removed.
#[test]
fn a_range_is_removed_as_a_whole_or_not() {
    const MANY: u64 = 60_000;
    let (_region, store): (_, Store<Native>) =
        begin_within(&Simulated::default(), sizes(Mode::None), 12 << 20).unwrap();
    store.load_sorted(&ROWS, (0..MANY).map(|row| (row, row))).unwrap();
    let done = store.write(|tx| {
        tx.put(&OTHERS, 1, 1)?;
        let failed = tx.remove_range(&ROWS, ..).unwrap_err();
        assert!(matches!(failed, Error::Lock { .. } | Error::Locks(_)), "{failed}");
        Ok(())
    });
    done.unwrap();
    assert_eq!(store.read(|tx| tx.count(&ROWS, ..)).unwrap(), MANY);
    assert_eq!(store.read(|tx| tx.count(&OTHERS, ..)).unwrap(), 1);
    store.drop_table(ROWS.name(), &mut |_| {}).unwrap();
    assert_eq!(store.read(|tx| tx.count(&ROWS, ..)).unwrap(), 0);
}

/// Space of a rollback, and space that a killed thread leaves, is used again.
#[test]
fn pages_of_rolled_back_changes_are_reused() {
    let disk = Simulated::default();
    let store = begin(&disk, Mode::None).unwrap();
    let pages = |round: u64| {
        let mut tx = store.begin().unwrap();
        (0..3_000).try_for_each(|row| tx.put(&ROWS, round * 10_000 + row, row)).unwrap();
        tx.put(&LONG, round, &[7; 300_000]).unwrap();
        tx.roll_back().unwrap();
        // Later calls unlink some of the empty leaves.
        for row in 0..60 {
            store.put(&OTHERS, row, round).unwrap();
        }
        store.checkpoint().unwrap();
        store.free_pages().unwrap().1
    };
    let first = pages(0);
    let most = (1..12).map(pages).max().unwrap();
    assert!(most < 2 * first, "{first} pages, and then {most}");
    assert_eq!(store.space().unwrap().lost, 0);
}

/// A prepared transaction has its locks again after a crash, or the open reports the limit.
#[test]
fn too_many_locks_of_a_prepared_transaction_are_an_error() {
    const MANY: u64 = 40_000;
    let disk = Simulated::default();
    let store = begin(&disk, Mode::Full).unwrap();
    store.put(&OTHERS, 1, 1).unwrap();
    let mut tx = store.begin().unwrap();
    (0..MANY).for_each(|row| assert_eq!(tx.get_for_update(&ROWS, row).unwrap(), None));
    tx.put(&ROWS, 0, 7).unwrap();
    tx.prepare(b"one").unwrap();
    disk.crash();
    drop(store);
    disk.restart(1);
    let few = begin_within(&disk, sizes(Mode::Full), 4 << 20).map(drop).unwrap_err();
    let Error::Open { why: Refusal::Locks { limit }, .. } = few else { panic!("{few}") };
    assert_eq!(limit, 4 << 20);
    disk.crash();
    disk.restart(2);
    let store = begin(&disk, Mode::Full).unwrap();
    assert_eq!(store.prepared().unwrap().len(), 1);
    store.commit_prepared(b"one").unwrap();
    assert_eq!(store.get(&ROWS, 0).unwrap(), Some(7));
}

/// A record that cannot be read as the table's type is reported and stays; the transaction
/// continues.
#[test]
fn an_unreadable_range_is_not_removed() {
    const RAW: Table<Raw, Raw> = Table::new("rows");
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    store.put(&ROWS, 1, 1).unwrap();
    // A tool has written invalid rows.
    let (one, text) = (ROWS.key(&1).unwrap(), b"\x20text");
    store.put(&RAW, &one, &[1, 2, 3]).unwrap();
    store.put(&RAW, text, &[]).unwrap();
    let (value, key) =
        store.write(|tx| Ok((tx.pop_first(&ROWS).err(), tx.pop_last(&ROWS).err()))).unwrap();
    assert!(matches!(value, Some(Error::Value { .. })), "{value:?}");
    assert!(matches!(key, Some(Error::Key { .. })), "{key:?}");
    assert_eq!(store.write(|tx| tx.pop_first(&RAW)).unwrap(), Some((one, vec![1, 2, 3])));
}

/// At read committed a pop passes over locked records, and waits only if it finds no other.
#[test]
fn read_committed_pops_pass_over_locked_records() {
    let store = begin(&Simulated::default(), Mode::None).unwrap();
    store.write(|tx| (0..3).try_for_each(|row| tx.put(&ROWS, row, row))).unwrap();
    let hasty = TxnOptions { time: std::time::Duration::from_millis(20), ..read_committed() };
    let mut one = store.begin().unwrap();
    one.with(|tx| tx.put(&ROWS, 0, 7)).unwrap();
    one.with(|tx| tx.put(&ROWS, 3, 7)).unwrap();
    std::thread::scope(|threads| {
        let meanwhile = || {
            let pop = |back| {
                let popped = store.write_with(&hasty, |tx| tx.pop_final(&ROWS, back));
                popped.map(|done| done.value)
            };
            let insert = |key| {
                let inserted =
                    store.write_with(&hasty, |tx| tx.try_insert_final(&ROWS, key, 9)).unwrap();
                inserted.value
            };
            let last = store.write_with(&hasty, |tx| tx.last_key(&ROWS)).unwrap().value;
            assert_eq!(last, Some(3), "not committed yet");
            assert!(!insert(3), "locked");
            assert!(!insert(2), "it exists");
            assert_eq!(pop(true).unwrap(), Some((2, 2)), "3 is locked");
            assert!(insert(4));
            assert_eq!(pop(false).unwrap(), Some((1, 1)), "0 is locked");
            assert_eq!(pop(false).unwrap(), Some((4, 9)));
            assert!(matches!(pop(false), Err(Error::Deadline { .. })), "all are locked");
        };
        threads.spawn(meanwhile).join().unwrap();
    });
    drop(one);
    assert_eq!(store.write(|tx| tx.pop_final(&ROWS, true)).unwrap(), Some((0, 0)));
    assert_eq!(store.read(|tx| tx.count(&ROWS, ..)).unwrap(), 0);
}

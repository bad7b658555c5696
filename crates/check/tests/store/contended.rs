//! Records that many transactions read and then write.

use std::cell::Cell;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use latchwork_check::tasks::{Task, join, pause};
use latchwork_disk::Simulated;
use latchwork_store::{Error, Mode, Table, TxnOptions};

use crate::stage::begin;

const ROWS: Table<u64, u64> = Table::new("rows");

fn patience(ms: u64) -> TxnOptions {
    TxnOptions { time: Duration::from_millis(ms), ..TxnOptions::default() }
}

/// Two transactions have read a record and both write it: one is retried, and then reads the record
/// for update.
#[test]
fn a_retry_reads_for_update_what_it_failed_to_write() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    store.put(&ROWS, 1, 0).unwrap();
    store.put(&ROWS, 2, 0).unwrap();
    let may_be_written = |row: u64| {
        let mut other = store.begin_with(&patience(20)).unwrap();
        other.get_for_update(&ROWS, row).is_ok()
    };
    let both = Barrier::new(2);
    let mut loser = thread::scope(|scope| {
        let threads = [(); 2].map(|()| {
            let (store, both) = (&store, &both);
            scope.spawn(move || {
                let mut txn = store.begin_with(&patience(30_000)).unwrap();
                assert_eq!(txn.get(&ROWS, 1), Ok(Some(0)));
                both.wait();
                match txn.put(&ROWS, 1, 1) {
                    Ok(()) => txn.commit().map(|_| None).unwrap(),
                    Err(error) => {
                        assert!(error.is_retryable(), "{error}");
                        txn.restart().unwrap();
                        Some(txn)
                    }
                }
            })
        });
        let ended = threads.map(|thread| thread.join().unwrap());
        ended.into_iter().flatten().next().expect("one of the two must be the victim")
    });
    assert_eq!(loser.get(&ROWS, 2), Ok(Some(0)));
    assert!(may_be_written(2), "another record was read for update");
    assert_eq!(loser.get(&ROWS, 1), Ok(Some(1)));
    assert!(!may_be_written(1), "the record was not read for update");
    assert_eq!(store.get(&ROWS, 1), Ok(Some(1)), "readers pass");
    let mut reader = store.begin_with(&patience(20)).unwrap();
    assert_eq!(reader.get(&ROWS, 1), Ok(Some(1)));
    reader.commit().unwrap();
    loser.put(&ROWS, 1, 2).unwrap();
    loser.commit().unwrap();
    assert_eq!(store.get(&ROWS, 1), Ok(Some(2)));
    assert!(may_be_written(1));
}

/// The same for tasks, whose waits end in another place.
#[test]
fn a_retried_task_reads_for_update_what_it_failed_to_write() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    store.put(&ROWS, 1, 0).unwrap();
    let lost = Cell::new(0);
    let task = |_: u64| {
        let (store, lost) = (&store, &lost);
        let task: Task<'_> = Box::pin(async move {
            let mut txn = store.begin_async().await.unwrap();
            assert_eq!(txn.get(&ROWS, 1).await, Ok(Some(0)));
            pause().await;
            if let Err(error) = txn.put(&ROWS, 1, 1).await {
                assert!(error.is_retryable(), "{error}");
                txn.restart().unwrap();
                assert_eq!(txn.get(&ROWS, 1).await, Ok(Some(1)));
                let mut other = store.begin_with(&patience(20)).unwrap();
                assert!(other.get_for_update(&ROWS, 1).is_err(), "it was not read for update");
                lost.set(lost.get() + 1);
                txn.put(&ROWS, 1, 2).await.unwrap();
            }
            txn.commit().await.unwrap();
        });
        Some(task)
    };
    join((0..2).map(task).collect());
    assert_eq!((lost.get(), store.get(&ROWS, 1)), (1, Ok(Some(2))));
}

/// The same for a range that many transactions have read, and into which each inserts a record.
#[test]
fn a_retry_reads_for_update_a_range_it_failed_to_write() {
    [false, true].into_iter().for_each(many_write_in_a_range);
}

/// The write is immediate, or deferred to the commit.
fn many_write_in_a_range(last: bool) {
    const MANY: u64 = 16;
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    store.put(&ROWS, 0, 0).unwrap();
    let all = Barrier::new(MANY as usize);
    let runs = thread::scope(|scope| {
        let threads = (1..=MANY).map(|number| {
            let (store, all) = (&store, &all);
            scope.spawn(move || {
                let mut first = true;
                let done = store.write_with(&patience(60_000), |tx| {
                    let count = tx.count(&ROWS, ..)?;
                    if std::mem::take(&mut first) {
                        all.wait();
                    }
                    match last {
                        true => tx.put_final(&ROWS, number, count),
                        false => tx.put(&ROWS, number, count),
                    }
                });
                done.unwrap().runs
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(runs.iter().all(|runs| *runs <= 3), "{runs:?}");
    let rows = store.read(|tx| tx.range(&ROWS, ..)?.collect::<Result<Vec<_>, _>>()).unwrap();
    let mut counts: Vec<_> = rows.into_iter().map(|(_, count)| count).collect();
    counts.sort_unstable();
    assert!(counts.into_iter().eq(0..=MANY), "two transactions have read the same");
}

/// The same for tasks, whose waits end in another place; their other reads are not for update.
#[test]
fn a_retried_task_reads_for_update_a_range_it_failed_to_write() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    store.put(&ROWS, 1, 0).unwrap();
    let lost = Cell::new(0);
    let task = |number: u64| {
        let (store, lost) = (&store, &lost);
        let task: Task<'_> = Box::pin(async move {
            let mut txn = store.begin_async().await.unwrap();
            txn.range(&ROWS, 0..10).await.unwrap();
            pause().await;
            if let Err(error) = txn.put(&ROWS, 2 + number, 1).await {
                assert!(error.is_retryable(), "{error}");
                txn.restart().unwrap();
                txn.range(&ROWS, 20..30).await.unwrap();
                let mut other = store.begin_with(&patience(20)).unwrap();
                let there = other.with(|tx| tx.count(&ROWS, 20..30));
                assert_eq!(there, Ok(0), "it was read for update without a conflict");
                txn.range(&ROWS, 0..10).await.unwrap();
                let there = other.with(|tx| tx.count(&ROWS, 0..10));
                assert!(there.is_err(), "it was not read for update");
                lost.set(lost.get() + 1);
                txn.put(&ROWS, 2 + number, 1).await.unwrap();
            }
            txn.commit().await.unwrap();
        });
        Some(task)
    };
    join((0..2).map(task).collect());
    assert_eq!((lost.get(), store.read(|tx| tx.count(&ROWS, ..))), (1, Ok(3)));
}

/// Many threads on one record, and on two in either order: the sums are right, and each commits.
#[test]
fn read_modify_write_transactions_lose_no_update() {
    const EACH: u64 = 300;
    for keys in [&[1][..], &[1, 2]] {
        for for_update in [false, true] {
            let store = begin(&Simulated::new(), Mode::None).unwrap();
            keys.iter().for_each(|key| store.put(&ROWS, *key, 0).unwrap());
            thread::scope(|scope| {
                for number in 0..12 {
                    let store = &store;
                    scope.spawn(move || {
                        for round in 0..EACH {
                            let turned = (number + round) % 2 == 0;
                            let order = |at: usize| if turned { keys.len() - 1 - at } else { at };
                            let done = store.write_with(&patience(60_000), |tx| {
                                for key in (0..keys.len()).map(|at| keys[order(at)]) {
                                    let value = match for_update {
                                        true => tx.get_for_update(&ROWS, key)?,
                                        false => tx.get(&ROWS, key)?,
                                    };
                                    let value = value.ok_or(Error::Options("a row"))?;
                                    tx.put(&ROWS, key, value + 1)?;
                                }
                                Ok(())
                            });
                            done.unwrap();
                        }
                    });
                }
            });
            for key in keys {
                assert_eq!(store.get(&ROWS, *key), Ok(Some(12 * EACH)), "{keys:?}, {for_update}");
            }
        }
    }
}

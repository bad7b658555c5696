//! Closures that read before their first lock.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use latchwork_check::again;
use latchwork_disk::Simulated;
use latchwork_machine::Native;
use latchwork_store::{Error, Mode, Sizes, Store, Table, TxnOptions, WriteTxn};

use crate::dialogue_stages::options;
use crate::stage::{begin, begin_with, sizes};

const ROWS: Table<u64, u64> = Table::new("rows");
const LONG: Table<u64, &[u8]> = Table::new("long");

fn store() -> Store<Native> {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    store.write(|tx| (0..4).try_for_each(|row| tx.put(&ROWS, row, 10))).unwrap();
    store
}

fn short() -> TxnOptions {
    TxnOptions { time: Duration::from_millis(20), ..TxnOptions::default() }
}

/// Returns whether another transaction can write a row now.
fn may_write(store: &Store<Native>, row: u64) -> bool {
    store.begin_with(&short()).unwrap().put(&ROWS, row, 1).is_ok()
}

/// Runs a closure that reads row 0, lets `other` run in the first attempt, and then makes a call.
/// Returns what the last attempt has read, and the number of attempts.
fn attempts(
    store: &Store<Native>,
    other: impl Fn(&Store<Native>),
    call: impl Fn(&mut WriteTxn<'_, '_, Native>) -> Result<(), Error>,
) -> (Option<u64>, u32) {
    let mut runs = 0;
    let done = store.write_with(&TxnOptions::default(), |tx| {
        runs += 1;
        let read = tx.get(&ROWS, 0)?;
        if runs == 1 {
            assert!(tx.reads_at().is_some(), "the read has taken a lock");
            other(store);
        }
        call(tx)?;
        assert_eq!(tx.reads_at(), None, "the call has taken no lock");
        assert!(!may_write(store, 0), "the record is not locked");
        Ok(read)
    });
    let done = done.unwrap();
    assert_eq!((done.runs, store.counts().unwrap().locks), (runs, 0));
    (done.value, runs)
}

type Call = fn(&mut WriteTxn<'_, '_, Native>) -> Result<(), Error>;

/// Calls other than a read of one record.
const CALLS: [(&str, Call); 12] = [
    ("put", |tx| tx.put(&ROWS, 1, 5)),
    ("put of the record", |tx| tx.put(&ROWS, 0, 5)),
    ("put-final", |tx| tx.put_final(&ROWS, 1, 5)),
    ("insert", |tx| tx.insert(&ROWS, 77, 5).or_else(|_| tx.put(&ROWS, 77, 5))),
    ("remove", |tx| tx.remove(&ROWS, 2).map(drop)),
    ("update of the record", |tx| tx.update(&ROWS, 0, |old| old.or(Some(1))).map(drop)),
    ("get-for-update", |tx| tx.get_for_update(&ROWS, 1).map(drop)),
    ("range", |tx| tx.range(&ROWS, 1..2).map(drop)),
    ("first", |tx| tx.first(&ROWS).map(drop)),
    ("pop-last", |tx| tx.pop_last(&ROWS).map(drop)),
    ("savepoint", |tx| tx.savepoint().map(drop)),
    ("many reads", |tx| (100..200).try_for_each(|row| tx.get(&ROWS, row).map(drop))),
];

/// A change of a record between the read and the first lock is noticed, whatever the call.
#[test]
fn a_changed_read_runs_the_closure_again() {
    for (name, call) in CALLS {
        let store = store();
        assert_eq!(attempts(&store, |_| (), call), (Some(10), 1), "{name}");
        store.put(&ROWS, 0, 10).unwrap();
        // A change of another record is none of this one.
        let elsewhere = |store: &Store<Native>| store.put(&ROWS, 3, 8).unwrap();
        assert_eq!(attempts(&store, elsewhere, call), (Some(10), 1), "{name}");
        store.put(&ROWS, 0, 10).unwrap();
        let changed = |store: &Store<Native>| store.put(&ROWS, 0, 11).unwrap();
        assert_eq!(attempts(&store, changed, call), (Some(11), 2), "{name}");
        let removed = |store: &Store<Native>| assert!(store.remove(&ROWS, 0).unwrap());
        assert_eq!(attempts(&store, removed, call), (None, 2), "{name}");
        store.remove(&ROWS, 0).unwrap();
        // It was absent when it was read.
        let inserted = |store: &Store<Native>| store.put(&ROWS, 0, 12).unwrap();
        assert_eq!(attempts(&store, inserted, call), (Some(12), 2), "{name}");
        store.verify().unwrap();
    }
}

/// An error of the check that the closure ignores does not let it commit.
#[test]
fn an_ignored_failure_commits_nothing() {
    let store = store();
    let mut seen = Vec::new();
    let done = store.write_with(&TxnOptions::default(), |tx| {
        let read = tx.get(&ROWS, 0)?;
        if seen.is_empty() {
            store.put(&ROWS, 0, 11)?;
        }
        let put = tx.put(&ROWS, 1, read.unwrap_or(0));
        if let Err(why) = &put {
            assert!(matches!(why, Error::ReadChanged { .. }) && why.is_retryable(), "{why}");
            assert!(why.to_string().contains("of rows has changed"), "{why}");
        }
        seen.push(put.is_ok());
        Ok(())
    });
    assert_eq!((done.unwrap().runs, seen), (2, vec![false, true]));
    assert_eq!(store.get(&ROWS, 1), Ok(Some(11)));
    // An error of the caller's own is not returned instead.
    let mut runs = 0;
    let done = store.write_as(|tx| {
        runs += 1;
        let read = tx.get(&ROWS, 0)?;
        if runs == 1 {
            store.put(&ROWS, 0, 12)?;
        }
        tx.put(&ROWS, 1, read.unwrap_or(0)).map_err(|_| Mine("refused"))
    });
    assert_eq!((done, runs, store.get(&ROWS, 1)), (Ok(()), 2, Ok(Some(12))));
}

#[derive(Debug, PartialEq)]
struct Mine(&'static str);

impl From<Error> for Mine {
    fn from(_: Error) -> Self {
        Self("store")
    }
}

/// Two closures have both read two rows; each writes one of them. One of the two must run again.
#[test]
fn write_skew_is_prevented() {
    let store = store();
    let mut runs = 0;
    store
        .write(|tx| {
            runs += 1;
            let sum = tx.get(&ROWS, 0)?.unwrap_or(0) + tx.get(&ROWS, 1)?.unwrap_or(0);
            if runs == 1 {
                thread::scope(|scope| {
                    let other = scope.spawn(|| {
                        store.write(|tx| {
                            let sum =
                                tx.get(&ROWS, 0)?.unwrap_or(0) + tx.get(&ROWS, 1)?.unwrap_or(0);
                            assert_eq!(sum, 20);
                            tx.put(&ROWS, 1, sum - 20)
                        })
                    });
                    other.join().unwrap()
                })?;
            }
            if sum >= 20 { tx.put(&ROWS, 0, sum - 20) } else { Ok(()) }
        })
        .unwrap();
    assert_eq!((runs, store.get(&ROWS, 0), store.get(&ROWS, 1)), (2, Ok(Some(10)), Ok(Some(0))));
}

/// Threads that read and write one row, or two in either order.
#[test]
fn concurrent_increments_are_all_counted() {
    const EACH: u64 = 300;
    let store = store();
    thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for number in 0..EACH {
                    let rows = [(thread + number) % 2, (thread + number + 1) % 2];
                    store
                        .write(|tx| {
                            for row in rows {
                                let old = tx.get(&ROWS, row)?.unwrap_or(0);
                                tx.put(&ROWS, row, old + 1)?;
                            }
                            let [from, to] = [tx.get(&ROWS, 2)?, tx.get(&ROWS, 3)?];
                            assert_eq!(
                                from.zip(to).map(|(from, to)| from.wrapping_add(to)),
                                Some(20)
                            );
                            Ok(())
                        })
                        .unwrap();
                    store
                        .write(|tx| {
                            let (from, to) = (tx.get(&ROWS, 2)?, tx.get(&ROWS, 3)?);
                            tx.put(&ROWS, 2, from.unwrap_or(0).wrapping_sub(1))?;
                            tx.put(&ROWS, 3, to.unwrap_or(0).wrapping_add(1))
                        })
                        .unwrap();
                }
            });
        }
    });
    let now = |row| store.get(&ROWS, row).unwrap().unwrap();
    assert_eq!([now(0), now(1), now(3)], [10 + 4 * EACH, 10 + 4 * EACH, 10 + 4 * EACH]);
    assert_eq!(store.counts().unwrap().locks, 0);
}

/// A closure that only reads takes no lock, waits for no writer and sees a consistent state.
#[test]
fn a_closure_that_only_reads_waits_for_no_writer() {
    let store = store();
    let mut writer = store.begin().unwrap();
    writer.put(&ROWS, 0, 99).unwrap();
    let locks = store.counts().unwrap();
    let done = store.write_with(&short(), |tx| {
        let read = (tx.get(&ROWS, 0)?, tx.contains(&ROWS, 1)?);
        assert_eq!(store.counts().unwrap(), locks, "it has a lock");
        Ok(read)
    });
    let done = done.unwrap();
    assert_eq!((done.value, done.at, done.runs), ((Some(10), true), None, 1));
    writer.commit().unwrap();
    assert_eq!(store.write(|tx| tx.get(&ROWS, 0)), Ok(Some(99)));
    store.put(&ROWS, 0, 10).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..2000 {
                let rows = [number % 4, (number + 1) % 4];
                let moved = store.write(|tx| {
                    tx.update(&ROWS, rows[0], |old| old.map(|old| old.wrapping_sub(1)))?;
                    tx.update(&ROWS, rows[1], |old| old.map(|old| old.wrapping_add(1)))
                });
                moved.unwrap();
            }
            over.store(true, Relaxed);
        });
        let mut reads = 0;
        while !over.load(Relaxed) || reads < 100 {
            let done = store.write_with(&TxnOptions::default(), |tx| {
                (0..4).try_fold(0, |sum: u64, row| {
                    Ok(sum.wrapping_add(tx.get(&ROWS, row)?.unwrap_or(0)))
                })
            });
            let done = done.unwrap();
            assert_eq!((done.value, done.runs), (40, 1));
            reads += 1;
        }
    });
}

/// A slot has one snapshot at a time, whichever call takes it.
#[test]
fn snapshots_and_transactions_nest() {
    let store = store();
    store
        .write(|tx| {
            assert_eq!(tx.get(&ROWS, 0)?, Some(10));
            store.read(|inner| {
                assert_eq!(inner.get(&ROWS, 0)?, Some(10));
                assert_eq!(store.activity()?.snapshots, 2);
                // The reads of the outer transaction end while the inner snapshot lives.
                tx.put(&ROWS, 0, 11)?;
                assert_eq!(store.activity()?.snapshots, 1);
                thread::scope(|scope| {
                    scope.spawn(|| (0..200).try_for_each(|n| store.put(&ROWS, 1, n))).join()
                })
                .unwrap()?;
                assert_eq!((inner.get(&ROWS, 0)?, inner.get(&ROWS, 1)?), (Some(10), Some(10)));
                Ok(())
            })
        })
        .unwrap();
    store
        .read(|outer| {
            // This transaction uses the slot of the snapshot.
            store.write(|tx| {
                assert_eq!((tx.get(&ROWS, 0)?, tx.reads_at()), (Some(11), None));
                tx.put(&ROWS, 0, 12)
            })?;
            assert_eq!(outer.get(&ROWS, 0)?, Some(11));
            Ok(())
        })
        .unwrap();
    let inner = store.write(|tx| {
        assert_eq!(tx.get(&ROWS, 0)?, Some(12));
        tx.put(&ROWS, 1, 1)?;
        // A read in a closure must find out whether the outer transaction has the lock.
        let own = store.write(|inner| inner.get(&ROWS, 1)).unwrap_err();
        assert!(matches!(own, Error::OwnTransaction { .. }), "{own}");
        store.write(|inner| inner.get(&ROWS, 2))
    });
    assert_eq!(inner, Ok(Some(10)));
}

/// Long values are read through the snapshot, and checked like others.
#[test]
fn a_changed_long_value_runs_the_closure_again() {
    let store = store();
    let value = |byte: u8| vec![byte; 100_000];
    store.put(&LONG, 1, &value(1)[..]).unwrap();
    let mut seen = Vec::new();
    store
        .write(|tx| {
            let first = tx.get(&LONG, 1)?.unwrap_or_default();
            if seen.is_empty() {
                store.put(&LONG, 1, &value(2)[..])?;
                assert_eq!(tx.get(&LONG, 1)?.as_ref(), Some(&first), "the read is not repeatable");
            }
            seen.push(first);
            tx.put(&LONG, 1, &value(3)[..])
        })
        .unwrap();
    assert!(seen == [value(1), value(2)]);
    assert!(store.get(&LONG, 1).unwrap() == Some(value(3)));
}

/// If the log no longer has a version, the record is read under a lock.
#[test]
fn a_version_that_is_gone_is_no_error() {
    let disk = Simulated::new();
    let little = Sizes { log_budget: 32 << 10, history: 32 << 10, ..sizes(Mode::None) };
    let store = begin_with(&disk, little).unwrap();
    store.write(|tx| (0..4).try_for_each(|row| tx.put(&ROWS, row, 10))).unwrap();
    let age = || (0..20_000).try_for_each(|number| store.put(&ROWS, 1, number));
    let mut runs = 0;
    let read = store.write(|tx| {
        runs += 1;
        let first = tx.get(&ROWS, 0)?;
        if runs == 1 {
            age()?;
        }
        Ok((first, tx.get(&ROWS, 1)?))
    });
    assert_eq!((read, runs), (Ok((Some(10), Some(19_999))), 1));
}

/// A table is migrated between two reads of a closure.
#[test]
fn a_migration_between_reads_runs_the_closure_again() {
    const OLD: Table<u64, u64> = Table::new("moved");
    const NEW: Table<u64, &str> = Table::new("moved").with_version(1);
    let store = store();
    store.put(&OLD, 1, 7).unwrap();
    let mut runs = 0;
    let read = store.write(|tx| {
        runs += 1;
        let row = tx.get(&ROWS, 0)?;
        if runs == 1 {
            let text = |key, value: u64| Ok((key, value.to_string()));
            thread::scope(|scope| {
                scope.spawn(|| store.migrate(&OLD, &NEW, text, &mut |_| {})).join()
            })
            .unwrap()?;
        }
        Ok((row, tx.get(&NEW, 1)?))
    });
    assert_eq!((read, runs), (Ok((Some(10), Some("7".to_owned()))), 2));
}

/// The process that is killed. Does nothing when run as a test.
#[test]
fn child() {
    let Some(path) = std::env::var_os("LATCHWORK_EARLY") else { return };
    let store = Store::open_with(path, &options()).unwrap();
    // The first call of a session that names a table takes locks.
    store.get(&ROWS, 0).unwrap();
    let read = store.write(|tx| {
        let read = tx.get(&ROWS, 0)?;
        println!("\nread");
        std::io::stdout().flush().unwrap();
        thread::sleep(Duration::from_secs(600));
        Ok(read)
    });
    panic!("it was not killed: {read:?}");
}

/// A process is killed after its first reads: nothing of it stays.
#[test]
fn a_process_killed_after_its_reads_leaves_nothing() {
    let path = std::env::temp_dir().join(format!("latchwork-early-{}", std::process::id()));
    let store = Store::open_with(&path, &options()).unwrap();
    store.put(&ROWS, 0, 1).unwrap();
    let mut child = again(module_path!(), "child")
        .env("LATCHWORK_EARLY", Path::new(&path))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap()).lines();
    let has_read = said.map_while(Result::ok).any(|line| line == "read");
    let before = store.activity().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(has_read, "the child has not read");
    assert_eq!((before.snapshots, before.locks, before.transactions), (1, 0, 0));
    store.put(&ROWS, 0, 2).unwrap();
    assert_eq!(store.sweep(), Ok(1));
    let after = store.activity().unwrap();
    assert_eq!((after.snapshots, after.locks, after.undone), (0, 0, 0));
    assert_eq!(store.write(|tx| tx.get(&ROWS, 0)), Ok(Some(2)));
    drop(store);
    std::fs::remove_dir_all(&path).unwrap();
}

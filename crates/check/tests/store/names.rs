//! Tables whose names are created at run time.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use latchwork_check::forked::in_child;
use latchwork_disk::Simulated;
use latchwork_store::{Error, KEY_MAX, Mode, Multi, NAME_MAX, Table};

use crate::stage::begin;

const ROWS: Table<u64, u64> = Table::new("rows");

#[test]
fn ten_thousand_handles_of_one_name_are_one_table() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    store.put(&ROWS, 0, 0).unwrap();
    for number in 1..10_000u64 {
        let name = ["ro", "ws"].concat();
        let table: Table<u64, u64> = match number % 2 {
            0 => Table::named(&name),
            // A new string each time.
            _ => Table::new(name.leak()),
        };
        let found = store.write(|tx| {
            let found = tx.get(&table, number - 1)?;
            tx.put(&table, number, number).map(|()| found)
        });
        assert_eq!(found, Ok(Some(number - 1)));
        assert_eq!(store.get(&ROWS, number), Ok(Some(number)));
    }
    assert_eq!(store.tables(), Ok(vec!["rows".to_owned()]));
    let one: Table<u64, u64> = Table::named("rows");
    assert!(core::ptr::eq(one.name(), Table::<&str, ()>::named(&["ro", "ws"].concat()).name()));
}

/// The child of a fork creates names, whatever the parent's threads were doing at the fork.
#[test]
fn the_child_of_a_fork_creates_names() {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    Table::<u64, u64>::named("busy");
                }
            });
        }
        for _ in 0..300 {
            let status = in_child(|| {
                // SAFETY: kills this process if it waits.
                unsafe { libc::alarm(20) };
                let (one, two) = (Table::<u64, u64>::named("a"), Table::<u64, u64>::named("a"));
                assert!(core::ptr::eq(one.name(), two.name()));
            });
            if status != 0 {
                stop.store(true, Relaxed);
            }
            assert_eq!(status, 0);
        }
        stop.store(true, Relaxed);
    });
}

#[test]
fn too_long_names_and_keys_are_an_error() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let longest: Table<u64, u64> = Table::named(&"n".repeat(NAME_MAX));
    store.put(&longest, 1, 2).unwrap();
    assert_eq!(store.get(&longest, 1), Ok(Some(2)));
    let longer: Table<u64, u64> = Table::named(&"n".repeat(NAME_MAX + 1));
    let error = Error::NameTooLong { table: longer.name().to_owned() };
    assert_eq!(store.get(&longer, 1), Err(error.clone()));
    assert_eq!(store.put(&longer, 1, 2), Err(error.clone()));
    assert_eq!(store.tables(), Ok(vec![longest.name().to_owned()]));
    assert!(error.to_string().contains("901 bytes") && !error.is_retryable(), "{error}");

    // All values of a key that is too long.
    const TAGS: Multi<&str, u64> = Multi::new("tags");
    let key = "k".repeat(KEY_MAX + 1);
    let is_it = |error: Error| matches!(error, Error::KeyTooLong { .. });
    assert!(store.read(|tx| tx.values(&TAGS, &key).map(drop)).is_err_and(is_it));
    assert!(store.write(|tx| tx.values(&TAGS, &key).map(drop)).is_err_and(is_it));
    assert!(store.write(|tx| tx.insert_value(&TAGS, &key, 1).map(drop)).is_err_and(is_it));
}

#[test]
fn many_tables_of_many_threads_are_kept_apart() {
    const TABLES: u64 = 100;
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let table = |number: u64| Table::<u64, u64>::named(&format!("table {number:03}"));
    thread::scope(|scope| {
        for thread in 0..3 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..3 {
                    for number in 0..TABLES {
                        let row = thread * 10 + round;
                        store.put(&table(number), row, number).unwrap();
                        assert_eq!(store.get(&table(number), row), Ok(Some(number)));
                    }
                }
            });
        }
    });
    for number in 0..TABLES {
        let rows = store.read(|tx| tx.range(&table(number), ..)?.collect::<Result<Vec<_>, _>>());
        let rows = rows.unwrap();
        assert!(rows.len() == 9 && rows.iter().all(|row| row.1 == number), "{number}: {rows:?}");
    }
    assert_eq!(store.tables().unwrap().len() as u64, TABLES);
}

#[test]
fn multimaps_and_owned_transactions_take_computed_names() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let tags: Multi<&str, u64> = Multi::named(&["ta", "gs"].concat());
    let mut txn = store.begin().unwrap();
    txn.with(|tx| tx.insert_value(&tags, "red", 7)).unwrap();
    let rows: Table<u64, u64> = Table::named(&["ro", "ws"].concat());
    txn.put(&rows, 1, 1).unwrap();
    txn.commit().unwrap();
    const TAGS: Multi<&str, u64> = Multi::new("tags");
    assert_eq!(store.get(&ROWS, 1), Ok(Some(1)));
    assert_eq!(store.read(|tx| tx.has_value(&TAGS, "red", 7)), Ok(true));
}

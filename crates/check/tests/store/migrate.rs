//! Migration of tables to other types.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use latchwork_disk::Simulated;
use latchwork_machine::Native;
use latchwork_store::{Error, Mode, Raw, Store, Table};

use crate::stage::begin;

const OLD: Table<u64, &[u8]> = Table::new("rows");
const NEW: Table<(&str, u64), u64> = Table::new("rows").with_version(1);

fn stage(rows: u64) -> Store<Native> {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let put = |from: u64| {
        store.write(|tx| {
            (from..rows.min(from + 500)).try_for_each(|row| tx.put(&OLD, row, &value(row)))
        })
    };
    (0..rows).step_by(500).for_each(|from| put(from).unwrap());
    store
}

/// Some values are too long for a record.
fn value(row: u64) -> Vec<u8> {
    row.to_le_bytes().repeat(if row.is_multiple_of(100) { 400 } else { 1 })
}

/// The new keys sort in another order.
fn convert(row: u64, value: Vec<u8>) -> Result<((String, u64), u64), Error> {
    assert_eq!(value, self::value(row));
    Ok(((if row.is_multiple_of(2) { "even" } else { "odd" }.to_owned(), row), value.len() as u64))
}

fn all_are_new(store: &Store<Native>, rows: u64) {
    let found = store.read(|tx| tx.range(&NEW, ..)?.collect::<Result<Vec<_>, _>>()).unwrap();
    assert_eq!(found.len() as u64, rows);
    for ((name, row), length) in found {
        assert_eq!((name == "even", length), (row.is_multiple_of(2), value(row).len() as u64));
    }
    assert!(matches!(store.get(&OLD, 1), Err(Error::TableType { .. })));
    assert_eq!(store.verify().map(drop), Ok(()));
    assert_eq!(store.space().unwrap().lost, 0);
}

#[test]
fn a_migrated_table_has_all_rows_in_the_new_types() {
    let store = stage(2300);
    let mut told = Vec::new();
    assert_eq!(store.migrate(&OLD, &NEW, convert, &mut |rows| told.push(rows)), Ok(2300));
    assert!(told.len() > 2 && told.is_sorted() && told.last() == Some(&2300), "{told:?}");
    all_are_new(&store, 2300);
    assert_eq!(store.tables(), Ok(vec!["rows".to_owned()]));
    let info = &store.table_infos().unwrap()[..];
    let [info] = info else { panic!("{info:?}") };
    assert_eq!((info.value.as_deref(), info.version, info.migrating), (Some("u64"), 1, false));
    // Every process may call it at its start.
    let again = store.migrate(&OLD, &NEW, |_, _| panic!("it is done"), &mut |_| {});
    assert_eq!(again, Ok(0));
    // A second migration reuses the pages of the first table.
    let next: Table<u64, u64> = Table::new("rows").with_version(2);
    let back = |(_, row): (String, u64), length| Ok((row, length));
    assert_eq!(store.migrate(&NEW, &next, back, &mut |_| {}), Ok(2300));
    assert_eq!(store.get(&next, 7), Ok(Some(8)));
    assert_eq!(store.read(|tx| tx.count(&next, ..)), Ok(2300));
    assert_eq!(store.space().unwrap().lost, 0);
}

#[test]
fn wrong_versions_and_types_are_refused() {
    let store = stage(3);
    let options = |done: Result<u64, Error>| assert!(matches!(done, Err(Error::Options(_))));
    options(store.migrate(&OLD, &NEW.with_version(0), convert, &mut |_| {}));
    let other: Table<(&str, u64), u64> = Table::new("other").with_version(1);
    options(store.migrate(&OLD, &other, convert, &mut |_| {}));
    // Other types than the table has.
    let wrong: Table<u64, u64> = Table::new("rows");
    let never = |_, _| panic!("it is not of these types");
    let done = store.migrate(&wrong, &NEW, never, &mut |_| {});
    assert!(matches!(done, Err(Error::TableType { .. })), "{done:?}");
    let done = store.migrate(&OLD.with_version(1), &NEW.with_version(2), convert, &mut |_| {});
    assert!(matches!(done, Err(Error::TableType { .. })), "{done:?}");
    assert_eq!(store.get(&OLD, 1), Ok(Some(value(1))));
    // A missing table needs no migration.
    let none: Table<u64, u64> = Table::new("none");
    let never = |_, _| panic!("there is no row");
    assert_eq!(store.migrate(&none, &none.with_version(1), never, &mut |_| {}), Ok(0));
}

#[test]
fn a_failed_migration_is_continued() {
    let store = stage(2300);
    let failed = store.migrate(
        &OLD,
        &NEW,
        |row, value| match row {
            1500 => Err(Error::Rejected("no".to_owned())),
            _ => convert(row, value),
        },
        &mut |_| {},
    );
    assert_eq!(failed, Err(Error::Rejected("no".to_owned())));
    let is_refused = |done: Result<(), Error>| {
        assert_eq!(done, Err(Error::Migrating { table: "rows".to_owned() }));
    };
    is_refused(store.get(&OLD, 1).map(drop));
    is_refused(store.get(&NEW, ("odd", 1)).map(drop));
    is_refused(store.put(&OLD, 1, b""));
    is_refused(store.put(&NEW, ("odd", 1), 1));
    is_refused(store.drop_table("rows", &mut |_| {}).map(drop));
    let raw: Table<Raw, Raw> = Table::new("rows");
    is_refused(store.read(|tx| tx.count(&raw, ..)).map(drop));
    assert!(store.dump(Vec::new(), None, &mut |_| {}).is_err());
    assert!(store.table_infos().unwrap()[0].migrating);
    assert_eq!(store.space().unwrap().lost, 0);
    // To other types than it has begun with.
    let other: Table<u64, u8> = Table::new("rows").with_version(1);
    let done = store.migrate(&OLD, &other, |row, _| Ok((row, 0)), &mut |_| {});
    assert!(matches!(done, Err(Error::TableType { .. })), "{done:?}");
    let moved = store.migrate(&OLD, &NEW, convert, &mut |_| {}).unwrap();
    assert!((1300..2300).contains(&moved), "{moved}");
    all_are_new(&store, 2300);
}

#[test]
fn two_rows_with_one_new_key_are_an_error() {
    let store = stage(3);
    let one: Table<u64, u64> = Table::new("rows").with_version(1);
    let done = store.migrate(&OLD, &one, |row, _| Ok((row / 2, 0)), &mut |_| {});
    assert!(matches!(&done, Err(Error::Exists { table, .. }) if table == "rows"), "{done:?}");
    assert_eq!(store.migrate(&OLD, &one, |row, _| Ok((row, 7)), &mut |_| {}), Ok(3));
    assert_eq!(store.get(&one, 2), Ok(Some(7)));
}

#[test]
fn a_migration_is_continued_after_a_crash() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::Full).unwrap();
    let put = |row| store.put(&OLD, row, &value(row));
    (0..50).try_for_each(put).unwrap();
    (50..1500).step_by(50).for_each(|from| {
        store
            .write(|tx| (from..from + 50).try_for_each(|row| tx.put(&OLD, row, &value(row))))
            .unwrap();
    });
    let failed = store.migrate(
        &OLD,
        &NEW,
        |row, value| match row {
            1200 => Err(Error::Rejected("the power fails".to_owned())),
            _ => convert(row, value),
        },
        &mut |_| {},
    );
    failed.unwrap_err();
    core::mem::forget(store);
    disk.crash();
    disk.restart(7);
    let store = begin(&disk, Mode::Full).unwrap();
    assert!(matches!(store.get(&OLD, 1), Err(Error::Migrating { .. })));
    let moved = store.migrate(&OLD, &NEW, convert, &mut |_| {}).unwrap();
    assert!(moved < 1500, "{moved}");
    all_are_new(&store, 1500);
}

/// Threads read and write the old table until they get an error. All that they have written is
/// migrated, and they never see a part of it.
#[test]
fn rows_written_until_a_migration_begins_are_migrated() {
    for _ in 0..4 {
        let store = stage(1200);
        let (begun, written) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            for writer in 0..3 {
                let (store, begun, written) = (&store, &begun, &written);
                scope.spawn(move || {
                    let mut row = 10_001 + writer;
                    loop {
                        let done = store.write(|tx| {
                            tx.put(&OLD, row, &value(row))?;
                            tx.put(&OLD, row + 10, &value(row + 10))
                        });
                        match done {
                            Ok(()) => _ = written.fetch_add(2, Relaxed),
                            Err(Error::Migrating { .. } | Error::TableType { .. }) => break,
                            Err(why) => panic!("{why}"),
                        }
                        begun.store(true, Relaxed);
                        row += 100;
                    }
                });
            }
            let (store, begun) = (&store, &begun);
            scope.spawn(move || {
                loop {
                    match store.read(|tx| tx.count(&OLD, ..1200)) {
                        Ok(count) => assert_eq!(count, 1200),
                        Err(Error::Migrating { .. } | Error::TableType { .. }) => break,
                        Err(Error::SnapshotTooOld { .. }) => {}
                        Err(why) => panic!("{why}"),
                    }
                }
            });
            scope.spawn(move || {
                while !begun.load(Relaxed) {
                    thread::yield_now();
                }
                // Called twice concurrently, as by two processes that start.
                let (one, other) = thread::scope(|scope| {
                    let one = scope.spawn(|| store.migrate(&OLD, &NEW, convert, &mut |_| {}));
                    let other = store.migrate(&OLD, &NEW, convert, &mut |_| {});
                    (one.join().unwrap(), other)
                });
                assert!(one.is_ok() && other.is_ok(), "{one:?} {other:?}");
            });
        });
        all_are_new(&store, 1200 + written.load(Relaxed));
    }
}

/// A transaction has looked up the table before the migration and writes after it.
#[test]
fn an_earlier_transaction_does_not_write_to_the_old_tree() {
    let store = stage(3);
    let mut by_hand = store.begin().unwrap();
    assert_eq!(by_hand.get(&Table::<u64, u64>::new("others"), 1), Ok(None));
    let kept = store.snapshot().unwrap();
    assert_eq!(kept.get(&OLD, 2), Ok(Some(value(2))));
    assert_eq!(kept.count(&OLD, ..), Ok(3));
    assert_eq!(store.migrate(&OLD, &NEW, convert, &mut |_| {}), Ok(3));
    assert!(matches!(by_hand.put(&OLD, 9, b"nine"), Err(Error::TableType { .. })));
    by_hand.put(&NEW, ("odd", 9), 9).unwrap();
    by_hand.commit().unwrap();
    // The snapshot has neither table.
    assert!(matches!(kept.get(&OLD, 2), Err(Error::TableType { .. })));
    assert!(matches!(kept.get(&NEW, ("even", 2)), Err(Error::SnapshotTooOld { .. })));
    assert!(matches!(kept.get(&NEW, ("even", 2)), Err(Error::SnapshotTooOld { .. })));
    drop(kept);
    assert_eq!(store.read(|tx| tx.count(&NEW, ..)), Ok(4));
}

/// A session that was idle during a migration can be used at once.
#[test]
fn a_transaction_may_begin_with_a_savepoint() {
    let store = stage(3);
    let mut first = store.begin().unwrap();
    first.put(&OLD, 7, b"seven").unwrap();
    first.roll_back().unwrap();
    assert_eq!(store.migrate(&OLD, &NEW, convert, &mut |_| {}), Ok(3));
    let mut second = store.begin().unwrap();
    let before = second.savepoint().unwrap();
    second.put(&NEW, ("odd", 7), 7).unwrap();
    second.roll_back_to(before).unwrap();
    second.commit().unwrap();
    let done = store.write(|tx| {
        let before = tx.savepoint()?;
        tx.put(&NEW, ("odd", 9), 9)?;
        tx.roll_back_to(before)
    });
    assert_eq!(done, Ok(()));
}

/// A transaction's last write is deferred to its commit. A call in between looks up the tables
/// again, and the write is still to the old table.
#[test]
fn a_deferred_write_is_not_lost() {
    let others: Table<u64, u64> = Table::new("others");
    let store = stage(3);
    store.put(&others, 1, 1).unwrap();
    let mut late = store.begin().unwrap();
    late.with(|tx| tx.put_final(&OLD, 9, b"nine")).unwrap();
    assert_eq!(store.migrate(&OLD, &NEW, convert, &mut |_| {}), Ok(3));
    assert_eq!(late.get(&others, 1), Err(Error::Migrated));
    // The transaction has ended and may be retried.
    assert!(late.commit().is_err_and(|why| why.is_retryable()));
    all_are_new(&store, 3);
    // The same without the call in between.
    let last: Table<u64, u64> = Table::new("rows").with_version(2);
    let mut late = store.begin().unwrap();
    late.with(|tx| tx.put_final(&NEW, ("odd", 9), 9)).unwrap();
    let back = |(_, row): (String, u64), length| Ok((row, length));
    assert_eq!(store.migrate(&NEW, &last, back, &mut |_| {}), Ok(3));
    assert_eq!(late.commit(), Err(Error::Migrated));
    assert_eq!(store.read(|tx| tx.count(&last, ..)), Ok(3));
}

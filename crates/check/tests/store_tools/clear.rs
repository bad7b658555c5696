//! A table that is emptied while other processes use the store.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use latchwork_store::{DumpError, Mode, Multi, Table, TxnOptions};

use crate::stage::{ACCOUNTS, COUNT, EACH, Place, ROWS, fill, length, open};

const APPENDED: Table<u64, u64> = Table::new("appended");
const TAGS: Multi<&str, u64> = Multi::new("tags");

#[test]
fn a_table_is_dropped_and_its_pages_are_used_again() {
    let place = Place::new("clear");
    let store = open(place.at("one"));
    fill(&store, 5000);
    (0..10).for_each(|tag| {
        store
            .write(|tx| {
                (0..300).try_for_each(|n| tx.insert_value(&TAGS, "a tag", tag * 300 + n).map(drop))
            })
            .unwrap()
    });
    assert_eq!(store.tables().unwrap(), ["accounts", "rows", "tags"]);
    let before = store.space().unwrap();

    let mut told = Vec::new();
    assert_eq!(store.drop_table("rows", &mut |removed| told.push(removed)), Ok(5000));
    assert!(told.len() > 4 && told.is_sorted() && told.last() == Some(&5000), "{told:?}");
    assert_eq!(store.drop_table(TAGS.name(), &mut |_| {}), Ok(3000));
    assert_eq!(store.drop_table("never written to", &mut |_| {}), Ok(0));
    assert_eq!(store.drop_table("rows", &mut |_| panic!("there is nothing")), Ok(0));
    assert_eq!(store.tables().unwrap(), ["accounts"]);
    let sum =
        store.read(|tx| (0..COUNT).map(|at| tx.get(&ACCOUNTS, at)).sum::<Result<Option<i64>, _>>());
    assert_eq!(sum, Ok(Some(COUNT as i64 * EACH)));

    let after = store.space().unwrap();
    assert_eq!(after.lost, 0);
    assert!(after.used < before.used / 20, "{before:?}, {after:?}");
    // Repeated, it reuses the freed pages. Where ranges of a tree are empty, new leaves are less
    // full than at its end.
    let mut pages = Vec::new();
    for _ in 0..4 {
        assert_eq!(store.drop_table("rows", &mut |_| {}).unwrap() % 5000, 0);
        fill(&store, 5000);
        pages.push(store.space().unwrap().pages);
    }
    assert!(pages[3] == pages[0] && pages[0] < 2 * before.pages, "{before:?}, {pages:?}");
    let last = store.get(&ROWS, 4999).unwrap().unwrap();
    assert_eq!(last.len(), length(4999));
}

/// A snapshot keeps the records that it sees and their pages; clearing again frees them.
#[test]
fn records_kept_for_a_snapshot_are_cleared_later() {
    let place = Place::new("clear-kept");
    let store = open(place.at("one"));
    fill(&store, 5000);
    let before = store.space().unwrap();
    let kept = store.snapshot().unwrap();
    assert_eq!(store.drop_table("rows", &mut |_| {}), Ok(5000));
    assert_eq!(kept.get(&ROWS, 4999).unwrap().map(|row| row.len()), Some(length(4999)));
    drop(kept);
    drop(store);
    // As in another process.
    let store = open(place.at("one"));
    assert_eq!(store.drop_table("rows", &mut |_| panic!("there is nothing")), Ok(0));
    let after = store.space().unwrap();
    assert!(after.used < before.used / 20, "{before:?}, {after:?}");
}

/// Clearing ends although a writer appends records all the time.
#[test]
fn clearing_ends_despite_a_writer_that_appends() {
    let place = Place::new("clear-append");
    let store = open(place.at("one"));
    let (stop, appended) = (AtomicBool::new(false), AtomicU64::new(0));
    let removed = thread::scope(|scope| {
        scope.spawn(|| {
            let patience = TxnOptions { mode: Some(Mode::None), ..TxnOptions::default() };
            for key in (0..).take_while(|_| !stop.load(Relaxed)) {
                let put = store.write_with(&patience, |tx| tx.put(&APPENDED, key, key)).map(drop);
                // A failed write must not make the other thread wait forever.
                appended.store(if put.is_ok() { key + 1 } else { u64::MAX }, Relaxed);
                put.unwrap();
            }
        });
        while appended.load(Relaxed) < 3000 {
            thread::yield_now();
        }
        let removed = store.drop_table(APPENDED.name(), &mut |_| {}).unwrap();
        stop.store(true, Relaxed);
        removed
    });
    let left = store.read(|tx| tx.range(&APPENDED, ..)?.collect::<Result<Vec<_>, _>>()).unwrap();
    assert!(removed >= 3000 && !left.is_empty(), "{removed}, {}", left.len());
    assert_eq!(removed + left.len() as u64, appended.load(Relaxed));
}

#[test]
fn a_table_without_records_is_in_no_dump() {
    let place = Place::new("clear-dump");
    let store = open(place.at("one"));
    fill(&store, 200);
    assert_eq!(store.drop_table("rows", &mut |_| {}), Ok(200));
    let dumped = |only| store.dump(Vec::new(), only, &mut |_| {});
    let (text, summary) = dumped(None).unwrap();
    assert_eq!((summary.tables, summary.records), (1, COUNT));
    assert!(!String::from_utf8(text).unwrap().contains("rows"));
    let error = dumped(Some("rows")).unwrap_err();
    assert!(matches!(&error, DumpError::NoTable { table } if table == "rows"), "{error}");
}

/// Others insert records before and after the current position: each acknowledged record is removed
/// and counted, or still exists.
#[test]
fn others_write_during_clearing() {
    const BUSY: Table<u64, u64> = Table::new("busy");
    let place = Place::new("clear-busy");
    let store = open(place.at("one"));
    let (stop, records) = (AtomicBool::new(false), 20_000);
    for from in (0..records).step_by(500) {
        store.write(|tx| (from..from + 500).try_for_each(|n| tx.put(&BUSY, n * 64, n))).unwrap();
    }
    let (removed, written) = thread::scope(|scope| {
        let writers = [1u64, 2].map(|odd| {
            let (store, stop) = (&store, &stop);
            scope.spawn(move || {
                let mut keys = (0..records).map(|n| (n * 7919 % records) * 64 + odd);
                let mut written = 0;
                while !stop.load(Relaxed)
                    && let Some(key) = keys.next()
                {
                    store.put(&BUSY, key, key).unwrap();
                    written += 1;
                }
                written
            })
        });
        let removed = store.drop_table(BUSY.name(), &mut |_| {}).unwrap();
        stop.store(true, Relaxed);
        (removed, writers.map(|writer| writer.join().unwrap()).iter().sum::<u64>())
    });
    let left = store.read(|tx| tx.range(&BUSY, ..)?.collect::<Result<Vec<_>, _>>()).unwrap();
    assert_eq!(removed + left.len() as u64, records + written);
    assert!(left.iter().all(|(key, value)| key % 64 != 0 && key == value));
    assert!(written > 0 && !left.is_empty(), "no record was written concurrently");
    assert_eq!(store.drop_table(BUSY.name(), &mut |_| {}), Ok(left.len() as u64));
    assert_eq!(store.space().unwrap().lost, 0);
}

//! Free pages are returned to the file system while others write, and nothing is lost when a
//! process is killed in between.

use std::ops::Bound;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use latchwork_store::Store;

use crate::stage::{COUNT, EACH, Place, ROWS, die_after, fill, length, open, sum, transfer};

const MANY: u64 = 3000;

/// Removes the rows from this one on.
fn remove_from(store: &Store, row: u64) {
    store.write(|tx| tx.remove_range(&ROWS, (Bound::Included(row), Bound::Unbounded))).unwrap();
}

fn has_rows(store: &Store, rows: u64) {
    store.verify().unwrap();
    assert_eq!(sum(store), COUNT as i64 * EACH);
    for row in 0..rows {
        assert_eq!(store.get(&ROWS, row).unwrap(), Some(vec![row as u8; length(row)]), "{row}");
    }
}

#[test]
fn a_file_with_shrunk_tables_uses_less_disk() {
    let place = Place::new("reclaim");
    let store = open(place.at("one"));
    fill(&store, MANY);
    store.checkpoint().unwrap();
    let full = store.data_file().unwrap();
    remove_from(&store, 300);
    let over = AtomicBool::new(false);
    let (before, after) = thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                transfer(&store, round % COUNT, (round + 5) % COUNT);
                if over.load(SeqCst) {
                    break;
                }
            }
        });
        let reclaimed = store.reclaim(&mut |_| {});
        over.store(true, SeqCst);
        reclaimed.unwrap()
    });
    assert!(after.free > 50 && after.free >= before.free, "{before:?}, then {after:?}");
    if after.holes() == 0 {
        println!("SKIPPED: the file system of {} punches no holes", place.path.display());
    } else {
        // Some pages have been reused, and blocks of the disk are not pages.
        let returned = (after.free - 20) * u64::from(after.page_bytes);
        assert!(after.on_disk + returned <= full.on_disk, "{full:?}, then {after:?}");
    }
    has_rows(&store, 300);
    drop(store);
    let store = open(place.at("one"));
    has_rows(&store, 300);
    fill(&store, MANY);
    has_rows(&store, MANY);
    let again = store.data_file().unwrap();
    // Ascending inserts within a table leave half of each leaf free.
    assert!(again.pages < full.pages * 2, "free pages were not reused: {full:?}, {again:?}");
}

/// Frees pages and reclaims them until the process is killed.
#[test]
fn reclaim_until_killed() {
    let Some(place) = Place::told() else { return };
    let steps = std::fs::read_to_string(place.at("steps")).unwrap().parse().unwrap();
    let store = open(place.at("one"));
    die_after(steps);
    for _ in 0..100 {
        store.reclaim(&mut |_| {}).unwrap();
        fill(&store, MANY / 2);
        remove_from(&store, 300);
    }
}

#[test]
fn a_process_killed_while_reclaiming_loses_nothing() {
    let place = Place::new("reclaim-killed");
    let store = open(place.at("one"));
    fill(&store, MANY / 2);
    remove_from(&store, 300);
    for steps in [40, 400, 1_500, 4_000, 9_000] {
        std::fs::write(place.at("steps"), steps.to_string()).unwrap();
        let end = place.start("reclaim::reclaim_until_killed").wait().unwrap();
        assert_eq!(end.signal(), Some(libc::SIGKILL), "{steps} steps");
        store.sweep().unwrap();
        has_rows(&store, 300);
    }
    store.reclaim(&mut |_| {}).unwrap();
    drop(store);
    let store = open(place.at("one"));
    has_rows(&store, 300);
    fill(&store, MANY / 2);
    has_rows(&store, MANY / 2);
}

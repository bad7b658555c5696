//! Transactions that were open at a crash of the machine: a thread of the store undoes them.

use std::thread;

use latchwork_check::forked::in_child;
use latchwork_store::{Error, Store, discard_shared_memory};

use crate::stage::{ACCOUNTS, Place, options};

/// Records of a transaction that is left to the thread; undoing them takes tenths of a second.
const RECORDS: u64 = 90_000;

/// The process that is killed.
#[test]
fn leaves_one_open() {
    let Some(place) = Place::told() else { return };
    let store = Store::open_with(place.at("one"), &options()).unwrap();
    store.put(&ACCOUNTS, 1, 1).unwrap();
    let mut open = store.begin().unwrap();
    (0..RECORDS).for_each(|account| open.put(&ACCOUNTS, account, 2).unwrap());
    store.put(&ACCOUNTS, RECORDS, 3).unwrap();
    // SAFETY: signals this process.
    unsafe { libc::kill(std::process::id() as i32, libc::SIGKILL) };
}

#[test]
fn all_sweepers_wait_for_the_undoing_thread() {
    let place = Place::new("left-open");
    place.start("left_open::leaves_one_open").wait().unwrap();
    discard_shared_memory(place.at("one")).unwrap();
    let store = Store::open_with(place.at("one"), &options()).unwrap();
    assert_eq!(store.get(&ACCOUNTS, 1), Ok(Some(1)));
    // The child of a fork has no such thread, and must not wait for it.
    let status = in_child(|| {
        // SAFETY: kills this process if it waits.
        unsafe { libc::alarm(20) };
        assert_eq!(store.sweep(), Err(Error::Region(latchwork_region::Error::Forked)));
    });
    assert_eq!(status, 0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                store.sweep().unwrap();
                let counts = store.counts().unwrap();
                assert_eq!((counts.undone, counts.transactions, counts.locks), (1, 0, 0));
            });
        }
    });
    let rows = store.read(|tx| tx.count(&ACCOUNTS, ..));
    assert_eq!((rows, store.get(&ACCOUNTS, RECORDS)), (Ok(2), Ok(Some(3))));
    store.verify().unwrap();
}

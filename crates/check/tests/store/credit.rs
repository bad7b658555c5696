//! Log space that idle threads have reserved is available to others.

use core::time::Duration;
use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::thread;

use latchwork_disk::Simulated;
use latchwork_machine::Native;
use latchwork_store::{Mode, Sizes, Store, Table};

use crate::stage::{begin_with, sizes};

const ROWS: Table<(u64, u64), &[u8]> = Table::new("rows");

const THREADS: u64 = 32;

/// Writes rows in one transaction, which must succeed.
fn put(store: &Store<Native>, id: u64, rows: core::ops::Range<u64>) {
    let value = [7; 300];
    store.write(|tx| rows.clone().try_for_each(|row| tx.put(&ROWS, (id, row), &value))).unwrap();
}

/// Runs `work` in threads that then stay idle, and writes concurrently in another thread.
fn idle(sizes: Sizes, work: fn(&Store<Native>, u64)) {
    let (over, is_over) = channel();
    thread::spawn(move || {
        let disk = Simulated::new();
        let store = begin_with(&disk, sizes).unwrap();
        put(&store, 0, 0..1);
        let (done, end) = (Barrier::new(THREADS as usize + 1), Barrier::new(THREADS as usize + 1));
        thread::scope(|scope| {
            for id in 1..=THREADS {
                let (store, done, end) = (&store, &done, &end);
                scope.spawn(move || {
                    work(store, id);
                    done.wait();
                    end.wait();
                });
            }
            done.wait();
            (0..60).for_each(|row| put(&store, 0, row * 5..row * 5 + 5));
            end.wait();
        });
        store.verify().unwrap();
        over.send(()).unwrap();
    });
    // A thread that spins forever ends with the program.
    is_over.recv_timeout(Duration::from_secs(120)).expect("a thread waits forever");
}

/// Noted leaves that turn out not to be empty when they are checked.
#[test]
fn credit_of_a_kept_leaf_is_returned() {
    idle(sizes(Mode::None), |store, id| {
        put(store, id, 0..40);
        store.write(|tx| tx.remove_range(&ROWS, (id, 0)..(id, 40))).unwrap();
        put(store, id, 10..11);
        // Until the removed records can be dropped and the notes are checked.
        (0..60).for_each(|_| put(store, id, 10..11));
    });
}

/// Splits reserve room for more full pages than they log.
#[test]
fn credit_of_splits_is_returned() {
    let sizes = Sizes { page: 8192, ..sizes(Mode::None) };
    idle(sizes, |store, id| (0..20).for_each(|some| put(store, id, some * 5..some * 5 + 5)));
}

/// Runs `work` in a thread with a timeout.
fn ends(work: impl FnOnce() + Send + 'static) {
    let (over, is_over) = channel();
    thread::spawn(move || {
        work();
        over.send(()).unwrap();
    });
    is_over.recv_timeout(Duration::from_secs(120)).expect("a thread waits forever");
}

/// More threads split leaves at once than the log's buffer has room for full pages: each has a part
/// of what it needs.
#[test]
fn threads_that_split_do_not_wait_for_each_other() {
    ends(|| {
        let sizes = Sizes { page: 8192, cache: 32 << 20, threads: 80, ..sizes(Mode::None) };
        let store = begin_with(&Simulated::new(), sizes).unwrap();
        let value = [7; 1500];
        thread::scope(|scope| {
            for id in 0..64 {
                let store = &store;
                scope.spawn(move || {
                    for row in 0..150u64 {
                        let row = row.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
                        store.put(&ROWS, (id, row), &value).unwrap();
                    }
                    store.write(|tx| tx.remove_range(&ROWS, (id, 0)..(id + 1, 0))).unwrap();
                });
            }
        });
        store.verify().unwrap();
    });
}

/// Nested loads, each started by the rows of the previous one.
#[test]
fn nested_loads_keep_little_credit() {
    const NAMES: [&str; 24] = [
        "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r",
        "s", "t", "u", "v", "w", "x",
    ];

    fn load(store: &Store<Native>, names: &[&'static str]) {
        let Some((name, rest)) = names.split_first() else { return };
        let rows = (0..300u64).map(|row| {
            if row == 200 {
                load(store, rest);
            }
            (row, &[7; 2000][..])
        });
        assert_eq!(store.load_sorted(&Table::<u64, &[u8]>::new(name), rows), Ok(300));
    }

    ends(|| {
        let sizes =
            Sizes { page: 65_536, cache: 64 << 20, log_buffer: 2 << 20, ..sizes(Mode::None) };
        let sizes = Sizes { log_segment: 4 << 20, ..sizes };
        let store = begin_with(&Simulated::new(), sizes).unwrap();
        load(&store, &NAMES);
        store.verify().unwrap();
    });
}

/// With many slots each reserves less than a page of the buffer. A table can still be created,
/// although its page is taken from the catalog, which is written for that.
#[test]
fn a_table_is_created_with_little_credit_per_slot() {
    for threads in [48, 2000, 8000] {
        let store = begin_with(&Simulated::new(), Sizes { threads, ..sizes(Mode::None) }).unwrap();
        for number in 0..20 {
            let table: Table<u64, u64> = Table::named(&format!("table {number}"));
            store.put(&table, 1, number).unwrap();
            put(&store, number, 0..20);
            store.write(|tx| tx.remove_range(&ROWS, ..)).unwrap();
        }
        store.verify().unwrap();
    }
}

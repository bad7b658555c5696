//! What idle threads have of the log's buffer is not kept from the others.

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

/// Writes in one transaction what must be there.
fn put(store: &Store<Native>, id: u64, rows: core::ops::Range<u64>) {
    let value = [7; 300];
    store.write(|tx| rows.clone().try_for_each(|row| tx.put(&ROWS, (id, row), &value))).unwrap();
}

/// Threads that do `work` and then nothing, and one that writes beside them.
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
    // A thread that spins for ever ends with the program.
    is_over.recv_timeout(Duration::from_secs(120)).expect("the threads wait for ever");
}

/// Leaves of whose notes nothing comes: they have a record again when they are looked at.
#[test]
fn what_was_reserved_for_a_leaf_that_stays() {
    idle(sizes(Mode::None), |store, id| {
        put(store, id, 0..40);
        store.write(|tx| tx.remove_range(&ROWS, (id, 0)..(id, 40))).unwrap();
        put(store, id, 10..11);
        // Until everybody sees that the ghosts are some, and the notes are looked at.
        (0..60).for_each(|_| put(store, id, 10..11));
    });
}

/// Splits, which reserve room for more whole pages than they log.
#[test]
fn what_was_reserved_for_splits() {
    let sizes = Sizes { page: 8192, ..sizes(Mode::None) };
    idle(sizes, |store, id| (0..20).for_each(|some| put(store, id, some * 5..some * 5 + 5)));
}

/// Does something in a thread of its own that is given up after a while.
fn ends(work: impl FnOnce() + Send + 'static) {
    let (over, is_over) = channel();
    thread::spawn(move || {
        work();
        over.send(()).unwrap();
    });
    is_over.recv_timeout(Duration::from_secs(120)).expect("the threads wait for ever");
}

/// More threads split leaves at once than the log's buffer has room for whole pages: each has some
/// of what it needs, and none all of it.
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

/// Loads within loads, each of which waits for the one that its rows begin.
#[test]
fn what_a_load_keeps_while_its_rows_come() {
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

/// With many slots each keeps few bytes of the buffer, less than a page: a table is made
/// nevertheless, whose page is taken from the catalog, which is written for that.
#[test]
fn a_table_is_made_where_a_slot_keeps_few_bytes() {
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

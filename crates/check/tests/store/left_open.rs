//! Transactions that were open at a crash of the machine: the store opens before they are undone,
//! and their writes are never visible.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use latchwork_check::random::Random;
use latchwork_check::stops::{at, at_step, is_waiting};
use latchwork_disk::{Disk, Fault, Simulated};
use latchwork_machine::Native;
use latchwork_store::{Error, Mode, Sizes, Store, Table, Transaction, TxnOptions, WriteTxn};

use crate::stage::{TABLE, begin, begin_with, begin_within, sizes};
use crate::stuck::{key, value};

/// A store of `rows` records whose log is never too long.
fn filled(disk: &Simulated, rows: u64) -> Store<Native> {
    let store = begin_with(disk, calm()).unwrap();
    store.write(|tx| (0..rows).try_for_each(|n| tx.put(&TABLE, &key(n), &value(n)))).unwrap();
    store
}

fn calm() -> Sizes {
    Sizes { log_budget: 16 << 20, history: 64 << 20, ..sizes(Mode::Full) }
}

/// Crashes the machine when the whole log is on disk, and starts it again.
fn crash(disk: &Simulated, store: Store<Native>, open: Vec<Transaction<Native>>, seed: u64) {
    store.put(&TABLE, format!("z{seed}").as_bytes(), &value(seed)).unwrap();
    disk.crash();
    drop((open, store));
    disk.restart(seed);
}

/// Changes every third of these records, removes the next ones, and inserts others between them.
fn change(open: &mut Transaction<Native>, rows: impl Iterator<Item = u64>) {
    for number in rows {
        match number % 3 {
            0 => open.put(&TABLE, &key(number), b"of the one that is open").unwrap(),
            1 => assert!(open.with(|tx| tx.remove(&TABLE, &key(number))).unwrap()),
            _ => {
                let between = [key(number), b"x".to_vec()].concat();
                open.put(&TABLE, &between, b"nobody's").unwrap();
            }
        }
    }
}

fn is_as_before(store: &Store<Native>, rows: u64) {
    let look = |found: Vec<(Vec<u8>, Vec<u8>)>| {
        assert_eq!(found.len() as u64, rows);
        for (number, (found, of)) in found.into_iter().enumerate() {
            assert_eq!((found, of), (key(number as u64), value(number as u64)));
        }
    };
    let (from, to) = (key(0), key(rows));
    let range = &from[..]..&to[..];
    look(store.read(|tx| tx.range(&TABLE, range.clone())?.collect()).unwrap());
}

/// Returns how many transactions were undone, and how many are open.
fn undone(store: &Store<Native>) -> (u64, u64) {
    let counts = store.counts().unwrap();
    (counts.undone, counts.transactions)
}

#[test]
fn a_store_opens_before_undo_and_hides_open_transactions() {
    let disk = Simulated::new();
    let store = filled(&disk, 900);
    let mut open = [store.begin().unwrap(), store.begin().unwrap(), store.begin().unwrap()];
    change(&mut open[0], 0..300);
    // Changes before a checkpoint are in the pages on disk.
    store.checkpoint().unwrap();
    change(&mut open[1], 300..600);
    open[2].put(&TABLE, &key(2000), &vec![7; 30_000]).unwrap();
    // A commit after their first records, in a slot that has committed before.
    store.put(&TABLE, &key(800), &value(800)).unwrap();
    crash(&disk, store, open.into(), 1);

    let store = begin_with(&disk, calm()).unwrap();
    assert_eq!(undone(&store), (0, 3));
    is_as_before(&store, 900);
    let snapshot = store.snapshot().unwrap();
    // Other transactions continue.
    store.put(&TABLE, &key(700), &value(700)).unwrap();
    assert_eq!(undone(&store), (0, 3), "a write had to wait");

    // A transaction that locks one of their records has them undone first.
    let patience = TxnOptions::default();
    let seen = store.write_with(&patience, |tx| tx.get_for_update(&TABLE, &key(303))).unwrap();
    assert_eq!(seen.value, Some(value(303)));
    assert_eq!(undone(&store), (3, 0));
    is_as_before(&store, 900);
    assert_eq!(snapshot.get(&TABLE, &key(0)).unwrap(), Some(value(0)));
    drop(snapshot);
    assert_eq!(store.get(&TABLE, &key(2000)).unwrap(), None);
    let counts = store.counts().unwrap();
    assert_eq!((counts.locks, store.space().unwrap().lost), (0, 0));
    store.verify().unwrap();
    // Their ends are logged: the next open finds none.
    crash(&disk, store, Vec::new(), 2);
    let store = begin_with(&disk, calm()).unwrap();
    assert_eq!(undone(&store), (0, 0));
    is_as_before(&store, 900);
}

/// A serializable transaction that reads a range with their writes waits for the rollback, and so
/// does a transaction that inserts a key which they inserted.
#[test]
fn ranges_and_new_keys_wait_for_open_transactions() {
    let by: [fn(&mut WriteTxn<'_, '_, Native>) -> bool; 3] = [
        |tx| tx.range(&TABLE, &key(0)[..]..&key(100)[..]).unwrap().count() == 100,
        |tx| tx.insert(&TABLE, &[key(2), b"x".to_vec()].concat(), b"mine").is_ok(),
        |tx| tx.get(&TABLE, &key(1)).unwrap() == Some(value(1)),
    ];
    for (seed, by) in by.into_iter().enumerate() {
        let disk = Simulated::new();
        let store = filled(&disk, 100);
        let mut open = store.begin().unwrap();
        change(&mut open, 0..30);
        crash(&disk, store, vec![open], seed as u64);
        let store = begin_with(&disk, calm()).unwrap();
        assert_eq!(undone(&store), (0, 1));
        assert!(store.write(|tx| Ok(by(tx))).unwrap(), "{seed}");
        assert_eq!(undone(&store), (1, 0), "{seed}");
        store.verify().unwrap();
    }
}

/// Repeated crashes before the rollback has ended, which a small log budget starts and a failing
/// disk interrupts.
#[test]
fn repeated_crashes_leave_the_same_open_transactions() {
    for seed in 0..12 {
        let (disk, mut random) = (Simulated::new(), Random(seed));
        let mut store = filled(&disk, 600);
        let mut open = store.begin().unwrap();
        change(&mut open, 0..500);
        crash(&disk, store, vec![open], seed);
        for life in 0..5 {
            store = begin_with(&disk, calm()).unwrap();
            is_as_before(&store, 600);
            let mut more = store.begin().unwrap();
            more.put(&TABLE, &key(550 + life), b"of another").unwrap();
            if random.below(3) > 0 {
                let fault = [Fault::Device, Fault::NoSpace, Fault::Dropped][random.roll(3)];
                disk.plan(disk.calls().total() + random.below(40), fault);
                let _ = store.sweep();
            }
            disk.crash();
            drop((more, store));
            disk.restart(seed * 10 + life);
        }
        store = begin(&disk, Mode::Full).unwrap();
        is_as_before(&store, 600);
        store.sweep().unwrap();
        is_as_before(&store, 600);
        assert_eq!(undone(&store).1, 0);
        assert_eq!(store.space().unwrap().lost, 0);
        store.verify().unwrap();
    }
}

/// Transactions that cannot wait are undone at open: their slot no longer exists, their locks have
/// no room, or they were creating a table.
#[test]
fn transactions_that_cannot_wait_are_undone_at_once() {
    let fewer = Sizes { threads: 4, ..calm() };
    for (seed, (next, room)) in [(fewer, 64 << 20), (calm(), 2 << 20)].into_iter().enumerate() {
        let disk = Simulated::new();
        let store = begin_with(&disk, calm()).unwrap();
        let part = |n: u64| n * 600..(n + 1) * 600;
        for n in 0..20 {
            let put = |tx: &mut WriteTxn<'_, '_, Native>| {
                part(n).try_for_each(|n| tx.put(&TABLE, &key(n), &value(n)))
            };
            store.write(put).unwrap();
        }
        let mut open: Vec<_> = (0..8).map(|_| store.begin().unwrap()).collect();
        // The slot of the shortest does not exist after the next open.
        for (n, open) in (0..).zip(open.iter_mut()) {
            change(open, part(n).skip(n as usize * 9));
        }
        for n in 8..20 {
            change(&mut open[7], part(n));
        }
        crash(&disk, store, open, seed as u64);
        let (_, store) = begin_within(&disk, next, room).unwrap();
        is_as_before(&store, 12_000);
        let (none, left) = undone(&store);
        assert_eq!(none, 0);
        match seed {
            0 => assert_eq!(left, 0),
            _ => assert!((1..8).contains(&left), "{left} have their locks"),
        }
        store.sweep().unwrap();
        assert_eq!(undone(&store), (left, 0));
        is_as_before(&store, 12_000);
        // A read of the newest versions finds no other values.
        for n in 0..12_000 {
            let newest = store.write(|tx| tx.get(&TABLE, &key(n)));
            assert_eq!(newest.unwrap(), Some(value(n)), "{n}");
        }
        store.verify().unwrap();
    }
}

/// The shortest transactions are left, as many as leave slots and locks for new ones.
#[test]
fn only_as_many_are_left_as_slots_and_locks_allow() {
    let disk = Simulated::new();
    let store = filled(&disk, 1);
    let mut open: Vec<_> = (0..20).map(|_| store.begin().unwrap()).collect();
    for (n, open) in open.iter_mut().enumerate() {
        (0..=n).for_each(|row| open.put(&TABLE, &key((n * 100 + row) as u64), b"x").unwrap());
    }
    crash(&disk, store, open, 1);
    let store = begin_with(&disk, calm()).unwrap();
    assert_eq!(undone(&store), (0, u64::from(calm().threads) / 4));
    // They keep the log, so a checkpoint undoes them first.
    store.checkpoint().unwrap();
    assert_eq!(undone(&store).1, 0);

    for (records, left) in [(99_999, 2), (100_000, 1)] {
        let disk = Simulated::new();
        let store = filled(&disk, 1);
        let (mut short, mut long) = (store.begin().unwrap(), store.begin().unwrap());
        short.put(&TABLE, b"short", b"x").unwrap();
        for row in 0..records {
            long.put(&TABLE, format!("long{row}").as_bytes(), b"x").unwrap();
        }
        crash(&disk, store, vec![short, long], records);
        let store = begin_with(&disk, calm()).unwrap();
        assert_eq!(undone(&store), (0, left), "{records}");
        is_as_before(&store, 1);
        store.sweep().unwrap();
        assert_eq!(undone(&store), (left, 0));
        assert_eq!(store.read(|tx| tx.count(&TABLE, ..)).unwrap(), 2);
    }
}

/// A record of a long value is restored before the value's pieces: a range read waits for them.
#[test]
fn a_range_waits_for_the_pieces_of_an_undone_value() {
    const LONG: Table<u64, &[u8]> = Table::new("long");
    let large = Sizes { cache: 32 << 20, log_buffer: 1 << 20, ..calm() };
    let disk = Simulated::new();
    let store = begin_with(&disk, large).unwrap();
    let old = vec![1; 4 << 20];
    store.put(&LONG, 0, &old).unwrap();
    drop(store);
    for round in 0..3 {
        let store = begin_with(&disk, large).unwrap();
        let mut open = store.begin().unwrap();
        open.put(&LONG, 0, &vec![2; 4 << 20]).unwrap();
        crash(&disk, store, vec![open], round);
        let store = begin_with(&disk, large).unwrap();
        assert_eq!(undone(&store), (0, 1));
        let (ended, at_once) =
            (AtomicBool::new(false), TxnOptions { time: Duration::ZERO, ..TxnOptions::default() });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                store.sweep().unwrap();
                ended.store(true, Relaxed);
            });
            while !ended.load(Relaxed) {
                let found = store.write_with(&at_once, |tx| {
                    tx.range(&LONG, ..)?.map(|row| Ok(row?.1 == old)).collect::<Result<Vec<_>, _>>()
                });
                match found {
                    Ok(found) => assert_eq!(found.value, [true]),
                    Err(why) => assert!(matches!(why, Error::Deadline { .. }), "{why}"),
                }
            }
        });
        assert_eq!(store.get(&LONG, 0).unwrap().as_ref(), Some(&old));
    }
}

/// Runs `then` after this thread has appended `number` more records.
fn at_record(number: u32, then: Box<dyn FnOnce()>) {
    at("append: end", move || match number {
        0 => then(),
        more => at_record(more - 1, then),
    });
}

/// A table that was being created leaves no page behind, at whichever record the log ends.
#[test]
fn an_unfinished_table_leaves_no_page() {
    latchwork_log::set_point_hook(at_step);
    let made = Table::<u64, u64>::new("made");
    let (mut lost, mut there) = (0, 0);
    for record in 0.. {
        let disk = Simulated::new();
        let store = filled(&disk, 1);
        let (crashes, other) = (disk.clone(), store.clone());
        let sync_and_crash = move || {
            std::thread::spawn(move || other.sync().unwrap()).join().unwrap();
            crashes.crash();
        };
        at_record(record, Box::new(sync_and_crash));
        // The first record creates the table.
        let _ = store.put(&made, 1, 1);
        if is_waiting() {
            break;
        }
        drop(store);
        disk.restart(u64::from(record));
        let store = begin_with(&disk, calm()).unwrap();
        let before = store.space().unwrap();
        store.sweep().unwrap();
        let after = store.space().unwrap();
        assert_eq!((before.lost, after.lost), (0, 0), "record {record}");
        store.put(&made, 2, 2).unwrap();
        there += u64::from(store.get(&made, 1).unwrap() == Some(1));
        lost += u64::from(store.get(&made, 1).unwrap().is_none());
        store.verify().unwrap();
    }
    assert!(lost >= 3 && there > 0, "{lost} lost, {there} there");
}

/// A long value that was being removed is restored before any read, at whichever record the log
/// ends: only the last one names it.
#[test]
fn a_long_value_whose_removal_is_undone_is_complete() {
    const LONG: Table<u64, &[u8]> = Table::new("long");
    latchwork_log::set_point_hook(at_step);
    let old = vec![1; 12_000];
    let (mut olds, mut news) = (0, 0);
    for (record, reads) in (0..).flat_map(|record| [(record, true), (record, false)]) {
        let disk = Simulated::new();
        let store = filled(&disk, 1);
        store.put(&LONG, 0, &old).unwrap();
        let (crashes, other) = (disk.clone(), store.clone());
        let sync_and_crash = move || {
            std::thread::spawn(move || other.sync().unwrap()).join().unwrap();
            crashes.crash();
        };
        at_record(record, Box::new(sync_and_crash));
        let _ = store.put(&LONG, 0, b"short");
        if is_waiting() {
            break;
        }
        drop(store);
        disk.restart(u64::from(record));
        let store = begin_with(&disk, calm()).unwrap();
        if reads {
            let at_once = TxnOptions { time: Duration::ZERO, ..TxnOptions::default() };
            match store.write_with(&at_once, |tx| tx.get(&LONG, 0)) {
                Ok(found) if found.value.as_ref() == Some(&old) => olds += 1,
                Ok(found) => {
                    assert_eq!(found.value.as_deref(), Some(&b"short"[..]));
                    news += 1;
                }
                Err(why) => assert!(matches!(why, Error::Deadline { .. }), "{record}: {why}"),
            }
        }
        // No piece without a record is left.
        store.put(&LONG, 0, b"other").unwrap();
        store.sweep().unwrap();
        assert_eq!(store.get(&LONG, 0).unwrap().as_deref(), Some(&b"other"[..]));
        assert_eq!(store.pages().unwrap()[1].records, 0, "record {record}");
        store.verify().unwrap();
    }
    assert!(olds > 3 && news > 0, "{olds}, {news}");
}

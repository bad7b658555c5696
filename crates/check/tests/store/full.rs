//! A full disk: writes fail, and all open transactions are undone.

use std::sync::Barrier;
use std::thread;

use latchwork_check::random::Random;
use latchwork_disk::Simulated;
use latchwork_machine::Native;
use latchwork_store::{Error, Mode, Operation, Sizes, Store};

use crate::stage::{TABLE, all, begin, begin_with, sizes};
use crate::stuck::{fails, filled, key, restore, value};

const THREADS: u64 = 4;

/// A random key of a thread.
fn own(thread: u64, random: &mut Random) -> Vec<u8> {
    key(thread * 500 + random.below(300))
}

/// Reaches the barrier when it is dropped, also by a panic, so that the other threads continue and
/// the test fails instead of hanging.
struct Arrives<'b>(&'b Barrier);

impl Drop for Arrives<'_> {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// Writes in a transaction until the disk is full, waits until all others have done so, and rolls
/// back. Returns the number of records written.
fn fill(store: &Store<Native>, thread: u64, seed: u64, full: &Barrier) -> u64 {
    let mut random = Random(seed * 100 + thread + 1);
    let (mut count, mut arrives) = (0, Some(Arrives(full)));
    let ended = store.write(|tx| {
        let why = loop {
            let key = own(thread, &mut random);
            let done = match random.below(4) {
                0 => tx.remove(&TABLE, &key).map(drop),
                _ => tx.put(&TABLE, &key, &value(random.below(9999))[..random.below(700) as usize]),
            };
            match done {
                Ok(()) => count += 1,
                Err(why) => break why,
            }
            if random.below(100) == 0 {
                let _ = store.checkpoint();
            }
        };
        assert!(why.to_string().contains("the file system is full"), "{why}");
        // The error is classified as no space, whichever layer met it.
        assert!(why.is_no_space(), "{why:?}");
        drop(arrives.take());
        Err::<(), _>(Error::Rejected(String::new()))
    });
    assert_eq!(ended, Err(Error::Rejected(String::new())), "a rollback failed");
    count
}

/// Fills the disk after some transactions; threads write until no space is left.
fn trial(step: u64) -> u64 {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    let mut random = Random(step + 7);
    for number in 0..step * 5 {
        let thread = number % THREADS;
        let put = |tx: &mut latchwork_store::WriteTxn<'_, '_, Native>| {
            (0..10).try_for_each(|_| tx.put(&TABLE, &own(thread, &mut random), &value(number)))
        };
        store.write(put).unwrap();
    }
    if step % 2 == 1 {
        // No page needs a split after this, so the log becomes full first.
        for number in 0..2000 / 50 {
            let put = |tx: &mut latchwork_store::WriteTxn<'_, '_, Native>| {
                let mut keys = number * 50..number * 50 + 50;
                keys.try_for_each(|number| tx.put(&TABLE, &key(number), &value(number)))
            };
            store.write(put).unwrap();
        }
    }
    let before = store.read(|tx| all(tx, false)).unwrap();
    disk.set_capacity(Some(0));
    let full = Barrier::new(THREADS as usize);
    let count = thread::scope(|scope| {
        let (store, full) = (&store, &full);
        let run = |thread| scope.spawn(move || fill(store, thread, step, full));
        let threads: Vec<_> = [0, 1, 2, 3].map(run).into();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(store.sweep(), Ok(0));
    assert!(store.not_undone().is_empty());
    assert_eq!(store.counts().unwrap().locks, 0, "step {step}");
    assert_eq!(store.read(|tx| all(tx, false)).unwrap(), before, "step {step}");
    // Space on disk was allocated for each page before it was used.
    store.checkpoint().unwrap();
    disk.set_capacity(None);
    store.write(|tx| tx.put(&TABLE, &key(1), &value(1))).unwrap();
    store.checkpoint().unwrap();
    store.verify().unwrap();
    count
}

#[test]
fn all_open_transactions_are_rolled_back_on_a_full_disk() {
    let count: u64 = (0..24).map(trial).sum();
    assert!(count > 2000, "only {count} writes were undone");
}

#[test]
fn dead_transactions_are_undone_on_a_full_disk() {
    let (disk, store) = filled();
    let damaged: Vec<_> =
        [(10, 2500), (50, 2600), (90, 2700)].map(|(a, b)| fails(&store, &disk, a, b)).into();
    // Only the reserve is left, and the checkpoint has moved on since.
    store.checkpoint().unwrap();
    disk.set_capacity(Some(0));
    let full = Barrier::new(1);
    assert!(fill(&store, 1, 3, &full) > 50);
    damaged.iter().for_each(|page| restore(&disk, page));
    // A thread of the store may have undone them first.
    store.sweep().unwrap();
    let counts = store.counts().unwrap();
    assert_eq!((counts.undone, counts.locks), (3, 0));
    for number in [10, 2500, 50, 2600, 90, 2700] {
        let found = store.read(|tx| tx.get(&TABLE, &key(number))).unwrap();
        assert_eq!(found, Some(value(number)), "{number}");
    }
    store.verify().unwrap();
}

/// When there is no room for the next segment of the log, commits continue in the current one, and
/// not every commit tries to create a segment.
#[test]
fn commits_continue_where_the_next_segment_has_no_room() {
    let disk = Simulated::new();
    let wide = Sizes { log_budget: 64 << 20, history: 64 << 20, ..sizes(Mode::None) };
    let store = begin_with(&disk, wide).unwrap();
    let put = |row: u64| store.put(&TABLE, &key(row % 100), &[7; 100]);
    // Up to a segment of full size.
    (0..).take_while(|_| store.log_end() < 1 << 20).try_for_each(put).unwrap();
    store.checkpoint().unwrap();
    disk.set_capacity(Some(0));
    let before = store.disk_calls();
    let commits = (0..).map(put).take_while(Result::is_ok).count();
    let opened = (store.disk_calls() - before)[Operation::Open];
    assert!(commits > 3000 && (2..40).contains(&opened), "{commits} commits, {opened} files");
    // The segment is created once there is room again.
    disk.set_capacity(None);
    (0..20_000).try_for_each(put).unwrap();
}

/// The log has filled the disk. A checkpoint needs no space itself and frees most of the log. The
/// transaction after the one that met the full disk makes the checkpoint if no other has.
#[test]
fn a_checkpoint_makes_room_on_a_full_disk() {
    for (bytes, by_hand) in [10, 300, 1500].into_iter().flat_map(|n| [(n, true), (n, false)]) {
        let disk = Simulated::new();
        let wide = Sizes { log_budget: 64 << 20, history: 64 << 20, ..sizes(Mode::None) };
        let store = begin_with(&disk, wide).unwrap();
        let put = |row: u64| store.put(&TABLE, &key(row % 100), &[7; 1500][..bytes]);
        (0..100).try_for_each(put).unwrap();
        store.checkpoint().unwrap();
        // Several segments, because the current one is never freed.
        (0..).take_while(|_| store.log_end() < 4 << 20).try_for_each(put).unwrap();
        disk.set_capacity(Some(0));
        for round in 0..3 {
            let why = (0..).map(put).find_map(Result::err).unwrap();
            assert!(why.is_no_space(), "{why}");
            if by_hand {
                store.checkpoint().unwrap_or_else(|why| panic!("{bytes}, {round}: {why}"));
            }
            (0..100).try_for_each(put).unwrap();
        }
        store.verify().unwrap();
    }
}

/// A transaction that keeps too much of the log is undone although the checkpoint, for which it has
/// written the records, has no room.
#[test]
fn a_full_disk_does_not_keep_too_old_transactions_open() {
    let disk = Simulated::new();
    let store = begin_with(&disk, Sizes { log_budget: 4 << 20, ..sizes(Mode::None) }).unwrap();
    let put = |row: u64| store.put(&TABLE, &key(row % 4000), &[7; 300][..]);
    (0..4000).try_for_each(put).unwrap();
    store.checkpoint().unwrap();
    let mut old = store.begin().unwrap();
    let first = store.log_end();
    old.put(&TABLE, &key(9000), b"old").unwrap();
    (0..).take_while(|_| store.log_end() < first + (1 << 20)).try_for_each(put).unwrap();
    store.checkpoint().unwrap();
    (9001..15_000).try_for_each(|row| old.put(&TABLE, &key(row), b"old")).unwrap();
    (0..).take_while(|_| store.log_end() < first + (9 << 19)).try_for_each(put).unwrap();
    disk.set_capacity(Some(0));
    store.checkpoint().unwrap();
    put(1).unwrap();
    assert_eq!(old.put(&TABLE, &key(9000), b"old"), Err(Error::TransactionTooOld));
    store.verify().unwrap();
}

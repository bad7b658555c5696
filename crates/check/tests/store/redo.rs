//! The start of redo, which is never after a transaction whose end is not durable; and redo itself.

use std::collections::BTreeMap;
use std::path::Path;

use latchwork_check::random::Random;
use latchwork_check::stops::{at, at_step, is_waiting};
use latchwork_disk::{Disk, Fault, Simulated};
use latchwork_machine::Native;
use latchwork_store::{Error, Mode, Refusal, Sizes, Store, Table, TxnOptions, WriteTxn};

use crate::stage::{LANES, TABLE, begin, begin_with, sizes};
use crate::stuck::{key, value};

/// A transaction has written before a checkpoint begins. While the checkpoint writes pages, it
/// writes again and commits. The machine crashes at the checkpoint's end: the transaction must be
/// complete or absent.
#[test]
fn a_commit_during_a_checkpoint_is_complete_after_a_crash() {
    latchwork_log::set_point_hook(at_step);
    const LAST: u64 = 300;
    for seed in 0..8 {
        let disk = Simulated::new();
        let store = begin(&disk, Mode::None).unwrap();
        store.write(|tx| (0..=LAST).try_for_each(|n| tx.put(&TABLE, &key(n), &value(n)))).unwrap();
        store.checkpoint().unwrap();
        let mut open = store.begin().unwrap();
        open.put(&TABLE, &key(0), &value(1000)).unwrap();
        at("flush: unclaimed", move || {
            // To a page that the checkpoint does not write.
            open.put(&TABLE, &key(LAST), &value(1001)).unwrap();
            open.commit().unwrap();
        });
        store.checkpoint().unwrap();
        assert!(!is_waiting(), "the checkpoint has flushed the log");
        disk.crash();
        drop(store);
        disk.restart(seed);
        let store = begin(&disk, Mode::None).unwrap();
        let both = store.read(|tx| Ok((tx.get(&TABLE, &key(0))?, tx.get(&TABLE, &key(LAST))?)));
        let (first, last) = both.unwrap();
        let (new, old) = ((value(1000), value(1001)), (value(0), value(LAST)));
        let found = (first.unwrap(), last.unwrap());
        assert!(found == new || found == old, "seed {seed}: part of a transaction is missing");
        store.verify().unwrap();
    }
}

const OTHER: Table<u64, u64> = Table::new("other");
const ROWS: u64 = 600;

/// A store whose pages are on disk, and whose leaves each contain a record of another transaction.
fn filled(disk: &Simulated) -> Store<Native> {
    // Checkpoints are made only on request.
    let calm = Sizes { log_budget: 16 << 20, history: 64 << 20, ..sizes(Mode::None) };
    let store = begin_with(disk, calm).unwrap();
    store.put(&OTHER, 0, 0).unwrap();
    store.write(|tx| (0..ROWS).try_for_each(|n| tx.put(&TABLE, &key(n), &value(n)))).unwrap();
    store.checkpoint().unwrap();
    store
}

/// The store after a crash.
fn crashed(disk: &Simulated, store: Store<Native>, seed: u64) -> Result<Store<Native>, Error> {
    disk.crash();
    drop(store);
    disk.restart(seed);
    begin(disk, Mode::None)
}

/// Leaves are logged in full before the first record of an open transaction, where redo begins.
/// They are changed after it, and are free when the checkpoint writes pages. On disk they are still
/// as before.
#[test]
fn a_free_page_may_be_older_than_redo_expects() {
    for (seed, written) in (0..8).zip([false, true].into_iter().cycle()) {
        let disk = Simulated::new();
        let store = filled(&disk);
        let open = store.read(|_| {
            // The snapshot keeps the leaves linked until the other transaction has written.
            store.write(|tx| {
                let middle = (ROWS / 6..ROWS - ROWS / 6).rev();
                middle.map(|n| tx.remove(&TABLE, &key(n))).try_for_each(|gone| gone.map(drop))
            })?;
            let mut open = store.begin()?;
            open.put(&OTHER, 1, 1)?;
            Ok(open)
        });
        let before = store.space().unwrap();
        store.checkpoint().unwrap();
        let after = store.space().unwrap();
        assert!(after.free > before.free + 5, "nothing was unlinked: {before:?}, {after:?}");
        if written {
            // Some of them are reused.
            let again = (ROWS..ROWS + 40).try_for_each(|n| store.put(&TABLE, &key(n), &value(n)));
            again.unwrap();
        }
        drop(open.unwrap().commit());
        LANES.set(1 + seed as usize % 4);
        let store = crashed(&disk, store, seed).unwrap();
        let space = store.space().unwrap();
        assert_eq!(space.lost, 0, "{space:?}");
        let rows = store.read(|tx| tx.count(&TABLE, ..)).unwrap();
        assert!((ROWS / 3..=ROWS / 3 + 40).contains(&rows), "{rows}");
    }
}

/// A lost write of a linked page is detected.
#[test]
fn a_lost_write_of_a_linked_page_is_an_error() {
    let disk = Simulated::new();
    let store = filled(&disk);
    let data = || disk.peek(Path::new("/home/store/data")).unwrap();
    let (old, of) = (data(), value(ROWS / 2));
    let at = old.windows(of.len()).position(|bytes| bytes == of).unwrap() / 4096 * 4096;
    store.put(&TABLE, &key(ROWS / 2), &value(1)).unwrap();
    let mut open = store.begin().unwrap();
    open.put(&OTHER, 1, 1).unwrap();
    store.put(&TABLE, &key(ROWS / 2), &value(2)).unwrap();
    store.checkpoint().unwrap();
    assert!(data()[at..at + 4096] != old[at..at + 4096], "the page was not written");
    drop(open.commit());
    disk.crash();
    drop(store);
    disk.restart(1);
    assert!(disk.damage(Path::new("/home/store/data"), at as u64, &old[at..at + 4096]));
    LANES.set(3);
    let refused = begin(&disk, Mode::None).map(drop);
    assert!(matches!(refused, Err(Error::Damaged { .. })), "{refused:?}");
}

/// Pages are redone independently: several threads produce the same result as one.
#[test]
fn several_threads_redo_all_commits() {
    for lanes in [1, 2, 5, 8] {
        let disk = Simulated::new();
        let calm = Sizes { log_budget: 16 << 20, history: 64 << 20, ..sizes(Mode::Full) };
        let store = begin_with(&disk, calm).unwrap();
        let (mut random, mut rows) = (Random(lanes as u64), BTreeMap::new());
        for round in 0..300 {
            if round == 100 {
                store.checkpoint().unwrap();
            }
            let numbers: Vec<_> = (0..30).map(|_| random.below(3 * ROWS)).collect();
            let written = store.write(|tx| {
                // In some rounds records of others are removed.
                numbers.iter().try_for_each(|number| match round / 20 % 3 {
                    2 => tx.remove(&TABLE, &key(*number)).map(drop),
                    _ => tx.put(&TABLE, &key(*number), &value(round)),
                })
            });
            written.unwrap();
            for number in numbers {
                match round / 20 % 3 {
                    2 => drop(rows.remove(&key(number))),
                    _ => drop(rows.insert(key(number), value(round))),
                }
            }
        }
        LANES.set(lanes);
        let store = crashed(&disk, store, 1).unwrap();
        let found = store.read(|tx| tx.range(&TABLE, ..)?.collect::<Result<Vec<_>, _>>());
        assert_eq!(found.unwrap(), rows.into_iter().collect::<Vec<_>>(), "{lanes} threads");
        store.verify().unwrap();
        assert_eq!(store.space().unwrap().lost, 0);
    }
}

/// Open transactions whose thread slots exceed the thread count of the next open: it is refused,
/// and an open with enough threads undoes them.
#[test]
fn too_few_threads_for_the_open_transactions_are_refused() {
    let disk = Simulated::new();
    let with = |threads| begin_with(&disk, Sizes { threads, ..sizes(Mode::Full) });
    let store = with(200).unwrap();
    store.put(&TABLE, &key(0), &value(0)).unwrap();
    let all: Vec<_> = (0..150)
        .map(|number| {
            let mut open = store.begin().unwrap();
            open.put(&TABLE, &key(1 + number), &value(number)).unwrap();
            open
        })
        .collect();
    // The records of all of them are on disk.
    store.put(&OTHER, 0, 0).unwrap();
    disk.crash();
    drop((all, store));
    for (life, threads) in [4, 60, 100].into_iter().enumerate() {
        disk.restart(life as u64);
        LANES.set(1 + life);
        let Error::Open { why: Refusal::Threads { needed }, .. } = with(threads).unwrap_err()
        else {
            panic!("{threads} threads")
        };
        assert!((150..=152).contains(&needed), "{needed}");
        disk.crash();
    }
    disk.restart(9);
    let store = with(152).unwrap();
    assert_eq!(store.read(|tx| tx.count(&TABLE, ..)).unwrap(), 1);
    store.verify().unwrap();
    store.sweep().unwrap();
    // Their ends are on disk.
    store.put(&OTHER, 0, 0).unwrap();
    drop(store);
    disk.crash();
    // They have ended.
    disk.restart(10);
    assert_eq!(with(4).unwrap().read(|tx| tx.count(&TABLE, ..)).unwrap(), 1);
}

/// More log than one piece, more pages than the cache holds, and a disk that fails at a call of
/// recovery: recovery returns an error, and the next attempt succeeds.
#[test]
fn a_failed_redo_by_several_threads_is_an_error_and_is_repeated() {
    // First with one thread, to count the calls.
    let disk = written_and_crashed();
    let before = disk.calls().total();
    LANES.set(1);
    drop(begin(&disk, Mode::None).unwrap());
    let calls = disk.calls().total() - before;

    const FAULTS: [Fault; 5] =
        [Fault::Crash, Fault::Device, Fault::ShortRead, Fault::Dropped, Fault::NoSpace];
    let (mut random, mut failed) = (Random(7), 0);
    for trial in 0..12 {
        let disk = written_and_crashed();
        LANES.set(1 + trial % 8);
        for attempt in 0..3 {
            let fault = FAULTS[(trial + attempt) % FAULTS.len()];
            disk.plan(disk.calls().total() + random.below(calls / 2), fault);
            failed += u32::from(begin(&disk, Mode::None).is_err());
            disk.heal();
            if disk.is_down() || attempt == 2 {
                disk.restart(trial as u64);
            }
        }
        let store = begin(&disk, Mode::None).unwrap();
        let rows = store.read(|tx| tx.range(&TABLE, ..)?.collect::<Result<Vec<_>, _>>());
        assert!(rows.unwrap().into_iter().eq((0..COUNT).map(|n| (key(n), value(4)))), "{trial}");
        store.verify().unwrap();
    }
    assert!(failed > 5, "{failed} of attempts with {calls} calls");
}

const COUNT: u64 = 2400;

/// A disk with three pieces of log that are not in its pages.
fn written_and_crashed() -> Simulated {
    let disk = Simulated::new();
    let calm = Sizes { log_budget: 64 << 20, history: 64 << 20, ..sizes(Mode::None) };
    let store = begin_with(&disk, calm).unwrap();
    for round in 0..5 {
        for first in (0..COUNT).step_by(40) {
            let write = |tx: &mut WriteTxn<'_, '_, Native>| {
                (first..first + 40).try_for_each(|n| tx.put(&TABLE, &key(n), &value(round)))
            };
            store.write(write).unwrap();
        }
    }
    assert!(store.log_end() > 12 << 20, "{}", store.log_end());
    let full = TxnOptions { mode: Some(Mode::Full), ..TxnOptions::default() };
    store.write_with(&full, |tx| tx.put(&OTHER, 0, 0)).unwrap();
    disk.crash();
    drop(store);
    disk.restart(1);
    disk
}

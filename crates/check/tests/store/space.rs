//! Pages that become empty are reused: the file of a queue stays as large as the queue.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use latchwork_check::random::Random;
use latchwork_disk::{Disk, Fault, Operation, Simulated};
use latchwork_log::LogFiles;
use latchwork_machine::Native;
use latchwork_region::AreaOptions;
use latchwork_store::{Error, Mode, Sizes, Store, Table};

use crate::hands::{HANDS, LINES, SINCE};
use crate::stage::{begin, begin_in, begin_with, sizes};

const QUEUE: Table<u64, &[u8]> = Table::new("queue");
const ROWS: Table<(u64, u64), &[u8]> = Table::new("rows");

fn pages(disk: &Simulated) -> usize {
    disk.peek(Path::new("/home/store/data")).unwrap().len() / 4096
}

/// Checks that every page belongs to a table or is free.
fn check(store: &Store<Native>) -> Result<(), String> {
    let space = store.space().map_err(|why| why.to_string())?;
    if space.lost == 0 { Ok(()) } else { Err(format!("{space:?}")) }
}

fn value(number: u64, bytes: usize) -> Vec<u8> {
    vec![number as u8; bytes]
}

/// Puts records at the end and takes as many from the front.
fn turn(store: &Store<Native>, next: u64, count: u64, bytes: usize) -> Result<(), Error> {
    store.write(|tx| {
        for number in next..next + count {
            tx.put(&QUEUE, number, &value(number, bytes))?;
            let taken = tx.pop_first(&QUEUE)?;
            assert_eq!(taken.map(|row| row.0 + ALIVE), Some(number));
        }
        Ok(())
    })
}

const ALIVE: u64 = 500;

/// Moves `count` records through a queue; returns the pages of the file halfway and at the end.
fn queue(disk: &Simulated, store: &Store<Native>, count: u64) -> (usize, usize) {
    let filled = (0..ALIVE).collect::<Vec<_>>();
    for some in filled.chunks(50) {
        let put = store.write(|tx| {
            some.iter().try_for_each(|number| tx.put(&QUEUE, *number, &value(*number, 60)))
        });
        put.unwrap();
    }
    let mut half = 0;
    for next in (ALIVE..count).step_by(10) {
        turn(store, next, 10, 60).unwrap();
        if next < count / 2 {
            half = pages(disk);
        }
    }
    (half, pages(disk))
}

#[test]
fn the_file_of_a_queue_is_bounded() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    let count = std::env::var("LATCHWORK_QUEUE").ok().and_then(|n| n.parse().ok());
    let (half, all) = queue(&disk, &store, count.unwrap_or(20_000));
    println!("{half} pages, then {all}; {:?}", store.space());
    // 500 records fill about 15 pages.
    assert!(all <= half + 2 && all < 150, "{half} pages, then {all}");
    check(&store).unwrap();
    let alive = store.read(|tx| tx.count(&QUEUE, ..)).unwrap();
    assert_eq!(alive, ALIVE);
}

/// The longest pages for which the log's buffer is large enough.
#[test]
fn the_file_of_a_queue_is_bounded_where_pages_are_long() {
    let disk = Simulated::new();
    let sizes = Sizes { page: 32_768, ..sizes(Mode::None) };
    let store = begin_with(&disk, sizes).unwrap();
    queue(&disk, &store, 20_000);
    let space = store.space().unwrap();
    // 20,000 records fill about 60 pages.
    assert!(space.pages < 30, "{space:?}");
    check(&store).unwrap();
}

#[test]
fn pages_of_removed_ranges_are_reused() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    let fill = |round: u64| {
        for some in 0..40 {
            let rows = (0..50).map(|row| (round, some * 50 + row));
            let put = store.write(|tx| {
                rows.clone().try_for_each(|(of, row)| tx.put(&ROWS, (of, row), &value(of, 80)))
            });
            put.unwrap();
        }
    };
    let (mut before, mut random) = (0, Random(3));
    for round in 0..12 {
        fill(round * 10 + random.below(10));
        let gone = store.write(|tx| tx.remove_range(&ROWS, ..)).unwrap();
        assert_eq!(gone, 2000);
        if round == 3 {
            store.checkpoint().unwrap();
            before = pages(&disk);
        }
    }
    store.checkpoint().unwrap();
    let space = store.space().unwrap();
    println!("{before} pages, then {}: {space:?}", pages(&disk));
    assert!(pages(&disk) < before + 30, "{before} pages, then {}", pages(&disk));
    assert!(space.used < 20, "{space:?}");
    check(&store).unwrap();
}

/// A slot says that its idle thread holds pages, or has held some, as after a failure to free them
/// or a death. It keeps the log.
#[test]
fn unused_reserved_pages_are_returned_later() {
    let disk = Simulated::new();
    let (region, store) = begin_in(&disk, sizes(Mode::None)).unwrap();
    for row in 0..100 {
        store.put(&ROWS, (0, row), &value(1, 700)).unwrap();
    }
    store.write(|tx| tx.remove_range(&ROWS, ..)).unwrap();
    store.checkpoint().unwrap();
    let slots = u64::from(sizes(Mode::None).threads) + 16;
    let bytes = (64 + slots * LINES) * 8;
    let options = AreaOptions { first: bytes, limit: bytes, huge: false };
    let area = region.area("store", &options).unwrap();
    let word = |slot: u64, word: u64| area.word(64 + slot * LINES + word).unwrap();
    // This thread's slot is the one with a snapshot during a read.
    let mine = store.read(|_| Ok((0..slots).find(|slot| word(*slot, 0).load(Relaxed) != 0)));
    let mine = mine.unwrap().unwrap();
    let redo =
        || LogFiles::open(Arc::new(disk.clone()), Path::new("/home/store/log")).unwrap().redo();
    // No page, or the root of the pieces, which turns out to be in use by a tree.
    for in_hand in [0, 1 << 32 | 1 << 1 | 1] {
        let before = store.log_end();
        word(mine, SINCE).store(before, Relaxed);
        word(mine, HANDS).store(in_hand, Relaxed);
        store.checkpoint().unwrap();
        // So few that no page is split.
        (0..3).for_each(|row| store.put(&ROWS, (1, row), &value(1, 70)).unwrap());
        let end = store.log_end();
        store.checkpoint().unwrap();
        assert_eq!((word(mine, HANDS).load(Relaxed), word(mine, SINCE).load(Relaxed)), (0, 0));
        assert!(redo().0 >= end, "{in_hand:x}: the log is kept from {} on, not {end}", redo().0);
    }
    check(&store).unwrap();
}

/// Names so long that a page of the catalog holds four: the catalog is split repeatedly, and each
/// page that it takes is one that it lists as free.
#[test]
fn the_catalog_grows_into_reused_pages() {
    for seed in 0..6 {
        let (disk, mut random) = (Simulated::new(), Random(seed + 1));
        let store = begin(&disk, Mode::None).unwrap();
        for row in 0..600 {
            store.put(&ROWS, (0, row), &value(1, 700)).unwrap();
        }
        store.write(|tx| tx.remove_range(&ROWS, ..)).unwrap();
        store.checkpoint().unwrap();
        let (free, _) = store.free_pages().unwrap();
        assert!(free > 80, "only {free} pages are free");
        for number in 0..60 {
            let order = if seed % 2 == 0 { number } else { random.below(1 << 20) };
            let name = format!("{}{order:08}", "n".repeat(850));
            let table: Table<u64, u64> = Table::new(name.leak());
            store.put(&table, 1, number).unwrap_or_else(|why| panic!("{seed}, {number}: {why}"));
        }
        assert!(store.free_pages().unwrap().0 < free, "no free page was used");
        check(&store).unwrap();
    }
}

/// Threads fill and empty their own parts of one table while others read snapshots.
fn crowd(store: &Store<Native>, seed: u64, rounds: u64) {
    thread::scope(|scope| {
        for id in 0..4 {
            scope.spawn(move || {
                let mut random = Random(seed * 10 + id + 1);
                for round in 0..rounds {
                    let rows = 20 + random.below(150);
                    for row in 0..rows {
                        let value = value(id, 20 + random.below(400) as usize);
                        store.write(|tx| tx.put(&ROWS, (id, row), &value)).unwrap();
                    }
                    let kept = random.below(4) == 0;
                    let seen = store.read(|tx| {
                        let count = tx.count(&ROWS, (id, 0)..(id + 1, 0))?;
                        if kept {
                            store.write(|tx| tx.remove_range(&ROWS, (id, 0)..(id + 1, 0)))?;
                            // The snapshot still sees the records.
                            assert_eq!(tx.count(&ROWS, (id, 0)..(id + 1, 0))?, count);
                        }
                        Ok(count)
                    });
                    assert_eq!(seen.unwrap(), rows, "round {round}");
                    for row in (0..rows).filter(|_| !kept) {
                        assert!(store.write(|tx| tx.remove(&ROWS, (id, row))).unwrap());
                    }
                }
            });
        }
    });
}

#[test]
fn threads_unlink_and_split_neighbouring_pages() {
    for seed in 0..6 {
        let disk = Simulated::new();
        let store = begin(&disk, Mode::None).unwrap();
        crowd(&store, seed, 12);
        check(&store).unwrap();
        assert_eq!(store.read(|tx| tx.count(&ROWS, ..)).unwrap(), 0);
        let (before, unlinked) = (store.space().unwrap(), pages(&disk));
        store.checkpoint().unwrap();
        drop(store);
        disk.crash();
        disk.restart(seed);
        let store = begin(&disk, Mode::None).unwrap();
        println!("{before:?} {unlinked} {:?}", store.space());
        check(&store).unwrap();
    }
}

/// Moves long records through a queue in small steps, until an error.
fn script(store: &Store<Native>, upto: u64) -> Result<(), Error> {
    let mut next = store.read(|tx| Ok(tx.last(&QUEUE)?.map_or(0, |row| row.0 + 1)))?;
    while next < upto {
        store.write(|tx| {
            (next..next + 2).try_for_each(|n| tx.put(&QUEUE, n, &value(n, 700)))?;
            if next >= 10 {
                (0..2).try_for_each(|_| tx.pop_first(&QUEUE).map(drop))?;
            }
            Ok(())
        })?;
        next += 2;
        if next % 32 == 0 {
            store.checkpoint()?;
        }
    }
    Ok(())
}

/// Checks that the records are those after some transaction.
fn is_a_queue(store: &Store<Native>) -> Result<(), String> {
    let rows = store.read(|tx| tx.range(&QUEUE, ..)?.collect::<Result<Vec<_>, _>>());
    let rows = rows.map_err(|why| why.to_string())?;
    let (first, last) = (rows.first().map_or(0, |row| row.0), rows.last().map_or(0, |row| row.0));
    let sound = rows.iter().zip(first..).all(|(row, n)| *row == (n, value(n, 700)));
    let long = rows.len() as u64 == if last < 10 { rows.len() as u64 } else { 10 };
    if sound && long { Ok(()) } else { Err(format!("{} rows, {first} to {last}", rows.len())) }
}

/// Fills pages and frees most of them. They are punched at the last checkpoint; returns the number
/// of disk calls before it.
fn fill_and_free(store: &Store<Native>, disk: &Simulated, round: u64) -> Result<u64, Error> {
    for some in 0..10 {
        store.write(|tx| {
            (some * 45..some * 45 + 45)
                .try_for_each(|row| tx.put(&ROWS, (round, row), &value(round + row, 900)))
        })?;
    }
    store.checkpoint()?;
    store.write(|tx| tx.remove_range(&ROWS, (round, 10)..(round + 1, 0)).map(drop))?;
    let calls = disk.calls().total();
    store.checkpoint()?;
    Ok(calls)
}

/// Checks that all records have the value of their round.
fn is_filled(store: &Store<Native>) -> Result<(), String> {
    let rows = store.read(|tx| tx.range(&ROWS, ..)?.collect::<Result<Vec<_>, _>>());
    for ((round, row), found) in rows.map_err(|why| why.to_string())? {
        if found != value(round + row, 900) {
            return Err(format!("row {row} of round {round} has a wrong value"));
        }
    }
    Ok(())
}

/// A crash may interrupt the punching of pages, which then leaves any part of a page.
#[test]
fn a_crash_while_pages_are_punched_loses_nothing() {
    let disk = Simulated::new();
    let from = fill_and_free(&begin(&disk, Mode::None).unwrap(), &disk, 0).unwrap();
    assert!(disk.calls()[Operation::Punch] > 0, "nothing was punched");
    for number in (from..disk.calls().total()).step_by(2) {
        let disk = Simulated::new();
        disk.plan(number, Fault::Crash);
        if let Ok(store) = begin(&disk, Mode::None) {
            let _ = fill_and_free(&store, &disk, 0);
            disk.crash();
        }
        disk.crash();
        disk.restart(number);
        let store = begin(&disk, Mode::None).unwrap();
        let sound = check(&store).and_then(|()| is_filled(&store));
        sound.unwrap_or_else(|why| panic!("call {number}: {why}"));
        if number % 4 == 0 {
            // The pages are reused.
            fill_and_free(&store, &disk, 1).unwrap();
            let sound = check(&store).and_then(|()| is_filled(&store));
            sound.unwrap_or_else(|why| panic!("call {number}, then filled: {why}"));
        }
    }
}

const UPTO: u64 = 200;

fn trial(mode: Mode, number: u64, seed: u64) -> Result<(), String> {
    let say = |why: Error| why.to_string();
    let disk = Simulated::new();
    disk.plan(number, Fault::Crash);
    if let Ok(store) = begin(&disk, mode) {
        let _ = script(&store, UPTO);
        disk.crash();
    }
    disk.crash();
    disk.restart(seed);
    if seed % 2 == 1 {
        // A crash in recovery.
        disk.plan(disk.calls().total() + seed % 40, Fault::Crash);
        drop(begin(&disk, mode));
        disk.crash();
        disk.restart(seed + 1);
    }
    let store = begin(&disk, mode).map_err(say)?;
    check(&store)?;
    is_a_queue(&store)?;
    script(&store, UPTO + 40).map_err(say)?;
    check(&store)?;
    is_a_queue(&store)
}

#[test]
fn a_crash_at_each_call_returns_each_page() {
    let (mut count, mut failures) = (0, Vec::new());
    for mode in [Mode::Full, Mode::Write, Mode::None] {
        let disk = Simulated::new();
        let store = begin(&disk, mode).unwrap();
        script(&store, UPTO).unwrap();
        let space = store.space().unwrap();
        assert!(space.pages < 40 && space.free > 0, "nothing was unlinked: {space:?}");
        let calls = disk.calls().total();
        for number in 0..calls {
            count += 1;
            if let Err(why) = trial(mode, number, number * 7 + 1) {
                failures.push(format!("{mode:?}, call {number}: {why}"));
            }
        }
    }
    println!("{count} crashes");
    assert!(count > 100);
    assert!(failures.is_empty(), "{} of {count}, the first: {}", failures.len(), failures[0]);
}

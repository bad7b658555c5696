//! A store that is verified while others write to it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use latchwork_check::random::Random;
use latchwork_store::{Error, Store, Table};

use crate::stage::{Place, options};

const LEFT: Table<u64, Vec<u8>> = Table::new("left");
const RIGHT: Table<u64, Vec<u8>> = Table::new("right");
/// A table whose writes are always rolled back.
const NEVER: Table<u64, u64> = Table::new("never");
/// Keys of each thread in each table.
const KEYS: u64 = 2000;

/// Fills a part of one table and empties as much of the other, so that pages move between trees;
/// and creates a table in a transaction that is rolled back.
fn move_pages(store: &Store, thread: u64, round: u64, random: &mut Random) -> Result<(), Error> {
    let (fill, empty) = if round.is_multiple_of(2) { (&LEFT, &RIGHT) } else { (&RIGHT, &LEFT) };
    let from = (thread << 32) + random.below(KEYS / 2);
    let to = from + random.below(KEYS / 2);
    let length = if round.is_multiple_of(5) { 20_000 } else { 400 };
    for begin in (from..to).step_by(100) {
        let end = to.min(begin + 100);
        store.write(|tx| (begin..end).try_for_each(|n| tx.put(fill, n, &vec![7; length / 10])))?;
        store.write(|tx| tx.remove_range(empty, begin..end).map(drop))?;
    }
    store.put(fill, from, &vec![9; length])?;
    let mut tx = store.begin()?;
    tx.put(&NEVER, thread, round)?;
    tx.roll_back()
}

#[test]
fn verify_succeeds_while_pages_move_between_tables() {
    let place = Place::new("live");
    let mut small = options();
    (small.sizes.page, small.sizes.cache) = (4096, 1 << 20);
    let store = Store::open_with(place.at("one"), &small).unwrap();
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let (looks, most_lost) = thread::scope(|scope| {
        for thread in 0..3 {
            let (store, stop, rounds) = (&store, &stop, &rounds);
            scope.spawn(move || {
                let mut random = Random(thread + 1);
                for round in 0.. {
                    if stop.load(Relaxed) {
                        return;
                    }
                    let moved = move_pages(store, thread, round, &mut random);
                    // A failure must not make the other threads wait forever.
                    rounds.fetch_add(if moved.is_ok() { 1 } else { 1 << 32 }, Relaxed);
                    assert_eq!(moved, Ok(()), "thread {thread}, round {round}");
                }
            });
        }
        let (mut looks, mut most_lost) = (0, 0);
        while looks < 30 || rounds.load(Relaxed) < 60 {
            let space = store.space().inspect_err(|_| stop.store(true, Relaxed)).unwrap();
            assert!(space.used + space.free + space.lost == space.pages, "{space:?}");
            looks += 1;
            most_lost = most_lost.max(space.lost);
        }
        stop.store(true, Relaxed);
        (looks, most_lost)
    });
    // A thread has at most eight pages in intent words; and pages may move between two reads.
    assert!(most_lost <= 3 * 8 + 20, "{most_lost} lost in {looks} looks");
    let quiet = store.space().unwrap();
    assert!(quiet.lost == 0 && quiet.used > 10, "{quiet:?}");
    for name in [LEFT.name(), RIGHT.name()] {
        store.drop_table(name, &mut |_| {}).unwrap();
    }
    let empty = store.space().unwrap();
    assert!(empty.lost == 0 && empty.free > quiet.used / 2, "{quiet:?}, {empty:?}");
}

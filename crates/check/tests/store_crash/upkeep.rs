//! Processes that are killed in what a store does besides transactions: checkpoints, new segments
//! of the log, pages that are in no cache, and what is put right behind another one that was
//! killed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use latchwork_store::Table;

use crate::kills::steps;
use crate::work::Worker;
use crate::{KEEPERS, Place, start};

/// More than the cache has room for.
const COLD: Table<u64, &[u8]> = Table::new("cold");
const COLD_ROWS: u64 = 3_000;
const COLD_BYTES: usize = 1_000;

/// What a store does by itself, again and again, between transactions, until this process is
/// killed.
pub(crate) fn keep(worker: &mut Worker) -> ! {
    for turn in 0_u64.. {
        worker.round();
        let at = turn * 397 % COLD_ROWS;
        let value = worker.store.read(|tx| tx.get(&COLD, at)).unwrap();
        assert_eq!(value.map(|value| value.len()), Some(COLD_BYTES), "row {at}");
        worker
            .store
            .write(|tx| {
                (at..COLD_ROWS.min(at + 40))
                    .try_for_each(|row| tx.put(&COLD, row, &[turn as u8; COLD_BYTES]))
            })
            .unwrap();
        worker.store.sweep().unwrap();
        if turn % 4 == 3 {
            worker.store.checkpoint().unwrap();
        }
    }
    unreachable!("the turns do not end");
}

/// Steps that only a keeper comes to, or comes to often.
const KEPT: &[&str] = &[
    "control: claimed",
    "control: written",
    "fault.copied",
    "fault.read",
    "make: filled",
    "make: named",
    "maker: claimed",
    "recycle: decided",
    "recycle: one",
    "repair.copied",
    "repair.made",
    "repair.taken",
    "repair: aside",
    "repair: claims",
    "repair: forget",
    "repair: slot",
    "sync.done",
    "write.ahead",
    "write.claimed",
    "write.written",
];

/// One process dies with a record in the log that is not on its page, or with the log's latch; one
/// that keeps the store in order meets that, and dies, too, at each step of what it does.
#[test]
fn a_death_at_each_step_of_upkeep_stops_nobody() {
    let place = Place::new("upkeep");
    let mut worker = Worker::new(&place, 0);
    worker.fill();
    let rows = (0..COLD_ROWS).collect::<Vec<_>>();
    for rows in rows.chunks(100) {
        let all = worker
            .store
            .write(|tx| rows.iter().try_for_each(|row| tx.put(&COLD, *row, &[0; COLD_BYTES])));
        all.unwrap();
    }
    let known = steps();
    let mut reached = BTreeSet::new();
    let first = ["append: copied", "change.begun", "append: slot", "change.intended"];
    for (number, step) in KEPT.iter().flat_map(|step| [step; 2]).enumerate() {
        assert!(known.iter().any(|known| known == step), "{step} is no step");
        let before = first[number % first.len()];
        let mut one = start(&place, 1, before, 3 + number as u32);
        assert_eq!(one.wait().unwrap().code(), None, "{before}: the victim failed");
        let mut keeper = start(&place, KEEPERS + 2, step, 1 + number as u32 % 2);
        let begun = Instant::now();
        let ended = loop {
            if let Some(ended) = keeper.try_wait().unwrap() {
                reached.insert(*step);
                break ended;
            }
            if begun.elapsed() > Duration::from_millis(1_500) {
                keeper.kill().unwrap();
                break keeper.wait().unwrap();
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(ended.code(), None, "{step}: the keeper failed");
        (0..10).for_each(|_| worker.round());
        worker.store.sweep().unwrap();
        worker.audit();
        worker.check(1);
        worker.check(2);
    }
    worker.store.verify().unwrap();
    let missed = KEPT.iter().filter(|step| !reached.contains(*step)).collect::<Vec<_>>();
    println!("{} of {} steps were come to; not {missed:?}", reached.len(), KEPT.len());
    // Which of them meets what another one left is a race, and so is which of them writes pages.
    assert!(missed.len() <= KEPT.len() / 4, "{missed:?}");
    for step in ["control: written", "fault.read", "make: filled", "recycle: one"] {
        assert!(reached.contains(step), "{step} was not come to");
    }
}

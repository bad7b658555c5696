//! Processes that are killed in a store's background work: checkpoints, new segments of the log,
//! pages that are not cached, and repairs after another killed process.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use latchwork_store::Table;

use crate::kills::steps;
use crate::work::Worker;
use crate::{KEEPERS, Place, start};

/// More rows than the cache holds.
const COLD: Table<u64, &[u8]> = Table::new("cold");
const COLD_ROWS: u64 = 3_000;
const COLD_BYTES: usize = 1_000;

/// Runs the background work of a store between transactions until this process is killed.
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
    unreachable!("the loop does not end");
}

/// Steps that only such a process reaches, or reaches often.
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

/// One process dies with a logged record that is not on its page, or with the log's latch. A second
/// process meets that in its background work and also dies, at each step of that work.
#[test]
fn a_death_at_each_step_of_upkeep_blocks_no_other() {
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
        assert!(known.iter().any(|known| known == step), "{step} is not a known step");
        let before = first[number % first.len()];
        let mut one = start(&place, 1, before, 3 + number as u32);
        assert_eq!(one.wait().unwrap().code(), None, "{before}: the victim was not killed");
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
        assert_eq!(ended.code(), None, "{step}: the second process was not killed");
        (0..10).for_each(|_| worker.round());
        worker.store.sweep().unwrap();
        worker.audit();
        worker.check(1);
        worker.check(2);
    }
    worker.store.verify().unwrap();
    let missed = KEPT.iter().filter(|step| !reached.contains(*step)).collect::<Vec<_>>();
    println!("{} of {} steps were reached; not {missed:?}", reached.len(), KEPT.len());
    // Which process meets what the first one left, and which one writes pages, is a race.
    assert!(missed.len() <= KEPT.len() / 4, "{missed:?}");
    for step in ["control: written", "fault.read", "make: filled", "recycle: one"] {
        assert!(reached.contains(step), "{step} was not reached");
    }
}

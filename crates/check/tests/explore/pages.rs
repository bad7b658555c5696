//! Thousands of schedules of the pool on the simulated machine, with costs off.
//!
//! A failure prints its seed. `LATCHWORK_SEED=n` runs only that schedule; the long form is
//! `cargo test --release -p latchwork-check --test explore pages:: -- --ignored`.

use crate::flawed::{self, Flaw};
use crate::pool::{FRAMES, FRAMES_MAX, Life, Odd, PUBLIC};
use crate::stage::Stage;
use latchwork_check::explore::{Schedule, explore, seed_in, seeds};

const SHORT: u64 = 300;
const LONG: u64 = 20_000;

/// The work of a thread in a run.
type Does = fn(&Life<'_>);

/// A page that all threads may read; every other time one of the first three, for contention.
fn page(life: &Life<'_>) -> u64 {
    life.dice.below(if life.dice.one_in(2) { 3 } else { PUBLIC })
}

/// Reads and changes of more pages than there are frames.
fn reads_and_writes(life: &Life<'_>) {
    for _ in 0..16 {
        let page = page(life);
        match life.dice.below(6) {
            0..=2 => life.write(page),
            3 => life.upgrade(page),
            _ => life.read(page),
        }
    }
}

/// A page that others change repeatedly, until its readers share its latch.
fn one_that_is_hot(life: &Life<'_>) {
    match life.me {
        0 => (0..2).for_each(|_| life.read(0)),
        _ => (0..12).for_each(|_| life.write(0)),
    }
}

/// Reads and changes, concurrently with write-back and prefetching.
fn beside_write_back(life: &Life<'_>) {
    for _ in 0..8 {
        let page = page(life);
        match life.dice.below(8) {
            0 | 1 => life.write(page),
            2 => life.upgrade(page),
            3 => life.clean(1 + life.dice.below(4) as u32),
            // One thread only: threads that sync one file wait for each other on the host.
            4 if life.me == 0 => life.sync(),
            5 => life.prefetch(page),
            _ => life.read(page),
        }
    }
}

/// The same, while the pool is resized and pages are pinned.
fn while_it_changes_size(life: &Life<'_>) {
    for _ in 0..6 {
        let page = page(life);
        let more = life.dice.below(u64::from(FRAMES_MAX - FRAMES) + 1) as u32;
        match life.dice.below(8) {
            0 | 1 => life.write(page),
            2 if life.me == 0 || life.dice.one_in(2) => life.resize(FRAMES + more),
            3 => life.upgrade(page),
            4 => life.pin(page, [page, life.dice.below(PUBLIC), life.dice.below(PUBLIC)]),
            5 => life.clean(2),
            _ => life.read(page),
        }
    }
}

/// Pages that one thread pins while others evict pages.
fn pins_during_evictions(life: &Life<'_>) {
    let any = || life.dice.below(PUBLIC);
    for _ in 0..6 {
        match life.me {
            0 => life.pin(any(), [any(), 0, any()]),
            _ => (0..2).for_each(|_| life.read(any())),
        }
    }
}

/// Pages that threads create and free, which others may still read.
fn made_and_freed(life: &Life<'_>) {
    for _ in 0..10 {
        match life.dice.below(9) {
            0..=2 => life.make(),
            3 | 4 => life.free(),
            5 => life.write(page(life)),
            6 => life.read(page(life)),
            7 => life.clean(2),
            _ => life.read_astray(PUBLIC + life.dice.below(6)),
        }
    }
}

/// Freed pages that other threads reuse: the first free page was the first before as well.
fn handed_on(life: &Life<'_>) {
    (0..1 + life.dice.below(2)).for_each(|_| life.make());
    for _ in 0..10 {
        match life.dice.below(10) {
            0..=3 => life.clean(4),
            4 => life.read_astray(PUBLIC + life.dice.below(6)),
            _ => life.hand_on(),
        }
    }
}

/// Runs this many schedules and prints the totals.
fn hold(many: u64, odd: Odd, does: Does) -> Stage {
    let stage = Stage::new();
    explore(seeds(many), |schedule| stage.run(schedule, odd, does)).unwrap();
    println!(
        "{:?}, {} upgrades, {} resizes, {} pins",
        stage.did.borrow(),
        stage.upgrades.get(),
        stage.resizes.get(),
        stage.pins.get()
    );
    stage
}

/// Tests of a property in a short and a long form. The short one also checks that its schedules
/// together have reached the given state.
macro_rules! laws {
    ($($name:ident, $long:ident: $law:ident, $odd:expr, $stage:ident: $fired:expr;)*) => {$(
        #[test]
        fn $name() {
            let $stage = hold(SHORT, $odd, $law);
            // A single schedule may be replayed.
            assert!(std::env::var("LATCHWORK_SEED").is_ok() || $fired, "nothing was tested");
        }

        #[test]
        #[ignore = "long"]
        fn $long() {
            hold(LONG, $odd, $law);
        }
    )*};
}

const PLAIN: Odd = Odd { slow: false, sparse: false, hasty: false, loses_one_in: 0 };
const SLOW: Odd = Odd { slow: true, ..PLAIN };
const SPARSE: Odd = Odd { sparse: true, ..PLAIN };

laws! {
    in_few_frames, in_few_frames_long: reads_and_writes, PLAIN, stage: {
        let did = stage.did.borrow();
        did.evicted > SHORT && did.evicted_dirty > 20 && did.restarts > 20
            && stage.upgrades.get() > SHORT
    };
    hot, hot_long: one_that_is_hot, SLOW, stage: {
        stage.did.borrow().fallbacks > 20
    };
    written_back, written_back_long: beside_write_back, PLAIN, stage: {
        let did = stage.did.borrow();
        did.written > SHORT && did.prefetched > SHORT && did.restarts > 20
    };
    resized, resized_long: while_it_changes_size, PLAIN, stage: {
        stage.resizes.get() > SHORT && stage.pins.get() > SHORT
            && stage.did.borrow().evicted > SHORT
    };
    kept, kept_long: pins_during_evictions, PLAIN, stage: {
        stage.pins.get() > 5 * SHORT && stage.did.borrow().evicted > 5 * SHORT
    };
    freed, freed_long: made_and_freed, PLAIN, stage: stage.did.borrow().reused > SHORT;
    passed_on, passed_on_long: handed_on, PLAIN, stage: {
        stage.did.borrow().reused > 3 * SHORT
    };
    sparse, sparse_long: reads_and_writes, SPARSE, stage: {
        stage.did.borrow().evicted > SHORT && stage.upgrades.get() > SHORT
    };
    sparse_resized, sparse_resized_long: while_it_changes_size, SPARSE, stage: {
        stage.resizes.get() > SHORT && stage.did.borrow().evicted > SHORT
    };
}

/// With a flaw the property fails, and the schedule is reported.
fn found(does: Does, odd: Odd, among: u64, says: &[&str]) {
    let law = |stage: &Stage, schedule: Schedule| stage.run(schedule, odd, does);
    let stage = Stage::new();
    let error = explore(0..among, |schedule| law(&stage, schedule));
    let error = error.expect_err("the flaw was not detected");
    assert!(says.iter().any(|what| error.contains(what)), "{error}");
    println!("{}", error.lines().next().unwrap_or_default());
    // A stage is not used again after a failure.
    let (seed, stage) = (seed_in(&error), Stage::new());
    assert_eq!(explore([seed], |schedule| law(&stage, schedule)), Err(error));
}

#[test]
fn a_reader_that_does_not_validate_is_detected() {
    let odd = Odd { hasty: true, ..PLAIN };
    found(reads_and_writes, odd, 300, &["torn", "another page's bytes"]);
}

#[test]
fn a_lost_write_is_detected() {
    let odd = Odd { loses_one_in: 7, ..PLAIN };
    found(beside_write_back, odd, 300, &["older", "stored last"]);
}

#[test]
fn a_lost_wake_up_is_detected() {
    flawed::with(Flaw::Deaf, || {
        found(reads_and_writes, PLAIN, 2_000, &["slept through"]);
    });
}

#[test]
fn a_pin_without_a_fence_is_detected() {
    let says = ["the pinned page was evicted"];
    flawed::with(Flaw::Loose, || {
        found(pins_during_evictions, PLAIN, 20_000, &says);
    });
}

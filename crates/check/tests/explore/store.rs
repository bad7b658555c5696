//! Thousands of schedules of the store on the simulated machine, with costs off.
//!
//! A failure prints its seed. `LATCHWORK_SEED=n` runs only that schedule; the long form is
//! `cargo test --release -p latchwork-check --test explore store:: -- --ignored`.

use std::cell::Cell;

use latchwork_check::explore::{Schedule, explore, seed_in, seeds};
use latchwork_check::memory_engine::Bug;
use latchwork_store::{Error, Level};

use crate::accounts::{DEATHS, TRANSFERS};
use crate::flawed::{self, Flaw};
use crate::ledger::{Acts, LATER, Life, Odd, PLAIN, Program, Tally, has, nothing};
use crate::records::{Rows, in_memory, on_store};

const SHORT: u64 = 200;
const LONG: u64 = 10_000;

/// A few keys. Half of them exist.
const KEYS: u64 = 6;

fn a_few(life: &Life<'_>) {
    life.write(|acts| (0..KEYS / 2).try_for_each(|n| acts.put(2 * n, Some(&has(n)))));
}

/// A random step of a transaction.
fn step(life: &Life<'_>, acts: &mut Acts<'_>) -> Result<(), Error> {
    let (key, value) = (life.dice.below(KEYS), has(life.dice.below(1 << 40)));
    match life.dice.below(12) {
        0..=2 => acts.get(key, false).map(drop),
        3 => acts.get(key, true).map(drop),
        4 | 5 => acts.insert(key, &value),
        6 => acts.put(key, None),
        7 | 8 => twice(life, acts, key),
        9 => acts.in_vain(|acts| step(life, acts)),
        10 => acts.put_final(key, &value),
        _ => acts.put(key, Some(&value)),
    }
}

/// A repeated scan returns the same records, whatever others insert and remove.
fn twice(life: &Life<'_>, acts: &mut Acts<'_>, from: u64) -> Result<(), Error> {
    let (to, back) = (from + 1 + life.dice.below(KEYS), life.dice.one_in(2));
    let first = acts.scan(from, to, back)?;
    acts.get(life.dice.below(KEYS), false)?;
    let second = acts.scan(from, to, !back)?;
    if first != second {
        life.flaw(format!("{first:?}, and then {second:?}"));
    }
    Ok(())
}

fn at_random(life: &Life<'_>) {
    for _ in 0..5 {
        if life.dice.one_in(4) {
            life.begins("a snapshot");
            life.read(|seen| {
                seen.get(life.dice.below(KEYS))?;
                seen.scan(0, KEYS, life.dice.one_in(2))?;
                seen.get(life.dice.below(KEYS)).map(drop)
            });
            continue;
        }
        life.begins("a transaction");
        let (length, rejected) = (1 + life.dice.below(4), life.dice.one_in(6));
        life.write(|acts| {
            (0..length).try_for_each(|_| step(life, acts))?;
            if rejected { Err(Error::Rejected("on purpose".to_owned())) } else { Ok(()) }
        });
    }
}

const AT_RANDOM: Program =
    Program { begins: a_few, does: at_random, ends: nothing, patience: LATER };

/// Repeated scans and writes of single records: often a claim is the first one in its tree while a
/// writer is at its leaf.
fn scans_and_writes(life: &Life<'_>) {
    for _ in 0..6 {
        if life.dice.one_in(2) {
            life.begins("a scan, and again");
            life.write(|acts| twice(life, acts, 0));
        } else {
            life.begins("a write of one record");
            let value = life.dice.one_in(2).then(|| has(life.dice.below(1 << 40)));
            let key = life.dice.below(KEYS);
            life.write(|acts| acts.put(key, value.as_ref().map(|value| &value[..])));
        }
    }
}

const PHANTOMS: Program =
    Program { begins: a_few, does: scans_and_writes, ends: nothing, patience: LATER };

/// Each transaction that adds a record checks that the range has at most this many.
const MOST: usize = 2;

fn none(life: &Life<'_>) {
    life.write(|acts| acts.put(KEYS, Some(&has(0))));
}

fn one_more_or_less(life: &Life<'_>) {
    for _ in 0..4 {
        life.begins("a transaction");
        let key = life.dice.below(KEYS);
        life.write(|acts| {
            let rows = acts.scan(0, KEYS, life.dice.one_in(2))?;
            match rows.get(life.dice.below(MOST as u64) as usize) {
                Some((one, _)) if rows.len() >= MOST => acts.put(*one, None),
                _ => acts.put(key, Some(&has(1))),
            }
        });
        life.begins("a snapshot");
        life.read(|seen| {
            let rows = seen.scan(0, KEYS, false)?;
            if rows.len() > MOST {
                life.flaw(format!("{} records in the range", rows.len()));
            }
            Ok(())
        });
    }
}

const SKEW: Program =
    Program { begins: none, does: one_more_or_less, ends: nothing, patience: LATER };

/// Every tenth record always exists; four of them fit on a leaf.
const DECADES: u64 = 4;
const LONG_VALUE: usize = 800;

fn tenths(life: &Life<'_>) {
    life.write(|acts| {
        (0..DECADES).try_for_each(|decade| acts.put(10 * decade, Some(&[0; LONG_VALUE])))
    });
}

/// Checks that each record that always existed was seen once, in order.
fn whole(life: &Life<'_>, rows: &Rows) {
    let tenths = rows.iter().map(|(key, _)| *key).filter(|key| key % 10 == 0);
    let sorted = rows.is_sorted_by(|(one, _), (next, _)| one < next);
    if !sorted || !tenths.eq((0..DECADES).map(|decade| 10 * decade)) {
        let keys: Vec<_> = rows.iter().map(|(key, _)| key).collect();
        life.flaw(format!("not each record once: {keys:?}"));
    }
}

fn scan(life: &Life<'_>) {
    life.begins("a scan");
    let (mut rows, back) = (Rows::new(), life.dice.one_in(2));
    life.read(|seen| {
        rows = seen.scan(0, 10 * DECADES, back)?;
        Ok(())
    });
    if life.odd.in_two {
        // Error: continues in another snapshot, after the number of records seen so far.
        rows.truncate(rows.len() / 2);
        life.read(|seen| {
            let rest = seen.scan(0, 10 * DECADES, back)?;
            let had = rows.len();
            rows.extend(rest.into_iter().skip(had));
            Ok(())
        });
    }
    whole(life, &rows);
}

/// Fills and empties leaves while others scan.
fn fill_and_empty(life: &Life<'_>) {
    for _ in 0..7 {
        let decade = 10 * life.dice.below(DECADES);
        match life.dice.below(8) {
            0 | 1 => scan(life),
            2 => {
                life.begins("a scan that holds the range");
                life.write(|acts| {
                    whole(life, &acts.scan(0, 10 * DECADES, false)?);
                    Ok(())
                });
            }
            3 => life.checkpoint(),
            kind => {
                life.begins("a change of a leaf");
                let value = (kind % 2 == 0).then_some(&[1; LONG_VALUE][..]);
                let from = 1 + life.dice.below(2) * 4;
                life.write(|acts| {
                    (from..from + 5).try_for_each(|key| acts.put(decade + key, value))
                });
            }
        }
    }
}

const LEAVES: Program =
    Program { begins: tenths, does: fill_and_empty, ends: nothing, patience: LATER };

fn hold(many: u64, odd: Odd, program: Program) -> Tally {
    let all = Cell::new(Tally::default());
    explore(seeds(many), |schedule| {
        let one = on_store(schedule, odd, program)?;
        all.set(all.get().and(one));
        Ok(())
    })
    .unwrap();
    println!("{:?}", all.get());
    all.get()
}

/// Tests of a property in a short and a long form. The short one also checks that its schedules
/// together have reached the given state.
macro_rules! laws {
    ($($name:ident, $long:ident: $program:expr, $odd:expr, $tally:ident: $fired:expr;)*) => {$(
        #[test]
        fn $name() {
            let $tally = hold(SHORT, $odd, $program);
            // A single schedule may be replayed.
            assert!(std::env::var("LATCHWORK_SEED").is_ok() || $fired, "nothing was tested");
        }

        #[test]
        #[ignore = "long"]
        fn $long() {
            hold(LONG, $odd, $program);
        }
    )*};
}

/// A checkpoint is always due.
const CHECKPOINTS: Odd = Odd { budget: 2 << 10, ..PLAIN };

laws! {
    accounts_add_up, accounts_add_up_long: TRANSFERS, PLAIN, tally: tally.again > 20;
    with_checkpoints, with_checkpoints_long: TRANSFERS, CHECKPOINTS, tally: tally.again > 20;
    serial, serial_long: AT_RANDOM, PLAIN, tally: tally.again > 20 && tally.reads > 20 * SHORT;
    no_phantoms, no_phantoms_long: PHANTOMS, PLAIN, tally: tally.reads > 10 * SHORT;
    no_skew, no_skew_long: SKEW, PLAIN, tally: tally.again > 20;
    deaths, deaths_long: DEATHS, PLAIN, tally: tally.died > SHORT / 2;
    leaves, leaves_long: LEAVES, PLAIN, tally: tally.used > 10 * SHORT && tally.free > 20;
}

/// With a flaw the property fails, and the schedule is reported.
fn found(among: u64, says: &[&str], law: impl Fn(Schedule) -> Result<Tally, String>) {
    let law = |schedule| law(schedule).map(drop);
    let error = explore(0..among, law).expect_err("the flaw was not detected");
    assert!(says.iter().any(|what| error.contains(what)), "{error}");
    println!("{error}");
    assert_eq!(explore([seed_in(&error)], law), Err(error));
}

fn found_in_store(program: Program, odd: Odd, says: &[&str]) {
    found(SHORT, says, |schedule| on_store(schedule, odd, program));
}

const LOWER: Odd = Odd { level: Level::ReadCommitted, ..PLAIN };
const IN_TWO: Odd = Odd { in_two: true, ..PLAIN };

#[test]
fn transfers_at_a_lower_level_are_detected() {
    found_in_store(TRANSFERS, LOWER, &["all accounts have", "a serial run shows"]);
}

#[test]
fn a_sum_of_two_snapshots_is_detected() {
    found_in_store(TRANSFERS, IN_TWO, &["all accounts have"]);
}

#[test]
fn a_snapshot_that_began_too_early_is_detected() {
    found_in_store(TRANSFERS, Odd { early: true, ..PLAIN }, &["transfers of"]);
}

#[test]
fn phantoms_at_a_lower_level_are_detected() {
    found_in_store(AT_RANDOM, LOWER, &["and then", "a serial run shows"]);
}

#[test]
fn write_skew_at_a_lower_level_is_detected() {
    found_in_store(SKEW, LOWER, &["records in the range", "a serial run shows"]);
}

#[test]
fn a_scan_continued_by_count_is_detected() {
    found_in_store(LEAVES, IN_TWO, &["not each record once"]);
}

#[test]
fn planted_bugs_are_detected() {
    explore(0..SHORT, |schedule| in_memory(schedule, PLAIN, AT_RANDOM, Bug::None).map(drop))
        .unwrap();
    for bug in [Bug::UndoKeepsValue, Bug::ClaimsIgnored, Bug::LowTooHigh, Bug::NoOldVersions] {
        let says = ["a serial run shows", "and then"];
        found(SHORT, &says, |schedule| in_memory(schedule, PLAIN, AT_RANDOM, bug));
    }
}

#[test]
fn a_lost_wake_up_is_detected() {
    let says = ["slept through"];
    flawed::with(Flaw::Deaf, || {
        found(SHORT, &says, |schedule| on_store(schedule, PLAIN, TRANSFERS));
    });
}

#[test]
fn a_missing_fence_is_detected() {
    let says = ["a serial run shows", "and then"];
    flawed::with(Flaw::Loose, || {
        found(25 * SHORT, &says, |schedule| on_store(schedule, PLAIN, PHANTOMS));
    });
}

#[test]
fn a_transfer_in_two_transactions_is_detected() {
    found_in_store(DEATHS, IN_TWO, &["all accounts have", "a serial run shows"]);
}

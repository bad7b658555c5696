//! Thousands of schedules of the lock manager on the simulated machine, with costs off.
//!
//! A failure prints its seed. `LATCHWORK_SEED=n` runs only that schedule; the long form is
//! `cargo test --release -p latchwork-check --test explore locks:: -- --ignored`.

use std::cell::Cell;
use std::time::Duration;

use crate::flawed::{self, Breakable, Flaw};
use crate::house::{Life, NAMES, Plan};
use latchwork_check::explore::{Schedule, explore, seed_in, seeds};
use latchwork_check::neighbours::neighbours;
use latchwork_lockmgr::{Mode, Modes, ModesSpec, OwnerId, Wait, granular, shared};
use latchwork_machine::{Deadline, Machine};
use shared::{S, X};

const SHORT: u64 = 300;
const LONG: u64 = 20_000;

/// A property that must hold under one schedule.
type Law = fn(Schedule) -> Result<(), String>;

/// Tests of a property in a short and a long form.
macro_rules! laws {
    ($($name:ident, $long:ident: $law:expr;)*) => {$(
        #[test]
        fn $name() {
            explore(seeds(SHORT), $law as Law).unwrap();
        }

        #[test]
        #[ignore = "long"]
        fn $long() {
            explore(seeds(LONG), $law as Law).unwrap();
        }
    )*};
}

laws! {
    weak_and_strong, weak_and_strong_long: weak_against_strong;
    one_bias, one_bias_long: neighbours_under_one_bias;
    reservations, reservations_long: locks_reserved_names;
    intentions, intentions_long: intents_and_conversions;
    upgrades, upgrades_long: clashing_upgrades;
    cycles, cycles_long: cycle_has_one_victim;
    cycles_at_once, cycles_at_once_long: one_wait_closes_cycles;
    in_any_order, in_any_order_long: names_in_any_order;
    giving_up, giving_up_long: requests_end_early;
    by_age, by_age_long: older_owners_have_priority;
    kills, kills_long: an_owner_is_killed;
}

/// One lock at a time, mostly shared: every request ends, and no count is lost.
fn turns(life: &Life<'_>, names: u64, rounds: usize) {
    turns_in(life, [S, X], names, rounds);
}

/// The same in a mode that reads and a mode that writes.
fn turns_in(life: &Life<'_>, [read, write]: [Mode; 2], names: u64, rounds: usize) {
    for _ in 0..rounds {
        let name = life.dice.below(names) as usize;
        let writes = life.dice.one_in(3);
        let mode = if writes { write } else { read };
        if life.lock(name, mode, Wait::Detect) {
            life.use_it(name, writes);
            match life.dice.below(4) {
                0 => life.compare(name),
                // Locked a second time and released once: the mode stays.
                1 if life.lock(name, read, Wait::Detect) => life.unlock(name),
                _ => {}
            }
            life.unlock(name);
        }
    }
}

fn weak_against_strong(schedule: Schedule) -> Result<(), String> {
    Plan::new(schedule, shared::modes()).run(|life| turns(life, 1, 3)).map(drop)
}

/// Names that share one bias.
fn near() -> Vec<Vec<u8>> {
    neighbours(NAMES).into_iter().map(<[u8]>::to_vec).collect()
}

fn neighbours_under_one_bias(schedule: Schedule) -> Result<(), String> {
    let plan = Plan { names: near(), ..Plan::new(schedule, shared::modes()) };
    plan.run(|life| turns(life, NAMES as u64, 3)).map(drop)
}

/// Each owner except owner 1 locks its own name until it is reserved; owner 1 reads. Then all
/// request one of these names, to write or to read.
fn locks_reserved_names(schedule: Schedule) -> Result<(), String> {
    let once = |life: &Life<'_>, name: usize, writes: bool| {
        if life.lock(name, if writes { X } else { S }, Wait::Detect) {
            life.use_it(name, writes);
            // Long enough for another owner to be granted, if that were possible.
            life.compare(name);
            life.use_it(name, writes);
            life.unlock(name);
        }
    };
    let names = near();
    let plan = Plan { names, ..Plan::new(schedule, shared::modes()) };
    plan.run(|life| {
        match life.me {
            // Reads so often that the bias opens again, unless an owner writes.
            1 => (0..34).for_each(|_| once(life, 1, false)),
            me => (0..2).for_each(|_| once(life, me % NAMES, true)),
        }
        life.meet();
        (0..2).for_each(|_| once(life, 0, life.dice.one_in(2)));
    })
    .map(drop)
}

/// Granular modes, upgrades and downgrades, names in ascending order: deadlocks only by conversion.
fn intents_and_conversions(schedule: Schedule) -> Result<(), String> {
    let modes = granular::modes();
    let all: Vec<Mode> = modes.each().collect();
    let plan = Plan::new(schedule, modes).detecting();
    let book = plan.run(|life| {
        for name in 0..2 {
            for _ in 0..1 + life.dice.below(3) {
                let mode = all[life.dice.below(all.len() as u64) as usize];
                if !life.lock(name, mode, Wait::Detect) {
                    // The victim of a deadlock.
                    return life.release_all();
                }
                if life.dice.one_in(3) {
                    life.compare(name);
                }
            }
            match life.dice.below(4) {
                0 if life.mode(name) == Some(granular::X) => life.downgrade(name, granular::S),
                1 => life.unlock(name),
                _ => {}
            }
        }
        life.release_all();
    })?;
    if book.victims.get() < plan.owners {
        return Ok(());
    }
    Err(format!("{} of {} owners were victims", book.victims.get(), plan.owners))
}

/// All read, then all request to write: all but one are refused.
fn clashing_upgrades(schedule: Schedule) -> Result<(), String> {
    let plan = Plan::new(schedule, shared::modes()).detecting();
    let book = plan.run(|life| {
        if !life.lock(0, S, Wait::Detect) {
            return;
        }
        life.use_it(0, false);
        life.meet();
        if life.lock(0, X, Wait::Detect) {
            life.use_it(0, true);
        }
        life.release_all();
    })?;
    match (book.victims.get(), book.granted.get()) {
        (victims, granted) if victims + 1 == plan.owners && granted == plan.owners + 1 => Ok(()),
        (victims, granted) => Err(format!("{victims} victims, {granted} grants")),
    }
}

/// Each holds its own object and requests the next one's: exactly one is refused.
fn cycle_has_one_victim(schedule: Schedule) -> Result<(), String> {
    let plan = Plan::new(schedule, shared::modes()).detecting();
    let names = (0..plan.owners).map(|name| format!("cycle {name}").into_bytes()).collect();
    let plan = Plan { names, ..plan };
    let owners = plan.owners;
    let book = plan.run(|life| {
        if !life.lock(life.me, X, Wait::Detect) {
            return;
        }
        life.meet();
        let next = (life.me + 1) % owners;
        if life.lock(next, X, Wait::Detect) {
            life.use_it(next, true);
        }
        life.release_all();
    })?;
    match book.victims.get() {
        1 => Ok(()),
        victims => Err(format!("a cycle of {owners}, {victims} victims")),
    }
}

/// All but one read an object that the last one requests to write, and request the object that it
/// holds: its wait closes a cycle with each of them, and all are broken at once, not much later.
fn one_wait_closes_cycles(schedule: Schedule) -> Result<(), String> {
    let plan = Plan::new(schedule, shared::modes()).detecting();
    let book = plan.run(|life| {
        let (has, mode, wants) = if life.me == 0 { (0, X, 1) } else { (1, S, 0) };
        if life.lock(has, mode, Wait::Detect) {
            life.meet();
            if life.me == 0 {
                // In this time the others have searched and found no cycle.
                let later = Deadline::after::<Breakable>(Duration::from_millis(2));
                Breakable::wait(&<Breakable as Machine>::AtomicU32::default(), 0, Some(later));
            }
            life.lock(wants, X, Wait::Detect);
        }
        life.release_all();
    })?;
    match book.victims.get() {
        victims if (1..plan.owners).contains(&victims) => Ok(()),
        victims => Err(format!("{victims} of {} owners were victims", plan.owners)),
    }
}

/// Locks in any order, with queues, soft edges and cycles. At least one owner always completes.
fn names_in_any_order(schedule: Schedule) -> Result<(), String> {
    let plan = Plan::new(schedule, shared::modes()).detecting();
    let book = plan.run(|life| {
        for _ in 0..3 {
            let name = life.dice.below(NAMES as u64) as usize;
            let writes = life.dice.one_in(2);
            if !life.lock(name, if writes { X } else { S }, Wait::Detect) {
                return life.release_all();
            }
            life.use_it(name, life.mode(name) == Some(X));
            if life.dice.one_in(5) {
                life.unlock(name);
            }
        }
        life.release_all();
    })?;
    match book.victims.get() {
        victims if victims < plan.owners => Ok(()),
        victims => Err(format!("{victims} of {} owners were victims", plan.owners)),
    }
}

/// Deadlines, polls and cancellations: no other owner is kept waiting by them.
fn requests_end_early(schedule: Schedule) -> Result<(), String> {
    let plan = Plan::new(schedule, shared::modes());
    plan.run(|life| {
        for _ in 0..3 {
            let name = life.dice.below(2) as usize;
            let writes = life.dice.one_in(2);
            let mode = if writes { X } else { S };
            let has = match life.dice.below(5) {
                0 => life.lock(name, mode, Wait::Never),
                1 => life.lock_and_cancel(name, mode, life.dice.below(8)),
                2 => life.lock(name, mode, Wait::Detect),
                _ => life.lock(name, mode, Wait::Until(life.soon(400))),
            };
            if !has {
                continue;
            }
            life.use_it(name, writes);
            if mode == S && life.dice.one_in(2) {
                // With a deadline, because two of these would wait for each other.
                let deadline = Wait::Until(life.soon(400));
                if life.lock(name, X, deadline) {
                    life.use_it(name, true);
                    life.downgrade(name, S);
                    life.use_it(name, false);
                }
            }
            life.release_all();
        }
    })
    .map(drop)
}

/// Ordered by age, no cycle can form, so no detection is needed.
fn older_owners_have_priority(schedule: Schedule) -> Result<(), String> {
    let plan = Plan::new(schedule, shared::modes());
    let wait = if (schedule.0 / 2).is_multiple_of(2) { Wait::Die } else { Wait::Wound };
    plan.run(|life| {
        for _ in 0..3 {
            let name = life.dice.below(NAMES as u64) as usize;
            let writes = life.dice.one_in(2);
            if !life.lock(name, if writes { X } else { S }, wait) {
                return life.release_all();
            }
            life.use_it(name, life.mode(name) == Some(X));
        }
        life.release_all();
    })
    .map(drop)
}

/// One owner waits for a lock of another, which kills it and then waits for its locks: the victim's
/// wait fails, whether it sleeps already or is about to.
fn an_owner_is_killed(schedule: Schedule) -> Result<(), String> {
    let plan = Plan { owners: 2, ..Plan::new(schedule, shared::modes()) };
    let victim: Cell<Option<OwnerId>> = Cell::default();
    let book = plan.run(|life| {
        if life.me == 1 {
            victim.set(Some(life.owner.id()));
        }
        life.lock(life.me, X, Wait::Detect);
        life.meet();
        if life.me == 1 {
            if life.lock(0, S, Wait::Detect) {
                life.book.flaw("granted while a writer holds the lock".to_owned());
            }
            return life.release_all();
        }
        for _ in 0..life.dice.below(60) {
            Breakable::relax();
        }
        let victim = victim.get().expect("the victim reached the barrier");
        life.session.kill(victim).expect("it lives");
        life.lock(1, X, Wait::Detect);
    })?;
    match book.refused.get() {
        1 => Ok(()),
        refused => Err(format!("{refused} were refused")),
    }
}

/// With a flaw in the machine or in the modes the property fails, and the schedule is reported.
fn found(law: Law, among: u64, says: &[&str]) {
    let error = explore(0..among, law).expect_err("the flaw was not detected");
    assert!(says.iter().any(|what| error.contains(what)), "{error}");
    let seed = seed_in(&error);
    assert_eq!(explore([seed], law), Err(error));
}

#[test]
fn a_missing_barrier_between_weak_and_strong_is_detected() {
    // Either the closing thread misses a lock, or the owner misses that its lock was moved. In the
    // second case a waiter looks for dead threads in all partitions, beyond the limit of a run.
    let says = ["while owner", "slept through", "no end in sight"];
    flawed::with(Flaw::Hasty, || found(weak_against_strong, 10_000, &says));
}

#[test]
fn a_lost_wake_up_is_detected() {
    flawed::with(Flaw::Deaf, || found(weak_against_strong, 2_000, &["slept through"]));
}

/// A manager whose readers and writers do not conflict, contrary to the checked modes.
fn lenient(schedule: Schedule) -> Result<(), String> {
    let both = [Mode::new(0), Mode::new(1)];
    let modes = |conflicts: &[u8; 4]| {
        let spec = ModesSpec {
            names: &["S", "X"],
            conflicts,
            convert: None,
            weak: both[0].bit(),
            writes: both[1].bit(),
        };
        Modes::new(&spec).expect("modes that can be")
    };
    let told = Some(modes(&[0, 0, 0, 1]));
    let plan = Plan { told, ..Plan::new(schedule, modes(&[0, 1, 1, 1])) };
    plan.run(|life| turns_in(life, both, 1, 3)).map(drop)
}

#[test]
fn a_conflicting_grant_is_detected() {
    found(lenient, 100, &["while owner"]);
}

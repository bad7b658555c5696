//! Processes that die at every named step, and at random, while other processes continue.
//!
//! The test starts its own program again as child processes that share a region. A child kills
//! itself at the step it was given, or its parent kills it.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use latchwork_check::parts::side_by_side;
use latchwork_check::random::Random;
use latchwork_lockmgr::{Error, Manager, Mode, Options, Owner, Wait, granular};
use latchwork_machine::{Deadline, Shared};

use crate::deaths::{self, FOR_EVER, Peers, Steps, Stop};

/// The processes that run this file's `child`.
const PEERS: Peers = Peers(module_path!());

fn open(path: &Path) -> Manager<Shared> {
    Manager::new(deaths::region(path), granular::modes(), keeping()).unwrap()
}

/// Options with which names that `come_back` locks are soon reserved.
fn keeping() -> Options {
    Options { keep_after: 2, ..latchwork_check::early::early() }
}

/// Runs random operations in every mode on few names.
fn work(manager: &Manager<Shared>, seed: u64, rounds: u64) {
    let session = manager.session().unwrap();
    let mut random = Random(seed | 1);
    let modes: Vec<Mode> = session.manager().modes().each().collect();
    for _ in 0..rounds {
        let owner = session.owner().unwrap();
        for _ in 0..1 + random.below(6) {
            let many = random.below(4) == 0;
            let name = random.below(if many { 100_000 } else { 5 }).to_le_bytes();
            let mode = if random.below(2) == 0 {
                modes[random.below(2) as usize]
            } else {
                modes[random.below(6) as usize]
            };
            match owner.lock_timeout(&name, mode, Duration::from_millis(20)) {
                Ok(()) => {}
                Err(Error::TimedOut | Error::Deadlock(_) | Error::Aborted(_)) => break,
                Err(error) => panic!("a survivor got: {error}"),
            }
            if random.below(8) == 0 {
                let _ = owner.downgrade(&name, granular::IS);
            }
            if random.below(4) == 0 {
                owner.unlock(&name).unwrap();
            }
        }
        if !come_back(&owner, &mut random) {
            continue;
        }
        owner.release_all().unwrap();
    }
}

/// Locks one name repeatedly, so that it is reserved for this owner. Returns false on a refusal.
fn come_back(owner: &Owner<'_, Shared>, random: &mut Random) -> bool {
    for name in [random.below(5), 200_000 + random.below(40)] {
        for _ in 0..random.below(5) {
            match owner.lock_timeout(&name.to_le_bytes(), granular::X, Duration::from_millis(20)) {
                Ok(()) => owner.unlock(&name.to_le_bytes()).unwrap(),
                Err(Error::TimedOut | Error::Deadlock(_) | Error::Aborted(_)) => return false,
                Err(error) => panic!("a survivor got: {error}"),
            }
        }
    }
    true
}

/// The child process, controlled by its environment. Does nothing in the parent.
#[test]
fn child() {
    let Some(told) = deaths::told() else { return };
    let manager = open(&told.path);
    let bulk = std::env::var("LOCKMGR_BULK").is_ok();
    deaths::die_at(&told.step, told.nth);
    manager.session().unwrap().sweep().unwrap();
    if std::env::var("LOCKMGR_IN_VAIN").is_ok() {
        return lock_in_vain(&manager);
    }
    if bulk {
        take_many(&manager);
    }
    work(&manager, told.seed, told.rounds);
}

/// Takes enough locks to make the tables of most partitions grow.
fn take_many(manager: &Manager<Shared>) {
    let session = manager.session().unwrap();
    for names in [500_000u64, 50_000] {
        let owner = session.owner().unwrap();
        for name in 0..names {
            owner.lock(&(name + 1_000_000).to_le_bytes(), granular::X).unwrap();
        }
        owner.release_all().unwrap();
    }
}

/// Checks, after all other processes have ended, that no lock is held and no cell is lost.
fn all_is_well(manager: &Manager<Shared>, what: &str) {
    let session = manager.session().unwrap();
    session.sweep().unwrap();
    let totals = session.totals().unwrap();
    let left = (totals.objects, totals.requests, totals.weak, totals.owners, totals.orphans);
    assert_eq!(left, (0, 0, 0, 0, 0), "{what}: {:?}", session.snapshot());
    let owner = session.owner().unwrap();
    for name in 0..5u64 {
        owner.try_lock(&name.to_le_bytes(), granular::X).unwrap();
    }
    drop(owner);
    drop(session);
    let audit = manager.region().audit().unwrap();
    assert!(audit.is_sound(), "{what}: {audit:?}");
}

/// Returns the steps that this workload reaches in one process.
fn steps() -> Vec<&'static str> {
    let path = PEERS.fresh("steps");
    let manager = open(&path);
    let steps = Steps::default();
    std::thread::scope(|scope| {
        for seed in 1..4 {
            let (manager, steps) = (&manager, &steps);
            scope.spawn(move || {
                steps.count_mine();
                work(manager, seed, 2000);
            });
        }
    });
    let _ = std::fs::remove_file(&path);
    steps.seen().into_iter().filter(|(_, count)| *count > 20).map(|(name, _)| name).collect()
}

/// A child dies at a step while the parent and a peer work.
fn killed_at(step: &str, nth: u32, seed: u64) {
    let path = PEERS.fresh("every");
    let manager = open(&path);
    PEERS.killed_beside(&path, (step, nth), seed, 300, || work(&manager, seed + 9, 5));
    all_is_well(&manager, step);
    let _ = std::fs::remove_file(&path);
}

#[test]
fn killed_at_every_step() {
    let steps = steps();
    assert!(steps.len() >= 12, "only {steps:?}");
    for (round, step) in steps.iter().enumerate() {
        for nth in [1, 7, 40] {
            killed_at(step, nth, round as u64 * 31 + u64::from(nth));
        }
    }
    println!("killed at {0} of {0} steps, 3 times each: {steps:?}", steps.len());
}

#[test]
fn killed_while_a_table_grows() {
    let steps =
        ["larger table made", "object about to move", "object between tables", "tables exchanged"];
    for (step, nth) in steps.iter().flat_map(|step| [(*step, 1), (*step, 500)]) {
        let path = PEERS.fresh("grows");
        let manager = open(&path);
        let mut command = PEERS.command(&path, step, nth, 5, 10);
        let ended = command.env("LOCKMGR_BULK", "").spawn().unwrap().wait().unwrap();
        assert_eq!(ended.code(), None, "{step}: the victim was not killed, it failed");
        work(&manager, 17, 50);
        take_many(&manager);
        all_is_well(&manager, step);
        let _ = std::fs::remove_file(&path);
    }
}

#[test]
fn a_sweeper_killed_at_every_step() {
    let steps = [
        "dead thread's latch opened",
        "dead owner released",
        "dead owner's request noted",
        "dead owner's request taken",
        "about to finish a sweep",
        "request unlinked",
        "request about to be unlinked",
        "before the latch is opened",
        "moved request noted",
    ];
    let deaths =
        ["request linked", "bias closed", "weak lock moved", "object linked", "latch opened"];
    let reached = side_by_side((0..).zip(deaths), |(part, death)| {
        let mut reached = Vec::new();
        for step in steps {
            let path = PEERS.fresh(&format!("sweeper-{part}"));
            let manager = open(&path);
            // Not every death leaves work for every step.
            if PEERS.sweeper_dies(&path, death, step) {
                reached.push(step);
            }
            work(&manager, 17, 50);
            all_is_well(&manager, step);
            let _ = std::fs::remove_file(&path);
        }
        reached
    });
    let reached: BTreeSet<_> = reached.into_iter().flatten().collect();
    assert_eq!(reached.len(), steps.len(), "only {reached:?}");
}

/// The locks of a process that died at any step are kept for recovery, and then released.
#[test]
fn kept_for_recovery_at_every_step() {
    let mut reached = 0;
    let both = |step| [(step, false), (step, true)];
    for (round, (step, adopted)) in steps().into_iter().flat_map(both).enumerate() {
        let path = PEERS.fresh("kept");
        let keep = Box::new(|_, _: &[u8]| false);
        let manager =
            Manager::with_recovery(deaths::region(&path), granular::modes(), keeping(), keep)
                .unwrap();
        // A child alone does not reach every step.
        reached += usize::from(PEERS.dies(&path, step, 3, round as u64 + 3, 3000));
        let session = manager.session().unwrap();
        session.sweep().unwrap();
        for orphan in session.orphans().unwrap() {
            match adopted {
                true => session.adopt(orphan).unwrap().end().unwrap(),
                false => session.release_orphan(orphan).unwrap(),
            }
        }
        drop(session);
        all_is_well(&manager, step);
        let _ = std::fs::remove_file(&path);
    }
    assert!(reached >= 12, "only {reached} steps");
}

/// Requests a lock that conflicts with many weak locks, with a timeout of zero. The request moves
/// weak locks and then removes what it moved.
fn lock_in_vain(manager: &Manager<Shared>) {
    let session = manager.session().unwrap();
    let at_once = Wait::Until(Deadline::after::<Shared>(Duration::ZERO));
    let end = session.owner().unwrap().lock_with(b"many's", granular::X, at_once);
    panic!("the process should have died: {end:?}");
}

/// A closing thread times out and dies while it removes the requests that it moved for living
/// owners.
#[test]
fn a_closing_thread_killed_after_its_timeout_leaves_the_owners_locks() {
    for nth in [1, 2, 100] {
        let path = PEERS.fresh("in-vain");
        let manager = open(&path);
        let session = manager.session().unwrap();
        let owners: Vec<_> = (0..520).map(|_| session.owner().unwrap()).collect();
        for owner in &owners {
            owner.lock(b"many's", granular::IS).unwrap();
        }
        let mut command = PEERS.command(&path, "moved request noted", nth, 0, 0);
        let ended = command.env("LOCKMGR_IN_VAIN", "").spawn().unwrap().wait().unwrap();
        assert_eq!(ended.code(), None, "the child was not killed, it failed");
        session.sweep().unwrap();
        for owner in &owners {
            assert_eq!(owner.holds(b"many's"), Ok(Some((granular::IS, 1))));
            owner.unlock(b"many's").unwrap();
        }
        drop(owners);
        drop(session);
        all_is_well(&manager, "in vain");
        let _ = std::fs::remove_file(&path);
    }
}

/// A closing thread dies between moving a weak lock and noting that it did. During the sweep, the
/// lock's owner adopts the moved request, unlocks it and keeps it as its spare request.
#[test]
fn the_owner_keeps_a_lock_moved_by_a_killed_thread() {
    let path = PEERS.fresh("adopted");
    let manager = open(&path);
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    for name in 0..5u64 {
        owner.lock(&name.to_le_bytes(), granular::IS).unwrap();
    }
    assert!(PEERS.dies(&path, "weak lock moved", 1, 3, FOR_EVER), "the child was not killed");
    let stop = Stop::default();
    std::thread::scope(|scope| {
        let (manager, stop) = (&manager, &stop);
        let sweeper = scope.spawn(move || {
            let session = manager.session().unwrap();
            stop.at("about to finish a sweep");
            assert_eq!(session.sweep(), Ok(1));
            let other = session.owner().unwrap();
            (100..140u64).for_each(|n| other.lock(&n.to_le_bytes(), granular::X).unwrap());
            other.release_all().unwrap();
        });
        stop.until_stopped();
        for name in 0..5u64 {
            owner.lock(&name.to_le_bytes(), granular::IS).unwrap();
            owner.release_object(&name.to_le_bytes()).unwrap();
        }
        stop.go_on();
        sweeper.join().unwrap();
    });
    for name in 0..40u64 {
        owner.lock(&name.to_le_bytes(), granular::X).unwrap();
    }
    assert_eq!(owner.held(), Ok(40));
    for name in 0..40u64 {
        owner.unlock(&name.to_le_bytes()).unwrap();
    }
    drop(owner);
    drop(session);
    all_is_well(&manager, "adopted");
    let _ = std::fs::remove_file(&path);
}

#[test]
fn the_checks_can_fail() {
    let path = PEERS.fresh("control");
    let manager = open(&path);
    assert!(PEERS.dies(&path, "request linked", 9, 3, FOR_EVER));
    let session = manager.session().unwrap();
    let held = session.owners().unwrap();
    assert!(held > 0, "the dead process's owner must be visible before the sweep");
    assert_eq!(session.sweep(), Ok(1));
    assert_eq!(session.owners(), Ok(0));
    drop(session);
    all_is_well(&manager, "control");
    let _ = std::fs::remove_file(&path);
}

/// Kills processes at random instants, and replaces them.
fn random_kills(rounds: u64) {
    let path = PEERS.fresh("random");
    let manager = open(&path);
    // A child needs about 3 ms to start working.
    PEERS.kill_at_random(&path, rounds, 1_000..6_000, |round| work(&manager, round + 7, 20));
    all_is_well(&manager, "random kills");
    let _ = std::fs::remove_file(&path);
}

#[test]
fn killed_at_random() {
    random_kills(500);
}

#[test]
#[ignore = "long"]
fn killed_at_random_long() {
    random_kills(100_000);
}

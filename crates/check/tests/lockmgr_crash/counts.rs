//! `Claims::count` after processes died around linking and unlinking a claim: never below the
//! number held, before, during and after a sweep, and exact after it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use latchwork_check::left;
use latchwork_lockmgr::{KeyRange, Manager, Owner, RangeKind, Wait, granular};
use latchwork_machine::Shared;

use crate::deaths::{self, Peers};

/// The processes that run this file's `child`.
const PEERS: Peers = Peers(module_path!());

const SPACE: &[u8] = b"counted";

/// Where a process is killed that takes a claim and releases it.
const STEPS: [&str; 10] = [
    "ticket taken",
    "claim about to be linked",
    "claim linked",
    "claim in the tree",
    "claim staked",
    "claim granted",
    "claim about to be unlinked",
    "claim unlinked",
    "claim out of the tree",
    "claim given back",
];

/// Where a sweeper of that process is killed.
const SWEEPERS: [&str; 6] = [
    "tree made anew",
    "claim about to be unlinked",
    "claim unlinked",
    "claim out of the tree",
    "dead owner's request taken",
    "about to finish a sweep",
];

/// Claims that the child holds when it takes one more.
const ITS: u32 = 3;

fn open(path: &Path) -> Manager<Shared> {
    Manager::new(deaths::region(path), granular::modes(), latchwork_check::early::early()).unwrap()
}

/// Takes a claim on one key.
fn claim(owner: &Owner<'_, Shared>, key: &[u8], wait: Wait) {
    owner.lock_range(SPACE, KeyRange::key(key), RangeKind::WriteNext, wait).unwrap();
}

/// The child process. `holds STEP` has claims and is killed while it takes one more, for which it
/// may have to wait, or releases it. Otherwise the child sweeps and is killed at the given step.
#[test]
fn child() {
    let Some(told) = deaths::told() else { return };
    let manager = open(&told.path);
    let Some(step) = told.step.strip_prefix("holds ") else {
        deaths::die_at(&told.step, told.nth);
        let _ = manager.sweep();
        return;
    };
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    (0..ITS).for_each(|key| claim(&owner, format!("its {key}").as_bytes(), Wait::Never));
    deaths::die_at(step, 1);
    claim(&owner, b"wanted", Wait::Detect);
    owner.unlock_range(SPACE, KeyRange::key(b"wanted"), RangeKind::WriteNext).unwrap();
    unreachable!("the child must reach {step}");
}

/// A child dies at a step; checks the count before, during and after a sweep. If `sweeper` names a
/// step, a first sweeper is killed there. Returns whether that sweeper died.
fn dies_at(step: &str, ours: u32, sweeper: Option<&str>) -> bool {
    let path = PEERS.fresh(if sweeper.is_some() { "sweepers" } else { "alone" });
    let manager = open(&path);
    let (session, watching) = (manager.session().unwrap(), manager.session().unwrap());
    let owner = session.owner().unwrap();
    let claims = session.keyspace_claims(SPACE).unwrap();
    assert_eq!(claims.count(), Ok(0));
    (0..ours).for_each(|key| claim(&owner, format!("ours {key}").as_bytes(), Wait::Never));
    let holder = session.owner().unwrap();
    if step == "claim granted" {
        claim(&holder, b"wanted", Wait::Never);
    }
    let mut victim = PEERS.start(&path, &format!("holds {step}"), 0, 0, 0);
    let ended = loop {
        if let Some(ended) = victim.try_wait().unwrap() {
            break ended;
        }
        // Takes no latch: a thread that waits for a latch of the killed process would sweep.
        if manager.health().unwrap().waiting != 0 {
            holder.release_all().unwrap();
        }
        std::thread::yield_now();
    };
    assert_eq!(ended.code(), None, "{step}: the child was not killed");
    let before = claims.count().unwrap();
    assert!((ours + ITS..=ours + ITS + 1).contains(&before), "{step}: {before} before the sweep");
    let done = AtomicBool::new(false);
    let died = std::thread::scope(|scope| {
        let done = &done;
        scope.spawn(move || {
            let claims = watching.keyspace_claims(SPACE).unwrap();
            while !done.load(Relaxed) {
                let count = claims.count().unwrap();
                assert!(count >= ours, "{count} of {ours} during the sweep");
            }
        });
        let died = sweeper.is_some_and(|at| PEERS.dies(&path, at, 1, 0, 0));
        assert!(claims.count().unwrap() >= ours, "{step}, {sweeper:?}");
        let swept = session.sweep();
        done.store(true, Relaxed);
        assert!(swept.is_ok(), "{step}, {sweeper:?}: {swept:?}");
        died
    });
    assert_eq!(claims.count(), Ok(ours), "{step}, {sweeper:?}: after the sweep");
    drop((owner, holder));
    assert_eq!(claims.count(), Ok(0), "{step}, {sweeper:?}: at the end");
    left::nothing_in(&session);
    std::fs::remove_file(&path).unwrap();
    died
}

#[test]
fn claims_are_counted_after_a_death_at_every_step() {
    for (step, ours) in STEPS.iter().flat_map(|step| [0, 2].map(|ours| (step, ours))) {
        dies_at(step, ours, None);
    }
}

#[test]
fn claims_are_counted_after_a_sweepers_death_at_every_step() {
    let mut reached = BTreeSet::new();
    for step in STEPS {
        for sweeper in SWEEPERS {
            if dies_at(step, 2, Some(sweeper)) {
                reached.insert(sweeper);
            }
        }
    }
    assert!(reached.into_iter().eq(BTreeSet::from(SWEEPERS)), "a step was reached by no sweeper");
}

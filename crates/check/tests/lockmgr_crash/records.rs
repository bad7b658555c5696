//! Processes that die while they record a deadlock: other processes continue, the records stay
//! readable, and no cell is lost.
//!
//! The test starts its own program again as a child that shares a region and dies at a step.

use std::path::Path;
use std::process::Child;
use std::time::Duration;

use latchwork_lockmgr::{
    Manager, Options, OwnerOptions, Session, Step, View, Wait, granular, granular::X,
};
use latchwork_machine::Shared;
use latchwork_region::{Layer, Region};

use crate::deaths::{self, FOR_EVER, Peers, options};

/// The processes that run this file's `child`.
const PEERS: Peers = Peers(module_path!());

/// The steps of writing a record, in order, and of freeing the victim's report.
const STEPS: [&str; 6] = [
    "deadlock described",
    "deadlock about to be linked",
    "deadlock in the history",
    "deadlock counted",
    "older deadlock freed",
    "report taken",
];

fn open(path: &Path) -> Manager<Shared> {
    let calm =
        Options { detect_after: Duration::from_secs(3600), ..latchwork_check::early::early() };
    Manager::new(deaths::region(path), granular::modes(), calm).unwrap()
}

/// Creates deadlocks on names of this process, has each broken, and releases all locks.
fn deadlocks(session: &Session<Shared>, rounds: u64) {
    for round in 0..rounds {
        let n = 2 + round as usize % 3;
        let name = |at: usize| format!("{} {}", std::process::id(), at % n).into_bytes();
        let options = |at| OwnerOptions { priority: at as u32, label: "cycle", age: None };
        let owners: Vec<_> = (0..n).map(|at| session.owner_with(&options(at)).unwrap()).collect();
        for (at, owner) in owners.iter().enumerate() {
            owner.lock(&name(at), X).unwrap();
        }
        for (at, owner) in owners.iter().enumerate() {
            assert_eq!(owner.request(&name(at + 1), X, Wait::Detect), Ok(Step::Waiting));
        }
        while owners[0].poll().unwrap().is_none() {
            session.detect().unwrap();
        }
    }
}

/// The child process, controlled by its environment. Does nothing in the parent.
#[test]
fn child() {
    let Some(told) = deaths::told() else { return };
    let manager = open(&told.path);
    deaths::die_at(&told.step, told.nth);
    let session = manager.session().unwrap();
    session.sweep().unwrap();
    deadlocks(&session, told.rounds);
}

/// Starts a child. Its work does not depend on a seed.
fn start(path: &Path, step: &str, nth: u32, rounds: u64) -> Child {
    PEERS.start(path, step, nth, 0, rounds)
}

/// Allocated cells of 512 bytes. Only records have that size.
fn record_cells(manager: &Manager<Shared>) -> u64 {
    manager.region().audit().unwrap().of(512).used
}

/// Reads the history through a view, and returns how many deadlocks it contains.
fn readable(path: &Path, what: &str) -> u64 {
    let region = Region::<Shared>::view(path, &options()).unwrap();
    let view = View::new(region).unwrap().unwrap();
    let before = view.deadlocks_ever().unwrap();
    let found = view.deadlocks().unwrap();
    let after = view.deadlocks_ever().unwrap();
    assert!(found.windows(2).all(|pair| pair[0].number < pair[1].number), "{what}");
    for deadlock in &found {
        assert!(
            deadlock.number <= after + 1 && deadlock.number + 16 > before,
            "{what}: {deadlock:?}"
        );
        assert_eq!(deadlock.owners as usize, deadlock.cycle.len(), "{what}");
        let names: Vec<_> = deadlock.cycle.iter().map(|w| w.link.object.clone()).collect();
        assert!(names.iter().all(|name| names.iter().filter(|n| *n == name).count() == 1));
        assert!(deadlock.cycle.iter().all(|w| w.label == "cycle" && w.link.wanted == X), "{what}");
    }
    found.len() as u64
}

/// Checks, after all other processes have ended, that each record has one cell and nothing else is
/// left.
fn all_is_well(path: &Path, manager: &Manager<Shared>, what: &str) {
    let session = manager.session().unwrap();
    session.sweep().unwrap();
    let totals = session.totals().unwrap();
    assert_eq!((totals.requests, totals.owners, totals.orphans), (0, 0, 0), "{what}");
    drop(session);
    let audit = manager.region().audit().unwrap();
    assert!(audit.is_sound(), "{what}: {audit:?}");
    assert_eq!(record_cells(manager), readable(path, what), "{what}: records and their cells");
    let blocks = latchwork_check::left::blocks(manager);
    assert_eq!(audit.of(65_472).used, blocks, "{what}: reports of victims are left");
}

#[test]
fn killed_at_every_step_of_a_record() {
    for step in STEPS {
        // From the 17th deadlock on the history is full and an older record is replaced.
        for nth in [1, 3, 20, 40] {
            let path = PEERS.fresh("every");
            let manager = open(&path);
            let what = format!("{step}, time {nth}");
            let mut peer = start(&path, "", 0, 400);
            let ended = start(&path, step, nth, FOR_EVER).wait().unwrap();
            assert_eq!(ended.code(), None, "{what}: the victim was not killed, it failed");
            // The killed process's records are readable before a sweep.
            let before = std::fs::read(&path).unwrap();
            readable(&path, &what);
            assert!(!before.is_empty());
            let session = manager.session().unwrap();
            deadlocks(&session, 30);
            drop(session);
            assert!(peer.wait().unwrap().success(), "{what}: the peer failed");
            all_is_well(&path, &manager, &what);
            let _ = std::fs::remove_file(&path);
        }
    }
    println!("killed at {0} of {0} steps, 4 times each", STEPS.len());
}

#[test]
fn a_sweeper_of_records_is_killed_at_every_step() {
    let usual = ["about to finish a sweep", "latched"];
    let mut cases: Vec<_> = STEPS.iter().flat_map(|death| usual.map(|s| (s, *death))).collect();
    cases.push(("dead one's deadlock freed", "deadlock in the history"));
    cases.push(("dead one's deadlock freed", "deadlock counted"));
    for (step, death) in cases {
        let path = PEERS.fresh("sweeper");
        let manager = open(&path);
        let what = format!("{death}, then {step}");
        assert_eq!(start(&path, death, 20, FOR_EVER).wait().unwrap().code(), None, "{what}");
        assert_eq!(start(&path, step, 1, FOR_EVER).wait().unwrap().code(), None, "{what}");
        all_is_well(&path, &manager, &what);
        assert_eq!(readable(&path, &what), 16, "{what}");
        let _ = std::fs::remove_file(&path);
    }
}

#[test]
fn the_checks_can_fail() {
    let path = PEERS.fresh("control");
    let manager = open(&path);
    // The process dies after it has removed the older record from the history, before it frees it.
    assert_eq!(start(&path, STEPS[2], 20, FOR_EVER).wait().unwrap().code(), None);
    let left = (record_cells(&manager), readable(&path, "control"));
    // Two more cells than records: the victim's report, and the removed record.
    assert_eq!(left, (18, 16), "the removed record must still be allocated");
    // A process that does not know of records frees nothing.
    let copy = PEERS.fresh("control-copy");
    std::fs::copy(&path, &copy).unwrap();
    let careless = Region::<Shared>::open(&copy, &options()).unwrap();
    assert_eq!(careless.sweep(), Err(latchwork_region::Error::NoRepair(Layer::Locks)));
    let still = open(&copy);
    assert_eq!((record_cells(&still), readable(&copy, "careless")), left);
    assert_eq!(still.sweep(), Ok(1));
    assert_eq!(record_cells(&still), readable(&copy, "swept"));
    all_is_well(&path, &manager, "control");
    let _ = (std::fs::remove_file(&path), std::fs::remove_file(&copy));
}

#[test]
fn several_processes_share_the_history() {
    let path = PEERS.fresh("shared");
    let manager = open(&path);
    let children: Vec<_> = (0..3).map(|_| start(&path, "", 0, 500)).collect();
    for mut child in children {
        readable(&path, "while others write");
        assert!(child.wait().unwrap().success());
    }
    let region = Region::<Shared>::view(&path, &options()).unwrap();
    let view = View::new(region).unwrap().unwrap();
    // A deadlock that several processes could break is broken once: each round had one.
    assert_eq!(view.deadlocks_ever(), Ok(1500));
    all_is_well(&path, &manager, "shared");
    let _ = std::fs::remove_file(&path);
}

//! All thread slots are held by dead processes: the next process sweeps and gets a slot. Only a
//! sweep that knows all layers of a region frees a slot.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use latchwork_check::cell;
use latchwork_lockmgr::{Error, Manager, Options, shared};
use latchwork_machine::{Native, Shared};
use latchwork_region::{Error as RegionError, Layer, Region};

use crate::deaths::{self, Peers};

/// The processes that run this file's `child`.
const PEERS: Peers = Peers(module_path!());

/// Thread slots of the regions in this file, more than a sweep claims at a time.
const SLOTS: u32 = 40;

fn make(path: &Path) -> Region<Shared> {
    let options = latchwork_region::Options { threads: SLOTS, ..deaths::options() };
    Region::create(path, &options).unwrap()
}

fn manager(region: Region<Shared>) -> Manager<Shared> {
    Manager::new(region, shared::modes(), Options::default()).unwrap()
}

/// The child process takes all slots, each with an owner and a lock, and dies; or opens a session
/// and is killed in a sweep; or takes all slots of a region without a manager, and dies.
#[test]
fn child() {
    let Some(told) = deaths::told() else { return };
    let region = deaths::region(&told.path);
    if told.step == "bare" {
        let threads: Vec<_> = (0..SLOTS).map(|_| region.thread().unwrap()).collect();
        die();
        drop(threads);
    }
    let manager = manager(region);
    if !told.step.is_empty() {
        deaths::die_at(&told.step, told.nth);
        // No process has swept yet: all slots belong to the killed process.
        let _ = manager.session().unwrap();
        return;
    }
    let sessions: Vec<_> = (0..SLOTS).map(|_| manager.session().unwrap()).collect();
    let owners: Vec<_> = sessions.iter().map(|session| session.owner().unwrap()).collect();
    for (number, owner) in (0u32..).zip(&owners) {
        owner.lock(&number.to_le_bytes(), shared::X).unwrap();
        owner.lock(b"all", shared::S).unwrap();
    }
    die();
}

fn die() {
    // SAFETY: signals this very process.
    unsafe { libc::kill(std::process::id() as i32, libc::SIGKILL) };
}

fn killed(path: &Path, step: &str) {
    let ended = PEERS.start(path, step, 1, 0, 0).wait().unwrap();
    assert_eq!(ended.code(), None, "{step:?}: the child was not killed");
}

/// Checks that all locks of the killed process are available.
fn all_is_free(manager: &Manager<Shared>) {
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    for number in 0..SLOTS {
        owner.try_lock(&number.to_le_bytes(), shared::X).unwrap();
    }
    owner.try_lock(b"all", shared::X).unwrap();
    drop(owner);
    let totals = session.totals().unwrap();
    assert_eq!((totals.requests, totals.weak, totals.owners), (0, 0, 0));
    drop(session);
    assert_eq!(manager.region().threads().count(), 0);
    let audit = manager.region().audit().unwrap();
    assert!(audit.is_sound(), "{audit:?}");
}

#[test]
fn a_session_opens_when_dead_processes_hold_all_slots() {
    let path = PEERS.fresh("slots");
    let manager = manager(make(&path));
    for _ in 0..3 {
        killed(&path, "");
        assert_eq!(manager.region().threads().count(), SLOTS as usize);
        all_is_free(&manager);
    }
    let _ = std::fs::remove_file(&path);
}

#[test]
fn a_manager_opens_when_dead_processes_hold_all_slots() {
    let path = PEERS.fresh("bare");
    let region = make(&path);
    killed(&path, "bare");
    assert_eq!(region.thread().err(), Some(RegionError::Threads(SLOTS)));
    all_is_free(&manager(region));
    let _ = std::fs::remove_file(&path);
}

/// Slots of living threads are not swept, so a further session is refused.
#[test]
fn living_threads_keep_their_slots() {
    let path = PEERS.fresh("living");
    let manager = manager(make(&path));
    let sessions: Vec<_> = (0..SLOTS).map(|_| manager.session().unwrap()).collect();
    let full = Error::Region(RegionError::Threads(SLOTS));
    assert_eq!(manager.session().err(), Some(full));
    assert_eq!(sessions.len(), SLOTS as usize);
    let _ = std::fs::remove_file(&path);
}

/// Each sweeper that dies leaves one more slot to sweep.
#[test]
fn sweepers_of_a_full_table_die_one_after_the_other() {
    let path = PEERS.fresh("sweepers");
    let manager = manager(make(&path));
    killed(&path, "");
    let steps =
        ["latched", "dead owner's request taken", "about to finish a sweep", "request unlinked"];
    for step in steps.iter().cycle().take(12) {
        killed(&path, step);
    }
    assert!(manager.region().threads().count() > SLOTS as usize, "no sweeper died with a slot");
    // Some dead slots may be free already, in which case opening a session does not sweep.
    manager.sweep().unwrap();
    all_is_free(&manager);
    let _ = std::fs::remove_file(&path);
}

/// A process that does not know the lock manager frees none of its slots.
#[test]
fn a_process_that_cannot_repair_frees_no_slot() {
    let path = PEERS.fresh("stranger");
    let known = manager(make(&path));
    killed(&path, "");
    let stranger = Region::open(&path, &deaths::options()).unwrap();
    assert_eq!(stranger.sweep(), Err(RegionError::NoRepair(Layer::Locks)));
    for dead in stranger.dead_threads().unwrap() {
        let end = dead.finish(|_| latchwork_region::Fate::Free);
        assert_eq!(end, Err(RegionError::NoRepair(Layer::Locks)));
    }
    assert_eq!(stranger.threads().count(), SLOTS as usize);
    assert_eq!(stranger.thread().err(), Some(RegionError::Threads(SLOTS)));
    // With a manager open, the region's own sweep frees them.
    assert_eq!(known.region().sweep(), Ok(SLOTS as usize));
    all_is_free(&known);
    // After the manager is closed, it no longer does.
    let region = known.region().clone();
    killed(&path, "");
    drop(known);
    assert_eq!(region.sweep(), Err(RegionError::NoRepair(Layer::Locks)));
    all_is_free(&manager(region));
    let _ = std::fs::remove_file(&path);
}

/// Creating a manager in a full region fails, in each attempt, without blocking the next one.
#[test]
fn a_manager_can_be_created_after_a_failure() {
    let options = latchwork_region::Options { limit: 4 << 20, ..Default::default() };
    let region = Region::<Native>::private(&options).unwrap();
    let full = Err(Error::Region(RegionError::Full(4 << 20)));
    // Allocates a block of small cells; the rest of the region is filled until it is freed below.
    drop(region.sweeper().unwrap().alloc::<[std::sync::atomic::AtomicU64; 30]>().unwrap());
    let thread = region.thread().unwrap();
    let mut cells = Vec::new();
    while let Ok(cell) = thread.alloc::<[std::sync::atomic::AtomicU64; 8000]>() {
        cells.push(cell.publish());
    }
    let (tell, told) = mpsc::channel();
    let tried = region.clone();
    std::thread::spawn(move || {
        for _ in 0..3 {
            let new = || Manager::new(tried.clone(), shared::modes(), Options::default());
            let _ = tell.send(new().map(|_| ()));
        }
    });
    for _ in 0..3 {
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(full.clone()), "it blocks");
    }
    cells.into_iter().for_each(|cell| cell::free(&thread, cell).unwrap());
    drop(thread);
    Manager::new(region, shared::modes(), Options::default()).unwrap();
}

/// The control of [`killed`]: a child that reaches no step survives and leaves nothing behind.
#[test]
fn the_checks_can_fail() {
    let path = PEERS.fresh("control");
    let manager = manager(make(&path));
    let mut child = PEERS.start(&path, "never reached", 1, 0, 0);
    assert!(child.wait().unwrap().success(), "a child that reaches no step was killed");
    assert_eq!(manager.region().threads().count(), 0);
    let _ = std::fs::remove_file(&path);
}

//! A process without a recovery callback sweeps first although a peer has one. It keeps the owners
//! of dead processes; the peer asks its callback about them at its next sweep.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_check::left;
use latchwork_lockmgr::granular::{self, IS, S, X};
use latchwork_lockmgr::{Error, Manager, Options, OwnerId, OwnerOptions};
use latchwork_machine::{ConstMachine, Native};
use latchwork_region::Region;

use crate::deaths::{self, Peers, Stop};

/// The processes that run this file's `child`.
const PEERS: Peers = Peers(module_path!());

/// Locks of each process that dies.
const NAMES: u64 = 6;

type Asked = Arc<Mutex<Vec<String>>>;

/// A manager without a callback.
fn plain<M: ConstMachine>(region: Region<M>) -> Manager<M> {
    Manager::new(region, granular::modes(), latchwork_check::early::early()).unwrap()
}

/// A manager whose callback releases owners whose label starts with `releases`, and records each
/// label it was asked about.
fn deciding<M: ConstMachine>(region: Region<M>, releases: &'static str) -> (Manager<M>, Asked) {
    let asked = Asked::default();
    let noted = asked.clone();
    let recovery = Box::new(move |_: OwnerId, label: &[u8]| {
        let label = String::from_utf8_lossy(label);
        let label = label.trim_end_matches('\0');
        noted.lock().unwrap().push(label.to_owned());
        label.starts_with(releases)
    });
    let options = latchwork_check::early::early();
    (Manager::with_recovery(region, granular::modes(), options, recovery).unwrap(), asked)
}

fn told(asked: &Asked) -> Vec<String> {
    std::mem::take(&mut *asked.lock().unwrap())
}

fn heap() -> Region<Native> {
    let options = latchwork_region::Options { limit: 64 << 20, ..Default::default() };
    Region::heap(&options).unwrap()
}

/// The child process. `holds` takes locks and dies; `sweeps` sweeps without a callback; `waits`
/// waits for a lock without one; `without STEP` sweeps without one and is killed at the step. Any
/// other value sweeps with a callback and is killed at that step.
#[test]
fn child() {
    let Some(told) = deaths::told() else { return };
    let region = deaths::region(&told.path);
    match &*told.step {
        "holds" => {
            let manager = plain(region);
            let session = manager.session().unwrap();
            let label = "undo it";
            let owner = session.owner_with(&OwnerOptions { label, ..Default::default() }).unwrap();
            for name in 0..NAMES {
                owner.lock(&name.to_le_bytes(), if name % 2 == 0 { X } else { S }).unwrap();
            }
            owner.lock(b"all", IS).unwrap();
            // SAFETY: signals this very process.
            unsafe { libc::kill(std::process::id() as i32, libc::SIGKILL) };
        }
        "sweeps" => {
            let manager = plain(region);
            let session = manager.session().unwrap();
            assert_eq!(session.sweep(), Ok(1));
            let owner = session.owner().unwrap();
            for name in 0..NAMES {
                assert_eq!(owner.try_lock(&name.to_le_bytes(), X), Err(Error::NotGranted));
            }
            assert_eq!(session.stats().orphans, 1);
        }
        "waits" => {
            let manager = plain(region);
            let session = manager.session().unwrap();
            let owner = session.owner().unwrap();
            for name in 0..NAMES {
                owner.lock_timeout(&name.to_le_bytes(), X, Duration::from_secs(60)).unwrap();
            }
        }
        step if step.starts_with("without ") => {
            let manager = plain(region);
            deaths::die_at(&step["without ".len()..], told.nth);
            manager.sweep().unwrap();
        }
        step => {
            let (manager, _) = deciding(region, "undo");
            deaths::die_at(step, told.nth);
            manager.sweep().unwrap();
        }
    }
}

fn killed(path: &Path) {
    assert!(PEERS.dies(path, "holds", 0, 0, 0), "the child was not killed");
}

fn can_be_had<M: ConstMachine>(manager: &Manager<M>) {
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    for name in 0..NAMES {
        owner.try_lock(&name.to_le_bytes(), X).unwrap();
    }
    owner.try_lock(b"all", X).unwrap();
    drop(owner);
    left::nothing_in(&session);
}

/// A callback that accepts or refuses is asked about owners that another process kept.
#[test]
fn dead_owners_are_kept_for_a_process_with_a_callback() {
    for releases in ["undo", "nobody"] {
        let path = PEERS.fresh(releases);
        let (manager, asked) = deciding(deaths::region(&path), releases);
        // It has swept once, so it looks again only after another process has signalled new owners.
        assert_eq!(manager.sweep(), Ok(0));
        killed(&path);
        assert!(!PEERS.dies(&path, "sweeps", 0, 0, 0));
        assert_eq!(told(&asked), Vec::<String>::new());
        let session = manager.session().unwrap();
        // The owner is an orphan before the callback is asked and after it refused.
        assert_eq!(session.labelled_orphans().unwrap()[0].1, b"undo it");
        assert_eq!(session.sweep(), Ok(0), "no dead threads are left");
        assert_eq!(told(&asked), ["undo it"]);
        if releases == "nobody" {
            let orphans = session.orphans().unwrap();
            assert_eq!(orphans.len(), 1);
            // The callback is asked once.
            assert_eq!(session.sweep(), Ok(0));
            assert_eq!(told(&asked), Vec::<String>::new());
            session.release_orphan(orphans[0]).unwrap();
        }
        drop(session);
        can_be_had(&manager);
        std::fs::remove_file(&path).unwrap();
    }
}

/// The region remembers the policy after the process with the callback has died.
#[test]
fn the_policy_outlives_its_processes() {
    let path = PEERS.fresh("outlives");
    let (manager, _) = deciding(deaths::region(&path), "undo");
    drop(manager);
    killed(&path);
    assert!(!PEERS.dies(&path, "sweeps", 0, 0, 0));
    let (manager, asked) = deciding(deaths::region(&path), "undo");
    manager.sweep().unwrap();
    assert_eq!(told(&asked), ["undo it"]);
    can_be_had(&manager);
    std::fs::remove_file(&path).unwrap();
}

/// If no process ever had a callback, the locks of dead processes are released at once.
#[test]
fn dead_owners_are_released_if_no_process_has_a_callback() {
    let path = PEERS.fresh("nobody");
    let manager = plain(deaths::region(&path));
    killed(&path);
    assert_eq!(manager.sweep(), Ok(1));
    can_be_had(&manager);
    std::fs::remove_file(&path).unwrap();
}

/// A thread that waits for a lock of a dead process also asks its process's callback.
#[test]
fn a_waiter_asks_its_callback() {
    let path = PEERS.fresh("waits");
    let (manager, asked) = deciding(deaths::region(&path), "undo");
    killed(&path);
    assert!(!PEERS.dies(&path, "sweeps", 0, 0, 0));
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    owner.lock(&0u64.to_le_bytes(), X).unwrap();
    drop(owner);
    drop(session);
    assert_eq!(told(&asked), ["undo it"]);
    can_be_had(&manager);
    std::fs::remove_file(&path).unwrap();
}

/// A process is killed at each step between asking its callback and acting on the answer. The next
/// process asks its own callback.
#[test]
fn a_process_that_asks_its_callback_is_killed_at_every_step() {
    let steps = [
        "orphan about to be asked about",
        "latched",
        "request about to be unlinked",
        "request unlinked",
        "dead owner's request noted",
        "dead owner's request taken",
        "orphan released",
        "page of orphans about to be free",
    ];
    for (step, nth) in steps.iter().flat_map(|step| [1, 3].map(|nth| (*step, nth))) {
        let path = PEERS.fresh("killed");
        let (manager, asked) = deciding(deaths::region(&path), "undo");
        killed(&path);
        assert!(!PEERS.dies(&path, "sweeps", 0, 0, 0));
        let died = PEERS.dies(&path, step, nth, 0, 0);
        assert!(died || nth != 1, "no process reached {step}");
        let mut swept = manager.sweep().unwrap();
        // A second sweep, in case the first met a latch that a dead thread held.
        swept += manager.sweep().unwrap();
        assert_eq!(swept, usize::from(died));
        let again = if died && step != "orphan released" && !step.starts_with("page") {
            vec!["undo it"]
        } else {
            vec![]
        };
        assert_eq!(told(&asked), again, "{step} {nth}");
        can_be_had(&manager);
        std::fs::remove_file(&path).unwrap();
    }
}

/// A process that keeps dead owners for other processes is killed before or after it has signalled
/// them. The next process without a callback signals them instead.
#[test]
fn a_process_that_keeps_dead_owners_is_killed_at_every_step() {
    let steps =
        ["dead owner decided", "undecided owners about to be counted", "about to finish a sweep"];
    for step in steps {
        let path = PEERS.fresh("keeps");
        let (manager, asked) = deciding(deaths::region(&path), "undo");
        // It has swept once, so it looks again only after another process has signalled new owners.
        assert_eq!(manager.sweep(), Ok(0));
        killed(&path);
        let without = format!("without {step}");
        assert!(PEERS.dies(&path, &without, 1, 0, 0), "no process reached {step}");
        assert!(!PEERS.dies(&path, "without nothing", 0, 0, 0));
        assert_eq!(manager.sweep(), Ok(0));
        assert_eq!(told(&asked), ["undo it"], "{step}");
        can_be_had(&manager);
        std::fs::remove_file(&path).unwrap();
    }
}

/// While one process asks about an orphan, a sweep of another process skips it, and no thread can
/// adopt or release it.
#[test]
fn one_process_asks_at_a_time() {
    let region = heap();
    let (first, first_asked) = deciding(region.another().unwrap(), "undo");
    let (second, second_asked) = deciding(region.clone(), "nobody");
    let id = dead(&region);
    assert_eq!(plain(region.another().unwrap()).sweep(), Ok(1));
    let stop = Stop::default();
    std::thread::scope(|scope| {
        let (first, told_to) = (&first, stop.clone());
        let asks = scope.spawn(move || {
            told_to.at("orphan about to be asked about");
            assert_eq!(first.sweep(), Ok(0));
        });
        stop.until_stopped();
        assert_eq!(second.sweep(), Ok(0));
        let session = second.session().unwrap();
        assert_eq!(session.orphans().unwrap(), []);
        assert_eq!(session.adopt(id).map(drop), Err(Error::NoOwner(id)));
        assert_eq!(session.release_orphan(id), Err(Error::NoOwner(id)));
        assert_eq!(session.totals().unwrap().orphans, 1);
        drop(session);
        stop.go_on();
        asks.join().unwrap();
    });
    assert_eq!(second.sweep(), Ok(0));
    assert_eq!((told(&first_asked), told(&second_asked)), (vec!["undo".to_owned()], vec![]));
    can_be_had(&second);
}

/// Creates an owner with a lock in a process that dies.
fn dead(region: &Region<Native>) -> OwnerId {
    let manager = plain(region.another().unwrap());
    let session = manager.session().unwrap();
    let owner = session.owner_with(&OwnerOptions { label: "undo", ..Default::default() }).unwrap();
    owner.lock(b"x", X).unwrap();
    let id = owner.id();
    std::mem::forget(owner);
    manager.region().die();
    std::mem::forget(session);
    id
}

/// A callback that panics has not answered. It is asked again, by the same process or by another
/// that skipped the orphan in between.
#[test]
fn a_callback_that_panics_is_asked_again() {
    for here in [true, false] {
        let region = heap();
        let panics = AtomicBool::new(true);
        let recovery = Box::new(move |_: OwnerId, _: &[u8]| {
            if panics.swap(false, Relaxed) {
                std::panic::resume_unwind(Box::new(()));
            }
            true
        });
        let (modes, options) = (granular::modes(), Options::default());
        let first = Manager::with_recovery(region.clone(), modes, options, recovery).unwrap();
        let (second, asked) = deciding(region.another().unwrap(), "undo");
        dead(&region);
        assert_eq!(plain(region.another().unwrap()).sweep(), Ok(1));
        let stop = Stop::default();
        std::thread::scope(|scope| {
            let (first, told_to) = (&first, stop.clone());
            let asks = scope.spawn(move || {
                told_to.at("orphan about to be asked about");
                assert!(catch_unwind(AssertUnwindSafe(|| first.sweep())).is_err());
            });
            stop.until_stopped();
            assert_eq!(second.sweep(), Ok(0));
            stop.go_on();
            asks.join().unwrap();
        });
        assert_eq!(first.session().unwrap().orphans().unwrap().len(), 1);
        let next = if here { &first } else { &second };
        assert_eq!(next.sweep(), Ok(0));
        assert_eq!(told(&asked).len(), usize::from(!here));
        can_be_had(next);
    }
}

/// One thread of an engine undoes and releases all orphans, although processes without a callback
/// sweep dead threads and wait for their locks.
#[test]
fn one_thread_of_an_engine_ends_all_orphans() {
    let path = PEERS.fresh("engine");
    let (manager, asked) = deciding(deaths::region(&path), "nobody");
    let ended = std::thread::scope(|scope| {
        let (manager, done) = (&manager, Arc::new(AtomicBool::new(false)));
        let stop = done.clone();
        let engine = scope.spawn(move || {
            let session = manager.session().unwrap();
            let mut ended = 0;
            while !stop.load(Relaxed) {
                session.sweep().unwrap();
                for (id, label) in session.labelled_orphans().unwrap() {
                    assert_eq!(label, b"undo it");
                    let adopted = session.adopt(id).unwrap();
                    assert_eq!(adopted.holds(&0u64.to_le_bytes()), Ok(Some((X, 1))));
                    adopted.end().unwrap();
                    ended += 1;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            ended
        });
        for _ in 0..5 {
            killed(&path);
            assert!(!PEERS.dies(&path, "waits", 0, 0, 0));
        }
        done.store(true, Relaxed);
        engine.join().unwrap()
    });
    assert_eq!(ended, 5);
    // The callback is not asked about orphans that the engine's thread adopted first.
    assert!(told(&asked).len() <= 5);
    can_be_had(&manager);
    std::fs::remove_file(&path).unwrap();
}

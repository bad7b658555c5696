//! Orphans: owners of dead processes whose locks are kept. Two orphans of one page are released
//! concurrently; an adopter dies; adoption is interrupted at every step.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use latchwork_check::early::early;
use latchwork_lockmgr::granular::{self, IS, IX, S, X};
use latchwork_lockmgr::{
    Error, Manager, Options, OwnerId, OwnerOptions, Session, Step, View, Wait,
};
use latchwork_machine::{Deadline, Native, Shared};
use latchwork_region::Region;

use crate::deaths::{self, Peers, Stop};

/// The processes that run this file's `child`.
const PEERS: Peers = Peers(module_path!());

/// Owners in a page.
const PAGE: u32 = 31;

type Local = Region<Native>;

fn heap() -> Local {
    let options = latchwork_region::Options { limit: 64 << 20, ..Default::default() };
    Region::heap(&options).unwrap()
}

/// A manager that keeps the locks of dead processes.
fn keeps<M: latchwork_machine::ConstMachine>(region: Region<M>) -> Manager<M> {
    let options = Options { keep_after: 2, ..early() };
    let keep = Box::new(|_, _: &[u8]| false);
    Manager::with_recovery(region, granular::modes(), options, keep).unwrap()
}

/// Creates owners in a process that dies. Each holds X on its own name, IS on `all`, S on `read`.
fn dead(region: &Local, labels: &[&str]) -> Vec<OwnerId> {
    let manager = keeps(region.another().unwrap());
    let session = manager.session().unwrap();
    let mut ids = Vec::new();
    for label in labels {
        let owner = session.owner_with(&OwnerOptions { label, ..Default::default() }).unwrap();
        owner.lock(label.as_bytes(), X).unwrap();
        owner.lock(b"all", IS).unwrap();
        owner.lock(b"read", S).unwrap();
        ids.push(owner.id());
        std::mem::forget(owner);
    }
    manager.region().die();
    std::mem::forget(session);
    ids
}

fn place(id: OwnerId) -> u32 {
    id.index / PAGE
}

/// Checks that no lock is held and that no cell is lost.
fn all_is_well<M: latchwork_machine::ConstMachine>(manager: &Manager<M>) {
    let session = manager.session().unwrap();
    assert_eq!(session.sweep(), Ok(0));
    let totals = session.totals().unwrap();
    let left = (totals.requests, totals.weak, totals.owners, totals.orphans);
    assert_eq!(left, (0, 0, 0, 0), "{:?}", session.snapshot());
    drop(session);
    let audit = manager.region().audit().unwrap();
    assert!(audit.is_sound(), "{audit:?}");
}

/// Checks that owners of two sessions are in different pages and exclude each other.
fn exclude(one: &Session<Native>, other: &Session<Native>) {
    let (a, b) = (one.owner().unwrap(), other.owner().unwrap());
    assert_ne!(place(a.id()), place(b.id()), "two sessions share a page");
    a.lock(b"excluded", X).unwrap();
    assert_eq!(b.try_lock(b"excluded", X), Err(Error::NotGranted));
}

/// A thread has released its orphan and is stopped. Another thread releases the second orphan,
/// which frees the page; a session claims the page; then the first thread continues.
#[test]
fn two_orphans_of_a_page_are_released_at_once() {
    let region = heap();
    let manager = keeps(region.clone());
    let ids = dead(&region, &["a", "b"]);
    assert_eq!(manager.sweep(), Ok(2 - 1));
    let session = manager.session().unwrap();
    let stop = Stop::default();
    std::thread::scope(|scope| {
        let (manager, told, id) = (&manager, stop.clone(), ids[0]);
        let slow = scope.spawn(move || {
            let session = manager.session().unwrap();
            told.at("orphan released");
            session.release_orphan(id).unwrap();
        });
        stop.until_stopped();
        session.release_orphan(ids[1]).unwrap();
        // The session has claimed the page, which holds no owner at this moment.
        let claimed = session.owner().unwrap().id();
        assert_eq!(place(claimed), place(ids[0]), "the page was not freed");
        stop.go_on();
        slow.join().unwrap();
    });
    exclude(&session, &manager.session().unwrap());
    drop(session);
    all_is_well(&manager);
}

/// A strong request with a timeout of zero moves weak locks, gives up and removes what it moved.
/// One of the owners unlocks and locks again, in another entry of its page; that entry is moved
/// into the same cell. The cell belongs to the second entry alone, so an adopter keeps the lock.
#[test]
fn a_moved_request_belongs_to_one_entry() {
    let region = heap();
    let keeping = |region: Local| {
        let keep = Box::new(|_, _: &[u8]| false);
        Manager::with_recovery(region, granular::modes(), early(), keep).unwrap()
    };
    let (manager, victim) = (keeping(region.clone()), keeping(region.another().unwrap()));
    let (session, asker) = (manager.session().unwrap(), manager.session().unwrap());
    let stranger = asker.owner().unwrap();
    let name = b"the name";
    let sessions: Vec<_> = (0..25).map(|_| victim.session().unwrap()).collect();
    let owner = sessions[0].owner().unwrap();
    // The owner's entry for the name is not the first entry that the closing thread reads.
    let before: Vec<_> = (0..12_u8).map(|other| [b'p', other]).collect();
    before.iter().for_each(|other| owner.lock(other, IS).unwrap());
    owner.lock(name, IS).unwrap();
    // More owners than the closing thread visits before it reads the clock.
    let others: Vec<_> = sessions
        .iter()
        .flat_map(|session| (0..PAGE - 1).map(move |_| session.owner().unwrap()))
        .collect();
    for other in &others {
        other.lock(name, IS).unwrap();
        other.unlock(name).unwrap();
    }
    assert_eq!(stranger.lock_timeout(name, X, Duration::ZERO), Err(Error::TimedOut));
    before.iter().for_each(|other| owner.unlock(other).unwrap());
    owner.unlock(name).unwrap();
    owner.lock(name, IS).unwrap();
    assert_eq!(stranger.try_lock(name, X), Err(Error::NotGranted));
    let id = owner.id();
    std::mem::forget(owner);
    victim.region().die();
    others.into_iter().for_each(std::mem::forget);
    sessions.into_iter().for_each(std::mem::forget);
    session.sweep().unwrap();
    assert_eq!(stranger.try_lock(name, X), Err(Error::NotGranted));
    let adopted = session.adopt(id).unwrap();
    assert_eq!(adopted.holds(name), Ok(Some((IS, 1))));
    assert_eq!(stranger.try_lock(name, X), Err(Error::NotGranted));
    adopted.unlock(name).unwrap();
    assert_eq!(stranger.try_lock(name, X), Ok(()));
    drop((stranger, adopted));
    drop((session, asker));
    for id in manager.session().unwrap().orphans().unwrap() {
        manager.session().unwrap().release_orphan(id).unwrap();
    }
    all_is_well(&manager);
}

/// As above, but the first thread has already seen that the page has no owner, and the page is in
/// use by other orphans before that thread continues.
#[test]
fn a_reused_page_of_orphans_is_not_freed() {
    let region = heap();
    let manager = keeps(region.clone());
    let ids = dead(&region, &["a", "b"]);
    manager.sweep().unwrap();
    let (late, early) = (Stop::default(), Stop::default());
    let mut later = Vec::new();
    std::thread::scope(|scope| {
        let (manager, stop, id) = (&manager, early.clone(), ids[0]);
        let first = scope.spawn(move || {
            let session = manager.session().unwrap();
            stop.at("orphan released");
            session.release_orphan(id).unwrap();
        });
        early.until_stopped();
        let (stop, id) = (late.clone(), ids[1]);
        let second = scope.spawn(move || {
            let session = manager.session().unwrap();
            stop.at("page of orphans about to be free");
            session.release_orphan(id).unwrap();
        });
        late.until_stopped();
        early.go_on();
        first.join().unwrap();
        later = dead(&region, &["c"]);
        assert_eq!(place(later[0]), place(ids[0]), "the page was not freed");
        manager.sweep().unwrap();
        late.go_on();
        second.join().unwrap();
    });
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    assert_ne!(place(owner.id()), place(later[0]), "a page of orphans was freed");
    assert_eq!(owner.try_lock(b"c", X), Err(Error::NotGranted));
    drop(owner);
    session.release_orphan(later[0]).unwrap();
    drop(session);
    all_is_well(&manager);
}

/// An orphan is released while the sweeper is at the next owner of its page, or about to mark the
/// page as one with orphans.
#[test]
fn an_orphan_is_released_before_its_sweep_ends() {
    for labels in [&["a"][..], &["a", "b"]] {
        let region = heap();
        let manager = keeps(region.clone());
        let ids = dead(&region, labels);
        let stop = Stop::default();
        std::thread::scope(|scope| {
            let (manager, told) = (&manager, stop.clone());
            let sweeper = scope.spawn(move || {
                told.at("dead owner decided");
                assert_eq!(manager.sweep(), Ok(1));
            });
            stop.until_stopped();
            let session = manager.session().unwrap();
            assert_eq!(session.orphans().unwrap(), [ids[0]]);
            session.release_orphan(ids[0]).unwrap();
            let owner = session.owner().unwrap();
            assert_ne!(
                place(owner.id()),
                place(ids[0]),
                "the page still belongs to the dead thread"
            );
            owner.lock(b"mine", X).unwrap();
            stop.go_on();
            sweeper.join().unwrap();
            assert_eq!(
                manager.session().unwrap().owner().unwrap().try_lock(b"mine", S),
                Err(Error::NotGranted)
            );
        });
        let session = manager.session().unwrap();
        for id in &ids[1..] {
            session.release_orphan(*id).unwrap();
        }
        // No page is lost.
        let claimed = session.owner().unwrap().id();
        assert!(place(claimed) < 2);
        let another = manager.session().unwrap();
        assert!(place(another.owner().unwrap().id()) < 2, "a page was lost");
        drop((session, another));
        all_is_well(&manager);
    }
}

#[test]
fn an_orphan_is_adopted() {
    let region = heap();
    let manager = keeps(region.clone());
    let ids = dead(&region, &["undo 17", "undo 18"]);
    manager.sweep().unwrap();
    let (session, other) = (manager.session().unwrap(), manager.session().unwrap());
    let labels = [(ids[0], b"undo 17".to_vec()), (ids[1], b"undo 18".to_vec())];
    assert_eq!(session.labelled_orphans().unwrap(), labels);
    assert_eq!(session.owners_labelled("undo 18").unwrap(), [ids[1]]);
    assert_eq!(session.owners_labelled("undo 1").unwrap(), []);
    let adopted = session.adopt(ids[0]).unwrap();
    assert_eq!(adopted.id(), ids[0]);
    // An orphan has one adopter at a time.
    assert_eq!(other.adopt(ids[0]).err(), Some(Error::NoOwner(ids[0])));
    assert_eq!(other.release_orphan(ids[0]), Err(Error::NoOwner(ids[0])));
    assert_eq!(other.orphans().unwrap(), [ids[1]]);
    // It holds the locks of the killed process, in the table and in its own memory.
    assert_eq!(adopted.holds(b"undo 17"), Ok(Some((X, 1))));
    assert_eq!(adopted.holds(b"all"), Ok(Some((IS, 1))));
    assert_eq!(adopted.holds(b"read"), Ok(Some((S, 1))));
    // It locks, converts and unlocks like any owner.
    adopted.lock(b"more", X).unwrap();
    adopted.lock(b"all", IX).unwrap();
    adopted.unlock(b"undo 17").unwrap();
    let stranger = other.owner().unwrap();
    stranger.try_lock(b"undo 17", X).unwrap();
    for name in [&b"more"[..], b"all", b"undo 18"] {
        assert_eq!(stranger.try_lock(name, X), Err(Error::NotGranted));
    }
    assert_eq!(stranger.try_lock(b"read", X), Err(Error::NotGranted));
    // After a drop it is an orphan again and keeps its locks.
    drop(adopted);
    assert_eq!(other.orphans().unwrap().len(), 2);
    assert_eq!(stranger.try_lock(b"more", S), Err(Error::NotGranted));
    let again = other.adopt(ids[0]).unwrap();
    assert_eq!(again.holds(b"more"), Ok(Some((X, 1))));
    again.end().unwrap();
    stranger.try_lock(b"more", X).unwrap();
    assert_eq!(other.adopt(ids[0]).err(), Some(Error::NoOwner(ids[0])));
    other.adopt(ids[1]).unwrap().end().unwrap();
    stranger.try_lock(b"all", X).unwrap();
    stranger.try_lock(b"read", X).unwrap();
    drop(stranger);
    drop((session, other));
    all_is_well(&manager);
}

/// A child is kept as an orphan. Its parent, in another page, held nothing and is freed. A new
/// owner in the parent's cell is unrelated to the child, so the child waits for its locks.
#[test]
fn an_adopted_child_conflicts_with_the_new_owner_in_its_parents_cell() {
    let region = heap();
    let manager = keeps(region.clone());
    let dying = keeps(region.another().unwrap());
    let session = dying.session().unwrap();
    let parent = session.owner().unwrap();
    let others: Vec<_> = (0..PAGE).map(|_| session.owner().unwrap()).collect();
    let child = parent.child().unwrap();
    child.lock(b"child's", X).unwrap();
    let ids = (parent.id(), child.id());
    assert_ne!(place(ids.0), place(ids.1));
    std::mem::forget((child, others));
    std::mem::forget(parent);
    dying.region().die();
    std::mem::forget(session);
    manager.sweep().unwrap();
    let session = manager.session().unwrap();
    assert_eq!(session.orphans().unwrap(), [ids.1]);
    let owners: Vec<_> = (0..2 * PAGE).map(|_| session.owner().unwrap()).collect();
    let stranger = owners.iter().find(|owner| owner.id().index == ids.0.index).unwrap();
    stranger.lock(b"taken", X).unwrap();
    let adopted = session.adopt(ids.1).unwrap();
    assert_eq!(adopted.try_lock(b"taken", X), Err(Error::NotGranted));
    let view = View::new(region.clone()).unwrap().unwrap();
    let picture = view.look().unwrap();
    let shown = picture.owners.iter().find(|owner| owner.owner == ids.1).unwrap();
    assert_eq!(shown.parent, None, "it is shown as a child of an unrelated owner");
    adopted.end().unwrap();
    drop(owners);
    drop(session);
    all_is_well(&manager);
}

/// An adopted orphan waits for a lock and is granted it.
#[test]
fn an_adopted_orphan_waits() {
    let region = heap();
    let manager = Arc::new(keeps(region.clone()));
    let ids = dead(&region, &["a"]);
    manager.sweep().unwrap();
    let session = manager.session().unwrap();
    let holder = session.owner().unwrap();
    holder.lock(b"wanted", X).unwrap();
    let (tell, told) = channel();
    let waits = std::thread::spawn({
        let manager = manager.clone();
        move || {
            let session = manager.session().unwrap();
            let adopted = session.adopt(ids[0]).unwrap();
            let step = adopted.request(b"wanted", S, latchwork_lockmgr::Wait::Detect).unwrap();
            tell.send(step).unwrap();
            adopted.finish(None).unwrap();
            adopted.end().unwrap();
        }
    });
    assert_eq!(told.recv(), Ok(latchwork_lockmgr::Step::Waiting));
    drop(holder);
    waits.join().unwrap();
    drop(session);
    all_is_well(&manager);
}

/// An adopted orphan can be the victim of a deadlock; here it is the youngest owner.
#[test]
fn an_adopted_orphan_is_a_victim() {
    let region = heap();
    let manager = Arc::new(keeps(region.clone()));
    let ids = dead(&region, &["a"]);
    manager.sweep().unwrap();
    let session = manager.session().unwrap();
    let old = OwnerOptions { age: Some(1), ..Default::default() };
    let older = session.owner_with(&old).unwrap();
    older.lock(b"b", X).unwrap();
    // Without detection both requests time out.
    let soon = || Wait::Until(Deadline::after::<Native>(Duration::from_secs(20)));
    std::thread::scope(|scope| {
        let younger = scope.spawn(|| {
            let session = manager.session().unwrap();
            let adopted = session.adopt(ids[0]).unwrap();
            let refused = adopted.lock_with(b"b", X, soon());
            adopted.end().unwrap();
            refused
        });
        assert_eq!(older.lock_with(b"a", X, soon()), Ok(()));
        let refused = younger.join().unwrap();
        assert!(matches!(refused, Err(Error::Deadlock(_))), "{refused:?}");
    });
    drop(older);
    drop(session);
    all_is_well(&manager);
}

/// When the adopter's process dies, the owner is an orphan again and can be adopted again.
#[test]
fn an_owner_is_an_orphan_again_after_its_adopters_death() {
    let region = heap();
    let manager = keeps(region.clone());
    let ids = dead(&region, &["a", "b", "c"]);
    manager.sweep().unwrap();
    for round in 0..5 {
        let adopter = keeps(region.another().unwrap());
        let session = adopter.session().unwrap();
        let adopted = session.adopt(ids[1]).unwrap();
        assert_eq!(adopted.holds(b"b"), Ok(Some((X, 1))));
        adopted.lock(format!("more {round}").as_bytes(), X).unwrap();
        adopted.lock(b"all", IS).unwrap();
        // The process dies while the owner waits.
        let holder = manager.session().unwrap();
        let owner = holder.owner().unwrap();
        owner.lock(b"wanted", X).unwrap();
        adopted.request(b"wanted", S, latchwork_lockmgr::Wait::Detect).unwrap();
        std::mem::forget(adopted);
        adopter.region().die();
        std::mem::forget(session);
        assert_eq!(manager.sweep(), Ok(1));
        assert_eq!(holder.orphans().unwrap(), ids);
    }
    let session = manager.session().unwrap();
    let adopted = session.adopt(ids[1]).unwrap();
    for round in 0..5 {
        assert_eq!(adopted.holds(format!("more {round}").as_bytes()), Ok(Some((X, 1))));
    }
    adopted.end().unwrap();
    for id in [ids[0], ids[2]] {
        session.release_orphan(id).unwrap();
    }
    drop(session);
    all_is_well(&manager);
}

/// The child process. Without a step it takes locks and dies. Otherwise it sweeps, adopts all
/// orphans, locks more with each, ends half of them, and is killed at the step.
#[test]
fn child() {
    let Some(told) = deaths::told() else { return };
    let manager = keeps::<Shared>(deaths::region(&told.path));
    let session = manager.session().unwrap();
    if told.step.is_empty() {
        // Weak locks on these names: a thread that adopts must then close a bias.
        let reader = session.owner().unwrap();
        for name in 3000..3064u64 {
            reader.lock(&name.to_le_bytes(), IS).unwrap();
            reader.unlock(&name.to_le_bytes()).unwrap();
        }
        drop(reader);
        for number in 0..40u64 {
            let owner = session.owner().unwrap();
            for name in [number, 1000 + number % 3] {
                let mode = if name < 1000 { X } else { [IS, IX][number as usize % 2] };
                owner.lock(&name.to_le_bytes(), mode).unwrap();
            }
            std::mem::forget(owner);
        }
        // SAFETY: signals this very process.
        unsafe { libc::kill(std::process::id() as i32, libc::SIGKILL) };
    }
    if told.seed == RESERVES {
        reserves_and_dies(&session, &told.step);
    }
    if told.seed == GIVES_BACK {
        gives_back_and_dies(&session, &told.step, 1);
    }
    if told.seed == GIVES_ONE_BACK {
        gives_back_and_dies(&session, &told.step, 2);
    }
    session.sweep().unwrap();
    deaths::die_at(&told.step, told.nth);
    for (at, orphan) in session.orphans().unwrap().into_iter().enumerate() {
        let Ok(adopted) = session.adopt(orphan) else { continue };
        let own = u64::from(orphan.index);
        for name in [2000 + own, 3000 + own] {
            adopted.lock(&name.to_le_bytes(), X).unwrap();
        }
        adopted.lock(&1001u64.to_le_bytes(), IX).unwrap();
        adopted.unlock(&(2000 + own).to_le_bytes()).unwrap();
        if at % 2 == 0 {
            adopted.end().unwrap();
        }
    }
}

/// Seed of a child that unlocks a lock which another thread moved, and dies before the request has
/// left the queue.
const GIVES_BACK: u64 = 1;

/// Seed of a child that had taken that lock twice and still holds it once.
const GIVES_ONE_BACK: u64 = 3;

/// Dies at this step while another lock is held.
fn gives_back_and_dies(session: &Session<Shared>, step: &str, count: u32) {
    let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
    owner.lock(b"held", X).unwrap();
    (0..count).for_each(|_| owner.lock(b"given back", IS).unwrap());
    assert_eq!(other.try_lock(b"given back", X), Err(Error::NotGranted), "the lock must be moved");
    deaths::die_at(step, 1);
    owner.unlock(b"given back").unwrap();
}

/// The seed of a child that dies while a name is reserved for it.
const RESERVES: u64 = 2;

/// Dies at this step while another lock is held.
fn reserves_and_dies(session: &Session<Shared>, step: &str) {
    let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
    other.lock(b"held", X).unwrap();
    owner.lock(b"reserved", X).unwrap();
    owner.unlock(b"reserved").unwrap();
    std::mem::forget(other);
    deaths::die_at(step, 1);
    owner.lock(b"reserved", X).unwrap();
}

/// A process dies while a name is being reserved for one of its owners, which is kept. The name is
/// then reserved for another owner with the same bias value: the orphan's entry must not count.
#[test]
fn an_unfinished_reservation_of_an_orphan_is_void() {
    for step in ["entry made to be reserved", "bias reserved"] {
        let path = PEERS.fresh("reserved");
        let manager = keeps::<Shared>(deaths::region(&path));
        assert!(PEERS.dies(&path, step, 1, RESERVES, 0), "the child did not reach {step}");
        let (session, other) = (manager.session().unwrap(), manager.session().unwrap());
        session.sweep().unwrap();
        let orphans = session.orphans().unwrap();
        let owner = session.owner().unwrap();
        owner.lock(b"reserved", X).unwrap();
        owner.unlock(b"reserved").unwrap();
        owner.lock(b"reserved", X).unwrap();
        let stranger = other.owner().unwrap();
        assert_eq!(stranger.try_lock(b"reserved", IS), Err(Error::NotGranted));
        for orphan in orphans {
            let adopted = other.adopt(orphan).unwrap();
            assert_eq!(adopted.holds(b"reserved"), Ok(None), "{step}");
            assert_eq!(adopted.try_lock(b"reserved", X), Err(Error::NotGranted), "{step}");
            adopted.end().unwrap();
        }
        drop((owner, stranger));
        drop((session, other));
        all_is_well(&manager);
        let _ = std::fs::remove_file(&path);
    }
}

/// A moved request of a lock that the killed owner had unlocked is removed when it is adopted.
#[test]
fn adoption_removes_the_moved_request_of_a_released_lock() {
    let steps = ["weak lock given back, closed", "moved request noted", "request unlinked"];
    steps.into_iter().for_each(given_back_until);
}

fn given_back_until(step: &str) {
    let path = PEERS.fresh("given-back");
    let manager = keeps::<Shared>(deaths::region(&path));
    assert!(PEERS.dies(&path, step, 1, GIVES_BACK, 0), "the child did not reach {step}");
    let session = manager.session().unwrap();
    session.sweep().unwrap();
    let orphans = session.orphans().unwrap();
    assert_eq!(orphans.len(), 1);
    let adopted = session.adopt(orphans[0]).unwrap();
    assert_eq!(adopted.holds(b"held"), Ok(Some((X, 1))));
    assert_eq!(adopted.holds(b"given back"), Ok(None));
    adopted.end().unwrap();
    drop(session);
    all_is_well(&manager);
    let _ = std::fs::remove_file(&path);
}

/// A moved request that is in the killed owner's list is released once.
#[test]
fn a_moved_request_in_an_orphans_list_is_released_once() {
    for kept in [false, true] {
        let path = PEERS.fresh("one-given-back");
        let options = Options { keep_after: 2, ..early() };
        let (region, releases) = (deaths::region(&path), Box::new(move |_, _: &[u8]| !kept));
        let manager =
            Manager::<Shared>::with_recovery(region, granular::modes(), options, releases).unwrap();
        let step = "moved request in the owner's list";
        assert!(PEERS.dies(&path, step, 1, GIVES_ONE_BACK, 0), "the child did not reach {step}");
        let session = manager.session().unwrap();
        session.sweep().unwrap();
        let orphans = session.orphans().unwrap();
        assert_eq!(orphans.len(), usize::from(kept));
        for orphan in orphans {
            session.release_orphan(orphan).unwrap();
        }
        drop(session);
        all_is_well(&manager);
        let _ = std::fs::remove_file(&path);
    }
}

/// A sweep grants the lock to an owner that waits for a weak lock of a dead process.
#[test]
fn a_sweep_grants_weak_locks_of_a_killed_process() {
    let region = heap();
    let (manager, dies) = (
        Manager::new(region.clone(), granular::modes(), early()).unwrap(),
        Manager::new(region.another().unwrap(), granular::modes(), early()).unwrap(),
    );
    let (session, gone) = (manager.session().unwrap(), dies.session().unwrap());
    let (waiter, owner) = (session.owner().unwrap(), gone.owner().unwrap());
    owner.lock(b"a", IX).unwrap();
    assert_eq!(waiter.request(b"a", S, Wait::Detect), Ok(Step::Waiting));
    std::mem::forget(owner);
    dies.region().die();
    std::mem::forget(gone);
    assert_eq!(session.sweep(), Ok(1));
    assert_eq!(waiter.poll(), Ok(Some(Ok(()))));
    drop(waiter);
    drop(session);
    all_is_well(&manager);
}

/// A request that a session noted and freed is not the spare request of the next session on its
/// slot.
#[test]
fn a_retained_slot_has_no_freed_spare_request() {
    let region = heap();
    let manager = Manager::new(region.clone(), granular::modes(), early()).unwrap();
    let (session, beside) = (manager.session().unwrap(), manager.session().unwrap());
    let (owner, other) = (session.owner().unwrap(), beside.owner().unwrap());
    owner.lock(b"a", IS).unwrap();
    assert_eq!(other.try_lock(b"a", X), Err(Error::NotGranted), "the lock must be moved");
    owner.unlock(b"a").unwrap();
    drop(owner);
    let number = session.thread().number();
    session.thread().retain();
    drop(session);
    let session = manager.session_on(region.claim_retained(number).unwrap().unwrap());
    let (one, two) = (session.owner().unwrap(), session.owner().unwrap());
    one.lock(b"one", X).unwrap();
    two.lock(b"two", X).unwrap();
    one.lock(b"three", X).unwrap();
    let held = [one.holds(b"one"), two.holds(b"two"), one.holds(b"three")];
    assert_eq!(held, [(); 3].map(|()| Ok(Some((X, 1)))));
    assert_eq!((one.held(), two.held()), (Ok(2), Ok(1)));
    drop((one, two));
    drop(session);
    drop(other);
    drop(beside);
    all_is_well(&manager);
}

/// A process leaves orphans, adopters die at a step, then all names must be available.
fn adopters_die_at(path: &Path, step: &str) -> usize {
    let manager = keeps::<Shared>(deaths::region(path));
    assert!(PEERS.dies(path, "", 0, 0, 0), "the first child was not killed");
    let killed = [1, 6, 17].into_iter().filter(|nth| PEERS.dies(path, step, *nth, 0, 0)).count();
    let session = manager.session().unwrap();
    session.sweep().unwrap();
    for (at, orphan) in session.orphans().unwrap().into_iter().enumerate() {
        if at % 2 == 0 {
            session.release_orphan(orphan).unwrap();
        } else {
            let adopted = session.adopt(orphan).unwrap();
            adopted.lock(&5000u64.to_le_bytes(), X).unwrap();
            adopted.end().unwrap();
        }
    }
    drop(session);
    all_is_well(&manager);
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    for name in (0..40).chain(1000..1003).chain(2000..2062).chain(3000..3062) {
        owner.try_lock(&u64::to_le_bytes(name), X).unwrap();
    }
    killed
}

#[test]
fn adopters_are_killed_at_every_step() {
    let steps = [
        "orphan adopted",
        "latched",
        "request in the owner's list",
        "request about to be linked",
        "request linked",
        "request about to be unlinked",
        "request unlinked",
        "request out of the owner's list",
        "bias closed",
        "before the latch is opened",
        "orphan released",
    ];
    for step in steps {
        let path = PEERS.fresh("adopters");
        let killed = adopters_die_at(&path, step);
        assert!(killed > 0, "{step}: no process died");
        let _ = std::fs::remove_file(&path);
    }
}

/// Adoption meets damage and fails; the owner remains an orphan and can be adopted after repair.
#[test]
fn an_adoption_that_fails_leaves_an_orphan() {
    let region = heap();
    let ids = dead(&region, &["one"]);
    let manager = keeps(region);
    let session = manager.session().unwrap();
    assert_eq!(session.sweep(), Ok(1));
    assert_eq!(session.orphans().unwrap(), ids);
    let name = format!("owner {}", ids[0].index);
    let places = session.places().unwrap();
    let cell = places.iter().find(|(_, _, it)| *it == name).unwrap();
    assert_eq!(cell.1, 128);
    // The word with the owner's deadlock report.
    // SAFETY: the cell stays mapped as long as the region, and every user accesses this word as an
    // atomic.
    let report = unsafe { &*((cell.0 + 104) as *const core::sync::atomic::AtomicU64) };
    let relaxed = core::sync::atomic::Ordering::Relaxed;
    assert_eq!(report.load(relaxed), 0);
    report.store(1 << 32 | 0x7fff_ffff, relaxed);
    assert!(matches!(session.adopt(ids[0]).map(drop), Err(Error::Region(_))));
    assert_eq!(session.orphans().unwrap(), ids, "the failed adoption lost the orphan");
    report.store(0, relaxed);
    session.adopt(ids[0]).unwrap().end().unwrap();
    drop(session);
    all_is_well(&manager);
}

/// `health` reports dead threads before a sweep and orphans after it.
#[test]
fn health_reports_dead_threads_and_orphans() {
    let region = heap();
    let manager = keeps(region.another().unwrap());
    let session = manager.session().unwrap();
    assert!(manager.health().unwrap().is_settled());
    let ids = dead(&region, &["one", "two"]);
    let health = manager.health().unwrap();
    assert_eq!((health.threads, health.dead_threads, health.orphans), (2, 1, 0));
    assert!(!health.is_settled());
    session.sweep().unwrap();
    let health = manager.health().unwrap();
    assert_eq!((health.threads, health.dead_threads, health.orphans), (1, 0, 2));
    assert!(!health.is_settled());
    ids.iter().for_each(|id| session.release_orphan(*id).unwrap());
    assert!(manager.health().unwrap().is_settled());
}

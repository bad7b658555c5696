//! Cases from the tests and bug reports of other lock managers that no other test here covers.
//! `docs/cases.md` lists all of them.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use latchwork_check::cell::image;
use latchwork_check::left;
use latchwork_lockmgr::{
    Error, KeyRange, Manager, Owner, OwnerOptions, RangeKind, Step, View, Wait, berkeley, shared,
    shared::{S, X},
};
use latchwork_machine::{Native, Shared};
use latchwork_region::Region;

/// Process slots; fewer than the processes that are killed.
const PROCESSES: u32 = 80;

fn open(path: &Path) -> Manager<Shared> {
    let options = latchwork_region::Options {
        processes: PROCESSES,
        threads: 96,
        limit: 1 << 28,
        ..Default::default()
    };
    let region = Region::<Shared>::open_or_create(path, &options).unwrap();
    Manager::new(region, shared::modes(), latchwork_check::early::early()).unwrap()
}

fn fresh(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("lockmgr-cases-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

fn number(at: u64) -> [u8; 8] {
    at.to_le_bytes()
}

/// The child process; `LOCKMGR_PART` says what it does.
#[test]
fn child() {
    let Ok(path) = std::env::var("LOCKMGR_REGION") else { return };
    let part = std::env::var("LOCKMGR_PART").unwrap();
    let (part, count) = part.split_once(' ').unwrap_or((&part, "0"));
    let count: u64 = count.parse().unwrap();
    let manager = open(&PathBuf::from(path));
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    match part {
        // Takes many locks, then a lock as the signal of completion, and waits to be killed.
        "many" => {
            for at in 0..count {
                owner.lock(&number(at), if at % 2 == 0 { X } else { S }).unwrap();
            }
            owner.lock(b"done", X).unwrap();
            loop {
                std::thread::park();
            }
        }
        // Blocks until another process unlocks.
        "block" => {
            owner.lock(b"x", X).unwrap();
            owner.lock(b"theirs", X).unwrap();
        }
        // Opens, locks, sweeps and closes, repeatedly.
        "crowd" => {
            drop(owner);
            drop(session);
            drop(manager);
            for round in 0..count {
                let manager = open(&PathBuf::from(std::env::var("LOCKMGR_REGION").unwrap()));
                let session = manager.session().unwrap();
                let owner = session.owner().unwrap();
                owner.lock(&number(round % 3), if round % 4 == 0 { X } else { S }).unwrap();
                session.sweep().unwrap();
            }
        }
        part => panic!("no part {part}"),
    }
}

fn start(path: &Path, part: &str) -> Child {
    let mut command = latchwork_check::again(module_path!(), "child");
    command.env("LOCKMGR_REGION", path).env("LOCKMGR_PART", part);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Waits until an object is held.
fn held(manager: &Manager<Shared>, name: &[u8]) {
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    while owner.try_lock(name, S) != Err(Error::NotGranted) {
        owner.release_all().unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Berkeley DB's lock001: each mode alone, many at once, ten times; and lock_id_free.
#[test]
fn each_mode_is_locked_released_and_counted() {
    let manager = latchwork_check::early::private(berkeley::modes()).unwrap();
    let session = manager.session().unwrap();
    let modes: Vec<_> = berkeley::modes().each().collect();
    let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
    for mode in &modes {
        a.lock(b"x", *mode).unwrap();
        assert_eq!(a.holds(b"x"), Ok(Some((*mode, 1))));
        a.unlock(b"x").unwrap();
        assert_eq!(a.holds(b"x"), Ok(None));
    }
    for _ in 0..10 {
        a.try_lock(b"x", berkeley::WRITE).unwrap();
    }
    for left in (0..10).rev() {
        assert_eq!(b.try_lock(b"x", berkeley::WRITE), Err(Error::NotGranted));
        assert_eq!(b.try_lock(b"x", berkeley::READ), Err(Error::NotGranted));
        assert_eq!(a.holds(b"x"), Ok(Some((berkeley::WRITE, left + 1))));
        a.unlock(b"x").unwrap();
    }
    b.try_lock(b"x", berkeley::WRITE).unwrap();
    let id = a.id();
    drop((a, b));
    assert_eq!(session.kill(id), Err(Error::NoOwner(id)), "the dropped owner's id is still known");
    left::nothing_in(&session);
}

/// lock002: one process waits as long as another holds the lock, in both directions.
#[test]
fn a_process_waits_until_another_releases_the_lock() {
    let path = fresh("blocks");
    let manager = open(&path);
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    owner.lock(b"x", X).unwrap();
    let mut peer = start(&path, "block");
    while session.totals().unwrap().waiting == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(session.totals().unwrap().waiting, 1, "the wait ended before the unlock");
    owner.lock(b"theirs", X).unwrap();
    owner.unlock(b"x").unwrap();
    held(&manager, b"x");
    // The reverse: this process waits until the other has ended.
    let took = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let (session, began) = (manager.session().unwrap(), Instant::now());
            session.owner().unwrap().lock(b"x", S).unwrap();
            began.elapsed()
        });
        while session.totals().unwrap().waiting != 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(200));
        owner.unlock(b"theirs").unwrap();
        waiter.join().unwrap()
    });
    assert!(took >= Duration::from_millis(200));
    assert!(peer.wait().unwrap().success());
    drop(owner);
    left::nothing_in(&session);
    let _ = std::fs::remove_file(&path);
}

/// lock004 and dead007: ids of owners wrap around without any other effect.
#[test]
fn names_of_owners_wrap_around() {
    let options = latchwork_region::Options { limit: 8 << 20, ..Default::default() };
    let region = Region::<Native>::heap(&options).unwrap();
    let manager = Manager::new(region, shared::modes(), latchwork_check::early::early()).unwrap();
    let session = manager.session().unwrap();
    let label = "this one's name is about to wrap";
    let labelled = OwnerOptions { label, ..OwnerOptions::default() };
    drop(session.owner_with(&labelled).unwrap());
    drop((session, manager.region().clone()));
    let mut image = image(manager.region());
    // An owner's generation, 1 at this point, is 68 bytes before its label; that of the next slot
    // is 128 bytes further on.
    let found = image.windows(label.len()).position(|bytes| bytes == label.as_bytes()).unwrap();
    for at in (found - 68..).step_by(128).take(4) {
        assert!(image[at] <= 1);
        image[at..at + 4].copy_from_slice(&(u32::MAX - 1).to_ne_bytes());
    }
    let region = Region::<Native>::from_image(&image).unwrap();
    let manager = Manager::new(region, shared::modes(), latchwork_check::early::early()).unwrap();
    let session = manager.session().unwrap();
    session.sweep().unwrap();
    let mut names = Vec::new();
    for round in 0..100 {
        let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
        assert!(!names.contains(&a.id()), "round {round}");
        names.push(a.id());
        a.lock(b"x", S).unwrap();
        b.lock(b"y", X).unwrap();
        assert_eq!(a.request(b"y", X, Wait::Detect), Ok(Step::Waiting));
        let end = b.lock(b"x", X);
        // One of the two is the deadlock's victim.
        let other = a.poll().unwrap();
        assert!(end.is_err() != matches!(other, Some(Err(_))), "round {round}: {end:?} {other:?}");
        drop((a, b));
        for old in &names {
            assert_eq!(session.kill(*old), Err(Error::NoOwner(*old)));
        }
        left::nothing_in(&session);
    }
    let numbers: Vec<_> = names.iter().map(|name| name.to_string()).collect();
    assert!(numbers.iter().any(|name| name.ends_with(&u32::MAX.to_string())), "{numbers:?}");
}

/// A robust mutex list ends at 2,048 entries. Here 10,000 locks are held at a death; all are
/// released.
#[test]
fn ten_thousand_locks_held_at_death() {
    let path = fresh("many");
    let manager = open(&path);
    let mut peer = start(&path, "many 10000");
    held(&manager, b"done");
    let view = View::new(manager.region().clone()).unwrap().unwrap();
    assert_eq!(view.look().unwrap().rows.len(), 10_001);
    peer.kill().unwrap();
    peer.wait().unwrap();
    let session = manager.session().unwrap();
    let began = Instant::now();
    // No explicit sweep: the request for one of the locks finds the killed process.
    let owner = session.owner().unwrap();
    owner.lock(&number(9_999), X).unwrap();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    for at in 0..10_000 {
        owner.try_lock(&number(at), X).unwrap();
    }
    drop(owner);
    left::nothing_in(&session);
    let _ = std::fs::remove_file(&path);
}

/// Slots of dead processes are reused: more processes are killed than there are slots.
#[test]
fn more_processes_are_killed_than_there_are_slots() {
    let path = fresh("slots");
    let manager = open(&path);
    for round in 0..PROCESSES / 2 {
        let mut peers: Vec<_> = (0..4).map(|_| start(&path, "many 20")).collect();
        held(&manager, &number(0));
        for peer in &mut peers {
            peer.kill().unwrap();
            peer.wait().unwrap();
        }
        let session = manager.session().unwrap();
        session.owner().unwrap().lock(b"done", X).unwrap_or_else(|e| panic!("{round}: {e}"));
    }
    manager.session().unwrap().sweep().unwrap();
    left::nothing(&manager);
    let _ = std::fs::remove_file(&path);
}

/// Clean-up concurrent with living processes: 64 processes create, open, use, sweep and close one
/// region at once. A third of them are killed; all others succeed.
#[test]
fn cleanup_affects_no_living_process() {
    let path = fresh("crowd");
    let mut peers: Vec<_> = (0..64).map(|_| start(&path, "crowd 200")).collect();
    for peer in peers.iter_mut().step_by(3) {
        std::thread::sleep(Duration::from_millis(7));
        peer.kill().unwrap();
    }
    let mut killed = 0;
    for (at, mut peer) in peers.into_iter().enumerate() {
        let ended = peer.wait().unwrap();
        killed += u32::from(ended.code().is_none());
        assert!(ended.success() || at % 3 == 0 && ended.code().is_none(), "{at} failed: {ended}");
    }
    println!("{killed} of 64 were killed before they had finished");
    let manager = open(&path);
    manager.session().unwrap().sweep().unwrap();
    left::nothing(&manager);
    let _ = std::fs::remove_file(&path);
}

/// A full region: calls return a typed error, nothing leaks, and held locks can be released, time
/// after time. (PostgreSQL: "out of shared memory"; Berkeley DB: BDB2055.)
#[test]
fn a_full_region_is_an_error_and_empties_again() {
    let options = latchwork_region::Options { limit: 6 << 20, ..Default::default() };
    let region = Region::<Native>::private(&options).unwrap();
    let manager = Manager::new(region, shared::modes(), latchwork_check::early::early()).unwrap();
    let session = manager.session().unwrap();
    let full = Error::Region(latchwork_region::Error::Full(6 << 20));
    let mut most = Vec::new();
    for round in 0..30u64 {
        let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
        let mut taken = 0;
        let end = loop {
            match owner.try_lock(&number(round << 32 | taken), X) {
                Ok(()) => taken += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(end, full);
        // Calls that need a cell fail in the same way; other calls succeed.
        let all = KeyRange::all();
        assert_eq!(other.lock_range(b"keys", all, RangeKind::Gap, Wait::Never), Err(full.clone()));
        assert_eq!(other.try_lock(b"one more", X), Err(full.clone()));
        owner.lock(&number(round << 32), X).unwrap();
        owner.unlock(&number(round << 32)).unwrap();
        owner.unlock(&number(round << 32)).unwrap();
        assert_eq!(owner.held(), Ok(taken as usize - 1));
        assert_eq!(session.detect().map(drop), Ok(()));
        most.push(taken);
        drop((owner, other));
        left::nothing_in(&session);
    }
    // Each partition keeps its chains, so the number is stable once all have some. Hashes differ
    // in each run, so a partition may need its first chain as late as this.
    assert!(
        most[29] + 3 > most[20] && most[29] > 9_000,
        "the region holds less over time: {most:?}"
    );
}

/// Takes locks until the region is full, and returns how many.
fn fill(owner: &Owner<'_>, from: u64) -> u64 {
    (0..).find(|at| owner.try_lock(&number(from + at), X).is_err()).unwrap()
}

/// Weak locks are kept in their owners' memory. A strong request moves them to the table first; if
/// there is no room for them, the request fails and they stay held.
#[test]
fn weak_locks_stay_held_in_a_full_region() {
    let options = latchwork_region::Options { limit: 6 << 20, ..Default::default() };
    let region = Region::<Native>::private(&options).unwrap();
    let manager = Manager::new(region, shared::modes(), latchwork_check::early::early()).unwrap();
    let session = manager.session().unwrap();
    let full = Error::Region(latchwork_region::Error::Full(6 << 20));
    for round in 0..20u64 {
        let owners: Vec<_> = (0..4).map(|_| session.owner().unwrap()).collect();
        let [a, b, c, filler] = &owners[..] else { unreachable!() };
        let name = number(round << 48);
        for holder in [b, c] {
            holder.lock(&name, S).unwrap();
        }
        let taken = fill(filler, round << 40);
        // Room for some of the locks to move, but not for all.
        for at in 0..round / 4 {
            filler.unlock(&number(round << 40 | at)).unwrap();
        }
        let end = a.try_lock(&name, X);
        assert!(end == Err(full.clone()) || end == Err(Error::NotGranted), "{round}: {end:?}");
        if round % 2 == 0 {
            b.unlock(&name).unwrap();
        }
        for at in round / 4..taken {
            filler.unlock(&number(round << 40 | at)).unwrap();
        }
        assert_eq!(a.try_lock(&name, X), Err(Error::NotGranted), "round {round}");
        if round % 2 != 0 {
            b.unlock(&name).unwrap();
        }
        assert_eq!(c.holds(&name), Ok(Some((S, 1))));
        c.unlock(&name).unwrap();
        a.try_lock(&name, X).unwrap();
        drop(owners);
        left::nothing_in(&session);
    }
}

/// A stale pointer after a wait: threads wait for objects that are freed and created again, so that
/// cells are reused at once. After its wait each thread holds the name that it requested.
#[test]
fn a_waiter_gets_the_lock_it_requested() {
    let manager = latchwork_check::early::private(shared::modes()).unwrap();
    let start = Barrier::new(4);
    std::thread::scope(|scope| {
        for me in 0..4u64 {
            let (manager, start) = (&manager, &start);
            scope.spawn(move || {
                let session = manager.session().unwrap();
                start.wait();
                for round in 0..4000 {
                    let owner = session.owner().unwrap();
                    // Two names in ascending order, different in each round: no cycle.
                    let names = [number(round / 2), number((1 << 32) | ((round / 2 + me) % 3))];
                    for name in &names {
                        let wait = Duration::from_micros(200 * (1 + me));
                        match owner.lock_timeout(name, X, wait) {
                            Ok(()) => assert_eq!(owner.holds(name), Ok(Some((X, 1)))),
                            Err(Error::TimedOut) => assert_eq!(owner.holds(name), Ok(None)),
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
    });
    left::nothing(&manager);
}

/// A strong request moves the intent locks of many owners to the table; the owners then unlock, in
/// any order.
#[test]
fn very_many_weak_locks_are_moved_and_released() {
    use latchwork_lockmgr::granular::{self, IX};

    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let owners: Vec<_> = (0..2000).map(|_| session.owner().unwrap()).collect();
    for (at, owner) in owners.iter().enumerate() {
        owner.lock(b"table", IX).unwrap();
        owner.lock(format!("leaf {}", at % 50).as_bytes(), IX).unwrap();
    }
    assert_eq!(session.stats().weak, 4000);
    let writer = session.owner().unwrap();
    // A request with a timeout of zero looks at some owners and leaves them as they were.
    let now = core::time::Duration::ZERO;
    assert_eq!(writer.lock_timeout(b"table", granular::S, now), Err(Error::TimedOut));
    let weak = |rows: Vec<latchwork_lockmgr::LockInfo>| {
        rows.iter().filter(|row| row.weak && row.object == b"table").count()
    };
    assert_eq!(weak(session.snapshot().unwrap()), 2000);
    assert_eq!(session.totals().unwrap().requests, 0);
    assert_eq!(writer.try_lock(b"table", granular::S), Err(Error::NotGranted));
    assert_eq!(weak(session.snapshot().unwrap()), 0);
    assert_eq!(writer.try_lock(b"leaf 3", granular::X), Err(Error::NotGranted));
    let rows = session.snapshot().unwrap();
    let moved = rows.iter().filter(|row| !row.weak && row.object == b"table").count();
    assert_eq!(moved, 2000, "a lock was moved twice or not at all");
    for owner in owners.iter().step_by(2) {
        owner.unlock(b"table").unwrap();
        owner.release_all().unwrap();
    }
    assert_eq!(writer.try_lock(b"table", granular::S), Err(Error::NotGranted));
    // A second lock by the same owner is counted in the table.
    owners[1].lock(b"table", IX).unwrap();
    assert_eq!(owners[1].holds(b"table"), Ok(Some((IX, 2))));
    drop(owners);
    writer.lock(b"table", granular::X).unwrap();
    writer.lock(b"leaf 3", granular::X).unwrap();
    drop(writer);
    assert_eq!(session.totals().unwrap().requests, 0);
}

/// By default a weak lock is kept in its owner's memory only for names that were locked often, so
/// that a strong request for a new name has no owners to search.
#[test]
fn often_locked_names_move_to_their_owners_memory() {
    use latchwork_lockmgr::granular::{self, IX, X};

    let manager = Manager::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    for _ in 0..32 {
        owner.lock(b"table", IX).unwrap();
        owner.unlock(b"table").unwrap();
    }
    assert_eq!(session.stats().weak, 0);
    owner.lock(b"table", IX).unwrap();
    assert_eq!(session.stats().weak, 1, "the name was locked often enough");
    let other = session.owner().unwrap();
    other.lock(b"row", X).unwrap();
    assert_eq!(other.try_lock(b"table", X), Err(Error::NotGranted));
}

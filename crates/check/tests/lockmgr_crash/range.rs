//! Processes that die at every step of locking a range and of passing locks on, while others work.
//!
//! Built like `death.rs`: the test starts its own program again as children that share a region.
//! The ranges protect words of a file, in which processes detect a conflicting grant.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use latchwork_check::parts::side_by_side;
use latchwork_check::random::Random;
use latchwork_lockmgr::{Error, KeyRange, Manager, Owner, RangeKind, Wait, granular};
use latchwork_machine::{Deadline, Shared};

use crate::deaths::{self, FOR_EVER, Peers, Steps};
use RangeKind::{Gap, Insert, Intention, ReadNext, WriteNext, WriteRecord};

/// The processes that run this file's `child`.
const PEERS: Peers = Peers(module_path!());

/// Where a process is killed.
const STEPS: [&str; 15] = [
    "ticket taken",
    "keyspace linked",
    "claim about to be linked",
    "claim linked",
    "claim in the tree",
    "claim staked",
    "claim granted",
    "claim about to be unlinked",
    "claim unlinked",
    "claim out of the tree",
    "claim given back",
    "keyspace unlinked",
    "claim handed over",
    "traded lock in the other's list",
    "lock traded",
];

const KEYS: u64 = 16;

fn open(path: &Path) -> Manager<Shared> {
    Manager::new(deaths::region(path), granular::modes(), latchwork_check::early::early()).unwrap()
}

/// Reads or writes the keys of a locked range and checks that no other process writes them.
fn use_range(data: &File, from: u64, to: u64, write: Option<u64>) {
    let read = |key: u64| {
        let mut word = [0; 8];
        data.read_exact_at(&mut word, key * 8).unwrap();
        u64::from_le_bytes(word)
    };
    if let Some(mine) = write {
        (from..to).for_each(|key| data.write_all_at(&mine.to_le_bytes(), key * 8).unwrap());
    }
    let before: Vec<u64> = (from..to).map(read).collect();
    std::thread::yield_now();
    let after: Vec<u64> = (from..to).map(read).collect();
    assert_eq!(before, after, "a locked range was changed by another holder");
    assert!(write.is_none_or(|mine| after.iter().all(|word| *word == mine)));
}

/// Locks a range; returns whether it was granted. Panics unless a wait may end with this error.
fn got(owner: &Owner<'_, Shared>, space: &[u8], from: u64, to: u64, kind: RangeKind) -> bool {
    let (from, to) = (from.to_be_bytes(), to.to_be_bytes());
    let wait = Wait::Until(Deadline::after::<Shared>(Duration::from_millis(20)));
    match owner.lock_range(space, KeyRange::half_open(&from, &to), kind, wait) {
        Ok(()) => true,
        Err(Error::TimedOut | Error::Deadlock(_) | Error::Aborted(_)) => false,
        Err(error) => panic!("a surviving process got: {error}"),
    }
}

/// Runs random operations on ranges and passes locks on.
fn work(manager: &Manager<Shared>, data: &File, seed: u64, rounds: u64) {
    let session = manager.session().unwrap();
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for round in 0..rounds {
        let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
        let child = owner.child().unwrap();
        for _ in 0..1 + random.below(3) {
            let from = random.below(KEYS);
            let to = (from + 1 + random.below(3)).min(KEYS);
            let kind = [Gap, ReadNext, WriteNext, WriteRecord, Insert, Intention]
                [random.below(6) as usize];
            let who: &Owner<'_, Shared> = if random.below(2) == 0 { &owner } else { &child };
            if !got(who, b"hot", from, to, kind) {
                break;
            }
            match kind {
                WriteNext | WriteRecord | Insert => {
                    let mine = seed << 32 | round | 1 << 63;
                    use_range(data, from, to, Some(mine));
                }
                ReadNext => use_range(data, from, to, None),
                _ => {}
            }
            if random.below(3) == 0 {
                let (from, to) = (from.to_be_bytes(), to.to_be_bytes());
                who.unlock_range(b"hot", KeyRange::half_open(&from, &to), kind).unwrap();
            }
        }
        // Enough keyspaces for some to share a chain; each is created and freed again.
        let cold = random.below(3000).to_le_bytes();
        assert!(matches!(
            owner.lock_range(&cold, KeyRange::all(), Gap, Wait::Never),
            Ok(()) | Err(Error::NotGranted)
        ));
        let name = random.below(5).to_le_bytes();
        if child.try_lock(&name, granular::X).is_ok() {
            match child.trade(&name, &other) {
                Ok(()) => assert_eq!(other.holds(&name), Ok(Some((granular::X, 1)))),
                Err(error) => panic!("a trade failed: {error}"),
            }
        }
        let _ = child.try_lock(&random.below(50).to_le_bytes(), granular::S);
        match child.inherit() {
            Ok(()) => assert_eq!(child.held(), Ok(0)),
            Err(error) => panic!("nothing was inherited: {error}"),
        }
    }
}

fn data_of(path: &Path) -> File {
    let path = path.with_extension("data");
    let file =
        File::options().create(true).truncate(false).read(true).write(true).open(path).unwrap();
    file.set_len(KEYS * 8).unwrap();
    file
}

/// The child process, controlled by its environment. Does nothing in the parent.
#[test]
fn child() {
    let Some(told) = deaths::told() else { return };
    let manager = open(&told.path);
    if told.step == "hold" {
        return hold(&manager);
    }
    deaths::die_at(&told.step, told.nth);
    manager.session().unwrap().sweep().unwrap();
    work(&manager, &data_of(&told.path), told.seed, told.rounds);
}

/// Holds one range and waits for another, until it is killed.
fn hold(manager: &Manager<Shared>) {
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    let lower = KeyRange::half_open(b"a", b"m");
    owner.lock_range(b"hot", lower, WriteNext, Wait::Never).unwrap();
    let end = owner.lock_range(b"hot", KeyRange::at_least(b"m"), WriteNext, Wait::Detect);
    panic!("the wait ended: {end:?}");
}

fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
    let _ = std::fs::remove_file(path.with_extension("data"));
}

/// Creates a table in each partition; returns how many small cells the tables take.
fn touch(manager: &Manager<Shared>) -> u64 {
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    for name in 0..400_000u64 {
        owner.lock(&name.to_le_bytes(), granular::X).unwrap();
        owner.unlock(&name.to_le_bytes()).unwrap();
    }
    drop(owner);
    // The session frees its spare request.
    drop(session);
    small_cells(manager)
}

/// Cells of 48 and 64 bytes in use, without idle objects: tables, and lost cells.
fn small_cells(manager: &Manager<Shared>) -> u64 {
    let idle = manager.session().unwrap().totals().unwrap().idle;
    let audit = manager.region().audit().unwrap();
    audit.of(48).used + audit.of(64).used - idle
}

/// Checks, after all other processes have ended, that no lock is held and no cell is lost or left
/// in use. Claims take 128 bytes, their tickets 48 and 64.
fn all_is_well(manager: &Manager<Shared>, small: u64, what: &str) {
    let session = manager.session().unwrap();
    session.sweep().unwrap();
    let totals = session.totals().unwrap();
    let left = (totals.objects, totals.requests, totals.ranges, totals.weak);
    assert_eq!(left, (0, 0, 0, 0), "{what}: {:?}", session.snapshot());
    assert_eq!((totals.owners, totals.orphans), (0, 0), "{what}");
    let owner = session.owner().unwrap();
    owner.lock_range(b"hot", KeyRange::all(), WriteNext, Wait::Never).unwrap();
    drop(owner);
    drop(session);
    let audit = manager.region().audit().unwrap();
    assert!(audit.is_sound(), "{what}: {audit:?}");
    assert_eq!(audit.of(128).used, 0, "{what}: claims left");
    assert_eq!(small_cells(manager), small, "{what}: objects or requests left");
}

#[test]
fn killed_at_every_step() {
    let path = PEERS.fresh("steps");
    let (manager, data) = (open(&path), data_of(&path));
    let steps = Steps::default();
    std::thread::scope(|scope| {
        for seed in 1..4 {
            let (manager, data, steps) = (&manager, &data, &steps);
            scope.spawn(move || {
                steps.count_mine();
                work(manager, data, seed, 2000);
            });
        }
    });
    remove(&path);
    let seen = steps.seen();
    for step in STEPS {
        assert!(seen.get(step).is_some_and(|count| *count > 20), "{step}: {:?}", seen.get(step));
    }
    side_by_side([1, 7, 30], |nth| {
        for (round, step) in STEPS.iter().enumerate() {
            let path = PEERS.fresh(&format!("every-{nth}"));
            let (manager, data) = (open(&path), data_of(&path));
            let small = touch(&manager);
            let seed = round as u64 * 31 + u64::from(nth);
            PEERS.killed_beside(&path, (step, nth), seed, 200, || {
                work(&manager, &data, seed + 9, 5);
            });
            all_is_well(&manager, small, step);
            remove(&path);
        }
    });
    println!("killed at {0} of {0} steps, 3 times each", STEPS.len());
}

#[test]
fn killed_while_creating_the_first_keyspace() {
    let path = PEERS.fresh("first");
    let manager = open(&path);
    let small = touch(&manager);
    assert!(PEERS.dies(&path, "chains of keyspaces made", 1, 3, FOR_EVER));
    work(&manager, &data_of(&path), 5, 50);
    all_is_well(&manager, small, "first");
    remove(&path);
}

#[test]
fn a_sweeper_killed_at_every_step() {
    let steps = [
        "tree made anew",
        "claim about to be unlinked",
        "claim unlinked",
        "claim out of the tree",
        "dead owner's request noted",
        "dead owner's request taken",
        "about to finish a sweep",
    ];
    let deaths = ["claim linked", "claim unlinked", "claim staked", "claim handed over"];
    let mut reached = std::collections::BTreeSet::new();
    for (step, death) in steps.iter().flat_map(|step| deaths.map(|death| (*step, death))) {
        let path = PEERS.fresh("sweeper");
        let manager = open(&path);
        let small = touch(&manager);
        if PEERS.sweeper_dies(&path, death, step) {
            reached.insert(step);
        }
        work(&manager, &data_of(&path), 17, 50);
        all_is_well(&manager, small, step);
        remove(&path);
    }
    assert_eq!(reached.len(), steps.len(), "only {reached:?}");
}

#[test]
fn orphans_keep_their_ranges_and_lose_their_requests() {
    let path = PEERS.fresh("orphans");
    let keep = Box::new(|_, _: &[u8]| false);
    let manager = Manager::with_recovery(
        deaths::region(&path),
        granular::modes(),
        latchwork_check::early::early(),
        keep,
    )
    .unwrap();
    let small = touch(&manager);
    let session = manager.session().unwrap();
    let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
    let (lower, upper) = (KeyRange::half_open(b"a", b"m"), KeyRange::at_least(b"m"));
    owner.lock_range(b"hot", upper, ReadNext, Wait::Never).unwrap();
    let mut victim = PEERS.start(&path, "hold", 0, 0, 0);
    while session.totals().unwrap().waiting == 0 {
        assert_eq!(victim.try_wait().unwrap(), None);
        std::thread::yield_now();
    }
    // Its waiting request blocks others before its death and not after it.
    let read =
        |owner: &Owner<'_, Shared>, range| owner.lock_range(b"hot", range, ReadNext, Wait::Never);
    assert_eq!(read(&other, upper), Err(Error::NotGranted));
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert_eq!(session.sweep(), Ok(1));
    assert_eq!(session.totals().unwrap().ranges, 2);
    assert_eq!(read(&other, upper), Ok(()));
    assert_eq!(read(&other, lower), Err(Error::NotGranted));
    let orphans = session.orphans().unwrap();
    assert_eq!(orphans.len(), 1);
    session.release_orphan(orphans[0]).unwrap();
    assert_eq!(read(&other, lower), Ok(()));
    drop((owner, other));
    drop(session);
    all_is_well(&manager, small, "orphans");
    remove(&path);
}

#[test]
fn the_checks_can_fail() {
    let path = PEERS.fresh("control");
    let (manager, data) = (open(&path), data_of(&path));
    let small = touch(&manager);
    // Without a latch held, since a thread that meets such a latch would sweep.
    assert!(PEERS.dies(&path, "claim handed over", 9, 3, FOR_EVER));
    let session = manager.session().unwrap();
    assert!(session.totals().unwrap().ranges > 0, "the dead process's claims must be visible");
    assert_ne!(manager.region().audit().unwrap().of(128).used, 0);
    assert_ne!(small_cells(&manager), small);
    assert_eq!(session.sweep(), Ok(1));
    drop(session);
    all_is_well(&manager, small, "control");
    // Two threads that write without locks detect each other.
    let alone = std::panic::catch_unwind(|| {
        std::thread::scope(|scope| {
            let many = |me: u64| (0..200_000).for_each(|n| use_range(&data, 0, 4, Some(me | n)));
            let other = scope.spawn(move || many(0));
            many(1 << 40);
            other.join().unwrap();
        });
    });
    assert!(alone.is_err());
    remove(&path);
}

/// Kills processes at random instants, and replaces them.
fn random_kills(rounds: u64) {
    let path = PEERS.fresh("random");
    let (manager, data) = (open(&path), data_of(&path));
    let small = touch(&manager);
    PEERS.kill_at_random(&path, rounds, 2_000..10_000, |round| {
        work(&manager, &data, round + 7, 20);
    });
    all_is_well(&manager, small, "random kills");
    remove(&path);
}

#[test]
fn killed_at_random() {
    random_kills(200);
}

#[test]
#[ignore = "long"]
fn killed_at_random_long() {
    random_kills(20_000);
}

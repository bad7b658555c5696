//! Processes that die at every named step, and at random, while others go on.
//!
//! The test starts itself again as children that share a region; a child kills itself at the
//! step that it was told, or its parent kills it.

mod deaths;

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use latchwork_lockmgr::{Error, Manager, Mode, Options, Owner, granular};
use latchwork_machine::Shared;
use latchwork_region::Region;

fn options() -> latchwork_region::Options {
    latchwork_region::Options { limit: 1 << 30, ..Default::default() }
}

fn open(path: &Path) -> Manager<Shared> {
    let region = Region::<Shared>::open_or_create(path, &options()).unwrap();
    Manager::new(region, granular::modes(), keeping()).unwrap()
}

/// So that what `come_back` locks is soon kept for it.
fn keeping() -> Options {
    Options { keep_after: 2, ..Options::default() }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Does a bit of everything, in every mode, on few names.
fn work(manager: &Manager<Shared>, seed: u64, rounds: u64) {
    let session = manager.session().unwrap();
    let mut random = Random(seed | 1);
    for _ in 0..rounds {
        let owner = session.owner().unwrap();
        for _ in 0..1 + random.below(6) {
            let many = random.below(4) == 0;
            let name = random.below(if many { 100_000 } else { 5 }).to_le_bytes();
            let mode = if random.below(2) == 0 {
                Mode(random.below(2) as u8)
            } else {
                Mode(random.below(6) as u8)
            };
            match owner.lock_timeout(&name, mode, Duration::from_millis(20)) {
                Ok(()) => {}
                Err(Error::TimedOut | Error::Deadlock(_) | Error::Doomed(_)) => break,
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

/// Locks one name again and again, as one does for whom it is kept.
fn come_back(owner: &Owner<'_, Shared>, random: &mut Random) -> bool {
    for name in [random.below(5), 200_000 + random.below(40)] {
        for _ in 0..random.below(5) {
            match owner.lock_timeout(&name.to_le_bytes(), granular::X, Duration::from_millis(20)) {
                Ok(()) => owner.unlock(&name.to_le_bytes()).unwrap(),
                Err(Error::TimedOut | Error::Deadlock(_) | Error::Doomed(_)) => return false,
                Err(error) => panic!("a survivor got: {error}"),
            }
        }
    }
    true
}

/// What a child does: the environment says so. Does nothing in the parent.
#[test]
fn child() {
    let Ok(path) = std::env::var("LOCKMGR_REGION") else { return };
    let step = std::env::var("LOCKMGR_STEP").unwrap_or_default();
    let nth = std::env::var("LOCKMGR_NTH").map_or(1, |n| n.parse().unwrap());
    let seed = std::env::var("LOCKMGR_SEED").map_or(1, |n| n.parse().unwrap());
    let rounds = std::env::var("LOCKMGR_ROUNDS").map_or(2000, |n| n.parse().unwrap());
    let manager = open(Path::new(&path));
    let bulk = std::env::var("LOCKMGR_BULK").is_ok();
    deaths::die_at(&step, nth);
    manager.session().unwrap().sweep().unwrap();
    if bulk {
        take_many(&manager);
    }
    work(&manager, seed, rounds);
}

/// Takes so many locks that the tables of most of the 16,352 partitions grow.
fn take_many(manager: &Manager<Shared>) {
    let session = manager.session().unwrap();
    for names in [300_000u64, 30_000] {
        let owner = session.owner().unwrap();
        for name in 0..names {
            owner.lock(&(name + 1_000_000).to_le_bytes(), granular::X).unwrap();
        }
        owner.release_all().unwrap();
    }
}

fn start(path: &Path, step: &str, nth: u32, seed: u64, rounds: u64) -> Child {
    command(path, step, nth, seed, rounds).spawn().unwrap()
}

fn command(path: &Path, step: &str, nth: u32, seed: u64, rounds: u64) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child", "--test-threads=1", "--nocapture"])
        .env("LOCKMGR_REGION", path)
        .env("LOCKMGR_STEP", step)
        .env("LOCKMGR_NTH", nth.to_string())
        .env("LOCKMGR_SEED", seed.to_string())
        .env("LOCKMGR_ROUNDS", rounds.to_string())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::inherit());
    command
}

fn fresh(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("lockmgr-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

/// After all the others have gone: nothing is held, all names can be had, no cell is lost.
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

/// Steps that this workload comes to, in one process.
fn steps() -> Vec<&'static str> {
    let path = fresh("steps");
    let manager = open(&path);
    std::thread::scope(|scope| {
        for seed in 1..4 {
            let manager = &manager;
            scope.spawn(move || {
                deaths::count_mine();
                work(manager, seed, 2000);
            });
        }
    });
    let _ = std::fs::remove_file(&path);
    deaths::seen().into_iter().filter(|(_, count)| *count > 20).map(|(name, _)| name).collect()
}

/// Lets a child come to a step and die there, while the parent and a peer work.
fn killed_at(step: &str, nth: u32, seed: u64) {
    let path = fresh("every");
    let manager = open(&path);
    let mut victim = start(&path, step, nth, seed, 1 << 40);
    let mut peer = start(&path, "", 0, seed + 5, 300);
    let ended = loop {
        // So that somebody is there to be waited for, and to meet the corpse.
        work(&manager, seed + 9, 5);
        if let Some(ended) = victim.try_wait().unwrap() {
            break ended;
        }
    };
    assert_eq!(ended.code(), None, "{step}: the victim was not killed, it failed");
    assert!(peer.wait().unwrap().success(), "{step}: the peer failed");
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
        let path = fresh("grows");
        let manager = open(&path);
        let mut command = command(&path, step, nth, 5, 10);
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
        "dead owner buried",
        "dead owner's request taken",
        "about to finish a sweep",
        "request unlinked",
        "request about to be unlinked",
        "before the latch is opened",
    ];
    let deaths =
        ["request linked", "bias closed", "weak lock moved", "object linked", "latch opened"];
    let mut reached = std::collections::BTreeSet::new();
    for (step, death) in steps.iter().flat_map(|step| deaths.map(|death| (*step, death))) {
        let path = fresh("sweeper");
        let manager = open(&path);
        for nth in [9, 12] {
            let ended = start(&path, death, nth, 3, 1 << 40).wait().unwrap();
            assert_eq!(ended.code(), None);
        }
        // Not every death leaves something for every step.
        let ended = start(&path, step, 1, 3, 20).wait().unwrap();
        assert!(ended.success() || ended.code().is_none(), "{step}: the sweeper failed");
        if ended.code().is_none() {
            reached.insert(step);
        }
        work(&manager, 17, 50);
        all_is_well(&manager, step);
        let _ = std::fs::remove_file(&path);
    }
    assert_eq!(reached.len(), steps.len(), "only {reached:?}");
}

/// The dead one's locks are kept for recovery, and released when that is done.
#[test]
fn kept_for_recovery_at_every_step() {
    let mut reached = 0;
    for (round, step) in steps().iter().enumerate() {
        let path = fresh("kept");
        let region = Region::<Shared>::open_or_create(&path, &options()).unwrap();
        let keep = Box::new(|_, _: &[u8]| false);
        let manager = Manager::with_recovery(region, granular::modes(), keeping(), keep).unwrap();
        // Alone it does not come to every step.
        let ended = start(&path, step, 3, round as u64 + 3, 3000).wait().unwrap();
        assert!(ended.success() || ended.code().is_none(), "{step}: it failed");
        reached += usize::from(ended.code().is_none());
        let session = manager.session().unwrap();
        session.sweep().unwrap();
        for orphan in session.orphans() {
            session.release_orphan(orphan).unwrap();
        }
        drop(session);
        all_is_well(&manager, step);
        let _ = std::fs::remove_file(&path);
    }
    assert!(reached >= 12, "only {reached} steps");
}

/// A closer dies between moving a weak lock and noting that it has. While it is swept, the lock's
/// owner makes the moved request its own, gives it back, and keeps it as its spare one.
#[test]
fn what_a_dead_closer_moved_is_the_owners() {
    let path = fresh("adopted");
    let manager = open(&path);
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    for name in 0..5u64 {
        owner.lock(&name.to_le_bytes(), granular::IS).unwrap();
    }
    let ended = start(&path, "weak lock moved", 1, 3, 1 << 40).wait().unwrap();
    assert_eq!(ended.code(), None, "the closer was not killed, it failed");
    std::thread::scope(|scope| {
        let manager = &manager;
        let sweeper = scope.spawn(move || {
            let session = manager.session().unwrap();
            deaths::stop_at("about to finish a sweep");
            assert_eq!(session.sweep(), Ok(1));
            let other = session.owner().unwrap();
            (100..140u64).for_each(|n| other.lock(&n.to_le_bytes(), granular::X).unwrap());
            other.release_all().unwrap();
        });
        deaths::until_stopped();
        for name in 0..5u64 {
            owner.lock(&name.to_le_bytes(), granular::IS).unwrap();
            owner.release_object(&name.to_le_bytes()).unwrap();
        }
        deaths::go_on();
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
fn the_proof_can_fail() {
    let path = fresh("control");
    let manager = open(&path);
    let ended = start(&path, "request linked", 9, 3, 1 << 40).wait().unwrap();
    assert_eq!(ended.code(), None);
    let session = manager.session().unwrap();
    let held = session.owners();
    assert!(held > 0, "the dead one's owner is to be seen before the sweep");
    assert_eq!(session.sweep(), Ok(1));
    assert_eq!(session.owners(), 0);
    drop(session);
    all_is_well(&manager, "control");
    let _ = std::fs::remove_file(&path);
}

/// Kills processes at random instants, and replaces them.
fn random_kills(rounds: u64) {
    let path = fresh("random");
    let manager = open(&path);
    let mut random = Random(0x1234_5678);
    let since = Instant::now();
    let mut peers: Vec<Child> = (0..3).map(|s| start(&path, "", 0, s + 1, 1 << 40)).collect();
    for round in 0..rounds {
        // A child is at work after some 3 ms.
        std::thread::sleep(Duration::from_micros(1_000 + random.below(5_000)));
        let at = random.below(3) as usize;
        assert_eq!(peers[at].try_wait().unwrap(), None, "a survivor ended by itself");
        peers[at].kill().unwrap();
        peers[at].wait().unwrap();
        work(&manager, round + 7, 20);
        peers[at] = start(&path, "", 0, round + 100, 1 << 40);
        if (round + 1) % 5_000 == 0 {
            println!(
                "{} kills, {:.0} a second",
                round + 1,
                (round + 1) as f64 / since.elapsed().as_secs_f64()
            );
        }
    }
    for mut peer in peers {
        assert_eq!(peer.try_wait().unwrap(), None, "a survivor ended by itself");
        peer.kill().unwrap();
        peer.wait().unwrap();
    }
    all_is_well(&manager, "random kills");
    let _ = std::fs::remove_file(&path);
}

#[test]
fn killed_at_random() {
    random_kills(5_000);
}

#[test]
#[ignore = "long"]
fn killed_at_random_long() {
    random_kills(100_000);
}

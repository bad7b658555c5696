//! Processes that are killed in a pool, and the state that the others find.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use latchwork_check::folder::Folder;
use latchwork_check::parts::side_by_side;
use latchwork_check::random::Random;
use latchwork_disk::System;
use latchwork_pool::{Error, Options, Pool, set_point_hook};

use super::place::{FRAMES, PAGES, Place, TOLD, at_step};

/// The named steps of the pool.
const STEPS: [&str; 28] = [
    "remove.marked",
    "remove.emptied",
    "remove.deleted",
    "resize.target",
    "resize.claimed",
    "resize.active",
    "free.marked",
    "free.had",
    "fault.tagged",
    "fault.published",
    "fault.read",
    "fault.copied",
    "fault.valid",
    "evict.locked",
    "evict.claimed",
    "evict.unlinked",
    "change.intended",
    "change.begun",
    "change.half",
    "change.done",
    "change.unmarked",
    "write.claimed",
    "write.copied",
    "write.ahead",
    "write.written",
    "write.clean",
    "repair.taken",
    "repair.made",
];

/// The steps that differ in the hash table, and its own.
const SPARSE_STEPS: [&str; 6] = [
    "hash.latched",
    "fault.tagged",
    "fault.published",
    "evict.claimed",
    "evict.unlinked",
    "change.half",
];

/// The child process, controlled by its environment.
#[test]
fn child() {
    let Some(folder) = std::env::var_os("POOL_FOLDER") else { return };
    let number = |name| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let place = Place::open(Path::new(&folder), false);
    *TOLD.lock().unwrap() = Some((std::env::var("POOL_STEP").unwrap(), number("POOL_NTH") as u32));
    set_point_hook(at_step);
    let thread = place.region.thread().unwrap();
    let peer = std::env::var("POOL_PEER").ok().map(|number| number.parse().unwrap());
    let mut work = place.work(&thread);
    work.peer = peer;
    work.rounds(number("POOL_ROUNDS"), number("POOL_SEED"));
}

pub(super) fn start(folder: &Path, step: &str, nth: u32, rounds: u64, seed: u64) -> Child {
    command(folder, step, nth, rounds, seed).spawn().unwrap()
}

fn command(folder: &Path, step: &str, nth: u32, rounds: u64, seed: u64) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "kills::child", "--test-threads=1", "--nocapture"])
        .env("POOL_FOLDER", folder)
        .env("POOL_STEP", step)
        .env("POOL_NTH", nth.to_string())
        .env("POOL_ROUNDS", rounds.to_string())
        .env("POOL_SEED", seed.to_string())
        .stdout(Stdio::null());
    command
}
/// A number from the environment, or this default.
fn scaled(usual: u64) -> u64 {
    std::env::var("LATCHWORK_POOL_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

#[test]
fn a_death_at_every_step_loses_nothing() {
    deaths_at(&STEPS, "steps");
    deaths_at(&SPARSE_STEPS, "sparse-steps");
}

fn deaths_at(steps: &[&str], name: &str) {
    let folder = Folder::new(name);
    let place = Place::open(&folder.0, false);
    let thread = place.region.thread().unwrap();
    let work = place.work(&thread);
    work.begin();
    let (mut died, mut swept) = (0, 0);
    // `repair.*` are steps of a thread that repairs a dead thread's work: see below.
    for step in steps.iter().filter(|step| !step.starts_with("repair")) {
        for nth in [1, 7] {
            let mut victim = start(&folder.0, step, nth, 20_000, u64::from(nth));
            // Works at the same time, so that the victim's latches are waited for.
            let ended = loop {
                work.rounds(20, 9);
                if let Some(ended) = victim.try_wait().unwrap() {
                    break ended;
                }
            };
            assert_eq!(ended.code(), None, "{step}: the victim was not killed");
            died += 1;
            // Half of the dead threads are met by a thread that needs their pages, half are swept.
            if nth == 7 {
                swept += place.sweep();
            }
            work.check().unwrap_or_else(|why| panic!("{step}: {why}"));
            work.rounds(200, 3);
            swept += place.sweep();
            work.check().unwrap_or_else(|why| panic!("{step}: {why}"));
            work.scratch(3);
            assert_eq!(work.forgotten(), Vec::<PathBuf>::new(), "{step}");
            assert!(place.pool.list().unwrap().all(|frame| frame.holder.is_none()), "{step}");
        }
    }
    work.handle.store_counts();
    let stats = place.pool.stats().unwrap();
    println!("{died} deaths, {stats:?}");
    assert_eq!(died, swept, "each dead thread must be swept once");
    assert!(stats.repaired >= 4 && stats.rebuilt >= 2, "{stats:?}");
}

#[test]
fn a_repairing_process_is_killed_at_every_step() {
    let folder = Folder::new("repairers");
    let place = Place::open(&folder.0, false);
    let thread = place.region.thread().unwrap();
    let work = place.work(&thread);
    work.begin();
    for step in ["repair.taken", "repair.made", "repair.copied"] {
        let mut victim = start(&folder.0, "change.half", 3, 20_000, 5);
        assert_eq!(victim.wait().unwrap().code(), None, "not killed");
        let mut second = start(&folder.0, step, 1, 20_000, 6);
        assert_eq!(second.wait().unwrap().code(), None, "{step}: not killed");
        work.check().unwrap_or_else(|why| panic!("{step}: {why}"));
        place.sweep();
        work.check().unwrap();
        // The second process had begun no change; the first one's record may have been superseded.
        let authors = std::mem::take(&mut *place.authors.lock().unwrap());
        assert_eq!(authors, [None], "{step}");
    }
    let mut victim = start(&folder.0, "change.half", 3, 20_000, 5);
    assert_eq!(victim.wait().unwrap().code(), None, "not killed");
    let author = place.pool.list().unwrap().find_map(|frame| frame.holder);
    work.check().unwrap();
    assert_eq!((author.is_some(), &*place.authors.lock().unwrap()), (true, &vec![author]));
}

#[test]
fn a_rebuild_that_ignores_the_log_is_detected() {
    let folder = Folder::new("forgets");
    let place = Place::open(&folder.0, true);
    let thread = place.region.thread().unwrap();
    let work = place.work(&thread);
    work.begin();
    let mut victim = start(&folder.0, "change.half", 3, 20_000, 5);
    assert_eq!(victim.wait().unwrap().code(), None, "not killed");
    place.sweep();
    assert!(work.check().is_err(), "the missing log was not detected");
}

#[test]
fn without_a_rebuild_that_page_alone_is_lost() {
    let folder = Folder::new("lost");
    let place = Place::open(&folder.0, false);
    let thread = place.region.thread().unwrap();
    place.work(&thread).begin();
    let options =
        Options { frames: FRAMES, frames_max: FRAMES, frame_bytes: 512, ..Options::default() };
    let bare = Pool::open(&place.region, Arc::new(System::new()), &options).unwrap();
    let mut victim = start(&folder.0, "change.half", 3, 20_000, 5);
    assert_eq!(victim.wait().unwrap().code(), None, "not killed");
    let handle = bare.handle(&thread).unwrap();
    let file = bare.file_id(0).unwrap();
    let lost: Vec<_> =
        (0..PAGES).filter_map(|page| handle.read(file, page, |view| view.word(2)).err()).collect();
    assert!(matches!(lost[..], [Error::Poisoned { .. }]), "{lost:?}");
}

#[test]
fn a_log_that_is_not_durable_is_detected_at_the_disk() {
    let folder = Folder::new("lies");
    let place = Place::with_a_log_that_lies(&folder.0);
    let thread = place.region.thread().unwrap();
    let work = place.work(&thread);
    work.begin();
    assert_eq!(work.check(), Ok(()), "no page has a record yet");
    work.change(0);
    work.handle.sync(u64::MAX, &mut |_| {}).unwrap();
    let found = work.check();
    assert!(found.as_ref().is_err_and(|why| why.contains("before their records")), "{found:?}");
}

/// The number of peers; one is killed at a time.
const PEERS: u64 = 3;

/// Kills one of the peers `kills` times, and checks every page after each kill; the others
/// continue.
fn kill_at_random(kills: u64, name: &str, seed: u64) {
    let folder = Folder::new(name);
    let place = Place::open(&folder.0, false);
    let thread = place.region.thread().unwrap();
    let work = place.work(&thread);
    work.begin();
    let mut random = Random(0x5eed + seed);
    let endless = |peer: u64, seed| {
        let mut command = command(&folder.0, "", 0, u64::MAX, seed);
        command.env("POOL_PEER", peer.to_string()).spawn().unwrap()
    };
    let mut peers: Vec<Child> = (0..PEERS).map(|peer| endless(peer, peer + 1)).collect();
    for round in 0..kills {
        std::thread::sleep(Duration::from_micros(random.below(6_000)));
        let victim = random.below(PEERS);
        let peer = &mut peers[victim as usize];
        assert_eq!(peer.try_wait().unwrap(), None, "a peer ended by itself");
        if random.below(4) == 0 {
            // Stopped for a while: others wait for it or continue.
            // SAFETY: signals a child of this process.
            unsafe { libc::kill(peer.id() as i32, libc::SIGSTOP) };
            std::thread::sleep(Duration::from_millis(1));
            // SAFETY: as above.
            unsafe { libc::kill(peer.id() as i32, libc::SIGCONT) };
        }
        peer.kill().unwrap();
        peer.wait().unwrap();
        let others = (0..PEERS).filter(|peer| *peer != victim);
        let before: Vec<_> = others.map(|peer| (peer, work.log.beats(peer))).collect();
        // This process and the surviving peers continue.
        work.rounds(50, round + 1);
        for (peer, before) in before {
            let mut looks = 0;
            while work.log.beats(peer) == before {
                looks += 1;
                assert!(looks < 100_000, "peer {peer} makes no progress after {round} kills");
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        place.sweep();
        for page in 0..PAGES {
            work.value(page);
        }
        peers[victim as usize] = endless(victim, round + 10);
    }
    for peer in &mut peers {
        peer.kill().unwrap();
        peer.wait().unwrap();
    }
    place.sweep();
    work.check_after(kills + PEERS).unwrap();
    let (broken, checked) = work.log.breaches();
    assert!(broken == 0 && checked > kills, "{broken} of {checked}");
    work.handle.store_counts();
    println!("{kills} kills, {checked} pages out: {:?}", place.pool.stats().unwrap());
}

fn random_kills(kills: u64) {
    let names = ["random-0", "random-1", "sparse-random-0", "sparse-random-1"];
    side_by_side((0..).zip(names), |(seed, name)| kill_at_random(kills.div_ceil(4), name, seed));
}

#[test]
fn random_kills_lose_nothing() {
    random_kills(scaled(5_000));
}

/// 100,000 kills, or `LATCHWORK_POOL_KILLS`, about half an hour on two cores:
/// `cargo test --release -p latchwork-check --test pool_crash -- --ignored`.
#[test]
#[ignore = "long"]
fn many_random_kills_lose_nothing() {
    random_kills(scaled(100_000));
}

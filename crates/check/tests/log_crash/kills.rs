//! Kills of processes at each step and at random.

use std::process::Child;
use std::time::Duration;

use latchwork_check::random::Random;

use crate::work::Worker;
use crate::{Place, start};

const FOR_EVER: u64 = 1 << 40;

/// All points at which a process can be killed.
pub(crate) const STEPS: [&str; 39] = [
    "reserve: slot",
    "credit: slot",
    "settle: aside",
    "aside: credit",
    "aside: taken",
    "append: asked",
    "append: leads",
    "append: latched",
    "append: served",
    "append: placed",
    "append: copying",
    "append: slot",
    "append: copied",
    "append: done",
    "append: published",
    "append: end",
    "flush: claimed",
    "flush: chunk",
    "flush: written",
    "flush: synced",
    "flush: done",
    "flush: unclaimed",
    "follow: sleeps",
    "maker: claimed",
    "ahead: claimed",
    "make: filled",
    "make: named",
    "control: claimed",
    "control: written",
    "control: counted",
    "recycle: decided",
    "recycle: one",
    "pass over: taken",
    "repair: reserved",
    "repair: slot",
    "repair: filled",
    "repair: aside",
    "repair: claims",
    "repair: forget",
];

#[test]
fn the_list_of_steps_is_complete() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../log/src");
    let mut named = Vec::new();
    for file in std::fs::read_dir(root).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let calls = text.split("point(\"").skip(1);
        named.extend(calls.map(|rest| rest.split('"').next().unwrap().to_owned()));
    }
    // The log is already open when a victim starts.
    named.retain(|step| !step.starts_with("open: "));
    named.sort();
    let mut steps = STEPS.to_vec();
    steps.sort_unstable();
    assert_eq!(named, steps);
}

/// A point at which a process has a place in the log and has not begun to copy its record.
const STOP: &str = "stop at append: placed";

pub(crate) fn resume(stopped: &Child) {
    // SAFETY: signals a child process that has not been waited for.
    assert_eq!(unsafe { libc::kill(stopped.id() as i32, libc::SIGCONT) }, 0);
}

pub(crate) fn is_stopped(process: &Child) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    assert_ne!(state, Some('Z'), "the process has ended instead of stopping");
    state == Some('T')
}

/// Processes that are stopped with a place block no other, and complete when they are resumed.
#[test]
fn stopped_processes_with_a_place_block_no_other() {
    let place = Place::new("stopped");
    let mut worker = Worker::new(&place);
    let mut stopped: Vec<_> = (1..5).map(|nth| start(&place, STOP, nth, 30)).collect();
    while !stopped.iter().all(is_stopped) {
        worker.round();
    }
    (0..200).for_each(|_| worker.round());
    stopped.iter().for_each(resume);
    (0..50).for_each(|_| worker.round());
    for process in &mut stopped {
        assert!(process.wait().unwrap().success());
    }
    assert!(worker.audit(true) > 1);
}

/// A victim dies at a step while a peer works. This process works until the victim is dead, then
/// checks the log.
fn dies_at(step: &str, nth: u32) {
    let place = Place::new(&step.replace([' ', ':'], "-"));
    let mut worker = Worker::new(&place);
    // Leaves a dead thread to sweep, with the latch.
    let mut first = start(&place, "append: copied", 30, FOR_EVER);
    assert_eq!(first.wait().unwrap().code(), None);
    let mut stopped: Option<Child> = None;
    let mut victim = start(&place, step, nth, FOR_EVER);
    let mut peer = start(&place, "", 0, 200);
    let ended = loop {
        if let Some(ended) = victim.try_wait().unwrap() {
            break ended;
        }
        // The victim must reach the steps of repairs itself.
        if step.starts_with("pass over") {
            // Processes stop with a place one after another, until the victim fills one.
            if let Some(mut before) = stopped.take() {
                before.kill().unwrap();
                before.wait().unwrap();
            }
            stopped = Some(start(&place, STOP, 2, FOR_EVER));
            std::thread::sleep(Duration::from_millis(40));
        } else if step.starts_with("repair") {
            std::thread::sleep(Duration::from_micros(200));
            // Dies with the latch, or with a place.
            let dies = if step == "repair: reserved" { "append: served" } else { "append: slot" };
            let mut other = start(&place, dies, 2, FOR_EVER);
            assert_eq!(other.wait().unwrap().code(), None);
        } else {
            worker.round();
        }
    };
    assert_eq!(ended.code(), None, "{step}: the victim was not killed, it failed");
    if let Some(stopped) = &mut stopped {
        // It continues for a while.
        resume(stopped);
        (0..50).for_each(|_| worker.round());
        stopped.kill().unwrap();
        stopped.wait().unwrap();
    }
    (0..50).for_each(|_| worker.round());
    assert!(peer.wait().unwrap().success(), "{step}: the peer failed");
    assert!(worker.audit(true) > 1);
}

#[test]
fn a_death_at_each_step_blocks_no_other() {
    for (index, step) in STEPS.into_iter().enumerate() {
        dies_at(step, 1 + index as u32 % 3);
    }
}

/// A process reserves all room of the buffer by four requests and dies in the append, with the
/// latch. Another process naps until there is room: it takes the latch and the room from the dead
/// process without a sweep.
#[test]
fn a_death_with_all_room_and_the_latch_blocks_no_other() {
    let (over, is_over) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let place = Place::new("hoard");
        let mut worker = Worker::new(&place);
        for _ in 0..5 {
            worker.session.give_back(0).unwrap();
            let mut hoarder = start(&place, "append: latched", 5, 0);
            while !place.path.join("hoarded").exists() {
                assert_eq!(hoarder.try_wait().unwrap(), None);
                std::thread::yield_now();
            }
            worker.round();
            assert_eq!(hoarder.wait().unwrap().code(), None, "the process was not killed");
            std::fs::remove_file(place.path.join("hoarded")).unwrap();
            worker.sweep();
        }
        assert!(worker.audit(true) > 1);
        over.send(()).unwrap();
    });
    is_over.recv_timeout(Duration::from_secs(120)).expect("a thread waits forever");
}

/// Kills one of three workers `count` times at random, and replaces it.
fn kills(count: u64) {
    let place = Place::new("random");
    let mut worker = Worker::new(&place);
    let mut random = Random(0x9876_5432);
    let mut peers: Vec<_> = (0..3).map(|_| start(&place, "", 0, FOR_EVER)).collect();
    for round in 0..count {
        std::thread::sleep(Duration::from_micros(500 + random.below(8_000)));
        let peer = &mut peers[random.roll(3)];
        assert_eq!(peer.try_wait().unwrap(), None, "a peer ended by itself");
        peer.kill().unwrap();
        peer.wait().unwrap();
        (0..5).for_each(|_| worker.round());
        worker.sweep();
        *peer = start(&place, "", 0, FOR_EVER);
        if round % 50 == 49 {
            worker.audit(false);
        }
    }
    for peer in &mut peers {
        peer.kill().unwrap();
        peer.wait().unwrap();
    }
    // A record after all records in flight.
    worker.round();
    println!("{count} kills, {} records at the end", worker.audit(true));
}

fn asked(usual: u64) -> u64 {
    std::env::var("LATCHWORK_LOG_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

#[test]
fn random_kills_block_no_other() {
    kills(asked(300));
}

#[test]
#[ignore = "long: 100,000 kills"]
fn random_kills_block_no_other_long() {
    kills(asked(100_000));
}

/// All processes die at once and the region stays: the next process continues, and no record of the
/// log is missing.
#[test]
fn all_die_at_once() {
    let place = Place::new("all");
    for _ in 0..4 {
        let mut peers: Vec<_> = (0..3).map(|_| start(&place, "", 0, FOR_EVER)).collect();
        std::thread::sleep(Duration::from_millis(60));
        peers.iter_mut().for_each(|peer| peer.kill().unwrap());
        peers.iter_mut().for_each(|peer| _ = peer.wait().unwrap());
        let mut worker = Worker::new(&place);
        // A record after all records in flight.
        worker.round();
        worker.audit(true);
        worker.sweep();
        (0..20).for_each(|_| worker.round());
        assert!(worker.audit(true) > 1);
    }
}

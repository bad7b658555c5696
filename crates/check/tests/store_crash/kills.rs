//! Kills of processes at each step and at random.

use std::collections::BTreeSet;
use std::time::Duration;

use latchwork_check::parts::side_by_side;
use latchwork_check::random::Random;

use crate::work::Worker;
use crate::{Place, start};

const PEERS: u64 = 3;

/// The names of all points in the log and the pool at which a process can be killed.
pub(crate) fn steps() -> Vec<String> {
    let mut named = Vec::new();
    for folder in ["log/src", "pool/src", "pool/src/life"] {
        let root = format!("{}/../{folder}", env!("CARGO_MANIFEST_DIR"));
        for file in std::fs::read_dir(root).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let text = std::fs::read_to_string(path).unwrap();
            let calls = text.split("point(\"").skip(1);
            named.extend(calls.map(|rest| rest.split('"').next().unwrap().to_owned()));
        }
    }
    named.sort();
    named.dedup();
    named
}

/// One of several processes dies at each step that it reaches in time; the others continue.
#[test]
fn a_death_at_each_step_blocks_no_other() {
    let steps = steps();
    assert!(steps.len() > 30, "{steps:?}");
    let place = Place::new("steps");
    let mut worker = Worker::new(&place, 0);
    worker.fill();
    let mut reached = BTreeSet::new();
    // Steps within a transaction are tried several times, for other records and pages. A record
    // that is in the log and not yet on its page is what repairs are for.
    let often = |step: &str| match step {
        "append: end" => 150,
        _ if step.starts_with("append") || step.starts_with("change") => 12,
        _ => 2,
    };
    let times = steps.iter().flat_map(|step| (1..=often(step)).map(move |n| (step, n)));
    for (step, nth) in times {
        let mut victim = start(&place, 1, step, nth);
        let enough = worker.answered(1) + 150;
        let ended = loop {
            if let Some(ended) = victim.try_wait().unwrap() {
                reached.insert(&step[..]);
                break ended;
            }
            if worker.answered(1) >= enough {
                victim.kill().unwrap();
                break victim.wait().unwrap();
            }
            worker.round();
        };
        assert_eq!(ended.code(), None, "{step}: the victim was not killed, it failed");
        (0..20).for_each(|_| worker.round());
        worker.audit();
        worker.store.sweep().unwrap();
        worker.check(1);
    }
    worker.store.verify().unwrap();
    println!("{} of {} steps were reached: {reached:?}", reached.len(), steps.len());
    for step in ["append: copied", "append: end", "change.intended", "change.begun", "change.done"]
    {
        assert!(reached.contains(step), "{step} was not reached");
    }
}

/// In four groups of processes, one process at a time is killed at random and replaced; `count`
/// kills in all.
fn kills(count: u64) {
    side_by_side(0..4, |part| kills_in(&format!("random-{part}"), count.div_ceil(4), part));
}

fn kills_in(name: &str, count: u64, seed: u64) {
    let place = Place::new(name);
    let mut worker = Worker::new(&place, 0);
    worker.fill();
    let mut random = Random(0x1357_9bdf + seed);
    let mut peers: Vec<_> = (1..=PEERS).map(|id| start(&place, id, "", 0)).collect();
    for round in 0..count {
        std::thread::sleep(Duration::from_micros(500 + random.below(15_000)));
        let victim = random.roll(PEERS as usize);
        let peer = &mut peers[victim];
        assert_eq!(peer.try_wait().unwrap(), None, "a peer ended by itself");
        peer.kill().unwrap();
        peer.wait().unwrap();
        (0..3).for_each(|_| worker.round());
        worker.store.sweep().unwrap();
        worker.check(victim as u64 + 1);
        *peer = start(&place, victim as u64 + 1, "", 0);
        if round % 10 == 9 {
            worker.audit();
        }
    }
    for peer in &mut peers {
        peer.kill().unwrap();
        peer.wait().unwrap();
    }
    worker.store.sweep().unwrap();
    (1..=PEERS).for_each(|id| worker.check(id));
    worker.audit();
    // A page is lost if a thread dies between two particular stores, which is rare.
    let free = worker.check_space(count / 50);
    assert!(free > 0, "no page was freed");
}

fn asked(usual: u64) -> u64 {
    std::env::var("LATCHWORK_STORE_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

/// A process that only pushes and pops dies at each of many consecutive records, including a split
/// and the unlinking of a leaf. No page is lost, and none belongs to two tables.
#[test]
fn a_death_at_each_record_of_a_queue_loses_no_page() {
    let place = Place::new("queue");
    let worker = Worker::new(&place, 0);
    worker.fill();
    let steps = ["append: end", "change.begun"];
    for (nth, step) in (100..100 + asked(70).min(2000) as u32).flat_map(|n| steps.map(|s| (n, s))) {
        let mut victim = start(&place, 1 + crate::QUEUES, step, nth);
        assert_eq!(victim.wait().unwrap().code(), None, "the victim was not killed, it failed");
        worker.store.sweep().unwrap();
        worker.check(1);
        worker.audit();
        worker.check_space(0);
    }
    assert!(worker.check_space(0) > 0, "no page was freed");
}

#[test]
fn random_kills_block_no_other() {
    kills(asked(5_000));
}

#[test]
#[ignore = "long: 100,000 kills, 25 minutes"]
fn random_kills_block_no_other_long() {
    kills(asked(100_000));
}

#[test]
fn pages_are_reused_despite_random_kills() {
    crate::pages::kills(asked(40));
}

/// All processes die at once and the machine continues: the next process continues the store.
#[test]
fn all_die_at_once() {
    let place = Place::new("all");
    let worker = Worker::new(&place, 0);
    worker.fill();
    // The last process to end would close the store, so this handle is leaked.
    std::mem::forget(worker);
    for _ in 0..asked(10).min(1000) {
        let mut peers: Vec<_> = (1..=PEERS).map(|id| start(&place, id, "", 0)).collect();
        std::thread::sleep(Duration::from_millis(60));
        peers.iter_mut().for_each(|peer| peer.kill().unwrap());
        peers.iter_mut().for_each(|peer| _ = peer.wait().unwrap());
        let worker = Worker::new(&place, 9);
        worker.store.sweep().unwrap();
        (1..=PEERS).for_each(|id| worker.check(id));
        worker.audit();
        worker.store.verify().unwrap();
    }
}

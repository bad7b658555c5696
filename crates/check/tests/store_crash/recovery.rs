//! A process is killed during recovery, and another one during the recovery after that.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::kills::steps;
use crate::work::{DURABLE, Worker};
use crate::{Place, Started, start};

const PEERS: u64 = 3;

/// Waits until a process has died at its step, or has acknowledged a transaction: then recovery did
/// not reach the step, and the process is killed. Returns whether it died at the step.
fn dies(mut victim: Started, answered: &dyn Fn() -> u64) -> bool {
    let (before, begun) = (answered(), Instant::now());
    loop {
        if let Some(ended) = victim.try_wait().unwrap() {
            assert_eq!(ended.code(), None, "the victim was not killed, it failed");
            return true;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "recovery does not end");
        if answered() > before {
            victim.kill().unwrap();
            victim.wait().unwrap();
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Processes write and are killed, and their memory is lost, as in a crash of the machine. A
/// process recovers and dies at a step; another one recovers and dies at a later step; a third one
/// finds all durable commits and no incomplete transaction.
#[test]
fn recovery_is_killed_twice() {
    let place = Place::new("recovery");
    Worker::new(&place, 0).fill();
    let (mut reached, mut deaths) = (BTreeSet::new(), 0);
    let steps = steps();
    for (number, step) in steps.iter().enumerate() {
        let durable = || (1..=PEERS).map(|id| Worker::told(&place, DURABLE + id)).sum::<u64>();
        let (before, begun) = (durable(), Instant::now());
        let mut peers: Vec<_> = (1..=PEERS).map(|id| start(&place, id, "", 0)).collect();
        std::thread::sleep(Duration::from_millis(80));
        // On a slow machine the processes may not have committed anything yet.
        while durable() == before {
            assert!(begun.elapsed() < Duration::from_secs(60), "no process commits");
            std::thread::sleep(Duration::from_millis(1));
        }
        peers.iter_mut().for_each(|peer| peer.kill().unwrap());
        peers.iter_mut().for_each(|peer| _ = peer.wait().unwrap());
        place.discard_shared_memory();
        let id = 4 + number as u64 % 2;
        let answered = || Worker::told(&place, id);
        for (step, nth) in [(step, 1), (&steps[(number * 7 + 3) % steps.len()], 4)] {
            if dies(start(&place, id, step, nth), &answered) {
                reached.insert(&step[..]);
                deaths += 1;
            }
            place.discard_shared_memory();
        }
        let worker = Worker::new(&place, 9);
        (1..=PEERS).for_each(|id| worker.check_after_crash(id));
        worker.audit();
        worker.store.verify().unwrap();
        worker.check_space(0);
    }
    println!("{deaths} deaths in recovery or soon after, at {} steps: {reached:?}", reached.len());
    for step in ["maker: claimed", "control: written", "change.begun", "append: end"] {
        assert!(reached.contains(step), "{step} was not reached");
    }
}

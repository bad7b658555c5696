//! How long a process waits in an append while another process is stopped (SIGSTOP): prints figures
//! and asserts nothing about time.

use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use latchwork_check::random::Random;

use crate::kills::{STEPS, is_stopped, resume};
use crate::work::Worker;
use crate::{Place, start};

/// How long a process stays stopped.
const STOPPED: Duration = Duration::from_millis(200);
/// A longer wait counts as one for the stopped process.
const LONG: Duration = Duration::from_millis(50);

/// Appends until `over`, and returns the longest time of an append.
fn longest(worker: &Worker, over: &AtomicBool) -> Duration {
    let mut longest = Duration::ZERO;
    while !over.load(Relaxed) {
        let began = Instant::now();
        worker.append();
        longest = longest.max(began.elapsed());
    }
    longest
}

fn end(mut process: Child) {
    process.kill().unwrap();
    process.wait().unwrap();
}

/// Stops a process at a step for a while. Returns this process's longest append.
fn while_stopped_at(step: &str) -> Duration {
    let place = Place::new("pause");
    let worker = Worker::new(&place);
    let process = start(&place, &format!("stop at {step}"), 3, 1 << 40);
    let over = AtomicBool::new(false);
    let longest = scope(|scope| {
        scope.spawn(|| {
            while !is_stopped(&process) {
                std::thread::yield_now();
            }
            sleep(STOPPED);
            resume(&process);
            over.store(true, Relaxed);
        });
        longest(&worker, &over)
    });
    end(process);
    longest
}

#[test]
#[ignore = "long: prints how long others wait"]
fn pauses_while_a_process_is_stopped_at_each_step() {
    println!(
        "a process stops for {STOPPED:?}, 20 times at each step; the longest append of another"
    );
    for step in STEPS.iter().filter(|step| step.starts_with("append: ")) {
        let mut all: Vec<_> = (0..20).map(|_| while_stopped_at(step)).collect();
        all.sort();
        println!("{step:18} median {:>8.1?}, longest {:>8.1?}", all[10], all[19]);
    }
}

#[test]
#[ignore = "long: prints how often a stop makes others wait"]
fn pauses_while_a_process_is_stopped_at_random() {
    let (place, mut random, mut hits) = (Place::new("random-stop"), Random(11), 0);
    let worker = Worker::new(&place);
    let process = start(&place, "", 0, 1 << 40);
    let times = 1000;
    for _ in 0..times {
        let over = AtomicBool::new(false);
        let pause = Duration::from_micros(random.below(3000));
        scope(|scope| {
            scope.spawn(|| {
                sleep(pause);
                // SAFETY: signals a child process that has not been waited for.
                assert_eq!(unsafe { libc::kill(process.id() as i32, libc::SIGSTOP) }, 0);
                sleep(LONG * 3 / 2);
                resume(&process);
                over.store(true, Relaxed);
            });
            hits += u32::from(longest(&worker, &over) > LONG);
        });
    }
    end(process);
    println!("{hits} of {times} stops at random made another process wait longer than {LONG:?}");
}

//! Processes that are stopped (`SIGSTOP`) and continued: a stopped process is not treated as dead.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use crate::kills::steps;
use crate::work::Worker;
use crate::{Place, start_with};

/// How long a process is stopped: longer than a waiter waits before it checks whether the holder is
/// alive.
const STOPPED: Duration = Duration::from_millis(40);

/// Returns whether a child process is stopped.
fn is_stopped(id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
}

/// Waits until the process is stopped or `over` is set; then sends the signal after a while.
/// Returns whether the process was stopped.
fn go_on(id: u32, signal: i32, over: &AtomicBool) -> bool {
    while !is_stopped(id) {
        if over.load(Relaxed) {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(STOPPED);
    // SAFETY: a child process that is not waited for before this returns.
    unsafe { libc::kill(id as i32, signal) };
    true
}

/// One of several processes stops at each step with whatever it holds there. Others wait for it. It
/// continues and completes, or, at every second step, it is killed while it is stopped.
#[test]
fn a_stop_at_each_step_loses_nothing() {
    let place = Place::new("stops");
    let mut worker = Worker::new(&place, 0);
    worker.fill();
    let (mut reached, steps) = (Vec::new(), steps());
    for (number, step) in steps.iter().enumerate() {
        for killed in [number % 2 == 0, number % 2 != 0] {
            let mut victim = start_with(&place, 1, step, 3, libc::SIGSTOP);
            let (id, over) = (victim.id(), AtomicBool::new(false));
            let signal = if killed { libc::SIGKILL } else { libc::SIGCONT };
            let enough = worker.answered(1) + 60;
            let stopped = thread::scope(|scope| {
                let waits = scope.spawn(|| go_on(id, signal, &over));
                while worker.answered(1) < enough && !(killed && waits.is_finished()) {
                    worker.round();
                    if victim.try_wait().unwrap().is_some() {
                        break;
                    }
                }
                over.store(true, Relaxed);
                waits.join().unwrap()
            });
            if !(stopped && killed) {
                assert_eq!(victim.try_wait().unwrap(), None, "{step}: the process has ended");
                assert!(worker.answered(1) >= enough, "{step}: it does not continue");
                victim.kill().unwrap();
            }
            victim.wait().unwrap();
            if stopped {
                reached.push(&step[..]);
            }
            worker.audit();
            worker.store.sweep().unwrap();
            worker.check(1);
        }
    }
    worker.store.verify().unwrap();
    println!("{} stops at {} steps: {reached:?}", reached.len(), steps.len());
    for step in ["append: copied", "append: end", "change.intended", "change.begun", "change.done"]
    {
        assert!(reached.contains(&step), "{step} was not reached");
    }
}

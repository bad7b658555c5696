//! Processes that kill themselves at a step that they were told, threads that stop at one, and which
//! steps a workload has.

#![allow(dead_code, reason = "each test uses a part")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};

use latchwork_lockmgr::set_point_hook;

static TOLD: Mutex<Option<(String, u32)>> = Mutex::new(None);
static SEEN: Mutex<BTreeMap<&'static str, u32>> = Mutex::new(BTreeMap::new());
static PASSED: AtomicU32 = AtomicU32::new(0);
static STOPPED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread's steps count: other tests of this process come to steps, too.
    static COUNTS: Cell<bool> = const { Cell::new(false) };
    static STOPS_AT: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// What is to be done at each step, by those who were told.
fn at_step(step: &'static str) {
    if COUNTS.get() {
        *SEEN.lock().unwrap().entry(step).or_default() += 1;
    }
    if STOPS_AT.get() == Some(step) {
        STOPS_AT.set(None);
        STOPPED.store(true, Release);
        while STOPPED.load(Acquire) {
            std::thread::yield_now();
        }
    }
    let told = TOLD.lock().unwrap();
    if let Some((name, nth)) = &*told
        && name == step
        && PASSED.fetch_add(1, Relaxed) + 1 == *nth
    {
        let me = std::process::id() as i32;
        // SAFETY: signals this very process.
        unsafe { libc::kill(me, libc::SIGKILL) };
    }
}

/// Has this process killed, the `nth` time that it comes to a step.
pub(crate) fn die_at(step: &str, nth: u32) {
    *TOLD.lock().unwrap() = Some((step.to_owned(), nth));
    set_point_hook(at_step);
}

/// Has this thread stop, the next time that it comes to a step, until [`go_on`].
pub(crate) fn stop_at(step: &'static str) {
    STOPS_AT.set(Some(step));
    set_point_hook(at_step);
}

/// Waits until a thread has stopped.
pub(crate) fn until_stopped() {
    while !STOPPED.load(Acquire) {
        std::thread::yield_now();
    }
}

/// Lets the thread that has stopped go on.
pub(crate) fn go_on() {
    STOPPED.store(false, Release);
}

/// Has the steps of this thread counted from now on.
pub(crate) fn count_mine() {
    set_point_hook(at_step);
    COUNTS.set(true);
}

/// How often each step was come to by threads that count.
pub(crate) fn seen() -> BTreeMap<&'static str, u32> {
    SEEN.lock().unwrap().clone()
}

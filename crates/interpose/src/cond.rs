//! Condition variables: a list of waiters in the object's first 4 bytes.
//!
//! The waits are in `wait.c`, because they are cancellation points. This file has their steps and
//! all other functions. Two objects determine which library serves a wait:
//!
//! | condition variable | mutex | served by |
//! |---|---|---|
//! | private | any | ours; the mutex is released and locked again by its own kind |
//! | process-shared | glibc's (process-shared, robust, ..) | glibc |
//! | process-shared | ours | glibc, with a mutex of its own: the gate |
//!
//! glibc on x86-64 has two versions of each of these functions: `GLIBC_2.3.2`, and `GLIBC_2.2.5`
//! for programs linked before 2003. Our symbols have no version and serve both: the old object has
//! 48 bytes, all zero at first, like the new one.
//!
//! # After a fork
//!
//! Threads inside a wait are counted, and `destroy` waits until they have left. The child of a fork
//! inherits counts of threads that it does not have, in objects that cannot be found. So a count
//! contains the generation of the process that counts: a static initialiser writes zero, the
//! generation of a process that was not created by a fork without `exec`. A wait restarts a count
//! of another generation, and a thread that entered under another generation does not decrement the
//! count.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32};
use core::time::Duration;

use libc::{c_int, clockid_t, pthread_cond_t, pthread_condattr_t, timespec};

use latchwork_latch::{Outcome, Ticket};
use latchwork_machine::{Deadline, Machine, Native};

use crate::abi::{COND_MONOTONIC, COND_SHARED, Cond, Mutex};
use crate::mode::{self, GLIBC};
use crate::record::Caller;
use crate::{mutex, real};

unsafe extern "C" {
    pub(crate) fn latchwork_cond_wait(
        cond: *mut pthread_cond_t,
        mutex: *mut libc::pthread_mutex_t,
    ) -> c_int;
    pub(crate) fn latchwork_cond_timedwait(
        cond: *mut pthread_cond_t,
        mutex: *mut libc::pthread_mutex_t,
        at: *const timespec,
    ) -> c_int;
    pub(crate) fn latchwork_cond_clockwait(
        cond: *mut pthread_cond_t,
        mutex: *mut libc::pthread_mutex_t,
        clock: clockid_t,
        at: *const timespec,
    ) -> c_int;
}

/// State of a wait, on the stack of `wait.c`.
#[repr(C)]
struct Wait {
    cond: *const Cond,
    mutex: *const Mutex,
    caller: Caller,
    count: u32,
    /// The generation that counts this thread.
    generation: u32,
    ticket: Option<Ticket>,
}

const _: () = assert!(size_of::<Wait>() <= 64 && align_of::<Wait>() <= 8);

/// Whether glibc serves the condition variable: the same word decides for every function.
#[inline]
fn is_glibc(cond: &Cond) -> bool {
    // Relaxed: a thread that may use the object has seen it initialised.
    cond.flags.load(Relaxed) & COND_SHARED != 0 || mode::mode() & GLIBC != 0
}

/// Returns which library serves a wait: 0 ours, 1 glibc, 2 glibc with the gate.
#[unsafe(no_mangle)]
extern "C" fn latchwork_cond_route(cond: &Cond, mutex: &Mutex) -> c_int {
    match (is_glibc(cond), mutex::is_passed_through(mutex)) {
        (false, _) => 0,
        (true, true) => 1,
        (true, false) => 2,
    }
}

/// Returns the clock that a condition variable was initialised with.
#[unsafe(no_mangle)]
extern "C" fn latchwork_cond_clock(cond: &Cond) -> clockid_t {
    let monotonic = cond.flags.load(Relaxed) & COND_MONOTONIC != 0;
    if monotonic { libc::CLOCK_MONOTONIC } else { libc::CLOCK_REALTIME }
}

/// Enters the list of waiters, then releases the mutex.
#[unsafe(no_mangle)]
unsafe extern "C" fn latchwork_wait_begin(
    wait: *mut Wait,
    cond: &Cond,
    mutex: *const Mutex,
    caller: &Caller,
) -> c_int {
    let generation = enter(cond);
    let ticket = cond.waiters.enqueue();
    // SAFETY: POSIX requires the caller of a wait to hold the mutex.
    match unsafe { mutex::release_all(mutex) } {
        Ok(count) => {
            let (caller, ticket) = (*caller, Some(ticket));
            let begun = Wait { cond, mutex, caller, count, generation, ticket };
            // SAFETY: `wait.c` gives a place of 64 bytes, as asserted above.
            unsafe { wait.write(begun) };
            0
        }
        Err(error) => {
            leave(cond, generation, Some(ticket));
            error
        }
    }
}

/// The number of forks without `exec` between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// In the child of a fork: makes the counts in all objects outdated.
pub(crate) fn forked() {
    // Relaxed: there is one thread.
    GENERATION.fetch_add(1, Relaxed);
}

/// Returns the generation of a count, and the count.
fn halves(users: u64) -> (u32, u32) {
    ((users >> 32) as u32, users as u32)
}

/// Counts this thread in; returns the generation that counts it.
fn enter(cond: &Cond) -> u32 {
    // Relaxed: it was set before a second thread started.
    let now = GENERATION.load(Relaxed);
    let entered = |users| match halves(users) {
        (generation, _) if generation == now => Some(users + 1),
        // The counted threads stayed with the parent.
        _ => Some(u64::from(now) << 32 | 1),
    };
    // Relaxed: a thread that destroys the object has seen, by the mutex or otherwise, that the wait
    // began.
    let _ = cond.users.fetch_update(Relaxed, Relaxed, entered);
    now
}

/// Leaves the list, passes on a signal that was meant for this thread, and stops using the object.
fn leave(cond: &Cond, generation: u32, ticket: Option<Ticket>) {
    if ticket.is_some_and(|ticket| cond.waiters.cancel(ticket)) {
        cond.waiters.notify_one();
    }
    // A signal handler may have forked while this thread slept.
    let left = |users| (halves(users).0 == generation).then(|| users - 1);
    // Release: this thread's accesses to the object come before its end, in `destroy`.
    let _ = cond.users.fetch_update(Release, Relaxed, left);
}

/// Returns the word to sleep on and stores its expected value; null when there is nothing to wait
/// for.
#[unsafe(no_mangle)]
extern "C" fn latchwork_wait_word(wait: &Wait, expected: &mut u32) -> *const u32 {
    let Some(ticket) = &wait.ticket else { return core::ptr::null() };
    // SAFETY: this thread is counted in `users`, and `destroy` waits for it.
    let waiters = unsafe { &(*wait.cond).waiters };
    match waiters.sleep_word(ticket) {
        Some((word, value)) => {
            *expected = value;
            word.as_ptr()
        }
        None => core::ptr::null(),
    }
}

/// Leaves the list and locks the mutex again. Returns zero if signalled, -1 if not, otherwise an
/// error.
#[unsafe(no_mangle)]
extern "C" fn latchwork_wait_end(wait: &mut Wait) -> c_int {
    // SAFETY: as in `latchwork_wait_word`.
    let cond = unsafe { &*wait.cond };
    let outcome = wait.ticket.take().map(|ticket| cond.waiters.finish(ticket));
    leave(cond, wait.generation, None);
    // SAFETY: a mutex that a thread waits to lock again is not destroyed.
    let relocked = mutex::reacquire(unsafe { &*wait.mutex }, wait.count, wait.caller);
    match (relocked, outcome) {
        (0, Some(Outcome::GaveUp)) => -1,
        (relocked, _) => relocked,
    }
}

/// `latchwork_wait_end` for a thread that is being unwound.
#[unsafe(no_mangle)]
extern "C" fn latchwork_wait_cancelled(wait: &mut Wait) {
    // SAFETY: as in `latchwork_wait_word`.
    leave(unsafe { &*wait.cond }, wait.generation, wait.ticket.take());
    // SAFETY: as in `latchwork_wait_end`.
    mutex::reacquire(unsafe { &*wait.mutex }, wait.count, wait.caller);
}

/// Wakes one waiter.
pub(crate) extern "C" fn signal(cond: &Cond) -> c_int {
    if is_glibc(cond) {
        // SAFETY: the C library's object.
        return through_gate(|| unsafe { real::cond_signal((&raw const *cond).cast_mut().cast()) });
    }
    cond.waiters.notify_one();
    0
}

/// Wakes all waiters.
pub(crate) extern "C" fn broadcast(cond: &Cond) -> c_int {
    if is_glibc(cond) {
        // SAFETY: the C library's object.
        return through_gate(|| unsafe {
            real::cond_broadcast((&raw const *cond).cast_mut().cast())
        });
    }
    cond.waiters.notify_all();
    0
}

/// Initialises a condition variable.
pub(crate) unsafe extern "C" fn init(cond: *mut Cond, attr: *const pthread_condattr_t) -> c_int {
    let (mut clock, mut shared) = (libc::CLOCK_REALTIME, 0);
    if !attr.is_null() {
        // SAFETY: POSIX requires an initialised attribute; this only reads it.
        unsafe { libc::pthread_condattr_getclock(attr, &mut clock) };
        // SAFETY: as above.
        unsafe { libc::pthread_condattr_getpshared(attr, &mut shared) };
    }
    if shared != libc::PTHREAD_PROCESS_PRIVATE || mode::mode() & GLIBC != 0 {
        // SAFETY: POSIX makes the caller promise this.
        return unsafe { real::cond_init(cond.cast(), attr) };
    }
    let flags = if clock == libc::CLOCK_MONOTONIC { COND_MONOTONIC } else { 0 };
    // SAFETY: POSIX requires the bytes of an object; zero is an object without waiters.
    unsafe { cond.cast::<pthread_cond_t>().write_bytes(0, 1) };
    // SAFETY: as above.
    unsafe { (*cond).flags.store(flags, Relaxed) };
    0
}

/// Destroys a condition variable. Like glibc, waits for threads that are about to leave it.
///
/// These include a waiter that was woken, because it may be cancelled before it has left and then
/// passes the signal on (`crates/check/models` describes the fault without this).
pub(crate) extern "C" fn destroy(cond: &Cond) -> c_int {
    if is_glibc(cond) {
        // SAFETY: the C library's object.
        return unsafe { real::cond_destroy((&raw const *cond).cast_mut().cast()) };
    }
    for round in 0u32.. {
        // Acquire: synchronizes with the Release in `leave`.
        let (generation, users) = halves(cond.users.load(Acquire));
        // Relaxed: as in `enter`.
        if generation != GENERATION.load(Relaxed) {
            // Threads of the parent will not leave; locking the list removes them.
            cond.waiters.notify_all();
            break;
        }
        if users == 0 {
            break;
        }
        if round < YIELDS {
            Native::yield_now();
        } else {
            // A leaving thread wakes no thread, because it would access an object that may no
            // longer exist.
            Native::wait(&AtomicU32::new(0), 0, Some(Deadline::after::<Native>(NAP)));
        }
    }
    0
}

/// How often `destroy` yields before it naps, and the length of a nap.
const YIELDS: u32 = 100;
const NAP: Duration = Duration::from_micros(100);

/// A mutex of glibc for its waits with a mutex of ours. All such waits share it.
struct Gate(core::cell::UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: it is a mutex, used only by its own functions.
unsafe impl Sync for Gate {}

static GATE: Gate = Gate(core::cell::UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));

/// Whether such a wait ever occurred.
static GATED: AtomicBool = AtomicBool::new(false);

/// Signals after the threads that are about to wait with a mutex of ours.
fn through_gate(signal: impl FnOnce() -> c_int) -> c_int {
    // Relaxed: a waiter sets it while it holds the mutex that guards the condition. A thread that
    // signals after changing the condition has held that mutex later and sees it; the waiter has
    // seen an earlier change.
    if !GATED.load(Relaxed) {
        return signal();
    }
    latchwork_gate_close();
    let result = signal();
    latchwork_gate_open();
    result
}

#[unsafe(no_mangle)]
extern "C" fn latchwork_gate_close() -> *mut libc::pthread_mutex_t {
    GATED.store(true, Relaxed);
    // SAFETY: an initialised mutex.
    unsafe { real::mutex_lock(GATE.0.get()) };
    GATE.0.get()
}

#[unsafe(no_mangle)]
extern "C" fn latchwork_gate_open() {
    // SAFETY: the caller closed the gate.
    unsafe { real::mutex_unlock(GATE.0.get()) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn latchwork_mutex_release(mutex: *const Mutex, count: &mut u32) -> c_int {
    // SAFETY: POSIX requires the caller of a wait to hold the mutex.
    match unsafe { mutex::release_all(mutex) } {
        Ok(held) => {
            *count = held;
            0
        }
        Err(error) => error,
    }
}

#[unsafe(no_mangle)]
extern "C" fn latchwork_mutex_reacquire(mutex: &Mutex, count: u32, caller: &Caller) -> c_int {
    mutex::reacquire(mutex, count, *caller)
}

//! Mutexes: normal, adaptive, recursive and error-checking ones on a latch in their first bytes.
//!
//! | kind | lock again | unlock by another thread | counted |
//! |---|---|---|---|
//! | normal, adaptive | waits for ever, as POSIX says | works, as in other libraries | no |
//! | recursive | counts; `EAGAIN` at 2^32 - 1 | `EPERM` | yes |
//! | error-checking | `EDEADLK`; `EBUSY` from trylock | `EPERM` | yes |
//! | robust, priority-inheriting or -protected, process-shared | glibc's | glibc's | glibc's |
//!
//! The next holder may destroy, free or unmap a mutex as soon as it is free, so every release is
//! the latch's detached one.

use core::sync::atomic::Ordering::Relaxed;

use libc::{EAGAIN, EBUSY, EDEADLK, EINVAL, EPERM, c_int, clockid_t, timespec};

use latchwork_machine::{Clock, Deadline};

use crate::abi::{DESTROYED, ERRORCHECK, Latch, Mutex, RECURSIVE, SPECIAL, SpinLatch, TYPE};
use crate::mode::{self, GLIBC, LW, PROFILE, SPIN};
use crate::record::{self, Caller, Class};
use crate::{real, thread, time};

/// How long a caller waits.
#[derive(Clone, Copy)]
enum Patience {
    Endless,
    None,
    Until(clockid_t, Clock, *const timespec),
}

/// Locks a free latch with a load and a store, in a process with one thread.
#[inline(always)]
fn take_alone(latch: &Latch) -> bool {
    // SAFETY: this is the only thread, and no other starts before it continues.
    thread::alone() && unsafe { latch.try_lock_alone() }
}

/// Releases a latch with a store, in a process with one thread.
#[inline(always)]
fn release_alone(latch: &Latch) -> bool {
    // SAFETY: as in `take_alone`; the callers hold the latch.
    thread::alone() && unsafe { latch.unlock_alone() }
}

/// Locks an ordinary mutex.
#[inline]
pub(crate) extern "C" fn lock_plain(mutex: &Mutex) -> c_int {
    if !take_alone(&mutex.latch) {
        mutex.latch.lock();
    }
    0
}

/// Tries to lock an ordinary mutex.
pub(crate) extern "C" fn trylock_plain(mutex: &Mutex) -> c_int {
    let taken = take_alone(&mutex.latch) || mutex.latch.try_lock();
    if taken { 0 } else { EBUSY }
}

/// Unlocks an ordinary mutex.
#[inline]
pub(crate) extern "C" fn unlock_plain(mutex: *const Mutex) -> c_int {
    // SAFETY: the caller holds the mutex, so it exists.
    let latch = unsafe { &raw const (*mutex).latch };
    // SAFETY: as above; and if this thread is alone, no other thread can free it.
    if !release_alone(unsafe { &*latch }) {
        // SAFETY: the caller holds the mutex.
        unsafe { Latch::unlock_detached(latch) };
    }
    0
}

/// Locks any mutex. Slow paths are jumps, so that this needs no frame.
pub(crate) extern "C" fn lock(mutex: &Mutex, caller: usize, sp: usize, fp: usize) -> c_int {
    // Relaxed: a thread that may lock a mutex has seen it initialised.
    let kind = mutex.kind.load(Relaxed);
    if mode::mode() != 0 || kind & SPECIAL != 0 {
        return lock_chosen(mutex, caller, sp, fp);
    }
    let me = if asks_who(kind) { thread::known_number() } else { u32::MAX };
    // Relaxed: it is this thread's number only if this thread stored it.
    if me == 0 || mutex.owner.load(Relaxed) == me {
        return lock_chosen(mutex, caller, sp, fp);
    }
    if !(take_alone(&mutex.latch) || mutex.latch.try_lock()) {
        return lock_chosen(mutex, caller, sp, fp);
    }
    if asks_who(kind) {
        mutex.owner.store(me, Relaxed);
        mutex.count.store(1, Relaxed);
    }
    0
}

/// Locks a mutex according to the mode, its kind and its holder.
#[cold]
#[inline(never)]
extern "C" fn lock_chosen(mutex: &Mutex, caller: usize, sp: usize, fp: usize) -> c_int {
    acquire(mutex, Patience::Endless, Caller { address: caller, sp, fp })
}

/// Tries to lock any mutex.
pub(crate) extern "C" fn trylock(mutex: &Mutex, caller: usize, sp: usize, fp: usize) -> c_int {
    acquire(mutex, Patience::None, Caller { address: caller, sp, fp })
}

/// Locks any mutex, or gives up at an instant of wall-clock time.
pub(crate) extern "C" fn timedlock(
    mutex: &Mutex,
    at: *const timespec,
    caller: usize,
    sp: usize,
    fp: usize,
) -> c_int {
    let patience = Patience::Until(libc::CLOCK_REALTIME, Clock::Realtime, at);
    acquire(mutex, patience, Caller { address: caller, sp, fp })
}

/// Locks any mutex, or gives up at an instant of a clock.
pub(crate) extern "C" fn clocklock(
    mutex: &Mutex,
    clock: clockid_t,
    at: *const timespec,
    caller: usize,
    sp: usize,
    fp: usize,
) -> c_int {
    match time::clock(clock) {
        Ok(known) => {
            let patience = Patience::Until(clock, known, at);
            acquire(mutex, patience, Caller { address: caller, sp, fp })
        }
        Err(error) => error,
    }
}

/// Unlocks any mutex. Slow paths are jumps, as in `lock`.
pub(crate) extern "C" fn unlock(mutex: *const Mutex, _caller: usize) -> c_int {
    // SAFETY: the caller holds the mutex, or its kind checks the holder: it exists.
    let held = unsafe { &*mutex };
    let kind = held.kind.load(Relaxed);
    if mode::mode() != 0 || kind & SPECIAL != 0 {
        return unlock_chosen(mutex);
    }
    if asks_who(kind) {
        if held.owner.load(Relaxed) != thread::known_number() || held.count.load(Relaxed) != 1 {
            return unlock_chosen(mutex);
        }
        // A free mutex has no owner; no thread's number is zero once it has locked.
        if held.owner.load(Relaxed) == 0 {
            return EPERM;
        }
        held.owner.store(0, Relaxed);
    }
    unlock_plain(mutex)
}

/// Unlocks a mutex according to the mode, its kind and its holder.
#[cold]
#[inline(never)]
extern "C" fn unlock_chosen(mutex: *const Mutex) -> c_int {
    let mode = mode::mode();
    // SAFETY: as in `unlock`.
    let held = unsafe { &*mutex };
    let kind = held.kind.load(Relaxed);
    if is_glibc(kind, mode) {
        // SAFETY: the C library's object, as its kind says.
        return unsafe { real::mutex_unlock(mutex.cast_mut().cast()) };
    }
    if asks_who(kind) {
        if held.owner.load(Relaxed) != thread::number() {
            return EPERM;
        }
        let count = held.count.load(Relaxed);
        if count > 1 {
            held.count.store(count - 1, Relaxed);
            return 0;
        }
        held.owner.store(0, Relaxed);
    }
    // SAFETY: the caller holds the mutex.
    unsafe { release(mutex, mode) };
    0
}

/// Whether a mutex of this kind checks its holder.
#[inline]
fn asks_who(kind: u32) -> bool {
    matches!(kind & TYPE, RECURSIVE | ERRORCHECK)
}

/// Whether glibc serves the mutex: the same word decides for every function.
#[inline]
fn is_glibc(kind: u32, mode: u32) -> bool {
    kind & SPECIAL != 0 || mode & GLIBC != 0
}

#[inline(never)]
fn acquire(mutex: &Mutex, patience: Patience, caller: Caller) -> c_int {
    let mode = mode::mode();
    // Relaxed: a thread that may lock a mutex has seen it initialised.
    let kind = mutex.kind.load(Relaxed);
    if is_glibc(kind, mode) {
        return acquire_glibc(mutex, patience, mode, caller);
    }
    let asks = asks_who(kind);
    // Relaxed: it is this thread's number only if this thread stored it.
    if asks && mutex.owner.load(Relaxed) == thread::number() {
        return acquire_again(mutex, kind, patience);
    }
    let result = acquire_latch(mutex, patience, mode, caller);
    if asks && result == 0 {
        mutex.owner.store(thread::number(), Relaxed);
        mutex.count.store(1, Relaxed);
    }
    result
}

/// The result of a lock if the caller already holds the mutex.
fn acquire_again(mutex: &Mutex, kind: u32, patience: Patience) -> c_int {
    if kind & TYPE == ERRORCHECK {
        return if matches!(patience, Patience::None) { EBUSY } else { EDEADLK };
    }
    let count = mutex.count.load(Relaxed);
    if count == u32::MAX {
        return EAGAIN;
    }
    mutex.count.store(count + 1, Relaxed);
    0
}

fn acquire_latch(mutex: &Mutex, patience: Patience, mode: u32, caller: Caller) -> c_int {
    if try_latch(mutex, mode) {
        record::at_once(mode, Class::Mutex, address(mutex), caller);
        return 0;
    }
    let deadline = match patience {
        Patience::None => {
            record::refused(mode, Class::Mutex, address(mutex), caller);
            return EBUSY;
        }
        Patience::Endless => None,
        // SAFETY: POSIX requires a `timespec`.
        Patience::Until(_, clock, at) => match unsafe { time::deadline(clock, at) } {
            Ok(deadline) => Some(deadline),
            Err(error) => return error,
        },
    };
    let wait = record::begin(mode, Class::Mutex, address(mutex), caller);
    let taken = wait_latch(mutex, mode, deadline);
    record::end(wait, Class::Mutex, address(mutex), caller, taken);
    if taken { 0 } else { libc::ETIMEDOUT }
}

fn try_latch(mutex: &Mutex, mode: u32) -> bool {
    match mode & (SPIN | LW) {
        SPIN => mutex.spin().try_lock(),
        LW => mutex.lw.try_lock_exclusive(),
        _ => mutex.latch.try_lock(),
    }
}

fn wait_latch(mutex: &Mutex, mode: u32, deadline: Option<Deadline>) -> bool {
    match (mode & (SPIN | LW), deadline) {
        (SPIN, None) => mutex.spin().lock(),
        (SPIN, Some(deadline)) => return mutex.spin().lock_until(deadline),
        (LW, None) => mutex.lw.lock_exclusive(),
        (LW, Some(deadline)) => return mutex.lw.lock_exclusive_until(deadline),
        (_, None) => mutex.latch.lock(),
        (_, Some(deadline)) => return mutex.latch.lock_until(deadline),
    }
    true
}

/// Releases the latch.
///
/// # Safety
///
/// The caller holds it.
unsafe fn release(mutex: *const Mutex, mode: u32) {
    // SAFETY: a held mutex exists. `SpinLatch` is `Latch` with another policy, see `abi.rs`.
    unsafe {
        match mode & (SPIN | LW) {
            SPIN => SpinLatch::unlock_detached((&raw const (*mutex).latch).cast()),
            // Unlocking a free mutex is undefined, but the other latches tolerate it.
            LW if !(*mutex).lw.is_locked_exclusive() => {}
            LW => (*mutex).lw.unlock_exclusive(),
            _ => Latch::unlock_detached(&raw const (*mutex).latch),
        }
    }
}

fn is_held(mutex: &Mutex, mode: u32) -> bool {
    if mode & LW != 0 { mutex.lw.is_locked() } else { mutex.latch.is_locked() }
}

fn acquire_glibc(mutex: &Mutex, patience: Patience, mode: u32, caller: Caller) -> c_int {
    let this = (&raw const *mutex).cast_mut().cast();
    if mode & PROFILE == 0 || matches!(patience, Patience::None) {
        // SAFETY: the C library's object, as its kind says, or all are.
        return unsafe { wait_glibc(this, patience) };
    }
    // SAFETY: as above.
    let result = unsafe { real::mutex_trylock(this) };
    if result != EBUSY {
        record::at_once(mode, Class::Mutex, address(mutex), caller);
        return result;
    }
    let wait = record::begin(mode, Class::Mutex, address(mutex), caller);
    // SAFETY: as above.
    let result = unsafe { wait_glibc(this, patience) };
    let taken = matches!(result, 0 | libc::EOWNERDEAD);
    record::end(wait, Class::Mutex, address(mutex), caller, taken);
    result
}

/// # Safety
///
/// The mutex is the C library's.
unsafe fn wait_glibc(mutex: *mut libc::pthread_mutex_t, patience: Patience) -> c_int {
    // SAFETY: the caller's promise is the same.
    unsafe {
        match patience {
            Patience::Endless => real::mutex_lock(mutex),
            Patience::None => real::mutex_trylock(mutex),
            Patience::Until(clock, _, at) => real::mutex_clocklock(mutex, clock, at),
        }
    }
}

fn address(mutex: &Mutex) -> usize {
    &raw const *mutex as usize
}

/// Releases a mutex for a wait, whatever its depth; returns the depth.
///
/// # Safety
///
/// The mutex is valid, and held by the caller unless its kind checks the holder.
pub(crate) unsafe fn release_all(mutex: *const Mutex) -> Result<u32, c_int> {
    // SAFETY: the caller's promise is the same.
    let held = unsafe { &*mutex };
    let (kind, mode) = (held.kind.load(Relaxed), mode::mode());
    let mut count = 1;
    if !is_glibc(kind, mode) && asks_who(kind) {
        if held.owner.load(Relaxed) != thread::number() {
            return Err(EPERM);
        }
        count = held.count.load(Relaxed);
        held.count.store(1, Relaxed);
    }
    match unlock(mutex, 0) {
        0 => Ok(count),
        error => Err(error),
    }
}

/// Locks a mutex again to its previous depth.
pub(crate) fn reacquire(mutex: &Mutex, count: u32, caller: Caller) -> c_int {
    let result = lock(mutex, caller.address, caller.sp, caller.fp);
    let kind = mutex.kind.load(Relaxed);
    if result == 0 && kind & (TYPE | SPECIAL) == RECURSIVE && !is_glibc(kind, mode::mode()) {
        mutex.count.store(count, Relaxed);
    }
    result
}

/// Whether glibc serves the mutex.
pub(crate) fn is_passed_through(mutex: &Mutex) -> bool {
    is_glibc(mutex.kind.load(Relaxed), mode::mode())
}

/// Initialises a mutex.
pub(crate) unsafe extern "C" fn init(
    mutex: *mut Mutex,
    attr: *const libc::pthread_mutexattr_t,
) -> c_int {
    // SAFETY: POSIX makes the caller promise this.
    let kind = if attr.is_null() { Some(0) } else { unsafe { kind_of(attr) } };
    match kind {
        Some(kind) if mode::mode() & GLIBC == 0 => {
            // SAFETY: POSIX requires the bytes of a mutex; zero is a free one.
            unsafe { mutex.cast::<libc::pthread_mutex_t>().write_bytes(0, 1) };
            // SAFETY: as above.
            unsafe { (*mutex).kind.store(kind, Relaxed) };
            0
        }
        // SAFETY: POSIX makes the caller promise this.
        _ => unsafe { real::mutex_init(mutex.cast(), attr) },
    }
}

/// Returns the kind that an attribute requests; none if glibc will serve the mutex.
///
/// # Safety
///
/// `attr` is an initialised attribute.
unsafe fn kind_of(attr: *const libc::pthread_mutexattr_t) -> Option<u32> {
    let (mut kind, mut shared, mut robust, mut protocol) = (0, 0, 0, 0);
    // SAFETY: the caller's promise is the same. These functions only read the attribute and store
    // to their second argument.
    unsafe {
        pthread_mutexattr_gettype(attr, &mut kind);
        pthread_mutexattr_getpshared(attr, &mut shared);
        pthread_mutexattr_getrobust(attr, &mut robust);
        pthread_mutexattr_getprotocol(attr, &mut protocol);
    }
    let ours = shared == libc::PTHREAD_PROCESS_PRIVATE
        && robust == libc::PTHREAD_MUTEX_STALLED
        && protocol == libc::PTHREAD_PRIO_NONE;
    ours.then_some(kind as u32 & TYPE)
}

unsafe extern "C" {
    fn pthread_mutexattr_gettype(attr: *const libc::pthread_mutexattr_t, kind: *mut c_int)
    -> c_int;
    fn pthread_mutexattr_getpshared(
        attr: *const libc::pthread_mutexattr_t,
        shared: *mut c_int,
    ) -> c_int;
    fn pthread_mutexattr_getrobust(
        attr: *const libc::pthread_mutexattr_t,
        robust: *mut c_int,
    ) -> c_int;
    fn pthread_mutexattr_getprotocol(
        attr: *const libc::pthread_mutexattr_t,
        protocol: *mut c_int,
    ) -> c_int;
}

/// Destroys a mutex: `EBUSY` if it is held.
pub(crate) extern "C" fn destroy(mutex: &Mutex) -> c_int {
    let mode = mode::mode();
    if is_glibc(mutex.kind.load(Relaxed), mode) {
        // SAFETY: the C library's object, as its kind says.
        return unsafe { real::mutex_destroy((&raw const *mutex).cast_mut().cast()) };
    }
    if is_held(mutex, mode) {
        return EBUSY;
    }
    mutex.kind.store(DESTROYED, Relaxed);
    0
}

/// Marks a robust mutex's data as consistent; other mutexes have no such state.
pub(crate) extern "C" fn consistent(mutex: &Mutex) -> c_int {
    if !is_glibc(mutex.kind.load(Relaxed), mode::mode()) {
        return EINVAL;
    }
    // SAFETY: the C library's object, as its kind says.
    unsafe { real::mutex_consistent((&raw const *mutex).cast_mut().cast()) }
}

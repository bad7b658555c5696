//! Reader-writer locks, on a latch in their first 16 bytes.
//!
//! A reader of the default kind may already hold the lock while a writer waits for it, so it passes
//! waiting writers; `PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP` waits behind them. The lock
//! remembers which thread writes: a writer that locks again gets `EDEADLK`, as from glibc, and one
//! function unlocks both modes. The number of readers is known, not their identities. glibc serves
//! process-shared locks; `shared` in the lock's own bytes marks them.

use core::sync::atomic::Ordering::Relaxed;

use libc::{EBUSY, EDEADLK, EINVAL, ETIMEDOUT, c_int, clockid_t, timespec};

use latchwork_latch::{Attempt, LwLatch, ReadersFirst, ShflRwLock, WritersFirst};
use latchwork_machine::{Clock, Deadline};

use crate::abi::{PREFER_WRITER, Rwlock};
use crate::mode::{self, GLIBC, LW, PROFILE};
use crate::record::{self, Caller, Class};
use crate::{real, thread, time};

/// How long a caller waits.
#[derive(Clone, Copy)]
enum Patience {
    Endless,
    None,
    Until(clockid_t, *const timespec),
}

/// The requested mode.
#[derive(Clone, Copy, PartialEq)]
enum Want {
    Read,
    Write,
}

impl Want {
    fn class(self) -> Class {
        match self {
            Self::Read => Class::Read,
            Self::Write => Class::Write,
        }
    }
}

/// Read-locks an ordinary lock.
pub(crate) extern "C" fn rdlock_plain(lock: &Rwlock) -> c_int {
    // Relaxed: it is this thread's number only if this thread stored it.
    let writer = lock.writer.load(Relaxed);
    if writer != 0 && writer == thread::number() {
        return EDEADLK;
    }
    if lock.flags.load(Relaxed) == PREFER_WRITER {
        lock.latch.lock_shared();
    } else {
        lock.latch.lock_shared_recursive();
    }
    0
}

/// Write-locks an ordinary lock.
pub(crate) extern "C" fn wrlock_plain(lock: &Rwlock) -> c_int {
    let me = thread::number();
    // Relaxed: as in `rdlock_plain`.
    if lock.writer.load(Relaxed) == me {
        return EDEADLK;
    }
    lock.latch.lock_exclusive();
    lock.writer.store(me, Relaxed);
    0
}

/// Unlocks an ordinary lock.
pub(crate) extern "C" fn unlock_plain(lock: *const Rwlock) -> c_int {
    // SAFETY: the caller holds the lock.
    unsafe { release(lock, 0) };
    0
}

/// Releases the latch, which the caller holds in either mode.
///
/// # Safety
///
/// The caller holds it.
unsafe fn release(lock: *const Rwlock, mode: u32) {
    // SAFETY: a held lock exists until the latch is released.
    let writer = unsafe { &(*lock).writer };
    // Relaxed: as in `rdlock_plain`; while readers hold the lock it is zero.
    let writes = writer.load(Relaxed) != 0;
    if writes {
        writer.store(0, Relaxed);
    }
    if mode & LW != 0 {
        // SAFETY: as above.
        let lock = unsafe { &*lock };
        if waits_behind_writers(lock) {
            release_lw(lock.lw::<WritersFirst>(), writes);
        } else {
            release_lw(lock.lw::<ReadersFirst>(), writes);
        }
        return;
    }
    // SAFETY: a held lock exists.
    let latch = unsafe { &raw const (*lock).latch };
    // SAFETY: as above. Unlocking a free lock is undefined, but tolerated: it has no effect.
    if !writes && !unsafe { (*latch).is_locked() } {
        return;
    }
    // SAFETY: the caller holds the latch in the mode that `writes` gives.
    unsafe {
        if writes {
            ShflRwLock::unlock_exclusive_detached(latch);
        } else {
            ShflRwLock::unlock_shared_detached(latch);
        }
    }
}

/// Releases the latch of `--latch lw`, unless it is free: unlocking a free lock is undefined, but
/// other latches tolerate it, and this one would count below zero.
fn release_lw<A: Attempt>(latch: &LwLatch<A>, writes: bool) {
    if writes && latch.is_locked_exclusive() {
        // SAFETY: it is held, and the caller claims to be the holder.
        unsafe { latch.unlock_exclusive() };
    } else if !writes && latch.is_locked() && !latch.is_locked_exclusive() {
        // SAFETY: a share is held, and the caller claims to hold it.
        unsafe { latch.unlock_shared() };
    }
}

/// Read-locks any lock.
pub(crate) extern "C" fn rdlock(lock: &Rwlock, caller: usize, sp: usize, fp: usize) -> c_int {
    acquire(lock, Want::Read, Patience::Endless, Caller { address: caller, sp, fp })
}

/// Write-locks any lock.
pub(crate) extern "C" fn wrlock(lock: &Rwlock, caller: usize, sp: usize, fp: usize) -> c_int {
    acquire(lock, Want::Write, Patience::Endless, Caller { address: caller, sp, fp })
}

/// Tries to read-lock any lock.
pub(crate) extern "C" fn tryrdlock(lock: &Rwlock, caller: usize, sp: usize, fp: usize) -> c_int {
    acquire(lock, Want::Read, Patience::None, Caller { address: caller, sp, fp })
}

/// Tries to write-lock any lock.
pub(crate) extern "C" fn trywrlock(lock: &Rwlock, caller: usize, sp: usize, fp: usize) -> c_int {
    acquire(lock, Want::Write, Patience::None, Caller { address: caller, sp, fp })
}

/// Read-locks any lock, or gives up at an instant of wall-clock time.
pub(crate) extern "C" fn timedrdlock(
    lock: &Rwlock,
    at: *const timespec,
    caller: usize,
    sp: usize,
    fp: usize,
) -> c_int {
    acquire(
        lock,
        Want::Read,
        Patience::Until(libc::CLOCK_REALTIME, at),
        Caller { address: caller, sp, fp },
    )
}

/// Write-locks any lock, or gives up at an instant of wall-clock time.
pub(crate) extern "C" fn timedwrlock(
    lock: &Rwlock,
    at: *const timespec,
    caller: usize,
    sp: usize,
    fp: usize,
) -> c_int {
    acquire(
        lock,
        Want::Write,
        Patience::Until(libc::CLOCK_REALTIME, at),
        Caller { address: caller, sp, fp },
    )
}

/// Read-locks any lock, or gives up at an instant of a clock.
pub(crate) extern "C" fn clockrdlock(
    lock: &Rwlock,
    clock: clockid_t,
    at: *const timespec,
    caller: usize,
    sp: usize,
    fp: usize,
) -> c_int {
    acquire(lock, Want::Read, Patience::Until(clock, at), Caller { address: caller, sp, fp })
}

/// Write-locks any lock, or gives up at an instant of a clock.
pub(crate) extern "C" fn clockwrlock(
    lock: &Rwlock,
    clock: clockid_t,
    at: *const timespec,
    caller: usize,
    sp: usize,
    fp: usize,
) -> c_int {
    acquire(lock, Want::Write, Patience::Until(clock, at), Caller { address: caller, sp, fp })
}

/// Unlocks any lock.
pub(crate) extern "C" fn unlock(lock: *const Rwlock, _caller: usize) -> c_int {
    let mode = mode::mode();
    // SAFETY: the caller holds the lock, so it exists.
    if is_glibc(unsafe { &*lock }, mode) {
        // SAFETY: the C library's object.
        return unsafe { real::rwlock_unlock(lock.cast_mut().cast()) };
    }
    // SAFETY: the caller holds the lock.
    unsafe { release(lock, mode) };
    0
}

/// Whether glibc serves the lock: the same word decides for every function.
#[inline]
fn is_glibc(lock: &Rwlock, mode: u32) -> bool {
    // Relaxed: a thread that may use a lock has seen it initialised.
    lock.shared.load(Relaxed) != 0 || mode & GLIBC != 0
}

fn address(lock: &Rwlock) -> usize {
    &raw const *lock as usize
}

fn acquire(lock: &Rwlock, want: Want, patience: Patience, caller: Caller) -> c_int {
    let mode = mode::mode();
    if is_glibc(lock, mode) {
        return acquire_glibc(lock, want, patience, mode, caller);
    }
    // As in glibc: an invalid time is an error even if the lock is free, and a past time is not.
    let deadline = match patience {
        Patience::Until(clock, at) => {
            // SAFETY: POSIX requires a `timespec`.
            match time::clock(clock).and_then(|clock| unsafe { time::deadline(clock, at) }) {
                Ok(deadline) => Some(deadline),
                Err(ETIMEDOUT) => Some(Deadline { clock: Clock::Monotonic, at: 0 }),
                Err(error) => return error,
            }
        }
        _ => None,
    };
    let me = thread::number();
    let patient = !matches!(patience, Patience::None);
    // Relaxed: as in `rdlock_plain`.
    if patient && lock.writer.load(Relaxed) == me {
        return EDEADLK;
    }
    let result = acquire_latch(lock, want, patient, deadline, mode, caller);
    if result == 0 && want == Want::Write {
        lock.writer.store(me, Relaxed);
    }
    result
}

fn acquire_latch(
    lock: &Rwlock,
    want: Want,
    patient: bool,
    deadline: Option<Deadline>,
    mode: u32,
    caller: Caller,
) -> c_int {
    if try_latch(lock, want, mode) {
        record::at_once(mode, want.class(), address(lock), caller);
        return 0;
    }
    if !patient {
        record::refused(mode, want.class(), address(lock), caller);
        return EBUSY;
    }
    let wait = record::begin(mode, want.class(), address(lock), caller);
    let taken = wait_latch(lock, want, mode, deadline);
    record::end(wait, want.class(), address(lock), caller, taken);
    if taken { 0 } else { ETIMEDOUT }
}

fn waits_behind_writers(lock: &Rwlock) -> bool {
    lock.flags.load(Relaxed) == PREFER_WRITER
}

fn try_latch(lock: &Rwlock, want: Want, mode: u32) -> bool {
    match (want, waits_behind_writers(lock)) {
        (_, true) if mode & LW != 0 => try_lw(lock.lw::<WritersFirst>(), want),
        (_, false) if mode & LW != 0 => try_lw(lock.lw::<ReadersFirst>(), want),
        (Want::Write, _) => lock.latch.try_lock_exclusive(),
        (Want::Read, true) => lock.latch.try_lock_shared(),
        (Want::Read, false) => lock.latch.try_lock_shared_recursive(),
    }
}

fn wait_latch(lock: &Rwlock, want: Want, mode: u32, deadline: Option<Deadline>) -> bool {
    if mode & LW != 0 {
        return match waits_behind_writers(lock) {
            true => wait_lw(lock.lw::<WritersFirst>(), want, deadline),
            false => wait_lw(lock.lw::<ReadersFirst>(), want, deadline),
        };
    }
    let latch = &lock.latch;
    match (want, deadline) {
        (Want::Write, None) => latch.lock_exclusive(),
        (Want::Write, Some(deadline)) => return latch.lock_exclusive_until(deadline),
        (Want::Read, None) if waits_behind_writers(lock) => latch.lock_shared(),
        (Want::Read, None) => latch.lock_shared_recursive(),
        (Want::Read, Some(deadline)) if waits_behind_writers(lock) => {
            return latch.lock_shared_until(deadline);
        }
        (Want::Read, Some(deadline)) => return latch.lock_shared_recursive_until(deadline),
    }
    true
}

fn try_lw<A: Attempt>(latch: &LwLatch<A>, want: Want) -> bool {
    match want {
        Want::Write => latch.try_lock_exclusive(),
        Want::Read => latch.try_lock_shared(),
    }
}

fn wait_lw<A: Attempt>(latch: &LwLatch<A>, want: Want, deadline: Option<Deadline>) -> bool {
    match (want, deadline) {
        (Want::Write, None) => latch.lock_exclusive(),
        (Want::Write, Some(deadline)) => return latch.lock_exclusive_until(deadline),
        (Want::Read, None) => latch.lock_shared(),
        (Want::Read, Some(deadline)) => return latch.lock_shared_until(deadline),
    }
    true
}

fn acquire_glibc(
    lock: &Rwlock,
    want: Want,
    patience: Patience,
    mode: u32,
    caller: Caller,
) -> c_int {
    let this = (&raw const *lock).cast_mut().cast();
    if mode & PROFILE == 0 || matches!(patience, Patience::None) {
        // SAFETY: the C library's object.
        return unsafe { wait_glibc(this, want, patience) };
    }
    // SAFETY: as above.
    let result = unsafe { wait_glibc(this, want, Patience::None) };
    if result != EBUSY {
        record::at_once(mode, want.class(), address(lock), caller);
        return result;
    }
    let wait = record::begin(mode, want.class(), address(lock), caller);
    // SAFETY: as above.
    let result = unsafe { wait_glibc(this, want, patience) };
    record::end(wait, want.class(), address(lock), caller, result == 0);
    result
}

/// # Safety
///
/// The lock is the C library's.
unsafe fn wait_glibc(lock: *mut libc::pthread_rwlock_t, want: Want, patience: Patience) -> c_int {
    // SAFETY: the caller's promise is the same.
    unsafe {
        match (want, patience) {
            (Want::Read, Patience::Endless) => real::rwlock_rdlock(lock),
            (Want::Write, Patience::Endless) => real::rwlock_wrlock(lock),
            (Want::Read, Patience::None) => real::rwlock_tryrdlock(lock),
            (Want::Write, Patience::None) => real::rwlock_trywrlock(lock),
            (Want::Read, Patience::Until(c, at)) => real::rwlock_clockrdlock(lock, c, at),
            (Want::Write, Patience::Until(c, at)) => real::rwlock_clockwrlock(lock, c, at),
        }
    }
}

/// Initialises a lock.
pub(crate) unsafe extern "C" fn init(
    lock: *mut Rwlock,
    attr: *const libc::pthread_rwlockattr_t,
) -> c_int {
    let (mut kind, mut shared) = (0, 0);
    if !attr.is_null() {
        // SAFETY: POSIX requires an initialised attribute; this only reads it.
        unsafe { pthread_rwlockattr_getkind_np(attr, &mut kind) };
        // SAFETY: as above.
        unsafe { libc::pthread_rwlockattr_getpshared(attr, &mut shared) };
    }
    if shared != libc::PTHREAD_PROCESS_PRIVATE || mode::mode() & GLIBC != 0 {
        // SAFETY: POSIX makes the caller promise this.
        return unsafe { real::rwlock_init(lock.cast(), attr) };
    }
    let Ok(kind) = u32::try_from(kind) else { return EINVAL };
    // SAFETY: POSIX requires the bytes of a lock; zero is a free one.
    unsafe { lock.cast::<libc::pthread_rwlock_t>().write_bytes(0, 1) };
    // SAFETY: as above.
    unsafe { (*lock).flags.store(kind, Relaxed) };
    0
}

unsafe extern "C" {
    fn pthread_rwlockattr_getkind_np(
        attr: *const libc::pthread_rwlockattr_t,
        kind: *mut c_int,
    ) -> c_int;
}

/// Destroys a lock; like in glibc, this has no effect.
pub(crate) extern "C" fn destroy(lock: &Rwlock) -> c_int {
    if is_glibc(lock, mode::mode()) {
        // SAFETY: the C library's object.
        return unsafe { real::rwlock_destroy((&raw const *lock).cast_mut().cast()) };
    }
    0
}

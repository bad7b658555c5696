//! Spin locks: four bytes, shared with other processes or not.
//!
//! Only `pthread_spin_init` learns whether other processes share the lock, and four bytes have no
//! room to record it. So the word has glibc's encoding on this machine, and a process without our
//! library may share it. Only the waiting differs: it reads before it exchanges, and after its
//! budget it yields the processor, because the holder may be waiting for it.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use libc::{EBUSY, c_int};

use latchwork_machine::{Machine, Native, Spin};

use crate::abi::spin_word::{FREE, HELD};
use crate::mode;
use crate::record::{self, Caller, Class};

/// Makes a lock free.
pub(crate) extern "C" fn init(lock: &AtomicU32, _shared: c_int) -> c_int {
    // Relaxed: a thread that may use a lock has seen it initialised.
    lock.store(FREE, Relaxed);
    0
}

/// Destroys a lock, which has no effect.
pub(crate) extern "C" fn destroy(_lock: &AtomicU32) -> c_int {
    0
}

/// Locks, waiting if necessary.
pub(crate) extern "C" fn lock(lock: &AtomicU32, caller: usize, sp: usize, fp: usize) -> c_int {
    if mode::mode() == 0 && take(lock) { 0 } else { lock_slow(lock, caller, sp, fp) }
}

#[cold]
#[inline(never)]
fn lock_slow(lock: &AtomicU32, caller: usize, sp: usize, fp: usize) -> c_int {
    let caller = Caller { address: caller, sp, fp };
    let mode = mode::mode();
    let address = &raw const *lock as usize;
    if take(lock) {
        record::at_once(mode, Class::Spin, address, caller);
        return 0;
    }
    let wait = record::begin(mode, Class::Spin, address, caller);
    let mut spin = Spin::<Native>::new(Native::SPIN_NS);
    loop {
        // glibc counts waiters down from HELD: any value other than FREE is held.
        if lock.load(Relaxed) == FREE && take(lock) {
            break;
        }
        if !spin.again() {
            Native::yield_now();
        }
    }
    record::end(wait, Class::Spin, address, caller, true);
    0
}

/// Locks unless it is held.
pub(crate) extern "C" fn trylock(lock: &AtomicU32, caller: usize, sp: usize, fp: usize) -> c_int {
    let (mode, address) = (mode::mode(), &raw const *lock as usize);
    let caller = Caller { address: caller, sp, fp };
    if take(lock) {
        record::at_once(mode, Class::Spin, address, caller);
        0
    } else {
        record::refused(mode, Class::Spin, address, caller);
        EBUSY
    }
}

/// Unlocks.
pub(crate) extern "C" fn unlock(lock: *const AtomicU32) -> c_int {
    // SAFETY: the caller holds the lock, so it exists. Release: synchronizes with the Acquire of
    // the next holder, in `take` or in glibc.
    unsafe { (*lock).store(FREE, Release) };
    0
}

#[inline]
fn take(lock: &AtomicU32) -> bool {
    // Acquire: synchronizes with the Release of the last holder.
    lock.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok()
}

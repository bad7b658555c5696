//! Spin locks: four bytes, whatever the process shares them with.
//!
//! Only `pthread_spin_init` is told whether other processes share the lock, and four bytes have
//! no room to remember it. So the word is glibc's own on this machine: a process without our
//! library may hold one end. What is ours is the waiting. It looks before it exchanges, and after
//! its budget it gives its processor away, for the holder may be waiting for just that.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use libc::{EBUSY, c_int};

use latchwork_machine::{Machine, Native, Spin};

use crate::abi::spin_word::{FREE, HELD};
use crate::mode;
use crate::record::{self, Caller, Class};

/// Makes a lock free.
pub(crate) extern "C" fn init(lock: &AtomicU32, _shared: c_int) -> c_int {
    // Relaxed: who may use a lock has seen it initialised.
    lock.store(FREE, Relaxed);
    0
}

/// Forgets a lock.
pub(crate) extern "C" fn destroy(_lock: &AtomicU32) -> c_int {
    0
}

/// Takes a lock.
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
        // glibc counts waiters down from HELD: whatever is not FREE is held.
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

/// Takes a lock unless it is held.
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

/// Releases a lock.
pub(crate) extern "C" fn unlock(lock: *const AtomicU32) -> c_int {
    // SAFETY: the caller holds the lock, so it is there. Release: synchronizes with the Acquire of
    // the next holder, in `take` or in glibc.
    unsafe { (*lock).store(FREE, Release) };
    0
}

#[inline]
fn take(lock: &AtomicU32) -> bool {
    // Acquire: synchronizes with the Release of the last holder.
    lock.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok()
}

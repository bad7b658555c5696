//! The choice of a latch: one static word, zero by default, set once before the program runs.
//!
//! Its bits lie above those of a mutex's kind, so `kind | MODE != 0` is the one question that the
//! path of an ordinary mutex asks.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Every object goes to the C library: what to compare with, and what a failed check falls back to.
pub(crate) const GLIBC: u32 = 1 << 12;
/// Somebody wants to know who waited for what.
pub(crate) const PROFILE: u32 = 1 << 13;
/// Mutexes are `ShflSpin`.
pub(crate) const SPIN: u32 = 1 << 14;
/// Mutexes and reader-writer locks are `LwLatch`.
pub(crate) const LW: u32 = 1 << 15;

/// The choice. Zero is `ShflMutex` and `ShflRwLock`, and no profile.
pub(crate) static MODE: AtomicU32 = AtomicU32::new(0);

/// The choice, read.
#[inline]
pub(crate) fn mode() -> u32 {
    // Relaxed: set by the first constructor of all, before there is a second thread.
    MODE.load(Relaxed)
}

/// The names of the latches, as `--latch` and `LATCHWORK_LATCH` take them.
pub(crate) fn by_name(name: &[u8]) -> Option<u32> {
    match name {
        b"" | b"shfl" => Some(0),
        b"shfl-spin" => Some(SPIN),
        b"lw" => Some(LW),
        b"glibc" => Some(GLIBC),
        _ => None,
    }
}

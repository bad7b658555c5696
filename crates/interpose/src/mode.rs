//! The choice of a latch: one static word, zero by default, set once before the program runs.
//!
//! Its bits lie above those of a mutex's kind, so the path of an ordinary mutex needs one test:
//! `kind | MODE != 0`.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// glibc serves every object: for comparison, and after a failed check.
pub(crate) const GLIBC: u32 = 1 << 12;
/// Acquisitions and waits are recorded.
pub(crate) const PROFILE: u32 = 1 << 13;
/// Mutexes are `ShflSpin`.
pub(crate) const SPIN: u32 = 1 << 14;
/// Mutexes and reader-writer locks are `LwLatch`.
pub(crate) const LW: u32 = 1 << 15;

/// The mode. Zero is `ShflMutex` and `ShflRwLock`, without a profile.
pub(crate) static MODE: AtomicU32 = AtomicU32::new(0);

/// Returns the mode.
#[inline]
pub(crate) fn mode() -> u32 {
    // Relaxed: set by the first constructor, before a second thread starts.
    MODE.load(Relaxed)
}

/// Returns the mode of a latch's name, as `--latch` and `LATCHWORK_LATCH` take it.
pub(crate) fn by_name(name: &[u8]) -> Option<u32> {
    match name {
        b"" | b"shfl" => Some(0),
        b"shfl-spin" => Some(SPIN),
        b"lw" => Some(LW),
        b"glibc" => Some(GLIBC),
        _ => None,
    }
}

//! The layout of the C library's objects: glibc on 64-bit machines.
//!
//! ```text
//! pthread_mutex_t   0        8       12       16      20      24              40
//!                  ┌────────┬───────┬────────┬───────┬───────┬───────────────┐
//!   glibc          │lock cnt│ owner │ nusers │ kind  │ spins │ list          │
//!   ours           │ latch  │ owner │ count  │ kind  │   -   │ LwLatch       │
//!                  └────────┴───────┴────────┴───────┴───────┴───────────────┘
//! pthread_rwlock_t  0               16       24      28      32      48    52
//!                  ┌───────────────┬────────┬───────┬───────┬───────┬───────┐
//!   glibc          │ readers ..    │ pad    │writer │shared │ pad   │ flags │
//!   ours           │ latch         │   -    │writer │shared │   -   │ flags │
//!                  └───────────────┴────────┴───────┴───────┴───────┴───────┘
//! pthread_cond_t    0       4       8       16               36      40
//!                  ┌───────┴───────┴───────┬────────────────┬───────┬───────┐
//!   glibc          │ wseq, g1_start        │ refs, size, .. │ wrefs │signals│
//!   ours           │condvar│   -   │ users │   -            │ flags │   -   │
//!                  └───────┴───────┴───────┴────────────────┴───────┴───────┘
//! ```
//!
//! `kind`, `shared` and `flags` keep their positions and meanings: static initialisers write them,
//! and glibc reads them in objects that are passed on to it.

use core::sync::atomic::{AtomicU32, AtomicU64};

use latchwork_latch::{Attempt, LwLatch, ParkDetached, Policy, RawCondvar, Shfl, ShflRwLock};

/// The default latch of a mutex: `ShflMutex` with a release after which the next holder may free
/// it.
pub(crate) type Latch = Shfl<ParkDetached>;

/// The latch of `--latch shfl-spin`: `ShflSpin`, with the same release.
pub(crate) type SpinLatch = Shfl<SpinDetached>;

/// Never sleeps, and accesses nothing after a release.
pub(crate) struct SpinDetached;

impl Policy for SpinDetached {
    const PARKS: bool = false;
    const PATIENCE: u32 = 0;
    const DETACHED: bool = true;
}

/// A `pthread_mutex_t`.
#[repr(C)]
pub(crate) struct Mutex {
    pub(crate) latch: Latch,
    /// The holder's number, in mutexes that check their holder; otherwise zero.
    pub(crate) owner: AtomicU32,
    /// The depth of a recursive mutex.
    pub(crate) count: AtomicU32,
    pub(crate) kind: AtomicU32,
    spins: AtomicU32,
    /// The latch of `--latch lw`, which does not fit in the first 8 bytes.
    pub(crate) lw: LwLatch,
}

impl Mutex {
    /// Returns the latch of `--latch shfl-spin`, in the place of the default one.
    pub(crate) fn spin(&self) -> &SpinLatch {
        // SAFETY: both are the same struct with another policy, which is a type without a value.
        unsafe { &*(&raw const self.latch).cast::<SpinLatch>() }
    }
}

/// A `pthread_rwlock_t`.
#[repr(C)]
pub(crate) struct Rwlock {
    pub(crate) latch: ShflRwLock,
    spare: u64,
    /// The number of the writer that holds it, or zero.
    pub(crate) writer: AtomicU32,
    pub(crate) shared: AtomicU32,
    pad: [u64; 2],
    pub(crate) flags: AtomicU32,
}

impl Rwlock {
    /// Returns the latch of `--latch lw`, in the place of the default one. The lock's kind
    /// determines `A`.
    pub(crate) fn lw<A: Attempt>(&self) -> &LwLatch<A> {
        // SAFETY: it is no larger than the default latch, all its bits are atomic integers, and a
        // process uses one of the two throughout; `A` is a type without a value.
        unsafe { &*(&raw const self.latch).cast::<LwLatch<A>>() }
    }
}

/// A `pthread_cond_t`.
#[repr(C)]
pub(crate) struct Cond {
    pub(crate) waiters: RawCondvar,
    hole: u32,
    /// Low half: threads inside a wait for which `destroy` waits. High half: the generation of the
    /// process that counts them.
    pub(crate) users: AtomicU64,
    spare: [u32; 5],
    /// glibc's `wrefs`, whose two lowest bits mean the same here.
    pub(crate) flags: AtomicU32,
    signals: [u32; 2],
}

/// Kinds of mutexes: the two lowest bits.
pub(crate) const RECURSIVE: u32 = libc::PTHREAD_MUTEX_RECURSIVE as u32;
pub(crate) const ERRORCHECK: u32 = libc::PTHREAD_MUTEX_ERRORCHECK as u32;
pub(crate) const TYPE: u32 = 3;
/// Robust, priority-inheriting, priority-protected, process-shared: served by glibc and the kernel.
pub(crate) const SPECIAL: u32 = 16 | 32 | 64 | 128;
/// The kind that glibc's `pthread_mutex_destroy` stores. Locking such a mutex returns `EINVAL`.
pub(crate) const DESTROYED: u32 = u32::MAX;

/// `flags` of a reader-writer lock in which no reader passes a waiting writer.
pub(crate) const PREFER_WRITER: u32 = 2;

/// Bits of a condition variable's flags.
pub(crate) const COND_SHARED: u32 = 1;
pub(crate) const COND_MONOTONIC: u32 = 2;

/// A spin lock's word, as glibc defines it on this machine.
#[cfg(target_arch = "x86_64")]
pub(crate) mod spin_word {
    pub(crate) const FREE: u32 = 1;
    pub(crate) const HELD: u32 = 0;
}
#[cfg(not(target_arch = "x86_64"))]
pub(crate) mod spin_word {
    pub(crate) const FREE: u32 = 0;
    pub(crate) const HELD: u32 = 1;
}

const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(Mutex, kind) == 16 && offset_of!(Mutex, lw) == 24);
    assert!(offset_of!(Rwlock, writer) == 24 && offset_of!(Rwlock, shared) == 28);
    assert!(offset_of!(Rwlock, flags) == 48 && offset_of!(Cond, flags) == 36);
    assert!(offset_of!(Cond, users) == 8);
    assert!(size_of::<Mutex>() <= size_of::<libc::pthread_mutex_t>());
    assert!(size_of::<Rwlock>() <= size_of::<libc::pthread_rwlock_t>());
    assert!(size_of::<Cond>() <= size_of::<libc::pthread_cond_t>());
    assert!(align_of::<Mutex>() <= 8 && align_of::<Rwlock>() <= 8 && align_of::<Cond>() <= 8);
    assert!(size_of::<LwLatch>() <= size_of::<ShflRwLock>());
};

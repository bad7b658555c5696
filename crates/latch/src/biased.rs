//! A reader-writer latch that is biased towards its readers: they write only to their own cache
//! line.
//!
//! BRAVO (Dice and Kogan, USENIX ATC 2019): while the bias is open, a reader sets a mark and does
//! not touch the latch. A writer takes the latch, closes the bias, and waits until the marks are
//! cleared. Two things differ. A mark is in the reader's own waiter slot instead of a hashed table,
//! so that no two readers share a line, and the marks of a dead process can be found. And the
//! number of shares since the last opening decides whether the bias opens again immediately.
//!
//! # State
//!
//! | `bias` | meaning | becomes |
//! |---|---|---|
//! | a time | closed; a reader that holds a share opens it after that time | `OPEN` |
//! | `OPEN` | readers mark their slot | a time, or `AGAIN`, by a writer that holds the latch |
//! | `AGAIN` | closed by a writer that will open it when it unlocks | `OPEN` |
//! | `NEVER` | the system has no asymmetric barrier | |
//!
//! A mark is the status `READING` of a slot. The slot's `latch` identifies the latch: its distance
//! from its table of slots, which is the same in every process.
//!
//! # Invariants
//!
//! 1. The bias is opened by a thread that holds the latch, and closed by a thread that holds it
//!    exclusively.
//! 2. A reader marks its slot, then reads the bias. A writer closes the bias, then reads the marks.
//!    The light and the heavy barrier are between the two, so that at least one of them sees the
//!    other's store. So the writer that closes the bias waits for every reader that found it open.
//!
//! # When it opens again
//!
//! Closing costs a barrier, a look at each slot that was ever used, and the time in which no reader
//! can enter: about 0.1 us for each thread. If the shares since the last opening saved as much
//! ([`SHARE_NS`] each), the bias opens as soon as the writer unlocks, and readers that arrive
//! before wait for that. Otherwise it stays closed for [`REST`] times the duration of the closing,
//! so that writers lose at most a tenth of their time.
//!
//! # Death
//!
//! In shared memory a mark belongs to the process that owns the slot: when the process is killed,
//! the region's sweep frees its slots, including marks, and a writer that waits for them continues.
//! A share that was taken without a mark, while the bias was closed, stays held, as in the
//! underlying latch.

use core::marker::PhantomData;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{Clock, Deadline, Machine, Slot, Slots, Spin, Word, status};

use crate::lw::{Attempt, LwLatch};
use crate::shfl_rw::ShflRwLock;

const OPEN: u64 = u64::MAX;
const AGAIN: u64 = u64::MAX - 1;
const NEVER: u64 = u64::MAX - 2;

/// The cost of a share of a latch whose word many cores use: two transfers of its line.
const SHARE_NS: u64 = 100;

/// How long a bias whose closing did not pay off stays closed, in durations of the closing. As in
/// the paper.
const REST: u64 = 9;

/// How long a writer sleeps before it checks a mark again: the first and the longest time.
const NAP_NS: u64 = 50_000;
const NAP_MAX_NS: u64 = 1_000_000;

/// A reader-writer latch that can be biased.
pub trait RwLatch: Default + Send + Sync {
    /// The machine that it runs on.
    type Machine: Machine;
    /// Takes a share.
    fn lock_shared(&self);
    /// Takes a share if that is possible without waiting.
    fn try_lock_shared(&self) -> bool;
    /// Takes a share, or returns false when the deadline passes.
    fn lock_shared_until(&self, deadline: Deadline) -> bool;
    /// Releases a share.
    ///
    /// # Safety
    ///
    /// The caller must hold a share, or act for its holder.
    unsafe fn unlock_shared(&self);
    /// Takes the latch exclusively.
    fn lock_exclusive(&self);
    /// Takes the latch exclusively if that is possible without waiting.
    fn try_lock_exclusive(&self) -> bool;
    /// Takes the latch exclusively, or returns false when the deadline passes.
    fn lock_exclusive_until(&self, deadline: Deadline) -> bool;
    /// Releases the exclusive latch.
    ///
    /// # Safety
    ///
    /// The caller must hold the latch exclusively, or act for its holder.
    unsafe fn unlock_exclusive(&self);
}

macro_rules! rw_latch {
    ($([$($generic:tt)*] $latch:ty;)*) => {$(
        impl<$($generic)*> RwLatch for $latch {
            type Machine = M;
            #[inline]
            fn lock_shared(&self) {
                self.lock_shared();
            }
            #[inline]
            fn try_lock_shared(&self) -> bool {
                self.try_lock_shared()
            }
            #[inline]
            fn lock_shared_until(&self, deadline: Deadline) -> bool {
                self.lock_shared_until(deadline)
            }
            #[inline]
            unsafe fn unlock_shared(&self) {
                // SAFETY: the caller's promise is the same.
                unsafe { self.unlock_shared() };
            }
            #[inline]
            fn lock_exclusive(&self) {
                self.lock_exclusive();
            }
            #[inline]
            fn try_lock_exclusive(&self) -> bool {
                self.try_lock_exclusive()
            }
            #[inline]
            fn lock_exclusive_until(&self, deadline: Deadline) -> bool {
                self.lock_exclusive_until(deadline)
            }
            #[inline]
            unsafe fn unlock_exclusive(&self) {
                // SAFETY: the caller's promise is the same.
                unsafe { self.unlock_exclusive() };
            }
        }
    )*};
}

rw_latch! {
    [A: Attempt, M: Machine] LwLatch<A, M>;
    [M: Machine] ShflRwLock<M>;
}

/// A share of a [`Biased`] latch. Its thread must pass it to [`Biased::unlock_shared`].
#[derive(Debug)]
#[must_use = "a share must be given back"]
pub struct BiasedShare {
    /// The slot that is marked, or zero if the share is one of the underlying latch.
    slot: u32,
    /// Not `Send`: a thread that ends frees its slots, so its marks must be its own.
    here: PhantomData<*mut ()>,
}

impl BiasedShare {
    const UNMARKED: Self = Self::new(0);

    const fn new(slot: u32) -> Self {
        Self { slot, here: PhantomData }
    }

    /// Returns whether it was taken without touching the latch.
    pub fn is_biased(&self) -> bool {
        self.slot != 0
    }
}

/// A latch whose readers do not touch it while there is no writer: 16 bytes more than `L`, free
/// when zero.
///
/// For a latch that many threads read concurrently and few write, such as a catalog's. A biased
/// share costs two stores to the reader's own cache line and no atomic exchange, regardless of
/// other threads. The writer pays: closing the bias takes one `membarrier(2)`, some microseconds,
/// and a look at the slot of each thread that ever read or waited, some 0.1 us each if they are on
/// other sockets. A bias whose closing did not pay off rests, so a latch that is written often
/// behaves like `L`, at the cost of reading 8 more bytes at each acquisition.
///
/// A thread uses one 64-byte slot for each biased share that it holds at a time. A thread must not
/// take a second share while it holds one, unless `L` allows it.
///
/// # Death
///
/// A thread that ends while it holds the latch leaves it held. In memory that processes share (`L`
/// over [`Shared`](latchwork_machine::Shared)), the region's sweep releases a killed process's
/// biased shares; its locks of `L` itself stay held.
///
/// ```
/// use latchwork_latch::{Biased, ShflRwLock};
///
/// let latch = Biased::<ShflRwLock>::default();
/// let first = latch.lock_shared();
/// // SAFETY: taken above.
/// unsafe { latch.unlock_shared(first) };
/// let second = latch.lock_shared();
/// assert!(second.is_biased());
/// assert!(!latch.try_lock_exclusive());
/// // SAFETY: taken above.
/// unsafe { latch.unlock_shared(second) };
/// assert!(latch.try_lock_exclusive());
/// ```
#[derive(Default)]
#[repr(C)]
pub struct Biased<L: RwLatch> {
    bias: <L::Machine as Machine>::AtomicU64,
    /// The number of biased shares when the bias was last closed, as far as known.
    shares: <L::Machine as Machine>::AtomicU64,
    latch: L,
}

impl<L: RwLatch> Biased<L> {
    /// Takes a share. Blocks while a writer holds or waits for the latch, as `L` does.
    ///
    /// # Panics
    ///
    /// Panics as the underlying latch does.
    #[inline]
    pub fn lock_shared(&self) -> BiasedShare {
        self.mark().unwrap_or_else(|| self.lock_shared_slow())
    }

    /// Takes a share if that is possible without waiting.
    #[inline]
    pub fn try_lock_shared(&self) -> Option<BiasedShare> {
        self.mark().or_else(|| self.latch.try_lock_shared().then(|| self.unmarked()))
    }

    /// Takes a share, or returns `None` when the deadline passes.
    pub fn lock_shared_until(&self, deadline: Deadline) -> Option<BiasedShare> {
        self.mark().or_else(|| self.latch.lock_shared_until(deadline).then(|| self.unmarked()))
    }

    /// Releases a share.
    ///
    /// # Safety
    ///
    /// The share must be one of this latch.
    #[inline]
    pub unsafe fn unlock_shared(&self, share: BiasedShare) {
        if share.slot == 0 {
            // SAFETY: a share without a mark is one of the latch.
            return unsafe { self.latch.unlock_shared() };
        }
        // Release: synchronizes with the Acquire of the writer that reads the marks.
        self.slots().at(share.slot).status.store(status::FREE, Release);
    }

    /// Takes the latch exclusively. Closes an open bias and waits for its readers.
    ///
    /// # Panics
    ///
    /// Panics as the underlying latch does; and if this process may not call `membarrier(2)`, on
    /// which biased readers of another process rely.
    #[inline]
    pub fn lock_exclusive(&self) {
        self.latch.lock_exclusive();
        // Relaxed: the thread that opened it held the latch before us.
        if self.bias.load(Relaxed) == OPEN {
            self.close(None);
        }
    }

    /// Takes the latch exclusively if it is free. This closes an open bias, which is expensive, so
    /// do not call it in a loop.
    ///
    /// # Panics
    ///
    /// Panics as [`lock_exclusive`](Self::lock_exclusive) does.
    pub fn try_lock_exclusive(&self) -> bool {
        self.latch.try_lock_exclusive()
            && self.close_until(Deadline { clock: Clock::Monotonic, at: 0 })
    }

    /// Takes the latch exclusively, or returns false when the deadline passes.
    ///
    /// # Panics
    ///
    /// Panics as [`lock_exclusive`](Self::lock_exclusive) does.
    pub fn lock_exclusive_until(&self, deadline: Deadline) -> bool {
        self.latch.lock_exclusive_until(deadline) && self.close_until(deadline)
    }

    /// Releases the exclusive latch.
    ///
    /// # Safety
    ///
    /// The caller must hold the latch exclusively, or act for its holder.
    #[inline]
    pub unsafe fn unlock_exclusive(&self) {
        // Relaxed: only the holder writes it.
        if self.bias.load(Relaxed) == AGAIN {
            // Release: synchronizes with the Acquire in `mark`.
            self.bias.store(OPEN, Release);
        }
        // SAFETY: the caller's promise is the same.
        unsafe { self.latch.unlock_exclusive() };
    }

    /// Returns whether readers need not touch the latch at this moment.
    pub fn is_open(&self) -> bool {
        // Relaxed: a snapshot.
        self.bias.load(Relaxed) == OPEN
    }

    /// Returns the underlying latch. Writers of this latch wait for its own shares, but such a
    /// share must be released on the underlying latch.
    pub fn latch(&self) -> &L {
        &self.latch
    }

    fn slots(&self) -> Slots<'_, L::Machine> {
        <L::Machine as Machine>::slots(core::ptr::from_ref(&self.bias).cast())
    }

    /// Returns the value that identifies this latch in marks.
    fn name(&self, slots: &Slots<'_, L::Machine>) -> u64 {
        let table = core::ptr::from_ref(slots.at(0)).addr();
        core::ptr::from_ref(&self.bias).addr().wrapping_sub(table) as u64
    }

    /// Takes a share by a mark, if the bias is open.
    #[inline]
    fn mark(&self) -> Option<BiasedShare> {
        // Relaxed: loaded again below.
        if self.bias.load(Relaxed) != OPEN {
            return None;
        }
        let slots = self.slots();
        let number = slots.try_mine()?;
        let slot = slots.at(number);
        // Relaxed: published by the status. Only its own thread writes to a free slot.
        slot.latch.store(self.name(&slots), Relaxed);
        slot.batch.store(slot.batch.load(Relaxed).wrapping_add(1), Relaxed);
        // Release: synchronizes with the Acquire of the writer, which then sees which latch is
        // marked.
        slot.status.store(status::READING, Release);
        <L::Machine as Machine>::light_barrier();
        // Acquire: synchronizes with the Release of the thread that opened it, after the last
        // writer.
        if self.bias.load(Acquire) == OPEN {
            return Some(BiasedShare::new(number));
        }
        // Relaxed: nothing was read under this mark.
        slot.status.store(status::FREE, Relaxed);
        None
    }

    #[cold]
    #[inline(never)]
    fn lock_shared_slow(&self) -> BiasedShare {
        let mut spin = Spin::<L::Machine>::new(<L::Machine as Machine>::SPIN_NS);
        // Relaxed: `mark` loads it again.
        let again = || self.bias.load(Relaxed) == AGAIN;
        while again() && spin.again_while(again) {}
        if let Some(share) = self.mark() {
            return share;
        }
        self.latch.lock_shared();
        self.unmarked()
    }

    /// Returns a share of the underlying latch, which is held; opens the bias if it has rested.
    fn unmarked(&self) -> BiasedShare {
        // Relaxed: the latch orders, and while we hold a share the bias changes only from one state
        // to `OPEN`.
        let bias = self.bias.load(Relaxed);
        if bias < NEVER && Self::now() >= bias {
            let opened = if <L::Machine as Machine>::heavy_barrier() { OPEN } else { NEVER };
            // Release: synchronizes with the Acquire in `mark`: the last writer's writes, which we
            // have acquired with the latch, are visible to readers that do not touch it.
            self.bias.store(opened, Release);
        }
        BiasedShare::UNMARKED
    }

    fn now() -> u64 {
        <L::Machine as Machine>::now(Clock::Monotonic)
    }

    /// As the exclusive holder: closes the bias if it is open. If that fails, releases the latch
    /// and returns false.
    fn close_until(&self, deadline: Deadline) -> bool {
        // Relaxed: as in `lock_exclusive`.
        if self.bias.load(Relaxed) != OPEN || self.close(Some(deadline)) {
            return true;
        }
        // Release: as in `unlock_exclusive`.
        self.bias.store(OPEN, Release);
        // SAFETY: the caller has taken it.
        unsafe { self.latch.unlock_exclusive() };
        false
    }

    /// As the exclusive holder: closes the open bias and waits for its readers. Returns false if
    /// the deadline passed first.
    #[cold]
    #[inline(never)]
    fn close(&self, deadline: Option<Deadline>) -> bool {
        let began = Self::now();
        // Relaxed: the barrier orders it before the loads of the marks.
        self.bias.store(AGAIN, Relaxed);
        if !<L::Machine as Machine>::heavy_barrier() {
            self.bias.store(OPEN, Relaxed);
            // SAFETY: the caller has taken it.
            unsafe { self.latch.unlock_exclusive() };
            panic!("latchwork: readers of a biased latch rely on membarrier(2), which fails here");
        }
        let slots = self.slots();
        let name = self.name(&slots);
        let mut shares = 0u64;
        for number in 1..=slots.high_water() {
            let slot = slots.at(number);
            // Acquire: synchronizes with the Release of the mark, so that its latch is visible, and
            // with the Release of its end, so that its reader's accesses come before ours.
            let marked = slot.status.load(Acquire) == status::READING;
            // Relaxed: published by the status.
            if slot.latch.load(Relaxed) != name {
                continue;
            }
            shares += u64::from(slot.batch.load(Relaxed));
            if marked && !self.wait_for(slot, name, deadline) {
                return false;
            }
        }
        // Relaxed: the exclusive holder's own.
        let taken = shares.saturating_sub(self.shares.load(Relaxed));
        self.shares.store(shares, Relaxed);
        let took = Self::now().saturating_sub(began);
        if taken.saturating_mul(SHARE_NS) < took {
            let rest = began.saturating_add(took.saturating_mul(1 + REST));
            // Relaxed: readers that hold the latch later see it through that.
            self.bias.store(rest.min(NEVER - 1), Relaxed);
        }
        true
    }

    /// Waits until a mark is cleared. Returns false if the deadline passed first.
    fn wait_for(&self, slot: &Slot<L::Machine>, name: u64, deadline: Option<Deadline>) -> bool {
        // Acquire: as in `close`. Relaxed: as there.
        let reads =
            || slot.status.load(Acquire) == status::READING && slot.latch.load(Relaxed) == name;
        let mut spin = Spin::<L::Machine>::new(<L::Machine as Machine>::SPIN_NS);
        let mut nap = NAP_NS;
        while reads() {
            if deadline.is_some_and(|deadline| deadline.passed::<L::Machine>()) {
                return false;
            }
            if spin.again() {
                continue;
            }
            <L::Machine as Machine>::yield_now();
            // A reader does not wake the writer, because it does not check for one. A dead reader
            // cannot.
            let soon = Deadline { clock: Clock::Monotonic, at: Self::now() + nap };
            <L::Machine as Machine>::wait(&slot.status, status::READING, Some(soon));
            nap = (nap * 2).min(NAP_MAX_NS);
        }
        true
    }
}

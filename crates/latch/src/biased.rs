//! A reader-writer latch that is biased towards its readers: they write to their own cache line
//! alone.
//!
//! BRAVO (Dice and Kogan, USENIX ATC 2019): while the bias is open a reader leaves a mark and does
//! not touch the latch. A writer takes the latch, closes the bias, and waits for the marks to go.
//! Two things differ. A mark is not in a hashed table but in the reader's own waiter slot, so that
//! no two readers share a line, and a dead process's marks are found. And whether a bias opens
//! again at once is decided by how many shares were taken since it opened.
//!
//! # State
//!
//! | `bias` | meaning | becomes |
//! |---|---|---|
//! | a time | closed; a reader that holds a share opens it from then on; zero is at once | `OPEN` |
//! | `OPEN` | readers mark their slot | a time, or `AGAIN`, by a writer that has the latch |
//! | `AGAIN` | closed by a writer that opens it when it unlocks | `OPEN` |
//! | `NEVER` | the system has no barrier for it | |
//!
//! A mark is the status `READING` of a slot, whose `latch` says of which latch: the distance of the
//! latch from its table of slots, which is the same in every process.
//!
//! # Invariants
//!
//! 1. The bias is opened by a thread that holds the latch, and closed by one that has it to itself.
//! 2. A reader marks its slot, then reads the bias. A writer closes the bias, then reads the
//!    marks. The light and the heavy barrier stand between the two, so that one of them sees the
//!    other's store. So a reader that finds the bias open is waited for by the writer that closes
//!    it.
//!
//! # When it opens again
//!
//! To close costs a barrier, a look at each slot that was ever used, and the time in which no
//! reader gets in: about 0.1 us for each thread. If the shares since the last opening were worth as
//! much ([`SHARE_NS`] each), the bias opens as soon as the writer unlocks, and readers that come
//! meanwhile wait for that. If not it stays closed for [`REST`] times as long as the closing took,
//! so that writers lose a tenth of their time at most.
//!
//! # Death
//!
//! In shared memory a mark belongs to the process that owns the slot: when it was killed the
//! region's sweep takes its slots back, marks included, and a writer that waits for them goes on.
//! What was taken without a mark, while the bias was closed, stays taken, as with the latch below.

use core::marker::PhantomData;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{Clock, Deadline, Machine, Slot, Slots, Spin, Word, status};

use crate::lw::{Attempt, LwLatch};
use crate::shfl_rw::ShflRwLock;

const OPEN: u64 = u64::MAX;
const AGAIN: u64 = u64::MAX - 1;
const NEVER: u64 = u64::MAX - 2;

/// What a share costs a latch whose word many cores want: two moves of its line.
const SHARE_NS: u64 = 100;

/// How long a bias that was not worth its closing stays closed, in closings. As in the paper.
const REST: u64 = 9;

/// How long a writer sleeps before it looks at a mark again, at first and at most.
const NAP_NS: u64 = 50_000;
const NAP_MAX_NS: u64 = 1_000_000;

/// A reader-writer latch that can be biased.
pub trait RwLatch: Default + Send + Sync {
    /// What it runs on.
    type Machine: Machine;
    /// Takes a share.
    fn lock_shared(&self);
    /// Takes a share if that needs no waiting.
    fn try_lock_shared(&self) -> bool;
    /// Takes a share, or gives up at `deadline` and returns false.
    fn lock_shared_until(&self, deadline: Deadline) -> bool;
    /// Gives a share back.
    ///
    /// # Safety
    ///
    /// A share is held, and given back by its holder's right.
    unsafe fn unlock_shared(&self);
    /// Takes the latch for oneself.
    fn lock_exclusive(&self);
    /// Takes the latch for oneself if that needs no waiting.
    fn try_lock_exclusive(&self) -> bool;
    /// Takes the latch for oneself, or gives up at `deadline` and returns false.
    fn lock_exclusive_until(&self, deadline: Deadline) -> bool;
    /// Gives the latch back.
    ///
    /// # Safety
    ///
    /// The latch is held exclusively, and given back by its holder's right.
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

/// A share of a [`Biased`] latch: what its thread needs to give it back.
#[derive(Debug)]
#[must_use = "a share must be given back"]
pub struct BiasedShare {
    /// The slot that is marked, or zero if the share is one of the latch below.
    slot: u32,
    /// A thread that ends leaves its marks: they are to be its own.
    here: PhantomData<*mut ()>,
}

impl BiasedShare {
    const UNMARKED: Self = Self::new(0);

    const fn new(slot: u32) -> Self {
        Self { slot, here: PhantomData }
    }

    /// Whether it was taken without touching the latch.
    pub fn is_biased(&self) -> bool {
        self.slot != 0
    }
}

/// A latch whose readers do not touch it while no writer comes: 16 bytes more than `L`, free when
/// zero.
///
/// For a latch that many threads read at a time and few write, such as a catalog's. A biased share
/// costs two stores to the reader's own cache line and no atomic exchange, whatever others do. The
/// price is the writer's: to close the bias takes one `membarrier(2)`, some microseconds, and a
/// look at the slot of each thread that ever read or waited, some 0.1 us each where they lie in
/// other sockets. A bias that is not worth that rests, so a latch that is written often behaves as
/// `L` does, and costs 8 bytes read at each acquisition.
///
/// A thread takes one 64-byte slot for each biased share that it holds at a time. A thread must not
/// take a second share while it holds one, unless `L` lets it.
///
/// # Death
///
/// A thread that ends while it holds the latch leaves it held. In memory that processes share (`L`
/// over [`Shared`](latchwork_machine::Shared)), a killed process's biased shares are taken back by
/// the region's sweep; what it held of `L` itself stays held.
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
    /// How many biased shares there were when it was closed last, as far as known.
    shares: <L::Machine as Machine>::AtomicU64,
    latch: L,
}

impl<L: RwLatch> Biased<L> {
    /// Takes a share.
    ///
    /// # Panics
    ///
    /// As for the latch below.
    #[inline]
    pub fn lock_shared(&self) -> BiasedShare {
        self.mark().unwrap_or_else(|| self.lock_shared_slow())
    }

    /// Takes a share if that needs no waiting.
    #[inline]
    pub fn try_lock_shared(&self) -> Option<BiasedShare> {
        self.mark().or_else(|| self.latch.try_lock_shared().then(|| self.unmarked()))
    }

    /// Takes a share, or gives up at `deadline` and returns nothing.
    pub fn lock_shared_until(&self, deadline: Deadline) -> Option<BiasedShare> {
        self.mark().or_else(|| self.latch.lock_shared_until(deadline).then(|| self.unmarked()))
    }

    /// Gives a share back.
    ///
    /// # Safety
    ///
    /// The share was taken of this latch.
    #[inline]
    pub unsafe fn unlock_shared(&self, share: BiasedShare) {
        if share.slot == 0 {
            // SAFETY: a share without a mark is one of the latch.
            return unsafe { self.latch.unlock_shared() };
        }
        // Release: synchronizes with the Acquire of the writer that looks for marks.
        self.slots().at(share.slot).status.store(status::FREE, Release);
    }

    /// Takes the latch for oneself.
    ///
    /// # Panics
    ///
    /// As for the latch below; and if this process may not call `membarrier(2)`, on which biased
    /// readers of another process rely.
    #[inline]
    pub fn lock_exclusive(&self) {
        self.latch.lock_exclusive();
        // Relaxed: who opened it held the latch before us.
        if self.bias.load(Relaxed) == OPEN {
            self.close(None);
        }
    }

    /// Takes the latch for oneself if it is free: that costs the closing of an open bias, and is
    /// not to be tried often.
    ///
    /// # Panics
    ///
    /// As for [`lock_exclusive`](Self::lock_exclusive).
    pub fn try_lock_exclusive(&self) -> bool {
        self.latch.try_lock_exclusive()
            && self.close_until(Deadline { clock: Clock::Monotonic, at: 0 })
    }

    /// Takes the latch for oneself, or gives up at `deadline` and returns false.
    ///
    /// # Panics
    ///
    /// As for [`lock_exclusive`](Self::lock_exclusive).
    pub fn lock_exclusive_until(&self, deadline: Deadline) -> bool {
        self.latch.lock_exclusive_until(deadline) && self.close_until(deadline)
    }

    /// Gives the latch back.
    ///
    /// # Safety
    ///
    /// The latch is held exclusively, and given back by its holder's right.
    #[inline]
    pub unsafe fn unlock_exclusive(&self) {
        // Relaxed: the holder alone writes it.
        if self.bias.load(Relaxed) == AGAIN {
            // Release: synchronizes with the Acquire in `mark`.
            self.bias.store(OPEN, Release);
        }
        // SAFETY: the caller's promise is the same.
        unsafe { self.latch.unlock_exclusive() };
    }

    /// Whether readers need not touch the latch at this moment.
    pub fn is_open(&self) -> bool {
        // Relaxed: a snapshot.
        self.bias.load(Relaxed) == OPEN
    }

    /// The latch below. Its own shares are seen by writers of this one, but must be given back to
    /// it.
    pub fn latch(&self) -> &L {
        &self.latch
    }

    fn slots(&self) -> Slots<'_, L::Machine> {
        <L::Machine as Machine>::slots(core::ptr::from_ref(&self.bias).cast())
    }

    /// What marks of this latch say.
    fn name(&self, slots: &Slots<'_, L::Machine>) -> u64 {
        let table = core::ptr::from_ref(slots.at(0)).addr();
        core::ptr::from_ref(&self.bias).addr().wrapping_sub(table) as u64
    }

    /// Takes a share by a mark, if the bias is open.
    #[inline]
    fn mark(&self) -> Option<BiasedShare> {
        // Relaxed: looked at again below.
        if self.bias.load(Relaxed) != OPEN {
            return None;
        }
        let slots = self.slots();
        let number = slots.try_mine()?;
        let slot = slots.at(number);
        // Relaxed: published by the status. Only its own thread writes to a free slot.
        slot.latch.store(self.name(&slots), Relaxed);
        slot.batch.store(slot.batch.load(Relaxed).wrapping_add(1), Relaxed);
        // Release: synchronizes with the Acquire of the writer, that it sees which latch.
        slot.status.store(status::READING, Release);
        <L::Machine as Machine>::light_barrier();
        // Acquire: synchronizes with the Release of who opened it, after the last writer.
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
        // Relaxed: `mark` looks again.
        let again = || self.bias.load(Relaxed) == AGAIN;
        while again() && spin.again_while(again) {}
        if let Some(share) = self.mark() {
            return share;
        }
        self.latch.lock_shared();
        self.unmarked()
    }

    /// A share of the latch, which is held; opens the bias if it has rested.
    fn unmarked(&self) -> BiasedShare {
        // Relaxed: the latch orders, and changes while we hold a share are from one state to
        // `OPEN`.
        let bias = self.bias.load(Relaxed);
        if bias < NEVER && Self::now() >= bias {
            let opened = if <L::Machine as Machine>::heavy_barrier() { OPEN } else { NEVER };
            // Release: synchronizes with the Acquire in `mark`: what the last writer did, which we
            // have acquired with the latch, is seen by readers that do not touch it.
            self.bias.store(opened, Release);
        }
        BiasedShare::UNMARKED
    }

    fn now() -> u64 {
        <L::Machine as Machine>::now(Clock::Monotonic)
    }

    /// As the exclusive holder: closes the bias if it is open; or gives the latch back.
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

    /// As the exclusive holder: closes the open bias and waits for its readers; false if the
    /// deadline passed first.
    #[cold]
    #[inline(never)]
    fn close(&self, deadline: Option<Deadline>) -> bool {
        let began = Self::now();
        // Relaxed: the barrier orders it before the looks at the marks.
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
            // Acquire: synchronizes with the Release of the mark, for its latch, and with that of
            // its end, so that what its reader did comes before what we do.
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

    /// Waits for the end of a mark; false if the deadline passed first.
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
            // A reader does not wake us: it does not look for that. A dead one could not.
            let soon = Deadline { clock: Clock::Monotonic, at: Self::now() + nap };
            <L::Machine as Machine>::wait(&slot.status, status::READING, Some(soon));
            nap = (nap * 2).min(NAP_MAX_NS);
        }
        true
    }
}

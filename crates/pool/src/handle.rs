//! A thread that uses a pool: its number, its counts, its hints.

use core::cell::{Cell, RefCell};
use core::fmt;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use latchwork_disk::Buffer;
use latchwork_latch::{Exclusive, Holder, HolderNumber, OptLatch};
use latchwork_machine::{ConstMachine, Native, Word};
use latchwork_region::Thread;

use crate::counts::{Counts, Meter, Stats};
use crate::hints::Hints;
use crate::layout::{THREAD_IN_USE, THREAD_WORDS, THREADS, thread_at};
use crate::{Error, Pool};

/// A thread's handle to a pool. Not shared between threads.
///
/// If its process dies, the thread that finds its latches or marks repairs them.
pub struct Handle<'t, M: ConstMachine = Native> {
    pool: Pool<M>,
    /// None in a view.
    pub(crate) thread: Option<&'t Thread<M>>,
    number: HolderNumber,
    pub(crate) hints: Hints<M>,
    /// How many reads it counted.
    pub(crate) ticks: Cell<u32>,
    pub(crate) scanning: Cell<bool>,
    pub(crate) counts: Counts,
    pub(crate) meter: Meter,
    /// The counts that are stored in its slot.
    pub(crate) stored: Cell<Stats>,
    pub(crate) buffer: RefCell<Buffer>,
    /// The rest of the stride that the clock gave: from and to.
    pub(crate) stride: Cell<(u32, u32)>,
    /// How many frames it took from the clock.
    pub(crate) turns: Cell<u32>,
}

impl<M: ConstMachine> Pool<M> {
    /// Creates the handle of the thread that has this slot of the region. A slot has one handle at
    /// a time.
    ///
    /// If the slot's last owner died, what it left in the pool is repaired first.
    ///
    /// # Errors
    ///
    /// [`Error::Holder`] if the slot's number is 16,383 or more; [`Error::Region`].
    pub fn handle<'t>(&self, thread: &'t Thread<M>) -> Result<Handle<'t, M>, Error> {
        let slot = thread.number();
        let number = HolderNumber::new(slot + 1).ok_or(Error::Holder(slot))?;
        if u64::from(slot) >= THREADS {
            return Err(Error::Holder(slot));
        }
        self.inner.head.grow(thread_at(slot, THREAD_WORDS))?;
        let handle = self.bare(Some(thread), number);
        let in_use = self.inner.head.word(thread_at(slot, THREAD_IN_USE))?;
        // Relaxed: this thread has the region's slot, which orders.
        if in_use.load(Relaxed) != 0 {
            handle.repair(&[slot])?;
        }
        in_use.store(1, Relaxed);
        handle.unpin(slot);
        Ok(handle)
    }

    /// Creates a read-only handle without a thread slot for a pool that was opened through a view
    /// of its region. It reads cached pages; anything else fails with [`Error::View`].
    pub fn looker(&self) -> Handle<'static, M> {
        self.bare(None, HolderNumber::new(HolderNumber::MAX).expect("in range"))
    }

    fn bare<'t>(&self, thread: Option<&'t Thread<M>>, number: HolderNumber) -> Handle<'t, M> {
        Handle {
            pool: self.clone(),
            thread,
            number,
            hints: Hints::default(),
            ticks: Cell::new(0),
            scanning: Cell::new(false),
            counts: Counts::default(),
            meter: Meter::default(),
            stored: Cell::default(),
            buffer: RefCell::new(Buffer::new(self.frame_bytes() as usize)),
            stride: Cell::new((0, 0)),
            turns: Cell::new(0),
        }
    }
}

impl<M: ConstMachine> Holder<M> for Handle<'_, M> {
    #[inline(always)]
    fn number(&self) -> HolderNumber {
        self.number
    }

    /// The distance from the start of the descriptors, which is the same in every process. With one
    /// process the address, because all its pools share one table of waiters.
    fn name(&self, latch: &OptLatch<M>) -> u64 {
        let at = (&raw const *latch).addr() as u64;
        if !self.pool.inner.region.has_file() {
            return at;
        }
        let base =
            |word: Result<&M::AtomicU64, _>| word.map_or(0, |w| (&raw const *w).addr() as u64);
        let inner = &self.pool.inner;
        let descs = base(inner.descs.word(0));
        if at >= descs && at - descs < inner.descs.limit() * 8 {
            return 1 << 60 | (at - descs);
        }
        2 << 60 | at.wrapping_sub(base(inner.head.word(0)))
    }

    fn nap(&self) -> Option<Duration> {
        Some(Duration::from_millis(20))
    }

    fn is_dead(&self, number: HolderNumber) -> bool {
        self.pool.is_dead(number.get() - 1)
    }
}

impl<M: ConstMachine> Pool<M> {
    /// Returns whether the thread of a slot is dead or has released the slot.
    pub(crate) fn is_dead(&self, slot: u32) -> bool {
        self.inner.region.is_dead(slot)
    }
}

impl<'t, M: ConstMachine> Handle<'t, M> {
    /// Returns the pool.
    #[inline(always)]
    pub fn pool(&self) -> &Pool<M> {
        &self.pool
    }

    /// Declares that the following reads are a scan that will not return to its pages: they leave
    /// no reference marks. Pages that only scans read are evicted first.
    pub fn scanning(&self, on: bool) {
        self.scanning.set(on);
    }

    /// Checks that this handle may store in the pool.
    pub(crate) fn writes(&self) -> Result<(), Error> {
        if self.thread.is_some() { Ok(()) } else { Err(Error::View) }
    }

    /// Takes a latch of the pool's head; if its holder is dead, takes it over.
    pub(crate) fn head_latch(&self, at: u64) -> Result<Exclusive<'_, Self, M>, Error> {
        let latch = self.pool().head_latch(at)?;
        loop {
            match latch.lock(self) {
                Ok(guard) => return Ok(guard),
                Err(died) => self.meet(died.0, || drop(latch.take_over(died.0, self)))?,
            };
        }
    }

    /// Adds one to a count of this handle.
    #[inline(always)]
    pub(crate) fn count(&self, which: impl Fn(&Counts) -> &Cell<u64>) {
        let cell = which(&self.counts);
        cell.set(cell.get() + 1);
    }

    pub(crate) fn slot(&self) -> Option<u32> {
        self.thread.map(Thread::number)
    }
}

impl<M: ConstMachine> Drop for Handle<'_, M> {
    fn drop(&mut self) {
        let Some(slot) = self.slot() else { return };
        self.store_counts();
        if let Ok(in_use) = self.pool.inner.head.word(thread_at(slot, THREAD_IN_USE)) {
            // Relaxed: this thread has the region's slot.
            in_use.store(0, Relaxed);
        }
    }
}

impl<M: ConstMachine> fmt::Debug for Handle<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({})", self.number.get() - 1)
    }
}

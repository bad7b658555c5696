//! The latch of a partition: a word that names its holder, so that a dead holder can be found.
//!
//! ```text
//!  0 free   n held by the thread of slot n - 1
//! ```
//!
//! A latch is held for one list operation, never during a wait for a lock. A thread that finds it
//! held spins, then yields, then naps; after several naps it searches for dead threads. On a
//! machine with several caches it spins for half a millisecond longer, as long as no other thread
//! wants its processor. A dead thread's latch is never taken over directly: the sweeper first
//! repairs the partition and then opens the latch (`recovery/repair.rs`). A latch whose word names
//! no thread is reported as damage.

use core::ops::Deref;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;

use latchwork_machine::{ConstMachine, Deadline, Level, Word, crowded_until, pause_for};

use crate::Error;
use crate::memory::Memory;
use crate::memory::cells::{Partition, get};
use crate::memory::numbers::PartitionNumber;

/// Looks before a yield, yields before a nap.
const LOOKS: u32 = 100;
const YIELDS: u32 = 50;
/// On a machine with several caches, a thread then looks again, each time after a yield and a
/// pause, while no other thread wants its processor: for about half a millisecond. A nap takes
/// longer than the sections of those that wait. The first pause; after two looks it is doubled, as
/// often as [`PATIENT`] or [`URGENT`] allows.
const ROUND_NS: u64 = 500;
/// The number of doublings of the pause, and the number of looks. If many threads look often, the
/// holder waits for its line, and a thread that would release a lock does not get the latch: with
/// 192 simulated threads it took a millisecond until the first of 150 waiters had the lock.
const PATIENT: (u32, u32) = (7, 22);
const URGENT: (u32, u32) = (0, 700);
/// The length of a nap, and the number of naps between two searches for dead threads.
const NAP: Duration = Duration::from_micros(100);
const NAPS: u32 = 5;

/// A held latch. Dropping it opens the latch.
pub(crate) struct Latched<'s, M: ConstMachine> {
    pub(crate) memory: &'s Memory<M>,
    pub(crate) number: PartitionNumber,
    partition: &'s Partition<M>,
}

impl<M: ConstMachine> Memory<M> {
    /// Takes the latch of a partition. Blocks while another thread holds it.
    #[inline]
    pub(crate) fn latch(&self, number: PartitionNumber) -> Result<Latched<'_, M>, Error> {
        self.latch_unless_others(number, || false)
    }

    /// Takes the latch of a partition. If another thread holds it and `is_patient` returns true,
    /// lets threads that call [`latch`](Self::latch) go first where that is possible: they may be
    /// about to release a lock, and this thread would only join its queue.
    #[inline]
    pub(crate) fn latch_unless_others(
        &self,
        number: PartitionNumber,
        is_patient: impl FnOnce() -> bool,
    ) -> Result<Latched<'_, M>, Error> {
        let partition = self.partition(number)?;
        let me = self.thread.number() + 1;
        // Acquire: synchronizes with the Release of the last holder, in `drop`.
        if partition.latch.compare_exchange(0, me, Acquire, Relaxed).is_err() {
            self.latch_slow(partition, me, is_patient())?;
        }
        self.point("latched");
        Ok(Latched { memory: self, number, partition })
    }

    /// Takes the latch of a partition if it is open.
    pub(crate) fn try_latch(
        &self,
        number: PartitionNumber,
    ) -> Result<Option<Latched<'_, M>>, Error> {
        let partition = self.partition(number)?;
        let me = self.thread.number() + 1;
        // Acquire: as in `latch`.
        let open = partition.latch.compare_exchange(0, me, Acquire, Relaxed).is_ok();
        // Constructed only if the exchange succeeded: dropping it opens the latch.
        Ok(open.then(|| Latched { memory: self, number, partition }))
    }

    /// Returns the latch of a dead thread that this session sweeps, as if this thread held it.
    pub(crate) fn take_over(&self, number: PartitionNumber) -> Result<Latched<'_, M>, Error> {
        Ok(Latched { memory: self, number, partition: self.partition(number)? })
    }

    #[cold]
    #[inline(never)]
    fn latch_slow(&self, partition: &Partition<M>, me: u32, is_patient: bool) -> Result<(), Error> {
        let (doublings, most_rounds) = if is_patient { PATIENT } else { URGENT };
        let (mut looks, mut rounds, mut yields, mut naps) = (0, 0, 0, 0);
        loop {
            let seen = get(&partition.latch);
            // Acquire: as in `latch`.
            if seen == 0 && partition.latch.compare_exchange(0, me, Acquire, Relaxed).is_ok() {
                return Ok(());
            }
            if looks < LOOKS && M::SPIN_NS != 0 {
                looks += 1;
                M::relax();
            } else if rounds < most_rounds && !self.is_crowded() {
                pause_for::<M>(ROUND_NS << (rounds / 2).min(doublings));
                rounds += 1;
            } else if yields < YIELDS {
                yields += 1;
                M::yield_now();
            } else {
                M::wait(&partition.latch, seen, Some(Deadline::after::<M>(NAP)));
                naps += 1;
                if naps % NAPS == 0 {
                    // Not at every nap of every waiter: a sweep reads every thread's slot.
                    (self.stuck)(self)?;
                    self.look_whether_held(partition, me)?;
                }
            }
        }
    }

    /// Returns whether another thread may want this processor: a recent yield took long, or the
    /// machine has one cache. Costs a yield, unless a recent one has shown it.
    pub(crate) fn is_crowded(&self) -> bool {
        if M::SPIN_NS == 0 || !M::spread(Level::Cache) {
            return true;
        }
        let now = self.now();
        if now < self.crowded_until.get() {
            return true;
        }
        let until = crowded_until::<M>(now);
        self.crowded_until.set(until.unwrap_or(0));
        until.is_some()
    }

    /// Reports damage if no thread can hold the latch: it names the thread that waits for it, or a
    /// slot that is free and stays free while the latch keeps its value.
    fn look_whether_held(&self, partition: &Partition<M>, me: u32) -> Result<(), Error> {
        let seen = get(&partition.latch);
        let is_same = || get(&partition.latch) == seen;
        let is_free = || self.thread.region().while_free(seen - 1, is_same);
        match seen == me || seen != 0 && is_free()? == Some(true) {
            true => {
                let what = "latch of a lock table";
                Err(Error::Region(latchwork_region::Error::Corrupt { what, at: 0 }))
            }
            false => Ok(()),
        }
    }
}

impl<M: ConstMachine> Deref for Latched<'_, M> {
    type Target = Partition<M>;
    #[inline(always)]
    fn deref(&self) -> &Partition<M> {
        self.partition
    }
}

impl<M: ConstMachine> Drop for Latched<'_, M> {
    #[inline]
    fn drop(&mut self) {
        self.memory.point("before the latch is opened");
        // Release: synchronizes with the Acquire in `latch`.
        self.partition.latch.store(0, Release);
        self.memory.point("latch opened");
    }
}

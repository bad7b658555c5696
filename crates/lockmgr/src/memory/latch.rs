//! The latch of a partition: a word that names its holder, so that a dead holder can be found.
//!
//! ```text
//!  0 free   n held by the thread of slot n - 1
//! ```
//!
//! A latch is held for one list operation, never during a wait for a lock. A thread that finds it
//! held spins, then yields, then naps; after several naps it searches for dead threads. A dead
//! thread's latch is never taken over directly: the sweeper first repairs the partition and then
//! opens the latch (`recovery/repair.rs`). A latch whose word names no thread is reported as
//! damage.

use core::ops::Deref;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;

use latchwork_machine::{ConstMachine, Deadline, Word};

use crate::Error;
use crate::memory::Memory;
use crate::memory::cells::{Partition, get};
use crate::memory::numbers::PartitionNumber;

/// Looks before a yield, yields before a nap.
const LOOKS: u32 = 100;
const YIELDS: u32 = 50;
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
        let partition = self.partition(number)?;
        let me = self.thread.number() + 1;
        // Acquire: synchronizes with the Release of the last holder, in `drop`.
        if partition.latch.compare_exchange(0, me, Acquire, Relaxed).is_err() {
            self.latch_slow(partition, me)?;
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
    fn latch_slow(&self, partition: &Partition<M>, me: u32) -> Result<(), Error> {
        for round in 0u32.. {
            let seen = get(&partition.latch);
            // Acquire: as in `latch`.
            if seen == 0 && partition.latch.compare_exchange(0, me, Acquire, Relaxed).is_ok() {
                break;
            }
            if round < LOOKS && M::SPIN_NS != 0 {
                M::relax();
            } else if round < LOOKS + YIELDS {
                M::yield_now();
            } else {
                M::wait(&partition.latch, seen, Some(Deadline::after::<M>(NAP)));
                if (round - LOOKS - YIELDS) % NAPS == NAPS - 1 {
                    // Not at every nap of every waiter: a sweep reads every thread's slot.
                    (self.stuck)(self)?;
                    self.look_whether_held(partition, me)?;
                }
            }
        }
        Ok(())
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

//! Sweeping: when dead threads are searched for, and on which thread slot.
//!
//! A region is swept as a whole: `latchwork_region` claims the dead threads and has each layer
//! repair their state, in a fixed order. `recovery/repair.rs` is the lock manager's part. It runs
//! in a session of its own on a slot reserved for sweepers. So a region whose slots all belong to
//! dead threads can be swept, and the intents in a waiting session's slot stay unchanged.
//!
//! ```text
//!  Session::sweep, Manager::sweep, a wait, Manager::session without a free slot
//!      ─▶ Region::sweep_with ─▶ .. ─▶ LocksRepair::repair ─▶ Session::repair ─▶ ..
//! ```
//!
//! A sweeper that needs the latch of a dead thread that it has not claimed opens that latch, and
//! leaves the rest of that thread to the next sweep: so sweeps do not nest.

use core::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use latchwork_machine::{ConstMachine, Deadline, Word};
use latchwork_region::{Dead, InHand, Layer, Repair};

use crate::Error;
use crate::memory::Memory;
use crate::memory::cells::get;
use crate::memory::inner::{Inner, LocksRepair};

/// The shortest time between two sweeps of a process, in nanoseconds.
const SWEEP_EVERY: u64 = 10_000_000;

impl<M: ConstMachine> LocksRepair<M> {
    /// Runs an operation in a sweeper's session. Errors that the region can express are passed to
    /// it; others are stored for the caller that began the sweep.
    fn with_session<T>(
        &self,
        operation: impl FnOnce(&Memory<M>) -> Result<T, Error>,
    ) -> Result<T, latchwork_region::Error> {
        let gone = latchwork_region::Error::NoRepair(Layer::Locks);
        let inner = self.manager.upgrade().ok_or(gone)?;
        let stuck = |memory: &Memory<M>| memory.open_latches().map(drop);
        let memory = Memory::new(&inner, inner.region.sweeper()?, stuck);
        operation(&memory).map_err(|error| match error {
            Error::Region(error) => error,
            error => {
                *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                latchwork_region::Error::Repair(Layer::Locks)
            }
        })
    }

    /// Runs an operation in a sweeper's session, with the full error.
    pub(crate) fn in_session<T>(
        &self,
        operation: impl FnOnce(&Memory<M>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.with_session(operation).map_err(|error| self.full(error))
    }

    /// Returns the error that the region's error stands for.
    fn full(&self, error: latchwork_region::Error) -> Error {
        match error {
            latchwork_region::Error::Repair(Layer::Locks) => {
                self.take_failed().unwrap_or(Error::Region(error))
            }
            error => Error::Region(error),
        }
    }

    pub(crate) fn take_failed(&self) -> Option<Error> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<M: ConstMachine> Repair<M> for LocksRepair<M> {
    fn layer(&self) -> Layer {
        Layer::Locks
    }

    fn open(&self, dead: &[Dead<'_, M>]) {
        // The repair finds a latch that could not be opened again, and reports the error.
        let _ = self.with_session(|memory| Ok(memory.open_latches_of(dead)));
    }

    fn repair(&self, dead: &[Dead<'_, M>]) -> Result<(), latchwork_region::Error> {
        self.with_session(|memory| memory.repair(dead))
    }

    fn leads_to(&self, cells: &[InHand]) -> Result<Vec<bool>, latchwork_region::Error> {
        self.with_session(|memory| {
            let found = memory.reachable()?;
            Ok(cells.iter().map(|cell| found.contains(&cell.offset.raw())).collect())
        })
    }
}

impl<M: ConstMachine> Inner<M> {
    /// Sweeps the region.
    pub(crate) fn sweep(&self) -> Result<usize, Error> {
        self.sweep_until(None)
    }

    /// Sweeps until a deadline. The next sweep continues.
    fn sweep_until(&self, deadline: Option<Deadline>) -> Result<usize, Error> {
        let own: Arc<dyn Repair<M>> = self.repair.clone();
        let swept = self.region.sweep_with(Some(&own), deadline);
        let swept = swept.map_err(|error| self.repair.full(error));
        // Even if another layer must wait: these owners were swept before.
        let decided = self.decide_orphans();
        let count = swept?;
        decided.map(|()| count)
    }
}

impl<M: ConstMachine> Memory<M> {
    /// Sweeps the region; see [`Manager::sweep`]. A thread that waits for a long time does this by
    /// itself.
    pub(crate) fn sweep(&self) -> Result<usize, Error> {
        self.sweep_until(None)
    }

    fn sweep_until(&self, deadline: Option<Deadline>) -> Result<usize, Error> {
        let count = self.inner.sweep_until(deadline)?;
        (0..count).for_each(|_| self.counters.swept());
        let orphans = self.inner().orphaned.swap(0, Relaxed);
        (0..orphans).for_each(|_| self.counters.orphaned());
        Ok(count)
    }

    /// Called by a thread that has waited long for a latch.
    ///
    /// Opens the latches of dead threads, which every thread needs, and sweeps only if there was
    /// none. A sweep may have to roll back long transactions and may fail. A dead thread that
    /// cannot be swept keeps its locks, but not its latches.
    pub(crate) fn sweep_for_a_latch(&self) -> Result<(), Error> {
        if !self.is_time(&self.inner().opened) {
            // Another thread of this process is doing it.
            return Ok(());
        }
        match self.inner().repair.in_session(Memory::open_latches) {
            Ok(0) | Err(Error::Region(latchwork_region::Error::Threads(_))) => {
                self.sweep_sometimes(None)
            }
            opened => opened.map(drop),
        }
    }

    /// Returns whether an action of this process is due again, given the time of its last
    /// execution. If so, this thread must execute it.
    fn is_time(&self, last: &M::AtomicU64) -> bool {
        let (now, seen) = (self.now(), get(last));
        now.wrapping_sub(seen) >= SWEEP_EVERY
            && last.compare_exchange(seen, now, Relaxed, Relaxed).is_ok()
    }

    /// Sweeps, unless this process did so a moment ago. Sweeps at least 16 dead threads, and no
    /// more after the deadline.
    pub(crate) fn sweep_sometimes(&self, deadline: Option<Deadline>) -> Result<(), Error> {
        if self.is_time(&self.inner().swept) {
            match self.sweep_until(deadline) {
                // Another process must sweep, which knows all layers; or a later sweep, once a
                // stopped thread has handed a latch over or a sweeper's slot is free.
                Err(Error::Region(
                    latchwork_region::Error::NoRepair(_)
                    | latchwork_region::Error::Handed(_)
                    | latchwork_region::Error::Threads(_),
                )) => {}
                // A thread that another layer cannot repair yet keeps its locks. Those of other
                // threads are released, and this thread may wait for one of them.
                Err(Error::Region(latchwork_region::Error::Repair(layer)))
                    if layer != Layer::Locks => {}
                end => drop(end?),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use latchwork_region::Region;

    use crate::granular::{X, modes};
    use crate::recovery::staged::{NAMES, dies};
    use crate::{Manager, Options};

    /// A thread waits for a lock of a dead thread, with several delays of its search for deadlocks.
    #[test]
    fn a_waiter_sweeps_dead_threads() {
        for detect_after in [Duration::ZERO, Duration::from_secs(3600), Duration::MAX] {
            let region = Region::private(&Default::default()).unwrap();
            let options = Options { detect_after, ..Options::default() };
            let manager = Manager::new(region, modes(), options).unwrap();
            let _dead = dies(&manager);
            let session = manager.session().unwrap();
            session.owner().unwrap().lock_timeout(NAMES[0], X, Duration::from_secs(60)).unwrap();
        }
    }
}

//! Sweeping: when the dead are looked for, and on which thread slot.
//!
//! A region is swept as a whole: `latchwork_region` claims the dead and has each layer repair what
//! they left, in an order; the lock manager's part is `recovery/repair.rs`. It runs in a session of
//! its own on a slot set aside for sweepers, so that a table of slots full of the dead can be
//! swept, and what a waiting session has noted in its own slot stays as it is.
//!
//! ```text
//!  Session::sweep, Manager::sweep, a wait, Manager::session without a free slot
//!      ─▶ Region::sweep_with ─▶ .. ─▶ LocksRepair::repair ─▶ Session::repair ─▶ ..
//! ```
//!
//! A sweeper that meets a latch of a dead thread that it has not claimed opens that, and leaves the
//! rest of that thread to the next sweep: so sweeps do not nest.

use core::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use latchwork_machine::{ConstMachine, Deadline, Word};
use latchwork_region::{Dead, InHand, Layer, Repair};

use crate::Error;
use crate::memory::Memory;
use crate::memory::cells::get;
use crate::memory::inner::{Inner, LocksRepair};

/// How often a process looks for them at most, in nanoseconds.
const SWEEP_EVERY: u64 = 10_000_000;

impl<M: ConstMachine> LocksRepair<M> {
    /// Does something in a sweeper's session. The region is told what its errors can say; the rest
    /// is kept for the caller that began the sweep.
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

    /// As [`with_session`](Self::with_session), for the lock manager itself.
    pub(crate) fn in_session<T>(
        &self,
        operation: impl FnOnce(&Memory<M>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.with_session(operation).map_err(|error| self.full(error))
    }

    /// What the region's error stands for.
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
        // The repair meets again what could not be opened, and says so.
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

    /// Sweeps until a deadline; what is left then is the next sweep's.
    fn sweep_until(&self, deadline: Option<Deadline>) -> Result<usize, Error> {
        let own: Arc<dyn Repair<M>> = self.repair.clone();
        let swept = self.region.sweep_with(Some(&own), deadline);
        let swept = swept.map_err(|error| self.repair.full(error));
        // Also if another layer has to wait: these are the dead that were swept before.
        let decided = self.decide_orphans();
        let count = swept?;
        decided.map(|()| count)
    }
}

impl<M: ConstMachine> Memory<M> {
    /// As [`Manager::sweep`]. A thread that waits for what a dead one may have does this.
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

    /// What a thread does that waits long for a latch.
    ///
    /// It opens those of the dead, which all need, and sweeps only where none was: a sweep may have
    /// long transactions to undo, and may fail, and who cannot be swept keeps its locks, and no
    /// latch.
    pub(crate) fn sweep_for_a_latch(&self) -> Result<(), Error> {
        if !self.is_time(&self.inner().opened) {
            // Another thread of this process just does it.
            return Ok(());
        }
        match self.inner().repair.in_session(Memory::open_latches) {
            Ok(0) | Err(Error::Region(latchwork_region::Error::Threads(_))) => {
                self.sweep_sometimes(None)
            }
            opened => opened.map(drop),
        }
    }

    /// Whether this process did something long enough ago, of which this says when: then it is this
    /// thread that does it now.
    fn is_time(&self, last: &M::AtomicU64) -> bool {
        let (now, seen) = (self.now(), get(last));
        now.wrapping_sub(seen) >= SWEEP_EVERY
            && last.compare_exchange(seen, now, Relaxed, Relaxed).is_ok()
    }

    /// Sweeps, unless this process has done so a moment ago. Of the dead 16 at least are swept,
    /// and no others after a deadline.
    pub(crate) fn sweep_sometimes(&self, deadline: Option<Deadline>) -> Result<(), Error> {
        if self.is_time(&self.inner().swept) {
            match self.sweep_until(deadline) {
                // Another process is to sweep, that knows all layers; or one later, when a thread
                // that is stopped has handed a latch over, or a slot for a sweeper is free.
                Err(Error::Region(
                    latchwork_region::Error::NoRepair(_)
                    | latchwork_region::Error::Handed(_)
                    | latchwork_region::Error::Threads(_),
                )) => {}
                // What another layer cannot put right yet keeps its locks. Those of the others are
                // released, and this thread may wait for one of them.
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

    /// A thread that waits for one of the dead, however soon or late it is to look for deadlocks.
    #[test]
    fn a_waiter_finds_the_dead() {
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

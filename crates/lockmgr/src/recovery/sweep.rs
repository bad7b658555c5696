//! Sweeping: who looks for the dead, and on which thread slot.
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

use latchwork_machine::{ConstMachine, Word};
use latchwork_region::{Dead, InHand, Layer, Repair};

use crate::manager::LocksRepair;
use crate::session::Session;
use crate::{Error, Manager};

impl<M: ConstMachine> LocksRepair<M> {
    /// Does something in a sweeper's session. The region is told what its errors can say; the rest
    /// is kept for who began the sweep.
    fn with_session<T>(
        &self,
        operation: impl FnOnce(&Session<M>) -> Result<T, Error>,
    ) -> Result<T, latchwork_region::Error> {
        let gone = latchwork_region::Error::NoRepair(Layer::Locks);
        let manager = Manager { inner: self.manager.upgrade().ok_or(gone)? };
        let session = Session::on(&manager, manager.inner.region.sweeper()?, true);
        operation(&session).map_err(|error| match error {
            Error::Region(error) => error,
            error => {
                *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                latchwork_region::Error::Repair(Layer::Locks)
            }
        })
    }

    pub(crate) fn take_failed(&self) -> Option<Error> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<M: ConstMachine> Repair<M> for LocksRepair<M> {
    fn layer(&self) -> Layer {
        Layer::Locks
    }

    fn repair(&self, dead: &[Dead<'_, M>]) -> Result<(), latchwork_region::Error> {
        self.with_session(|session| session.repair(dead))
    }

    fn leads_to(&self, cells: &[InHand]) -> Result<Vec<bool>, latchwork_region::Error> {
        self.with_session(|session| {
            let found = session.reachable()?;
            Ok(cells.iter().map(|cell| found.contains(&cell.offset.raw())).collect())
        })
    }
}

impl<M: ConstMachine> Manager<M> {
    /// Sweeps the region: puts right what dead threads left, in all its layers, releases their
    /// owners' locks, and returns how many threads there were. Needs no session and no free thread
    /// slot; harmless at any time.
    ///
    /// Costs a look at each thread slot, and a system call for each process found in them; for
    /// each 16 of the dead, a look at each partition; and work in proportion to what they held.
    ///
    /// # Errors
    ///
    /// [`Error::Region`]: if the region has layers that this process cannot repair nothing is swept
    /// ([`latchwork_region::Error::NoRepair`]).
    pub fn sweep(&self) -> Result<usize, Error> {
        let own: Arc<dyn Repair<M>> = self.inner.repair.clone();
        self.inner.region.sweep_with(Some(&own)).map_err(|error| match error {
            latchwork_region::Error::Repair(Layer::Locks) => {
                self.inner.repair.take_failed().unwrap_or(Error::Region(error))
            }
            error => Error::Region(error),
        })
    }
}

impl<M: ConstMachine> Session<M> {
    /// As [`Manager::sweep`]. A thread that waits for what a dead one may have does this.
    ///
    /// # Errors
    ///
    /// As [`Manager::sweep`].
    pub fn sweep(&self) -> Result<usize, Error> {
        let count = self.manager.sweep()?;
        (0..count).for_each(|_| self.counters.swept());
        let orphans = self.inner().orphaned.swap(0, Relaxed);
        (0..orphans).for_each(|_| self.counters.orphaned());
        Ok(count)
    }
}

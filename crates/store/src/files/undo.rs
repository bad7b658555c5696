//! The transactions of dead threads are undone, by the thread that sweeps them.
//!
//! It comes before the lock manager lets their locks go, so that nobody sees what is not undone. A
//! slot's chain of records leads from its last one to its first; each is undone in place by a
//! record that leads to what is undone next. A sweep that dies on the way leaves the rest to the
//! next one, which begins at the slot's last record again: what is undone twice is as it was
//! before, for the transaction's locks are still held.

use std::sync::{Arc, OnceLock, Weak};

use latchwork_log::Lsn;
use latchwork_machine::ConstMachine;
use latchwork_region::{Dead, Error as RegionError, InHand, Layer, Repair};

use crate::Error;
use crate::engine::{Chain, Engine};
use crate::files::home::Home;
use crate::files::worker::Worker;

/// What a sweep does in a store. Until the store is open nobody has written.
pub(crate) struct UndoDead<M: ConstMachine> {
    pub(crate) home: Arc<OnceLock<Weak<Home<M>>>>,
}

impl<M: ConstMachine> Repair<M> for UndoDead<M> {
    fn layer(&self) -> Layer {
        Layer::Tree
    }

    fn repair(&self, dead: &[Dead<'_, M>]) -> Result<(), RegionError> {
        let home = self.home.get().and_then(Weak::upgrade);
        let home = home.ok_or(RegionError::NoRepair(Layer::Tree))?;
        let mut worker = None;
        for dead in dead {
            let undone = home.undo_dead(dead.number(), &mut worker);
            undone.map_err(|why| match why {
                Error::Region(why) => why,
                _ => RegionError::Repair(Layer::Tree),
            })?;
        }
        Ok(())
    }

    fn leads_to(&self, cells: &[InHand]) -> Result<Vec<bool>, RegionError> {
        // A store has no cells of the region.
        Ok(vec![false; cells.len()])
    }
}

impl<M: ConstMachine> Home<M> {
    /// Undoes what a dead slot's transaction has written, and takes back what it had claimed. The
    /// worker is opened for the first slot that needs one.
    fn undo_dead(self: &Arc<Self>, slot: u32, worker: &mut Option<Worker<M>>) -> Result<(), Error> {
        self.shared.checkpoint_over(slot)?;
        let Ok(number) = u16::try_from(slot) else { return Ok(()) };
        self.shared.forget(number);
        let (_, last) = self.log.open_of(slot)?;
        if last == Lsn::NEVER {
            return Ok(());
        }
        let worker = match worker {
            Some(worker) => worker,
            none => {
                none.insert(Worker::of_sweeper(self.clone(), self.manager.region().sweeper()?)?)
            }
        };
        worker.undo_all(number, last)?;
        self.shared.count_undone()
    }
}

impl<M: ConstMachine> Worker<M> {
    /// Undoes a slot's transaction from this record on, and ends it.
    pub(crate) fn undo_all(&self, slot: u16, last: Lsn) -> Result<(), Error> {
        let mut chain = Chain { slot, ..Chain::default() };
        let mut at = last.0;
        while at != 0 {
            at = self.undo(&mut chain, at)?;
        }
        self.end(slot)
    }
}

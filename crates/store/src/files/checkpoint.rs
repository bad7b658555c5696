//! Checkpoints: pages go out, the redo point moves up, the log is recycled.
//!
//! A thread that has committed, and finds that enough was logged since the last one, makes it. None
//! of the others stops.
//!
//! | step | what | who is killed after it leaves |
//! |---|---|---|
//! | mark | pages that change from here on are logged whole first | nothing |
//! | sync | all pages go out whose first change is before the mark | nothing |
//! | control | redo begins at the mark, or before it where a transaction is open | the redo point |
//! | recycle | the log before it goes, as far as no snapshot needs it | segments for the next one |

use latchwork_log::{Checkpoint, Lsn};
use latchwork_machine::ConstMachine;

use crate::Error;
use crate::files::home::Home;
use crate::files::worker::Worker;

impl<M: ConstMachine> Home<M> {
    /// Makes a checkpoint if one is due and nobody makes it.
    #[inline]
    pub(crate) fn checkpoint_if_due(&self, worker: &Worker<M>) -> Result<(), Error> {
        if self.shared.is_due(self.sizes.log_budget)? { self.checkpoint(worker) } else { Ok(()) }
    }

    /// Makes a checkpoint, unless another thread makes one.
    pub(crate) fn checkpoint(&self, worker: &Worker<M>) -> Result<(), Error> {
        let slot = worker.log.slot();
        if !self.shared.claim_checkpoint(slot)? {
            return Ok(());
        }
        let made = self.make_checkpoint(worker);
        self.shared.checkpoint_over(slot)?;
        made
    }

    fn make_checkpoint(&self, worker: &Worker<M>) -> Result<(), Error> {
        let mark = worker.log.mark()?;
        self.shared.checkpoint_made(mark)?;
        worker.handle.sync(mark.0.saturating_sub(1), &mut |_| {})?;
        let mut redo = mark;
        for slot in 0..self.log.slots_high() {
            let (first, _) = self.log.open_of(slot)?;
            if first != Lsn::NEVER {
                redo = redo.min(first);
            }
        }
        worker.log.checkpoint(Checkpoint { lsn: Lsn::NEVER, redo, clean: false })?;
        worker.log.recycle(Lsn(self.shared.needed()?.min(redo.0)))?;
        Ok(())
    }
}

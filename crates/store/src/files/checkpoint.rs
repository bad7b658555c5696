//! Checkpoints: pages go out, the redo point moves up, the log is recycled.
//!
//! A thread that has committed, and finds that enough was logged since the last one, makes it. None
//! of the others stops.
//!
//! | step | what | who is killed after it leaves |
//! |---|---|---|
//! | sign | the catalog says where the log ends: `signature.rs` | nothing |
//! | mark | pages that change from here on are logged whole first | nothing |
//! | end | transactions that were open for too long are undone: `turn.rs` | a sweep ends it |
//! | sync | all pages go out whose first change is before the mark | nothing |
//! | flush | the ends of those that have ended since the mark are durable | nothing |
//! | control | redo begins at the mark, or before it where a transaction is open | the redo point |
//! | recycle | the log before it goes, as far as no snapshot may need it | segments for the next |

use latchwork_log::{Checkpoint, Lsn};
use latchwork_machine::ConstMachine;

use crate::Error;
use crate::files::home::Home;
use crate::files::scribe::IMAGE;
use crate::files::worker::Worker;

impl<M: ConstMachine> Home<M> {
    /// Makes a checkpoint if one is due and nobody makes it.
    #[inline]
    pub(crate) fn checkpoint_if_due(&self, worker: &Worker<M>) -> Result<(), Error> {
        let budget = self.sizes.log_budget;
        if !self.shared.is_due(budget)? {
            return Ok(());
        }
        match self.checkpoint(worker) {
            // The transaction that is to begin is none the worse. It is tried again in a while.
            Err(why) if why.is_no_space() => {
                let soon = self.log.end().0.saturating_sub(budget - budget / 16);
                self.shared.checkpoint_made(Lsn(soon))
            }
            made => made,
        }
    }

    /// Makes a checkpoint, unless another thread makes one.
    pub(crate) fn checkpoint(&self, worker: &Worker<M>) -> Result<(), Error> {
        let slot = worker.log.slot();
        if !self.shared.claim_checkpoint(slot)? {
            return Ok(());
        }
        worker.look_at_pieces();
        worker.tidy_all();
        let made = self.make_checkpoint(worker, self.sizes.history);
        self.shared.checkpoint_over(slot)?;
        made
    }

    /// Makes a checkpoint that keeps so many bytes of log for open transactions, by the thread that
    /// has the right to, or is alone.
    pub(crate) fn make_checkpoint(&self, worker: &Worker<M>, history: u64) -> Result<(), Error> {
        let signed = match self.sign(worker) {
            // A checkpoint gives segments back, so it must not need one. What the last one has
            // signed is still what the pages are, though longer ago.
            Err(why) if why.is_no_space() => worker.signed().ok().flatten().ok_or(why)?,
            signed => signed?,
        };
        // Some pages are made before the mark and after they were counted.
        let pages = self.pool.pages(self.file)? + u64::from(self.sizes.threads);
        let image = u64::from(self.file.page_bytes()) + IMAGE;
        let mark = worker.log.mark_with(image, pages)?;
        self.shared.checkpoint_made(mark)?;
        let least = mark.0.saturating_sub(history);
        self.end_old(worker, least);
        worker.handle.sync(mark.0.saturating_sub(1), &mut |_| {})?;
        let mut redo = mark;
        for slot in self.log.each_slot() {
            let (first, _) = self.log.open_of(slot)?;
            if first != Lsn::NEVER {
                redo = redo.min(first);
            }
            // What the log says of pages in hand is needed to give them back.
            if let Some(since) = self.shared.held_since(slot)? {
                redo = redo.min(Lsn(since));
            }
        }
        // What has ended since the mark has its end in the log by now. It is made durable, or a
        // crash could leave a transaction without an end, and redo begin behind a part of it.
        worker.log.flush(Lsn(self.log.end().0.saturating_sub(1)))?;
        worker.log.checkpoint(Checkpoint { lsn: signed, redo, clean: false })?;
        // Snapshots that need more than the history may have get an error.
        worker.log.recycle(Lsn(self.shared.needed()?.max(least).min(redo.0)))?;
        Ok(())
    }

    /// Undoes transactions that keep the log from before `least`, if they are between two calls.
    fn end_old(&self, worker: &Worker<M>, least: u64) {
        for slot in (0..self.log.slots_high()).filter(|slot| *slot != worker.log.slot()) {
            if let Ok(slot) = u16::try_from(slot) {
                // What cannot be undone is kept, and its own thread tries again.
                let _ = worker.end_old(slot, least);
            }
        }
    }
}

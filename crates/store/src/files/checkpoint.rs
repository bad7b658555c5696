//! Checkpoints: pages are written, the redo point advances, the log is recycled.
//!
//! A thread that begins a transaction makes a checkpoint if enough was logged since the last one.
//! No other thread stops.
//!
//! | step | action | state after a death |
//! |---|---|---|
//! | sign | the catalog records the end of the log: `signature.rs` | nothing to do |
//! | mark | pages that change from here on are logged completely first | nothing to do |
//! | end | transactions open for too long are undone: `undo_ownership.rs` | a sweep completes it |
//! | sync | all pages are written whose first change is before the mark | nothing to do |
//! | flush | the ends of transactions that have ended since the mark are durable | nothing to do |
//! | control | redo starts at the mark, or earlier for an open transaction | the old redo point |
//! | recycle | the log before it is released, except for snapshots | segments for the next one |
//! | punch | the space of free pages is returned to the file system | the space is kept |
//!
//! When a checkpoint is due, dead threads are swept, including a thread that held the claim on the
//! checkpoint. A thread that died between two transactions, with a copy, a snapshot or a page
//! intent, retains the log and has no lock for which another thread might wait. A background thread
//! sweeps, because the rollback may take long, and no thread waits for it.

use core::time::Duration;

use latchwork_log::{Checkpoint, Lsn};
use latchwork_machine::{ConstMachine, Deadline};

use crate::Error;
use crate::events;
use crate::files::inner::StoreInner;
use crate::files::meter::{Count, now};
use crate::files::session::StoreSession;
use crate::files::shared::Shared;
use crate::files::tree_journal::IMAGE;

/// How long a thread sleeps between checks of another thread's checkpoint.
const NAP: Duration = Duration::from_millis(2);

/// The right to make a checkpoint.
struct Claim<'h, M: ConstMachine> {
    shared: &'h Shared<M>,
    slot: u32,
}

impl<M: ConstMachine> Drop for Claim<'_, M> {
    fn drop(&mut self) {
        // It fails only in the child of a fork, which has claimed nothing.
        let _ = self.shared.checkpoint_over(self.slot);
    }
}

/// The last position for new transactions: stamps have room for positions below 2^52 bytes, and
/// open transactions may log 1 TiB more.
const LAST_POSITION: u64 = (1 << 52) - (1 << 40);

fn has_positions(end: u64) -> Result<(), Error> {
    if end < LAST_POSITION { Ok(()) } else { Err(Error::LogPositions) }
}

impl<M: ConstMachine> StoreInner<M> {
    /// Makes a checkpoint if one is due and no thread makes it.
    #[inline]
    pub(crate) fn checkpoint_if_due(&self, worker: &StoreSession<M>) -> Result<(), Error> {
        let budget = self.sizes.log_budget;
        if !self.is_checkpoint_due()? {
            return Ok(());
        }
        match self.checkpoint(worker) {
            // The transaction that is about to begin is not affected. Try again later.
            Err(why) if why.is_no_space() => {
                let soon = self.log.end().0.saturating_sub(budget - budget / 16);
                self.shared.checkpoint_made(Lsn(soon))
            }
            made => made.map(drop),
        }
    }

    /// Returns whether a checkpoint is due and no living thread makes it. Called before each
    /// transaction that may write.
    ///
    /// # Errors
    ///
    /// [`Error::LogPositions`] if the log cannot grow any more; errors of the store's parts.
    #[inline]
    pub(crate) fn is_checkpoint_due(&self) -> Result<bool, Error> {
        if !self.shared.is_due(self.sizes.log_budget)? || self.is_being_checkpointed()? {
            return Ok(false);
        }
        has_positions(self.log.end().0).map(|()| true)
    }

    fn is_being_checkpointed(&self) -> Result<bool, Error> {
        let by = self.shared.checkpointer()?;
        Ok(by.is_some_and(|(_, slot)| !self.manager.region().is_dead(slot)))
    }

    /// Makes a checkpoint. Returns false if another thread makes one, which may have begun long
    /// ago.
    pub(crate) fn checkpoint(&self, worker: &StoreSession<M>) -> Result<bool, Error> {
        let Some(_claim) = self.claim_checkpoint(worker.log.slot())? else { return Ok(false) };
        worker.look_at_pieces();
        worker.tidy_all();
        self.make_checkpoint(worker, self.sizes.history).map(|()| true)
    }

    /// Makes a checkpoint that begins from now on and includes what dead threads left. Waits for
    /// another thread that makes one, however long that takes.
    pub(crate) fn checkpoint_now(&self, worker: &StoreSession<M>) -> Result<(), Error> {
        // A transaction that cannot be rolled back retains the log; threads that need its locks
        // report it.
        let _ = self.sweep();
        let word = M::U32;
        while !self.checkpoint(worker)? {
            M::wait(&word, 0, Some(Deadline::after::<M>(NAP)));
            if !self.is_being_checkpointed()? {
                // It has ended, or died.
                let _ = self.sweep();
            }
        }
        Ok(())
    }

    /// Takes the right to make a checkpoint, until the returned value is dropped.
    fn claim_checkpoint(&self, slot: u32) -> Result<Option<Claim<'_, M>>, Error> {
        if let Some((claim, holder)) = self.shared.checkpointer()? {
            // The slot may belong to no thread, because of damaged memory.
            let over = || self.shared.end_claim(claim);
            self.manager.region().while_free(holder, over)?.transpose()?;
        }
        Ok(self.shared.claim_checkpoint(slot)?.then_some(Claim { shared: &self.shared, slot }))
    }

    /// Makes a checkpoint that keeps this many bytes of log for open transactions. The calling
    /// thread has the right to, or is alone.
    pub(crate) fn make_checkpoint(
        &self,
        worker: &StoreSession<M>,
        history: u64,
    ) -> Result<(), Error> {
        let _span = events::checkpoint();
        let (from, before) = (now::<M>(), self.log.marked());
        let made = self.make_one(worker, history);
        let ns = now::<M>().saturating_sub(from);
        worker.count(Count::CheckpointNs, ns);
        if let Err(why) = made {
            worker.count(Count::CheckpointsFailed, 1);
            events::checkpoint_failed(&why, ns);
            return Err(why);
        }
        worker.count(Count::Checkpoints, 1);
        // Free pages that cannot be punched keep their space.
        let punched = self.punch_some(worker).unwrap_or(0);
        worker.count(Count::Punched, punched);
        worker.publish();
        events::checkpoint_made(self.log.marked().0.saturating_sub(before.0), ns, punched);
        Ok(())
    }

    fn make_one(&self, worker: &StoreSession<M>, history: u64) -> Result<(), Error> {
        let signed = match self.sign(worker) {
            // A checkpoint releases segments, so it must not need one. The signature of the last
            // checkpoint still applies to the pages, though it is older.
            Err(why) if why.is_no_space() => worker.signed().ok().flatten().ok_or(why)?,
            signed => signed?,
        };
        // Some pages are created after they are counted and before the mark.
        let pages = self.pool.pages(self.file)? + u64::from(self.sizes.threads);
        let image = u64::from(self.file.page_bytes()) + IMAGE;
        let marks = || worker.log.mark_with(image, pages).map_err(Error::from);
        let mark = match marks() {
            // The log space for their rollback is reserved, and afterwards they retain no log.
            Err(why) if why.is_no_space() => {
                let least = self.log.end().0.saturating_sub(history);
                if self.end_old(worker, least) { marks()? } else { return Err(why) }
            }
            marked => marked?,
        };
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
            // The log about pages with intents is needed to free them.
            if let Some(since) = self.shared.held_since(slot)? {
                redo = redo.min(Lsn(since));
            }
        }
        // A bound may be older than what the last checkpoint gave up: its thread read the log's end
        // before that, and stored it after. The log records of that thread come after the mark of
        // that checkpoint.
        redo = redo.max(self.log.redo());
        // The ends of transactions that have ended since the mark are in the log by now. They must
        // be durable, or a crash could leave a transaction without an end and redo could begin
        // after a part of it.
        worker.log.flush(Lsn(self.log.end().0.saturating_sub(1)))?;
        worker.log.checkpoint(Checkpoint { lsn: signed, redo, clean: false })?;
        // Snapshots that need more than the allowed history get an error.
        worker.log.recycle(Lsn(self.shared.needed()?.max(least).min(redo.0)))?;
        Ok(())
    }

    /// Rolls back transactions that retain the log before `least`, if they are between two calls.
    /// Returns whether there was one.
    fn end_old(&self, worker: &StoreSession<M>, least: u64) -> bool {
        let mut any = false;
        for slot in (0..self.log.slots_high()).filter(|slot| *slot != worker.log.slot()) {
            if let Ok(slot) = u16::try_from(slot) {
                // If the rollback fails, the transaction remains, and its own thread tries again.
                any |= worker.end_old(slot, least).is_ok_and(|ended| ended);
            }
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use latchwork_disk::Operation;

    use super::{LAST_POSITION, has_positions};
    use crate::Error;
    use crate::files::inner::stage::begin;
    use crate::stamp::Stamp;

    /// A checkpoint that another thread makes may have begun before the last change.
    #[test]
    fn a_checkpoint_is_made_behind_that_of_another_thread() {
        let (_region, home) = begin();
        let other = home.worker().unwrap();
        assert_eq!(home.shared.claim_checkpoint(other.log.slot()), Ok(true));
        let comes = Barrier::new(2);
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let own = home.worker().unwrap();
                assert!(!home.checkpoint(&own).unwrap(), "the other has the right still");
                comes.wait();
                let before = home.disk.calls();
                home.checkpoint_now(&own).unwrap();
                (home.disk.calls() - before)[Operation::Sync]
            });
            comes.wait();
            home.shared.checkpoint_over(other.log.slot()).unwrap();
            assert!(waits.join().unwrap() > 0, "none was made");
        });
    }

    /// The slot has no thread, or does not exist.
    #[test]
    fn damaged_memory_gives_nobody_the_right_to_a_checkpoint() {
        let (_region, home) = begin();
        let own = home.worker().unwrap();
        for claim in [6, 10_000, u64::from(u32::MAX), 1 << 40, u64::MAX] {
            home.shared.set_claim(claim);
            assert!(home.checkpoint(&own).unwrap(), "claim {claim}");
            assert_eq!(home.shared.checkpointer(), Ok(None));
        }
    }

    #[test]
    fn a_log_ends_before_its_positions_come_again() {
        assert_eq!(has_positions(LAST_POSITION - 1), Ok(()));
        assert_eq!(has_positions(LAST_POSITION), Err(Error::LogPositions));
        let last = (1 << 52) - 16;
        assert_eq!((Stamp::new(1, last).at(), Stamp::new(1, last + 16).at()), (last, 0));
    }
}

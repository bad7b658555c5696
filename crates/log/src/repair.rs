//! What a dead thread left in the log, and who puts it right.
//!
//! | left | put right by |
//! |---|---|
//! | the latch, with a slot changed and `end` not moved | the next that latches restores the slot |
//! | the flusher's claim | a follower after a nap, or a sweep |
//! | the maker's claim, a half-made segment | the next that makes one; the file is made anew |
//! | credit | a thread that waits for some, or a sweep |
//! | pins, what it waited for | a sweep |
//! | a transaction without an end | the layer above, from the slot's `last` |
//!
//! A sweep is the region's: [`Log::open`] registers the log's part of it. A thread that waits
//! takes a latch or a claim from the dead only while it has claimed their slot, so that no
//! living thread can have got the same name meanwhile.
//!
//! Each step may be done again: the thread that repairs may die, too.

use core::sync::atomic::Ordering::{Relaxed, Release};

use latchwork_latch::HolderNumber;
use latchwork_machine::{ConstMachine, Word};
use latchwork_region::{Dead, InHand, Layer, Repair};

use crate::layout::{Shared, unclaim};
use crate::log::LogRepair;
use crate::point::point;
use crate::{Error, Log, Session};

impl<M: ConstMachine> Log<M> {
    /// Restores what the latch guards, with the latch taken over from a dead thread.
    pub(crate) fn repair_append(&self, shared: &Shared<M>) -> Result<(), Error> {
        let append = &shared.append;
        if append.note_lsn.load(Relaxed) >= shared.end.0.load(Relaxed) {
            // The record of the note is not in the log, or there was none: what the note says
            // is how the slot is.
            let number = append.note_slot.load(Relaxed);
            if let Ok(slot) = self.slot_of(u32::try_from(number).unwrap_or(u32::MAX)) {
                slot.first.store(append.note_first.load(Relaxed), Relaxed);
                slot.last.store(append.note_last.load(Relaxed), Relaxed);
                // Release: synchronizes with the Acquire in `being_committed`: a reader that sees
                // the commit taken back sees the transaction.
                slot.commits.store(append.note_commits.load(Relaxed), Release);
            }
            // Release: behind the slot's words, for who repairs after this thread dies here.
            append.note_lsn.store(0, Release);
        }
        point("repair: slot");
        let (mut credit, mut aside) = (0_u64, 0_u64);
        for slot in 0..self.inner.threads {
            let slot = self.slot_of(slot)?;
            credit = credit.saturating_add(slot.credit.load(Relaxed));
            aside = aside.saturating_add(slot.aside.load(Relaxed));
        }
        append.credit.store(credit, Relaxed);
        append.aside.store(aside, Relaxed);
        Ok(())
    }
}

impl<M: ConstMachine> Repair<M> for LogRepair<M> {
    fn layer(&self) -> Layer {
        Layer::Log
    }

    fn repair(&self, dead: &[Dead<'_, M>]) -> Result<(), latchwork_region::Error> {
        let gone = latchwork_region::Error::NoRepair(Layer::Log);
        let log = Log { inner: self.log.upgrade().ok_or(gone)? };
        let thread = log.inner.area.region().sweeper()?;
        let repaired = Session::of_sweeper(&log, &thread).and_then(|session| {
            // What others wait for comes first, of all of them.
            dead.iter().try_for_each(|dead| session.open_latch(dead.number()))?;
            dead.iter().try_for_each(|dead| session.repair(dead.number()))
        });
        repaired.map_err(|error| match error {
            Error::Region(error) => error,
            _ => latchwork_region::Error::Repair(Layer::Log),
        })
    }

    fn leads_to(&self, cells: &[InHand]) -> Result<Vec<bool>, latchwork_region::Error> {
        // The log has no cells of the region.
        Ok(vec![false; cells.len()])
    }
}

impl<M: ConstMachine> Session<M> {
    /// Opens the latch if this dead thread has it, whose slot this process has claimed.
    pub(crate) fn open_latch(&self, dead: u32) -> Result<(), Error> {
        let shared = self.log.shared()?;
        let number = HolderNumber::new(dead + 1).ok_or(Error::Threads(dead))?;
        if let Some(latched) = shared.append.latch.take_over(number, self) {
            self.log.repair_append(shared)?;
            drop(latched);
        }
        Ok(())
    }

    /// Puts right what else this dead thread left. The slot's `first` and `last` stay, for the
    /// layer above to undo from.
    fn repair(&self, dead: u32) -> Result<(), Error> {
        let (shared, name) = (self.log.shared()?, u64::from(dead) + 1);
        unclaim(&shared.maker.0, name);
        unclaim(&shared.flusher.0, name);
        point("repair: claims");
        self.log.wake(shared)?;
        // A sweeper's slot has nothing in the log.
        if let Ok(slot) = self.log.slot_of(dead) {
            slot.waits.store(0, Relaxed);
            let latched = self.latch()?;
            let (all, has) = (shared.append.credit.load(Relaxed), slot.credit.load(Relaxed));
            // It may have been taken to undo something.
            self.take_back(shared, slot);
            point("repair: aside");
            // Release, both: a sweeper that dies between the two leaves a sum that is too high,
            // which the repair of the latch counts anew.
            slot.credit.store(0, Release);
            shared.append.credit.store(all.saturating_sub(has), Release);
            if slot.first.load(Relaxed) == 0 {
                self.free_aside(shared, slot);
            }
            for pin in &shared.pins {
                unclaim(&pin.owner, name);
            }
            drop(latched);
        }
        Ok(())
    }

    /// Forgets the transaction of a slot: the layer above has undone it, or finds it committed.
    ///
    /// # Death
    ///
    /// A thread that is killed here may leave a slot with a first record and no last one. The layer
    /// above forgets it again.
    ///
    /// # Errors
    ///
    /// [`Error::Threads`], [`Error::Region`].
    pub fn forget(&self, slot: u32) -> Result<(), Error> {
        let (shared, slot) = (self.log.shared()?, self.log.slot_of(slot)?);
        let latched = self.latch()?;
        // The last before the first: the log is kept from the first on, so a thread that dies in
        // between leaves no record to be read that may be gone.
        // Release, both: for that order.
        slot.last.store(0, Release);
        point("repair: forget");
        slot.first.store(0, Release);
        self.free_aside(shared, slot);
        drop(latched);
        Ok(())
    }
}

//! The state that a dead thread left in the log, and its repair.
//!
//! | left | repaired by |
//! |---|---|
//! | the latch, with `reserved` behind the places | the next thread that latches recomputes it |
//! | a place without its record, its slot changed | a thread that waits for `end`, or a sweep |
//! | a group's leadership | a thread of the group after a long wait, or a sweep |
//! | the flusher's claim | a follower after a nap, or a sweep |
//! | the maker's claim, a partial segment | the next thread that creates one, from the start |
//! | credit | a thread that waits for credit, or a sweep |
//! | pins, the wait of the thread | a sweep |
//! | a transaction without an end | the layer above, from the slot's `last` |
//!
//! The region runs the sweep: [`Log::open`] registers the log's part of it. A waiting thread takes
//! over a latch or a claim of a dead thread only while it has claimed that thread's slot, so that
//! no living thread can have received the same number.
//!
//! Each step can be repeated, because the repairing thread may also die.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_latch::HolderNumber;
use latchwork_machine::{ConstMachine, Word};
use latchwork_region::{Dead, InHand, Layer, Repair};

use crate::layout::{Shared, unclaim};
use crate::log::LogRepair;
use crate::point::point;
use crate::{Error, Log, Session};

impl<M: ConstMachine> Log<M> {
    /// Recomputes the words that the latch guards, after the latch was taken over from a dead
    /// thread. They follow from the places in flight and from the slots.
    pub(crate) fn repair_append(&self, shared: &Shared<M>) -> Result<(), Error> {
        let append = &shared.append;
        let mut reserved = 0;
        for flight in self.flights(shared) {
            reserved = reserved.max(flight?.to);
        }
        // Acquire: after the flights, because records that have left flight since lie below it.
        let end = shared.end.0.load(Acquire);
        append.reserved.store(reserved.max(end), Relaxed);
        point("repair: reserved");
        self.fill_again(shared)?;
        let (mut promised, mut aside) = (append.base.load(Relaxed), 0_u64);
        for slot in 0..self.inner.threads {
            let slot = self.slot_of(slot)?;
            promised = promised.saturating_add(slot.granted.load(Relaxed));
            aside = aside.saturating_add(slot.aside.load(Relaxed));
        }
        append.promised.store(promised, Relaxed);
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
            // First open the latches of all of them, because other threads wait for those.
            dead.iter().try_for_each(|dead| session.open_latch(dead.number()))?;
            session.end_flights_of(dead.iter().map(latchwork_region::Dead::number))?;
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
    /// Opens the latch if this dead thread holds it. This process has claimed the thread's slot.
    pub(crate) fn open_latch(&self, dead: u32) -> Result<(), Error> {
        let shared = self.log.shared()?;
        let number = HolderNumber::new(dead + 1).ok_or(Error::Threads(dead))?;
        if let Some(latched) = shared.append.latch.take_over(number, self) {
            self.log.repair_append(shared)?;
            drop(latched);
        }
        Ok(())
    }

    /// Repairs the rest of this dead thread's state. The slot's `first` and `last` stay, so that
    /// the layer above can roll the transaction back.
    fn repair(&self, dead: u32) -> Result<(), Error> {
        let (shared, name) = (self.log.shared()?, u64::from(dead) + 1);
        unclaim(&shared.maker.0, name);
        unclaim(&shared.flusher.0, name);
        shared.groups.iter().for_each(|group| unclaim(&group.leader.0, name));
        point("repair: claims");
        self.log.wake(shared)?;
        // The slot of a sweeper has no state in the log.
        if let Ok(slot) = self.log.slot_of(dead) {
            slot.waits.store(0, Relaxed);
            let latched = self.latch()?;
            // The credit may have been taken for a rollback.
            self.take_back(shared, slot);
            point("repair: aside");
            self.settle(shared, slot);
            self.return_credit(shared, slot, 0);
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

    /// Removes the transaction of a slot. The layer above has rolled it back, or has found it
    /// committed.
    ///
    /// # Death
    ///
    /// A thread that is killed here may leave a slot with a first record and no last one. The layer
    /// above calls this again.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Threads`] if the log has no such slot, and [`Error::Region`] if the region
    /// fails or was opened before a fork.
    pub fn forget(&self, slot: u32) -> Result<(), Error> {
        let (shared, slot) = (self.log.shared()?, self.log.slot_of(slot)?);
        let latched = self.latch()?;
        // The last before the first: the log is kept from the first on, so a thread that dies in
        // between leaves no reference to a record that may be recycled.
        // Release, both: for that order.
        slot.last.store(0, Release);
        point("repair: forget");
        slot.first.store(0, Release);
        self.free_aside(shared, slot);
        drop(latched);
        Ok(())
    }
}

//! Credit: the right to append a number of bytes.
//!
//! A thread obtains credit before it latches anything, and blocks only there. Whenever the latch is
//! free,
//!
//! ```text
//!   promised - written <= the buffer's size       promised + all aside <= prepared
//! ```
//!
//! where `promised` is `reserved` plus all credit. An append with credit therefore finds room,
//! never waits for the disk, and changes neither sum: its bytes leave the credit and enter
//! `reserved`.
//!
//! | word of a slot | meaning | changed by |
//! |---|---|---|
//! | `granted` | bytes ever granted, less the bytes returned | under the latch |
//! | `used` | bytes ever appended, void records included | its thread, or for it a repair |
//! | `held` | bytes of credit kept for the rollback of its transaction | its thread, or a leader |
//! | `aside` | bytes set aside for rollback, outside of credit | under the latch |
//!
//! A leader changes them only for a thread that requested it and still waits.
//!
//! Credit is `granted - used - held`. A record of a transaction moves bytes from credit to `held`,
//! and the commit returns them. So a short transaction touches no shared word for its undo reserve.
//! When a thread needs more credit, or returns some, `held` moves to `aside` (`undo_reserve.rs`),
//! because the buffer needs no room for it.
//!
//! `promised` is `base` plus all `granted`, and the sum of `aside` is the sum over all slots. Both
//! are recomputed after the death of a latch holder.
//!
//! Credit is granted in portions, so most reservations are one comparison. All portions together
//! are at most three quarters of the buffer ([`Log::portion`](crate::Log::portion)). A thread that
//! reserved more than it used returns the rest (`give_back`) before it does anything else: other
//! threads cannot take credit from a living thread, and would wait for it.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{ConstMachine, Deadline, Word};
use latchwork_region::Error as RegionError;

use crate::buffer::Size;
use crate::flush::Until;
use crate::layout::{Shared, Slot};
use crate::options::YIELDS;
use crate::point::point;
use crate::{Error, Lsn, Session};

/// The result of an attempt to grant credit.
pub(crate) struct Tried {
    /// The bytes that the slot lacks; zero if it has enough.
    pub(crate) missing: u64,
    /// The bytes that the segments have room for.
    pub(crate) space: u64,
    pub(crate) size: Size,
    pub(crate) prepared: u64,
}

impl<M: ConstMachine> Slot<M> {
    /// Returns the bytes that the slot's thread may append.
    #[inline]
    pub(crate) fn credit(&self) -> u64 {
        // Relaxed, all: words of this thread, or under the latch those of a dead thread.
        let (granted, used) = (self.granted.load(Relaxed), self.used.load(Relaxed));
        granted.saturating_sub(used).saturating_sub(self.held.load(Relaxed))
    }
}

impl<M: ConstMachine> Session<M> {
    /// Obtains the right to append `bytes`, including the credit that this thread already has.
    ///
    /// Blocks until there is room, and writes the contents of the buffer to the files. The caller
    /// must hold nothing that other threads need. A thread that waits for the credit of others
    /// first returns its own; otherwise all threads could wait, each with a part of the bytes that
    /// one of them needs.
    ///
    /// Usual cost: one comparison. The thread keeps the credit that it does not use.
    ///
    /// # Errors
    ///
    /// Returns [`Error::TooLarge`] for more than a quarter of the buffer, [`Error::Disk`] with
    /// [`NoSpace`](latchwork_disk::Error::NoSpace) if there is no room for another segment, and
    /// [`Error::Broken`] if a write or a sync of the log has failed. After `NoSpace` the thread can
    /// still append the bytes reserved before, except bytes that a wait returned.
    ///
    /// # Death
    ///
    /// The credit of a killed thread is returned by the next sweep, or taken by the next thread
    /// that waits for credit.
    #[inline]
    pub fn reserve(&self, bytes: u64) -> Result<(), Error> {
        let slot = self.log.slot_of(self.slot)?;
        if slot.credit() >= bytes {
            return Ok(());
        }
        self.reserve_slow(slot, bytes)
    }

    #[cold]
    fn reserve_slow(&self, slot: &Slot<M>, bytes: u64) -> Result<(), Error> {
        let (shared, inner) = (self.log.shared()?, &self.log.inner);
        let limit = inner.buffer / 4;
        if bytes > limit {
            return Err(Error::TooLarge { limit });
        }
        if self.log.buffer_size(shared)?.can_never_hold(bytes) {
            return Err(RegionError::NoSpace.into());
        }
        self.check_broken(shared)?;
        // The leader of the group grants it together with the credit of other threads.
        self.request_credit(shared, slot, bytes)?;
        let mut waits = 0;
        while slot.credit() < bytes {
            self.check_broken(shared)?;
            let latched = self.latch()?;
            let tried = self.grant(shared, slot, bytes);
            drop(latched);
            let Tried { missing, space, size, prepared, .. } = tried?;
            if space < missing {
                self.make_segment(prepared)?;
            } else if missing != 0 && !size.is_final() {
                self.enlarge(shared, size)?;
            } else if missing != 0 {
                self.write_out(shared, &mut waits)?;
            }
        }
        // Relaxed, both: a later place is an equally good start.
        let (end, spans) = (shared.append.reserved.load(Relaxed), inner.segments.spans);
        let prepared = shared.prepared.0.load(Relaxed);
        if prepared.saturating_sub(end) < spans.length(spans.number(end)) / 2 {
            self.prepare_ahead(prepared, end);
        }
        Ok(())
    }

    /// Grants a slot a portion of credit so that it has at least `bytes`, or reports how much it
    /// lacks. The latch is held. The slot's thread is this one, or it waits for this one.
    pub(crate) fn grant(
        &self,
        shared: &Shared<M>,
        slot: &Slot<M>,
        bytes: u64,
    ) -> Result<Tried, Error> {
        let (append, base) = (&shared.append, self.log.inner.buffer_base);
        self.settle(shared, slot);
        let (end, promised) = (append.reserved.load(Relaxed), append.promised.load(Relaxed));
        let has = slot.credit();
        let needed = bytes.saturating_sub(has);
        // Acquire: synchronizes with the Release in `lead`, so that the bytes that are overwritten
        // are in the files.
        let used = end.saturating_sub(shared.written.0.load(Acquire));
        let size = self.log.buffer_size(shared)?;
        let room = size.room(base, (end, used, promised.saturating_sub(end)));
        // Acquire: synchronizes with the Release in `make_segment`.
        let prepared = shared.prepared.0.load(Acquire);
        let space = prepared.saturating_sub(promised + self.all_aside(shared));
        let portion = bytes.max(self.log.portion());
        let gets = portion.saturating_sub(has).min(room).min(space);
        if gets >= needed {
            slot.granted.store(slot.granted.load(Relaxed) + gets, Relaxed);
            point("reserve: slot");
            append.promised.store(promised + gets, Relaxed);
            return Ok(Tried { missing: 0, space, size, prepared });
        }
        Ok(Tried { missing: needed, space, size, prepared })
    }

    /// Waits for room in the buffer. Writes its contents to the files, and waits for threads that
    /// have credit or copy their records.
    pub(crate) fn write_out(&self, shared: &Shared<M>, waits: &mut u32) -> Result<(), Error> {
        let (end, written) = (shared.end.0.load(Relaxed), shared.written.0.load(Relaxed));
        self.advance(Lsn(end.saturating_sub(1)), Until::Written)?;
        if end == written {
            self.give_back(0)?;
            self.wait_for_credit(waits)?;
        }
        Ok(())
    }

    /// Yields to threads that have credit, and takes the credit of dead threads.
    pub(crate) fn wait_for_credit(&self, waits: &mut u32) -> Result<(), Error> {
        *waits += 1;
        if *waits <= YIELDS {
            M::yield_now();
            return Ok(());
        }
        self.nap();
        for number in self.log.each_slot() {
            let has = self.log.slot_of(number)?.credit();
            if has != 0 && self.log.is_dead(u64::from(number) + 1) {
                let take = || self.take_credit_of(number);
                self.log.for_dead(u64::from(number) + 1, take)?.unwrap_or(Ok(()))?;
            }
        }
        self.end_dead_flights()
    }

    /// Sleeps for one nap. No thread wakes this one.
    pub(crate) fn nap(&self) {
        // The slot of a sweeper may have no place in the log.
        let Ok(slot) = self.log.slot_of(self.slot) else { return M::yield_now() };
        let seen = slot.notifier.load(Relaxed);
        M::wait(&slot.notifier, seen, Some(Deadline::after::<M>(self.log.inner.nap)));
    }

    /// Takes the credit of a dead thread. This process has claimed its slot.
    fn take_credit_of(&self, dead: u32) -> Result<(), Error> {
        let (shared, slot) = (self.log.shared()?, self.log.slot_of(dead)?);
        // The latch may be held by this dead thread; while its slot is claimed, no other thread
        // takes the latch from it.
        self.open_latch(dead)?;
        let latched = self.latch()?;
        self.end_flight(shared, dead)?;
        // The credit may have been taken for a rollback.
        self.take_back(shared, slot);
        self.return_credit(shared, slot, 0);
        drop(latched);
        Ok(())
    }

    /// Returns the credit of a slot above `keep` bytes. The latch is held.
    pub(crate) fn return_credit(&self, shared: &Shared<M>, slot: &Slot<M>, keep: u64) {
        let back = slot.credit().saturating_sub(keep);
        let promised = shared.append.promised.load(Relaxed);
        // Release, both: a thread that dies between the two leaves a sum that is too high, which
        // the repair of the latch recomputes.
        slot.granted.store(slot.granted.load(Relaxed).saturating_sub(back), Release);
        point("credit: slot");
        shared.append.promised.store(promised.saturating_sub(back), Release);
    }

    /// Returns how many bytes this thread may append now; zero in the child of a fork.
    #[inline]
    pub fn credit(&self) -> u64 {
        self.log.slot_of(self.slot).map_or(0, Slot::credit)
    }

    /// Returns the credit of this thread above `keep` bytes to the log. Call it in a thread that
    /// reserved much and used little. Every thread may keep [`Log::portion`](crate::Log::portion)
    /// bytes. Dropping the session returns all credit.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Region`] if the region fails or was opened before a fork.
    pub fn give_back(&self, keep: u64) -> Result<(), Error> {
        let (shared, slot) = (self.log.shared()?, self.log.slot_of(self.slot)?);
        if slot.credit() > keep || slot.held.load(Relaxed) > keep {
            let latched = self.latch()?;
            self.settle(shared, slot);
            self.return_credit(shared, slot, keep);
            drop(latched);
        }
        Ok(())
    }
}

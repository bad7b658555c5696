//! What is set aside for undoing.
//!
//! Undoing must not fail for want of space: locks would be held for ever. So each record of a
//! transaction sets bytes of the segments aside for the record that undoes it, in its slot, where
//! they outlive its thread:
//!
//! ```text
//!            append           take                     append
//!   credit ─────────▶ aside ────────▶ credit of the ─────────▶ end
//!     ▲                 │             thread that undoes │
//!     └── commit, end ──┘                  └── put back ─┘ not used
//! ```
//!
//! A checkpoint's mark adds to it: from then on the first change of a page logs it whole, and so
//! may undoing. That is set aside at the mark, once for all transactions, for no more pages than
//! there are and no more than can be undone; a mark for which there is no room is not made. A
//! thread that dies while it undoes had taken what its next record takes: its slot says of which
//! transaction, and there it goes back, so the thread that undoes next has it.
//!
//! Room in the buffer is not set aside, for it can always be had by writing out.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{ConstMachine, Word};

use crate::flush::Until;
use crate::layout::{Shared, Slot};
use crate::point::point;
use crate::record::ASIDE_LEAST;
use crate::{Error, Lsn, Session};

impl<M: ConstMachine> Session<M> {
    /// What is set aside, pages counted in. The latch is held.
    pub(crate) fn all_aside(&self, shared: &Shared<M>) -> u64 {
        shared.append.aside.load(Relaxed).saturating_add(images(shared))
    }

    /// Makes what was set aside with `slot`'s records this thread's credit: `bytes` of it, and
    /// `image` for a page that may have to be logged whole. Credit that the thread has already is
    /// counted in: what a long rollback does not use of it must not add up. Where less is set
    /// aside than `bytes` it is reserved as usual. Waits for room in the buffer; the caller holds
    /// nothing that others need. Returns how much of `image` there was.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve).
    pub fn take_aside(&self, slot: u32, bytes: u64, image: u64) -> Result<u64, Error> {
        let (shared, inner) = (self.log.shared()?, &self.log.inner);
        let (mine, other) = (self.log.slot_of(self.slot)?, self.log.slot_of(slot)?);
        let limit = inner.buffer / 4;
        if bytes + image > limit {
            return Err(Error::TooLarge { limit });
        }
        let mut waits = 0;
        loop {
            self.check_broken(shared)?;
            let latched = self.latch()?;
            let (end, all) = (shared.end.0.load(Relaxed), shared.append.credit.load(Relaxed));
            let (has, sum) = (other.aside.load(Relaxed), shared.append.aside.load(Relaxed));
            let (own, whole) = (has.min(bytes), images(shared));
            let image = image.min(whole);
            let credit = mine.credit.load(Relaxed);
            let gets = (bytes + image).saturating_sub(credit);
            let usual = (bytes - own).saturating_sub(credit);
            // Acquire: as in `reserve_slow`.
            let used = end.saturating_sub(shared.written.0.load(Acquire));
            let size = self.log.buffer_size(shared)?;
            let room = size.room(inner.buffer_base, (end, used, all));
            // Acquire: as in `reserve_slow`.
            let prepared = shared.prepared.0.load(Acquire);
            let space = prepared.saturating_sub(end + all + self.all_aside(shared));
            let granted = gets <= room && usual <= space;
            if granted {
                mine.took_of.store(slot + 1, Relaxed);
                // Release, all: what is credit is not aside any more. A thread that dies in
                // between leaves too much of it, which the repair of the latch counts anew.
                mine.credit.store(credit + gets, Release);
                point("aside: credit");
                shared.append.credit.store(all + gets, Release);
                other.aside.store(has - own, Release);
                shared.append.aside.store(sum.saturating_sub(own), Release);
                shared.append.images.store(whole - image, Release);
            }
            drop(latched);
            if granted {
                point("aside: taken");
                return Ok(image);
            }
            if usual > space {
                self.make_segment(prepared)?;
            } else if !size.is_final() {
                self.enlarge(shared, size)?;
            } else {
                self.advance(Lsn(end.saturating_sub(1)), Until::Written)?;
                if used == 0 {
                    self.wait_for_credit(waits)?;
                    waits += 1;
                }
            }
        }
    }

    /// Sets credit of this thread aside again, as far as it has it: what was taken and not used.
    ///
    /// # Errors
    ///
    /// [`Error::Threads`], [`Error::Region`].
    pub fn put_aside(&self, slot: u32, bytes: u64, image: u64) -> Result<(), Error> {
        let shared = self.log.shared()?;
        let (mine, other) = (self.log.slot_of(self.slot)?, self.log.slot_of(slot)?);
        let latched = self.latch()?;
        let credit = mine.credit.load(Relaxed);
        let bytes = bytes.min(credit);
        let image = image.min(credit - bytes);
        let append = &shared.append;
        let whole = images(shared);
        // Relaxed, all: a thread that dies in between leaves too much, as in `take_aside`.
        other.aside.store(other.aside.load(Relaxed) + bytes, Relaxed);
        append.aside.store(append.aside.load(Relaxed) + bytes, Relaxed);
        append.images.store(whole + image, Relaxed);
        mine.credit.store(credit - bytes - image, Relaxed);
        let all = append.credit.load(Relaxed);
        append.credit.store(all.saturating_sub(bytes + image), Relaxed);
        drop(latched);
        Ok(())
    }

    /// Sets aside again what the thread of a dead slot had taken and not used, if the transaction
    /// that it was taken of is still to be undone. Nobody knows which part of its credit that is,
    /// so all counts as both, for records and for a page: more than was taken is never used, and
    /// goes when the transaction ends. The latch is held; the caller takes the credit away.
    pub(crate) fn take_back(&self, shared: &Shared<M>, dead: &Slot<M>) {
        let (has, append) = (dead.credit.load(Relaxed), &shared.append);
        let of = dead.took_of.load(Relaxed).checked_sub(1);
        let Some(Ok(of)) = of.map(|of| self.log.slot_of(of)) else { return };
        if of.first.load(Relaxed) == 0 {
            return;
        }
        let image = append.image.load(Relaxed).min(has);
        // Relaxed, all: a sweeper that dies before the credit is gone leaves too much, too.
        of.aside.store(of.aside.load(Relaxed).saturating_add(has), Relaxed);
        append.aside.store(append.aside.load(Relaxed).saturating_add(has), Relaxed);
        append.images.store(images(shared).saturating_add(image), Relaxed);
    }

    /// Nothing of the slot is to be undone any more. The latch is held.
    pub(crate) fn free_aside(&self, shared: &Shared<M>, slot: &Slot<M>) {
        let has = slot.aside.load(Relaxed);
        if has != 0 {
            slot.aside.store(0, Relaxed);
            let aside = shared.append.aside.load(Relaxed);
            shared.append.aside.store(aside.saturating_sub(has), Relaxed);
        }
    }

    /// Marks the log where it ends now, and returns that. A record that is
    /// [appended since](Self::append_since) an earlier mark is refused from here on: so all
    /// records behind the mark are of threads that know of it.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn mark(&self) -> Result<Lsn, Error> {
        self.mark_with(0, 0)
    }

    /// As [`mark`](Self::mark), where undoing logs each of at most `pages` pages whole once more,
    /// in `image` bytes: these are set aside first.
    ///
    /// # Errors
    ///
    /// [`Error::Region`]; [`Error::Disk`] if there is no room: then nothing is marked.
    pub fn mark_with(&self, image: u64, pages: u64) -> Result<Lsn, Error> {
        let shared = self.log.shared()?;
        loop {
            let latched = self.latch()?;
            let end = shared.end.0.load(Relaxed);
            let append = &shared.append;
            let aside = append.aside.load(Relaxed);
            let whole = (aside / ASIDE_LEAST).min(pages).saturating_mul(image);
            // Acquire: as in `reserve_slow`.
            let prepared = shared.prepared.0.load(Acquire);
            let used = end + append.credit.load(Relaxed) + aside;
            let fits = whole <= prepared.saturating_sub(used);
            if fits {
                append.image.store(image, Relaxed);
                append.images.store(whole, Relaxed);
                // Relaxed: it is compared under the latch; other looks at it are hints.
                shared.found.marked.store(end, Relaxed);
            }
            drop(latched);
            if fits {
                return Ok(Lsn(end));
            }
            self.make_segment(prepared)?;
        }
    }
}

/// What is set aside for whole pages: for no more of them than there are records to undo. The latch
/// is held.
pub(crate) fn images<M: latchwork_machine::Machine>(shared: &Shared<M>) -> u64 {
    let append = &shared.append;
    let most =
        (append.aside.load(Relaxed) / ASIDE_LEAST).saturating_mul(append.image.load(Relaxed));
    append.images.load(Relaxed).min(most)
}

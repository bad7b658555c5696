//! The undo reserve: log space that is set aside for rollback.
//!
//! Rollback must not fail for lack of space, because its locks would then be held forever. So each
//! record of a transaction sets bytes of the segments aside for the record that undoes it. They are
//! counted in the slot, where they outlive its thread:
//!
//! ```text
//!            append          settle           take                     append
//!   credit ─────────▶ held ─────────▶ aside ────────▶ credit of the ─────────▶ log
//!     ▲                 │               │             thread that undoes │
//!     └── commit, end ──┴───────────────┘                  └── put back ─┘ not used
//! ```
//!
//! `held` is part of the thread's own credit, so a short transaction touches no shared word for it.
//! It is settled when the thread needs more credit, when it returns some, and when it is dead.
//!
//! A checkpoint's mark increases the reserve: after it, the first change of a page logs the whole
//! page, also during rollback. The bytes for this are set aside at the mark, once for all
//! transactions, and for no more pages than exist and no more than can be undone. If there is no
//! room, the mark fails.
//!
//! A thread that undoes takes from the reserve the bytes of its next record. If it dies, its slot
//! names the transaction from whose reserve it took them. They return to that reserve, and the next
//! thread that undoes the transaction uses them.
//!
//! Room in the buffer is not set aside, because writing the buffer out always provides it.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{ConstMachine, Word};

use crate::flush::Until;
use crate::layout::{Shared, Slot};
use crate::point::point;
use crate::record::ASIDE_LEAST;
use crate::wait::Wait;
use crate::{Error, Lsn, Session};

impl<M: ConstMachine> Session<M> {
    /// Returns the bytes that are set aside, including those for pages. The latch is held.
    pub(crate) fn all_aside(&self, shared: &Shared<M>) -> u64 {
        shared.append.aside.load(Relaxed).saturating_add(images(shared))
    }

    /// Moves bytes that `slot`'s records set aside to this thread's credit: `bytes`, and `image`
    /// for a page that may have to be logged whole. Returns how much of `image` was available.
    ///
    /// Credit that the thread already has counts towards the sum, so that unused bytes do not
    /// accumulate during a long rollback. If less than `bytes` is set aside, the rest is reserved
    /// as usual. Blocks until the buffer has room; the caller must hold nothing that other threads
    /// need.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`reserve`](Self::reserve).
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
            // The slot belongs to this thread or to a dead thread.
            self.settle(shared, other);
            let append = &shared.append;
            let (end, promised) = (append.reserved.load(Relaxed), append.promised.load(Relaxed));
            let (has, sum) = (other.aside.load(Relaxed), append.aside.load(Relaxed));
            let (own, whole) = (has.min(bytes), images(shared));
            let image = image.min(whole);
            let credit = mine.credit();
            let gets = (bytes + image).saturating_sub(credit);
            let usual = (bytes - own).saturating_sub(credit);
            // Acquire: as in `grant`.
            let used = end.saturating_sub(shared.written.0.load(Acquire));
            let size = self.log.buffer_size(shared)?;
            let room = size.room(inner.buffer_base, (end, used, promised.saturating_sub(end)));
            // Acquire: as in `grant`.
            let prepared = shared.prepared.0.load(Acquire);
            let space = prepared.saturating_sub(promised + self.all_aside(shared));
            let granted = gets <= room && usual <= space;
            if granted {
                mine.took_of.store(slot + 1, Relaxed);
                // Release, all: credit is no longer set aside. A thread that dies in between leaves
                // too much set aside, and the repair of the latch recomputes the sums.
                mine.granted.store(mine.granted.load(Relaxed) + gets, Release);
                point("aside: credit");
                append.promised.store(promised + gets, Release);
                other.aside.store(has - own, Release);
                append.aside.store(sum.saturating_sub(own), Release);
                append.images.store(whole - image, Release);
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
                // This thread's credit is part of the bytes taken, so it is not returned.
                let end = shared.end.0.load(Relaxed);
                self.advance(Lsn(end.saturating_sub(1)), Until::Written)?;
                if end == shared.written.0.load(Relaxed) {
                    self.wait_for_credit(&mut waits)?;
                }
            }
        }
    }

    /// Sets unused credit of this thread aside again, at most the credit that it has.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Threads`] if the log has no such slot, and [`Error::Region`] if the region
    /// fails or was opened before a fork.
    pub fn put_aside(&self, slot: u32, bytes: u64, image: u64) -> Result<(), Error> {
        let shared = self.log.shared()?;
        let (mine, other) = (self.log.slot_of(self.slot)?, self.log.slot_of(slot)?);
        let latched = self.latch()?;
        let credit = mine.credit();
        let bytes = bytes.min(credit);
        let image = image.min(credit - bytes);
        let append = &shared.append;
        let whole = images(shared);
        // Relaxed, all: a thread that dies in between leaves too much, as in `take_aside`.
        other.aside.store(other.aside.load(Relaxed) + bytes, Relaxed);
        append.aside.store(append.aside.load(Relaxed) + bytes, Relaxed);
        append.images.store(whole + image, Relaxed);
        self.return_credit(shared, mine, credit - bytes - image);
        drop(latched);
        Ok(())
    }

    /// Sets aside again the credit that the thread of a dead slot had taken and not used, if the
    /// transaction that it was taken from must still be undone. The split is unknown, so the whole
    /// credit is returned to both reserves, for records and for a page. The excess is never used,
    /// and is freed when the transaction ends. The latch is held; the caller takes the credit away.
    pub(crate) fn take_back(&self, shared: &Shared<M>, dead: &Slot<M>) {
        let (has, append) = (dead.credit(), &shared.append);
        let of = dead.took_of.load(Relaxed).checked_sub(1);
        let Some(Ok(of)) = of.map(|of| self.log.slot_of(of)) else { return };
        if of.first.load(Relaxed) == 0 {
            return;
        }
        let image = append.image.load(Relaxed).min(has);
        // Relaxed, all: a sweeper that dies before the credit is taken away also leaves too much.
        of.aside.store(of.aside.load(Relaxed).saturating_add(has), Relaxed);
        append.aside.store(append.aside.load(Relaxed).saturating_add(has), Relaxed);
        append.images.store(images(shared).saturating_add(image), Relaxed);
    }

    /// Moves the bytes that a slot holds for rollback from its credit to the bytes set aside. The
    /// latch is held; the slot belongs to this thread or to a dead thread.
    pub(crate) fn settle(&self, shared: &Shared<M>, slot: &Slot<M>) {
        let (held, append) = (slot.held.load(Relaxed), &shared.append);
        if held == 0 {
            return;
        }
        // Release, all: a thread that dies in between leaves too much aside until its transaction
        // ends, and the repair of the latch recomputes the sums.
        slot.aside.store(slot.aside.load(Relaxed) + held, Release);
        append.aside.store(append.aside.load(Relaxed) + held, Release);
        point("settle: aside");
        slot.granted.store(slot.granted.load(Relaxed).saturating_sub(held), Release);
        slot.held.store(0, Release);
        append.promised.store(append.promised.load(Relaxed).saturating_sub(held), Release);
    }

    /// Frees the bytes that the slot has set aside, when no rollback needs them. The latch is held.
    pub(crate) fn free_aside(&self, shared: &Shared<M>, slot: &Slot<M>) {
        slot.held.store(0, Relaxed);
        let has = slot.aside.load(Relaxed);
        if has != 0 {
            slot.aside.store(0, Relaxed);
            let aside = shared.append.aside.load(Relaxed);
            shared.append.aside.store(aside.saturating_sub(has), Relaxed);
        }
    }

    /// Marks the log at its present end, and returns that place. From now on a record that is
    /// [appended since](Self::append_since) an earlier mark is refused, so the thread of each
    /// record after the mark has seen the mark.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Region`] if the region fails or was opened before a fork.
    pub fn mark(&self) -> Result<Lsn, Error> {
        self.mark_with(0, 0)
    }

    /// Marks the log like [`mark`](Self::mark), and first sets bytes aside for rollback, which may
    /// log each of at most `pages` pages whole once more, in `image` bytes.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Disk`] if there is no room; then nothing is marked. Returns
    /// [`Error::Region`] if the region fails or was opened before a fork.
    pub fn mark_with(&self, image: u64, pages: u64) -> Result<Lsn, Error> {
        let shared = self.log.shared()?;
        let append = &shared.append;
        let marked = loop {
            let latched = self.latch()?;
            let end = append.reserved.load(Relaxed);
            // Bytes held for records that are appended concurrently may be counted or not: those
            // records come after the mark.
            let mut aside = append.aside.load(Relaxed);
            // Each record in flight may hold something that its thread has not stored yet.
            aside += ASIDE_LEAST * self.log.flights(shared).count() as u64;
            for slot in self.log.each_slot() {
                aside = aside.saturating_add(self.log.slot_of(slot)?.held.load(Relaxed));
            }
            let whole = (aside / ASIDE_LEAST).min(pages).saturating_mul(image);
            // Acquire: as in `grant`.
            let prepared = shared.prepared.0.load(Acquire);
            let used = append.promised.load(Relaxed) + append.aside.load(Relaxed);
            let fits = whole <= prepared.saturating_sub(used);
            if fits {
                append.image.store(image, Relaxed);
                append.images.store(whole, Relaxed);
                // Relaxed: it is compared under the latch; other loads of it are hints.
                shared.found.marked.store(end, Relaxed);
            }
            drop(latched);
            if fits {
                break end;
            }
            self.make_segment(prepared)?;
        };
        // Records that got their places before the mark may still be in copying.
        let mut wait = Wait::new(shared.group().1);
        // Acquire: synchronizes with the Release that moves the end behind them.
        while shared.end.0.load(Acquire) < marked {
            self.wait(shared, &mut wait)?;
        }
        Ok(Lsn(marked))
    }
}

/// Returns the bytes set aside for whole pages. They cover no more pages than there are records to
/// undo; all credit may be held for such records. The latch is held.
pub(crate) fn images<M: latchwork_machine::Machine>(shared: &Shared<M>) -> u64 {
    let append = &shared.append;
    let credit = append.promised.load(Relaxed).saturating_sub(append.reserved.load(Relaxed));
    let records = append.aside.load(Relaxed).saturating_add(credit) / ASIDE_LEAST;
    append.images.load(Relaxed).min(records.saturating_mul(append.image.load(Relaxed)))
}

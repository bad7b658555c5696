//! Credit, and the append.
//!
//! *Credit* is the right to append so many bytes: room in the buffer, and in segments that
//! exist. A thread asks for it before it latches anything, and waits only there. Whenever the
//! latch is free,
//!
//! ```text
//!   (end - written) + all credit <= its size      end + all credit + all aside <= prepared
//! ```
//!
//! What is *aside* is for undoing: `undo_reserve.rs`.
//!
//! so an append with credit finds room and never waits for the disk. Credit is given in
//! portions, so that most reservations are one comparison; all unused portions together are a
//! quarter of the buffer. A thread that has more, because it reserved more than it used, gives that
//! back (`give_back`) before it turns to anything else: no thread takes credit from one that does
//! nothing, so what those have is kept from all that write, who would wait for ever for it.
//!
//! The append, under the latch:
//!
//! | step | what | who is killed after it leaves |
//! |---|---|---|
//! | 1 | note how the slot is | nothing |
//! | 2 | change the slot, and take the credit | a slot that the repair restores from the note |
//! | 3 | copy the record behind `end` | bytes behind `end`, which nobody reads |
//! | 4 | store `end` | the record |
//!
//! Memory order: the record's words are relaxed stores before `end.store(Release)`; the thread
//! that reads the buffer loads `end` with Acquire first. A reader of *old* bytes, which an
//! append may overwrite, reads them, fences (Acquire) and loads `end` again: the fence
//! (Release) with which the latch begins comes between the last store of `end` and the words,
//! so a reader that saw a new word sees that `end`.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_latch::{Exclusive, HolderDied};
use latchwork_machine::{ConstMachine, Deadline, Word};
use latchwork_region::Error as RegionError;

use crate::flush::Until;
use crate::layout::{Shared, Slot};
use crate::options::YIELDS;
use crate::point::point;
use crate::{Error, Lsn, Record, Session};

impl<M: ConstMachine> Session<M> {
    /// Asks for the right to append `bytes`, those that this thread has left counted in. Waits
    /// until there is room, writing out what is in the buffer; the caller holds nothing that
    /// others need. A thread that waits for others' credit gives its own back meanwhile: else all
    /// could wait, each with a part of what one of them needs.
    ///
    /// Usual cost: one load. What is not used stays this thread's.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] for more than a quarter of the buffer; [`Error::Disk`] with
    /// [`NoSpace`](latchwork_disk::Error::NoSpace) if there is no room for another segment:
    /// nothing else is harmed, and what was reserved before can be appended, but for what was given
    /// back in a wait before. [`Error::Broken`].
    ///
    /// # Death
    ///
    /// Credit of a thread that was killed is given back by the next sweep, or taken by the next
    /// thread that waits for credit.
    pub fn reserve(&self, bytes: u64) -> Result<(), Error> {
        let slot = self.log.slot_of(self.slot)?;
        if slot.credit.load(Relaxed) >= bytes {
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
        let portion = bytes.max(self.log.portion());
        let mut waits = 0;
        loop {
            self.check_broken(shared)?;
            let latched = self.latch()?;
            let end = shared.end.0.load(Relaxed);
            let (has, all) = (slot.credit.load(Relaxed), shared.append.credit.load(Relaxed));
            let needed = bytes.saturating_sub(has);
            // Acquire: synchronizes with the Release in `lead`, so that what is overwritten is
            // in the files.
            let used = end.saturating_sub(shared.written.0.load(Acquire));
            let size = self.log.buffer_size(shared)?;
            let room = size.room(inner.buffer_base, (end, used, all));
            // Acquire: synchronizes with the Release in `make_segment`.
            let prepared = shared.prepared.0.load(Acquire);
            let space = prepared.saturating_sub(end + all + self.all_aside(shared));
            let gets = portion.saturating_sub(has).min(room).min(space);
            if gets >= needed {
                slot.credit.store(has + gets, Relaxed);
                point("reserve: slot");
                shared.append.credit.store(all + gets, Relaxed);
            }
            drop(latched);
            if space < needed {
                self.make_segment(prepared)?;
            } else if gets < needed && !size.is_final() {
                self.enlarge(shared, size)?;
            } else if gets < needed {
                // All of it is in the buffer: write that out, or wait for the thread that does.
                self.advance(Lsn(end.saturating_sub(1)), Until::Written)?;
                if used == 0 {
                    // Others have reserved the buffer and not yet appended.
                    self.give_back(0)?;
                    self.wait_for_credit(waits)?;
                    waits += 1;
                }
            } else {
                let spans = inner.segments.spans;
                if prepared - end < spans.length(spans.number(end)) / 2 {
                    self.prepare_ahead(prepared, end);
                }
                return Ok(());
            }
        }
    }

    /// Lets others run, which have credit, and takes that of those that are dead.
    pub(crate) fn wait_for_credit(&self, waits: u32) -> Result<(), Error> {
        if waits < YIELDS {
            M::yield_now();
            return Ok(());
        }
        self.nap();
        for number in self.log.each_slot() {
            let has = self.log.slot_of(number)?.credit.load(Relaxed);
            if has != 0 && self.log.is_dead(u64::from(number) + 1) {
                let take = || self.take_credit_of(number);
                self.log.for_dead(u64::from(number) + 1, take)?.unwrap_or(Ok(()))?;
            }
        }
        Ok(())
    }

    /// Sleeps for a while, called by nobody.
    pub(crate) fn nap(&self) {
        // A sweeper's slot may have no place in the log.
        let Ok(slot) = self.log.slot_of(self.slot) else { return M::yield_now() };
        let seen = slot.notifier.load(Relaxed);
        M::wait(&slot.notifier, seen, Some(Deadline::after::<M>(self.log.inner.nap)));
    }

    /// Takes the credit of a dead thread, whose slot this process has claimed.
    fn take_credit_of(&self, dead: u32) -> Result<(), Error> {
        let (shared, slot) = (self.log.shared()?, self.log.slot_of(dead)?);
        // It may have the latch: while its slot is claimed nobody else takes that from it.
        self.open_latch(dead)?;
        let latched = self.latch()?;
        let (all, has) = (shared.append.credit.load(Relaxed), slot.credit.load(Relaxed));
        // It may have been taken to undo something.
        self.take_back(shared, slot);
        // Release, both: as in `repair`.
        slot.credit.store(0, Release);
        shared.append.credit.store(all.saturating_sub(has), Release);
        drop(latched);
        Ok(())
    }

    /// How many bytes this thread may append now; none in the child of a fork.
    pub fn credit(&self) -> u64 {
        self.log.slot_of(self.slot).map_or(0, |slot| slot.credit.load(Relaxed))
    }

    /// Gives back what credit this thread has beyond `keep` bytes: for one that reserved much
    /// and used little. [`Log::portion`](crate::Log::portion) is what all may keep. Dropping the
    /// session gives back all.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn give_back(&self, keep: u64) -> Result<(), Error> {
        let (shared, slot) = (self.log.shared()?, self.log.slot_of(self.slot)?);
        if slot.credit.load(Relaxed) > keep {
            let latched = self.latch()?;
            let back = slot.credit.load(Relaxed).saturating_sub(keep);
            let all = shared.append.credit.load(Relaxed);
            slot.credit.store(keep, Relaxed);
            point("credit: slot");
            shared.append.credit.store(all.saturating_sub(back), Relaxed);
            drop(latched);
        }
        Ok(())
    }

    /// Appends a record, for which credit was reserved. Returns its place.
    ///
    /// A record that is not [`SYSTEM`](crate::Flags::SYSTEM) becomes the slot's last; with
    /// [`LAST`](crate::Flags::LAST) the slot's transaction has committed. The record can be
    /// appended again, as another.
    ///
    /// # Errors
    ///
    /// [`Error::NoCredit`], [`Error::Broken`]; [`Error::Threads`] for a record of another slot that
    /// is not [`SYSTEM`](crate::Flags::SYSTEM).
    ///
    /// # Death
    ///
    /// A thread that is killed in the call has appended the record, or nothing.
    pub fn append(&self, record: &mut Record) -> Result<Lsn, Error> {
        match self.append_if(record, None)? {
            Some(lsn) => Ok(lsn),
            None => Err(Error::Broken),
        }
    }

    /// As [`append`](Self::append), if the log is still [marked](crate::Log::marked) at `mark`.
    /// None if it is not: then nothing was appended.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn append_since(&self, record: &mut Record, mark: Lsn) -> Result<Option<Lsn>, Error> {
        self.append_if(record, Some(mark))
    }

    fn append_if(&self, record: &mut Record, mark: Option<Lsn>) -> Result<Option<Lsn>, Error> {
        let (shared, slot) = (self.log.shared()?, self.log.slot_of(self.slot)?);
        let of = record.slot();
        if of != self.slot && !record.is_system() {
            return Err(Error::Threads(of));
        }
        let bytes = record.bytes() as u64;
        let takes = bytes + record.aside;
        if slot.credit.load(Relaxed) < takes {
            return Err(Error::NoCredit);
        }
        self.check_broken(shared)?;
        let latched = self.latch()?;
        point("append: latched");
        if mark.is_some_and(|mark| mark.0 != shared.found.marked.load(Relaxed)) {
            latched.unchanged();
            return Ok(None);
        }
        let lsn = shared.end.0.load(Relaxed);
        // Before anything is changed. A record may lie across the end of the buffer.
        let (front, rest) = self.log.buffer_in(shared)?.parts(lsn, bytes as usize / 8)?;
        self.note(shared, slot, lsn);
        if !record.is_system() {
            self.chain(slot, lsn, record.is_last());
        }
        // Release: behind the note, for the repair.
        slot.newest.store(lsn, Release);
        let credit = shared.append.credit.load(Relaxed);
        shared.append.credit.store(credit.saturating_sub(takes), Relaxed);
        slot.credit.store(slot.credit.load(Relaxed).saturating_sub(takes), Relaxed);
        if record.aside != 0 {
            // Before `end`: a thread that dies in between leaves too much aside, until its
            // transaction is undone.
            slot.aside.store(slot.aside.load(Relaxed) + record.aside, Relaxed);
            let aside = shared.append.aside.load(Relaxed);
            shared.append.aside.store(aside + record.aside, Relaxed);
        }
        point("append: slot");
        record.place(lsn);
        let words = record.words();
        let (first, second) = words.split_at(words.len().min(front.len()));
        // Relaxed, both: published by the Release below.
        M::store_words(first, front);
        M::store_words(second, rest);
        point("append: copied");
        // Release: synchronizes with the Acquire of all who read below `end`.
        shared.end.0.store(lsn + bytes, Release);
        point("append: end");
        if record.is_last() {
            self.free_aside(shared, slot);
        }
        drop(latched);
        Ok(Some(Lsn(lsn)))
    }

    /// Notes how the slot is, for the repair of a death before `end` is stored.
    fn note(&self, shared: &Shared<M>, slot: &Slot<M>, lsn: u64) {
        let append = &shared.append;
        append.note_slot.store(u64::from(self.slot), Relaxed);
        append.note_first.store(slot.first.load(Relaxed), Relaxed);
        append.note_last.store(slot.last.load(Relaxed), Relaxed);
        append.note_commits.store(slot.commits.load(Relaxed), Relaxed);
        // Release: a process that is killed leaves what its instructions stored, and the
        // compiler keeps this one behind those above. The repair reads it under the latch.
        append.note_lsn.store(lsn, Release);
    }

    /// Makes `lsn` the slot's last record, and with `commits` its commit.
    fn chain(&self, slot: &Slot<M>, lsn: u64, commits: bool) {
        let first = match slot.first.load(Relaxed) {
            0 => lsn,
            first => first,
        };
        if commits {
            let count = slot.commits.load(Relaxed);
            let entry = &slot.list[count as usize % slot.list.len()];
            entry[0].store(first, Relaxed);
            entry[1].store(lsn, Relaxed);
            // Release, all three: behind the note, for the repair.
            slot.commits.store(count + 1, Release);
            slot.first.store(0, Release);
            slot.last.store(0, Release);
        } else {
            // Release, both: behind the note, for the repair.
            slot.first.store(first, Release);
            slot.last.store(lsn, Release);
        }
    }

    /// The latch of all appends, repaired if its holder died.
    pub(crate) fn latch(&self) -> Result<Exclusive<'_, Self, M>, Error> {
        let shared = self.log.shared()?;
        loop {
            match shared.append.latch.lock(self) {
                Ok(latched) => return Ok(latched),
                Err(HolderDied(dead)) => {
                    let over = || shared.append.latch.take_over(dead, self);
                    match self.log.for_dead(u64::from(dead.get()), over)? {
                        Some(Some(latched)) => {
                            self.log.repair_append(shared)?;
                            return Ok(latched);
                        }
                        // Another thread repairs it, or has.
                        Some(None) | None => M::yield_now(),
                    }
                }
            }
        }
    }

    pub(crate) fn check_broken(&self, shared: &Shared<M>) -> Result<(), Error> {
        // Relaxed: it says nothing of other words.
        if shared.broken.0.load(Relaxed) != 0 { Err(Error::Broken) } else { Ok(()) }
    }
}

//! Reads the state of thread slots without a latch.
//!
//! A slot's words are changed by its own thread, before `end` passes the record. A reader takes no
//! latch: it loads `end` first, and uses only commits below it. So it never sees the commit of a
//! record that is not in the log, though the unfinished append of a killed thread may be visible
//! until it is repaired.
//!
//! The list has one entry more than readers use: the oldest entry is where the next commit is
//! stored before the count includes it.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use latchwork_machine::{ConstMachine, Word};

use crate::layout::{Slot, SlotView};
use crate::{Error, Log, Lsn};

/// How often a reader reads a slot again whose thread keeps committing.
const LOOKS: u32 = 1000;

impl<M: ConstMachine> Log<M> {
    /// Returns the state of a thread slot in the log. If the thread appends concurrently, the words
    /// are read again, up to about a thousand times; the result may then combine two instants.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Threads`] if the log has no such slot.
    pub fn slot(&self, slot: u32) -> Result<SlotView, Error> {
        let words = self.slot_of(slot)?;
        let look = || {
            // Acquire, all: the list is read after the count, and the count again after the list.
            let commits = words.commits.load(Acquire);
            // The oldest entry may be in use by a commit whose store is in progress.
            let count = commits.min(words.list.len() as u64 - 1);
            let recent = (commits - count..commits).map(|index| {
                let pair = &words.list[index as usize % words.list.len()];
                (Lsn(pair[0].load(Acquire)), Lsn(pair[1].load(Acquire)))
            });
            let recent = recent.collect();
            let first = Lsn(words.first.load(Acquire));
            SlotView { first, last: Lsn(words.last.load(Acquire)), commits, recent }
        };
        let mut view = look();
        for _ in 0..LOOKS {
            let again = look();
            if again == view {
                break;
            }
            view = again;
        }
        Ok(view)
    }

    /// Returns how many transactions of all slots have committed.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Region`] if the region fails or was opened before a fork.
    pub fn commits(&self) -> Result<u64, Error> {
        let slots = 0..self.slots_used();
        // Relaxed: counts.
        slots.map(|slot| Ok(self.slot_of(slot)?.commits.load(Relaxed))).sum()
    }

    /// Returns a position that is not before any commit that was in the log at the time of the
    /// call. It is the position of the newest commit, or of a commit that is being logged, but
    /// never beyond the end. Returns `None` if no transaction has committed. Cost: one read of each
    /// slot.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Region`] if the region fails or was opened before a fork.
    pub fn newest_commit(&self) -> Result<Option<Lsn>, Error> {
        // All commits below this end are already in the lists.
        let (end, mut newest) = (self.end().0, 0);
        for slot in self.each_slot() {
            let words = self.slot_of(slot)?;
            // Acquire: synchronizes with the Release in `chain`.
            if let Some(last) = words.commits.load(Acquire).checked_sub(1) {
                // If other commits followed, the entry may be of a later one.
                let pair = &words.list[last as usize % words.list.len()];
                newest = newest.max(pair[1].load(Relaxed));
            }
        }
        Ok((newest != 0).then(|| Lsn(newest.min(end.saturating_sub(1)))))
    }

    /// Returns the number below which all thread slots with transactions lie.
    pub fn slots_high(&self) -> u32 {
        self.slots_used()
    }

    /// Returns the thread slots that may have records: the slots below
    /// [`slots_high`](Self::slots_high) and, after a gap, those of sweepers, which append records
    /// for dead threads.
    pub fn each_slot(&self) -> impl Iterator<Item = u32> + use<M> {
        let threads = self.inner.threads;
        self.inner.area.region().used_slots().filter(move |slot| *slot < threads)
    }

    /// Returns the last record of any kind that a thread slot appended; [`Lsn::NEVER`] if it has
    /// none, or while an append is in progress. If the thread died during an append, the result is
    /// either [`Lsn::NEVER`] or another slot's record at the same place.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Threads`] if the log has no such slot, and [`Error::Region`] if the region
    /// fails or was opened before a fork.
    pub fn newest_of(&self, slot: u32) -> Result<Lsn, Error> {
        // Acquire: synchronizes with the Release in `publish`.
        let end = self.shared()?.end.0.load(Acquire);
        let newest = self.slot_of(slot)?.newest.load(Relaxed);
        Ok(if newest < end { Lsn(newest) } else { Lsn::NEVER })
    }

    /// Returns the first and the last record of the slot's uncommitted transaction; [`Lsn::NEVER`]
    /// if it has none. The result includes every uncommitted record that was in the log at the time
    /// of the call.
    ///
    /// While the record that commits the transaction is being appended, only the first record is
    /// returned; the last is [`Lsn::NEVER`].
    ///
    /// # Errors
    ///
    /// Returns [`Error::Threads`] if the log has no such slot, and [`Error::Region`] if the region
    /// fails or was opened before a fork.
    pub fn open_of(&self, slot: u32) -> Result<(Lsn, Lsn), Error> {
        // Acquire: synchronizes with the Release in `publish`: if a commit lies below it, it does
        // for threads that read the list from here on.
        self.open_at(slot, || Ok(Lsn(self.shared()?.end.0.load(Acquire))))
    }

    /// Returns the same as [`open_of`](Self::open_of) for a log that ended at `end` or later. The
    /// caller has loaded `end` before, and need not load it again for each of many slots. A commit
    /// after `end` may count as not made.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Threads`] if the log has no such slot, and [`Error::Region`] if the region
    /// fails or was opened before a fork.
    pub fn open_before(&self, slot: u32, end: Lsn) -> Result<(Lsn, Lsn), Error> {
        self.open_at(slot, || Ok(end))
    }

    fn open_at(
        &self,
        slot: u32,
        end: impl Fn() -> Result<Lsn, Error>,
    ) -> Result<(Lsn, Lsn), Error> {
        let words: &Slot<M> = self.slot_of(slot)?;
        // Acquire, both: synchronize with the Releases in `chain`, so that a commit that took the
        // transaction away is in the list.
        let first = words.first.load(Acquire);
        let last = words.last.load(Acquire);
        if first != 0 {
            return Ok((Lsn(first), Lsn(last)));
        }
        match self.being_committed(words, end)? {
            // The count or the end may have been stored after a repair restored the slot of a
            // thread that died in between. Then the words loaded here are the restored ones.
            // Acquire, both: synchronize with the Releases in `chain`.
            0 => Ok((Lsn(words.first.load(Acquire)), Lsn(words.last.load(Acquire)))),
            first => Ok((Lsn(first), Lsn(last))),
        }
    }

    /// Returns the first record of a transaction whose commit is in the list but not yet in the
    /// log: the append is in progress, and its thread may die there. Returns 0 if there is none.
    fn being_committed(
        &self,
        words: &Slot<M>,
        end: impl Fn() -> Result<Lsn, Error>,
    ) -> Result<u64, Error> {
        loop {
            // Acquire: synchronizes with the Releases in `chain` and in `restore`.
            let commits = words.commits.load(Acquire);
            let Some(newest) = commits.checked_sub(1) else { return Ok(0) };
            let pair = &words.list[newest as usize % words.list.len()];
            let (first, commit) = (pair[0].load(Relaxed), pair[1].load(Relaxed));
            // Acquire: the entry is read before the count is loaded again.
            M::fence(Acquire);
            if words.commits.load(Relaxed) == commits {
                return Ok(if commit < end()?.0 { 0 } else { first });
            }
        }
    }

    /// Calls `found` for the slot's last commits, newest first, with first record and commit
    /// record, until it returns a value, and returns that value. Returns `None` if `found` returned
    /// none for the 63 commits that are kept.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Threads`] if the log has no such slot, and [`Error::Region`] if the region
    /// fails or was opened before a fork.
    #[inline]
    pub fn commits_of<R>(
        &self,
        slot: u32,
        found: impl FnMut(Lsn, Lsn) -> Option<R>,
    ) -> Result<Option<R>, Error> {
        self.commits_before(slot, self.end(), found)
    }

    /// Does the same as [`commits_of`](Self::commits_of) for a log that ended at `end` or later.
    /// The caller has loaded `end` before. Commits after `end` are omitted.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Threads`] if the log has no such slot, and [`Error::Region`] if the region
    /// fails or was opened before a fork.
    #[inline]
    pub fn commits_before<R>(
        &self,
        slot: u32,
        end: Lsn,
        mut found: impl FnMut(Lsn, Lsn) -> Option<R>,
    ) -> Result<Option<R>, Error> {
        let shared = self.shared()?;
        // All commits below this end are already in the list.
        let mut end = end.0;
        let words: &Slot<M> = self.slot_of(slot)?;
        for _ in 0..LOOKS {
            // Acquire: synchronizes with the Release in `chain`.
            let commits = words.commits.load(Acquire);
            let kept = words.list.len() as u64 - 1;
            let (mut result, mut lowest, mut below) = (None, commits, false);
            for index in (commits.saturating_sub(kept)..commits).rev() {
                lowest = index;
                let pair = &words.list[index as usize % words.list.len()];
                let (first, commit) = (pair[0].load(Relaxed), pair[1].load(Relaxed));
                if commit < end {
                    below = true;
                    result = found(Lsn(first), Lsn(commit));
                }
                if result.is_some() {
                    break;
                }
            }
            // Acquire: the entries are read before the count is loaded again.
            M::fence(Acquire);
            if words.commits.load(Relaxed).wrapping_sub(lowest) > kept {
                continue;
            }
            if below || lowest == 0 {
                return Ok(result);
            }
            // So many commits followed since the end was loaded that the list has none below it.
            // Most of them lie below the present end.
            // Acquire: synchronizes with the Release in `publish`.
            end = shared.end.0.load(Acquire);
        }
        Ok(None)
    }
}

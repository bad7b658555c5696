//! What thread slots have in the log, read without a latch.
//!
//! A slot's words are changed under the latch of all appends, by its own thread. A reader takes no
//! latch: it loads `end` first, and believes of what it then finds only what lies below. So it
//! never sees the commit of a record that is not in the log, though an append that was not
//! finished, by a thread that died, may show there for a while.
//!
//! The list has one entry more than are read: the oldest is where the next commit is stored before
//! the count says so.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use latchwork_machine::{ConstMachine, Word};

use crate::layout::{Slot, SlotView};
use crate::{Error, Log, Lsn, Session};

/// How often a reader looks at a slot whose thread commits all the while.
const LOOKS: u32 = 1000;

impl<M: ConstMachine> Log<M> {
    /// What a thread slot has in the log, of one moment.
    ///
    /// # Errors
    ///
    /// [`Error::Threads`].
    pub fn slot(&self, session: &Session<M>, slot: u32) -> Result<SlotView, Error> {
        let words = self.slot_of(slot)?;
        let latched = session.latch()?;
        let commits = words.commits.load(Relaxed);
        // The oldest entry may be that of an append whose thread died before it was one.
        let count = commits.min(words.list.len() as u64 - 1);
        let recent = (commits - count..commits).map(|index| {
            let pair = &words.list[index as usize % words.list.len()];
            (Lsn(pair[0].load(Relaxed)), Lsn(pair[1].load(Relaxed)))
        });
        let view = SlotView {
            first: Lsn(words.first.load(Relaxed)),
            last: Lsn(words.last.load(Relaxed)),
            commits,
            recent: recent.collect(),
        };
        latched.unchanged();
        Ok(view)
    }

    /// How many transactions of all slots have committed.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn commits(&self) -> Result<u64, Error> {
        let slots = 0..self.slots_used();
        // Relaxed: counts.
        slots.map(|slot| Ok(self.slot_of(slot)?.commits.load(Relaxed))).sum()
    }

    /// A position behind which no commit lies that was in the log when this was called: that of the
    /// newest one, or of one that is just being logged, but never beyond the end. None if there is
    /// none. Costs a look at each slot.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn newest_commit(&self) -> Result<Option<Lsn>, Error> {
        // What is committed below it is in the lists by now.
        let (end, mut newest) = (self.end().0, 0);
        for slot in self.each_slot() {
            let words = self.slot_of(slot)?;
            // Acquire: synchronizes with the Release in `chain`.
            if let Some(last) = words.commits.load(Acquire).checked_sub(1) {
                // Should others have come since, it is a later one's.
                let pair = &words.list[last as usize % words.list.len()];
                newest = newest.max(pair[1].load(Relaxed));
            }
        }
        Ok((newest != 0).then(|| Lsn(newest.min(end.saturating_sub(1)))))
    }

    /// How many thread slots may have transactions: those below this number.
    pub fn slots_high(&self) -> u32 {
        self.slots_used()
    }

    /// The thread slots that may have records: those below [`slots_high`](Self::slots_high), and
    /// behind a gap those of sweepers, whose records are for the dead.
    pub fn each_slot(&self) -> impl Iterator<Item = u32> + use<M> {
        let threads = self.inner.threads;
        self.inner.area.region().used_slots().filter(move |slot| *slot < threads)
    }

    /// The last record that a thread slot appended, of whatever kind; [`Lsn::NEVER`] if none, and
    /// while it appends one. Of a thread that died in that it is not known: it is none, or a record
    /// of another at the same place.
    ///
    /// # Errors
    ///
    /// [`Error::Threads`], [`Error::Region`].
    pub fn newest_of(&self, slot: u32) -> Result<Lsn, Error> {
        // Acquire: synchronizes with the Release in `append`.
        let end = self.shared()?.end.0.load(Acquire);
        let newest = self.slot_of(slot)?.newest.load(Relaxed);
        Ok(if newest < end { Lsn(newest) } else { Lsn::NEVER })
    }

    /// The first record of the slot's transaction that is not committed, and its last;
    /// [`Lsn::NEVER`] if it has none. A record that was in the log when this was called, and is
    /// not committed, is counted in.
    ///
    /// While the record that commits the transaction is being appended, the first is told and the
    /// last is not.
    ///
    /// # Errors
    ///
    /// [`Error::Threads`], [`Error::Region`].
    pub fn open_of(&self, slot: u32) -> Result<(Lsn, Lsn), Error> {
        let words: &Slot<M> = self.slot_of(slot)?;
        // Acquire, both: synchronize with the Releases in `chain`, so that a commit that took
        // the transaction away is in the list.
        let first = words.first.load(Acquire);
        let last = words.last.load(Acquire);
        if first != 0 {
            return Ok((Lsn(first), Lsn(last)));
        }
        match self.being_committed(words)? {
            // It looked at a count, or at an end of the log, that a thread may have stored after
            // it had restored the slot of one that died in between. Then these are restored.
            // Acquire, both: synchronize with the Releases in `chain`.
            0 => Ok((Lsn(words.first.load(Acquire)), Lsn(words.last.load(Acquire)))),
            first => Ok((Lsn(first), Lsn(last))),
        }
    }

    /// The first record of a transaction that the list has and the log not yet: the append is at
    /// work between the two, and may die there. 0 if there is none.
    fn being_committed(&self, words: &Slot<M>) -> Result<u64, Error> {
        loop {
            // Acquire: synchronizes with the Releases in `chain` and in `repair_append`.
            let commits = words.commits.load(Acquire);
            let Some(newest) = commits.checked_sub(1) else { return Ok(0) };
            let pair = &words.list[newest as usize % words.list.len()];
            let (first, commit) = (pair[0].load(Relaxed), pair[1].load(Relaxed));
            // Acquire: the entry before the count is looked at again.
            M::fence(Acquire);
            if words.commits.load(Relaxed) == commits {
                // Acquire: synchronizes with the Release in `append`: if the commit lies below
                // it now, it does for those who look at the list from here on.
                let end = self.shared()?.end.0.load(Acquire);
                return Ok(if commit < end { 0 } else { first });
            }
        }
    }

    /// Goes through the slot's last commits, the newest first, as pairs of first record and commit,
    /// until `found` says something. Nothing if it never does, within the 63 that are kept.
    ///
    /// # Errors
    ///
    /// [`Error::Threads`], [`Error::Region`].
    #[inline]
    pub fn commits_of<R>(
        &self,
        slot: u32,
        mut found: impl FnMut(Lsn, Lsn) -> Option<R>,
    ) -> Result<Option<R>, Error> {
        let shared = self.shared()?;
        // Acquire: synchronizes with the Release in `append`: what is committed below it is in the
        // list by now.
        let mut end = shared.end.0.load(Acquire);
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
            // Acquire: the entries before the count is looked at again.
            M::fence(Acquire);
            if words.commits.load(Relaxed).wrapping_sub(lowest) > kept {
                continue;
            }
            if below || lowest == 0 {
                return Ok(result);
            }
            // So many commits came since the end was loaded that the list has none before it. Most
            // of them lie below the end of now.
            // Acquire: as above.
            end = shared.end.0.load(Acquire);
        }
        Ok(None)
    }
}

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

    /// How many thread slots may have records: those below this number.
    pub fn slots_high(&self) -> u32 {
        self.slots_used()
    }

    /// The last record that a thread slot appended, of whatever kind; [`Lsn::NEVER`] if none.
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
    /// # Errors
    ///
    /// [`Error::Threads`], [`Error::Region`].
    pub fn open_of(&self, slot: u32) -> Result<(Lsn, Lsn), Error> {
        let slot = self.slot_of(slot)?;
        // Acquire, both: synchronize with the Releases in `chain`, so that a commit that took
        // the transaction away is in the list.
        let first = slot.first.load(Acquire);
        let last = slot.last.load(Acquire);
        Ok((Lsn(first), Lsn(last)))
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
        // Acquire: synchronizes with the Release in `append`: what is committed below it is in the
        // list by now.
        let end = self.shared()?.end.0.load(Acquire);
        let words: &Slot<M> = self.slot_of(slot)?;
        for _ in 0..LOOKS {
            // Acquire: synchronizes with the Release in `chain`.
            let commits = words.commits.load(Acquire);
            let kept = words.list.len() as u64 - 1;
            let (mut result, mut lowest) = (None, commits);
            for index in (commits.saturating_sub(kept)..commits).rev() {
                lowest = index;
                let pair = &words.list[index as usize % words.list.len()];
                let (first, commit) = (pair[0].load(Relaxed), pair[1].load(Relaxed));
                if commit < end {
                    result = found(Lsn(first), Lsn(commit));
                }
                if result.is_some() {
                    break;
                }
            }
            // Acquire: the entries before the count is looked at again.
            M::fence(Acquire);
            if words.commits.load(Relaxed).wrapping_sub(lowest) <= kept {
                return Ok(result);
            }
        }
        Ok(None)
    }
}

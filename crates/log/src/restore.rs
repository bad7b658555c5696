//! What thread slots had in the log, made again in a new region: the layer above has read the log,
//! and some transactions of it go on.
//!
//! Nobody else has the slots meanwhile, or looks at them.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{ConstMachine, Word};

use crate::layout::COMMITS;
use crate::{Error, Lsn, Session};

impl<M: ConstMachine> Session<M> {
    /// Gives a slot its last commits, as pairs of first record and commit, the oldest first. Of
    /// more than it keeps the last count.
    ///
    /// # Errors
    ///
    /// [`Error::Threads`], [`Error::Region`].
    pub fn restore_commits(&self, slot: u32, commits: &[(Lsn, Lsn)]) -> Result<(), Error> {
        let slot = self.log.slot_of(slot)?;
        let kept = &commits[commits.len().saturating_sub(COMMITS - 1)..];
        for (entry, (first, commit)) in slot.list.iter().zip(kept) {
            entry[0].store(first.0, Relaxed);
            entry[1].store(commit.0, Relaxed);
        }
        // Release: synchronizes with the Acquire in `commits_of`.
        slot.commits.store(kept.len() as u64, Release);
        Ok(())
    }

    /// Gives a slot its transaction, by its first record and its last, and sets bytes aside for
    /// ending it.
    ///
    /// # Errors
    ///
    /// [`Error::Disk`] if there is no room; [`Error::Threads`], [`Error::Region`].
    pub fn restore_open(&self, of: u32, first: Lsn, last: Lsn, aside: u64) -> Result<(), Error> {
        let (shared, slot) = (self.log.shared()?, self.log.slot_of(of)?);
        loop {
            let latched = self.latch()?;
            let used = shared.end.0.load(Relaxed) + shared.append.credit.load(Relaxed);
            // Acquire: synchronizes with the Release in `make_segment`.
            let prepared = shared.prepared.0.load(Acquire);
            let fits = aside <= prepared.saturating_sub(used + self.all_aside(shared));
            if fits {
                slot.aside.store(aside, Relaxed);
                let all = shared.append.aside.load(Relaxed);
                shared.append.aside.store(all + aside, Relaxed);
                // Release, both: synchronize with the Acquires in `open_of`.
                slot.last.store(last.0, Release);
                slot.first.store(first.0, Release);
            }
            drop(latched);
            if fits {
                return Ok(());
            }
            self.make_segment(prepared)?;
        }
    }
}

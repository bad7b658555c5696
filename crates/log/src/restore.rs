//! Restores the state of thread slots in a new region. The layer above has read the log, and some
//! of its transactions continue.
//!
//! During the call no other thread uses or reads these slots.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{ConstMachine, Word};

use crate::layout::COMMITS;
use crate::{Error, Lsn, Session};

impl<M: ConstMachine> Session<M> {
    /// Restores the last commits of a slot from pairs of first record and commit record, oldest
    /// first. If there are more pairs than the slot keeps, the last ones are used.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Threads`] if the log has no such slot, and [`Error::Region`] if the region
    /// fails or was opened before a fork.
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

    /// Restores the transaction of a slot from its first and last record, and sets `aside` bytes
    /// aside to end it.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Disk`] if there is no room, [`Error::Threads`] if the log has no such slot,
    /// and [`Error::Region`] if the region fails or was opened before a fork.
    pub fn restore_open(&self, of: u32, first: Lsn, last: Lsn, aside: u64) -> Result<(), Error> {
        let (shared, slot) = (self.log.shared()?, self.log.slot_of(of)?);
        loop {
            let latched = self.latch()?;
            let used = shared.append.promised.load(Relaxed);
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

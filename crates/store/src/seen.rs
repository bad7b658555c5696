//! Which version of a record a snapshot sees.
//!
//! Each thread slot has one transaction at a time, and one list of its commits. So a record's stamp
//! needs no transaction number: the version was committed before the snapshot's position `at` if
//! its slot has a commit between the stamp and `at`. (Alhomssi and Leis, "Scalable and Robust
//! Snapshot Isolation for High-Performance Storage Engines", VLDB 2023, with the log's positions as
//! their clock.) A transaction that is rolled back restores the old stamp of each record before its
//! slot begins another one.
//!
//! ```text
//! stamp is 0, or before `low`                 seen: nearly always, one comparison
//! stamp <= last commit of its slot <= at      seen
//! otherwise                                   check the previous version, from the log
//! ```

use core::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use crate::Error;
use crate::stamp::Stamp;

/// The commits that the log records for each slot.
pub trait Commits {
    /// Returns the position of the slot's last commit at or before `at`, or 0 if there is none in
    /// the log. All changes of the slot at or before that position are committed.
    ///
    /// # Errors
    ///
    /// If the log cannot be read, so that it is unknown what is committed.
    fn last_commit(&self, slot: u16, at: u64) -> Result<u64, Error>;

    /// Returns whether the transaction with this stamp had committed when the thread last scanned,
    /// which is where it read the stamp. May return false for a committed transaction, but never
    /// true for another: its changes may have been rolled back since.
    fn is_finished(&self, stamp: Stamp) -> bool;
}

/// A position in the log, and the position before which all transactions had ended at that time.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// Commits up to here are visible.
    pub(crate) at: u64,
    /// Changes before this position are committed at `at` or rolled back.
    pub(crate) low: u64,
    /// The last slot looked up, and its last commit at or before `at`, which does not change.
    /// Neighbouring records often have the same writer.
    known: Cell<(u16, u64)>,
    /// All slots looked up. The older a slot's commit is, the longer the lookup takes.
    all: RefCell<BTreeMap<u16, u64>>,
}

impl View {
    pub(crate) fn new(at: u64, low: u64) -> Self {
        Self { at, low, known: Cell::new((0, 0)), all: RefCell::default() }
    }

    /// Looks a slot's commit up now, while the lookup is fast and the log contains it.
    ///
    /// # Errors
    ///
    /// Those of [`Commits::last_commit`].
    pub(crate) fn learn(&self, slot: u16, commits: &(impl Commits + ?Sized)) -> Result<(), Error> {
        let commit = commits.last_commit(slot, self.at)?;
        // A commit before `low` is not needed: all changes before `low` are visible.
        if commit >= self.low && commit != 0 {
            self.all.borrow_mut().insert(slot, commit);
        }
        Ok(())
    }

    /// Returns whether the version with this stamp is visible.
    ///
    /// # Errors
    ///
    /// Those of [`Commits::last_commit`].
    #[inline]
    pub(crate) fn sees(
        &self,
        stamp: Stamp,
        commits: &(impl Commits + ?Sized),
    ) -> Result<bool, Error> {
        let at = stamp.at();
        if at < self.low {
            return Ok(true);
        }
        if at > self.at {
            return Ok(false);
        }
        let (slot, commit) = self.known.get();
        if slot == stamp.slot() && at <= commit {
            return Ok(true);
        }
        let known = self.all.borrow().get(&stamp.slot()).copied();
        let commit = match known {
            Some(commit) => commit,
            None => commits.last_commit(stamp.slot(), self.at)?,
        };
        self.known.set((stamp.slot(), commit));
        if known.is_none() {
            self.all.borrow_mut().insert(stamp.slot(), commit);
        }
        Ok(at <= commit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slot 1 commits at 64 and 160, slot 2 at 128; slot 3 never does.
    struct Three;

    impl Commits for Three {
        fn last_commit(&self, slot: u16, at: u64) -> Result<u64, Error> {
            let commits: &[u64] = match slot {
                1 => &[64, 160],
                2 => &[128],
                _ => &[],
            };
            Ok(commits.iter().copied().filter(|commit| *commit <= at).max().unwrap_or(0))
        }

        fn is_finished(&self, stamp: Stamp) -> bool {
            self.last_commit(stamp.slot(), u64::MAX).is_ok_and(|commit| stamp.at() <= commit)
        }
    }

    #[test]
    fn a_version_is_seen_if_its_slot_committed_in_between() {
        let sees = |at, low, slot, stamp| {
            View::new(at, low).sees(Stamp::new(slot, stamp), &Three).unwrap()
        };
        assert!(sees(64, 0, 1, 48) && sees(64, 0, 1, 64), "its own commit, and before it");
        assert!(!sees(48, 0, 1, 48), "not committed there yet");
        assert!(!sees(144, 0, 1, 80), "the next transaction of the slot, which commits later");
        assert!(sees(160, 0, 1, 80));
        assert!(!sees(1 << 40, 0, 3, 80), "a slot that never commits");
        assert!(sees(144, 96, 3, 80), "but all before `low` is finished");
        assert_eq!(View::new(0, 16).sees(Stamp::NOBODY, &Three), Ok(true));
    }
}

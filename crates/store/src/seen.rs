//! Which version a snapshot sees.
//!
//! Each thread slot has one transaction at a time, and one list of its commits. So a record's stamp
//! needs no transaction number: it was committed by the snapshot's position `at` if its slot has a
//! commit between the stamp and `at`. (Alhomssi and Leis, "Scalable and Robust Snapshot Isolation
//! for High-Performance Storage Engines", VLDB 2023, with the log's positions as their clock.) A
//! transaction that is rolled back gives each record its old stamp again, before its slot has
//! another one.
//!
//! ```text
//! stamp is nobody's, or before `low`          seen: nearly always, one comparison
//! stamp <= last commit of its slot <= at      seen
//! otherwise                                   the version before it, from the log, is next
//! ```

use core::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use crate::{Error, Stamp};

/// What is known of commits: what the log keeps of each slot.
pub trait Commits {
    /// The position of the slot's last commit at or before `at`, or 0 if there is none since the
    /// log was recycled. Everything at or before it of that slot is committed.
    ///
    /// # Errors
    ///
    /// If the log cannot be read: then it is not known what is committed.
    fn last_commit(&self, slot: u16, at: u64) -> Result<u64, Error>;

    /// Whether the transaction that wrote with this stamp was committed when the thread scanned
    /// last, which is where it has the stamp from. It may say no of one that was, never yes of one
    /// that was not: what was read of that may have been undone since.
    fn is_finished(&self, stamp: Stamp) -> bool;
}

/// A position in the log, and before which position all transactions are finished there.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// What is committed here is seen.
    pub(crate) at: u64,
    /// All that was written before it is committed at `at` or undone.
    pub(crate) low: u64,
    /// The slot that was asked for last, and its last commit at or before `at`, which stays that:
    /// neighbours are often of one writer.
    known: Cell<(u16, u64)>,
    /// The same for all that were asked for: the longer ago a slot's commit is, the longer it takes
    /// to be found.
    all: RefCell<BTreeMap<u16, u64>>,
}

impl View {
    pub(crate) fn new(at: u64, low: u64) -> Self {
        Self { at, low, known: Cell::new((0, 0)), all: RefCell::default() }
    }

    /// Asks for a slot's commit now, while it is quickly told, or told at all.
    ///
    /// # Errors
    ///
    /// As [`sees`](Self::sees).
    pub(crate) fn learn(&self, slot: u16, commits: &(impl Commits + ?Sized)) -> Result<(), Error> {
        let commit = commits.last_commit(slot, self.at)?;
        // One before `low` decides nothing: all that was written so long ago is seen.
        if commit >= self.low && commit != 0 {
            self.all.borrow_mut().insert(slot, commit);
        }
        Ok(())
    }

    /// Whether the version with this stamp is seen.
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

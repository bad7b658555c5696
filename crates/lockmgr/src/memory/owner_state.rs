//! The state of an owner: one word.
//!
//! ```text
//!  31                     8 7     0
//! | one more than a thread | kind  |     the thread slot that has adopted it, or asks about it
//! ```
//!
//! `recovery/policy.rs` describes the transitions after the death of its process.

use crate::memory::typed::stored_as_it_is;

const ADOPTED: u32 = 3;
const ASKED: u32 = 5;

/// The state of an owner's cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnerState(u32);

impl OwnerState {
    /// The cell has no owner.
    pub(crate) const FREE: Self = Self(0);
    /// The owner belongs to a thread, or to a dead process that no sweep has found yet.
    pub(crate) const LIVE: Self = Self(1);
    /// The owner's process died, and its locks are kept.
    pub(crate) const ORPHANED: Self = Self(2);
    /// An orphan about which no recovery callback was asked yet.
    pub(crate) const UNDECIDED: Self = Self(4);

    /// An orphan that this thread has adopted.
    #[inline(always)]
    pub(crate) const fn adopted_by(thread: u32) -> Self {
        Self((thread + 1) << 8 | ADOPTED)
    }

    /// An orphan about which this thread asks the recovery callback.
    #[inline(always)]
    pub(crate) const fn asked_by(thread: u32) -> Self {
        Self((thread + 1) << 8 | ASKED)
    }

    /// Returns the state without the thread.
    #[inline(always)]
    const fn kind(self) -> Self {
        Self(self.0 & 0xff)
    }

    /// Returns whether the cell has no owner.
    #[inline(always)]
    pub(crate) fn is_free(self) -> bool {
        self == Self::FREE
    }

    /// Returns whether no sweep has found its process dead.
    #[inline(always)]
    pub(crate) fn is_live(self) -> bool {
        self == Self::LIVE
    }

    /// Returns whether it is an orphan that a thread has adopted.
    #[inline(always)]
    pub(crate) const fn is_adopted(self) -> bool {
        self.kind().0 == ADOPTED
    }

    /// Returns whether a thread asks the recovery callback about it.
    #[inline(always)]
    pub(crate) const fn is_asked(self) -> bool {
        self.kind().0 == ASKED
    }

    /// Returns whether its process died and its locks are kept.
    #[inline(always)]
    pub(crate) const fn is_kept(self) -> bool {
        matches!(self.kind(), Self::ORPHANED | Self::UNDECIDED | Self(ADOPTED | ASKED))
    }

    /// Returns whether its process died and no thread works on it.
    #[inline(always)]
    pub(crate) const fn is_orphan(self) -> bool {
        matches!(self, Self::ORPHANED | Self::UNDECIDED)
    }

    /// Returns its thread slot, given its page's `thread`; `None` for an orphan.
    #[inline(always)]
    pub(crate) fn thread(self, page: u32) -> Option<u32> {
        match self.kind() {
            Self::ORPHANED | Self::UNDECIDED => None,
            Self(ADOPTED | ASKED) => (self.0 >> 8).checked_sub(1),
            _ => page.checked_sub(1),
        }
    }
}

stored_as_it_is!(OwnerState);

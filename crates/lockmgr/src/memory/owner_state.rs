//! An owner's state: one word.
//!
//! ```text
//!  31                     8 7     0
//! | one more than a thread | kind  |     the thread slot that has adopted it, or asks about it
//! ```
//!
//! How an owner comes from one to another after its process died: `recovery/policy.rs`.

use crate::memory::typed::stored_as_it_is;

const ADOPTED: u32 = 3;
const ASKED: u32 = 5;

/// What an owner's cell is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnerState(u32);

impl OwnerState {
    /// No owner's.
    pub(crate) const FREE: Self = Self(0);
    /// Of a thread, or of a process that died and that no sweep has met.
    pub(crate) const LIVE: Self = Self(1);
    /// Its process died, and its locks are kept.
    pub(crate) const ORPHANED: Self = Self(2);
    /// An orphan about which no recovery callback was asked.
    pub(crate) const UNDECIDED: Self = Self(4);

    /// An orphan that a thread has adopted.
    #[inline(always)]
    pub(crate) const fn adopted_by(thread: u32) -> Self {
        Self((thread + 1) << 8 | ADOPTED)
    }

    /// An orphan about which a thread asks.
    #[inline(always)]
    pub(crate) const fn asked_by(thread: u32) -> Self {
        Self((thread + 1) << 8 | ASKED)
    }

    /// The same without the thread.
    #[inline(always)]
    const fn kind(self) -> Self {
        Self(self.0 & 0xff)
    }

    /// Whether it is no owner's.
    #[inline(always)]
    pub(crate) fn is_free(self) -> bool {
        self == Self::FREE
    }

    /// Whether its process was not yet met dead.
    #[inline(always)]
    pub(crate) fn is_live(self) -> bool {
        self == Self::LIVE
    }

    /// Whether it is an orphan that a thread has adopted.
    #[inline(always)]
    pub(crate) const fn is_adopted(self) -> bool {
        self.kind().0 == ADOPTED
    }

    /// Whether a thread asks about it.
    #[inline(always)]
    pub(crate) const fn is_asked(self) -> bool {
        self.kind().0 == ASKED
    }

    /// Whether its process died, and its locks are kept.
    #[inline(always)]
    pub(crate) const fn is_kept(self) -> bool {
        matches!(self.kind(), Self::ORPHANED | Self::UNDECIDED | Self(ADOPTED | ASKED))
    }

    /// Whether its process died, and no thread is at work on it.
    #[inline(always)]
    pub(crate) const fn is_orphan(self) -> bool {
        matches!(self, Self::ORPHANED | Self::UNDECIDED)
    }

    /// Its thread slot, if its page says this of threads; none of an orphan.
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

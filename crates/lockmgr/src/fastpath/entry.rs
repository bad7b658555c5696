//! Entries of a weak page: which of them a name may be in, and what came of taking one.

use crate::memory::cells::{GROUP, WEAK};
use crate::memory::entry::Entry;

/// What came of an attempt to take a weak lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is held.
    Yes,
    /// It needs more than was tried.
    No,
    /// The bias was closed meanwhile: the entry is to be given back. Which one, and what it was.
    Closed(usize, Entry),
}

/// The entries in which a name may be, as a mask.
#[inline(always)]
pub(crate) fn group_of(hash: u64) -> u32 {
    const ONE: u32 = (1 << GROUP) - 1;
    ONE << (hash as usize % (WEAK / GROUP) * GROUP)
}

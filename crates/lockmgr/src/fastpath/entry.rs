//! Entries of a weak page: the entries possible for a name, and the result of taking one.

use crate::memory::cells::{GROUP, WEAK};
use crate::memory::entry::Entry;

/// The result of an attempt to take a weak lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The lock is held.
    Yes,
    /// The lock cannot be taken on this path.
    No,
    /// The bias was closed during the attempt: the entry must be restored. Holds its index and its
    /// old value.
    Closed(usize, Entry),
}

/// Returns the entries in which a name may be, as a mask.
#[inline(always)]
pub(crate) fn group_of(hash: u64) -> u32 {
    const ONE: u32 = (1 << GROUP) - 1;
    ONE << (hash as usize % (WEAK / GROUP) * GROUP)
}

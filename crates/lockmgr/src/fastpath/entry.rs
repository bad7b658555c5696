//! An entry of a weak page: what of a lock is in its owner's own memory.
//!
//! ```text
//!  63       32 31       16 15     8 7     0
//! | bias      | count     | length | mode |     count 0 is free; hash and name are still there
//! ```

use crate::memory::cells::{GROUP, WEAK, WEAK_WORDS};
use crate::mode::Mode;

/// The longest name of an entry, in bytes.
pub(crate) const LENGTH_MAX: usize = WEAK_WORDS * 8;

/// An entry, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) bias: u32,
    pub(crate) count: u32,
    pub(crate) length: usize,
    pub(crate) mode: Mode,
}

impl Entry {
    #[inline(always)]
    pub(crate) fn of(word: u64) -> Self {
        Self {
            bias: (word >> 32) as u32,
            count: (word >> 16) as u32 & 0xffff,
            length: (word >> 8) as usize & 0xff,
            mode: Mode(word as u8),
        }
    }

    #[inline(always)]
    pub(crate) fn word(self) -> u64 {
        u64::from(self.bias) << 32
            | u64::from(self.count) << 16
            | (self.length as u64) << 8
            | u64::from(self.mode.0)
    }
}

/// What came of an attempt to take a weak lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is held.
    Yes,
    /// It needs more than was tried.
    No,
    /// The bias was closed meanwhile: the entry is to be given back. Which one, and what it was.
    Closed(usize, u64),
}

/// The entries in which a name may be, as a mask.
#[inline(always)]
pub(crate) fn group_of(hash: u64) -> u32 {
    const ONE: u32 = (1 << GROUP) - 1;
    ONE << (hash as usize % (WEAK / GROUP) * GROUP)
}

//! Numbers of owners and of partitions.

use core::fmt;

use crate::ids::OwnerId;
use crate::memory::typed::{Stored, stored_as_it_is};

/// Owners of a page.
pub(crate) const OWNERS: u32 = 31;

/// The number of an owner's cell, of all cells in the order of their pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OwnerNumber(u32);

impl OwnerNumber {
    /// The owner at a place of a page.
    #[inline(always)]
    pub(crate) const fn new(page: u32, at: usize) -> Self {
        Self(page * OWNERS + at as u32)
    }

    /// The place of its page in the directory.
    #[inline(always)]
    pub(crate) const fn page(self) -> u32 {
        self.0 / OWNERS
    }

    /// Its place in that page.
    #[inline(always)]
    pub(crate) const fn at(self) -> usize {
        (self.0 % OWNERS) as usize
    }

    /// The name of the owner that the cell has in this generation.
    #[inline(always)]
    pub(crate) const fn id(self, generation: u32) -> OwnerId {
        OwnerId { index: self.0, generation }
    }
}

impl fmt::Display for OwnerNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

stored_as_it_is!(OwnerNumber);

/// One more than the number; zero is none.
impl Stored for Option<OwnerNumber> {
    type In = u32;

    #[inline(always)]
    fn of(word: u32) -> Self {
        word.checked_sub(1).map(OwnerNumber)
    }

    #[inline(always)]
    fn word(self) -> u32 {
        self.map_or(0, |number| number.0 + 1)
    }
}

/// The number of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PartitionNumber(u32);

impl PartitionNumber {
    /// The first one, which every manager has.
    pub(crate) const FIRST: Self = Self(0);

    /// A partition of so many, for a word that may say any: a peer's, or a later wait's.
    #[inline(always)]
    pub(crate) const fn within(self, count: u32) -> Self {
        Self(self.0 % count)
    }
}

impl fmt::Display for PartitionNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

stored_as_it_is!(PartitionNumber);

impl OwnerId {
    /// The number of its cell.
    #[inline(always)]
    pub(crate) const fn number(self) -> OwnerNumber {
        OwnerNumber(self.index)
    }
}

impl Stored for OwnerId {
    type In = u64;

    #[inline(always)]
    fn of(word: u64) -> Self {
        Self { index: (word >> 32) as u32, generation: word as u32 }
    }

    #[inline(always)]
    fn word(self) -> u64 {
        u64::from(self.index) << 32 | u64::from(self.generation)
    }
}

//! Numbers of owners and of partitions.

use core::fmt;

use crate::ids::OwnerId;
use crate::memory::typed::{Stored, stored_as_it_is};

/// Number of owners in a page.
pub(crate) const OWNERS: u32 = 31;

/// The number of an owner's cell, counted over all pages in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OwnerNumber(u32);

impl OwnerNumber {
    /// Returns the number of the owner at an index of a page.
    #[inline(always)]
    pub(crate) const fn new(page: u32, at: usize) -> Self {
        Self(page * OWNERS + at as u32)
    }

    /// Returns the index of its page in the directory.
    #[inline(always)]
    pub(crate) const fn page(self) -> u32 {
        self.0 / OWNERS
    }

    /// Returns its index in that page.
    #[inline(always)]
    pub(crate) const fn at(self) -> usize {
        (self.0 % OWNERS) as usize
    }

    /// Returns the id of the owner that the cell has in this generation.
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

/// Stored as one more than the number; zero is `None`.
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
    /// The first partition, which every manager has.
    pub(crate) const FIRST: Self = Self(0);

    /// Reduces the number to an existing partition. The word may hold any value: of a peer, or of a
    /// later wait.
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
    /// Returns the number of its cell.
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

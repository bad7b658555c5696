//! The identity of owners.

use core::fmt;

/// Identifies an owner: a slot, and its generation. The same in every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId {
    /// The slot.
    pub index: u32,
    /// The number of owners that the slot has had.
    pub generation: u32,
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

//! What owners are called.

use core::fmt;

/// Names an owner: a slot, and which of its owners. The same in every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId {
    /// The slot.
    pub index: u32,
    /// How many owners the slot has had.
    pub generation: u32,
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

//! The names of the layers that may live in a region. `repair.rs` describes their repairs.

use core::fmt;

/// A layer that lives in a region, in the order of repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Layer {
    /// The log of a store.
    Log = 0,
    /// Pages in memory.
    Pool = 1,
    /// Trees on pages.
    Tree = 2,
    /// The lock manager.
    Locks = 3,
    /// Transactions.
    Store = 4,
}

impl Layer {
    /// All layers, in the order of repair.
    pub const ALL: [Self; 5] = [Self::Log, Self::Pool, Self::Tree, Self::Locks, Self::Store];

    /// Its bit among the layers of a region.
    pub(crate) const fn bit(self) -> u32 {
        1 << self as u32
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Log => "log",
            Self::Pool => "pool",
            Self::Tree => "tree",
            Self::Locks => "lock manager",
            Self::Store => "store",
        })
    }
}

//! Locks on ranges of keys: kinds, claims, keyspaces and their trees.

pub(crate) mod cells;
pub(crate) mod claims;
pub(crate) mod count;
pub(crate) mod keyspaces;
pub(crate) mod kinds;
pub(crate) mod tree;

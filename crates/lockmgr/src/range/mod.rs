//! Locks on ranges of keys: kinds, claims, keyspaces and their trees, stripes.

pub(crate) mod cells;
pub(crate) mod claims;
pub(crate) mod count;
pub(crate) mod keyspaces;
pub(crate) mod kinds;
pub(crate) mod stripes;
pub(crate) mod tree;

//! Inspection: snapshots, totals, and a view that takes no latch.

#[cfg(feature = "internals")]
pub(crate) mod addresses;
pub(crate) mod health;
pub(crate) mod stats;
pub(crate) mod view;

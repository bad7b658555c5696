//! What lies in the region: cells and their fields, names, partitions and their latches, intents.

pub(crate) mod blocks;
pub(crate) mod cells;
pub(crate) mod intents;
pub(crate) mod latch;
pub(crate) mod names;
pub(crate) mod pages;
pub(crate) mod state;

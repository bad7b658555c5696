//! Trees and a log in files: the engine of a store.

pub(crate) mod analysis;
pub(crate) mod checkpoint;
pub(crate) mod decide;
pub(crate) mod empty;
pub(crate) mod empty_pages;
#[cfg(feature = "internals")]
pub(crate) mod frontiers;
pub(crate) mod inner;
pub(crate) mod kinds;
pub(crate) mod meter;
pub(crate) mod page_intents;
pub(crate) mod page_repair;
pub(crate) mod prepare;
pub(crate) mod publish;
pub(crate) mod records;
pub(crate) mod recover;
pub(crate) mod redo;
pub(crate) mod restore_transactions;
pub(crate) mod session;
pub(crate) mod shared;
pub(crate) mod signature;
pub(crate) mod space;
pub(crate) mod start;
pub(crate) mod tree_journal;
pub(crate) mod undo;
pub(crate) mod undo_ownership;

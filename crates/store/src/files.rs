//! Trees and a log in files: the engine of a store.

pub(crate) mod again;
pub(crate) mod analysis;
pub(crate) mod checkpoint;
pub(crate) mod decide;
pub(crate) mod empty;
pub(crate) mod frontiers;
pub(crate) mod half;
pub(crate) mod hands;
pub(crate) mod home;
pub(crate) mod kinds;
pub(crate) mod meter;
pub(crate) mod prepare;
pub(crate) mod publish;
pub(crate) mod records;
pub(crate) mod recover;
pub(crate) mod redo;
pub(crate) mod scribe;
pub(crate) mod shared;
pub(crate) mod signature;
pub(crate) mod space;
pub(crate) mod start;
pub(crate) mod tidy;
pub(crate) mod turn;
pub(crate) mod undo;
pub(crate) mod worker;

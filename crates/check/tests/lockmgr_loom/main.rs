//! The lock manager under loom.

mod fresh;
mod stage;
mod table;

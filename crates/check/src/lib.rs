//! The same tests on every machine.
//!
//! This crate has three machines for tests: [`Loom`], whose memory is controlled by loom's model
//! checker; [`Overlaid`], the same over ordinary memory, for regions; [`Scattered`], the native one
//! with an invented topology. No other crate depends on loom.

pub mod adya;
pub mod again;
pub mod between;
pub mod bytes;
pub mod cell;
pub mod dump_bytes;
pub mod early;
pub mod explore;
pub mod folder;
pub mod forked;
pub mod law;
pub mod left;
pub mod log_bytes;
pub mod loom_machine;
pub mod memory_engine;
pub mod neighbours;
pub mod overlaid;
pub mod parts;
pub mod pool_bytes;
pub mod pool_region;
pub mod random;
pub mod refusal;
pub mod scattered;
pub mod serial;
pub mod stops;
pub mod store_bytes;
pub mod tasks;
pub mod tree_bytes;

pub use crate::again::again;
pub use crate::loom_machine::{Looking, Loom};
pub use crate::overlaid::Overlaid;
pub use crate::scattered::Scattered;

//! The same laws on every machine.
//!
//! Two machines for tests live here: [`Loom`], whose memory loom's model checker controls, and
//! [`Scattered`], the native one with an invented topology. Nothing else in the project knows loom.

pub mod explore;
pub mod law;
pub mod left;
pub mod loom_machine;
pub mod scattered;
pub mod tasks;

pub use crate::loom_machine::Loom;
pub use crate::scattered::Scattered;

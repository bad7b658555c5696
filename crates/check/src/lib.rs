//! The same laws on every machine.
//!
//! Three machines for tests live here: [`Loom`], whose memory loom's model checker controls;
//! [`Overlaid`], the same over ordinary memory, for regions; and [`Scattered`], the native one with
//! an invented topology. Nothing else in the project knows loom.

pub mod explore;
pub mod law;
pub mod left;
pub mod loom_machine;
pub mod neighbours;
pub mod overlaid;
pub mod random;
pub mod refusal;
pub mod scattered;
pub mod tasks;

pub use crate::loom_machine::Loom;
pub use crate::overlaid::Overlaid;
pub use crate::scattered::Scattered;

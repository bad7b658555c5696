//! The disk: the real one, and the simulated one whose faults are chosen.

mod limits;
mod overlay;
mod simulated;
mod system;

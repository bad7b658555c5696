//! The disk: the real one, and the simulated one whose faults are chosen.

mod limits;
mod simulated;
mod system;

//! The disk: the real one, and the simulated one whose faults are chosen.

mod simulated;
mod system;

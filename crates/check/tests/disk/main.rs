//! The disk: the system's, and the simulated one with planned faults.

mod limits;
mod overlay;
mod simulated;
mod system;

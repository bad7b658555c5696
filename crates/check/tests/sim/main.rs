//! The simulated machine: what its memory and its scheduler do, and what they cost.

mod common;
mod costs;
mod free;
mod litmus;
mod machine;
mod protocol;
mod rw;
mod scheduler;
mod spec;

//! The simulated machine: what its memory and its scheduler do, and what they cost.

#[path = "sim/common.rs"]
mod common;
#[path = "sim/costs.rs"]
mod costs;
#[path = "sim/litmus.rs"]
mod litmus;
#[path = "sim/machine.rs"]
mod machine;
#[path = "sim/scheduler.rs"]
mod scheduler;

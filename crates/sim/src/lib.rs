//! A machine made of software, on which any lock over [`Machine`](latchwork_machine::Machine)
//! runs as it is.
//!
//! The claims of scalable locks are about 24 to 192 cores. Here such a machine is simulated, so
//! that a design can be judged on it: caches with lines that move between cores and sockets at
//! published latencies, store buffers, waiting readers, and a scheduler. One host thread runs it,
//! and one seed decides everything.
//!
//! With the costs off the same machine explores schedules ([`Explorer`]), as a stress test whose
//! failures are replayed by their seed.
//!
//! The model and how it was judged are in `docs/simulator.md`. It leaves out: caches that are too
//! small, the bandwidth of links, prefetching, speculation, and everything that a core does between
//! two accesses to shared memory but the cycles that [`work`] is told.

mod agenda;
mod buffer;
mod events;
mod explore;
mod fiber;
mod line;
mod machine;
mod memory;
mod os;
mod outcome;
pub mod probe;
mod rng;
mod spec;
mod threads;
mod topology;
mod word;
mod world;

pub use explore::Explorer;
pub use machine::{Simulated, clock, kill, touch, work};
pub use outcome::{Misses, Outcome, Stuck, ThreadState};
pub use spec::{Coherence, Costs, Os, SHIPPED, Spec, SpecError, States};
pub use topology::{Cores, MAX_CORES, Topology};
pub use word::Cell;
pub use world::Simulation;

//! A simulated machine that runs any lock over [`Machine`](latchwork_machine::Machine) unchanged.
//!
//! Scalable locks are designed for 24 to 192 cores. This crate simulates such machines to evaluate
//! them: caches with lines that move between cores and sockets at published latencies, store
//! buffers, waiting readers, and a scheduler. One host thread runs the simulation, and one seed
//! determines everything.
//!
//! With costs turned off, the same machine explores schedules ([`Explorer`]), as a stress test
//! whose failures are replayed by their seed.
//!
//! `docs/simulator.md` describes the model and its evaluation. It omits cache capacity, the
//! bandwidth of links, prefetching, speculation, and everything that a core does between two
//! accesses to shared memory, except for the cycles passed to [`work`].

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

//! The same latches on simulated machines.
//!
//! A run is a machine, a workload, a lock or lock manager, and a number of threads. Thread `n` is
//! pinned to processor `n`, so sockets fill one after another. More threads than processors share
//! them. Results are simulated, which the field `machine` states.

mod dice;
mod engine;
mod lock;
mod operations;
mod published;
mod run;
mod seeds;
mod steps;
mod watch;
mod workload;

pub use lock::{Kind, SimLock, Subject};
pub use operations::{Names, Operations, Pages, Records};
pub use published::{FIGURES, Figure, Judged};
pub use run::{Plan, Point, RunError, run};
pub use seeds::{CLAIMS, Claim, Finding as SeedFinding};
pub use workload::{ALL, Pause, Shape, Workload};

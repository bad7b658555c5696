//! The same latches on machines that nobody here owns.
//!
//! A run is a machine, a workload, a lock or lock manager, and a number of threads. Thread `n` is
//! pinned to processor `n`, so sockets fill one after another; more threads than processors share
//! them. What is printed is simulated, and says so in its `machine`.

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

//! Our lock manager compared with Berkeley DB's.
//!
//! Each measurement runs in new processes: one, or one per worker where processes are compared. The
//! benchmark starts itself for them (see [`serve`]). Within a run the two lock managers alternate
//! in each cell, and the first one changes. Both are used through one trait, with names of 16
//! bytes. Ours uses the modes S and X, Berkeley DB READ and WRITE.
//!
//! | workload | what | an operation |
//! |---|---|---|
//! | `weak` | each worker read-locks 16 objects of its own in turn | lock and unlock |
//! | `strong` | the same, write-locked: ours are kept for the worker | lock and unlock |
//! | `table` | the same, of a thousand objects each, more than an owner has memory for | lock and unlock |
//! | `cold` | the same, of a million objects each | lock and unlock |
//! | `one-object` | all workers read-lock one object | lock and unlock |
//! | `zipf` | all workers lock 100,000 objects, a few nearly always, one in ten to write | lock and unlock |
//! | `release-all` | one owner, 1,000 strong locks | to release them all |
//! | `cycle-2`, `cycle-100` | so many owners in a cycle | from the request that closes it to the report |
//! | `calm` | one worker's strong locks; two others sometimes wait for each other | lock and unlock, each timed |
//! | `detecting` | the same, but those two form cycles of 2, which a detector breaks | lock and unlock, each timed |
//! | `held` | very many strong locks of one owner | to take one |
//!
//! The cost of a request among 1, 100 and 10,000 others is measured in `steep.rs`, for our lock
//! manager only.
//!
//! Deadlock detection is measured among many waiting requests. Ours wait without a thread and do
//! not start detection themselves. Berkeley DB needs a thread for each, so they are fewer; its
//! detection (at each wait, its default) is switched on once they wait.
//!
//! A measurement in which the subject of the cell did not occur is invalid: see
//! [`Outcome::missing`].

mod bdb;
mod child;
mod deadlocks;
mod figures;
mod job;
mod operations;
mod ours;
mod parent;
mod plan;
mod report;
mod row;
mod steep;
mod table;
mod timing;

pub use child::serve;
pub use figures::figures;
pub use job::Outcome;
pub use parent::Fault;
pub use plan::{Cell, Place, Settings, Subject, Workload};
pub use report::{Report, Series, Step, run};
pub use row::{Params, Row};

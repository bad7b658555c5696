//! Our lock manager beside Berkeley DB's.
//!
//! Each measurement is made in processes of its own, one or, where processes are compared, one
//! for each worker; they are started by the program that runs the benchmark, as itself (see
//! [`serve`]). Within a run the two lock managers take turns in each cell, and who begins
//! changes. Both are used through one trait, with names of 16 bytes; ours has the modes S and X,
//! Berkeley DB its READ and WRITE.
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
//! | `cycle-2`, `cycle-100` | so many owners in a ring | from the request that closes it until one is told |
//! | `calm` | one worker's strong locks; two others wait for each other now and then | lock and unlock, each timed |
//! | `detecting` | the same, but those two form rings of 2, which a detector breaks | lock and unlock, each timed |
//! | `held` | very many strong locks of one owner | to take one |
//!
//! What a request costs beside 1, 100 and 10,000 others is in `steep.rs`, and of ours alone.
//!
//! Where deadlocks are looked for many other requests wait. Ours wait without a thread, and do not
//! look for deadlocks themselves; Berkeley DB needs a thread for each, so they are fewer, and is
//! told to detect (at each wait, its own default way) only once they wait.
//!
//! No measurement counts that did not do what it is about: see [`Outcome::missing`].

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

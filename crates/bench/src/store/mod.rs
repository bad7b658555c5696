//! Our store and other people's beside each other.
//!
//! Each measurement is made in processes of its own, which open the store, wait for the start, and
//! count what their threads do in the same window. Data is loaded once for each store and data set,
//! in random order, and removed before the next data set is made. In each cell all stores run in
//! turn, and the order changes with each run. All are used through one trait,
//! `latchwork_rivals::Store`; their settings are described there. What is quoted is the median over
//! the runs.
//!
//! The workloads are a table in `workloads.rs`; a reading beside a writer is compared with both
//! alone in the same run, and durable commits with what the disk itself can do (`device.rs`).
//!
//! A transfer is checked in the end: the sums of accounts, tellers, branches and history are equal.
//! A measurement in which some worker did nothing fails.

mod data;
mod device;
mod figures;
mod files;
mod held;
mod job;
mod keys;
mod killed;
mod ledger;
mod ours;
mod parent;
mod plan;
mod report;
mod row;
mod serve;
mod transfer;
mod trials;
mod work;
mod workloads;
mod ycsb;

pub use figures::{FIGURES, Figure, Unit};
pub use job::Outcome;
pub use parent::Fault;
pub use plan::{Cell, Settings, Subject};
pub use report::{Load, Report, Series, Step, run};
pub use row::{Params, Row};
pub use serve::serve;
pub use workloads::Workload;

//! Our store compared with other stores.
//!
//! Each measurement runs in new processes, which open the store, wait for the start and count the
//! operations of their threads in the same window. Data is loaded once per store and data set, in
//! random order, and removed before the next data set is created. In each cell all stores run in
//! turn; the order changes with each run. All are used through one trait,
//! `latchwork_rivals::Store`, which documents their settings. Reported values are medians over the
//! runs.
//!
//! `workloads.rs` has the table of workloads. Reading during writes is compared with reading
//! alone and writing alone in the same run. Durable commits are compared with the disk itself
//! (`device.rs`).
//!
//! Transfers are checked at the end: the sums of accounts, tellers, branches and history are equal.
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

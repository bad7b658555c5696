//! Our store and other people's beside each other.
//!
//! Each measurement is made in processes of its own, which open the store, wait for the start, and
//! count what their threads do in the same window. Data is loaded once for each store and data set,
//! in random order, and removed before the next data set is made. In each cell all stores run in
//! turn, and the order changes with each run. All are used through one trait,
//! `latchwork_rivals::Store`; their settings are described there. What is quoted is the median over
//! the runs.
//!
//! | workload | what | an operation |
//! |---|---|---|
//! | `get` | records of 16 and 100 bytes, uniform | a read in a snapshot of its own |
//! | `get-long` | the same | a read; 1,000 in a transaction |
//! | `get-rw` | the same | a read in a transaction of its own that could write |
//! | `put` | the same | an update in a transaction of its own, no wait for the disk |
//! | `batch` | the same | 1,000 updates in a transaction, no wait for the disk |
//! | `durable` | the same | an update in a transaction of its own, on the disk when it returns |
//! | `range-10`, `scan-100`, `scan-all` | the same | to read 10, 100 or all records in order |
//! | `read-while-writing` | the same | a read as in `get`, while one more thread writes |
//! | `rrand`, `rhot` | keys of 4 native bytes, 100 bytes | a read of any key, of key 0, alone |
//! | `wrand` | the same | an update in a transaction of its own, on the disk when it returns |
//! | `sepdb` | the same, a table for each thread | a read without a transaction |
//! | `snap` | the same | a read in a snapshot that lasts the whole window |
//! | `tproc-b-1`, `tproc-b-10` | a bank of a scale | a transfer: 3 reads and updates, an insert |
//! | `ycsb-a` to `ycsb-f` | rows of 1,000 bytes, Zipf 0.99 | as YCSB has them |
//!
//! A transfer is checked in the end: the sums of accounts, tellers, branches and history are equal.
//! A measurement in which some worker did nothing fails.

mod data;
mod job;
mod keys;
mod ours;
mod parent;
mod plan;
mod report;
mod row;
mod serve;
mod transfer;
mod work;
mod ycsb;

pub use job::Outcome;
pub use parent::Fault;
pub use plan::{Cell, Settings, Subject, Workload};
pub use report::{Load, Report, Series, Step, run};
pub use row::{Params, Row};
pub use serve::serve;

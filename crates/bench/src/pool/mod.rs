//! Our buffer pool beside Berkeley DB's, a mapped file, and a plain `pread`.
//!
//! Within a run the subjects take turns in each cell, and the one that begins changes. Each reads 8
//! bytes of a page: ours by an optimistic read, Berkeley DB by `memp_fget` and `memp_fput`, the
//! mapping by a load, `pread` by a system call that copies the page.
//!
//! | workload | what |
//! |---|---|
//! | `hot` | all workers read one page |
//! | `uniform` | pages of a set that fits, each as often |
//! | `zipf` | the same, a few nearly always |
//! | `search` | one of 80 keys of 16 bytes is searched for by halving; beside words in memory |
//! | `write`, `write-half`, `write-heavy` | as `uniform`; 1, 5 or 9 of 10 add one to the bytes |
//! | `scan` | a hot set of a quarter of the pool, while each tenth read is the next of a scan |
//! | `scan-told` | the same; the pool is told which reads scan |
//! | `beyond-memory` | four times as many pages as frames, each as often |
//! | `beyond-direct` | the same, around the system's cache |
//! | `calm` | a hot set of a quarter of the pool; the last worker reads it, too, uncounted |
//! | `write-back` | the same; the last one changes other pages, so each evicts a changed one |
//!
//! `hot`, `uniform`, `zipf` and `write` run in processes, too, which share the pool. A run in which
//! what the workload is about did not happen is a [`Fault`] (no read of ours took the optimistic
//! path, no page of a scan came from the file, no changed page was evicted), and so is a page whose
//! bytes are not those that were put there. What a read of ours stores where others load is counted
//! by the handles: marks, shared latches, waits.

mod fault;
mod figures;
mod keeper;
mod measure;
mod ours;
mod outcome;
mod pages;
mod plan;
mod report;
mod rivals;
mod work;

pub use fault::Fault;
pub use figures::figures;
pub use measure::serve;
pub use plan::{Cell, Place, Settings, Subject, Workload};
pub use report::{Params, Report, Row, Series, Step, run};

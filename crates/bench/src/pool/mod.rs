//! Our buffer pool compared with Berkeley DB's, a mapped file and `pread`.
//!
//! Within a run the pools alternate in each cell, and the first one changes. Each reads 8 bytes of
//! a page: ours by an optimistic read, Berkeley DB by `memp_fget` and `memp_fput`, the mapping by a
//! load, `pread` by a system call that copies the page.
//!
//! | workload | what |
//! |---|---|
//! | `hot` | all workers read one page |
//! | `uniform` | uniform reads of pages that fit |
//! | `zipf` | the same, a few nearly always |
//! | `search` | a binary search for one of 80 keys of 16 bytes; compared with words in memory |
//! | `write`, `write-half`, `write-heavy` | as `uniform`; 1, 5 or 9 of 10 add one to the bytes |
//! | `scan` | a hot set of a quarter of the pool, while each tenth read is the next of a scan |
//! | `scan-told` | the same; reads of the scan are marked as such for the pool |
//! | `beyond-memory` | uniform reads of four times as many pages as frames |
//! | `beyond-direct` | the same, with direct I/O |
//! | `calm` | a hot set of a quarter of the pool; the last worker also reads it, uncounted |
//! | `write-back` | the same; the last one changes other pages, so each evicts a changed one |
//!
//! `hot`, `uniform`, `zipf` and `write` also run in processes that share the pool. A run is a
//! [`Fault`] if the subject of the workload did not occur (no optimistic read of ours, no page of a
//! scan read from the file, no changed page evicted) or if a page has wrong contents. The handles
//! count the stores of our reads to memory that others load: marks, shared latches, waits.

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

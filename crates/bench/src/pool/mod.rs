//! Our buffer pool beside Berkeley DB's, a mapped file, and a plain `pread`.
//!
//! Within a run the subjects take turns in each cell, and the one that begins changes. Each reads 8
//! bytes of a page: ours by an optimistic read, Berkeley DB by `memp_fget` and `memp_fput`, the
//! mapping by a load, `pread` by a system call that copies the page.
//!
//! | workload | what |
//! |---|---|
//! | `hot` | all threads read one page |
//! | `uniform` | pages of a set that fits, each as often |
//! | `zipf` | the same, a few nearly always |
//! | `write` | the same as `uniform`, one in ten adds one to the bytes |
//! | `scan` | a hot set of a quarter of the pool, while each tenth read is the next of a scan |
//! | `beyond-memory` | four times as many pages as frames, each as often |
//!
//! A mapping and `pread` have no changes that others see whole, so they do not run `write`. A run
//! of ours in which the optimistic path was never taken is a [`Fault`], and so is a page whose
//! bytes are not those that were put there. What a read of ours stores where others load is
//! counted by the handles: marks, shared latches, waits.

mod ours;
mod report;
mod rivals;
mod subject;
mod work;

pub use report::{Params, Report, Row, Series, Step, run};
pub use subject::{Fault, Subject};
pub use work::{Settings, Workload};

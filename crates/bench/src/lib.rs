//! Benchmarks that compare latches, and their targets.
//!
//! Our latches and the rivals run in one program, in turn. A run visits all cells (a workload and a
//! number of threads) and in each cell all subjects. Each run starts with another subject; every
//! second run has the reverse order. Reported values are medians over the runs. A reported ratio is
//! the median of the ratios within each run, so a machine that is slow for a while is slow for both
//! sides. Each row states the spread of its runs and whether the spread makes it invalid.
//!
//! | workload | threads | a section | between sections |
//! |---|---|---|---|
//! | `uncontended` | 1, and others that sleep | nothing | nothing |
//! | `short` | 2, 32 | writes one line | 100 ns of computing |
//! | `long` | 2, 32 | writes 8 lines in 1500 ns | 1500 ns |
//! | `mix` | 8 | reads one line, or writes it | 100 ns |
//!
//! The pauses vary at random by half, so that threads do not fall into step. The latch and the data
//! are on different cache lines. One section in 64 is timed; in a mix, one read in 64 and every
//! write, or one write in 16 if more than 2 % of the operations are writes.
//!
//! Each section checks mutual exclusion. At the end no write may be missing. A contention benchmark
//! in which no thread ever found the latch held, and a mix without a write, are a [`Fault`]. Timing
//! never is.

#![warn(clippy::all)]

mod cell;
mod child;
mod contest;
mod dir;
mod fault;
mod figures;
mod latch;
pub mod lock;
mod measure;
pub mod pool;
mod report;
mod row;
mod settings;
pub mod sim;
pub mod stats;
pub mod store;
mod subject;
mod team;
mod times;
mod work;

pub use crate::cell::{Bench, Cell, Role};
pub use crate::dir::Dir;
pub use crate::fault::Fault;
pub use crate::figures::{Bound, Figure, Reached, figures};
pub use crate::latch::{Exclusive, Shared};
pub use crate::measure::{Case, Part, Sample};
pub use crate::report::{Report, Series, Step, order, run};
pub use crate::row::{Params, Row};
pub use crate::settings::Settings;
pub use crate::subject::{Kind, Subject};
pub use crate::work::{MAX_LINES, Pace};

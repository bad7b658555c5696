//! Workloads that compare latches, and what they are to reach.
//!
//! Ours and other people's run in one program, in turn: a run passes through all cells (a workload
//! and a number of threads) and in each through all subjects, beginning with another one each time
//! and backwards every second time. What is quoted is the median over the runs, and of a ratio the
//! median of the ratios within each run, so that a machine that is slow for a while is slow for
//! both. A row says how far its runs lie apart and whether that makes it worthless.
//!
//! | workload | threads | a section | between sections |
//! |---|---|---|---|
//! | `uncontended` | 1, and others that sleep | nothing | nothing |
//! | `short` | 2, 32 | writes one line | 100 ns of computing |
//! | `long` | 2, 32 | writes 8 lines in 1500 ns | 1500 ns |
//! | `mix` | 8 | reads one line, or writes it | 100 ns |
//!
//! The pauses vary at random by a half, lest the threads fall into step. The latch has lines of its
//! own, apart from the data. Waits are timed for one section in 64; in a mix for one read in 64 and
//! for every write, or one in 16 if more than 2 % are writes.
//!
//! Each section checks that it is alone, and at the end no write may be missing. A bench of
//! contention in which nobody ever found the latch held, or a mix without a write, is a [`Fault`].
//! Time never is.

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

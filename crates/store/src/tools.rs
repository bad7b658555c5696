//! Tools that look at a whole store, or make one of another.
//!
//! | file | what |
//! |---|---|
//! | `text` | a dump as text: what is written, and what of it is believed |
//! | `dump` | a store to a dump, and a dump into a store |
//! | `backup` | a copy of a store that others write, and a store of a copy |
//! | `beside` | the folder of a copy while it is made |
//! | `clear` | a table of any size is emptied |
//! | `compact` | a store whose pages are full, of one whose pages are not |
//! | `records` | what records there are in a log |
//! | `pages` | how the pages of a table are filled |
//! | `space` | how the pages of the file are used, and whether it is so |
//! | `salvage` | what can be read of a store that cannot be opened |
//! | `activity` | what goes on in a store |
//! | `metrics` | counts and sizes for a monitoring system |
//! | `memory` | shared memory that killed processes left |

mod activity;
mod backup;
mod beside;
mod clear;
mod compact;
mod dump;
mod memory;
mod metrics;
mod pages;
mod records;
mod salvage;
mod space;
mod text;

pub use activity::Activity;
pub use backup::{Copied, Copying, restore};
pub use dump::{Load, Told};
pub use memory::{LeftMemory, forget_abandoned, forget_memory, left_memory};
pub use metrics::{Metric, MetricKind, Metrics, Sample};
pub use pages::TablePages;
pub use records::{LogRead, LogRecord, read_log};
pub use salvage::{Salvaged, salvage};
pub use space::{DataFile, Fault, Space};
pub use text::{DumpError, DumpItem, DumpReader, DumpSummary, DumpWriter};

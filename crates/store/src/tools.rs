//! Tools that inspect, copy or repair a whole store.
//!
//! | file | contents |
//! |---|---|
//! | `text` | the text format of a dump, and its checks |
//! | `dump` | a store to a dump, and a dump into a store |
//! | `backup` | a copy of a store that is open, and a store from a copy |
//! | `temporary` | the folder of a copy while it is being written |
//! | `drop_table` | removing all records of a table of any size |
//! | `compact` | a copy of a store with full pages |
//! | `reclaim` | returning the space of free pages to the file system |
//! | `records` | the records of a log |
//! | `pages` | how full the pages of a table are |
//! | `space` | the use of the pages of the file, and its check |
//! | `salvage` | reading a store that cannot be opened |
//! | `activity` | the activity in a store |
//! | `metrics` | counts and sizes for a monitoring system |
//! | `view` | inspection of a store by a process that has not opened it |
//! | `locks` | waiting transactions, and the transactions that block them |
//! | `processes` | the processes that have the store open |
//! | `names`, `catalog` | names of locks as text; names of tables |
//! | `upgrade` | conversion of a store of an older format |
//! | `memory` | shared memory that killed processes left |

mod activity;
mod backup;
mod catalog;
mod compact;
mod drop_table;
mod dump;
mod locks;
mod memory;
mod metrics;
mod names;
mod pages;
mod processes;
mod reclaim;
mod records;
mod salvage;
mod space;
mod temporary;
mod text;
mod upgrade;
mod view;

pub use activity::Activity;
pub use backup::{Copied, Copying, restore};
pub use dump::{Load, LoadProgress};
pub use locks::{Blocked, Blocker, StoreLock};
pub use memory::{
    SharedMemoryInfo, discard_abandoned_memory, discard_shared_memory, list_shared_memory,
};
pub use metrics::{Metric, MetricKind, Metrics, Sample};
pub use names::LockNames;
pub use pages::TablePages;
pub use processes::{Holding, Processes, SnapshotInfo, StoreProcess};
pub use records::{LogRead, LogRecord, read_log};
pub use salvage::{Salvaged, salvage};
pub use space::{DataFile, Fault, Space};
pub use text::{DumpError, DumpItem, DumpReader, DumpSummary, DumpWriter};
pub use upgrade::{Upgraded, upgrade};
pub use view::{LockWait, StoreView, TransactionInfo, region_file, store_of_region};

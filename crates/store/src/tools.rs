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
//! | `reclaim` | room of free pages, returned to the file system |
//! | `records` | what records there are in a log |
//! | `pages` | how the pages of a table are filled |
//! | `space` | how the pages of the file are used, and whether it is so |
//! | `salvage` | what can be read of a store that cannot be opened |
//! | `activity` | what goes on in a store |
//! | `metrics` | counts and sizes for a monitoring system |
//! | `view` | a store looked at by a process that takes no part in it |
//! | `locks` | which transactions wait, and which of them block others |
//! | `processes` | which processes have the store open, and what each does |
//! | `names`, `catalog` | names of locks in words, and of tables |
//! | `upgrade` | a store of an older format becomes one of the present format |
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

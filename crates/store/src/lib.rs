//! The store: transactions on keys that are in order.
//!
//! ```
//! use latchwork_store::{Error, Store, Table};
//!
//! const ACCOUNTS: Table<u64, i64> = Table::new("accounts");
//!
//! # let path = std::env::temp_dir().join(format!("store-lib-{}", std::process::id()));
//! let store = Store::open(&path)?; // made, joined or recovered: the same call in every process
//! store.write(|tx| {
//!     tx.put(&ACCOUNTS, 7, 100)?;
//!     tx.put(&ACCOUNTS, 8, 0)
//! })?;
//! let left = store.write(|tx| {
//!     let from = tx.get_for_update(&ACCOUNTS, 7)?.unwrap_or(0);
//!     let to = tx.get_for_update(&ACCOUNTS, 8)?.unwrap_or(0);
//!     if from < 10 {
//!         return Err(Error::Rejected("poor".to_owned()));
//!     }
//!     tx.put(&ACCOUNTS, 7, from - 10)?;
//!     tx.put(&ACCOUNTS, 8, to + 10)?;
//!     Ok(from - 10)
//! })?;
//! assert_eq!(left, 90);
//! let all = store.read(|tx| tx.range(&ACCOUNTS, ..)?.collect::<Result<Vec<_>, _>>())?;
//! assert_eq!(all, [(7, 90), (8, 10)]);
//! # drop(store);
//! # std::fs::remove_dir_all(&path).unwrap();
//! # Ok::<(), Error>(())
//! ```
//!
//! Transactions that write hold locks to their end (strict two-phase locking); those that only read
//! take a snapshot at a position of the log, lock nothing and wait for nobody. Commit records are
//! in one order, that of the log, and conflicting transactions commit in the order in which they
//! conflict: so every snapshot is the state between two transactions of a serial order. Old
//! versions are found in the log, by the stamp that each record bears.
//!
//! | file | what |
//! |---|---|
//! | `key` | keys whose bytes are in their order |
//! | `value`, `table` | values; tables and their types |
//! | `error` | why a call failed, and whether to try again |
//! | `engine` | what transactions need of trees and of a log |
//! | `stamp`, `seen` | who wrote a record last; which version a snapshot sees |
//! | `long` | values in pieces |
//! | `snapshot` | reading at a position of the log |
//! | `txn` | reading and writing under locks; savepoints; rolling back |
//! | `retry` | running a closure again until it commits |
//! | `files` | the engine on trees and a log: opening, undoing, recovery, checkpoints |
//! | `open` | the folder: who has it open, where its shared memory lies |
//! | `place`, `refusal` | what a folder lies on; why one is not opened |
//! | `tables`, `names` | from the names of tables to their trees; names that are made at run time |
//! | `sorted` | a new table of rows that come in order |
//! | `store`, `typed` | a store; what its closures have in hand |
//! | `idle` | a store's sessions, of threads and of objects |
//! | `turns` | tasks' turns at thread slots |
//! | `wakers` | tasks that wait for a turn or a sync |
//! | `background` | threads that flush and make checkpoints for tasks |
//! | `prepared` | transactions in two phases |
//! | `faces` | transactions and snapshots that are objects; those of tasks; cursors, multimaps, |
//! | | sequences, ends; waiting for the disk; errors of the caller's own |
//! | `tools` | what looks at a whole store, or makes one of another |

#![warn(clippy::all)]

mod background;
mod engine;
mod error;
mod faces;
mod files;
mod idle;
mod key;
mod long;
mod names;
mod open;
mod place;
mod prepared;
mod refusal;
mod retry;
mod seen;
mod snapshot;
mod sorted;
mod stamp;
mod store;
mod table;
mod tables;
mod tools;
mod turns;
mod txn;
mod typed;
mod value;
mod wakers;

pub use crate::engine::{Chain, Engine, How, Version, Wrote};
pub use crate::error::{Error, GID_MAX};
pub use crate::faces::by_hand::Transaction;
pub use crate::faces::cursor::Cursor;
pub use crate::faces::kept::KeptSnapshot;
pub use crate::faces::multi::{Pairs, Values};
pub use crate::faces::sequence::Sequence;
pub use crate::faces::tasks::{AsyncTransaction, Lent};
#[doc(hidden)]
pub use crate::files::frontiers::Frontiers;
pub use crate::files::home::Sizes;
#[doc(hidden)]
pub use crate::files::turn::{State as TurnState, Turn};
pub use crate::key::{KEY_MAX, Key, KeyError, StartsWith, Uuid};
pub use crate::open::{Options, Place};
pub use crate::place::{FileSystem, Kind, file_system};
pub use crate::prepared::Prepared;
pub use crate::refusal::Refusal;
pub use crate::retry::{Attempts, Patience};
pub use crate::seen::Commits;
pub use crate::snapshot::{EachRecord, Snapshot};
pub use crate::stamp::Stamp;
pub use crate::store::{Counts, Store};
pub use crate::table::{Multi, Table};
pub use crate::tools::{Activity, Copied, Copying, restore};
pub use crate::tools::{DumpError, DumpItem, DumpReader, DumpSummary, DumpWriter, Load, Told};
pub use crate::tools::{LeftMemory, forget_abandoned, forget_memory, left_memory};
pub use crate::tools::{LogRead, LogRecord, Salvaged, Space, TablePages, read_log, salvage};
pub use crate::txn::{Level, Savepoint, Txn};
pub use crate::typed::{ReadTxn, Rows, WriteTxn};
pub use crate::value::{VALUE_MAX, Value, ValueError};
pub use latchwork_disk::{Calls, Operation};
pub use latchwork_log::Mode;
pub use latchwork_tree::{Batch, Header, Row};

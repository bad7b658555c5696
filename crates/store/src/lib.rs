//! An embedded store: serializable transactions on ordered tables, for many processes.
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
//! Transactions that may write hold locks to their end (strict two-phase locking). Transactions
//! that only read take a snapshot at a position of the log; they take no locks, and no transaction
//! waits for them. The order of commit records in the log is total, and conflicting transactions
//! commit in the order of their conflict. So every snapshot is the state between two transactions
//! of a serial order. Snapshots find old versions in the log, by the stamp of each record.
//!
//! By default, a commit is on the disk when [`Store::write`] returns. Its closure may run several
//! times, for up to ten seconds, after which [`Error::Deadline`] reports the last failure. If a
//! process is killed, its committed transactions are kept, in any [`Mode`], its other changes are
//! rolled back, and other processes wait for its locks only until that is done.
//!
//! # What to call
//!
//! - Open a store, which creates, joins or recovers it: [`Store::open`]; with sizes and a mode
//!   [`Store::open_with`].
//! - Name a table, with types: [`Table`]; [`Multi`] for several values per key. Keys are [`Key`]s,
//!   values [`Value`]s. The store records the types and refuses others ([`Error::TableType`]);
//!   tools read any table as [`Raw`].
//! - Change the types of a table: [`Store::migrate`]. List the types: [`Store::table_infos`].
//! - Read at a single point in time: [`Store::read`]; one record [`Store::get`]; a snapshot object
//!   [`Store::snapshot`].
//! - Read a range: [`ReadTxn::range`], [`prefix`](ReadTxn::prefix); without a copy
//!   [`scan`](ReadTxn::scan); step by step in both directions [`Cursor`]; from the end of a range,
//!   before a write, [`WriteTxn::scan_back`].
//! - Write, with retries after deadlocks: [`Store::write`]; with a mode, a level, a deadline or a
//!   label [`Store::write_with`] and [`TxnOptions`].
//! - Read before a write: [`WriteTxn::get_for_update`], [`update`](WriteTxn::update).
//! - Roll back a part: [`WriteTxn::savepoint`], [`roll_back_to`](WriteTxn::roll_back_to).
//! - End a closure with the caller's own error: [`Store::write_as`], [`Store::read_as`], or
//!   [`Error::Rejected`].
//! - Use a table as a queue: [`WriteTxn::pop_first`], [`put_final`](WriteTxn::put_final).
//! - Count without a hot record: [`Sequence`].
//! - Keep a transaction in a struct or a server: [`Store::begin`], which returns a [`Transaction`].
//! - Write a function that runs in transactions of any engine: [`ReadOps`], [`WriteOps`].
//! - Wait without blocking a thread: [`Store::write_async`], [`Store::begin_async`],
//!   [`Store::sync_async`].
//! - Commit in two phases: [`Transaction::prepare`], [`Store::prepared`],
//!   [`Store::commit_prepared`].
//! - Choose what a commit waits for: [`Mode`] in [`Options`] or [`TxnOptions`]; wait later:
//!   [`Store::sync`].
//! - Close a store and get errors: [`Store::close`]; a drop also closes it.
//! - Decide whether to retry: [`Error::is_retryable`]; whether the disk is full:
//!   [`Error::is_no_space`].
//! - Load sorted rows into a new table: [`Store::load_sorted`]; from text [`Store::load`].
//! - Find which transactions block others, and which process is stopped: [`Store::blocked`],
//!   [`Store::processes`]; from a process that has not opened the store: [`StoreView`].
//! - Copy, check, inspect: [`Store::backup`] and [`restore`], [`Store::verify`],
//!   [`Store::activity`], [`salvage`].
//!
//! `docs/store.md` describes the format, the protocols, and the result of each kind of failure. The
//! `README.md` of this crate lists the contents of each file.

#![warn(clippy::all)]
// Without `internals`, its items are `pub` and not exported.
#![cfg_attr(not(feature = "internals"), allow(unreachable_pub))]

mod admission;
mod api;
mod background;
#[doc(hidden)]
pub mod derived;
#[doc(hidden)]
pub mod elsewhere;
mod engine;
mod entry;
mod error;
mod events;
mod files;
mod format;
mod idle;
mod key;
mod lock_error;
mod lock_name;
mod long;
mod migrate;
mod names;
mod open;
mod opened;
mod place;
mod prepared;
mod raw;
mod refusal;
mod retry;
mod seen;
mod server_error;
mod snapshot;
mod sorted;
mod stamp;
mod store;
mod table;
mod tables;
mod tools;
mod transact;
mod txn;
mod type_text;
mod typed;
mod types;
mod user;
mod value;
mod wakers;

pub use crate::api::by_hand::Transaction;
pub use crate::api::cursor::Cursor;
pub use crate::api::kept::KeptSnapshot;
pub use crate::api::multi::{Pairs, Values};
pub use crate::api::sequence::Sequence;
pub use crate::api::tasks::{AsyncTransaction, TransactionGuard};
pub use crate::entry::TableInfo;
pub use crate::error::{Error, GID_MAX};
pub use crate::files::inner::Sizes;
pub use crate::key::{AnyKey, KEY_MAX, Key, KeyError, KeyPart, StartsWith, Uuid};
pub use crate::lock_error::{Holder, KeyBounds};
pub use crate::names::NAME_MAX;
pub use crate::open::{MemoryPlace, Options};
pub use crate::opened::{Difference, Opened};
pub use crate::place::{FileSystem, Kind, file_system};
pub use crate::prepared::Prepared;
pub use crate::raw::Raw;
pub use crate::refusal::Refusal;
pub use crate::retry::{Attempts, TxnOptions};
pub use crate::server_error::{ServerError, ServerFailure};
pub use crate::snapshot::EachRecord;
pub use crate::store::{Counts, Store};
pub use crate::table::{Multi, Table};
pub use crate::tools::{Activity, Copied, Copying, DataFile, restore};
pub use crate::tools::{Blocked, Blocker, LockNames, LockWait, StoreLock, StoreView};
pub use crate::tools::{
    DumpError, DumpItem, DumpReader, DumpSummary, DumpWriter, Load, LoadProgress,
};
pub use crate::tools::{Fault, LogRead, LogRecord, Salvaged, Space, TablePages, read_log, salvage};
pub use crate::tools::{Holding, Processes, SnapshotInfo, StoreProcess, TransactionInfo};
pub use crate::tools::{Metric, MetricKind, Metrics, Sample};
pub use crate::tools::{
    SharedMemoryInfo, discard_abandoned_memory, discard_shared_memory, list_shared_memory,
};
pub use crate::tools::{Upgraded, upgrade};
pub use crate::tools::{region_file, store_of_region};
pub use crate::transact::{ReadOps, Record, WriteOps};
pub use crate::txn::{Level, Savepoint};
pub use crate::typed::{ReadTxn, Rows, WriteTxn};
pub use crate::types::Type;
pub use crate::user::{Entered, TaskClosure};
#[cfg(feature = "json")]
pub use crate::value::Json;
#[cfg(feature = "zerocopy")]
pub use crate::value::Plain;
#[cfg(feature = "postcard")]
pub use crate::value::Postcard;
pub use crate::value::{TypeName, VALUE_MAX, Value, ValueError};
pub use latchwork_disk::{Calls, Operation};
pub use latchwork_lockmgr::set_interrupt;
pub use latchwork_log::{LogWork, Mode};
pub use latchwork_pool::Cause;
pub use latchwork_region::ProcessState;
// For `latchwork-remote`, which fills the same batches.
#[doc(hidden)]
pub use latchwork_tree::{Batch, Header, Row};

/// The engine, transactions and shared words, for models, tests and measurements. Their interface
/// changes with any version.
#[cfg(feature = "internals")]
pub mod internals {
    pub use crate::engine::{Engine, UndoChain, Version, WriteOptions, WriteOutcome};
    pub use crate::files::frontiers::Frontiers;
    pub use crate::files::undo_ownership::{State as UndoState, UndoOwnership};
    pub use crate::retry::run;
    pub use crate::seen::Commits;
    pub use crate::snapshot::Snapshot;
    pub use crate::stamp::Stamp;
    pub use crate::txn::Txn;
    pub use crate::user::Used;
}

//! The store: transactions on keys that are in order.
//!
//! What stands here so far is what does not depend on pages and files: the encodings of keys and
//! values, typed tables, and the transactions' logic over an [`Engine`], which is what they need of
//! trees and of a log. The trees themselves, opening and recovery are not here yet.
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
//! | `snapshot` | reading at a position of the log |
//! | `txn` | reading and writing under locks; savepoints; rolling back |
//! | `retry` | running a closure again until it commits |

#![warn(clippy::all)]

mod engine;
mod error;
mod key;
mod retry;
mod seen;
mod snapshot;
mod stamp;
mod table;
mod txn;
mod value;

pub use crate::engine::{Chain, Engine, Found, How, Wrote};
pub use crate::error::Error;
pub use crate::key::{KEY_MAX, Key, KeyError, StartsWith, Uuid};
pub use crate::retry::{Attempts, Patience};
pub use crate::seen::Commits;
pub use crate::snapshot::{EachRecord, Snapshot};
pub use crate::stamp::Stamp;
pub use crate::table::{Multi, Table};
pub use crate::txn::{Level, Savepoint, Txn};
pub use crate::value::{Value, ValueError};

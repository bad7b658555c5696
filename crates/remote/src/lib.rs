//! The transactions of the store on a server that speaks the protocol of PostgreSQL: on PostgreSQL
//! itself, and on CockroachDB and YugabyteDB, which are distributed.
//!
//! ```no_run
//! use latchwork_remote::Database;
//! use latchwork_store::{Error, Table, WriteOps};
//!
//! const ACCOUNTS: Table<u64, i64> = Table::new("accounts");
//!
//! fn transfer(tx: &mut impl WriteOps, from: u64, to: u64) -> Result<(), Error> {
//!     tx.update(&ACCOUNTS, from, |old| Some(old.unwrap_or(0) - 10))?;
//!     tx.update(&ACCOUNTS, to, |old| Some(old.unwrap_or(0) + 10))?;
//!     Ok(())
//! }
//!
//! // A folder, or "postgres://ann@db.example.com/bank".
//! let bank = Database::open("/var/lib/bank")?;
//! bank.write(|tx| transfer(tx, 7, 8))?;
//! # Ok::<(), Error>(())
//! ```
//!
//! `docs/postgres.md` says when to move, what a call costs, and what differs.
//!
//! | file | contents |
//! |---|---|
//! | `sql` | the statements and the two tables |
//! | `link` | a connection: statements in order, and their answers |
//! | `address`, `session`, `pool`, `tls` | connections of threads and tasks |
//! | `catalog` | types and schema versions of tables |
//! | `state` | a transaction between two calls: which messages are sent when |
//! | `calls`, `range`, `rows` | the calls of transactions |
//! | `retry` | when a transaction runs again |
//! | `blocking`, `read`, `write` | transactions of threads |
//! | `task_txn`, `tasks` | the asynchronous form |
//! | `postgres`, `database` | the handles |
//! | `copy` | moving a store to a server, and back |
//! | `error` | SQLSTATEs as errors |

#![warn(clippy::all)]

mod address;
mod blocking;
mod calls;
mod catalog;
mod copy;
mod database;
mod error;
mod link;
mod pool;
mod postgres;
mod range;
mod read;
mod retry;
mod rows;
mod session;
mod sql;
mod state;
mod task_txn;
mod tasks;
mod tls;
mod write;

pub use crate::copy::{CopyProgress, CopySummary, from_server, to_server};
pub use crate::database::{
    Database, DatabaseReadTxn, DatabaseSavepoint, DatabaseWriteTxn, is_server,
};
pub use crate::postgres::{Postgres, PostgresOptions};
pub use crate::read::ReadTxn;
pub use crate::state::{Savepoint, VALUE_MAX};
pub use crate::task_txn::{AsyncReadTxn, AsyncRows, AsyncTxn, AsyncWriteTxn};
pub use crate::tasks::AsyncPostgres;
pub use crate::write::WriteTxn;

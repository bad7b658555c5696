//! An embedded key-value store with serializable transactions that several processes write at the
//! same time, and the layers below it.
//!
//! ```
//! use latchwork::store::{Error, Store, Table};
//!
//! const FRUIT: Table<&str, u64> = Table::new("fruit");
//!
//! # let path = std::env::temp_dir().join(format!("latchwork-front-{}", std::process::id()));
//! let store = Store::open(&path)?; // every process makes the same call
//! store.write(|tx| {
//!     let pears = tx.get_for_update(&FRUIT, "pear")?.unwrap_or(0);
//!     tx.put(&FRUIT, "pear", pears + 1)
//! })?;
//! assert_eq!(store.get(&FRUIT, "pear")?, Some(1));
//! # drop(store);
//! # std::fs::remove_dir_all(&path).unwrap();
//! # Ok::<(), Error>(())
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`store`] | transactions, tables, snapshots; start here |
//! | `remote` | the same transactions on PostgreSQL; feature `postgres` |
//! | [`lockmgr`] | locks by name for the owners of transactions, with deadlock detection |
//! | [`pool`], [`disk`] | pages of files in shared memory; files, real or simulated |
//! | [`region`] | memory that processes share and that outlives each of them |
//! | [`log`], [`tree`] | the write-ahead log; B+trees on pages: for their errors |
//! | [`latch`] | short locks of 4 to 16 bytes, and a table of which to take |
//! | [`machine`] | words, waiting, time and place: what all of them run on |
//!
//! Linux on x86-64. Features: `derive` (default) for keys and values of structs and enums; `json`,
//! `postcard` and `zerocopy` for values in formats of other crates; `tracing`; `postgres`, and
//! `postgres-tls` for encrypted connections.
//!
//! This crate only re-exports. Each module names its errors, its limits and what happens when a
//! process dies.

pub use latchwork_disk as disk;
pub use latchwork_latch as latch;
pub use latchwork_lockmgr as lockmgr;
pub use latchwork_log as log;
pub use latchwork_machine as machine;
pub use latchwork_pool as pool;
pub use latchwork_region as region;
#[cfg(feature = "postgres")]
pub use latchwork_remote as remote;
pub use latchwork_tree as tree;

/// The store, and the derived keys and values of it.
pub mod store {
    #[cfg(feature = "derive")]
    pub use latchwork_derive::{Key, Value};
    pub use latchwork_store::*;
}

/// Compiles the programs of the README and of the page about latches.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/latches.md")]
struct Pages;

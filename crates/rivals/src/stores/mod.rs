//! Embedded stores of other projects behind one trait.
//!
//! | store | how it comes |
//! |---|---|
//! | Berkeley DB 5.3, RocksDB | the system's library, opened on first use |
//! | LMDB, SQLite | feature `stores`: their C sources |
//! | redb, fjall | feature `stores` |
//!
//! Settings that matter:
//!
//! * Berkeley DB (its header is used at build time): a shared environment with transactions, locks,
//!   log and pool; 4 KiB pages; deadlock detection at each wait, the youngest is the victim; not
//!   durable: `DB_TXN_NOSYNC`.
//! * RocksDB: `TransactionDB` (record locks), no compression, filter of 10 bits a key, LRU cache;
//!   not durable: the log is written and not synced.
//! * LMDB: no thread-local slots, no write map, one read transaction per session that is reset and
//!   renewed; not durable: `MDB_NOSYNC`.
//! * redb: byte slices as keys; not durable: `Durability::None`.
//! * fjall: `OptimisticTxDatabase` (serializable at commit), no compression; durable:
//!   `persist(SyncData)`.
//! * SQLite: WAL, tables without row ids, prepared statements, memory-mapped reads, writers begin
//!   immediately; not durable: `synchronous=OFF`.
//!
//! Each store is configured as its manual recommends for speed, with its guarantees intact. All
//! copy a value that was read into memory of the caller.

#[cfg(berkeley_db)]
mod bdb;
#[cfg(feature = "stores")]
mod fjall;
#[cfg(feature = "stores")]
mod lmdb;
#[cfg(feature = "stores")]
mod redb;
mod rocks;
mod rocks_raw;
#[cfg(feature = "stores")]
mod sqlite;
mod symbols;
#[cfg(feature = "stores")]
mod syncs;

use core::fmt;
use std::path::Path;

const BDB_MISSING: StoreError =
    StoreError::Missing("Berkeley DB 5.3 is not installed (Debian: libdb5.3-dev, to build with)");

/// The number of file syncs of this process. Counted with the feature `stores` only, and only for
/// calls through the program's own C symbols.
pub fn syncs() -> Option<u64> {
    #[cfg(feature = "stores")]
    return Some(syncs::count());
    #[cfg(not(feature = "stores"))]
    None
}

/// A store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreKind {
    /// Berkeley DB.
    BerkeleyDb,
    /// RocksDB's `TransactionDB`.
    RocksDb,
    /// LMDB.
    Lmdb,
    /// redb.
    Redb,
    /// fjall.
    Fjall,
    /// SQLite.
    Sqlite,
}

impl StoreKind {
    /// All stores.
    pub const ALL: [Self; 6] =
        [Self::BerkeleyDb, Self::Lmdb, Self::Redb, Self::RocksDb, Self::Fjall, Self::Sqlite];

    /// The name in rows and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::BerkeleyDb => "berkeley-db",
            Self::RocksDb => "rocksdb",
            Self::Lmdb => "lmdb",
            Self::Redb => "redb",
            Self::Fjall => "fjall",
            Self::Sqlite => "sqlite",
        }
    }

    /// Whether several processes can open it for writing at the same time.
    pub fn is_shared(self) -> bool {
        matches!(self, Self::BerkeleyDb | Self::Lmdb | Self::Sqlite)
    }

    /// The release that is linked or installed.
    ///
    /// # Errors
    ///
    /// [`StoreError::Missing`].
    pub fn release(self) -> Result<String, StoreError> {
        match self {
            #[cfg(berkeley_db)]
            Self::BerkeleyDb => bdb::release(),
            #[cfg(not(berkeley_db))]
            Self::BerkeleyDb => Err(BDB_MISSING),
            Self::RocksDb => rocks::release(),
            #[cfg(feature = "stores")]
            Self::Lmdb => Ok(lmdb::release()),
            #[cfg(feature = "stores")]
            Self::Sqlite => Ok(rusqlite::version().to_owned()),
            // These crates have no version at run time. The lock file has the full number.
            #[cfg(feature = "stores")]
            Self::Redb => Ok("4".to_owned()),
            #[cfg(feature = "stores")]
            Self::Fjall => Ok("3".to_owned()),
            #[cfg(not(feature = "stores"))]
            Self::Lmdb | Self::Sqlite | Self::Redb | Self::Fjall => Err(StoreError::Missing(
                "built without it (cargo build --release --features stores)",
            )),
        }
    }

    /// Opens the store in this directory, or creates it.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn open(self, folder: &Path, options: &StoreOptions) -> Result<Box<dyn Store>, StoreError> {
        match self {
            #[cfg(berkeley_db)]
            Self::BerkeleyDb => Ok(Box::new(bdb::Bdb::open(folder, options)?)),
            Self::RocksDb => Ok(Box::new(rocks::Rocks::open(folder, options)?)),
            #[cfg(feature = "stores")]
            Self::Lmdb => Ok(Box::new(lmdb::Lmdb::open(folder, options)?)),
            #[cfg(feature = "stores")]
            Self::Redb => Ok(Box::new(redb::Redb::open(folder, options)?)),
            #[cfg(feature = "stores")]
            Self::Fjall => Ok(Box::new(fjall::Fjall::open(folder, options)?)),
            #[cfg(feature = "stores")]
            Self::Sqlite => Ok(Box::new(sqlite::Sqlite::open(folder, options)?)),
            #[allow(unreachable_patterns, reason = "with everything built in, nothing is missing")]
            missing => missing.release().and_then(|_| Err(StoreError::Missing("not built in"))),
        }
    }
}

/// Options of a store.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// Size of the cache in bytes, if the store has one.
    pub cache: usize,
    /// Whether a commit returns only when it is on disk.
    pub durable: bool,
    /// Number of tables, which are numbered from 0.
    pub tables: usize,
    /// Whether read transactions of Berkeley DB read a snapshot (`DB_MULTIVERSION`) instead of
    /// locking. Those of the other stores always do.
    pub snapshots: bool,
    /// Bytes of log between two checkpoints of our store. `None` for its default. The other stores
    /// ignore it.
    pub budget: Option<u64>,
    /// Bytes of log that our store keeps for snapshots. `None` for its default. The other stores
    /// ignore it.
    pub history: Option<u64>,
    /// Whether all processes that had the store open were killed. Berkeley DB requires the
    /// application to know this (`DB_RECOVER`).
    pub recover: bool,
}

/// Errors of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The store is not installed or not built in, with the reason.
    Missing(&'static str),
    /// The transaction was rolled back because of others and can be retried.
    Again,
    /// The snapshot needs a version that no longer exists.
    TooOld,
    /// Any other error: the call, and the message of the store.
    Failed(&'static str, String),
}

impl StoreError {
    /// The error of a call.
    pub(crate) fn failed(call: &'static str) -> impl Fn(&dyn fmt::Display) -> Self {
        move |why| Self::Failed(call, why.to_string())
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(why) => f.write_str(why),
            Self::Again => f.write_str("rolled back in favour of another transaction"),
            Self::TooOld => f.write_str("the snapshot is too old"),
            Self::Failed(call, why) => write!(f, "{call}: {why}"),
        }
    }
}

impl core::error::Error for StoreError {}

/// The result of a call.
pub type StoreResult<T = ()> = Result<T, StoreError>;

/// An open store.
pub trait Store: Send + Sync {
    /// Opens a session for one thread.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn session(&self) -> StoreResult<Box<dyn Session + '_>>;

    /// Does the deferred work after a load: a checkpoint or a compaction.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn settle(&self) -> StoreResult;

    /// The number of syncs of the store's files by this process, if counted.
    fn syncs(&self) -> Option<u64> {
        syncs()
    }

    /// Bytes of log to replay after a crash, if the store reports them.
    fn to_redo(&self) -> Option<u64> {
        None
    }
}

/// A store as used by one thread.
pub trait Session {
    /// Reads one value in a transaction or snapshot of its own. Returns `false` if there is none.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn get(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool>;

    /// Writes one value in a transaction of its own.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> StoreResult;

    /// Reads several values in one transaction or snapshot.
    ///
    /// # Errors
    ///
    /// [`StoreError`], and those of `body`.
    fn read(&mut self, body: &mut dyn FnMut(&mut dyn Reads) -> StoreResult) -> StoreResult;

    /// Runs one transaction, with retries, and returns their number.
    ///
    /// # Errors
    ///
    /// [`StoreError`], and those of `body` except [`StoreError::Again`].
    fn write(&mut self, body: &mut dyn FnMut(&mut dyn Writes) -> StoreResult) -> StoreResult<u64>;
}

/// A read transaction.
pub trait Reads {
    /// Reads one value. Returns `false` if there is none.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn get(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool>;

    /// Reads at most `limit` records in order, from the first key not less than `from`, and returns
    /// their number.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn scan(
        &mut self,
        table: usize,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> StoreResult<usize>;
}

/// A read-write transaction.
pub trait Writes: Reads {
    /// Reads one value that this transaction will write.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn get_for_update(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool>;

    /// Writes one value.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> StoreResult;

    /// Writes one value as the last operation of the transaction.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn put_final(&mut self, table: usize, key: &[u8], value: &[u8]) -> StoreResult {
        self.put(table, key, value)
    }
}

#[cfg(test)]
mod tests;

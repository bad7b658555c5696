//! Other people's embedded stores, behind one face.
//!
//! | store | how it comes |
//! |---|---|
//! | Berkeley DB 5.3, RocksDB | the system's library, opened when asked for |
//! | LMDB, SQLite | feature `stores`: their C sources |
//! | redb, fjall | feature `stores` |
//!
//! Settings that matter:
//!
//! * Berkeley DB (its header is used at build time): a shared environment with transactions,
//!   locks, log and pool; 4 KiB pages; deadlocks looked for at each wait, the youngest gives way;
//!   not durable: `DB_TXN_NOSYNC`.
//! * RocksDB: `TransactionDB` (record locks), no compression, filter of 10 bits a key, LRU cache;
//!   not durable: the log is written and not synced.
//! * LMDB: no thread-local slots, no write map, one reading transaction a session that is reset
//!   and renewed; not durable: `MDB_NOSYNC`.
//! * redb: byte slices as keys; not durable: `Durability::None`.
//! * fjall: `OptimisticTxDatabase` (serializable at commit), no compression; durable:
//!   `persist(SyncData)`.
//! * SQLite: WAL, tables without row ids, prepared statements, memory-mapped reads, writers begin
//!   immediately; not durable: `synchronous=OFF`.
//!
//! Each does what its manual gives as the quick way that keeps its own promises. All copy a value
//! that was read into memory of the caller.

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

/// How many times this process has asked the system to sync a file, where that is counted: only
/// with the feature `stores`, and only of calls that go through the program's own C symbols.
pub fn syncs() -> Option<u64> {
    #[cfg(feature = "stores")]
    return Some(syncs::count());
    #[cfg(not(feature = "stores"))]
    None
}

/// Which store.
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
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::BerkeleyDb, Self::Lmdb, Self::Redb, Self::RocksDb, Self::Fjall, Self::Sqlite];

    /// Its name in rows and on the command line.
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

    /// Whether several processes can have it open at a time, to write.
    pub fn is_shared(self) -> bool {
        matches!(self, Self::BerkeleyDb | Self::Lmdb | Self::Sqlite)
    }

    /// The release that is linked or found.
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
            // The crates do not tell at run time; the lock file has the whole number.
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

    /// Opens the store in this folder, and makes it if there is none.
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

/// How a store is opened.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// Bytes of its cache, where it has one of its own.
    pub cache: usize,
    /// Whether a commit returns only when it is on the disk.
    pub durable: bool,
    /// How many tables there are; they are numbered from 0.
    pub tables: usize,
    /// Whether reading transactions of Berkeley DB read a snapshot (`DB_MULTIVERSION`) and do not
    /// lock. The other stores' always do.
    pub snapshots: bool,
    /// Bytes of log after which ours makes a checkpoint; `None` for its default. No other store of
    /// these is told.
    pub budget: Option<u64>,
    /// Bytes of log that ours keeps for snapshots; `None` for its default. As above.
    pub history: Option<u64>,
    /// Whether the processes that had the store open were killed, all of them: what Berkeley DB's
    /// manual has an application know (`DB_RECOVER`).
    pub recover: bool,
}

/// Why a store did not do as asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// It is not installed, or not built in: why.
    Missing(&'static str),
    /// The transaction was rolled back for the sake of others, and may be run again.
    Again,
    /// The snapshot needs a version that is not kept any more.
    TooOld,
    /// Anything else: the call, and what the store says.
    Failed(&'static str, String),
}

impl StoreError {
    /// What a call failed with.
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

/// The result of a store's call.
pub type StoreResult<T = ()> = Result<T, StoreError>;

/// A store that is open.
pub trait Store: Send + Sync {
    /// What one thread works with.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn session(&self) -> StoreResult<Box<dyn Session + '_>>;

    /// Does what the store would do sooner or later anyway, after much was loaded: a checkpoint,
    /// or a compaction.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn settle(&self) -> StoreResult;

    /// How many times this process has synced a file of the store, where that is counted.
    fn syncs(&self) -> Option<u64> {
        syncs()
    }

    /// Bytes of log that would be redone after a crash, where the store tells.
    fn to_redo(&self) -> Option<u64> {
        None
    }
}

/// A store as one thread uses it.
pub trait Session {
    /// Reads one value in a transaction or snapshot of its own; `false` if there is none.
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
    /// [`StoreError`]; what `body` returns.
    fn read(&mut self, body: &mut dyn FnMut(&mut dyn Reads) -> StoreResult) -> StoreResult;

    /// Runs one transaction, again and again if it must be, and says how often it had to be run
    /// once more.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; what `body` returns, but for [`StoreError::Again`].
    fn write(&mut self, body: &mut dyn FnMut(&mut dyn Writes) -> StoreResult) -> StoreResult<u64>;
}

/// A transaction that reads.
pub trait Reads {
    /// Reads one value; `false` if there is none.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn get(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool>;

    /// Reads at most `limit` records from the first key that is not less than `from`, in order,
    /// and says how many there were.
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

/// A transaction that reads and writes.
pub trait Writes: Reads {
    /// Reads one value that this transaction means to write.
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

    /// Writes one value, the last thing that the transaction does.
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

//! The error type of the store.

use core::fmt;

use latchwork_lockmgr::{Error as LocksError, Reason};
use latchwork_region::Error as RegionError;

pub(crate) use crate::lock_error::of_tree;
use crate::lock_error::{Bytes, Holder, KeyBounds, Name, Of, say_of_lock};
use crate::{KeyError, Refusal, ServerError, ServerFailure, ValueError};

/// The longest id of a prepared transaction, in bytes.
pub const GID_MAX: usize = 128;

/// Why a call of the store failed.
///
/// The documentation of calls speaks of *errors of the store's parts* for errors that any call may
/// return: [`Log`](Self::Log), [`Pool`](Self::Pool), [`Tree`](Self::Tree),
/// [`Region`](Self::Region), [`Disk`](Self::Disk), [`Locks`](Self::Locks),
/// [`Damaged`](Self::Damaged) and [`Engine`](Self::Engine). The first call of a thread may also
/// return [`Threads`](Self::Threads), as may any call that creates an object with a thread slot of
/// its own. A call that names a table may return [`TableType`](Self::TableType),
/// [`Migrating`](Self::Migrating) and [`NameTooLong`](Self::NameTooLong), and a call of a
/// transaction that may write [`Aborted`](Self::Aborted) and
/// [`OwnTransaction`](Self::OwnTransaction). [`is_no_space`](Self::is_no_space),
/// [`is_damage`](Self::is_damage) and [`is_retryable`](Self::is_retryable) classify every error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A lock was not granted: a deadlock, a deadline, or another reason of the lock manager.
    #[non_exhaustive]
    Lock {
        /// The table, or the number of its tree if this process has not used it.
        table: String,
        /// The key, or the first key of a range.
        key: Vec<u8>,
        /// The bounds, if the lock was for a range.
        range: Option<Box<KeyBounds>>,
        /// Why.
        why: latchwork_lockmgr::Error,
        /// The transactions in the way, after a deadline or a deadlock. For a deadlock, the
        /// transaction that the failed one waited for.
        holders: Box<[Holder]>,
    },
    /// Another transaction of the same thread holds the lock, so the thread would wait for itself.
    /// Either a call within the closure of a transaction needs a lock of that transaction, or the
    /// thread has two transaction objects ([`Store::begin`](crate::Store::begin)). Nothing was
    /// changed, and the transaction of the call remains usable. Use the other transaction, or end
    /// it first.
    #[non_exhaustive]
    OwnTransaction {
        /// The table, or the number of its tree if this process has not used it.
        table: String,
        /// The key, or the first key of a range.
        key: Vec<u8>,
        /// The bounds, if the lock was for a range.
        range: Option<Box<KeyBounds>>,
        /// The other transaction.
        holder: Box<Holder>,
    },
    /// The lock manager refused a request that does not concern a single key.
    Locks(latchwork_lockmgr::Error),
    /// The transaction did not succeed before its deadline. Nothing was written, and the error is
    /// not retryable; the last failure says what it waited for.
    Deadline {
        /// The number of attempts.
        runs: u32,
        /// The error of the last attempt.
        last: Box<Error>,
    },
    /// The log no longer contains a version that the snapshot needs. Begin a new snapshot. Take the
    /// snapshot within the closure of a transaction: a closure that uses a snapshot from outside,
    /// and returns this error, is retried in vain until its deadline.
    SnapshotTooOld {
        /// The snapshot's position in the log.
        at: u64,
    },
    /// The transaction was rolled back because it had been open for so long that the log would have
    /// exceeded [`Sizes::history`](crate::Sizes::history). Run it again.
    TransactionTooOld,
    /// Another transaction changed a record that this one had read before its first lock: see
    /// [`WriteTxn::get`](crate::WriteTxn::get). Run it again.
    #[non_exhaustive]
    ReadChanged {
        /// The table, or the number of its tree if this process has not used it.
        table: String,
        /// The key.
        key: Vec<u8>,
    },
    /// The log has reached its last position, 4.5 PB after the creation of the store. Reads
    /// continue; writes fail. Dump the tables and load them into a new store.
    LogPositions,
    /// A load ([`Store::load_sorted`](crate::Store::load_sorted)) was rolled back after it had
    /// consumed rows, which it cannot read again. Load again, with rows from the beginning.
    RowsTaken,
    /// An earlier call of the transaction failed and aborted it. Every later call, the commit
    /// included, changes nothing and returns this. Roll the transaction back, or restart it.
    /// [`is_retryable`](Self::is_retryable), [`is_no_space`](Self::is_no_space) and
    /// [`is_damage`](Self::is_damage) answer for `why`.
    Aborted {
        /// The error that aborted the transaction.
        why: Box<Error>,
    },
    /// A closure or a call of the transaction panicked and may have written only a part of its
    /// changes. The transaction can only be rolled back. Calls return this within
    /// [`Aborted`](Self::Aborted).
    Panicked,
    /// A record with this key exists.
    Exists {
        /// The table, or the number of its tree if this process has not used it.
        table: String,
        /// The key.
        key: Vec<u8>,
    },
    /// The table to be [loaded](crate::Store::load_sorted) exists already, with or without records.
    /// Load into a table of another name, or write the records one by one.
    TableExists {
        /// The table.
        table: String,
    },
    /// The savepoint belongs to another transaction, or was rolled back over.
    Savepoint,
    /// The key is longer than [`KEY_MAX`](crate::KEY_MAX), or than the page size of the store
    /// allows.
    KeyTooLong {
        /// The table, or the number of its tree if this process has not used it.
        table: String,
        /// The length of the key in bytes.
        length: usize,
        /// The maximum length in bytes.
        limit: usize,
    },
    /// A [loaded](crate::Store::load_sorted) key is not greater than the previous one.
    OutOfOrder {
        /// The table.
        table: String,
        /// The key.
        key: Vec<u8>,
    },
    /// The name of the table is longer than [`NAME_MAX`](crate::NAME_MAX).
    NameTooLong {
        /// The table.
        table: String,
    },
    /// The value is longer than [`VALUE_MAX`](crate::VALUE_MAX).
    ValueTooLong {
        /// The length of the value in bytes.
        length: usize,
    },
    /// The bytes are not a key of the table's type.
    Key {
        /// The table.
        table: String,
        /// Why.
        why: KeyError,
    },
    /// The bytes are not a value of the table's type.
    Value {
        /// The table.
        table: String,
        /// Why.
        why: ValueError,
    },
    /// The types or the schema version of the table differ from those in the call. The call did
    /// nothing. Use the recorded types, or migrate the table
    /// ([`Store::migrate`](crate::Store::migrate)).
    TableType {
        /// The table.
        table: String,
        /// The recorded types and version.
        stored: String,
        /// The types and version in the call.
        requested: String,
    },
    /// A migration is moving the table's records, or was killed while it did. No other call can
    /// read or write the table until [`Store::migrate`](crate::Store::migrate) has completed the
    /// migration, or [`Store::abandon_migration`](crate::Store::abandon_migration) has undone it.
    Migrating {
        /// The table.
        table: String,
    },
    /// The transaction was rolled back because a migration of one of its tables began. Run it
    /// again.
    Migrated,
    /// All thread slots are in use: by living threads that have used the store, by open
    /// transactions and snapshots, and by sessions that processes keep for reuse.
    Threads {
        /// The number of thread slots.
        limit: u32,
        /// The number of slots that this process holds.
        here: u32,
    },
    /// The log failed. [`Broken`](latchwork_log::Error::Broken) is final: reads continue, but every
    /// write in every process fails until all processes have closed the store or ended and one of
    /// them opens it again.
    Log(latchwork_log::Error),
    /// The buffer pool failed.
    Pool(latchwork_pool::Error),
    /// A tree failed.
    Tree(latchwork_tree::Error),
    /// The shared memory failed.
    Region(latchwork_region::Error),
    /// The disk failed.
    Disk(latchwork_disk::Error),
    /// The contents of a record contradict the log.
    Damaged {
        /// The table, or the number of its tree if this process has not used it.
        table: String,
        /// The key.
        key: Vec<u8>,
        /// The error.
        what: &'static str,
    },
    /// A transaction of a dead thread cannot be rolled back at present. It keeps its locks, and
    /// every sweep tries again.
    NotUndone {
        /// The table of the next change to be rolled back, or the number of its tree.
        table: String,
        /// The page that cannot be used, or the page of the change.
        page: u64,
        /// The key; empty if the log record cannot be read.
        key: Vec<u8>,
        /// The error.
        why: Box<Error>,
    },
    /// An option has an invalid value; the text names it and the valid ones.
    Options(&'static str),
    /// The store at this path cannot be opened; the text says why and what to do.
    Open {
        /// The path.
        path: std::path::PathBuf,
        /// Why.
        why: Refusal,
    },
    /// The transaction *is* committed, and other transactions may have read its changes; do not run
    /// it again. It is unknown whether the commit is durable: a crash of the machine may lose it.
    ///
    /// If `why` is [`Server`](Self::Server), the connection to a server was lost during the commit,
    /// and it is unknown whether the transaction is committed. Check for its changes before you run
    /// it again.
    CommitUnknown {
        /// Why.
        why: Box<Error>,
    },
    /// The transaction wrote nothing or was rolled back, and it is unknown whether the data it has
    /// read is durable: a crash of the machine may lose that data. Do not act on it.
    ReadsUnknown {
        /// The error that ended the transaction; `None` if it succeeded.
        ended: Option<Box<Error>>,
        /// Why the data could not be made durable.
        why: Box<Error>,
    },
    /// The transaction is prepared, but a crash of the machine may lose that.
    PrepareUnknown {
        /// Its id.
        gid: Vec<u8>,
        /// Why.
        why: Box<Error>,
    },
    /// A prepared, undecided transaction has this id.
    Prepared {
        /// The id.
        gid: Vec<u8>,
    },
    /// No prepared transaction has this id: it never existed, or it is decided.
    NotPrepared {
        /// The id.
        gid: Vec<u8>,
    },
    /// The id of a prepared transaction is empty or has more than 128 bytes.
    Gid {
        /// The length of the id in bytes.
        length: usize,
    },
    /// An internal failure, or a call on a transaction that has ended; the text says which.
    Engine(String),
    /// The calling thread is ending (a destructor of a thread-local variable runs) and has returned
    /// its sessions. It can use a store only through an object that it already has, such as a
    /// [`Transaction`](crate::Transaction).
    ThreadEnds,
    /// The call would write, and the store was opened with
    /// [`Options::read_only`](crate::Options::read_only).
    ReadOnly,
    /// A database server on which the transaction ran reported an error, or the connection to it
    /// failed. The embedded store never returns this.
    Server(Box<ServerError>),
    /// The caller's own error, returned by a closure to roll its transaction back; it is not run
    /// again. [`Store::write_as`](crate::Store::write_as) returns errors of other types.
    Rejected(String),
}

impl Error {
    /// Adds the table to a tree's error about a key.
    pub(crate) fn of_table(self, table: impl FnOnce() -> String) -> Self {
        use latchwork_tree::Error as Tree;
        match self {
            Self::Tree(Tree::KeyTooLong { length, limit }) => {
                Self::KeyTooLong { table: table(), length, limit }
            }
            Self::Tree(Tree::OutOfOrder { key }) => Self::OutOfOrder { table: table(), key },
            other => other,
        }
    }

    /// Creates the error of a commit that is logged but could not be made durable.
    pub(crate) fn commit_unknown(why: impl Into<Self>) -> Self {
        Self::CommitUnknown { why: Box::new(why.into()) }
    }

    /// Creates the error of a transaction, with a commit at this position or none, that could not
    /// be made as durable as its mode says.
    pub(crate) fn unsettled(at: Option<u64>, why: impl Into<Self>) -> Self {
        let why = match why.into() {
            Self::CommitUnknown { why } => why,
            why => Box::new(why),
        };
        match at {
            Some(_) => Self::CommitUnknown { why },
            None => Self::ReadsUnknown { ended: None, why },
        }
    }

    /// Combines the error that ended a transaction with a later one about the durability of the
    /// data that it has read.
    pub(crate) fn with_end(end: Self, unsettled: Self) -> Self {
        match unsettled {
            Self::ReadsUnknown { ended: None, why } => {
                Self::ReadsUnknown { ended: Some(Box::new(end)), why }
            }
            other => other,
        }
    }

    /// Returns the store's error that this one wraps, if any: the log's error for a page change
    /// that could not be logged, or for a page that could not be written before the log.
    fn inner(&self) -> Option<&Self> {
        use latchwork_pool::Error::WriteAhead;
        use latchwork_tree::Error as Tree;
        match self {
            Self::Pool(WriteAhead(why))
            | Self::Tree(Tree::Journal(why) | Tree::Pool(WriteAhead(why))) => why.downcast_ref(),
            Self::NotUndone { why, .. }
            | Self::Aborted { why }
            | Self::CommitUnknown { why }
            | Self::ReadsUnknown { why, .. }
            | Self::PrepareUnknown { why, .. } => Some(why),
            _ => None,
        }
    }

    /// Formats the error without advice, for callers that add the subject and the advice.
    pub(crate) fn say_without_advice(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(why) => say_of_pages(f, why),
            Self::Tree(why) => say_of_pages(f, why),
            other => fmt::Display::fmt(other, f),
        }
    }

    /// Formats an error about a lock that was not granted, or a read that is not valid any more.
    fn say_of_key(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock { table, key, range, why, holders } => {
                say_of_lock(f, &Of { table, key, range: range.as_deref() }, why, holders)
            }
            Self::OwnTransaction { table, key, range, holder } => {
                let of = Of { table, key, range: range.as_deref() };
                write!(f, "{of}: {holder}: the thread would wait for itself; ")?;
                f.write_str("use that transaction, or end it first")
            }
            Self::ReadChanged { table, key } => {
                let key = Name(key);
                write!(f, "key {key} of {table} has changed since it was read: run it again")
            }
            _ => Ok(()),
        }
    }

    /// Formats an error about durability.
    fn say_of_durability(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CommitUnknown { why } if matches!(**why, Self::Server(_)) => {
                write!(
                    f,
                    "the connection was lost at the commit; whether it is done is not known"
                )?;
                write!(f, ": {why}")
            }
            Self::CommitUnknown { why } => {
                write!(f, "committed, and not known to be durable: a crash may take it back: {why}")
            }
            Self::ReadsUnknown { ended, why } => {
                f.write_str("what the transaction has read may not be durable, ")?;
                write!(f, "and a crash may take it back: {why}")?;
                ended.iter().try_for_each(|end| write!(f, "; the transaction ended with: {end}"))
            }
            _ => Ok(()),
        }
    }

    /// Formats an error about two-phase commit.
    fn say_of_prepared(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PrepareUnknown { gid, why } => {
                let id = Bytes(gid);
                write!(f, "transaction {id} is prepared, but a crash may take it back: {why}")
            }
            Self::Prepared { gid } => {
                write!(f, "transaction {} is prepared, and not decided", Bytes(gid))
            }
            Self::NotPrepared { gid } => write!(f, "no transaction {} is prepared", Bytes(gid)),
            Self::Gid { length } => {
                write!(f, "an id of {length} bytes for a transaction: 1 to {GID_MAX}")
            }
            _ => Ok(()),
        }
    }

    /// Formats the error, with advice if it reports damage. A wrapped error of the store adds its
    /// own advice.
    fn say_with_advice(&self, f: &mut fmt::Formatter<'_>, part: &str) -> fmt::Result {
        write!(f, "{part}: ")?;
        self.say_without_advice(f)?;
        match self.inner().is_none() && self.is_damage() {
            true => write!(f, "; {ADVICE}"),
            false => Ok(()),
        }
    }

    /// Formats an error about the types of a table.
    fn say_of_types(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TableType { table, stored, requested } => write!(
                f,
                "table {table} holds {stored}; this program names it with {requested}: use the \
                 recorded types, or migrate the table"
            ),
            Self::Migrating { table } => write!(
                f,
                "table {table} is being migrated: wait for it; if its process was killed or its \
                 function failed, run the migration again (Store::migrate), or take it back \
                 (Store::abandon_migration)"
            ),
            _ => Ok(()),
        }
    }

    /// Returns the text of an error that says that a transaction was or must be rolled back.
    fn rolled_back(&self) -> &'static str {
        match self {
            Self::TransactionTooOld => {
                "the transaction was open for too long, and was rolled back: run it again"
            }
            Self::Migrated => {
                "a migration of a table began, and the transaction was rolled back: run it again"
            }
            Self::RowsTaken => {
                "the load was rolled back when it had taken rows: run it again from the first row"
            }
            _ => "a panic occurred when only a part of a change was written",
        }
    }

    /// Returns whether the transaction that got this error can only be rolled back.
    pub(crate) fn ends_transaction(&self) -> bool {
        use latchwork_tree::Error as Tree;
        match self {
            Self::Tree(Tree::RecordTooLong { .. }) => false,
            Self::Lock { why, .. } | Self::Locks(why) => why.is_retryable(),
            Self::Log(_) | Self::Pool(_) | Self::Tree(_) | Self::Region(_) | Self::Disk(_) => true,
            Self::TransactionTooOld | Self::RowsTaken | Self::Panicked | Self::Migrated => true,
            Self::ReadChanged { .. } => true,
            Self::Aborted { .. } => true,
            Self::SnapshotTooOld { .. } | Self::Damaged { .. } | Self::Engine(_) => true,
            Self::Server(_) => true,
            _ => false,
        }
    }

    /// Returns whether space for files is lacking, in any part of the store: on the disk, in the
    /// folder of the shared memory (`/dev/shm`), or because of `RLIMIT_FSIZE`. A transaction with
    /// this error was rolled back or can be, and may succeed when space is available. A transaction
    /// that could not be rolled back ([`NotUndone`](Self::NotUndone)) is rolled back then. A
    /// transaction that [is committed](Self::CommitUnknown) stays committed.
    pub fn is_no_space(&self) -> bool {
        use latchwork_disk::Error::NoSpace;
        use latchwork_pool::Error as Pool;
        use latchwork_region::Error::{FileLimit, NoSpace as NoMemory};
        use latchwork_tree::Error as Tree;
        use {latchwork_lockmgr::Error as Lock, latchwork_log::Error as Log};
        if let Some(why) = self.inner() {
            return why.is_no_space();
        }
        match self {
            Self::Disk(why) | Self::Log(Log::Disk(why)) => matches!(why, NoSpace(_)),
            Self::Region(why)
            | Self::Log(Log::Region(why))
            | Self::Locks(Lock::Region(why))
            | Self::Lock { why: Lock::Region(why), .. } => matches!(why, NoMemory | FileLimit),
            Self::Pool(why) | Self::Tree(Tree::Pool(why)) => match why {
                Pool::Disk(why) => matches!(why, NoSpace(_)),
                Pool::Region(why) => matches!(why, NoMemory | FileLimit),
                _ => false,
            },
            Self::Open { why, .. } => *why == Refusal::NoSpace,
            Self::Server(why) => why.kind == ServerFailure::NoSpace,
            _ => false,
        }
    }

    /// Returns whether stored data is damaged, lost, or unreadable. Errors about permissions or
    /// lack of space do not count.
    pub fn is_damage(&self) -> bool {
        use latchwork_disk::Error::{Device, ShortRead};
        use latchwork_tree::Error as Tree;
        use {latchwork_log::Error as Log, latchwork_pool::Error as Pool};
        if let Some(why) = self.inner() {
            return why.is_damage();
        }
        match self {
            Self::Disk(why)
            | Self::Log(Log::Disk(why))
            | Self::Pool(Pool::Disk(why))
            | Self::Tree(Tree::Pool(Pool::Disk(why))) => {
                matches!(why, Device(_) | ShortRead { .. })
            }
            Self::Log(why) => {
                matches!(why, Log::LogDamaged { .. } | Log::Corrupt { .. } | Log::NoControl)
            }
            Self::Pool(why) | Self::Tree(Tree::Pool(why)) => is_damage_of_pages(why),
            Self::Tree(why) => {
                matches!(why, Tree::Malformed(_) | Tree::UnknownChange | Tree::Level { .. })
            }
            Self::Damaged { .. } => true,
            Self::Open { why, .. } => matches!(why, Refusal::Damaged { .. }),
            _ => false,
        }
    }

    /// Returns whether the same transaction may succeed if it is run again: after a deadlock or a
    /// lock timeout, after [`SnapshotTooOld`](Self::SnapshotTooOld),
    /// [`TransactionTooOld`](Self::TransactionTooOld) and [`Migrated`](Self::Migrated), after a
    /// conflict on a server, and after [`Aborted`](Self::Aborted) by one of these. False if an
    /// operator ended the transaction.
    pub fn is_retryable(&self) -> bool {
        match self {
            // An operator who ends a transaction does not want it to run again.
            Self::Lock { why, .. } | Self::Locks(why) => why.is_retryable() && !is_killed(why),
            Self::SnapshotTooOld { .. } | Self::TransactionTooOld | Self::Migrated => true,
            Self::ReadChanged { .. } => true,
            Self::Aborted { why } => why.is_retryable(),
            Self::Server(why) => why.is_retryable(),
            _ => false,
        }
    }
}

/// Returns whether an operator ended the transaction with `latchwork locks kill`.
fn is_killed(why: &LocksError) -> bool {
    matches!(why, LocksError::Aborted(Reason::Killed))
}

/// Returns whether an error of the pool, except one from the disk, reports a damaged page or file.
fn is_damage_of_pages(why: &latchwork_pool::Error) -> bool {
    use latchwork_pool::Error as Pool;
    matches!(
        why,
        Pool::PageSize { .. }
            | Pool::OutOfRange { .. }
            | Pool::Checksum { .. }
            | Pool::Misdirected { .. }
            | Pool::Newer { .. }
            | Pool::Poisoned { .. }
            | Pool::Rebuild { .. }
            | Pool::Malformed { .. }
            | Pool::Freed { .. }
            | Pool::Shrank { .. }
            | Pool::SyncFailed { .. }
            | Pool::Corrupt(_)
    )
}

macro_rules! from {
    ($($crate_name:ident => $variant:ident),*) => {$(
        impl From<$crate_name::Error> for Error {
            fn from(why: $crate_name::Error) -> Self {
                Self::$variant(why)
            }
        }
    )*};
}

from!(latchwork_log => Log, latchwork_pool => Pool, latchwork_tree => Tree,
    latchwork_region => Region, latchwork_disk => Disk);

impl From<ServerError> for Error {
    fn from(why: ServerError) -> Self {
        Self::Server(Box::new(why))
    }
}

impl From<latchwork_lockmgr::Error> for Error {
    fn from(why: latchwork_lockmgr::Error) -> Self {
        Self::Locks(why)
    }
}

fn say_of_locks(f: &mut fmt::Formatter<'_>, why: &LocksError) -> fmt::Result {
    let LocksError::Region(RegionError::Full(limit)) = why else {
        return write!(f, "locks: {why}");
    };
    write!(
        f,
        "all {limit} bytes of memory for locks are used: end transactions or make them smaller, or \
         give the store more `locks` when it is closed"
    )
}

fn say_of_threads(f: &mut fmt::Formatter<'_>, limit: u32, here: u32) -> fmt::Result {
    write!(
        f,
        "all {limit} thread slots are held, {here} by this process: end threads that use the \
         store, transactions or snapshots, or give it more `threads` when it is closed"
    )
}

/// Advice for damage.
const ADVICE: &str = "`restore` a copy, or let `salvage` read what is left";

fn say_of_log(f: &mut fmt::Formatter<'_>, why: &latchwork_log::Error) -> fmt::Result {
    use latchwork_log::Error::{Corrupt, LogDamaged};
    write!(f, "log: {why}")?;
    match why {
        LogDamaged { .. } | Corrupt { .. } => write!(f, "; nothing was changed: {ADVICE}"),
        _ => Ok(()),
    }
}

/// Formats an error of the pool or of a tree. A store has a single file of pages, which the text
/// names.
fn say_of_pages(f: &mut fmt::Formatter<'_>, why: &dyn fmt::Display) -> fmt::Result {
    f.write_str(&why.to_string().replace(" of file 0", " of `data`"))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock { .. } | Self::OwnTransaction { .. } | Self::ReadChanged { .. } => {
                self.say_of_key(f)
            }
            Self::Locks(why) => say_of_locks(f, why),
            Self::Deadline { runs, last } => {
                write!(f, "not done by its deadline; the last of {runs} runs: {last}")
            }
            Self::SnapshotTooOld { at } => {
                write!(f, "the snapshot at {at} needs a version that is gone; begin a new one")
            }
            Self::TransactionTooOld | Self::RowsTaken | Self::Panicked | Self::Migrated => {
                f.write_str(self.rolled_back())
            }
            Self::Aborted { why } => {
                write!(f, "the transaction is aborted and can only be rolled back: {why}")
            }
            Self::Exists { table, key } => write!(f, "key {} of {table} exists", Name(key)),
            Self::TableExists { table } => write!(f, "table {table} exists: load into a new one"),
            Self::Savepoint => f.write_str("no savepoint of this transaction"),
            Self::KeyTooLong { table, length, limit } => {
                write!(f, "a key of {length} bytes in {table}: may have {limit}")
            }
            Self::OutOfOrder { table, key } => {
                write!(f, "key {} of {table} is not above the one before it", Name(key))
            }
            Self::NameTooLong { table } => {
                let length = table.len();
                write!(f, "a table's name of {length} bytes, {table}: may have {}", crate::NAME_MAX)
            }
            Self::ValueTooLong { length } => {
                write!(f, "a value of {length} bytes: may have {}", crate::value::VALUE_MAX)
            }
            Self::Key { table, why } => write!(f, "{table}: {why}"),
            Self::Value { table, why } => write!(f, "{table}: {why}"),
            Self::TableType { .. } | Self::Migrating { .. } => self.say_of_types(f),
            Self::Threads { limit, here } => say_of_threads(f, *limit, *here),
            Self::LogPositions => f.write_str(
                "the log has used all its positions, 4.5 PB: dump the store and load it into a new one",
            ),
            Self::Log(why) => say_of_log(f, why),
            Self::Pool(_) => self.say_with_advice(f, "pages"),
            Self::Tree(_) => self.say_with_advice(f, "tree"),
            Self::Region(why) => write!(f, "shared memory: {why}"),
            Self::Disk(why) => write!(f, "disk: {why}"),
            Self::Damaged { table, key, what } if key.is_empty() => write!(f, "{table}: {what}"),
            Self::Damaged { table, key, what } => {
                write!(f, "key {} of {table}: {what}", Name(key))
            }
            Self::NotUndone { table, page, key, why } => {
                let key = Name(key);
                write!(
                    f,
                    "a dead transaction keeps its locks: key {key} of {table}, page {page}: {why}"
                )
            }
            Self::CommitUnknown { .. } | Self::ReadsUnknown { .. } => self.say_of_durability(f),
            Self::PrepareUnknown { .. }
            | Self::Prepared { .. }
            | Self::NotPrepared { .. }
            | Self::Gid { .. } => self.say_of_prepared(f),
            Self::ReadOnly => f.write_str("the store is open read-only"),
            Self::ThreadEnds => f.write_str("the thread is ending and has returned its sessions"),
            Self::Options(what) => write!(f, "invalid option: {what}"),
            Self::Open { path, why } => write!(f, "{}: {why}", path.display()),
            Self::Server(why) => why.fmt(f),
            Self::Engine(why) | Self::Rejected(why) => f.write_str(why),
        }
    }
}

impl core::error::Error for Error {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Lock { why, .. } | Self::Locks(why) => Some(why),
            Self::Deadline { last, .. } => Some(last.as_ref()),
            Self::NotUndone { why, .. }
            | Self::Aborted { why }
            | Self::CommitUnknown { why }
            | Self::ReadsUnknown { why, .. }
            | Self::PrepareUnknown { why, .. } => Some(why.as_ref()),
            Self::Log(why) => Some(why),
            Self::Pool(why) => Some(why),
            Self::Tree(why) => Some(why),
            Self::Region(why) => Some(why),
            Self::Disk(why) => Some(why),
            Self::Key { why, .. } => Some(why),
            Self::Open { why, .. } => Some(why),
            Self::Value { why, .. } => Some(why),
            Self::Server(why) => Some(why.as_ref()),
            _ => None,
        }
    }
}

/// Creates the error that refuses a path.
pub(crate) fn refused(path: &std::path::Path, why: impl Into<Refusal>) -> Error {
    Error::Open { path: path.to_owned(), why: why.into() }
}

#[cfg(test)]
mod tests {
    use latchwork_disk::Disk;
    use latchwork_region::Error::{Forked, NoSpace};

    use super::{Error, Refusal, refused};

    /// Returns each part's error for an error of its memory.
    fn errors(why: latchwork_region::Error) -> [Error; 5] {
        let pool = || latchwork_pool::Error::Region(why);
        [
            Error::Region(why),
            Error::Locks(latchwork_lockmgr::Error::Region(why)),
            Error::Log(latchwork_log::Error::Region(why)),
            Error::Pool(pool()),
            Error::Tree(latchwork_tree::Error::Pool(pool())),
        ]
    }

    #[test]
    fn a_full_folder_of_memory_is_told_whichever_part_met_it() {
        for (no_space, other) in errors(NoSpace).into_iter().zip(errors(Forked)) {
            assert!(no_space.is_no_space() && !other.is_no_space(), "{no_space:?} {other:?}");
        }
    }

    #[test]
    fn what_a_process_may_not_do_is_no_damage() {
        use latchwork_disk::Error::{Device, NoSpace, NotFound, Permission, TooManyFiles};
        use latchwork_pool::Error as Pool;
        use latchwork_tree::Error as Tree;
        let missing = latchwork_disk::Simulated::new().list("/there".as_ref()).unwrap_err();
        let subject = || missing.subject().clone();
        let bad = [
            Pool::Checksum { file: 0, page: 7 },
            Pool::Poisoned { file: 0, page: 7 },
            Pool::Disk(Device(subject())),
        ];
        let good = [
            Pool::Full { frames: 8, dirty: 8, holders: Vec::new() },
            Pool::Disk(NoSpace(subject())),
            Pool::Disk(NotFound(subject())),
            Pool::Disk(Permission(subject())),
            Pool::Disk(TooManyFiles(subject())),
        ];
        for (why, damage) in
            bad.map(|why| (why, true)).into_iter().chain(good.map(|why| (why, false)))
        {
            assert_eq!(Error::Pool(why.clone()).is_damage(), damage, "{why:?}");
            assert_eq!(Error::Tree(Tree::Pool(why.clone())).is_damage(), damage, "{why:?}");
        }
        assert!(Error::Tree(Tree::Malformed("a level")).is_damage());
    }

    /// An error of the log is kept when the pool, a tree or a commit wraps it.
    #[test]
    fn what_the_layers_between_pass_on_is_told() {
        use latchwork_disk::Error::{Device, NoSpace, TooManyFiles};
        use latchwork_pool::{Cause, Error::WriteAhead};
        use latchwork_tree::Error::{Journal, Pool};
        let missing = latchwork_disk::Simulated::new().list("/there".as_ref()).unwrap_err();
        for of in [NoSpace, Device, TooManyFiles] {
            let log = Error::Log(latchwork_log::Error::Disk(of(missing.subject().clone())));
            let is = (log.is_no_space(), log.is_damage());
            let cause = || Cause::new(log.clone());
            for passed_on in [
                Error::Pool(WriteAhead(cause())),
                Error::Tree(Pool(WriteAhead(cause()))),
                Error::Tree(Journal(cause())),
                Error::commit_unknown(log.clone()),
                Error::PrepareUnknown { gid: Vec::new(), why: Box::new(log.clone()) },
            ] {
                assert_eq!((passed_on.is_no_space(), passed_on.is_damage()), is, "{passed_on:?}");
            }
        }
        let words = Error::Tree(Journal(Cause::new("no reason")));
        assert!(!words.is_no_space() && !words.is_damage());
    }

    #[test]
    fn a_store_that_does_not_open_on_a_full_disk_says_so() {
        let of = |why| refused("/there".as_ref(), why);
        assert!(of(Refusal::NoSpace).is_no_space());
        assert!(!of(Refusal::ReadOnly).is_no_space());
    }
}

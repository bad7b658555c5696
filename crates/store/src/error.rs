//! Why a call failed, and what to do about it.

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
/// The docs of calls say *those of the parts* of what any call may meet: [`Log`](Self::Log),
/// [`Pool`](Self::Pool), [`Tree`](Self::Tree), [`Region`](Self::Region), [`Disk`](Self::Disk),
/// [`Locks`](Self::Locks), [`Damaged`](Self::Damaged) and [`Engine`](Self::Engine); and
/// [`Threads`](Self::Threads) in the first call of a thread, and wherever an object begins that has
/// a thread slot of its own. [`is_no_space`](Self::is_no_space), [`is_damage`](Self::is_damage) and
/// [`is_retryable`](Self::is_retryable) say of any what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A lock was not granted: a deadlock, a deadline, or another reason of the lock manager's.
    #[non_exhaustive]
    Lock {
        /// The table, or its tree if this process has not used it.
        table: String,
        /// The key; of a range the first one.
        key: Vec<u8>,
        /// The ends of the range, if it was not one key that was to be locked.
        range: Option<Box<KeyBounds>>,
        /// Why.
        why: latchwork_lockmgr::Error,
        /// The transactions in the way, after a deadline and after a deadlock: of a deadlock the
        /// transaction that the failed one waited for.
        holders: Box<[Holder]>,
    },
    /// The lock is held by another transaction of the same thread, which would wait for itself: a
    /// call in the closure of a transaction asks for what that has locked, or a thread has two
    /// transactions by hand ([`Store::begin`](crate::Store::begin)). Nothing was changed, and the
    /// transaction of the call can be used. Use the other transaction, or end it first.
    #[non_exhaustive]
    OwnTransaction {
        /// The table, or its tree if this process has not used it.
        table: String,
        /// The key; of a range the first one.
        key: Vec<u8>,
        /// The ends of the range, if it was not one key that was to be locked.
        range: Option<Box<KeyBounds>>,
        /// The other transaction.
        holder: Box<Holder>,
    },
    /// The lock manager refused something that is not about one key.
    Locks(latchwork_lockmgr::Error),
    /// The transaction ran until its deadline without success.
    Deadline {
        /// How often it was run.
        runs: u32,
        /// How the last run ended.
        last: Box<Error>,
    },
    /// A version that the snapshot needs is gone from the log. A closure that reads in a snapshot
    /// that it was given, and returns this, is run again to no end, until its deadline: begin the
    /// snapshot in the closure.
    SnapshotTooOld {
        /// The snapshot's position in the log.
        at: u64,
    },
    /// The transaction was open for so long that the log would have been kept for it beyond
    /// [`Sizes::history`](crate::Sizes::history): it was rolled back. Run it again.
    TransactionTooOld,
    /// The log has come to the end of its positions, 4.5 PB since the store was made: reads go on,
    /// and nothing is written any more. Dump the tables and load them into a new store.
    LogPositions,
    /// A load ([`Store::load_sorted`](crate::Store::load_sorted)) was rolled back when it had taken
    /// rows already, which cannot be taken again: load once more, with rows from the beginning.
    RowsTaken,
    /// An earlier call of the transaction failed and aborted it. Every later call, the commit
    /// included, changes nothing and returns this. Roll the transaction back, or restart it.
    /// [`is_retryable`](Self::is_retryable), [`is_no_space`](Self::is_no_space) and
    /// [`is_damage`](Self::is_damage) answer for `why`.
    Aborted {
        /// The error that aborted the transaction.
        why: Box<Error>,
    },
    /// A closure that had the transaction in hand, or a call of it, panicked, and may have written
    /// half of what it meant to: the transaction can only be rolled back. Calls return it within
    /// [`Aborted`](Self::Aborted).
    Panicked,
    /// There is a record with this key already.
    Exists {
        /// The table, or its tree if this process has not used it.
        table: String,
        /// The key.
        key: Vec<u8>,
    },
    /// A table that is to be [loaded](crate::Store::load_sorted) is there already, with records or
    /// without: load into one of another name, or write its records one by one.
    TableExists {
        /// The table.
        table: String,
    },
    /// The savepoint is another transaction's, or was rolled back over.
    Savepoint,
    /// A key is longer than [`KEY_MAX`](crate::KEY_MAX), or than pages of the store's size take.
    KeyTooLong {
        /// The table, or its tree if this process has not used it.
        table: String,
        /// Its bytes.
        length: usize,
        /// The most there may be.
        limit: usize,
    },
    /// A key that is [loaded](crate::Store::load_sorted) is not above the one before it.
    OutOfOrder {
        /// The table.
        table: String,
        /// The key.
        key: Vec<u8>,
    },
    /// The name of a table is longer than [`NAME_MAX`](crate::NAME_MAX).
    NameTooLong {
        /// The table.
        table: String,
    },
    /// A value is longer than [`VALUE_MAX`](crate::VALUE_MAX).
    ValueTooLong {
        /// Its bytes.
        length: usize,
    },
    /// Bytes that are no key of the table's type.
    Key {
        /// The table.
        table: String,
        /// Why.
        why: KeyError,
    },
    /// Bytes that are no value of the table's type.
    Value {
        /// The table.
        table: String,
        /// Why.
        why: ValueError,
    },
    /// The table has other types, or another schema version, than the call names: the call did
    /// nothing. Name the table with the recorded types, or migrate it
    /// ([`Store::migrate`](crate::Store::migrate)).
    TableType {
        /// The table.
        table: String,
        /// The types and the version that the store has recorded.
        stored: String,
        /// Those that the call names.
        requested: String,
    },
    /// A migration moves the table's records, or was killed when it did: no other call reads or
    /// writes the table until [`Store::migrate`](crate::Store::migrate) has finished it, or
    /// [`Store::abandon_migration`](crate::Store::abandon_migration) has taken it back.
    Migrating {
        /// The table.
        table: String,
    },
    /// A migration of a table began when the transaction was at work: it was rolled back. Run it
    /// again.
    Migrated,
    /// All thread slots are held, by threads that have used the store and live, by transactions
    /// and snapshots that are open, and by sessions that processes keep for the next of these.
    Threads {
        /// How many there are.
        limit: u32,
        /// How many of them this process holds.
        here: u32,
    },
    /// The log failed. [`Broken`](latchwork_log::Error::Broken) is final: reads go on, and nothing
    /// is written in any process until all have closed the store or ended, and one opens it again.
    Log(latchwork_log::Error),
    /// The pages failed.
    Pool(latchwork_pool::Error),
    /// A tree failed.
    Tree(latchwork_tree::Error),
    /// The region failed.
    Region(latchwork_region::Error),
    /// The disk failed.
    Disk(latchwork_disk::Error),
    /// What the log has of a record is not what the record says.
    Damaged {
        /// The table, or its tree if this process has not used it.
        table: String,
        /// The key.
        key: Vec<u8>,
        /// What is wrong.
        what: &'static str,
    },
    /// A dead transaction cannot be undone, or not yet: it keeps its locks, and is tried again by
    /// each sweep.
    NotUndone {
        /// The table of the change that is next to be undone, or its tree.
        table: String,
        /// The page that stands in the way, or the one on which the change was made.
        page: u64,
        /// The key; empty if the log's record of it cannot be read.
        key: Vec<u8>,
        /// What went wrong.
        why: Box<Error>,
    },
    /// An option that makes no sense: which, and what it may be.
    Options(&'static str),
    /// The store at this path cannot be opened: why, and what to do.
    Open {
        /// The path.
        path: std::path::PathBuf,
        /// Why.
        why: Refusal,
    },
    /// The transaction *is* committed: it is not to be run again, and others may have read what it
    /// wrote. Only whether that is durable is not known: a crash of the machine may take it back.
    ///
    /// If `why` is [`Server`](Self::Server), the connection to a server was lost at the commit:
    /// whether the transaction is committed is not known. Look for what it wrote before it is run
    /// again.
    CommitUnknown {
        /// Why.
        why: Box<Error>,
    },
    /// The transaction wrote nothing, or was rolled back, and whether what it has read is durable
    /// is not known: a crash of the machine may take that back. Do not act on it.
    ReadsUnknown {
        /// The error that the transaction ended with; none if it ended well.
        ended: Option<Box<Error>>,
        /// Why what it has read could not be made durable.
        why: Box<Error>,
    },
    /// The transaction is prepared, and whether a crash of the machine takes it back is not known.
    PrepareUnknown {
        /// Its id.
        gid: Vec<u8>,
        /// Why.
        why: Box<Error>,
    },
    /// A transaction is prepared under this id, and not decided.
    Prepared {
        /// The id.
        gid: Vec<u8>,
    },
    /// No transaction is prepared under this id: there never was one, or it is decided.
    NotPrepared {
        /// The id.
        gid: Vec<u8>,
    },
    /// The id of a prepared transaction has no byte, or more than 128.
    Gid {
        /// Its bytes.
        length: usize,
    },
    /// The trees or the log failed: what they said.
    Engine(String),
    /// The calling thread is ending (a destructor of its local variables runs) and has given its
    /// sessions back. It cannot use a store any more, except through an object that it has already,
    /// such as a [`Transaction`](crate::Transaction).
    ThreadEnds,
    /// The store was opened with [`Options::read_only`](crate::Options::read_only), and the call
    /// would write to it.
    ReadOnly,
    /// A database server, on which the transaction ran, reported an error, or the connection to it
    /// failed. The embedded store never returns it.
    Server(Box<ServerError>),
    /// The caller's own: a closure that wants its transaction rolled back.
    Rejected(String),
}

impl Error {
    /// What a tree says of a key, said of the table.
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

    /// For a commit that is in the log, and could not be made durable.
    pub(crate) fn commit_unknown(why: impl Into<Self>) -> Self {
        Self::CommitUnknown { why: Box::new(why.into()) }
    }

    /// For a transaction with a commit at this position, or with none, that could not be made as
    /// durable as its mode says.
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

    /// The error of a transaction that ended with one error, behind which another one says that
    /// what it has read may not be durable.
    pub(crate) fn with_end(end: Self, unsettled: Self) -> Self {
        match unsettled {
            Self::ReadsUnknown { ended: None, why } => {
                Self::ReadsUnknown { ended: Some(Box::new(end)), why }
            }
            other => other,
        }
    }

    /// The store's own error that this one is for, if there is one: the log's for a change of a
    /// page that could not be logged, or a page that could not go before the log.
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

    /// For people, where it is said elsewhere what it is of and what to do.
    pub(crate) fn say_without_advice(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(why) => say_of_pages(f, why),
            Self::Tree(why) => say_of_pages(f, why),
            other => fmt::Display::fmt(other, f),
        }
    }

    /// For people, of a lock that was not granted.
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
            _ => Ok(()),
        }
    }

    /// For people, of transactions that could not be made durable.
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

    /// For people, of transactions in two phases.
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

    /// For people, with what to do about damage; another error of the store's, that is the reason,
    /// gives its own advice.
    fn say_with_advice(&self, f: &mut fmt::Formatter<'_>, part: &str) -> fmt::Result {
        write!(f, "{part}: ")?;
        self.say_without_advice(f)?;
        match self.inner().is_none() && self.is_damage() {
            true => write!(f, "; {ADVICE}"),
            false => Ok(()),
        }
    }

    /// For people, of those about a table's types.
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

    /// For people, of those that say that a transaction is rolled back, or has to be.
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
            _ => "half of a change was written when something panicked",
        }
    }

    /// Whether a transaction that met it can only be rolled back.
    pub(crate) fn ends_transaction(&self) -> bool {
        use latchwork_tree::Error as Tree;
        match self {
            Self::Tree(Tree::RecordTooLong { .. }) => false,
            Self::Lock { why, .. } | Self::Locks(why) => why.is_retryable(),
            Self::Log(_) | Self::Pool(_) | Self::Tree(_) | Self::Region(_) | Self::Disk(_) => true,
            Self::TransactionTooOld | Self::RowsTaken | Self::Panicked | Self::Migrated => true,
            Self::Aborted { .. } => true,
            Self::SnapshotTooOld { .. } | Self::Damaged { .. } | Self::Engine(_) => true,
            Self::Server(_) => true,
            _ => false,
        }
    }

    /// Whether there is no room for files, whichever part of the store met it: on the disk, or in
    /// the folder of its memory (`/dev/shm`); or this process may not make them so long. A
    /// transaction that met it was rolled back, or can be, and may succeed when there is room; one
    /// that could not be undone ([`NotUndone`](Self::NotUndone)) is undone then; one that
    /// [is committed](Self::CommitUnknown) stays so.
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

    /// Whether a part of what is stored is damaged, lost, or refused by the disk. Where this
    /// process may not look, or has no room to, nothing is said of that.
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

    /// Whether the same transaction may succeed if it is run again.
    pub fn is_retryable(&self) -> bool {
        match self {
            // An operator who ends a transaction does not want it to run again.
            Self::Lock { why, .. } | Self::Locks(why) => why.is_retryable() && !is_killed(why),
            Self::SnapshotTooOld { .. } | Self::TransactionTooOld | Self::Migrated => true,
            Self::Aborted { why } => why.is_retryable(),
            Self::Server(why) => why.is_retryable(),
            _ => false,
        }
    }
}

/// Whether an operator ended the transaction, by `latchwork locks kill`.
fn is_killed(why: &LocksError) -> bool {
    matches!(why, LocksError::Aborted(Reason::Killed))
}

/// Whether what the pool says, unless the disk said it, is of a page or file that is damaged.
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

/// What to do about damage.
const ADVICE: &str = "`restore` a copy, or have `salvage` read what is there";

fn say_of_log(f: &mut fmt::Formatter<'_>, why: &latchwork_log::Error) -> fmt::Result {
    use latchwork_log::Error::{Corrupt, LogDamaged};
    write!(f, "log: {why}")?;
    match why {
        LogDamaged { .. } | Corrupt { .. } => write!(f, "; nothing was changed: {ADVICE}"),
        _ => Ok(()),
    }
}

/// What the pool or a tree says. A store has one file of pages, and it has a name.
fn say_of_pages(f: &mut fmt::Formatter<'_>, why: &dyn fmt::Display) -> fmt::Result {
    f.write_str(&why.to_string().replace(" of file 0", " of `data`"))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock { .. } | Self::OwnTransaction { .. } => self.say_of_key(f),
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
            Self::ThreadEnds => f.write_str("the thread ends, and has given its sessions back"),
            Self::Options(what) => write!(f, "an option that makes no sense: {what}"),
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

/// The error that refuses a path.
pub(crate) fn refused(path: &std::path::Path, why: impl Into<Refusal>) -> Error {
    Error::Open { path: path.to_owned(), why: why.into() }
}

#[cfg(test)]
mod tests {
    use latchwork_disk::Disk;
    use latchwork_region::Error::{Forked, NoSpace};

    use super::{Error, Refusal, refused};

    /// Each part's error for an error of its memory.
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

    /// What the log says is not lost where the pool or a tree has asked it, nor behind a commit.
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

//! Why a call failed, and which code that is.

use core::ffi::c_int;

use latchwork_lockmgr::{Error as LockError, Reason};
use latchwork_region::Error as RegionError;
use latchwork_store::{Error, Refusal};

use crate::codes::lw_code;
use crate::codes::lw_code::*;

/// The result of a call.
pub(crate) type Answer = Result<lw_code, Failure>;

/// Why a call failed.
pub(crate) enum Failure {
    Store(Error),
    Lock(LockError),
    Forked,
    Other(lw_code, String),
    /// The nonzero result of a function of the caller.
    Callers(c_int),
}

impl From<Error> for Failure {
    fn from(why: Error) -> Self {
        Self::Store(why)
    }
}

impl From<LockError> for Failure {
    fn from(why: LockError) -> Self {
        Self::Lock(why)
    }
}

impl From<RegionError> for Failure {
    fn from(why: RegionError) -> Self {
        Self::Lock(LockError::Region(why))
    }
}

#[cold]
pub(crate) fn misuse(text: impl Into<String>) -> Failure {
    Failure::Other(LW_MISUSE, text.into())
}

impl Failure {
    pub(crate) fn code(&self) -> c_int {
        match self {
            Self::Store(why) => code_of(why) as c_int,
            Self::Lock(why) => code_of_lock(why) as c_int,
            Self::Forked => LW_FORKED as c_int,
            Self::Other(code, _) => *code as c_int,
            Self::Callers(code) => *code,
        }
    }
}

/// The code of an error of the store.
pub(crate) fn code_of(why: &Error) -> lw_code {
    use latchwork_store::Error as E;
    if why.is_no_space() {
        return LW_NO_SPACE;
    }
    match why {
        E::Lock { why, .. } | E::Locks(why) => code_of_lock(why),
        E::Region(why) => code_of_region(why),
        E::OwnTransaction { .. } => LW_SELF,
        E::Deadline { .. } => LW_DEADLINE,
        E::SnapshotTooOld { .. } | E::TransactionTooOld => LW_TOO_OLD,
        E::Migrated | E::ReadChanged { .. } => LW_CONFLICT,
        E::Aborted { why } => code_of(why),
        E::Panicked => LW_PANIC,
        E::Exists { .. } => LW_EXISTS,
        E::Savepoint => LW_SAVEPOINT,
        E::KeyTooLong { .. } | E::NameTooLong { .. } | E::ValueTooLong { .. } | E::Gid { .. } => {
            LW_TOO_LONG
        }
        E::Key { .. } | E::Value { .. } => LW_FORMAT,
        E::TableType { .. } => LW_TABLE_TYPE,
        E::Migrating { .. } => LW_MIGRATING,
        E::Threads { .. } => LW_THREADS,
        E::CommitUnknown { .. } => LW_COMMIT_UNKNOWN,
        E::ReadsUnknown { .. } => LW_READS_UNKNOWN,
        E::PrepareUnknown { .. } => LW_PREPARE_UNKNOWN,
        E::Prepared { .. } => LW_PREPARED,
        E::NotPrepared { .. } => LW_NOT_PREPARED,
        E::ReadOnly => LW_READ_ONLY,
        E::ThreadEnds => LW_CLOSED,
        E::Options(_) => LW_OPTIONS,
        E::Open { why, .. } => code_of_refusal(why),
        _ if is_forked(why) => LW_FORKED,
        _ if why.is_damage() => LW_DAMAGED,
        E::Log(_) | E::Disk(_) | E::Pool(_) | E::Tree(_) => LW_IO,
        _ => LW_FAILED,
    }
}

fn is_forked(why: &Error) -> bool {
    use latchwork_log::Error as Log;
    matches!(why, Error::Log(Log::Region(RegionError::Forked)))
}

fn code_of_lock(why: &LockError) -> lw_code {
    use LockError as L;
    match why {
        L::TimedOut => LW_TIMEOUT,
        L::Aborted(Reason::Killed) => LW_KILLED,
        L::Deadlock(_) | L::Died(_) | L::Aborted(_) => LW_CONFLICT,
        L::NotGranted => LW_NOT_GRANTED,
        L::NotHeld => LW_NOT_HELD,
        L::Name(_) | L::Key(_) | L::Keyspace(_) => LW_TOO_LONG,
        L::Mode(_) | L::Modes(_) => LW_OPTIONS,
        L::Foreign => LW_FOREIGN,
        L::Region(why) => code_of_region(why),
        L::Waiting | L::Family | L::Count => LW_MISUSE,
        _ => LW_FAILED,
    }
}

fn code_of_region(why: &RegionError) -> lw_code {
    use RegionError as R;
    match why {
        R::Forked => LW_FORKED,
        R::NoSpace | R::FileLimit => LW_NO_SPACE,
        R::Full(_) => LW_LOCKS_FULL,
        R::TooLarge(_) => LW_NO_MEMORY,
        R::Threads(_) | R::Processes(_) => LW_THREADS,
        R::Permission | R::ReadOnly | R::ForeignOwner(_) | R::TooOpen(_) => LW_PERMISSION,
        R::Options(_) => LW_OPTIONS,
        R::Foreign | R::Symlink | R::NotRegular | R::Endian => LW_FOREIGN,
        R::Version { .. } => LW_VERSION,
        R::Corrupt { .. } | R::Truncated { .. } => LW_DAMAGED,
        R::NotFound | R::System { .. } => LW_IO,
        _ => LW_FAILED,
    }
}

fn code_of_refusal(why: &Refusal) -> lw_code {
    match why {
        Refusal::NoStore => LW_NO_STORE,
        Refusal::Permission | Refusal::ForeignOwner { .. } | Refusal::ReadOnly => LW_PERMISSION,
        Refusal::Newer { .. } | Refusal::Older { .. } => LW_VERSION,
        Refusal::BeingMade
        | Refusal::BeingOpened { .. }
        | Refusal::InUse
        | Refusal::ReadElsewhere
        | Refusal::Processes { .. } => LW_IN_USE,
        Refusal::Damaged { .. } => LW_DAMAGED,
        Refusal::NoSpace => LW_NO_SPACE,
        _ => LW_OPEN,
    }
}

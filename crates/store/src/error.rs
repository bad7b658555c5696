//! Why a call failed, and what to do about it.

use core::fmt;

use crate::{KeyError, ValueError};

/// Why a call of the store failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A lock was not had: a deadlock, a deadline, or another reason of the lock manager's.
    Lock {
        /// The tree.
        tree: u32,
        /// The key.
        key: Vec<u8>,
        /// Why.
        why: latchwork_lockmgr::Error,
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
    /// A version that the snapshot needs is gone from the log.
    SnapshotTooOld {
        /// The snapshot's position in the log.
        at: u64,
    },
    /// There is a record with this key already.
    Exists {
        /// The tree.
        tree: u32,
        /// The key.
        key: Vec<u8>,
    },
    /// The savepoint is another transaction's, or was rolled back over.
    Savepoint,
    /// A key is longer than [`KEY_MAX`](crate::KEY_MAX).
    KeyTooLong {
        /// The table.
        table: String,
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
    /// The trees or the log failed: what they said.
    Engine(String),
    /// The caller's own: a closure that wants its transaction rolled back.
    Rejected(String),
}

impl Error {
    /// Whether the same transaction may succeed if it is run again.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Lock { why, .. } | Self::Locks(why) => why.is_retryable(),
            Self::SnapshotTooOld { .. } => true,
            _ => false,
        }
    }
}

impl From<latchwork_lockmgr::Error> for Error {
    fn from(why: latchwork_lockmgr::Error) -> Self {
        Self::Locks(why)
    }
}

/// A key as people read it.
struct Bytes<'k>(&'k [u8]);

impl fmt::Display for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock { tree, key, why } => {
                write!(f, "key {} of tree {tree}: {why}", Bytes(key))
            }
            Self::Locks(why) => write!(f, "locks: {why}"),
            Self::Deadline { runs, last } => {
                write!(f, "run {runs} times until the deadline; the last time: {last}")
            }
            Self::SnapshotTooOld { at } => {
                write!(f, "the snapshot at {at} needs a version that is gone; begin a new one")
            }
            Self::Exists { tree, key } => write!(f, "key {} of tree {tree} exists", Bytes(key)),
            Self::Savepoint => f.write_str("no savepoint of this transaction"),
            Self::KeyTooLong { table, length } => {
                write!(f, "a key of {length} bytes in {table}: may have {}", crate::KEY_MAX)
            }
            Self::Key { table, why } => write!(f, "{table}: {why}"),
            Self::Value { table, why } => write!(f, "{table}: {why}"),
            Self::Engine(why) => f.write_str(why),
            Self::Rejected(why) => f.write_str(why),
        }
    }
}

impl core::error::Error for Error {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Lock { why, .. } | Self::Locks(why) => Some(why),
            Self::Deadline { last, .. } => Some(last.as_ref()),
            Self::Key { why, .. } => Some(why),
            Self::Value { why, .. } => Some(why),
            _ => None,
        }
    }
}

//! Errors of a page and of a tree.

use core::fmt;

use latchwork_pool::{Cause, Error as PoolError};

/// The reason why a page or a tree could not be read or changed. Its records are unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The record does not fit: split the page and try again.
    Full,
    /// The key is too long for pages of this size.
    KeyTooLong {
        /// Its bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// Key and value together are too long for the page.
    RecordTooLong {
        /// Their bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The key already exists.
    Exists,
    /// The key does not exist.
    Missing,
    /// The key does not belong on this page.
    OutOfRange,
    /// A loaded key is not greater than the one before it.
    OutOfOrder {
        /// The key.
        key: Vec<u8>,
    },
    /// The page has too few records to be split.
    Unsplittable,
    /// The page is damaged: the description names the fault.
    Malformed(&'static str),
    /// The bytes are no change that this version knows.
    UnknownChange,
    /// An error of the pool, which names the page.
    Pool(PoolError),
    /// The journal does not allow changes of records now; nothing was changed.
    Refused,
    /// The journal does not allow a change of a record with this value now; nothing was changed.
    Kept,
    /// The journal has less room than the change needs; nothing was changed.
    Room,
    /// The journal did not accept the change for this reason.
    Journal(Cause),
    /// A page has another level than its parent or its sibling says.
    Level {
        /// The page.
        page: u64,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the page has no room for the record"),
            Self::KeyTooLong { length, limit } => {
                write!(f, "the key has {length} bytes, and may have {limit}")
            }
            Self::RecordTooLong { length, limit } => {
                write!(f, "key and value have {length} bytes, and may have {limit} in a page")
            }
            Self::Exists => f.write_str("the key is there already"),
            Self::Missing => f.write_str("the key is not there"),
            Self::OutOfRange => f.write_str("the key does not belong on this page"),
            Self::OutOfOrder { key } => {
                write!(f, "key {} is not above the one before it", key.escape_ascii())
            }
            Self::Unsplittable => f.write_str("a page of one record cannot be split"),
            Self::Malformed(what) => write!(f, "the page is malformed: {what}"),
            Self::UnknownChange => f.write_str("the log record holds no change of a page"),
            Self::Pool(error) => error.fmt(f),
            Self::Refused => f.write_str("records may not be changed now"),
            Self::Kept => f.write_str("a record with this value may not be changed now"),
            Self::Room => f.write_str("the journal has less room than was asked for"),
            Self::Journal(why) => write!(f, "the change could not be logged: {why}"),
            Self::Level { page } => write!(f, "page {page} is not on the level of its neighbours"),
        }
    }
}

impl core::error::Error for Error {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Pool(error) => Some(error),
            _ => None,
        }
    }
}

impl From<PoolError> for Error {
    fn from(error: PoolError) -> Self {
        Self::Pool(error)
    }
}

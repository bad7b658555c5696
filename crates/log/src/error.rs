//! What can be wrong, each by its name.

use core::fmt;

use crate::Lsn;

/// Why the log did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The disk failed in a call that may be made again.
    Disk(latchwork_disk::Error),
    /// The region failed.
    Region(latchwork_region::Error),
    /// A write or a sync of the log failed, in this process or another. That is final: nothing
    /// is appended or made durable until the log is opened anew, in a new region. What is
    /// flushed stays.
    Broken,
    /// The log ends before a place that was durable, or the segment of its redo point is missing:
    /// no crash does that.
    LogDamaged {
        /// Where the first record is that cannot be read.
        at: Lsn,
        /// Up to where the log was durable, as a file or a record says; `at` if only the segment is
        /// missing.
        flushed: Lsn,
    },
    /// A file of the log is not what it should be.
    Corrupt {
        /// What.
        what: &'static str,
    },
    /// There are segments and no control file.
    NoControl,
    /// A file of the log has a format that is not known here.
    Version {
        /// The file's.
        found: u32,
        /// The one known here.
        known: u32,
    },
    /// The files belong to another log.
    Foreign,
    /// The record is larger than a record may be, or a field of its head has too many bits.
    TooLarge {
        /// The most bytes that a record of this log may have.
        limit: u64,
    },
    /// More bytes were appended than were reserved.
    NoCredit,
    /// The record is not there any more: its segment was recycled.
    Gone {
        /// The oldest place that is still there.
        oldest: Lsn,
    },
    /// No record begins there.
    NotARecord(Lsn),
    /// All pins are taken: this many.
    Pins(u32),
    /// An option that makes no sense, by its name.
    Options(&'static str),
    /// The thread slot's number is higher than a latch can name: 16,382.
    Threads(u32),
}

impl From<latchwork_disk::Error> for Error {
    fn from(error: latchwork_disk::Error) -> Self {
        Self::Disk(error)
    }
}

impl From<latchwork_region::Error> for Error {
    fn from(error: latchwork_region::Error) -> Self {
        Self::Region(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(error) => error.fmt(f),
            Self::Region(error) => error.fmt(f),
            Self::Broken => f.write_str("a write or a sync of the log failed: open it anew"),
            Self::LogDamaged { at, flushed } => {
                write!(f, "the log was durable up to {flushed} and cannot be read at {at}")
            }
            Self::Corrupt { what } => write!(f, "{what} of the log is corrupt"),
            Self::NoControl => f.write_str("there are segments of a log and no control file"),
            Self::Version { found, known } => {
                write!(f, "the log has format {found}, known here is {known}")
            }
            Self::Foreign => f.write_str("a file belongs to another log"),
            Self::TooLarge { limit } => write!(f, "a record may have {limit} bytes"),
            Self::NoCredit => f.write_str("more was appended than was reserved"),
            Self::Gone { oldest } => write!(f, "the log begins at {oldest}"),
            Self::NotARecord(lsn) => write!(f, "no record begins at {lsn}"),
            Self::Pins(limit) => write!(f, "all {limit} pins of the log are taken"),
            Self::Options(name) => write!(f, "option `{name}` makes no sense"),
            Self::Threads(number) => write!(f, "thread slot {number} is too high for a latch"),
        }
    }
}

impl core::error::Error for Error {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Disk(error) => Some(error),
            Self::Region(error) => Some(error),
            _ => None,
        }
    }
}

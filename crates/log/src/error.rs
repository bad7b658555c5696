//! The errors of the log.

use core::fmt;

use crate::Lsn;

/// An error of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The disk failed in a call that can be repeated.
    Disk(latchwork_disk::Error),
    /// The region failed.
    Region(latchwork_region::Error),
    /// A write or a sync of the log failed, in this process or another. This error is final: the
    /// log appends nothing and makes nothing durable until it is opened again in a new region.
    /// Flushed records stay.
    Broken,
    /// The log ends before a place that was durable, or the segment of its redo point is missing. A
    /// crash does not cause this.
    LogDamaged {
        /// The place of the first record that cannot be read.
        at: Lsn,
        /// The place up to which the log was durable, according to a file or a record; `at` if only
        /// the segment is missing.
        flushed: Lsn,
    },
    /// A file of the log has invalid contents.
    Corrupt {
        /// The file, or the part of it.
        what: &'static str,
    },
    /// There are segments but no control file.
    NoControl,
    /// A file of the log has a format that this build does not read.
    Version {
        /// The format of the file.
        found: u32,
        /// The newest format that this build reads.
        known: u32,
    },
    /// The files belong to another log.
    Foreign,
    /// The record is larger than a record may be, or a field of its header has too many bits.
    TooLarge {
        /// The maximum size of a record of this log, in bytes.
        limit: u64,
    },
    /// The thread appended more bytes than it had reserved.
    NoCredit,
    /// The record does not exist any more: its segment was recycled.
    Gone {
        /// The oldest place that still exists.
        oldest: Lsn,
    },
    /// No record begins at this place.
    NotARecord(Lsn),
    /// All pins are in use. The value is their number.
    Pins(u32),
    /// The option with this name has an invalid value.
    Options(&'static str),
    /// The number of the thread slot is higher than a latch can name: 16,382.
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

//! The errors of a pool.

use core::fmt;
use std::sync::Arc;

use latchwork_disk::{Error as DiskError, Operation};
use latchwork_region::Error as RegionError;

/// The reason why a pool could not be opened, or a page not be read, changed or written.
///
/// An error that names a page affects that page alone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// An error of the region or of one of the pool's areas.
    Region(RegionError),
    /// An error of the disk, with the operation and the path.
    Disk(DiskError),
    /// An option out of range.
    Options(&'static str),
    /// The pool in this region was created with frames of another size, or with fewer.
    Different {
        /// Bytes of a frame of the existing pool.
        frame_bytes: u32,
        /// The most frames of the existing pool.
        frames: u32,
    },
    /// The pool knows the file with pages of another size, or its first page was written with one.
    PageSize {
        /// Bytes of a page, as found.
        found: u32,
        /// Bytes of a page, as requested.
        asked: u32,
    },
    /// The pool has as many files as it can have: this many.
    Files(u32),
    /// The pool has no file of this number.
    NoFile(u16),
    /// The path is not absolute, not UTF-8, or longer than 256 bytes.
    Path,
    /// The page lies beyond the end of the file.
    OutOfRange {
        /// The file's number.
        file: u16,
        /// The page.
        page: u64,
        /// Number of pages of the file.
        pages: u64,
    },
    /// The bytes on disk do not match their checksum: damaged, torn, or never written.
    Checksum {
        /// The file's number.
        file: u16,
        /// The page.
        page: u64,
    },
    /// The disk returned an intact page with another number.
    Misdirected {
        /// The file's number.
        file: u16,
        /// The requested page.
        page: u64,
        /// The low 32 bits of the number of the returned page.
        found: u32,
    },
    /// The page contains a change beyond the log's end: the log is older, or the page belongs to
    /// another log.
    Newer {
        /// The file's number.
        file: u16,
        /// The page.
        page: u64,
        /// The position at which the log should have a record.
        lsn: u64,
    },
    /// A process died, or a thread panicked, while it changed the page, and this process has no
    /// callback to rebuild it.
    Poisoned {
        /// The file's number.
        file: u16,
        /// The page.
        page: u64,
    },
    /// The page is half changed, and rebuilding it failed.
    Rebuild {
        /// The file's number.
        file: u16,
        /// The page.
        page: u64,
        /// The callback's reason.
        why: String,
    },
    /// The caller's closure could not interpret the page, whose bytes were stable.
    Malformed {
        /// The file's number.
        file: u16,
        /// The page.
        page: u64,
    },
    /// The page was freed and not created again.
    Freed {
        /// The file's number.
        file: u16,
        /// The page.
        page: u64,
    },
    /// The file is sparse: the pool keeps no list of its free pages.
    Sparse {
        /// The file's number.
        file: u16,
    },
    /// Every frame is in use and none can be evicted.
    Full {
        /// How many frames there are.
        frames: u32,
        /// How many contain pages that could not be written.
        dirty: u32,
        /// Thread slots that hold latches of frames or have pinned them, at most 16.
        holders: Vec<u32>,
    },
    /// The handle has pinned as many pages as it may: this many.
    Pins(u32),
    /// The file ends before a page that it had when the pool opened it: it was truncated.
    Shrank {
        /// The file's number.
        file: u16,
        /// The page.
        page: u64,
        /// How many pages it should have.
        pages: u64,
    },
    /// The callback that makes the log durable failed, so the page was not written.
    WriteAhead(Cause),
    /// Pages of this pool are logged, and this process has no callback that makes the log durable.
    NoWriteAhead,
    /// A sync of the file failed, in this process or another. It is unknown which of its data are
    /// durable.
    SyncFailed {
        /// The file's number.
        file: u16,
    },
    /// The pool's own data are damaged.
    Corrupt(&'static str),
    /// The pool is open as a view, and the operation needs more than reading.
    View,
    /// The thread slot's number is larger than a latch can name.
    Holder(u32),
}

impl From<RegionError> for Error {
    fn from(error: RegionError) -> Self {
        Self::Region(error)
    }
}

impl From<DiskError> for Error {
    fn from(error: DiskError) -> Self {
        Self::Disk(error)
    }
}

impl Error {
    /// Returns whether the disk may lack the page because it was never written.
    pub fn is_unwritten(&self) -> bool {
        self.is_short() || self.is_unsound() || matches!(self, Self::Shrank { .. })
    }

    fn is_short(&self) -> bool {
        matches!(self, Self::Disk(DiskError::ShortRead { .. }))
    }

    fn is_unsound(&self) -> bool {
        matches!(self, Self::Checksum { .. } | Self::Misdirected { .. })
    }

    /// Whether the disk had the page and has lost it.
    pub(crate) fn is_of_damage(&self) -> bool {
        self.is_unsound() || (self.is_of_reading() && !self.is_short())
    }

    /// Whether the error is about the state of the page on the disk.
    pub(crate) fn is_of_disk(&self) -> bool {
        self.is_unwritten() || self.is_of_reading() || matches!(self, Self::Newer { .. })
    }

    /// Whether the disk failed to read.
    fn is_of_reading(&self) -> bool {
        matches!(self, Self::Disk(error) if error.subject().operation == Operation::Read)
    }

    /// Returns the page that the error is about, if any.
    pub fn page(&self) -> Option<u64> {
        match *self {
            Self::OutOfRange { page, .. }
            | Self::Checksum { page, .. }
            | Self::Misdirected { page, .. }
            | Self::Newer { page, .. }
            | Self::Poisoned { page, .. }
            | Self::Rebuild { page, .. }
            | Self::Malformed { page, .. }
            | Self::Freed { page, .. }
            | Self::Shrank { page, .. } => Some(page),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Region(error) => write!(f, "{error}"),
            Self::Disk(error) => write!(f, "{error}"),
            Self::Options(what) => write!(f, "option out of range: {what}"),
            Self::Different { frame_bytes, frames } => {
                write!(f, "the pool here has at most {frames} frames of {frame_bytes} bytes")
            }
            Self::PageSize { found, asked } => {
                write!(f, "the file has pages of {found} bytes, not of {asked}")
            }
            Self::Files(n) => write!(f, "the pool has {n} files, which is all it can have"),
            Self::NoFile(file) => write!(f, "the pool knows no file {file}"),
            Self::Path => f.write_str("the path must be absolute, UTF-8, at most 256 bytes"),
            Self::OutOfRange { file, page, pages } => {
                write!(f, "page {page} of file {file}, which has {pages} pages")
            }
            Self::Checksum { file, page } => {
                write!(f, "page {page} of file {file} does not fit its checksum")
            }
            Self::Misdirected { file, page, found } => {
                write!(f, "the disk returned page {found} for page {page} of file {file}")
            }
            Self::Newer { file, page, lsn } => write!(
                f,
                "page {page} of file {file} has a change at {lsn}, beyond the log's end: the log \
                 is of an earlier time; put the one back that was beside these pages"
            ),
            Self::Poisoned { file, page } => {
                write!(f, "page {page} of file {file} was left half changed")
            }
            Self::Rebuild { file, page, why } => {
                write!(f, "page {page} of file {file} could not be rebuilt: {why}")
            }
            Self::Malformed { file, page } => {
                write!(f, "page {page} of file {file} makes no sense to its reader")
            }
            Self::Freed { file, page } => write!(f, "page {page} of file {file} is free"),
            Self::Sparse { file } => {
                write!(f, "file {file} is sparse: the pool keeps no list of its free pages")
            }
            Self::Full { frames, dirty, holders } => write!(
                f,
                "none of {frames} frames can be evicted; {dirty} could not be written; \
                 held by the thread slots {holders:?}"
            ),
            Self::Pins(n) => write!(f, "the thread has pinned {n} pages, which is all it may"),
            Self::Shrank { file, page, pages } => {
                write!(f, "file {file} of {pages} pages ends before page {page}")
            }
            Self::WriteAhead(why) => write!(f, "the log could not be made durable: {why}"),
            Self::NoWriteAhead => f.write_str("logged pages need a write-ahead callback"),
            Self::SyncFailed { file } => write!(f, "a sync of file {file} failed"),
            Self::Corrupt(what) => write!(f, "corrupt: {what}"),
            Self::View => f.write_str("the pool is open to be looked at, not to be used"),
            Self::Holder(slot) => write!(f, "thread slot {slot} is too high for a latch"),
        }
    }
}

impl core::error::Error for Error {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::WriteAhead(why) => Some(&*why.0),
            _ => None,
        }
    }
}

/// The reason why a callback failed: an error of the upper layer, which the layers between pass on
/// unchanged.
#[derive(Clone, Debug)]
pub struct Cause(Arc<dyn core::error::Error + Send + Sync>);

impl Cause {
    /// Wraps the layer's own error, or a message.
    pub fn new(why: impl Into<Box<dyn core::error::Error + Send + Sync>>) -> Self {
        Self(Arc::from(why.into()))
    }

    /// Returns the layer's own error.
    pub fn as_error(&self) -> &(dyn core::error::Error + 'static) {
        &*self.0
    }

    /// Returns the layer's own error, if it has this type.
    pub fn downcast_ref<E: core::error::Error + 'static>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }
}

/// Two causes are equal if their messages are.
impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for Cause {}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

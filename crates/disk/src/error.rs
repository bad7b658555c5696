//! The errors of a disk, with operation and path.

use core::fmt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::Operation;

/// The call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The operation.
    pub operation: Operation,
    /// The file or folder; of two, the first.
    pub path: PathBuf,
    /// The first byte for reads and writes; otherwise zero.
    pub at: u64,
}

impl Subject {
    pub(crate) fn new(operation: Operation, path: &Path, at: u64) -> Self {
        Self { operation, path: path.to_owned(), at }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, path, at } = self;
        match operation {
            Operation::Read | Operation::Write => {
                write!(f, "{operation} {} at {at}", path.display())
            }
            _ => write!(f, "{operation} {}", path.display()),
        }
    }
}

/// The reason why a call to a disk failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The file or folder does not exist.
    NotFound(Subject),
    /// The name already exists.
    Exists(Subject),
    /// The path names something other than a regular file, or a symbolic link.
    NotRegular(Subject),
    /// The system does not allow this process to do that.
    Permission(Subject),
    /// The file system is read-only, or the file was opened for reading.
    ReadOnly(Subject),
    /// The file system or the user's quota is full, or the file would exceed a limit
    /// (`RLIMIT_FSIZE`, or the file system's).
    NoSpace(Subject),
    /// The device failed (`EIO`).
    Device(Subject),
    /// The file ends before the requested bytes.
    ShortRead {
        /// The read.
        subject: Subject,
        /// Requested bytes.
        wanted: u64,
        /// Existing bytes.
        got: u64,
    },
    /// An offset, a length or a buffer is not aligned for direct I/O.
    Misaligned(Subject),
    /// The file system has no locks that end with their process.
    NoLocks(Subject),
    /// The file system does not support the operation, for example direct I/O.
    Unsupported(Subject),
    /// This process or the system has too many files open.
    TooManyFiles(Subject),
    /// The simulated machine has crashed and was not restarted, or the file was opened before it
    /// crashed.
    Crashed(Subject),
    /// A system call failed with an error that has no variant here.
    System {
        /// The call.
        subject: Subject,
        /// The error's number.
        errno: i32,
    },
}

impl Error {
    pub(crate) fn of(subject: Subject, errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR => Self::NotFound(subject),
            Errno::EXIST => Self::Exists(subject),
            Errno::LOOP | Errno::ISDIR => Self::NotRegular(subject),
            Errno::ACCESS | Errno::PERM => Self::Permission(subject),
            Errno::ROFS | Errno::BADF => Self::ReadOnly(subject),
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Self::NoSpace(subject),
            Errno::IO => Self::Device(subject),
            Errno::OPNOTSUPP | Errno::NOSYS => Self::Unsupported(subject),
            Errno::MFILE | Errno::NFILE => Self::TooManyFiles(subject),
            other => Self::System { subject, errno: other.raw_os_error() },
        }
    }

    /// Returns the call that failed.
    pub fn subject(&self) -> &Subject {
        match self {
            Self::NotFound(subject)
            | Self::Exists(subject)
            | Self::NotRegular(subject)
            | Self::Permission(subject)
            | Self::ReadOnly(subject)
            | Self::NoSpace(subject)
            | Self::Device(subject)
            | Self::ShortRead { subject, .. }
            | Self::Misaligned(subject)
            | Self::NoLocks(subject)
            | Self::Unsupported(subject)
            | Self::TooManyFiles(subject)
            | Self::Crashed(subject)
            | Self::System { subject, .. } => subject,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self {
            Self::NotFound(_) => "there is no such file",
            Self::Exists(_) => "there is such a file already",
            Self::NotRegular(_) => "it is not a regular file",
            Self::Permission(_) => "the system does not permit it",
            Self::ReadOnly(_) => "it is read-only",
            Self::NoSpace(_) => {
                "the file system is full, or the file too long for it or for RLIMIT_FSIZE"
            }
            Self::Device(_) => "the device failed",
            Self::ShortRead { subject, wanted, got } => {
                return write!(f, "{subject}: the file ends after {got} of {wanted} bytes");
            }
            Self::Misaligned(_) => "offset, length and buffer do not suit direct I/O",
            Self::NoLocks(_) => "the file system has no open-file-description locks",
            Self::Unsupported(_) => "the file system cannot do that",
            Self::TooManyFiles(_) => "too many files are open",
            Self::Crashed(_) => "the simulated machine has crashed",
            Self::System { subject, errno } => {
                return write!(f, "{subject}: {}", std::io::Error::from_raw_os_error(*errno));
            }
        };
        write!(f, "{}: {why}", self.subject())
    }
}

impl core::error::Error for Error {}

//! The interface of a disk.

use core::fmt::Debug;
use std::ffi::OsString;
use std::path::Path;

use crate::{Calls, Error};

/// Options for opening a file. All false opens an existing file for reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// Opens it also for writing.
    pub write: bool,
    /// Creates the file if it does not exist. Implies `write`.
    pub create: bool,
    /// Creates the file, and fails with [`Error::Exists`] if it exists. Implies `write`.
    pub fresh: bool,
    /// Bypasses the system's cache (`O_DIRECT`). Offsets, lengths and addresses of buffers must
    /// then be multiples of [`ALIGNMENT`](crate::ALIGNMENT); others give [`Error::Misaligned`].
    pub direct: bool,
}

impl Open {
    /// An existing file, for reading.
    pub const READ: Self = Self { write: false, create: false, fresh: false, direct: false };
    /// An existing file, for reading and writing.
    pub const WRITE: Self = Self { write: true, ..Self::READ };
    /// A file for reading and writing, created if it does not exist.
    pub const CREATE: Self = Self { write: true, create: true, ..Self::READ };
    /// A new file, for reading and writing.
    pub const FRESH: Self = Self { write: true, fresh: true, ..Self::READ };

    /// Returns these options with `direct` set.
    pub const fn direct(self) -> Self {
        Self { direct: true, ..self }
    }
}

/// A place for files.
///
/// Each method call is one numbered call to the disk; [`calls`](Self::calls) counts them. All
/// methods may be called by many threads at once, and may block for a device. No method panics.
pub trait Disk: Debug + Send + Sync {
    /// Opens or creates the file at `path`. Its folder must exist. A symbolic link as the last part
    /// is not followed.
    ///
    /// The name of a created file survives a crash only after its folder was synced.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`], [`Error::Exists`], [`Error::NotRegular`], and others of the system.
    fn open(&self, path: &Path, how: Open) -> Result<Box<dyn File>, Error>;

    /// Creates a folder; `Ok` if it exists. Its name is durable when the folder around it is
    /// synced.
    fn make_folder(&self, path: &Path) -> Result<(), Error>;

    /// Renames a file, replacing a file of the new name. One of the two names leads to the file at
    /// any moment and after any crash; which one after a crash is undefined until the folder is
    /// synced. Both names must be in one folder.
    fn rename(&self, from: &Path, to: &Path) -> Result<(), Error>;

    /// Gives a file a second name.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`] if the name is taken.
    fn link(&self, from: &Path, to: &Path) -> Result<(), Error>;

    /// Removes a name. Open files stay usable.
    fn remove(&self, path: &Path) -> Result<(), Error>;

    /// Returns the names in a folder, sorted, without `.` and `..`.
    fn list(&self, folder: &Path) -> Result<Vec<OsString>, Error>;

    /// Makes the names in a folder durable.
    fn sync_folder(&self, folder: &Path) -> Result<(), Error>;

    /// Returns the number of calls of each operation, including those of files.
    fn calls(&self) -> Calls;
}

/// An open file. Dropping it closes it.
pub trait File: Debug + Send + Sync {
    /// Fills `into` with the bytes from `at` on. A read that the system cuts short is continued.
    ///
    /// # Errors
    ///
    /// [`Error::ShortRead`] if the file ends before; `into` then contains the existing bytes, and
    /// the rest of it is unchanged. [`Error::Device`] if the device fails.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Error>;

    /// Writes all of `from` at `at`. The file grows if necessary.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`], [`Error::Device`]: any part of `from` may have been written.
    fn write(&self, at: u64, from: &[u8]) -> Result<(), Error>;

    /// Makes the bytes and the length durable (`fdatasync`).
    ///
    /// # Errors
    ///
    /// An error is final: the system may have marked as clean what it could not write, so a later
    /// `Ok` says nothing about earlier writes. It is reported once to each open file that was open
    /// when it was first reported (Linux 4.13), and not to a file that is opened later.
    fn sync(&self) -> Result<(), Error>;

    /// [`sync`](Self::sync) for a file that was opened while another open file of it may have
    /// received a report of an error: it makes the system report that as well (`syncfs`, Linux
    /// 5.8). This makes all files of the file system durable, which may take long, and returns an
    /// unreported error of any of them. Where the system has no such call, it is
    /// [`sync`](Self::sync).
    ///
    /// # Errors
    ///
    /// The errors of [`sync`](Self::sync). An error that was reported to another program's `syncfs`
    /// before this file was opened is not reported.
    fn sync_in_doubt(&self) -> Result<(), Error>;

    /// Sets the length of the file. New bytes are zero.
    fn truncate(&self, length: u64) -> Result<(), Error>;

    /// Allocates space for the bytes from `at` on, and makes the file long enough to contain them.
    /// New bytes are zero. Writes zeros behind the file's end where the file system cannot
    /// allocate. Existing bytes stay, including concurrent writes.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] where neither is possible. [`Error::NoSpace`]; the length is then
    /// unchanged, or longer by a part of the request.
    fn allocate(&self, at: u64, length: u64) -> Result<(), Error>;

    /// Returns the space of these bytes to the file system: they read as zeros, and the length
    /// stays. A later write there may fail with [`Error::NoSpace`], unless space is
    /// [allocated](Self::allocate) first. After a crash before the next sync, each block has its
    /// old bytes or zeros.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] where the file system cannot do it: the bytes are unchanged.
    fn punch(&self, at: u64, length: u64) -> Result<(), Error>;

    /// Returns the length of the file in bytes.
    fn length(&self) -> Result<u64, Error>;

    /// Returns how many bytes the file takes on the disk, as `du` counts them: less than its length
    /// where it has holes. The default returns the length.
    fn allocated(&self) -> Result<u64, Error> {
        self.length()
    }

    /// Returns how many names the file has: more than one if another folder has a hard link to it,
    /// which then changes with each write.
    fn links(&self) -> Result<u64, Error>;

    /// Returns the position of the first byte at or after `at` that may not be in a hole of the
    /// file; none if there is none. The default returns `at`.
    fn next_data(&self, at: u64) -> Result<Option<u64>, Error> {
        Ok((at < self.length()?).then_some(at))
    }

    /// Takes a lock on one byte, which may be behind the file's end. Returns false if another open
    /// file has it and one of the two locks is exclusive. Dropping the file, or the death of its
    /// process, drops the lock. A lock that this file already has is changed to the requested kind.
    ///
    /// # Errors
    ///
    /// [`Error::NoLocks`] if the file system does not support such locks.
    fn lock(&self, byte: u64, exclusive: bool) -> Result<bool, Error>;
}

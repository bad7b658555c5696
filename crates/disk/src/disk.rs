//! What the layers above may ask of a disk.

use core::fmt::Debug;
use std::ffi::OsString;
use std::path::Path;

use crate::{Calls, Error};

/// How a file is opened. All false opens an existing file for reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// For writing too.
    pub write: bool,
    /// Makes the file if there is none. Implies `write`.
    pub create: bool,
    /// Makes the file, and fails with [`Error::Exists`] if there is one. Implies `write`.
    pub fresh: bool,
    /// Around the system's cache (`O_DIRECT`). Offsets, lengths and addresses of buffers must then be
    /// multiples of [`ALIGNMENT`](crate::ALIGNMENT); others give [`Error::Misaligned`].
    pub direct: bool,
}

impl Open {
    /// An existing file, for reading.
    pub const READ: Self = Self { write: false, create: false, fresh: false, direct: false };
    /// An existing file, for reading and writing.
    pub const WRITE: Self = Self { write: true, ..Self::READ };
    /// A file for reading and writing, made if there is none.
    pub const CREATE: Self = Self { write: true, create: true, ..Self::READ };
    /// A new file, for reading and writing.
    pub const FRESH: Self = Self { write: true, fresh: true, ..Self::READ };

    /// The same, around the system's cache.
    pub const fn direct(self) -> Self {
        Self { direct: true, ..self }
    }
}

/// Where files are.
///
/// Each call is one numbered call to the disk: [`calls`](Self::calls) says how many there were. All
/// may be made by many threads at once. No method panics.
pub trait Disk: Debug + Send + Sync {
    /// Opens or makes the file at `path`. Its folder must exist. A last part that is a symbolic link is
    /// not followed.
    ///
    /// A file that was made has its name after a crash only when its folder was synced.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`], [`Error::Exists`], [`Error::NotRegular`], and what the system says.
    fn open(&self, path: &Path, how: Open) -> Result<Box<dyn File>, Error>;

    /// Makes a folder; `Ok` if there is one. Its name is durable when the folder around it is synced.
    fn make_folder(&self, path: &Path) -> Result<(), Error>;

    /// Gives a file another name, and takes the name from the file that had it. One of the two names
    /// leads to the file at any moment and after any crash; which one after a crash is open until the
    /// folder is synced. Both names must be in one folder.
    fn rename(&self, from: &Path, to: &Path) -> Result<(), Error>;

    /// Gives a file a second name.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`] if the name is taken.
    fn link(&self, from: &Path, to: &Path) -> Result<(), Error>;

    /// Takes a name away. Open files stay usable.
    fn remove(&self, path: &Path) -> Result<(), Error>;

    /// The names in a folder, sorted, without `.` and `..`.
    fn list(&self, folder: &Path) -> Result<Vec<OsString>, Error>;

    /// Makes the names in a folder durable.
    fn sync_folder(&self, folder: &Path) -> Result<(), Error>;

    /// How many calls of each operation there were, those of files counted in.
    fn calls(&self) -> Calls;
}

/// An open file. Dropping it closes it.
pub trait File: Debug + Send + Sync {
    /// Fills `into` with the bytes from `at` on. A read that the system cuts short goes on.
    ///
    /// # Errors
    ///
    /// [`Error::ShortRead`] if the file ends before; `into` then holds what there was, and the rest of
    /// it is unchanged. [`Error::Device`] if the device fails.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Error>;

    /// Writes all of `from` at `at`. The file grows if need be.
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
    /// `Ok` says nothing of what was written before this error. It is told once to each open file
    /// that was open when it was first told (Linux 4.13), and not to one that is opened later.
    fn sync(&self) -> Result<(), Error>;

    /// The same for a file that was opened while another one of the same file may have been told of
    /// an error: it has the system tell that, too (`syncfs`, Linux 5.8). That makes all files of the
    /// file system durable, which may take long; and an error of any of them that no such call has
    /// told yet is one of this call. Where the system has no such call, it is as
    /// [`sync`](Self::sync).
    ///
    /// # Errors
    ///
    /// As [`sync`](Self::sync). An error that another program's `syncfs` was told before this file
    /// was opened is not told.
    fn sync_in_doubt(&self) -> Result<(), Error>;

    /// Makes the file `length` bytes long. New bytes are zero.
    fn truncate(&self, length: u64) -> Result<(), Error>;

    /// Sets space aside for the bytes from `at` on, and makes the file long enough to hold them. New
    /// bytes are zero. Writes zeros behind the file's end where the file system cannot set space
    /// aside. Bytes that are there stay, those counted in that others write at the same time.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] where neither can be done. [`Error::NoSpace`]; the length is then as it was, or some part of what was asked for longer.
    fn allocate(&self, at: u64, length: u64) -> Result<(), Error>;

    /// Returns the space of these bytes to the file system: they read as zeros, and the length stays.
    /// A later write there may meet [`Error::NoSpace`], unless space is [set aside](Self::allocate)
    /// first. After a crash before the next sync each block has its old bytes or zeros.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] where the file system cannot do it: the bytes are unchanged.
    fn punch(&self, at: u64, length: u64) -> Result<(), Error>;

    /// How many bytes the file has.
    fn length(&self) -> Result<u64, Error>;

    /// How many bytes the file takes on the disk, as `du` counts them: less than its length where it
    /// has holes. A disk that does not know returns the length.
    fn allocated(&self) -> Result<u64, Error> {
        self.length()
    }

    /// How many names the file has: more than one if another folder has the same file (a hard
    /// link), which then changes with each write.
    fn links(&self) -> Result<u64, Error>;

    /// Where the first byte at or behind `at` is that may not lie in a hole of the file; none if
    /// there is none. A disk that knows nothing of holes says `at`.
    fn next_data(&self, at: u64) -> Result<Option<u64>, Error> {
        Ok((at < self.length()?).then_some(at))
    }

    /// Takes a lock on one byte, which may be behind the file's end; false if another open file has it
    /// and one of the two is exclusive. Dropping the file, or the death of its process, drops the lock.
    /// A lock that this file has already is changed to what is asked for.
    ///
    /// # Errors
    ///
    /// [`Error::NoLocks`] if the file system has none of this kind.
    fn lock(&self, byte: u64, exclusive: bool) -> Result<bool, Error>;
}

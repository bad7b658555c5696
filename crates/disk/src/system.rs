//! The files of the system: `pread`, `pwrite`, `fdatasync`.
//!
//! A call that a signal interrupts is repeated, and one that is cut short is continued. Each file
//! has its own descriptor, closed at an `exec`.

use std::ffi::{OsStr, OsString};
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use latchwork_machine::open_at;
use rustix::fs::{AtFlags, CWD, Dir, FallocateFlags, FileType, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::buffer::is_aligned;
use crate::calls::Counters;
use crate::error::Subject;
use crate::limit::{within_limit, without_signal};
use crate::{Calls, Disk, Error, File, Open, Operation};

/// The files of the system. Clones count their calls together.
#[derive(Clone, Debug, Default)]
pub struct System {
    counters: Arc<Counters>,
    /// An open folder and its path when it was opened.
    root: Option<Arc<(OwnedFd, PathBuf)>>,
    /// Whether a group shares what is created in that folder.
    shared: bool,
}

/// The mode bits of a shared folder: members of the group may write, and new files get the group.
const SHARED: u32 = 0o2020;
/// The mode bits of files and folders that are created there.
const SHARED_FILE: u32 = 0o660;
const SHARED_FOLDER: u32 = 0o2770;

impl System {
    /// Creates an interface to the files of the system, with no call counted yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an interface in which paths below `folder` mean the folder that has this path now,
    /// even if it is moved and replaced later. Uses one more descriptor.
    ///
    /// Created files belong to this user alone. In a folder that a group shares (group write
    /// permission and the set-group-ID bit, mode 2770), members of the group may read and write
    /// them, whatever this process's umask.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`], [`Error::Permission`] and others of opening a folder.
    pub fn below(folder: &Path) -> Result<Self, Error> {
        let system = Self::new();
        let open = || latchwork_machine::open(folder, FOLDER, Mode::empty());
        let opened = system.call(Operation::Open, folder, open)?;
        let stat = system.call(Operation::Open, folder, || rustix::fs::fstat(&opened))?;
        let shared = stat.st_mode & SHARED == SHARED;
        Ok(Self { root: Some(Arc::new((opened, folder.to_owned()))), shared, ..system })
    }

    /// The folder and the path at which a path is opened.
    fn place<'p>(&'p self, path: &'p Path) -> (BorrowedFd<'p>, &'p Path) {
        let Some((folder, root)) = self.root.as_deref() else { return (CWD, path) };
        match path.strip_prefix(root) {
            Ok(rest) if rest.as_os_str().is_empty() => (folder.as_fd(), Path::new(".")),
            Ok(rest) => (folder.as_fd(), rest),
            Err(_) => (CWD, path),
        }
    }

    fn call<T>(
        &self,
        operation: Operation,
        path: &Path,
        run: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Error> {
        self.counters.count(operation);
        again(run).map_err(|errno| Error::of(Subject::new(operation, path, 0), errno))
    }
}

/// Repeats a system call until no signal interrupts it.
fn again<T>(mut run: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match run() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::DIRECTORY);

impl Disk for System {
    fn open(&self, path: &Path, how: Open) -> Result<Box<dyn File>, Error> {
        let mut flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let write = how.write || how.create || how.fresh;
        flags |= if write { OFlags::RDWR } else { OFlags::RDONLY };
        flags |= if how.create { OFlags::CREATE } else { OFlags::empty() };
        flags |= if how.fresh { OFlags::CREATE | OFlags::EXCL } else { OFlags::empty() };
        flags |= if how.direct { OFlags::DIRECT } else { OFlags::empty() };
        let mode = Mode::RUSR | Mode::WUSR;
        let (folder, name) = self.place(path);
        let opened = self.call(Operation::Open, path, || open_at(folder, name, flags, mode));
        let fd = match opened {
            // The flag is the only argument here that a file system rejects as invalid.
            Err(Error::System { subject, errno: libc::EINVAL }) if how.direct => {
                return Err(Error::Unsupported(subject));
            }
            other => other?,
        };
        let file = SystemFile {
            fd,
            path: path.to_owned(),
            direct: how.direct,
            counters: self.counters.clone(),
        };
        let stat = again(|| rustix::fs::fstat(&file.fd));
        let stat = stat.map_err(|errno| file.error(Operation::Open, 0, errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Error::NotRegular(Subject::new(Operation::Open, path, 0)));
        }
        let is_made = (how.create || how.fresh) && stat.st_mode & SHARED_FILE != SHARED_FILE;
        if self.shared && is_made && stat.st_uid == rustix::process::geteuid().as_raw() {
            let shared = Mode::from_raw_mode(SHARED_FILE);
            again(|| rustix::fs::fchmod(&file.fd, shared))
                .map_err(|errno| file.error(Operation::Open, 0, errno))?;
        }
        Ok(Box::new(file))
    }

    fn make_folder(&self, path: &Path) -> Result<(), Error> {
        let (folder, name) = self.place(path);
        let make = || {
            rustix::fs::mkdirat(folder, name, Mode::RWXU)?;
            match self.shared {
                true => {
                    let shared = Mode::from_raw_mode(SHARED_FOLDER);
                    rustix::fs::chmodat(folder, name, shared, AtFlags::empty())
                }
                false => Ok(()),
            }
        };
        // Not opened, because that may fail for lack of a descriptor.
        let is_folder = || {
            let about = rustix::fs::statat(folder, name, AtFlags::empty());
            about.is_ok_and(|about| FileType::from_raw_mode(about.st_mode) == FileType::Directory)
        };
        match self.call(Operation::MakeFolder, path, make) {
            Err(Error::Exists(_)) if is_folder() => Ok(()),
            other => other,
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), Error> {
        let ((old, from_name), (new, to_name)) = (self.place(from), self.place(to));
        self.call(Operation::Rename, from, || rustix::fs::renameat(old, from_name, new, to_name))
    }

    fn link(&self, from: &Path, to: &Path) -> Result<(), Error> {
        let ((old, from_name), (new, to_name)) = (self.place(from), self.place(to));
        self.call(Operation::Link, from, || {
            rustix::fs::linkat(old, from_name, new, to_name, AtFlags::empty())
        })
    }

    fn remove(&self, path: &Path) -> Result<(), Error> {
        let (folder, name) = self.place(path);
        self.call(Operation::Remove, path, || rustix::fs::unlinkat(folder, name, AtFlags::empty()))
    }

    fn list(&self, folder: &Path) -> Result<Vec<OsString>, Error> {
        let (at, name) = self.place(folder);
        self.call(Operation::List, folder, || {
            let opened = open_at(at, name, FOLDER, Mode::empty())?;
            let mut names = Vec::new();
            for entry in Dir::new(opened)? {
                let entry = entry?;
                names.push(OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
            }
            names.retain(|name| name != "." && name != "..");
            names.sort();
            Ok(names)
        })
    }

    fn sync_folder(&self, folder: &Path) -> Result<(), Error> {
        let (at, name) = self.place(folder);
        self.call(Operation::SyncFolder, folder, || {
            let fd = open_at(at, name, FOLDER, Mode::empty())?;
            rustix::fs::fsync(&fd)
        })
    }

    fn calls(&self) -> Calls {
        self.counters.get()
    }
}

/// An open file of the system.
#[derive(Debug)]
struct SystemFile {
    fd: OwnedFd,
    path: PathBuf,
    direct: bool,
    counters: Arc<Counters>,
}

impl SystemFile {
    fn subject(&self, operation: Operation, at: u64) -> Subject {
        Subject::new(operation, &self.path, at)
    }

    fn error(&self, operation: Operation, at: u64, errno: Errno) -> Error {
        Error::of(self.subject(operation, at), errno)
    }

    fn check(&self, operation: Operation, at: u64, bytes: &[u8]) -> Result<(), Error> {
        if self.direct && !is_aligned(at, bytes) {
            return Err(Error::Misaligned(self.subject(operation, at)));
        }
        Ok(())
    }

    fn call<T>(
        &self,
        operation: Operation,
        run: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Error> {
        self.counters.count(operation);
        again(run).map_err(|errno| self.error(operation, 0, errno))
    }

    /// Extends the file to at least `end` bytes with zeros. They are appended at the file's end at
    /// the time of the write, not where it was seen: other processes may have extended it in the
    /// meantime, and their writes stay.
    fn append_zeros(&self, end: u64) -> Result<(), Error> {
        let zeros = crate::Buffer::new(1 << 16);
        loop {
            let length = self.length()?;
            if length >= end {
                return Ok(());
            }
            let count = (end - length).min(zeros.len() as u64) as usize;
            let zeros = [IoSlice::new(&zeros[..count])];
            let append = ReadWriteFlags::APPEND;
            // The new end of the file is unknown.
            let append = || again(|| rustix::io::pwritev2(&self.fd, &zeros, 0, append));
            match without_signal(append) {
                Ok(0) => return Err(Error::Device(self.subject(Operation::Write, length))),
                Ok(count) => self.counters.wrote(count),
                Err(errno) => return Err(self.error(Operation::Write, length, errno)),
            }
        }
    }

    fn write_all(&self, at: u64, from: &[u8]) -> Result<(), Error> {
        let mut done = 0;
        while done < from.len() {
            let to = at + done as u64;
            match again(|| rustix::io::pwrite(&self.fd, &from[done..], to)) {
                // No device does this; one that did would do so for ever.
                Ok(0) => {
                    self.counters.wrote(done);
                    return Err(Error::Device(self.subject(Operation::Write, at)));
                }
                Ok(count) => done += count,
                Err(errno) => {
                    self.counters.wrote(done);
                    return Err(self.error(Operation::Write, at, errno));
                }
            }
        }
        self.counters.wrote(done);
        Ok(())
    }
}

impl File for SystemFile {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        self.check(Operation::Read, at, into)?;
        let mut done = 0;
        while done < into.len() {
            let from = at + done as u64;
            let read = again(|| rustix::io::pread(&self.fd, &mut into[done..], from));
            match read {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(errno) => {
                    self.counters.read(done);
                    return Err(self.error(Operation::Read, at, errno));
                }
            }
        }
        self.counters.read(done);
        if done < into.len() {
            let (wanted, got) = (into.len() as u64, done as u64);
            return Err(Error::ShortRead {
                subject: self.subject(Operation::Read, at),
                wanted,
                got,
            });
        }
        Ok(())
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), Error> {
        self.check(Operation::Write, at, from)?;
        within_limit(at.saturating_add(from.len() as u64), || self.write_all(at, from))
    }

    fn sync(&self) -> Result<(), Error> {
        self.call(Operation::Sync, || rustix::fs::fdatasync(&self.fd))
    }

    fn sync_in_doubt(&self) -> Result<(), Error> {
        self.sync()?;
        match self.call(Operation::SyncSystem, || rustix::fs::syncfs(&self.fd)) {
            Err(Error::Unsupported(_)) => Ok(()),
            other => other,
        }
    }

    fn truncate(&self, length: u64) -> Result<(), Error> {
        let cut = || rustix::fs::ftruncate(&self.fd, length);
        within_limit(length, || self.call(Operation::Truncate, cut))
    }

    fn allocate(&self, at: u64, length: u64) -> Result<(), Error> {
        if length == 0 {
            return Ok(());
        }
        let end = at.saturating_add(length);
        let allocate = || rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), at, length);
        match within_limit(end, || self.call(Operation::Allocate, allocate)) {
            Err(Error::Unsupported(_)) => self.append_zeros(end),
            other => other,
        }
    }

    fn punch(&self, at: u64, length: u64) -> Result<(), Error> {
        if length == 0 {
            return Ok(());
        }
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.call(Operation::Punch, || rustix::fs::fallocate(&self.fd, how, at, length))
    }

    fn length(&self) -> Result<u64, Error> {
        self.call(Operation::Length, || rustix::fs::fstat(&self.fd)).map(|stat| stat.st_size as u64)
    }

    fn allocated(&self) -> Result<u64, Error> {
        let stat = self.call(Operation::Length, || rustix::fs::fstat(&self.fd))?;
        // POSIX leaves the unit open; Linux counts in 512 bytes on every file system.
        Ok(stat.st_blocks as u64 * 512)
    }

    fn links(&self) -> Result<u64, Error> {
        let stat = self.call(Operation::Length, || rustix::fs::fstat(&self.fd))?;
        #[allow(clippy::unnecessary_cast, reason = "its size differs between platforms")]
        Ok(stat.st_nlink as u64)
    }

    fn next_data(&self, at: u64) -> Result<Option<u64>, Error> {
        // Moves the offset, which is not used here.
        match rustix::fs::seek(&self.fd, rustix::fs::SeekFrom::Data(at)) {
            Ok(at) => Ok(Some(at)),
            // Only a hole follows, or the end; or the offset is invalid.
            Err(Errno::NXIO) => Ok(None),
            Err(_) => Ok((at < self.length()?).then_some(at)),
        }
    }

    fn lock(&self, byte: u64, exclusive: bool) -> Result<bool, Error> {
        let Ok(start) = i64::try_from(byte) else {
            return Err(self.error(Operation::Lock, byte, Errno::INVAL));
        };
        let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
        let lock = libc::flock {
            l_type: kind as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: start,
            l_len: 1,
            l_pid: 0,
        };
        let locked = self.call(Operation::Lock, || {
            // SAFETY: a lock description that outlives the call, which changes nothing in it.
            match unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_OFD_SETLK, &lock) } {
                0 => Ok(true),
                _ => match Errno::from_io_error(&std::io::Error::last_os_error()) {
                    Some(Errno::AGAIN | Errno::ACCESS) => Ok(false),
                    other => Err(other.unwrap_or(Errno::INVAL)),
                },
            }
        });
        locked.map_err(|error| match error {
            Error::System { subject, errno: libc::EINVAL | libc::ENOLCK } => {
                Error::NoLocks(subject)
            }
            Error::Unsupported(subject) => Error::NoLocks(subject),
            other => other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a file system that cannot allocate, threads extend the file at the same time and write
    /// where room exists.
    #[test]
    fn making_room_by_hand_overwrites_nothing() {
        const PAGE: usize = 512;
        const PAGES: u64 = 400;
        let path = std::env::temp_dir().join(format!("latchwork-zeros-{}", std::process::id()));
        let system = System::new();
        for _ in 0..20 {
            let _ = std::fs::remove_file(&path);
            std::thread::scope(|scope| {
                for me in 0..4_u64 {
                    let (system, path) = (&system, &path);
                    scope.spawn(move || {
                        let fd = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
                        let fd =
                            latchwork_machine::open(path, fd, Mode::RUSR | Mode::WUSR).unwrap();
                        let counters = system.counters.clone();
                        let file = SystemFile { fd, path: path.clone(), direct: false, counters };
                        for page in (me..PAGES).step_by(4) {
                            let at = page * PAGE as u64;
                            file.append_zeros(at + PAGE as u64).unwrap();
                            file.write(at, &[page as u8 | 1; PAGE]).unwrap();
                        }
                    });
                }
            });
            let bytes = std::fs::read(&path).unwrap();
            for (page, bytes) in bytes.chunks(PAGE).take(PAGES as usize).enumerate() {
                assert!(bytes.iter().all(|byte| *byte == page as u8 | 1), "page {page} was lost");
            }
        }
        std::fs::remove_file(&path).unwrap();
    }
}

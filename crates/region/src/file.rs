//! Opening and creating the files of regions.
//!
//! A file is created without a name, filled in, and then linked to its name. So no process can open
//! an incomplete file, and a creator that is killed leaves nothing behind.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::header::{FIXED, Header, LIVE_AT};
use crate::space::extend;
use crate::{Error, Options};

const FLAGS: OFlags =
    OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Opens a file and checks its header.
///
/// The file must be regular, have one name, belong to this user unless `mode` admits others, and
/// have no permission that `mode` lacks. A symbolic link as the last part of the path is not
/// followed.
pub(crate) fn open(path: &Path, mode: u32, write: bool) -> Result<(File, Header), Error> {
    let (file, found) = open_checked(path, mode, write)?;
    let header = read_header(&file, found)?;
    Ok((file, header))
}

/// Opens a file that may be mapped: checks everything that [`open`] does except its content.
/// Returns its length.
pub(crate) fn open_checked(path: &Path, mode: u32, write: bool) -> Result<(File, u64), Error> {
    let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
    let fd = latchwork_machine::open(path, FLAGS | access, Mode::empty());
    let file = File::from(fd.map_err(|e| Error::of("open", e))?);
    let stat = rustix::fs::fstat(&file).map_err(|e| Error::of("fstat", e))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Error::NotRegular);
    }
    #[allow(clippy::unnecessary_cast, reason = "its size differs between platforms")]
    if stat.st_nlink as u64 != 1 {
        return Err(Error::HardLinked(stat.st_nlink as u64));
    }
    let shared = mode & 0o077 != 0;
    if !shared && stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Error::ForeignOwner(stat.st_uid));
    }
    if stat.st_mode & 0o777 & !(mode | 0o600) != 0 {
        return Err(Error::TooOpen(stat.st_mode & 0o777));
    }
    Ok((file, stat.st_size as u64))
}

/// Reads without mapping, so that a file that shrinks at the same time causes an error instead of a
/// signal.
fn read_header(file: &File, found: u64) -> Result<Header, Error> {
    let mut fixed = [0; FIXED];
    let truncated = |needed| Error::Truncated { needed, found };
    file.read_exact_at(&mut fixed[..FIXED.min(found as usize)], 0)
        .map_err(|_| truncated(FIXED as u64))?;
    let header = Header::decode(&fixed[..FIXED.min(found as usize)])?;
    let mut length = [0; 8];
    file.read_exact_at(&mut length, LIVE_AT as u64).map_err(|_| truncated(header.heap_at()))?;
    let length = header.check_length(u64::from_ne_bytes(length))?;
    // Read again: other processes grow the file first and then record it in the header.
    let found = file.metadata().map_or(found, |now| now.len());
    if found < length {
        return Err(Error::Truncated { needed: length, found });
    }
    Ok(header)
}

/// A region's file before it has its name.
pub(crate) struct Fresh {
    pub(crate) header: Header,
    pub(crate) name: FreshName,
}

/// The temporary name of a file: none, or a name that no process opens.
pub(crate) struct FreshName(Option<PathBuf>);

/// Creates a file of the first length, with a header, to be linked to a path that does not exist.
pub(crate) fn create(path: &Path, options: &Options) -> Result<(File, Fresh), Error> {
    let creation = random()?;
    let header = Header::new(options, creation)?;
    if options.mode & !0o777 != 0 {
        return Err(Error::Options("mode"));
    }
    // Checked before space is allocated; `link` checks again, atomically.
    if path.symlink_metadata().is_ok() {
        return Err(Error::Exists);
    }
    let (file, name) = Fresh::file(path)?;
    let bytes = header.encode();
    fill(&file, header.first_length(), &bytes, options.mode)?;
    Ok((file, Fresh { header, name }))
}

/// 16 random bytes.
pub(crate) fn random() -> Result<u128, Error> {
    let mut bytes = [0; 16];
    let flags = rustix::rand::GetRandomFlags::empty();
    rustix::rand::getrandom(&mut bytes[..], flags).map_err(|e| Error::of("getrandom", e))?;
    Ok(u128::from_ne_bytes(bytes))
}

impl Fresh {
    /// Creates a file that gets the name `path` once it is filled in.
    pub(crate) fn file(path: &Path) -> Result<(File, FreshName), Error> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let (fd, temporary) = nameless(folder, path, random()? as u64)?;
        Ok((File::from(fd), FreshName(temporary)))
    }
}

impl FreshName {
    /// Gives the file its name, unless that name exists.
    pub(crate) fn link(mut self, file: &File, path: &Path) -> Result<(), Error> {
        let done = match &self.0 {
            None => {
                let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
                rustix::fs::linkat(CWD, itself, CWD, path, AtFlags::SYMLINK_FOLLOW)
            }
            Some(name) => rustix::fs::renameat_with(CWD, name, CWD, path, RenameFlags::NOREPLACE),
        };
        done.map_err(|e| Error::of("link", e))?;
        self.0 = None;
        Ok(())
    }
}

impl Drop for FreshName {
    fn drop(&mut self) {
        if let Some(name) = &self.0 {
            let _ = rustix::fs::unlink(name);
        }
    }
}

/// Creates a file without a name or, where that is not supported, with a temporary name.
fn nameless(folder: &Path, path: &Path, id: u64) -> Result<(OwnedFd, Option<PathBuf>), Error> {
    let owner = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    // A file without a name gets one by way of `/proc`.
    let can_link = rustix::fs::stat("/proc/self/fd").is_ok();
    match latchwork_machine::open(folder, flags | OFlags::TMPFILE, owner) {
        Ok(fd) if can_link => return Ok((fd, None)),
        Ok(_) => {}
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
        Err(e) => return Err(Error::of("open", e)),
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{id:016x}"));
    let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let fd = latchwork_machine::open(name.as_os_str(), flags, owner)
        .map_err(|e| Error::of("open", e))?;
    Ok((fd, Some(name.into())))
}

/// Allocates space for a new file's first length, and writes its header and its mode.
pub(crate) fn fill(file: &File, length: u64, header: &[u8], mode: u32) -> Result<(), Error> {
    extend(file, 0, length)?;
    let written = file
        .write_all_at(&length.to_ne_bytes(), LIVE_AT as u64)
        .and_then(|()| file.write_all_at(header, 0));
    written.map_err(|e| {
        Error::of("write", Errno::from_raw_os_error(e.raw_os_error().unwrap_or(libc::EIO)))
    })?;
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode)).map_err(|e| Error::of("fchmod", e))
}

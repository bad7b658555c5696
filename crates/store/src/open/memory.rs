//! The place of a store's shared memory, and the file `region` that records it.
//!
//! Each memory is a folder with a random number in its name. The file `region` in the store's
//! folder records that name and the random number of the region. So a process finds the memory
//! through the store's own files.
//!
//! A copy of the store's folder contains the same `region`. These rules decide whether a folder
//! owns the memory:
//!
//! | the folder | result |
//! |---|---|
//! | processes hold a lock on its `live` | joined: it is the folder that they have open |
//! | its path differs from the one in `region` | refused: moved or copied |
//! | living processes use the memory but hold no lock on its `live` | refused: a copy |
//! | no process is alive, and its inode numbers are those in `region` | joined as it was left |
//! | other inode numbers, same mount namespace | the files are recovered with the memory's log |
//! | other inode numbers, other mount namespace | refused: it may be a copy in another container |
//!
//! Within one mount namespace, a path leads to one folder at a time. A folder with other inode
//! numbers has therefore replaced the first one, or lies on a file system that renumbers its files
//! (overlayfs, FUSE). Its pages may be older than the pages that the memory's processes used. The
//! log in the memory applies to them if it continues the log in the files (`Log::has_its_files`).
//! Matching inode numbers only save the recovery.
//!
//! A process that creates memory first writes its name into `region-new`. If the process is killed
//! before `region` contains the name, the next process that opens the store removes that memory.
//! `region` has the name, the next one to open the store removes that memory.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use latchwork_machine::Shared as Machine;
use latchwork_region::Options;

use super::MemoryPlace;
use super::group::file_mode;
use super::identity::random;
use super::owner::{another, of_memory};
use super::text_file::{read_file, replace_file, write_file};
use crate::error::refused;
use crate::{Error, Refusal};

type Region = latchwork_region::Region<Machine>;

/// Where shared memory is created.
pub(crate) const SHM: &str = "/dev/shm";
/// Prefix of the folders' names there.
pub(crate) const PREFIX: &str = "latchwork-";
/// The areas of a store's region.
const AREAS: [&str; 6] = ["log", "store", "pool-head", "pool-xlat", "pool-desc", "pool-frames"];
/// An upper bound on the number of files and folders of one memory.
const FILES: u64 = 16;
/// The file in such a folder that names the store.
pub(crate) const OF: &str = "store";

/// Returns the id of the current boot; empty if it cannot be read.
fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Returns the free bytes of `/dev/shm`, or 0 if this user cannot create files there.
pub(super) fn room() -> u64 {
    use rustix::fs::{Access, AtFlags, CWD, StatVfs, StatVfsMountFlags, accessat, statvfs};
    use rustix::io::Errno;

    let may = Access::WRITE_OK | Access::EXEC_OK;
    // A file system without a limit on files reports 0.
    let has_files = |fs: &StatVfs| fs.f_files == 0 || fs.f_favail >= FILES;
    let can = |fs: &StatVfs| {
        !fs.f_flag.contains(StatVfsMountFlags::RDONLY)
            && has_files(fs)
            // If the kernel does not support the check, try.
            && !matches!(accessat(CWD, SHM, may, AtFlags::EACCESS), Err(Errno::ACCESS))
    };
    statvfs(SHM).ok().filter(can).map_or(0, |fs| fs.f_bavail * fs.f_frsize)
}

/// Returns a new folder's path in `/dev/shm` for the memory of this store.
pub(super) fn new_memory(id: &str) -> std::io::Result<PathBuf> {
    let number = random()?;
    Ok(Path::new(SHM).join(format!("{PREFIX}{id}-{}", &number[..16])))
}

/// Returns the mount namespace of this process; 0 if it cannot be read.
fn mounts() -> u64 {
    fs::metadata("/proc/self/ns/mnt").map_or(0, |about| about.ino())
}

/// The contents of a file `region`.
pub(crate) struct RecordedMemory {
    /// Whether the machine has not restarted since, as far as this process can see.
    pub(crate) now: bool,
    /// The folder of the memory.
    pub(crate) at: PathBuf,
    /// The store's folder.
    pub(crate) of: PathBuf,
    /// The random number of the region. Another container may have older memory at the same path.
    pub(super) creation: u128,
    /// The inodes of the store's folder and files.
    files: Files,
}

/// The inode numbers of a store's folder, of its `data`, and of its region if that lies in the
/// folder; and the mount namespace in which the folder has its path.
struct Files {
    folder: u64,
    data: u64,
    region: u64,
    mounts: u64,
}

impl Files {
    /// Returns whether the files are the same, in whatever namespace.
    fn is_of(&self, other: &Self) -> bool {
        let numbers = |files: &Self| [files.folder, files.data, files.region];
        numbers(self) == numbers(other)
    }

    fn of(path: &Path, at: &Path) -> std::io::Result<Self> {
        let region = match at == path.join("memory") {
            true => fs::metadata(at.join("region"))?.ino(),
            false => 0,
        };
        let inode = |path: &Path| fs::metadata(path).map(|about| about.ino());
        let (folder, data) = (inode(path)?, inode(&path.join("data"))?);
        Ok(Self { folder, data, region, mounts: mounts() })
    }
}

/// Reads the file `region` of a folder; `None` if it does not exist.
pub(crate) fn recorded_memory(path: &Path) -> Result<Option<RecordedMemory>, Error> {
    let damaged = |what| refused(path, Refusal::Damaged { file: "region", what });
    let bytes = match read_file(&path.join("region")) {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(None),
        Err(why) if why.kind() == ErrorKind::InvalidData => {
            return Err(damaged("it is not a file: move it away"));
        }
        other => other.map_err(|why| refused(path, why))?,
    };
    let text = String::from_utf8(bytes);
    let text = text.map_err(|_| damaged("it is not text; run `forget-memory` to use the files"))?;
    parse(&text).map(Some).map_err(|why| refused(path, why))
}

pub(super) fn parse(text: &str) -> Result<RecordedMemory, Refusal> {
    let mut lines = text.lines();
    let (boot_then, at, of) = (lines.next(), lines.next(), lines.next());
    let creation = lines.next().and_then(|number| u128::from_str_radix(number, 16).ok());
    let files = lines.next().and_then(|files| {
        let mut files = files.split(' ').map(str::parse::<u64>);
        let mut next = || files.next()?.ok();
        let (folder, data, region) = (next()?, next()?, next()?);
        Some(Files { folder, data, region, mounts: next()? })
    });
    let (Some(boot_then), Some(at), Some(of), Some(creation), Some(files)) =
        (boot_then, at, of, creation, files)
    else {
        let what = "it is cut off; run `forget-memory` to use the files alone";
        return Err(Refusal::Damaged { file: "region", what });
    };
    let boot = boot();
    let now = boot == boot_then || boot.is_empty() || boot_then.is_empty();
    let (at, of) = (PathBuf::from(at), PathBuf::from(of));
    Ok(RecordedMemory { now, at, of, creation, files })
}

/// Writes the file `region`, which announces the memory.
pub(super) fn tell(path: &Path, at: &Path, creation: u128) -> std::io::Result<()> {
    let Files { folder, data, region, mounts } = Files::of(path, at)?;
    let (boot, at, path_of) = (boot(), at.display(), path.display());
    let files = format!("{folder} {data} {region} {mounts}");
    replace_file(path, "region", &format!("{boot}\n{at}\n{path_of}\n{creation:032x}\n{files}\n"))
}

/// Records where memory will be created, before it is.
pub(super) fn announce(path: &Path, at: &Path) -> std::io::Result<()> {
    let (boot, at, path_of) = (boot(), at.display(), path.display());
    write_file(&path.join("region-new"), &format!("{boot}\n{at}\n{path_of}\n")).map(drop)
}

/// Returns the folders that may contain memory of the store in a folder, usable or not.
pub(super) fn places(path: &Path, id: &str) -> Vec<PathBuf> {
    let said = ["region", "region-new"].map(|name| {
        let text = String::from_utf8(read_file(&path.join(name)).ok()?).ok()?;
        let mut lines = text.lines().skip(1);
        let (at, of) = (PathBuf::from(lines.next()?), lines.next()?);
        (Path::new(of) == path && is_place(&at, path, id)).then_some(at)
    });
    let mut places: Vec<_> = said.into_iter().flatten().collect();
    places.push(path.join("memory"));
    places.dedup();
    places
}

/// Returns the store's folder that the file `store` of a memory names; `None` if the process died
/// while it wrote the file.
pub(crate) fn store_of(at: &Path) -> Option<PathBuf> {
    let text = String::from_utf8(read_file(&at.join(OF)).ok()?).ok()?;
    Some(PathBuf::from(text.strip_suffix('\n')?.lines().next()?))
}

/// Returns the folders of this user in `/dev/shm` that name the store in this folder. Memory that
/// no file of the store names may belong to a store at the same path in another container.
pub(super) fn named_for(path: &Path, id: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(SHM).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_for = |at: &PathBuf| store_of(at).is_some_and(|store| store == path);
    // Any user can write any name there.
    entries.filter(|at| is_place(at, path, id) && another(at).is_none() && is_for(at)).collect()
}

/// Returns whether a path may contain memory of the store in this folder.
pub(crate) fn is_place(at: &Path, path: &Path, id: &str) -> bool {
    let is_of = |name: &str| name.starts_with(&format!("{PREFIX}{id}-"));
    let is_in_shm = at.parent() == Some(Path::new(SHM));
    let is_of = at.file_name().and_then(|name| name.to_str()).is_some_and(is_of);
    is_in_shm && is_of || at == path.join("memory")
}

/// Returns where the shared memory is, if it is from the current boot.
fn region_of(path: &Path, id: &str) -> Result<Option<(PathBuf, Files)>, Error> {
    let Some(recorded) = recorded_memory(path)?.filter(|recorded| recorded.now) else {
        return Ok(None);
    };
    if recorded.of != path {
        return Err(refused(path, Refusal::Elsewhere { path: recorded.of }));
    }
    if !is_place(&recorded.at, path, id) {
        let what = "it names memory that is not this store's";
        return Err(refused(path, Refusal::Damaged { file: "region", what }));
    }
    Ok(Some((recorded.at, recorded.files)))
}

/// Memory that processes use, or that they left.
#[derive(Debug)]
pub(crate) struct Left {
    /// The folder of the memory.
    pub(crate) at: PathBuf,
    /// Whether the files are known to be the ones of those processes.
    pub(super) same: bool,
}

/// Returns the memory that processes use or left intact, if it exists on this machine. If all
/// processes are dead, the existence of the files is not sufficient: see [`Region::is_as_left`].
pub(super) fn memory_left(path: &Path, id: &str, alive: bool) -> Result<Option<Left>, Error> {
    let Some((at, files)) = region_of(path, id)? else { return Ok(None) };
    // Memory that this user cannot inspect exists: it belongs to another user, and its contents
    // must not be lost.
    if !at.join("region").try_exists().map_err(|why| of_memory(&at, why))? {
        return Ok(None);
    }
    // Living processes hold a lock on a file of this folder.
    let now = Files::of(path, &at).ok();
    let same = alive || now.as_ref().is_some_and(|now| now.is_of(&files));
    let may_be = |now: &Files| now.mounts == files.mounts && now.mounts != 0;
    if !same && !now.is_some_and(|now| may_be(&now) && now.region == files.region) {
        let what = "the folder, or its `data`, was replaced by a copy: restore the original; or \
                    run `forget-memory` to use the files alone";
        return Err(refused(path, Refusal::Damaged { file: "region", what }));
    }
    // The reason why a region cannot be opened is reported when it is joined.
    let options = Options { mode: file_mode(path), ..Options::default() };
    let as_left = || Region::is_as_left(at.join("region"), &options).unwrap_or(true);
    Ok((alive || as_left()).then_some(Left { at, same }))
}

/// Removes shared memory, or the part of it that a killed process left. If the folder contains any
/// other file, removes nothing and returns that file's name.
pub(crate) fn remove_memory(path: &Path) -> std::io::Result<Option<OsString>> {
    let about = match fs::symlink_metadata(path) {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    if !about.is_dir() {
        return Ok(path.file_name().map(OsString::from));
    }
    let entries = fs::read_dir(path)?.collect::<Result<Vec<_>, _>>()?;
    for entry in &entries {
        let name = entry.file_name();
        if !entry.file_type()?.is_file() || !name.to_str().is_some_and(is_ours) {
            return Ok(Some(name));
        }
    }
    // Another process may have removed the file.
    let gone = |done: std::io::Result<()>| match done {
        Err(why) if why.kind() != ErrorKind::NotFound => Err(why),
        _ => Ok(()),
    };
    entries.iter().try_for_each(|entry| gone(fs::remove_file(entry.path())))?;
    gone(fs::remove_dir(path))?;
    Ok(None)
}

/// Returns whether shared memory has a file of this name: the region, an area of it (named by the
/// region's number), either of them under its temporary name, or the file that names the store.
fn is_ours(name: &str) -> bool {
    let is_hex =
        |text: &str, digits| text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
    let is_file = |name: &str| match name.split_once('.') {
        None => [OF, "region"].contains(&name),
        Some((number, area)) => is_hex(number, 32) && AREAS.contains(&area),
    };
    is_file(name)
        || name.rsplit_once('.').is_some_and(|(name, end)| is_hex(end, 16) && is_file(name))
}

/// Returns whether to create memory in `/dev/shm`, given its free space and the size of the memory.
pub(super) fn is_in_memory(place: MemoryPlace, room: u64, needed: u64) -> bool {
    match place {
        MemoryPlace::Memory => true,
        MemoryPlace::Folder => false,
        MemoryPlace::Auto => room >= needed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::inner::Sizes;

    #[test]
    fn memory_goes_beside_the_data_where_there_is_no_room() {
        let needed = Sizes::default().memory();
        assert!(is_in_memory(MemoryPlace::Auto, needed, needed));
        assert!(!is_in_memory(MemoryPlace::Auto, 64 << 20, needed), "as containers have it");
        assert!(is_in_memory(MemoryPlace::Memory, 0, needed));
        assert!(!is_in_memory(MemoryPlace::Folder, u64::MAX, needed));
    }
}

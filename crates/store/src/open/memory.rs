//! Where a store's shared memory lies, and the file `region` that says so.
//!
//! Each memory has a folder of its own, whose name has a random number. The file `region` of the
//! store has that name and the number of the region, which is random as well. So memory is found
//! by what the store's own files hold.
//!
//! A copy of the store's folder holds the same. What decides whether it has the memory:
//!
//! | the folder | what happens |
//! |---|---|
//! | processes have locked its `live` | it is the one that they have open: joined |
//! | it has another path than `region` says | refused: moved, or a copy |
//! | living processes have the memory and have not locked its `live` | refused: a copy |
//! | no process lives, and its inode numbers are those that `region` says | joined as it was left |
//! | other inode numbers, same mount namespace | the files are recovered, with its log |
//! | other numbers, another mount namespace | refused: it may be a copy in another container |
//!
//! In one mount namespace a path leads to one folder at a time. So a folder with other inode
//! numbers has replaced the first one, or is on a file system that numbers its files anew
//! (overlayfs, FUSE). Its pages may be older than the memory's processes knew; what the log in
//! the memory has is right for them, if the log in the files is the one that the memory goes on
//! from (`Log::has_its_files`). So inode numbers only save the recovery.
//!
//! A process that makes memory first writes the name into `region-new`. If it is killed before
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

/// Where shared memory lies.
pub(crate) const SHM: &str = "/dev/shm";
/// What the folders there are named by.
pub(crate) const PREFIX: &str = "latchwork-";
/// The areas of a store's region.
const AREAS: [&str; 6] = ["log", "store", "pool-head", "pool-xlat", "pool-desc", "pool-frames"];
/// How many files and folders a store's memory is, and some more.
const FILES: u64 = 16;
/// The file of such a folder that says of which store it is.
pub(crate) const OF: &str = "store";

/// Which start of the machine this is; nothing where that is not to be seen.
fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Free bytes of `/dev/shm`, as far as this user may make files there.
pub(super) fn room() -> u64 {
    use rustix::fs::{Access, AtFlags, CWD, StatVfs, StatVfsMountFlags, accessat, statvfs};
    use rustix::io::Errno;

    let may = Access::WRITE_OK | Access::EXEC_OK;
    // One without a limit of files says that it has none.
    let has_files = |fs: &StatVfs| fs.f_files == 0 || fs.f_favail >= FILES;
    let can = |fs: &StatVfs| {
        !fs.f_flag.contains(StatVfsMountFlags::RDONLY)
            && has_files(fs)
            // Where the system does not know the question, it is tried.
            && !matches!(accessat(CWD, SHM, may, AtFlags::EACCESS), Err(Errno::ACCESS))
    };
    statvfs(SHM).ok().filter(can).map_or(0, |fs| fs.f_bavail * fs.f_frsize)
}

/// A new folder's name in `/dev/shm` for memory of this store.
pub(super) fn new_memory(id: &str) -> std::io::Result<PathBuf> {
    let number = random()?;
    Ok(Path::new(SHM).join(format!("{PREFIX}{id}-{}", &number[..16])))
}

/// The mount namespace of this process; 0 if that is not to be seen.
fn mounts() -> u64 {
    fs::metadata("/proc/self/ns/mnt").map_or(0, |about| about.ino())
}

/// What a folder's file `region` says.
pub(crate) struct RecordedMemory {
    /// Whether the machine was not started again since, as far as that is to be seen.
    pub(crate) now: bool,
    /// Where the memory is.
    pub(crate) at: PathBuf,
    /// Of which folder.
    pub(crate) of: PathBuf,
    /// The number of its region: the same place may have other memory in another container, of
    /// an earlier time.
    pub(super) creation: u128,
    /// Which folder has that path, and which files are there.
    files: Files,
}

/// The inodes of a store's folder, of its pages, and of the region that lies there, if it does;
/// and the mount namespace in which the folder has its path.
struct Files {
    folder: u64,
    data: u64,
    region: u64,
    mounts: u64,
}

impl Files {
    /// Whether they are the same files, in whichever namespace.
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

/// Reads a folder's file `region`; none if there is none.
pub(crate) fn told(path: &Path) -> Result<Option<RecordedMemory>, Error> {
    let damaged = |what| refused(path, Refusal::Damaged { file: "region", what });
    let bytes = match read_file(&path.join("region")) {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(None),
        Err(why) if why.kind() == ErrorKind::InvalidData => {
            return Err(damaged("it is no file: move it away"));
        }
        other => other.map_err(|why| refused(path, why))?,
    };
    let text = String::from_utf8(bytes);
    let text = text.map_err(|_| damaged("it is no text; `forget-memory` has the files count"))?;
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
        let what = "it is cut off; `forget-memory` has the files alone count";
        return Err(Refusal::Damaged { file: "region", what });
    };
    let boot = boot();
    let now = boot == boot_then || boot.is_empty() || boot_then.is_empty();
    let (at, of) = (PathBuf::from(at), PathBuf::from(of));
    Ok(RecordedMemory { now, at, of, creation, files })
}

/// Has a folder's file `region` say that its memory is there, from now on.
pub(super) fn tell(path: &Path, at: &Path, creation: u128) -> std::io::Result<()> {
    let Files { folder, data, region, mounts } = Files::of(path, at)?;
    let (boot, at, path_of) = (boot(), at.display(), path.display());
    let files = format!("{folder} {data} {region} {mounts}");
    replace_file(path, "region", &format!("{boot}\n{at}\n{path_of}\n{creation:032x}\n{files}\n"))
}

/// Says where memory is going to be, before it is made.
pub(super) fn announce(path: &Path, at: &Path) -> std::io::Result<()> {
    let (boot, at, path_of) = (boot(), at.display(), path.display());
    write_file(&path.join("region-new"), &format!("{boot}\n{at}\n{path_of}\n")).map(drop)
}

/// The folders that may have memory of the store in a folder, whether it is of use or not.
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

/// The store that the file `store` of memory names; none if its process died as it wrote the file.
pub(crate) fn store_of(at: &Path) -> Option<PathBuf> {
    let text = String::from_utf8(read_file(&at.join(OF)).ok()?).ok()?;
    Some(PathBuf::from(text.strip_suffix('\n')?.lines().next()?))
}

/// The folders of this user in `/dev/shm` that say that they are of the store in this folder.
/// What no file of the store names may be another one's, of the same path in another container.
pub(super) fn named_for(path: &Path, id: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(SHM).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_for = |at: &PathBuf| store_of(at).is_some_and(|store| store == path);
    // Any user may say anything there.
    entries.filter(|at| is_place(at, path, id) && another(at).is_none() && is_for(at)).collect()
}

/// Whether memory of the store in this folder may be there, whatever number its file system had
/// when it was made.
pub(super) fn is_place(at: &Path, path: &Path, id: &str) -> bool {
    let is_of = |name: &str| name.starts_with(&format!("{PREFIX}{id}-"));
    let is_in_shm = at.parent() == Some(Path::new(SHM));
    let is_of = at.file_name().and_then(|name| name.to_str()).is_some_and(is_of);
    is_in_shm && is_of || at == path.join("memory")
}

/// Where the shared memory is, if it is of this start of the machine.
fn region_of(path: &Path, id: &str) -> Result<Option<(PathBuf, Files)>, Error> {
    let Some(told) = told(path)?.filter(|told| told.now) else { return Ok(None) };
    if told.of != path {
        return Err(refused(path, Refusal::Elsewhere { path: told.of }));
    }
    if !is_place(&told.at, path, id) {
        let what = "it names memory that is not this store's";
        return Err(refused(path, Refusal::Damaged { file: "region", what }));
    }
    Ok(Some((told.at, told.files)))
}

/// Memory that processes have, or left.
#[derive(Debug)]
pub(crate) struct Left {
    /// Where.
    pub(crate) at: PathBuf,
    /// Whether the files are known to be those that its processes had.
    pub(super) same: bool,
}

/// Memory that processes have, or left as it is, if this machine has it. If all are dead it is
/// not enough that its files are there: see [`Region::is_as_left`].
pub(super) fn memory_left(path: &Path, id: &str, alive: bool) -> Result<Option<Left>, Error> {
    let Some((at, files)) = region_of(path, id)? else { return Ok(None) };
    // What this user may not look at is there: another one's, and what it has is not to be lost.
    if !at.join("region").try_exists().map_err(|why| of_memory(&at, why))? {
        return Ok(None);
    }
    // The lock of the living is on a file of this folder.
    let now = Files::of(path, &at).ok();
    let same = alive || now.as_ref().is_some_and(|now| now.is_of(&files));
    let may_be = |now: &Files| now.mounts == files.mounts && now.mounts != 0;
    if !same && !now.is_some_and(|now| may_be(&now) && now.region == files.region) {
        let what = "the folder, or its `data`, is a copy that was put in its place since: put \
                    back what was there; or `forget-memory` has the files alone count";
        return Err(refused(path, Refusal::Damaged { file: "region", what }));
    }
    // Why a region cannot be opened is told where it is joined.
    let options = Options { mode: file_mode(path), ..Options::default() };
    let as_left = || Region::is_as_left(at.join("region"), &options).unwrap_or(true);
    Ok((alive || as_left()).then_some(Left { at, same }))
}

/// Takes shared memory away, or a part of it, as a death leaves it. What is no file of it is a
/// user's, and stays, and all that is beside it: says its name.
pub(crate) fn take_away(path: &Path) -> std::io::Result<Option<OsString>> {
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
    // One that is gone was taken away by another.
    let gone = |done: std::io::Result<()>| match done {
        Err(why) if why.kind() != ErrorKind::NotFound => Err(why),
        _ => Ok(()),
    };
    entries.iter().try_for_each(|entry| gone(fs::remove_file(entry.path())))?;
    gone(fs::remove_dir(path))?;
    Ok(None)
}

/// Whether a file of shared memory has such a name: the region, an area of it, which is named by
/// its number; either before it has its name, on some file systems; and the one that says whose
/// it is.
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

/// Whether memory goes to `/dev/shm`, which has so much room, where it needs so much.
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

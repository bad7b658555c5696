//! Where a store's shared memory lies, and the file `region` that says so.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Place;
use super::text_file::replace_file;
use crate::error::refused;
use crate::{Error, Refusal};

/// Where shared memory lies.
pub(crate) const SHM: &str = "/dev/shm";
/// What the folders there are named by.
pub(crate) const PREFIX: &str = "latchwork-";
/// The file of such a folder that says of which store it is.
pub(crate) const OF: &str = "store";

/// Which start of the machine this is.
fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Free bytes of `/dev/shm`.
pub(super) fn room() -> u64 {
    rustix::fs::statvfs(SHM).map_or(0, |fs| fs.f_bavail * fs.f_frsize)
}

/// The folder in `/dev/shm` of the store in this folder: another of the same number, which is a
/// copy of it, has another.
pub(super) fn memory_of(path: &Path, id: &str) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;

    let inode = fs::metadata(path).map_or(0, |about| about.ino());
    // FNV-1a, 64 bits.
    let bytes = path.as_os_str().as_bytes().iter().copied().chain(inode.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    Path::new(SHM).join(format!("{PREFIX}{id}-{hash:016x}"))
}

/// What a folder's file `region` says.
pub(crate) struct Told {
    /// Whether the machine was not started again since.
    pub(crate) now: bool,
    /// Where the memory is.
    pub(crate) at: PathBuf,
    /// Of which folder.
    pub(crate) of: PathBuf,
    /// The number of its region: the same place may have other memory in another container, of
    /// an earlier time.
    pub(super) creation: u128,
}

/// Reads a folder's file `region`; none if there is none.
pub(crate) fn told(path: &Path) -> Result<Option<Told>, Error> {
    let text = match fs::read_to_string(path.join("region")) {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|why| refused(path, why))?,
    };
    parse(&text).map(Some).map_err(|why| refused(path, why))
}

pub(super) fn parse(text: &str) -> Result<Told, Refusal> {
    let mut lines = text.lines();
    let (boot_then, at, of) = (lines.next(), lines.next(), lines.next());
    let creation = lines.next().and_then(|number| u128::from_str_radix(number, 16).ok());
    let (Some(boot_then), Some(at), Some(of), Some(creation)) = (boot_then, at, of, creation)
    else {
        let what = "it is cut off; `forget-memory` has the files alone count";
        return Err(Refusal::Damaged { file: "region", what });
    };
    Ok(Told { now: boot_then == boot(), at: PathBuf::from(at), of: PathBuf::from(of), creation })
}

/// Has a folder's file `region` say that its memory is there, from now on.
pub(super) fn tell(path: &Path, at: &Path, creation: u128) -> std::io::Result<()> {
    let (boot, at, path_of) = (boot(), at.display(), path.display());
    let text = format!("{boot}\n{at}\n{path_of}\n{creation:032x}\n");
    replace_file(path, "region", &text)
}

/// Where the shared memory is, if it is of this start of the machine.
fn region_of(path: &Path, id: &str) -> Result<Option<PathBuf>, Error> {
    let Some(told) = told(path)?.filter(|told| told.now) else { return Ok(None) };
    if told.of != path {
        return Err(refused(path, Refusal::Elsewhere { path: told.of }));
    }
    if told.at != memory_of(path, id) && told.at != path.join("memory") {
        let what = "it names memory that is not this store's";
        return Err(refused(path, Refusal::Damaged { file: "region", what }));
    }
    Ok(Some(told.at))
}

/// Where memory is that processes left or have, if this machine has it.
pub(super) fn memory_left(path: &Path, id: &str) -> Result<Option<PathBuf>, Error> {
    let Some(at) = region_of(path, id)? else { return Ok(None) };
    // What this user may not look at is there: another one's, and what it has is not to be lost.
    let there = at.join("region").try_exists().map_err(|why| refused(&at, why))?;
    Ok(there.then_some(at))
}

/// Whether nothing is at this path but shared memory, or a part of it, as a death leaves it.
pub(super) fn is_memory(path: &Path) -> std::io::Result<bool> {
    let entries = match fs::read_dir(path) {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(true),
        Err(why) if why.kind() == ErrorKind::NotADirectory => return Ok(false),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        // An area is named by its region's number.
        let is_area = |name: &str| {
            let (number, rest) = name.split_at_checked(32).unwrap_or_default();
            rest.starts_with('.') && number.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let is_ours = |name: &str| name == OF || name.starts_with("region") || is_area(name);
        if !entry.file_type()?.is_file() || !name.to_str().is_some_and(is_ours) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether memory goes to `/dev/shm`, which has so much room, where it needs so much.
pub(super) fn is_in_memory(place: Place, room: u64, needed: u64) -> bool {
    match place {
        Place::Memory => true,
        Place::Beside => false,
        Place::Auto => room >= needed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::home::Sizes;

    #[test]
    fn memory_goes_beside_the_data_where_there_is_no_room() {
        let needed = Sizes::default().memory();
        assert!(is_in_memory(Place::Auto, needed, needed));
        assert!(!is_in_memory(Place::Auto, 64 << 20, needed), "as containers have it");
        assert!(is_in_memory(Place::Memory, 0, needed));
        assert!(!is_in_memory(Place::Beside, u64::MAX, needed));
    }
}

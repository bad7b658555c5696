//! Shared memory in `/dev/shm` that no process has open and whose store's folder was removed.
//!
//! It is removed when the same user opens any store. The file `store` in the memory contains the
//! path of the store's folder, and the device and inode numbers of each folder above it. Memory is
//! abandoned if all of this holds:
//!
//! - It belongs to this user and names its store.
//! - No process holds a slot of its region, in any namespace, or it has no region.
//! - The store's folder does not exist, and the nearest existing folder above it has the recorded
//!   numbers.
//!
//! The last rule distinguishes a removed folder from a folder that this process does not see: a
//! disk that is not mounted, or a folder of another mount namespace, lies below a folder with other
//! numbers. Such memory stays. The memory of a folder on a file system whose inode numbers change
//! also stays, and so does the memory of a store that was renamed within its parent folder. A
//! folder that was moved elsewhere counts as removed. The folder of a new store exists before its
//! memory.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use latchwork_machine::Shared as Machine;
use latchwork_region::{Error as RegionError, Options, Region};

use super::memory::{OF, PREFIX, SHM, remove_memory};
use super::owner::another;
use super::text_file::read_file;

/// Returns the text of the file `store` for the memory of the store in this folder.
pub(super) fn note_of(path: &Path) -> String {
    let around = path.ancestors().skip(1).map(|around| numbers(around).unwrap_or_default());
    format!("{}\n{}\n", path.display(), around.collect::<Vec<_>>().join(" "))
}

/// Returns device and inode number.
fn numbers(path: &Path) -> Option<String> {
    fs::symlink_metadata(path).ok().map(|about| format!("{}:{}", about.dev(), about.ino()))
}

/// Removes abandoned memory. Memory that cannot be removed now stays for the next process.
pub(super) fn remove_abandoned() {
    let entries = fs::read_dir(SHM).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    for at in ours.map(|entry| entry.path()).filter(|at| another(at).is_none()) {
        if is_abandoned(&at) {
            let _ = remove_memory(&at);
        }
    }
}

fn is_abandoned(at: &Path) -> bool {
    is_removed(at).is_some_and(|removed| removed) && is_unused(at)
}

/// Returns whether the store of this memory may exist where this process does not see it: no store
/// exists at its path, and its folder is not known to have been removed.
pub(crate) fn may_be_elsewhere(at: &Path, store: &Path) -> bool {
    is_absent(&store.join("identity")) && is_removed(at) != Some(true)
}

/// Returns whether the store's folder was removed; `None` if that is unknown.
fn is_removed(at: &Path) -> Option<bool> {
    let text = String::from_utf8(read_file(&at.join(OF)).ok()?).ok()?;
    let (path, numbers_then) = text.strip_suffix('\n')?.split_once('\n')?;
    let path = Path::new(path);
    if !is_absent(path) {
        return Some(false);
    }
    if is_renamed(at, path) {
        return Some(false);
    }
    let around = path.ancestors().skip(1).zip(numbers_then.split(' '));
    for (around, then) in around.filter(|(_, then)| !then.is_empty()) {
        if !is_absent(around) {
            return Some(numbers(around).as_deref() == Some(then));
        }
    }
    None
}

/// Returns whether a folder next to the store's path names this memory: the store's own folder
/// under another name, or a copy without its own memory.
fn is_renamed(memory: &Path, path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;

    let names_it = |folder: &Path| {
        let region = read_file(&folder.join("region")).unwrap_or_default();
        region.split(|byte| *byte == b'\n').nth(1) == Some(memory.as_os_str().as_bytes())
    };
    let entries = path.parent().and_then(|around| fs::read_dir(around).ok());
    entries.into_iter().flatten().flatten().any(|entry| names_it(&entry.path()))
}

fn is_absent(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|why| why.kind() == ErrorKind::NotFound)
}

/// Returns whether no living process uses the memory, as far as it can be inspected.
fn is_unused(at: &Path) -> bool {
    let options = Options { mode: 0o777, ..Options::default() };
    match Region::<Machine>::view(at.join("region"), &options) {
        Ok(region) => region.processes().iter().all(|process| !process.alive),
        Err(why) => why == RegionError::NotFound,
    }
}

//! Shared memory that killed processes left.
//!
//! The memory of a store outlives its processes, so that the next process that opens the store
//! finds their commits. If the store is never opened again, because its folder was removed, the
//! memory stays until the machine stops. These functions find such memory and remove it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use latchwork_machine::Shared as Machine;
use latchwork_region::{Options, Region};

use crate::error::refused;
use crate::files::inner::Sizes;
use crate::open::{PREFIX, SHM, at_rest, at_rest_within, is_place, may_be_elsewhere};
use crate::open::{of_memory, recorded_memory, remove_memory, store_of};
use crate::{Error, Refusal};

/// A store's memory in `/dev/shm`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedMemoryInfo {
    /// The folder.
    pub at: PathBuf,
    /// The folder of its store, if it can be read.
    pub store: Option<PathBuf>,
    /// The size of its files in bytes.
    pub bytes: u64,
    /// The living processes that have it open.
    pub processes: Vec<u32>,
    /// Whether its store may still need it: the store names this memory, or its `region` cannot be
    /// read, or its folder is not visible from here and was not removed. Such a folder may be on a
    /// disk that is not mounted, or in another mount namespace.
    pub needed: bool,
}

/// Lists the shared memory of stores in `/dev/shm`, ordered by name. Omits memory of other users
/// that cannot be read.
pub fn list_shared_memory() -> Vec<SharedMemoryInfo> {
    let entries = fs::read_dir(SHM).into_iter().flatten().filter_map(Result::ok);
    let folders = entries.filter(|entry| {
        entry.file_name().to_string_lossy().starts_with(PREFIX) && entry.path().is_dir()
    });
    let mut found: Vec<_> = folders.filter_map(|entry| look(&entry.path())).collect();
    found.sort_by(|one, other| one.at.cmp(&other.at));
    found
}

/// Describes a folder of memory; `None` if it cannot be read.
fn look(at: &Path) -> Option<SharedMemoryInfo> {
    let files = fs::read_dir(at).ok()?.filter_map(Result::ok);
    let bytes = files.filter_map(|file| file.metadata().ok()).map(|about| about.len()).sum();
    let store = store_of(at);
    let options = Options { mode: 0o777, ..Options::default() };
    let region = Region::<Machine>::view(at.join("region"), &options);
    let alive = region.map(|region| region.processes()).unwrap_or_default();
    let processes = alive.iter().filter(|process| process.alive).map(|process| process.pid);
    let processes = processes.collect();
    // If the store's `region` cannot be read, it may name this memory.
    let needs = |store: &PathBuf| match recorded_memory(store) {
        Ok(Some(recorded)) => recorded.now && recorded.at == at,
        Ok(None) => may_be_elsewhere(at, store),
        Err(_) => true,
    };
    let needed = store.as_ref().is_some_and(needs);
    Some(SharedMemoryInfo { at: at.to_owned(), store, bytes, processes, needed })
}

/// Removes the shared memory that killed processes left of the store in a folder. The next open
/// recovers the store from its files alone: commits that were not synced are lost, as in a crash of
/// the machine. If the folder was copied or moved together with its memory, the memory of the other
/// folder stays, and this folder no longer names it. Returns how many bytes were removed.
///
/// # Errors
///
/// [`Error::Open`]: [`Refusal::InUse`] if processes have the store open; [`Refusal::OtherFolder`]
/// if they have a copy of it open; [`Refusal::BeingOpened`] if a process opens or closes it for ten
/// seconds; [`Refusal::NotMemory`] if the memory's folder holds a file of another kind: the folder
/// stays, and the store no longer names it.
pub fn discard_shared_memory(path: impl AsRef<Path>) -> Result<u64, Error> {
    let held = at_rest(path.as_ref(), &mut Sizes::default())?;
    let said = |why: std::io::Error| refused(&held.path, why);
    let all = held.places();
    let about: Vec<_> = all.iter().filter_map(|at| look(at)).collect();
    if about.iter().any(|found| !found.processes.is_empty()) {
        return Err(refused(&held.path, Refusal::OtherFolder));
    }
    // First: a process killed after this must not leave the store with a part of its memory.
    match fs::remove_file(held.path.join("region")) {
        Err(why) if why.kind() != std::io::ErrorKind::NotFound => return Err(said(why)),
        _ => {}
    }
    for at in &all {
        if let Some(name) = remove_memory(at).map_err(|why| of_memory(at, why))? {
            return Err(refused(at, Refusal::NotMemory { name }));
        }
    }
    Ok(about.iter().map(|found| found.bytes).sum())
}

/// The age after which a folder without memory counts as left by a killed process. A living process
/// names its store in a new folder at once.
const OLD: Duration = Duration::from_secs(600);

/// Returns whether a folder contains no memory because its process was killed before it created
/// any.
fn is_bare(at: &Path) -> bool {
    let made = fs::metadata(at).and_then(|about| about.modified());
    let is_old = made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > OLD));
    is_old && at.join("region").try_exists().is_ok_and(|there| !there)
}

/// Removes memory that no living process has open and that no store [needs]: its store's folder
/// was removed, or names other memory. Also removes empty folders for memory, ten minutes after
/// they were made. Returns a description of each that was removed.
///
/// The memory of a store that this process does not see stays: see [`discard_shared_memory`] for a
/// store whose path is known.
///
/// [needs]: SharedMemoryInfo::needed
pub fn discard_abandoned_memory() -> Vec<SharedMemoryInfo> {
    let mut gone = Vec::new();
    for found in list_shared_memory() {
        if found.needed || !found.processes.is_empty() {
            continue;
        }
        let Some(store) = found.store.clone() else {
            if is_bare(&found.at) && remove_memory(&found.at).is_ok_and(|others| others.is_none()) {
                gone.push(found);
            }
            continue;
        };
        // No process can open the store while this checks again. A store that is being opened is
        // skipped.
        let held = match at_rest_within(&store, &mut Sizes::default(), Duration::ZERO) {
            Ok(held) if is_place(&found.at, &held.path, &held.id) => Some(held),
            Err(Error::Open { why: Refusal::NoStore, .. }) => None,
            // It is another store, which has the path in this mount namespace, or it cannot be
            // read.
            Ok(_) | Err(_) => continue,
        };
        let again = look(&found.at);
        let idle = again.is_some_and(|found| !found.needed && found.processes.is_empty());
        if idle && remove_memory(&found.at).is_ok_and(|others| others.is_none()) {
            gone.push(found);
        }
        drop(held);
    }
    gone
}

//! Shared memory that killed processes left.
//!
//! The memory of a store outlives its processes, so that what they had committed is there when it
//! is opened again. Where it never is, because its folder is gone, the memory stays until the
//! machine stops; these find it, and take it away where nobody needs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use latchwork_machine::Shared as Machine;
use latchwork_region::{Options, Region};

use crate::error::refused;
use crate::files::inner::Sizes;
use crate::open::{PREFIX, SHM, at_rest, at_rest_within, of_memory, store_of, take_away, told};
use crate::{Error, Refusal};

/// A store's memory in `/dev/shm`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedMemoryInfo {
    /// The folder.
    pub at: PathBuf,
    /// The store that it is of, if that can be read.
    pub store: Option<PathBuf>,
    /// Bytes of its files.
    pub bytes: u64,
    /// Processes that are alive and have it open.
    pub processes: Vec<u32>,
    /// Whether that store is there and names this memory, with which it goes on when it is opened;
    /// or it cannot be read what memory it has.
    pub needed: bool,
}

/// What there is in `/dev/shm` of stores, in the order of its names. What belongs to other users is
/// passed over where it cannot be read.
pub fn list_shared_memory() -> Vec<SharedMemoryInfo> {
    let entries = fs::read_dir(SHM).into_iter().flatten().filter_map(Result::ok);
    let folders = entries.filter(|entry| {
        entry.file_name().to_string_lossy().starts_with(PREFIX) && entry.path().is_dir()
    });
    let mut found: Vec<_> = folders.filter_map(|entry| look(&entry.path())).collect();
    found.sort_by(|one, other| one.at.cmp(&other.at));
    found
}

/// What a folder of memory is; none if it cannot be read.
fn look(at: &Path) -> Option<SharedMemoryInfo> {
    let files = fs::read_dir(at).ok()?.filter_map(Result::ok);
    let bytes = files.filter_map(|file| file.metadata().ok()).map(|about| about.len()).sum();
    let store = store_of(at);
    let options = Options { mode: 0o777, ..Options::default() };
    let region = Region::<Machine>::view(at.join("region"), &options);
    let alive = region.map(|region| region.processes()).unwrap_or_default();
    let processes = alive.iter().filter(|process| process.alive).map(|process| process.pid);
    let processes = processes.collect();
    // A store that cannot be asked may need it.
    let needs = |store: &PathBuf| match told(store) {
        Ok(told) => told.is_some_and(|told| told.now && told.at == at),
        Err(_) => true,
    };
    let needed = store.as_ref().is_some_and(needs);
    Some(SharedMemoryInfo { at: at.to_owned(), store, bytes, processes, needed })
}

/// Takes away the memory that killed processes left of the store in a folder, and has its files
/// alone count: what was committed and is not in them is lost, as in a crash of the machine. Where
/// a folder was copied or moved with its memory, that of the other one stays and the folder forgets
/// it.
/// Returns how many bytes of memory were taken away.
///
/// # Errors
///
/// [`Error::Open`]: [`Refusal::InUse`] if processes have it open, or [`Refusal::OtherFolder`] a
/// copy of it; [`Refusal::BeingOpened`] if one opens or closes it for ten seconds;
/// [`Refusal::NotMemory`] if there is anything else in the folder of the memory, which stays then,
/// and is forgotten.
pub fn discard_shared_memory(path: impl AsRef<Path>) -> Result<u64, Error> {
    let held = at_rest(path.as_ref(), &mut Sizes::default())?;
    let said = |why: std::io::Error| refused(&held.path, why);
    let all = held.places();
    let about: Vec<_> = all.iter().filter_map(|at| look(at)).collect();
    if about.iter().any(|found| !found.processes.is_empty()) {
        return Err(refused(&held.path, Refusal::OtherFolder));
    }
    // First: a death on the way must not leave the store with a part of its memory.
    match fs::remove_file(held.path.join("region")) {
        Err(why) if why.kind() != std::io::ErrorKind::NotFound => return Err(said(why)),
        _ => {}
    }
    for at in &all {
        if let Some(name) = take_away(at).map_err(|why| of_memory(at, why))? {
            return Err(refused(at, Refusal::NotMemory { name }));
        }
    }
    Ok(about.iter().map(|found| found.bytes).sum())
}

/// How old a folder is that is taken for what a dead process left: one that is alive, and makes it,
/// has said of which store it is long before.
const OLD: Duration = Duration::from_secs(600);

/// Whether there is no memory in a folder, and its process died before there was.
fn is_bare(at: &Path) -> bool {
    let made = fs::metadata(at).and_then(|about| about.modified());
    let is_old = made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > OLD));
    is_old && at.join("region").try_exists().is_ok_and(|there| !there)
}

/// Takes away memory of stores that are not there any more, or do not know of it, and that no
/// living process has open; and folders for memory in which there is none, ten minutes after they
/// were made. Returns what was taken away.
pub fn discard_abandoned_memory() -> Vec<SharedMemoryInfo> {
    let mut gone = Vec::new();
    for found in list_shared_memory() {
        if found.needed || !found.processes.is_empty() {
            continue;
        }
        let Some(store) = found.store.clone() else {
            if is_bare(&found.at) && take_away(&found.at).is_ok_and(|others| others.is_none()) {
                gone.push(found);
            }
            continue;
        };
        // Nobody opens the store while this is looked at again. One that is being opened is not
        // waited for.
        let held = match at_rest_within(&store, &mut Sizes::default(), Duration::ZERO) {
            Ok(held) => Some(held),
            Err(Error::Open { why: Refusal::NoStore, .. }) => None,
            Err(_) => continue,
        };
        let again = look(&found.at);
        let idle = again.is_some_and(|found| !found.needed && found.processes.is_empty());
        if idle && take_away(&found.at).is_ok_and(|others| others.is_none()) {
            gone.push(found);
        }
        drop(held);
    }
    gone
}

//! Opening a store to read it, without the right to write its folder.
//!
//! | what is found | what is done |
//! |---|---|
//! | processes have it open | their memory is joined; the files are opened for reading |
//! | killed processes left their memory | the same |
//! | it is closed | its files are read in place, through memory of this process alone |
//!
//! A store that was not closed cleanly is recovered in that memory; an [`Overlay`] contains the
//! pages that recovery writes. Nothing is written to the folder, so it may be on read-only media.
//!
//! A reader in place keeps a shared lock on `opening` for as long as it has the store open, so that
//! no process opens the store for writing and changes the files below it. Media without that file
//! cannot be opened for writing. A reader that joined holds `live`, as every process does.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use latchwork_disk::{Disk, Overlay, ReadOnly, System};
use latchwork_machine::Shared as Machine;
use latchwork_region::Region;

use super::abandoned::note_of;
use super::folder::{CLOSING, GOING, Locked, nap, others};
use super::identity::read_identity;
use super::memory::{Left, memory_left, new_memory};
use super::owner::of_memory;
use super::text_file::{open_file, read_file, write_file};
use super::{OF, Opening, Options, check_path, lost_log, no_store, not_joined};
use crate::error::refused;
use crate::files::inner::StoreInner;
use crate::files::redo::lanes;
use crate::{Error, Refusal};

/// The lock of a process that reads a store.
#[derive(Debug)]
pub(crate) struct Reading {
    /// The lock on `opening` or `live`: see the head of this file.
    _held: Option<Locked>,
}

/// Opens the store in a folder for reading.
pub(crate) fn open_to_read(
    path: &Path,
    options: &Options,
) -> Result<(Arc<StoreInner<Machine>>, Reading), Error> {
    options.sizes.check()?;
    let path = &fs::canonicalize(path).map_err(|why| match why.kind() {
        ErrorKind::NotFound => refused(path, Refusal::NoStore),
        _ => of_memory(path, why),
    })?;
    check_path(path)?;
    let bytes = read_file(&path.join("identity")).map_err(|why| match why.kind() {
        ErrorKind::NotFound => no_store(path),
        _ => of_memory(path, why),
    })?;
    let mut options = *options;
    let id = read_identity(&bytes, &mut options.sizes).map_err(|why| refused(path, why))?;
    options.sizes.check()?;
    let file = |name| match open_file(&path.join(name)) {
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some).map_err(|why| of_memory(path, why)),
    };
    let opening = file("opening")?.map(|file| lock_shared(path, file, &options)).transpose()?;
    let live = file("live")?.map(Locked::new).transpose().map_err(|why| refused(path, why))?;
    let Some(at) = memory(path, &id, live.as_ref())? else {
        return Ok((in_place(path, &id, &options)?, Reading { _held: opening }));
    };
    let disk: Arc<dyn Disk> = Arc::new(ReadOnly::new(Arc::new(System::below(path)?)));
    let joining = Opening { path, id: &id, disk, options };
    let home = joining.join(&at).map_err(|why| not_joined(&at, why))?;
    if let Some(live) = &live {
        live.file.lock_shared().map_err(|why| refused(path, why))?;
    }
    Ok((home, Reading { _held: live }))
}

/// Waits until no process opens the store, and takes a shared lock that prevents it.
fn lock_shared(path: &Path, file: File, options: &Options) -> Result<Locked, Error> {
    let said = |why: std::io::Error| refused(path, why);
    let locked = Locked::new(file).map_err(said)?;
    let most = options.wait.map_or(u128::MAX, |wait| wait.as_micros() / GOING.as_micros());
    for looks in 0_u32.. {
        match locked.file.try_lock_shared() {
            Ok(()) => break,
            Err(fs::TryLockError::WouldBlock) if u128::from(looks) < most => nap(GOING),
            Err(fs::TryLockError::WouldBlock) => {
                return Err(refused(path, Refusal::BeingOpened { process: None }));
            }
            Err(fs::TryLockError::Error(why)) => return Err(said(why)),
        }
    }
    Ok(locked)
}

/// Returns the memory that processes use or that killed processes left; `None` for a closed store.
/// Another reader may hold `live` for a moment during the same check, so this tries again.
fn memory(path: &Path, id: &str, live: Option<&Locked>) -> Result<Option<PathBuf>, Error> {
    let left = |alive| match memory_left(path, id, alive)? {
        // Only a process that may write the files can recover them with this memory.
        Some(Left { same: false, .. }) => Err(refused(path, Refusal::LeftOpen)),
        Some(Left { at, .. }) => Ok(Some(at)),
        None => Ok(None),
    };
    let Some(live) = live else { return left(false) };
    for _ in 0..CLOSING {
        match others(&live.file).map_err(|why| refused(path, why))? {
            Some(false) => {
                let left = left(false);
                live.file.unlock().map_err(|why| refused(path, why))?;
                return left;
            }
            Some(true) => {
                if let Some(at) = left(true)? {
                    return Ok(Some(at));
                }
            }
            None => {}
        }
        nap(GOING);
    }
    Err(refused(path, Refusal::OtherNamespace))
}

/// A memory folder that is removed when this is dropped. Processes that have its files open keep
/// them.
struct Unlinked(PathBuf);

impl Drop for Unlinked {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Opens the files of a closed store with private memory, which is freed when this process ends.
fn in_place(path: &Path, id: &str, options: &Options) -> Result<Arc<StoreInner<Machine>>, Error> {
    if let Some(what) = lost_log(path) {
        return Err(refused(path, Refusal::Damaged { file: "log", what }));
    }
    let memory = new_memory(id).map_err(|why| refused(path, why))?;
    let make = |at: PathBuf| fs::DirBuilder::new().mode(0o700).create(&at).map(|()| Unlinked(at));
    let instead = || std::env::temp_dir().join(memory.file_name().unwrap_or_default());
    let at = make(memory.clone()).or_else(|_| make(instead()));
    let at = at.map_err(|why| refused(path, why))?;
    write_file(&at.0.join(OF), &note_of(path)).map_err(|why| refused(&at.0, why))?;
    let region = Region::create(at.0.join("region"), &options.sizes.region())?;
    let disk: Arc<dyn Disk> = Arc::new(Overlay::new(Arc::new(System::below(path)?)));
    StoreInner::open(&region, &disk, path, &options.sizes, lanes())
}

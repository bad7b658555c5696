//! A temporary folder `NAME.new`, which is renamed to `NAME` when all of it is durable.
//!
//! A killed process leaves a folder with a mark in it, and the next process with the same target
//! removes that folder. A complete copy has no mark: if its process is killed before the rename,
//! the copy stays. Several processes may try at once: a folder belongs to the process that has
//! locked its mark and then finds that the mark still exists.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use latchwork_disk::{Disk, System, within_limit};
use latchwork_machine::Native;
use latchwork_region::Region;

use crate::error::refused;
use crate::files::inner::Sizes;
use crate::open::{
    MARK, check_path, create_new, open_file, open_folder, read_file, write_identity,
};
use crate::{Error, Refusal, Store};

/// A temporary folder next to its target.
#[derive(Debug)]
pub(crate) struct TemporaryFolder {
    pub(crate) fresh: PathBuf,
    to: PathBuf,
    /// Locked by the process that creates the folder.
    mark: File,
    named: bool,
}

impl TemporaryFolder {
    /// Creates the folder, unless its target exists. Removes what a dead process left of such a
    /// folder.
    pub(crate) fn new(to: &Path) -> Result<Self, Error> {
        let to = std::path::absolute(to).map_err(|why| refused(to, why))?;
        let name = to.file_name().ok_or_else(|| refused(&to, Refusal::Taken))?;
        if fs::symlink_metadata(&to).is_ok() {
            return Err(refused(&to, Refusal::Taken));
        }
        let folder = to.parent().and_then(|folder| fs::canonicalize(folder).ok());
        let is_store =
            |folder: &Path| folder.join("identity").is_file() && folder.join("log").is_dir();
        if folder.is_some_and(|folder| folder.ancestors().any(is_store)) {
            return Err(refused(&to, Refusal::WithinStore));
        }
        let mut temporary = name.to_owned();
        temporary.push(NEW);
        let fresh = to.with_file_name(temporary);
        check_path(&fresh)?;
        let said = |why: std::io::Error| refused(&fresh, why);
        let mut mark = loop {
            match fs::create_dir(&fresh) {
                Ok(()) => {
                    if let Some(mark) = make_mark(&fresh)? {
                        break mark;
                    }
                }
                Err(why) if why.kind() == ErrorKind::AlreadyExists => clear(&fresh)?,
                Err(why) => return Err(said(why)),
            }
        };
        // The mark contains the target's name, which distinguishes a folder under construction from
        // a renamed one. It is durable before anything else is in the folder, so that the next
        // process with the same target can remove what a crash of the machine leaves.
        let name = name.as_encoded_bytes();
        let written = within_limit(name.len() as u64, || mark.write_all(name));
        let made = Self { fresh, to, mark, named: false };
        let synced = written.and_then(|()| made.mark.sync_all());
        let synced = synced.and_then(|()| open_folder(&made.fresh)?.sync_all());
        synced.map_err(|why| refused(&made.fresh, why)).map(|()| made)
    }

    /// Creates a store in the folder, fills it, and verifies it.
    pub(crate) fn fill(
        &self,
        sizes: &Sizes,
        fill: impl FnOnce(&Store<Native>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let store = self.open(sizes)?;
        fill(&store)?;
        store.checkpoint()?;
        store.verify()?;
        Ok(())
    }

    /// Opens the store for this process alone: no other process opens a folder without an identity.
    fn open(&self, sizes: &Sizes) -> Result<Store<Native>, Error> {
        let region = Region::private(&sizes.region())?;
        let disk: Arc<dyn Disk> = Arc::new(System::new());
        Store::in_region(&region, &disk, &self.fresh, sizes)
    }

    /// Recovers the store in the folder, verifies it, and closes it. Returns the end of its log.
    /// Its memory is private to this process.
    pub(crate) fn recover(&self, sizes: &Sizes) -> Result<u64, Error> {
        let store = self.open(sizes)?;
        store.verify()?;
        store.checkpoint()?;
        Ok(store.log_end())
    }

    /// Writes the identity and renames the folder. From now on it is a store.
    pub(crate) fn name(mut self, sizes: &Sizes) -> Result<(), Error> {
        let said = |path: &Path, why: std::io::Error| refused(path, why);
        write_identity(&self.fresh, sizes)?;
        // Before the rename: a store must have no mark, or it would look abandoned when it is
        // renamed again. A process that dies here leaves a complete copy, which is not removed.
        let mark = self.fresh.join(MARK);
        let removed = fs::remove_file(&mark).and_then(|()| open_folder(&self.fresh)?.sync_all());
        removed.map_err(|why| said(&mark, why))?;
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        let cwd = rustix::fs::CWD;
        match rustix::fs::renameat_with(cwd, &self.fresh, cwd, &self.to, flags) {
            // A file system without support for `NOREPLACE`.
            Err(rustix::io::Errno::INVAL) if !self.to.exists() => {
                fs::rename(&self.fresh, &self.to).map_err(|why| said(&self.to, why))?;
            }
            // A concurrent copy to the same target was faster.
            Err(rustix::io::Errno::EXIST) => return Err(refused(&self.to, Refusal::Taken)),
            other => other.map_err(|why| said(&self.to, why.into()))?,
        }
        self.named = true;
        let around = self.to.parent().unwrap_or(Path::new("/"));
        let synced = open_folder(around).and_then(|folder| folder.sync_all());
        synced.map_err(|why| said(around, why))
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        if !self.named {
            let _ = remove_marked(&self.fresh);
        }
        let _ = self.mark.unlock();
    }
}

/// Suffix of the temporary folder's name.
const NEW: &str = ".new";

/// Creates and locks the mark of a folder that this process has just created. Returns `None` if
/// another process took the folder for abandoned and is removing it.
fn make_mark(fresh: &Path) -> Result<Option<File>, Error> {
    let said = |why: std::io::Error| refused(fresh, why);
    let mark = match create_new(&fresh.join(MARK)) {
        Err(why) if matches!(why.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists) => {
            return Ok(None);
        }
        other => other.map_err(said)?,
    };
    while let Err(why) = mark.lock() {
        if why.kind() != ErrorKind::Interrupted {
            return Err(said(why));
        }
    }
    Ok(is_mark_of(&mark, fresh).then_some(mark))
}

/// Returns whether this file is the mark of the folder, and not of an earlier folder with this
/// name.
fn is_mark_of(mark: &File, fresh: &Path) -> bool {
    let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    let both = mark.metadata().and_then(|mark| Ok((mark, fs::metadata(fresh.join(MARK))?)));
    both.is_ok_and(|(mark, there)| same(mark, there))
}

/// Removes a folder whose mark this process has locked. Removes the mark last, so that a process
/// that dies in between leaves a folder that is still recognized as abandoned.
fn remove_marked(fresh: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(fresh)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false if entry.file_name() != MARK => fs::remove_file(entry.path())?,
            false => {}
        }
    }
    match fs::remove_file(fresh.join(MARK)) {
        Err(why) if why.kind() != ErrorKind::NotFound => return Err(why),
        _ => {}
    }
    // From here on other processes may remove or recreate the folder.
    let _ = fs::remove_dir(fresh);
    Ok(())
}

/// Removes what a dead process left of a folder under construction, if it still exists.
fn clear(fresh: &Path) -> Result<(), Error> {
    let said = |why: std::io::Error| refused(fresh, why);
    let mark = match open_file(&fresh.join(MARK)) {
        Ok(mark) => mark,
        Err(_) => {
            return match fs::remove_dir(fresh) {
                Err(why) if why.kind() != ErrorKind::NotFound => {
                    Err(refused(fresh, Refusal::Taken))
                }
                _ => Ok(()),
            };
        }
    };
    match mark.try_lock() {
        // The mark now belongs to another folder, or no longer exists.
        Ok(()) if !is_mark_of(&mark, fresh) => Ok(()),
        Ok(()) => {
            let mut name = read_file(&fresh.join(MARK)).map_err(said)?;
            name.extend_from_slice(NEW.as_bytes());
            let own = fresh.file_name().map(OsStr::as_encoded_bytes);
            // A process that died, or a full disk, before the name was in the mark leaves nothing
            // else.
            let is_bare = || fs::read_dir(fresh).is_ok_and(|files| files.count() == 1);
            let is_abandoned = own == Some(&name[..]) || is_bare();
            let live = open_file(&fresh.join("live"));
            if !is_abandoned || live.is_ok_and(|live| live.try_lock().is_err()) {
                return Err(refused(fresh, Refusal::Taken));
            }
            remove_marked(fresh).map_err(said)
        }
        Err(TryLockError::WouldBlock) => Err(refused(fresh, Refusal::BeingMade)),
        Err(TryLockError::Error(why)) => Err(refused(fresh, why)),
    }
}

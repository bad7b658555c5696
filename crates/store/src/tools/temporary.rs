//! A folder that is made beside its place, `NAME.new`, and gets its name when all of it is durable.
//!
//! What a process that is killed leaves there has a mark, and the next one of that name takes it
//! away. A whole copy has none: killed before it has its name, it stays. Several may try at once: a
//! folder belongs to the process that has locked its mark and finds, then, that the mark is there.

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

/// A folder that is made beside its place.
#[derive(Debug)]
pub(crate) struct TemporaryFolder {
    pub(crate) fresh: PathBuf,
    to: PathBuf,
    /// Locked by the process that makes it.
    mark: File,
    named: bool,
}

impl TemporaryFolder {
    /// Makes the folder, unless there is something at its place. What a dead process left of one is
    /// taken away.
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
        let mut beside = name.to_owned();
        beside.push(NEW);
        let fresh = to.with_file_name(beside);
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
        // The name tells a folder that is being made from one that has its name. It is durable
        // before anything else is in the folder, so that the next process of this name can remove
        // what a crash of the machine leaves.
        let name = name.as_encoded_bytes();
        let written = within_limit(name.len() as u64, || mark.write_all(name));
        let made = Self { fresh, to, mark, named: false };
        let synced = written.and_then(|()| made.mark.sync_all());
        let synced = synced.and_then(|()| open_folder(&made.fresh)?.sync_all());
        synced.map_err(|why| refused(&made.fresh, why)).map(|()| made)
    }

    /// Makes a store there, has it filled, and looks at all of it.
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

    /// A store of this process alone: nobody else opens what has no identity.
    fn open(&self, sizes: &Sizes) -> Result<Store<Native>, Error> {
        let region = Region::private(&sizes.region())?;
        let disk: Arc<dyn Disk> = Arc::new(System::new());
        Store::in_region(&region, &disk, &self.fresh, sizes)
    }

    /// Recovers what lies there, looks at all of it, and closes it; returns where its log ends. It
    /// is nobody else's: its memory is this process's alone.
    pub(crate) fn recover(&self, sizes: &Sizes) -> Result<u64, Error> {
        let store = self.open(sizes)?;
        store.verify()?;
        store.checkpoint()?;
        Ok(store.log_end())
    }

    /// Gives it an identity and its name: from now on it is a store.
    pub(crate) fn name(mut self, sizes: &Sizes) -> Result<(), Error> {
        let said = |path: &Path, why: std::io::Error| refused(path, why);
        write_identity(&self.fresh, sizes)?;
        // Before it has its name: a store has no mark, by which it could be taken for a ruin when
        // it is given another. What a death leaves here is a whole copy, which nobody takes away.
        let mark = self.fresh.join(MARK);
        let removed = fs::remove_file(&mark).and_then(|()| open_folder(&self.fresh)?.sync_all());
        removed.map_err(|why| said(&mark, why))?;
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        let cwd = rustix::fs::CWD;
        match rustix::fs::renameat_with(cwd, &self.fresh, cwd, &self.to, flags) {
            // A file system that knows no such rename.
            Err(rustix::io::Errno::INVAL) if !self.to.exists() => {
                fs::rename(&self.fresh, &self.to).map_err(|why| said(&self.to, why))?;
            }
            // Another copy of this name, that began when this one did, was the first.
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
            let _ = take_away(&self.fresh);
        }
        let _ = self.mark.unlock();
    }
}

/// What the folder's name has behind that which it will have.
const NEW: &str = ".new";

/// Makes the mark of a folder that this process has just made, and locks it; none if another took
/// the folder for a ruin, and is taking it away.
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

/// Whether a folder's mark is this file, and not one of a folder that had its name before.
fn is_mark_of(mark: &File, fresh: &Path) -> bool {
    let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    let both = mark.metadata().and_then(|mark| Ok((mark, fs::metadata(fresh.join(MARK))?)));
    both.is_ok_and(|(mark, there)| same(mark, there))
}

/// Takes a folder away whose mark this process has locked: the mark last, so that what a death
/// leaves of it is a ruin still.
fn take_away(fresh: &Path) -> std::io::Result<()> {
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
    // From here on it is anybody's: another may have taken it away, or made it anew.
    let _ = fs::remove_dir(fresh);
    Ok(())
}

/// Takes away what a dead process left of a folder that it made, if it is still there.
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
        // It is another folder's by now, or none is there.
        Ok(()) if !is_mark_of(&mark, fresh) => Ok(()),
        Ok(()) => {
            let mut name = read_file(&fresh.join(MARK)).map_err(said)?;
            name.extend_from_slice(NEW.as_bytes());
            let own = fresh.file_name().map(OsStr::as_encoded_bytes);
            // A death or a full disk before the name was in the mark leaves nothing else there.
            let is_bare = || fs::read_dir(fresh).is_ok_and(|files| files.count() == 1);
            let is_ruin = own == Some(&name[..]) || is_bare();
            let live = open_file(&fresh.join("live"));
            if !is_ruin || live.is_ok_and(|live| live.try_lock().is_err()) {
                return Err(refused(fresh, Refusal::Taken));
            }
            take_away(fresh).map_err(said)
        }
        Err(TryLockError::WouldBlock) => Err(refused(fresh, Refusal::BeingMade)),
        Err(TryLockError::Error(why)) => Err(refused(fresh, why)),
    }
}

//! The folder of a store, held by a process that has the store open, or locked while no process has
//! it open.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use latchwork_machine::{ConstMachine, Deadline, Machine as _, Shared as Machine};
use latchwork_region::Unforked;
use rustix::fs::{AtFlags, Mode, OFlags};

use super::group::share;
use super::identity::{Identity, convert_identity, parse_identity};
use super::memory::{
    RecordedMemory, SHM, is_place, memory_left, named_for, parse, places, remove_memory,
};
use super::no_store;
use super::owner::is_own;
use super::text_file::{open_file, read_file};
use crate::error::refused;
use crate::files::inner::Sizes;
use crate::format::FORMAT;
use crate::{Error, Refusal};

/// How often, and at what interval, a process checks whether processes that close the store or die
/// have released their locks.
pub(super) const CLOSING: u32 = 5_000;
pub(super) const GOING: Duration = Duration::from_micros(200);

/// How long a process waits for `opening` before it checks whether readers in place hold the lock.
const SOON: Duration = Duration::from_secs(1);
/// How often a process tries to take a lock that another process holds.
const LOOK: Duration = Duration::from_millis(5);
/// How long tools that need a closed store wait for a process that opens or closes it.
const REST: Duration = Duration::from_secs(10);

/// The folder of a store, as held by a process that has the store open.
#[derive(Debug)]
pub(crate) struct Folder {
    /// The path that the folder had when it was opened. Another folder may have this path now.
    pub(crate) path: PathBuf,
    /// The folder itself.
    pub(super) here: File,
    /// The random numbers of the store and of its region. The file `region` is valid only with
    /// these.
    pub(super) id: String,
    pub(super) creation: u128,
    /// The folder of the shared memory.
    pub(super) memory: PathBuf,
    /// Locked shared while the store is open.
    pub(super) live: Locked,
}

/// A file that this process holds locked until the value is dropped. The drop unlocks explicitly:
/// if another thread forks at the wrong moment, the child shares the open file, and closing it in
/// the parent alone would not release the lock.
#[derive(Debug)]
pub(crate) struct Locked {
    pub(super) file: Unforked,
    process: u32,
}

impl Locked {
    /// Wraps a file without locking it.
    pub(super) fn new(file: File) -> Result<Self, std::io::Error> {
        let file = Unforked::new(file).map_err(std::io::Error::other)?;
        Ok(Self { file, process: std::process::id() })
    }

    /// Blocks until the file is locked exclusively.
    pub(super) fn alone(file: File) -> Result<Self, std::io::Error> {
        let locked = Self::new(file)?;
        locked.lock().map(|()| locked)
    }

    fn lock(&self) -> std::io::Result<()> {
        loop {
            match self.file.lock() {
                // A signal interrupted the wait.
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    /// Locks the file exclusively, waiting at most this long. If another process still holds the
    /// lock, returns its process id, where known.
    fn lock_within(&self, wait: Duration) -> std::io::Result<Result<(), Option<u32>>> {
        let deadline = Deadline::after::<Machine>(wait);
        loop {
            match self.file.try_lock() {
                Ok(()) => return Ok(Ok(())),
                Err(TryLockError::WouldBlock) if deadline.passed::<Machine>() => {
                    return Ok(Err(holder(&self.file)));
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(why)) if why.kind() == ErrorKind::Interrupted => {}
                Err(TryLockError::Error(why)) => return Err(why),
            }
            // `flock` has no wait with a timeout.
            nap(LOOK);
        }
    }
}

/// Sleeps for this long. Used where another process makes progress and sends no wakeup.
pub(super) fn nap(time: Duration) {
    let nobody = Machine::U32;
    Machine::wait(&nobody, 0, Some(Deadline::after::<Machine>(time)));
}

/// Locks the file `opening` of a store.
pub(super) fn lock_opening(
    path: &Path,
    file: File,
    wait: Option<Duration>,
) -> Result<Locked, Error> {
    let said = |why: std::io::Error| refused(path, why);
    let (locked, soon) = (Locked::new(file).map_err(said)?, wait.unwrap_or(SOON).min(SOON));
    if locked.lock_within(soon).map_err(said)?.is_ok() {
        return Ok(locked);
    }
    // A process that opens or closes the store locks it exclusively; readers in place lock it
    // shared.
    if locked.file.try_lock_shared().is_ok() {
        return Err(refused(path, Refusal::ReadElsewhere));
    }
    let done = match wait {
        None => locked.lock().map(Ok),
        Some(wait) => locked.lock_within(wait.saturating_sub(soon)),
    };
    let done = done.map_err(said)?;
    done.map(|()| locked).map_err(|process| refused(path, Refusal::BeingOpened { process }))
}

/// Returns the process that holds the exclusive lock on a file, according to proc_locks(5). Some
/// file systems have another device number there than in the file's metadata, and processes of
/// other containers have no number.
fn holder(file: &File) -> Option<u32> {
    let about = file.metadata().ok()?;
    let (major, minor) = (rustix::fs::major(about.dev()), rustix::fs::minor(about.dev()));
    let of = format!("{major:02x}:{minor:02x}:{}", about.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let mut locks = locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let lock = locks
        .find(|lock| matches!(lock[..], [_, "FLOCK", _, "WRITE", _, file, ..] if file == of))?;
    lock[4].parse().ok().filter(|process| *process != 0)
}

impl Drop for Locked {
    fn drop(&mut self) {
        // In the child of a fork the lock belongs to the parent.
        if self.process == std::process::id() {
            let _ = self.file.unlock();
        }
    }
}

/// Opens a lock file, and creates it if it does not exist.
pub(super) fn lock_file(path: &Path, name: &str) -> Result<File, Error> {
    // Only its owner can lock it: a lock requires no more than read permission.
    let (flags, owner) = (OFlags::RDWR | OFlags::CREATE, Mode::RUSR | Mode::WUSR);
    let opened = latchwork_machine::open(&*path.join(name), flags, owner);
    let said = |why| refused(path, why);
    let file = opened.map(File::from).map_err(|why| said(std::io::Error::from(why)))?;
    share(path, &file).map_err(said)?;
    Ok(file)
}

/// A store that no process has open, and that no process can open while this value lives.
#[derive(Debug)]
pub(crate) struct AtRest {
    pub(crate) path: PathBuf,
    pub(crate) id: String,
    /// The lock on `opening`.
    _opening: Option<Locked>,
}

/// Returns whether other processes have the store open; the caller holds `opening` and passes the
/// file `live`. On `false`, `live` is locked exclusively. `None` means that a dying process still
/// holds `live` exclusively: it was opening or closing the store, and its locks are released one
/// after another.
pub(super) fn others(live: &File) -> std::io::Result<Option<bool>> {
    match live.try_lock() {
        Ok(()) => return Ok(Some(false)),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(why)) => return Err(why),
    }
    match live.try_lock_shared() {
        Ok(()) => live.unlock().map(|()| Some(true)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(why)) => Err(why),
    }
}

/// Locks a store that no process has open, and reads the sizes of its files. Writes nothing except
/// a lock file. Waits a limited time for a process that opens or closes the store.
pub(crate) fn at_rest(path: &Path, sizes: &mut Sizes) -> Result<AtRest, Error> {
    at_rest_within(path, sizes, REST)
}

/// Locks a store as [`at_rest`] does, with this limit on the wait.
pub(crate) fn at_rest_within(
    path: &Path,
    sizes: &mut Sizes,
    wait: Duration,
) -> Result<AtRest, Error> {
    let (held, found) = held_at_rest(path, sizes, wait)?;
    match found.format {
        FORMAT => Ok(held),
        format => Err(refused(&held.path, Refusal::Older { format })),
    }
}

/// Converts the store in a folder, which no process has open, to the current format. Returns the
/// previous format.
pub(crate) fn convert(path: &Path) -> Result<u64, Error> {
    let mut sizes = Sizes::default();
    let (held, found) = held_at_rest(path, &mut sizes, REST)?;
    if found.format != FORMAT {
        is_own(&held.path)?;
        if held.left()?.is_some() {
            return Err(refused(&held.path, Refusal::LeftOpen));
        }
        convert_identity(&held.path, &found, &sizes)?;
    }
    Ok(found.format)
}

/// Locks a store of any format that can be converted.
fn held_at_rest(
    path: &Path,
    sizes: &mut Sizes,
    wait: Duration,
) -> Result<(AtRest, Identity), Error> {
    let path = fs::canonicalize(path).map_err(|why| match why.kind() {
        ErrorKind::NotFound => refused(path, Refusal::NoStore),
        _ => refused(path, why),
    })?;
    let said = |why: std::io::Error| refused(&path, why);
    // A folder that was never opened, or was unpacked from an archive, may lack the lock files.
    let file = |name: &str| match open_file(&path.join(name)) {
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some).map_err(said),
    };
    let opening = match file("opening")? {
        None if path.join("identity").exists() => made_to_lock(&path)?,
        found => found,
    };
    let opening = opening.map(|file| lock_opening(&path, file, Some(wait))).transpose()?;
    if let Some(live) = file("live")?.map(Locked::new).transpose().map_err(said)? {
        let mut in_use = others(&live.file).map_err(said)?;
        let looks = wait.as_micros() / GOING.as_micros();
        for _ in 0..looks.min(u128::from(CLOSING)) {
            if in_use.is_some() {
                break;
            }
            nap(GOING);
            in_use = others(&live.file).map_err(said)?;
        }
        match in_use {
            Some(false) => {}
            Some(true) => return Err(refused(&path, Refusal::InUse)),
            None => return Err(refused(&path, Refusal::BeingOpened { process: None })),
        }
    }
    let bytes = match read_file(&path.join("identity")) {
        Err(why) if why.kind() == ErrorKind::NotFound => Err(no_store(&path)),
        other => other.map_err(said),
    }?;
    let found = parse_identity(&bytes, sizes).map_err(|why| refused(&path, why))?;
    Ok((AtRest { path, id: found.id.clone(), _opening: opening }, found))
}

/// Creates the lock file. Returns `None` if it cannot be created, because then no process can open
/// the store either. Creates nothing in a folder of another user: that user could not use the file.
fn made_to_lock(path: &Path) -> Result<Option<File>, Error> {
    use Refusal::{NoSpace, Permission, ReadOnly};

    is_own(path)?;
    match lock_file(path, "opening") {
        Err(Error::Open { why: ReadOnly | Permission | NoSpace, .. }) => Ok(None),
        made => made.map(Some),
    }
}

impl AtRest {
    /// Returns the folder of the memory that killed processes left, if it exists on this machine.
    pub(crate) fn left(&self) -> Result<Option<PathBuf>, Error> {
        Ok(memory_left(&self.path, &self.id, false)?.map(|left| left.at))
    }

    /// Returns the folders that may contain shared memory of the store, usable or not.
    pub(crate) fn places(&self) -> BTreeSet<PathBuf> {
        let named = named_for(&self.path, &self.id).into_iter();
        named.chain(places(&self.path, &self.id)).collect()
    }
}

impl Folder {
    /// Closes the store. The last process that has it open makes a checkpoint and removes the
    /// shared memory. If the checkpoint fails, the memory stays for the next process. If only the
    /// removal fails, the files are complete, and the rest of the memory is not joined.
    pub(crate) fn close(&self, finish: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        if self.is_removed() {
            self.forget();
            return Ok(());
        }
        let opening = self.file("opening").and_then(Locked::alone);
        let _opening = opening.map_err(|why| refused(&self.path, why))?;
        // The lock becomes exclusive only if no other process holds it.
        let _ = self.live.file.unlock();
        let closed = match self.live.file.try_lock() {
            Ok(()) => finish().and_then(|()| self.forget_region()),
            Err(TryLockError::WouldBlock) => Ok(()),
            Err(TryLockError::Error(why)) => Err(refused(&self.path, why)),
        };
        // Unlock before `opening`, so that the next process does not find `live` locked.
        let _ = self.live.file.unlock();
        closed
    }

    /// Removes the shared memory, whose contents are in the files, if it is the memory of this
    /// process.
    fn forget_region(&self) -> Result<(), Error> {
        let said = |why: std::io::Error| refused(&self.path, why);
        let text = self.file("region").and_then(std::io::read_to_string).map_err(said)?;
        let RecordedMemory { at, of, creation, .. } =
            parse(&text).map_err(|why| refused(&self.path, why))?;
        let is_own = of == self.path && creation == self.creation;
        if !is_own || !is_place(&at, &self.path, &self.id) {
            let what = "it names other memory than the process that closes the store has";
            return Err(refused(&self.path, Refusal::Damaged { file: "region", what }));
        }
        let unlinked = rustix::fs::unlinkat(&self.here, "region", AtFlags::empty());
        // If the folder was moved, the path of memory in the folder now belongs to another folder.
        let is_there = at != self.path.join("memory") || self.is_there();
        let other =
            if is_there { remove_memory(&at).map_err(|why| refused(&at, why))? } else { None };
        match other {
            Some(name) => Err(refused(&at, Refusal::NotMemory { name })),
            None => unlinked.map_err(|why| said(why.into())),
        }
    }

    /// Removes the shared memory of a folder that was removed, unless another process has the store
    /// open. No process can open the store any more. Memory in the folder was removed with it.
    fn forget(&self) {
        let _ = self.live.file.unlock();
        if self.live.file.try_lock().is_ok() && self.memory.parent() == Some(Path::new(SHM)) {
            let _ = remove_memory(&self.memory);
        }
        let _ = self.live.file.unlock();
    }

    /// Returns whether the folder was removed with its contents. The files may have been moved to
    /// another folder before, and then still own their memory; and some file systems do not count
    /// links.
    fn is_removed(&self) -> bool {
        let is_unlinked = |file: &File| file.metadata().is_ok_and(|about| about.nlink() == 0);
        let has_identity = || match self.file("identity") {
            Err(why) => why.kind() != ErrorKind::NotFound,
            Ok(_) => true,
        };
        is_unlinked(&self.here) && is_unlinked(&self.live.file) && !has_identity()
    }

    /// Opens a file of the folder for reading.
    fn file(&self, name: &str) -> Result<File, std::io::Error> {
        let how = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(latchwork_machine::open_at(&self.here, name, how, Mode::empty())?.into())
    }

    /// Returns whether the folder still has its path.
    fn is_there(&self) -> bool {
        let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        let both = fs::metadata(&self.path).and_then(|there| Ok((there, self.here.metadata()?)));
        both.is_ok_and(|(there, here)| same(there, here))
    }
}

//! A folder that a process holds: as one of those that have the store open, or while nobody has.

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
    RecordedMemory, SHM, is_place, memory_left, named_for, parse, places, take_away,
};
use super::no_store;
use super::owner::is_own;
use super::text_file::{open_file, read_file};
use crate::error::refused;
use crate::files::inner::Sizes;
use crate::format::FORMAT;
use crate::{Error, Refusal};

/// How often, and after how long each time, it is looked whether those that are closing, or are
/// dying, have gone.
pub(super) const CLOSING: u32 = 5_000;
pub(super) const GOING: Duration = Duration::from_micros(200);

/// How long it is waited before it is asked whether readers have a store.
const SOON: Duration = Duration::from_secs(1);
/// How often a lock is asked for that another process has.
const LOOK: Duration = Duration::from_millis(5);
/// How long tools that need a store that nobody has open wait for a process that opens or closes
/// it.
const REST: Duration = Duration::from_secs(10);

/// A store's folder, as a process that has it open holds it.
#[derive(Debug)]
pub(crate) struct Folder {
    /// The path that it had when it was opened: it may be another folder's by now.
    pub(crate) path: PathBuf,
    /// The folder itself.
    pub(super) here: File,
    /// The store's number, and that of its region: what `region` says is believed if it has these.
    pub(super) id: String,
    pub(super) creation: u128,
    /// Where its memory is.
    pub(super) memory: PathBuf,
    /// Locked, shared, for as long as the store is open.
    pub(super) live: Locked,
}

/// A file that this process has locked, until the value goes. That lets go of the lock by a call of
/// its own: a child that another thread forks at the wrong moment has the file open, too, and keeps
/// the lock of one that is closed only.
#[derive(Debug)]
pub(crate) struct Locked {
    pub(super) file: Unforked,
    process: u32,
}

impl Locked {
    /// One that is to be locked.
    pub(super) fn new(file: File) -> Result<Self, std::io::Error> {
        let file = Unforked::new(file).map_err(std::io::Error::other)?;
        Ok(Self { file, process: std::process::id() })
    }

    /// Waits until the file is locked for this process alone.
    pub(super) fn alone(file: File) -> Result<Self, std::io::Error> {
        let locked = Self::new(file)?;
        locked.lock().map(|()| locked)
    }

    fn lock(&self) -> std::io::Result<()> {
        loop {
            match self.file.lock() {
                // A signal came.
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    /// Locks the file for this process alone, and waits at most so long. If another process has the
    /// lock then, returns its number, where that is known.
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
            // The lock has no queue that a process could be woken from in time.
            nap(LOOK);
        }
    }
}

/// Sleeps for so long, where another process is to go on and wakes nobody.
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
    // Processes that open a store or close it lock it for themselves. Readers in place share it.
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

/// The process that has a file locked for itself, as proc_locks(5) has it: some file systems are
/// there under another number than their files say, and processes of other containers as none.
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
        // In the child of a fork it is the parent's lock.
        if self.process == std::process::id() {
            let _ = self.file.unlock();
        }
    }
}

/// A file that is there to be locked.
pub(super) fn lock_file(path: &Path, name: &str) -> Result<File, Error> {
    // Nobody else can lock it: a lock takes no more than the right to read.
    let (flags, owner) = (OFlags::RDWR | OFlags::CREATE, Mode::RUSR | Mode::WUSR);
    let opened = latchwork_machine::open(&*path.join(name), flags, owner);
    let said = |why| refused(path, why);
    let file = opened.map(File::from).map_err(|why| said(std::io::Error::from(why)))?;
    share(path, &file).map_err(said)?;
    Ok(file)
}

/// A store that nobody has open, and that nobody opens while this lives.
#[derive(Debug)]
pub(crate) struct AtRest {
    pub(crate) path: PathBuf,
    pub(crate) id: String,
    /// Locked.
    _opening: Option<Locked>,
}

/// Whether other processes have the store open whose file `live` this is, where this one has locked
/// `opening`: if not, `live` is locked. None if it is one that is dying: its locks go one after the
/// other, and it had all for itself, to open the store or to close it.
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

/// Takes hold of a store that nobody has open, and says what sizes it keeps. Nothing is written but
/// the file that is locked. Another process that opens or closes it is waited for some time.
pub(crate) fn at_rest(path: &Path, sizes: &mut Sizes) -> Result<AtRest, Error> {
    at_rest_within(path, sizes, REST)
}

/// The same; another process is waited for so long.
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

/// Converts the store in a folder, which no process has open, to the present format. Returns the
/// format that it had.
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

/// A store of any format that can be converted.
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
    // What was never opened, or came out of an archive, may not have the files that are locked.
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

/// Makes the file that is locked; none where it cannot be made, for then no process can open the
/// store. In the folder of another user nothing is made: it would be in the way of that one.
fn made_to_lock(path: &Path) -> Result<Option<File>, Error> {
    use Refusal::{NoSpace, Permission, ReadOnly};

    is_own(path)?;
    match lock_file(path, "opening") {
        Err(Error::Open { why: ReadOnly | Permission | NoSpace, .. }) => Ok(None),
        made => made.map(Some),
    }
}

impl AtRest {
    /// Where memory is that killed processes left, if this machine has it.
    pub(crate) fn left(&self) -> Result<Option<PathBuf>, Error> {
        Ok(memory_left(&self.path, &self.id, false)?.map(|left| left.at))
    }

    /// The folders that may have its memory, of use or not.
    pub(crate) fn places(&self) -> BTreeSet<PathBuf> {
        let named = named_for(&self.path, &self.id).into_iter();
        named.chain(places(&self.path, &self.id)).collect()
    }
}

impl Folder {
    /// Closes the store: the last process that has it open makes a checkpoint, and takes the shared
    /// memory away. If the checkpoint fails the memory stays, and the next that opens the store has
    /// it. If only taking it away fails, the files have all, and what is left of it is not joined.
    pub(crate) fn close(&self, finish: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        if self.is_removed() {
            self.forget();
            return Ok(());
        }
        let opening = self.file("opening").and_then(Locked::alone);
        let _opening = opening.map_err(|why| refused(&self.path, why))?;
        // The lock becomes exclusive only if no other process has it.
        let _ = self.live.file.unlock();
        let closed = match self.live.file.try_lock() {
            Ok(()) => finish().and_then(|()| self.forget_region()),
            Err(TryLockError::WouldBlock) => Ok(()),
            Err(TryLockError::Error(why)) => Err(refused(&self.path, why)),
        };
        // Before `opening` goes: the next process must not find it locked.
        let _ = self.live.file.unlock();
        closed
    }

    /// Takes the shared memory away, of which the files have all, if it is what this process had.
    fn forget_region(&self) -> Result<(), Error> {
        let said = |why: std::io::Error| refused(&self.path, why);
        let told = self.file("region").and_then(std::io::read_to_string).map_err(said)?;
        let RecordedMemory { at, of, creation, .. } =
            parse(&told).map_err(|why| refused(&self.path, why))?;
        let is_own = of == self.path && creation == self.creation;
        if !is_own || !is_place(&at, &self.path, &self.id) {
            let what = "it names other memory than the process that closes the store has";
            return Err(refused(&self.path, Refusal::Damaged { file: "region", what }));
        }
        let unlinked = rustix::fs::unlinkat(&self.here, "region", AtFlags::empty());
        // Beside the data it is at the path of another folder by now, if this one was moved.
        let is_there = at != self.path.join("memory") || self.is_there();
        let other = if is_there { take_away(&at).map_err(|why| refused(&at, why))? } else { None };
        match other {
            Some(name) => Err(refused(&at, Refusal::NotMemory { name })),
            None => unlinked.map_err(|why| said(why.into())),
        }
    }

    /// Takes the memory of a folder away that was removed, if no other process has it open: nobody
    /// can open it any more. Beside the data it went with the folder.
    fn forget(&self) {
        let _ = self.live.file.unlock();
        if self.live.file.try_lock().is_ok() && self.memory.parent() == Some(Path::new(SHM)) {
            let _ = take_away(&self.memory);
        }
        let _ = self.live.file.unlock();
    }

    /// Whether the folder was removed, with all in it. Its files may have been moved before, and
    /// their memory is theirs; and some file systems count no links.
    fn is_removed(&self) -> bool {
        let is_unlinked = |file: &File| file.metadata().is_ok_and(|about| about.nlink() == 0);
        let has_identity = || match self.file("identity") {
            Err(why) => why.kind() != ErrorKind::NotFound,
            Ok(_) => true,
        };
        is_unlinked(&self.here) && is_unlinked(&self.live.file) && !has_identity()
    }

    /// A file of it.
    fn file(&self, name: &str) -> Result<File, std::io::Error> {
        let how = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(latchwork_machine::open_at(&self.here, name, how, Mode::empty())?.into())
    }

    /// Whether the folder has the path that it had.
    fn is_there(&self) -> bool {
        let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        let both = fs::metadata(&self.path).and_then(|there| Ok((there, self.here.metadata()?)));
        both.is_ok_and(|(there, here)| same(there, here))
    }
}

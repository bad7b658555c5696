//! A store's folder: who has it open, and where its shared memory lies.
//!
//! ```text
//! identity   what this is: a format, a random number, bytes of pages and segments; written once
//! data       pages
//! log/       the log
//! region     where the shared memory is, since which start of the machine, and of which files
//! live       locked by every process that has the store open, all at once
//! opening    locked by the one that opens it or closes it
//! ```
//!
//! The shared memory is a folder in `/dev/shm`, which outlives all processes and not the machine;
//! or one beside the data where `/dev/shm` has no room. What `region` says is believed if the
//! machine has not started again since, so a process joins what is there, or recovers the store. It
//! says, too, which folder the memory is of: what is in it is of the files there, and a folder that
//! was copied or moved has others.
//!
//! The locks are `flock(2)`'s, which the system takes back from the dead. Two containers that see
//! one folder and not one `/dev/shm` are told apart by them: the second one finds `live` locked and
//! no memory to join, and is refused.

mod abandoned;
mod folder;
mod group;
mod identity;
mod links;
mod memory;
mod owner;
mod read_only;
mod text_file;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use latchwork_disk::{Disk, System};
use latchwork_log::{Error as LogError, Lsn};
use latchwork_machine::{AttachError, Shared as Machine};
use latchwork_region::Region;

use self::abandoned::{note_of, remove_abandoned};
use self::folder::{CLOSING, GOING, Locked, lock_file, lock_opening, nap, others};
pub(crate) use self::folder::{Folder, at_rest, at_rest_within, convert};
use self::group::{file_mode, is_shared};
pub(crate) use self::identity::write_identity;
use self::identity::{identity, is_for_a_store};
use self::links::has_own_files;
use self::memory::{
    Left, announce, is_in_memory, memory_left, named_for, new_memory, places, room, tell,
};
pub(crate) use self::memory::{OF, PREFIX, SHM, store_of, take_away, told};
use self::owner::is_own;
pub(crate) use self::owner::of_memory;
pub(crate) use self::read_only::{Reading, open_to_read};
use self::text_file::write_file;
pub(crate) use self::text_file::{create_new, open_file, open_folder, read_file};
use crate::error::refused;
use crate::files::inner::{Sizes, StoreInner};
use crate::files::redo::lanes;
use crate::files::session::StoreSession;
use crate::place::{Kind, file_system};
use crate::{Error, Refusal};

/// The file of a folder that is being made: what has it locked, where it lies, may do anything with
/// the folder, and nobody else may. It says what the folder's name will be.
pub(crate) const MARK: &str = "being-made";

/// The most bytes of a folder's path: those of the files in it are kept in shared memory.
const PATH_MAX: usize = 250;

/// Where the memory lies that a store's processes share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryPlace {
    /// In `/dev/shm` if it has room, else beside the data.
    #[default]
    Auto,
    /// In `/dev/shm`.
    Memory,
    /// In the store's folder: it works wherever the data does, and the system writes its pages to
    /// the disk now and then.
    Folder,
}

/// How a store is opened.
///
/// What is open already, in any process, keeps the sizes of its memory (`cache`, `log_buffer`,
/// `locks`, `threads`), and a store that exists those of its files (`page`, `log_segment`). Each
/// process has its own `mode`, `log_budget` and `history`: a checkpoint goes by those of the
/// process that makes it, so all processes of a store are given the same.
///
/// # Examples
///
/// ```
/// use latchwork_store::{Options, Store};
///
/// # let path = std::env::temp_dir().join(format!("store-options-{}", std::process::id()));
/// let mut options = Options::default();
/// options.sizes.cache = 8 << 20;
/// let store = Store::open_with(&path, &options)?;
/// # drop(store);
/// # std::fs::remove_dir_all(&path).unwrap();
/// # Ok::<(), latchwork_store::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of its parts, and when commits return.
    pub sizes: Sizes,
    /// Where the shared memory lies.
    pub place: MemoryPlace,
    /// Whether a store is made where there is none.
    pub create: bool,
    /// Whether the store is only read. It must exist, and this process needs no right to write its
    /// folder. Calls that would write return [`Error::ReadOnly`].
    ///
    /// Where processes have the store open, or killed ones left their memory, that memory is
    /// joined; this takes the right to write the memory, so the same user. A closed store is read
    /// in place, also on read-only media, and recovered in memory if it was not closed cleanly;
    /// until it is closed, [`Refusal::ReadElsewhere`] refuses processes that would write.
    pub read_only: bool,
    /// Whether it may lie on a network file system: the caller knows that all its processes are on
    /// one machine, and that locks work there.
    pub network: bool,
    /// How long to wait for a process that opens the store, which may recover it, or closes it;
    /// for as long as it takes if there is no limit.
    pub wait: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            sizes: Sizes::default(),
            place: MemoryPlace::default(),
            create: true,
            read_only: false,
            network: false,
            wait: None,
        }
    }
}

impl Options {
    /// For small stores, and for machines with little memory: segments of the log of 1 MiB, a cache
    /// and a buffer of the log that grow to 2 MiB and 1 MiB, a checkpoint each 4 MiB, 64 MiB of
    /// history, 64 MiB of addresses for locks, and 64 threads.
    pub fn small() -> Self {
        let sizes = Sizes {
            cache: 2 << 20,
            cache_max: 256 << 20,
            log_buffer: 1 << 20,
            log_segment: 1 << 20,
            log_budget: 4 << 20,
            history: 64 << 20,
            locks: 64 << 20,
            threads: 64,
            ..Sizes::default()
        };
        Self { sizes, ..Self::default() }
    }
}

/// Opens the store in a folder, as [`Store::open`](crate::Store::open) says.
pub(crate) fn open(
    path: &Path,
    options: &Options,
) -> Result<(Arc<StoreInner<Machine>>, Folder), Error> {
    options.sizes.check()?;
    let path = &std::path::absolute(path).map_err(|why| refused(path, why))?;
    let said = |why: std::io::Error| refused(path, why);
    match fs::metadata(path) {
        Ok(about) if !about.is_dir() => return Err(refused(path, Refusal::NotAFolder)),
        Err(why) if why.kind() == ErrorKind::NotADirectory => {
            return Err(refused(path, Refusal::NotAFolder));
        }
        _ => {}
    }
    if !options.create && !path.join("identity").try_exists().map_err(said)? {
        return Err(no_store(path));
    }
    let on = file_system(path)?;
    if on.kind == Kind::Network && !options.network {
        return Err(refused(path, Refusal::Network { kind: on.name }));
    }
    check_path(path)?;
    if fs::symlink_metadata(path).is_ok_and(|about| about.is_symlink()) && !path.exists() {
        return Err(refused(path, Refusal::DeadLink));
    }
    fs::create_dir_all(path).map_err(said)?;
    // One name for all: what lies in the memory has it.
    let path = &fs::canonicalize(path).map_err(said)?;
    check_path(path)?;
    let here = open_folder(path).map_err(said)?;
    is_own(path)?;
    has_own_files(path)?;
    is_for_a_store(path)?;
    // What is written below is written here, also if the folder is moved and another has its path.
    let disk: Arc<dyn Disk> = Arc::new(System::below(path)?);
    let _opening = lock_opening(path, lock_file(path, "opening")?, options.wait)?;
    let mut options = *options;
    let id = &identity(path, &mut options.sizes)?;
    options.sizes.check()?;
    // One that has its name by now, and whose maker died before it had taken its mark away: under
    // another name it could be taken for what a dead process left.
    let _ = fs::remove_file(path.join(MARK));
    remove_abandoned();
    let live = Locked::new(lock_file(path, "live")?).map_err(said)?;
    let (others, left) = others_and_memory(path, id, &live.file, options.wait)?;
    let opening = Opening { path, id, disk, options };
    let joined = match left {
        Some(Left { at, .. }) if others => {
            let home = opening.join(&at).map_err(|why| not_joined(&at, why))?;
            Some((home, at))
        }
        // All are gone: what they left is joined if it is whole.
        Some(left) => opening.rejoin(&left)?.map(|home| (home, left.at)),
        None => None,
    };
    let (home, memory) = match joined {
        Some(joined) => joined,
        None => opening.begin()?,
    };
    // Not before: while a process has it for itself, what that one's death leaves is looked at.
    live.file.lock_shared().map_err(said)?;
    let (path, id, creation) = (path.clone(), id.clone(), home.manager.region().creation());
    Ok((home, Folder { path, here, id, creation, memory, live }))
}

/// Whether other processes have the store open, and the memory that they have, or the dead left.
///
/// One that is dying is waited for, as long as one that opens the store is, and where it has no
/// memory a second: its locks go one after the other. If others have the store open still, their
/// memory is that of another namespace.
fn others_and_memory(
    path: &Path,
    id: &str,
    live: &File,
    wait: Option<Duration>,
) -> Result<(bool, Option<Left>), Error> {
    let most = wait.map_or(u128::MAX, |wait| wait.as_micros() / GOING.as_micros());
    for looks in 0_u32.. {
        match others(live).map_err(|why| refused(path, why))? {
            Some(others) => {
                let left = memory_left(path, id, others)?;
                if !others || left.is_some() {
                    return Ok((others, left));
                }
                if looks >= CLOSING || u128::from(looks) >= most {
                    break;
                }
            }
            None if u128::from(looks) >= most => {
                return Err(refused(path, Refusal::BeingOpened { process: None }));
            }
            None => {}
        }
        nap(GOING);
    }
    Err(refused(path, Refusal::OtherNamespace))
}

/// There is no store; or there are the files of one that has lost its `identity`.
fn no_store(path: &Path) -> Error {
    let is_there = |name| path.join(name).is_file();
    // A copy that is being made, or was, is none.
    if is_there("data") && is_there("log/control") && !is_there(MARK) {
        let what = "it is not there, and the other files of a store are: `salvage` reads them";
        return refused(path, Refusal::Damaged { file: "identity", what });
    }
    refused(path, Refusal::NoStore)
}

/// Whether shared memory can have the names of the files in a folder.
pub(crate) fn check_path(path: &Path) -> Result<(), Error> {
    match path.to_str() {
        Some(text) if text.len() <= PATH_MAX && !text.contains(['\n', '\r']) => Ok(()),
        _ => Err(refused(path, Refusal::Path)),
    }
}

/// A store that is being opened: its file `opening` is locked.
struct Opening<'s> {
    path: &'s Path,
    id: &'s str,
    disk: Arc<dyn Disk>,
    options: Options,
}

impl Opening<'_> {
    /// Takes part in what other processes have open.
    fn join(&self, at: &Path) -> Result<Arc<StoreInner<Machine>>, Error> {
        // What lacks a part is not what was left.
        let region = Region::open_whole(at.join("region"), &self.region_options())?;
        if told(self.path)?.is_none_or(|told| told.creation != region.creation()) {
            return Err(refused(self.path, Refusal::OtherNamespace));
        }
        self.home(&region)
    }

    /// Takes over what killed processes left. Returns none if that is damaged, or its log could not
    /// be written; or if the files may lack pages that its processes wrote: then the log in the
    /// files has all. For no other reason is the memory removed: it may have commits that the files
    /// do not.
    fn rejoin(&self, left: &Left) -> Result<Option<Arc<StoreInner<Machine>>>, Error> {
        let at = &*left.at;
        let home = match self.join(at) {
            Err(why) if is_unusable_memory(&why) => return Ok(None),
            // Other memory than the last processes had, of a time before theirs.
            Err(Error::Open { why: Refusal::OtherNamespace, .. }) => return Ok(None),
            joined => joined.map_err(|why| not_joined(at, why))?,
        };
        self.is_nobodys(home.manager.region())?;
        // Before the dead are undone: that would be written into pages that are not the store's.
        if !home.log.is_broken() && !home.log.has_its_files()? {
            if self.path.join("log/control").try_exists().is_ok_and(|there| !there) {
                let what = "its file `control` is not there: put it back, or `salvage` reads the \
                            files, without what was not synced";
                return Err(refused(self.path, Refusal::Damaged { file: "log", what }));
            }
            let what = "it is older than the shared memory that its processes left, or another: \
                        put the one back that was there; or `forget-memory` has the files count";
            return Err(refused(self.path, Refusal::Damaged { file: "log", what }));
        }
        home.log.doubt_unsynced()?;
        home.has_its_pages()?;
        if (!left.same || home.pool.may_have_failed(home.file)?) && !home.log.is_broken() {
            // Which of its pages the files have is unknown: they may be a copy, a sync failed, or a
            // process was killed in one. The log has all, and new memory is recovered from it.
            let worker = StoreSession::of_sweeper(home.clone(), home.manager.region().sweeper()?)?;
            match worker.log.flush(Lsn(home.log.end().0.saturating_sub(1))) {
                // Its disk fails, too: the files have what was made durable.
                Ok(()) | Err(LogError::Broken) => return Ok(None),
                Err(why) => return Err(why.into()),
            }
        }
        match home.sweep() {
            Err(why) if is_unusable_memory(&why) => return Ok(None),
            Ok(_) | Err(Error::NotUndone { .. }) => {}
            Err(why) => return Err(why),
        }
        Ok((!home.log.is_broken()).then_some(home))
    }

    /// Refuses memory of living processes where nobody has this folder open: they have another one
    /// open, of the same path and number. One that is just closing is waited for.
    fn is_nobodys(&self, region: &Region<Machine>) -> Result<(), Error> {
        let me = region.process().map_or(u32::MAX, |(slot, _)| slot);
        for _ in 0..CLOSING {
            let mut others = region.processes().into_iter().filter(|other| other.slot != me);
            if !others.any(|other| other.alive) {
                return Ok(());
            }
            nap(GOING);
        }
        Err(refused(self.path, Refusal::OtherFolder))
    }

    /// Makes new shared memory, and recovers the store into it. Says where it is, too.
    fn begin(&self) -> Result<(Arc<StoreInner<Machine>>, PathBuf), Error> {
        if let Some(what) = lost_log(self.path) {
            return Err(refused(self.path, Refusal::Damaged { file: "log", what }));
        }
        let said = |why: std::io::Error| refused(self.path, why);
        let at = self.make_folder(self.clear_memory()?)?;
        let within = |why: std::io::Error| refused(&at, why);
        if is_shared(self.path) {
            let all = fs::Permissions::from_mode(0o2770);
            fs::set_permissions(&at, all).map_err(within)?;
        }
        let made = || {
            write_file(&at.join(OF), &note_of(self.path)).map_err(within)?;
            let region = Region::create(at.join("region"), &self.region_options())?;
            Ok((region.creation(), self.home(&region)?))
        };
        // Memory of a store that does not open is nobody's.
        let (creation, home) = made().inspect_err(|_: &Error| drop(fs::remove_dir_all(&at)))?;
        // Only what is recovered is joined.
        match tell(self.path, &at, creation) {
            Ok(()) => Ok((home, at)),
            Err(why) => {
                drop(home);
                // What says that it is there, first.
                let _ = fs::remove_file(self.path.join("region"));
                let _ = fs::remove_dir_all(&at);
                Err(said(why))
            }
        }
    }

    /// Makes the folder of new memory, or one beside the data where the system does not let this
    /// process make any in `/dev/shm` (AppArmor, snap).
    fn make_folder(&self, at: PathBuf) -> Result<PathBuf, Error> {
        announce(self.path, &at).map_err(|why| refused(self.path, why))?;
        let beside = self.path.join("memory");
        match fs::DirBuilder::new().mode(0o700).create(&at) {
            Ok(()) => Ok(at),
            Err(why)
                if self.options.place == MemoryPlace::Auto && at != beside && is_denied(&why) =>
            {
                self.make_folder(beside)
            }
            Err(why) => Err(refused(&at, why)),
        }
    }

    /// Removes what memory there is, and returns where the new one goes.
    fn clear_memory(&self) -> Result<PathBuf, Error> {
        let said = |why: std::io::Error| refused(self.path, why);
        for at in named_for(self.path, self.id) {
            if let Ok(region) = Region::view(at.join("region"), &self.region_options()) {
                self.is_nobodys(&region)?;
            }
        }
        let places = places(self.path, self.id);
        // First: what it says of memory must not lead to a part of it, after a death in between.
        match fs::remove_file(self.path.join("region")) {
            Err(why) if why.kind() != ErrorKind::NotFound => return Err(said(why)),
            _ => {}
        }
        for at in &places {
            // Another store, that was made in the folder of this one, or any other thing of a
            // user's.
            if let Some(name) = take_away(at).map_err(|why| of_memory(at, why))? {
                return Err(refused(at, Refusal::NotMemory { name }));
            }
        }
        let needed = self.options.sizes.memory() + self.options.sizes.memory() / 8;
        let (memory, beside) = (new_memory(self.id).map_err(said)?, self.path.join("memory"));
        let room = if is_shared(self.path) { 0 } else { room() };
        Ok(if is_in_memory(self.options.place, room, needed) { memory } else { beside })
    }

    /// How the region is made and opened.
    fn region_options(&self) -> latchwork_region::Options {
        let mode = file_mode(self.path);
        latchwork_region::Options { mode, ..self.options.sizes.region() }
    }

    fn home(&self, region: &Region<Machine>) -> Result<Arc<StoreInner<Machine>>, Error> {
        StoreInner::open(region, &self.disk, self.path, &self.options.sizes, lanes())
    }
}

fn is_denied(why: &std::io::Error) -> bool {
    matches!(why.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

/// Whether an error says that shared memory is not what it was when it was left.
fn is_unusable_memory(why: &Error) -> bool {
    use latchwork_region::Error as Region;

    let is_log = matches!(
        why,
        Error::Log(latchwork_log::Error::Corrupt { .. } | latchwork_log::Error::Broken)
    );
    let is_part = |why| {
        matches!(
            why,
            Region::NotFound
                | Region::Foreign
                | Region::Truncated { .. }
                | Region::Corrupt { .. }
                | Region::OutOfRange(_)
                | Region::OutOfArea(_)
                | Region::ForeignArea
        )
    };
    is_log
        || matches!(why, Error::Pool(latchwork_pool::Error::Corrupt(_)))
        || of_region(why).is_some_and(is_part)
}

/// What the region said, whichever part of the store met it.
fn of_region(why: &Error) -> Option<latchwork_region::Error> {
    match why {
        Error::Region(why)
        | Error::Log(latchwork_log::Error::Region(why))
        | Error::Pool(latchwork_pool::Error::Region(why))
        | Error::Locks(latchwork_lockmgr::Error::Region(why)) => Some(*why),
        _ => None,
    }
}

/// Says of memory that cannot be joined whose it is, and what to do about it.
fn not_joined(at: &Path, why: Error) -> Error {
    use latchwork_region::Error as Region;

    let is_strange = |why| {
        matches!(
            why,
            Region::Symlink
                | Region::NotRegular
                | Region::HardLinked(_)
                | Region::TooOpen(_)
                | Region::Endian
                | Region::Version { .. }
                | Region::PageSize { .. }
        ) || matches!(why, Region::Waiters(why) if why != AttachError::TooMany)
    };
    match of_region(&why) {
        Some(Region::ForeignOwner(owner)) => return refused(at, Refusal::ForeignOwner { owner }),
        Some(Region::Processes(limit)) => return refused(at, Refusal::Processes { limit }),
        _ => {}
    }
    match is_unusable_memory(&why) || of_region(&why).is_some_and(is_strange) {
        true => refused(at, Refusal::Memory { why: why.to_string() }),
        false => why,
    }
}

/// What is missing where there are pages and no log of them: a new log would make them older than
/// they are, and be written over what there is of theirs.
fn lost_log(path: &Path) -> Option<&'static str> {
    use std::io::Read;

    let (log, data) = (path.join("log"), path.join("data"));
    // To open what is no file may wait for ever: what it is the pool says.
    // What cannot be looked at the log tells of.
    if !log.join("control").try_exists().is_ok_and(|there| !there) || !data.is_file() {
        return None;
    }
    let mut page = Vec::new();
    let read = open_file(&data).and_then(|data| data.take(4096).read_to_end(&mut page));
    // The file may have room for pages that were never written.
    let has_pages = read.is_ok() && page.iter().any(|byte| *byte != 0);
    let is_there = fs::read_dir(log).is_ok_and(|mut files| files.next().is_some());
    has_pages.then_some(match is_there {
        true => "its file `control` is not there: put it back, or `salvage` reads the others",
        false => "it is not there, and pages are: `salvage` reads them",
    })
}

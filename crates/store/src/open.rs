//! Opens the folder of a store and manages its lock files and its shared memory.
//!
//! ```text
//! identity   format, random store number, page and segment sizes; written once, at creation
//! data       pages
//! log/       the log
//! region     where the shared memory lies, in which boot it was created, and for which files
//! live       locked shared by every process that has the store open
//! opening    locked exclusively while a process opens or closes the store
//! ```
//!
//! The shared memory is a folder in `/dev/shm`, or `memory/` in the store's folder if `/dev/shm`
//! has no room. It survives the death of all processes but not a restart of the machine. A process
//! that opens the store joins the memory that `region` names if the machine has not restarted
//! since; otherwise it recovers the store. `region` also records the inode of the folder that the
//! memory belongs to: a folder that was copied or moved must not join the memory of the original
//! files.
//!
//! The locks use `flock(2)`, which the kernel releases when a process dies. Two containers that
//! share the folder but not `/dev/shm` cannot share memory: the second one finds `live` locked and
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

pub(crate) use self::abandoned::may_be_elsewhere;
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
pub(crate) use self::memory::{
    OF, PREFIX, SHM, is_place, recorded_memory, remove_memory, store_of,
};
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

/// Name of the marker file of a folder under construction. The process that holds a lock on this
/// file may do anything with the folder; all other processes leave it alone. The file contains the
/// final name of the folder.
pub(crate) const MARK: &str = "being-made";

/// Maximum length of a folder's path in bytes: shared memory stores the paths of its files.
const PATH_MAX: usize = 250;

/// Where the shared memory of a store lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryPlace {
    /// In `/dev/shm` if it has room, otherwise in the store's folder.
    #[default]
    Auto,
    /// In `/dev/shm`.
    Memory,
    /// In the store's folder. This works wherever the data does, but the kernel writes the memory's
    /// pages to the disk from time to time.
    Folder,
}

/// Options for opening a store.
///
/// If the store is already open in any process, the sizes of its shared memory (`cache`,
/// `log_buffer`, `locks`, `threads`) stay as they are. An existing store keeps the sizes of its
/// files (`page`, `log_segment`). `mode`, `log_budget` and `history` belong to each process. The
/// process that makes a checkpoint uses its own values, so give all processes of a store the same
/// ones.
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
    /// Sizes of the parts, and the durability mode of commits.
    pub sizes: Sizes,
    /// Where the shared memory lies.
    pub place: MemoryPlace,
    /// Creates the store if it does not exist.
    pub create: bool,
    /// Opens the store for reading only. The store must exist. The process needs no permission to
    /// write its folder. Calls that would write return [`Error::ReadOnly`].
    ///
    /// If other processes have the store open, or killed processes left their shared memory, this
    /// process joins that memory. Joining requires permission to write the memory, so the same
    /// user. A closed store is read in place, also from read-only media; if it was not closed
    /// cleanly, it is recovered in private memory. While it is read in place, processes that would
    /// write are refused with [`Refusal::ReadElsewhere`].
    pub read_only: bool,
    /// Allows a network file system. The caller guarantees that all processes of the store run on
    /// one machine and that file locks work there.
    pub network: bool,
    /// How long to wait for another process that is opening the store (which may include recovery)
    /// or closing it. `None`: without limit.
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
    /// Returns options for small stores and machines with little memory: log segments of 1 MiB, a
    /// cache of 2 MiB, a log buffer of 1 MiB, a checkpoint after each 4 MiB of log, 64 MiB of
    /// history, 64 MiB of address space for locks, and 64 threads.
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

/// Opens the store in a folder; see [`Store::open`](crate::Store::open).
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
    // Canonical, because the shared memory stores this path.
    let path = &fs::canonicalize(path).map_err(said)?;
    check_path(path)?;
    let here = open_folder(path).map_err(said)?;
    is_own(path)?;
    has_own_files(path)?;
    is_for_a_store(path)?;
    // Files are resolved relative to this folder, even if it is moved and another takes its path.
    let disk: Arc<dyn Disk> = Arc::new(System::below(path)?);
    let _opening = lock_opening(path, lock_file(path, "opening")?, options.wait)?;
    let mut options = *options;
    let id = &identity(path, &mut options.sizes)?;
    options.sizes.check()?;
    // A creator that died after the rename leaves its mark. Remove it: if the folder were renamed
    // again, it would look like an abandoned creation.
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
        // No process is left. Join the memory that they left if it is intact.
        Some(left) => opening.rejoin(&left)?.map(|home| (home, left.at)),
        None => None,
    };
    let (home, memory) = match joined {
        Some(joined) => joined,
        None => opening.begin()?,
    };
    // Only now: while another process holds `live` exclusively, it inspects what a death left.
    live.file.lock_shared().map_err(said)?;
    let (path, id, creation) = (path.clone(), id.clone(), home.manager.region().creation());
    Ok((home, Folder { path, here, id, creation, memory, live }))
}

/// Returns whether other processes have the store open, and the shared memory that exists.
///
/// A dying process releases its locks one after another. This waits for it as long as for a process
/// that opens the store, and for one second if there is no memory. If other processes still have
/// the store open after that, their memory belongs to another namespace.
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

/// Returns the error for a missing store, or for a store that lost its `identity` file.
fn no_store(path: &Path) -> Error {
    let is_there = |name| path.join(name).is_file();
    // A copy under construction is not a store.
    if is_there("data") && is_there("log/control") && !is_there(MARK) {
        let what = "it is missing, and the other files of a store exist: `salvage` reads them";
        return refused(path, Refusal::Damaged { file: "identity", what });
    }
    refused(path, Refusal::NoStore)
}

/// Checks that shared memory can store the paths of the files in a folder.
pub(crate) fn check_path(path: &Path) -> Result<(), Error> {
    match path.to_str() {
        Some(text) if text.len() <= PATH_MAX && !text.contains(['\n', '\r']) => Ok(()),
        _ => Err(refused(path, Refusal::Path)),
    }
}

/// A store that is being opened. The caller holds the lock on its `opening` file.
struct Opening<'s> {
    path: &'s Path,
    id: &'s str,
    disk: Arc<dyn Disk>,
    options: Options,
}

impl Opening<'_> {
    /// Joins the shared memory that other processes have open.
    fn join(&self, at: &Path) -> Result<Arc<StoreInner<Machine>>, Error> {
        // Memory that lacks a part was not left by this store.
        let region = Region::open_whole(at.join("region"), &self.region_options())?;
        if recorded_memory(self.path)?.is_none_or(|recorded| recorded.creation != region.creation())
        {
            return Err(refused(self.path, Refusal::OtherNamespace));
        }
        self.home(&region)
    }

    /// Takes over the memory of killed processes. Returns `None` if it is damaged, if its log could
    /// not be written, or if the files may lack pages that those processes wrote; in the last case
    /// the log in the files is complete. In no other case may the memory be discarded: it may
    /// contain commits that the files do not.
    fn rejoin(&self, left: &Left) -> Result<Option<Arc<StoreInner<Machine>>>, Error> {
        let at = &*left.at;
        let home = match self.join(at) {
            Err(why) if is_unusable_memory(&why) => return Ok(None),
            // This memory is older than the last processes of the store.
            Err(Error::Open { why: Refusal::OtherNamespace, .. }) => return Ok(None),
            joined => joined.map_err(|why| not_joined(at, why))?,
        };
        self.refuse_if_in_use(home.manager.region())?;
        // Check before rollback, which would write into pages of another store.
        if !home.log.is_broken() && !home.log.has_its_files()? {
            if self.path.join("log/control").try_exists().is_ok_and(|there| !there) {
                let what = "its file `control` is missing: restore it, or `salvage` reads the \
                            files, without what was not synced";
                return Err(refused(self.path, Refusal::Damaged { file: "log", what }));
            }
            let what = "it is older than the shared memory that its processes left, or another: \
                        restore the original; or run `forget-memory` to use the files alone";
            return Err(refused(self.path, Refusal::Damaged { file: "log", what }));
        }
        home.log.doubt_unsynced()?;
        home.has_its_pages()?;
        if (!left.same || home.pool.may_have_failed(home.file)?) && !home.log.is_broken() {
            // It is unknown which pages reached the files: the folder may be a copy, a sync may
            // have failed, or a process may have been killed during a sync. The log is complete, so
            // recover from it into new memory.
            let worker = StoreSession::of_sweeper(home.clone(), home.manager.region().sweeper()?)?;
            match worker.log.flush(Lsn(home.log.end().0.saturating_sub(1))) {
                // The disk of the log also fails. The files contain what was made durable.
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

    /// Refuses memory of living processes when no process has this folder open: those processes use
    /// another folder with the same path and number. A process that is closing is waited for.
    fn refuse_if_in_use(&self, region: &Region<Machine>) -> Result<(), Error> {
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

    /// Creates new shared memory and recovers the store into it. Returns the store and the memory's
    /// folder.
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
        // Remove the memory of a store that cannot be opened.
        let (creation, home) = made().inspect_err(|_: &Error| drop(fs::remove_dir_all(&at)))?;
        // Announce the memory only after recovery, so that no process joins it earlier.
        match tell(self.path, &at, creation) {
            Ok(()) => Ok((home, at)),
            Err(why) => {
                drop(home);
                // Remove the announcement before the memory.
                let _ = fs::remove_file(self.path.join("region"));
                let _ = fs::remove_dir_all(&at);
                Err(said(why))
            }
        }
    }

    /// Creates the folder of new memory. Falls back to the store's folder if the system denies
    /// access to `/dev/shm` (AppArmor, snap).
    fn make_folder(&self, at: PathBuf) -> Result<PathBuf, Error> {
        announce(self.path, &at).map_err(|why| refused(self.path, why))?;
        let in_folder = self.path.join("memory");
        match fs::DirBuilder::new().mode(0o700).create(&at) {
            Ok(()) => Ok(at),
            Err(why)
                if self.options.place == MemoryPlace::Auto
                    && at != in_folder
                    && is_denied(&why) =>
            {
                self.make_folder(in_folder)
            }
            Err(why) => Err(refused(&at, why)),
        }
    }

    /// Removes existing memory, and returns the path for the new one.
    fn clear_memory(&self) -> Result<PathBuf, Error> {
        let said = |why: std::io::Error| refused(self.path, why);
        for at in named_for(self.path, self.id) {
            if let Ok(region) = Region::view(at.join("region"), &self.region_options()) {
                self.refuse_if_in_use(&region)?;
            }
        }
        let places = places(self.path, self.id);
        // First, so that after a crash the file does not name memory that is partly removed.
        match fs::remove_file(self.path.join("region")) {
            Err(why) if why.kind() != ErrorKind::NotFound => return Err(said(why)),
            _ => {}
        }
        for at in &places {
            // It may be another store that was created in this folder, or any file of the user.
            if let Some(name) = remove_memory(at).map_err(|why| of_memory(at, why))? {
                return Err(refused(at, Refusal::NotMemory { name }));
            }
        }
        let needed = self.options.sizes.memory() + self.options.sizes.memory() / 8;
        let (memory, in_folder) = (new_memory(self.id).map_err(said)?, self.path.join("memory"));
        let room = if is_shared(self.path) { 0 } else { room() };
        Ok(if is_in_memory(self.options.place, room, needed) { memory } else { in_folder })
    }

    /// Returns the options with which the region is created and opened.
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

/// Returns whether an error means that the shared memory is damaged or incomplete.
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

/// Returns the error of the region, from whichever part of the store reported it.
fn of_region(why: &Error) -> Option<latchwork_region::Error> {
    match why {
        Error::Region(why)
        | Error::Log(latchwork_log::Error::Region(why))
        | Error::Pool(latchwork_pool::Error::Region(why))
        | Error::Locks(latchwork_lockmgr::Error::Region(why)) => Some(*why),
        _ => None,
    }
}

/// Adds the owner and advice to the error for memory that cannot be joined.
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

/// Returns what is wrong if pages exist without their log. A new log would start at older positions
/// than the pages have, and would be overwritten.
fn lost_log(path: &Path) -> Option<&'static str> {
    use std::io::Read;

    let (log, data) = (path.join("log"), path.join("data"));
    // Opening something that is not a file may block; the pool reports it. If `control` cannot be
    // inspected, the log reports the error.
    if !log.join("control").try_exists().is_ok_and(|there| !there) || !data.is_file() {
        return None;
    }
    let mut page = Vec::new();
    let read = open_file(&data).and_then(|data| data.take(4096).read_to_end(&mut page));
    // The file may contain space for pages that were never written.
    let has_pages = read.is_ok() && page.iter().any(|byte| *byte != 0);
    let is_there = fs::read_dir(log).is_ok_and(|mut files| files.next().is_some());
    has_pages.then_some(match is_there {
        true => "its file `control` is missing: restore it, or `salvage` reads the others",
        false => "it is missing, and pages exist: `salvage` reads them",
    })
}

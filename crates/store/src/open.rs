//! A store's folder: who has it open, and where its shared memory lies.
//!
//! ```text
//! identity   what this is: a format and a random number, written once
//! data       pages
//! log/       the log
//! region     where the shared memory is, and since which start of the machine
//! live       locked by every process that has the store open, all at once
//! opening    locked by the one that opens it or closes it
//! ```
//!
//! The shared memory is a folder in `/dev/shm`, which outlives all processes and not the machine;
//! or one beside the data where `/dev/shm` has no room. What `region` says is believed if the
//! machine has not started again since, so a process joins what is there, or recovers the store.
//!
//! The locks are `flock(2)`'s, which the system takes back from the dead. Two containers that see
//! one folder and not one `/dev/shm` are told apart by them: the second one finds `live` locked and
//! no memory to join, and is refused.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use latchwork_disk::System;
use latchwork_machine::Shared as Machine;
use latchwork_region::Region;

use crate::Error;
use crate::files::home::{Home, Sizes};

const FORMAT: &str = "latchwork store, format 1";
const SHM: &str = "/dev/shm";

/// Where the memory lies that a store's processes share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// In `/dev/shm` if it has room, else beside the data.
    #[default]
    Auto,
    /// In `/dev/shm`.
    Memory,
    /// In the store's folder: it works wherever the data does, and the system writes its pages to
    /// the disk now and then.
    Beside,
}

/// How a store is opened. What is open already, in any process, keeps its sizes.
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
    pub place: Place,
    /// Whether a store is made where there is none.
    pub create: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { sizes: Sizes::default(), place: Place::default(), create: true }
    }
}

/// A store's folder, as a process that has it open holds it.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    /// Locked, shared, for as long as the store is open.
    live: File,
}

fn refused(path: &Path, why: impl ToString) -> Error {
    Error::Open { path: path.to_owned(), why: why.to_string() }
}

/// A random number, as text.
fn random() -> Result<String, std::io::Error> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Which start of the machine this is.
fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Free bytes of `/dev/shm`.
fn room() -> u64 {
    rustix::fs::statvfs(SHM).map_or(0, |fs| fs.f_bavail * fs.f_frsize)
}

/// Opens the store in a folder, as [`Store::open`](crate::Store::open) says.
pub(crate) fn open(path: &Path, options: &Options) -> Result<(Arc<Home<Machine>>, Folder), Error> {
    options.sizes.check()?;
    let path = &std::path::absolute(path).map_err(|why| refused(path, why))?;
    if !options.create && !path.join("identity").exists() {
        return Err(refused(path, "there is no store; `create` makes one"));
    }
    let said = |why: std::io::Error| refused(path, why);
    fs::create_dir_all(path).map_err(said)?;
    let lock = |name: &str| {
        let options =
            fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
        options.open(path.join(name)).map_err(said)
    };
    let opening = lock("opening")?;
    opening.lock().map_err(said)?;
    let id = identity(path)?;
    let live = lock("live")?;
    let others = match live.try_lock() {
        Ok(()) => false,
        Err(TryLockError::WouldBlock) => true,
        Err(TryLockError::Error(why)) => return Err(said(why)),
    };
    let at = region_of(path);
    let home = match (at.filter(|at| at.join("region").exists()), others) {
        (Some(at), true) => Some(join(&at, path, options)?),
        (None, true) => {
            return Err(refused(
                path,
                "other processes have it open, and their shared memory is not to be seen from \
                 here: share /dev/shm between the containers, or use one of them",
            ));
        }
        // All are gone: what they left is joined if it is whole.
        (Some(at), false) => rejoin(&at, path, options),
        (None, false) => None,
    };
    live.lock_shared().map_err(said)?;
    let home = match home {
        Some(home) => home,
        None => begin(path, &id, options)?,
    };
    Ok((home, Folder { path: path.clone(), live }))
}

/// The store's number; made if the folder has none.
fn identity(path: &Path) -> Result<String, Error> {
    let said = |why: std::io::Error| refused(path, why);
    match fs::read_to_string(path.join("identity")) {
        Ok(text) => match text.split_once('\n') {
            Some((FORMAT, id)) => Ok(id.trim().to_owned()),
            _ => Err(refused(path, "its file `identity` is not one that this version knows")),
        },
        Err(why) if why.kind() == ErrorKind::NotFound => {
            let ours = ["opening", "live", "identity-new"];
            let other = fs::read_dir(path).map_err(said)?.filter_map(Result::ok);
            let other = other
                .map(|entry| entry.file_name())
                .find(|name| !ours.contains(&name.to_string_lossy().as_ref()));
            if let Some(other) = other {
                let other = other.to_string_lossy().into_owned();
                return Err(refused(path, format!("no store, and not empty: it has `{other}`")));
            }
            let id = random().map_err(said)?;
            let fresh = path.join("identity-new");
            let mut file = File::create(&fresh).map_err(said)?;
            write!(file, "{FORMAT}\n{id}\n").and_then(|()| file.sync_all()).map_err(said)?;
            fs::rename(&fresh, path.join("identity")).map_err(said)?;
            File::open(path).and_then(|folder| folder.sync_all()).map_err(said)?;
            Ok(id)
        }
        Err(why) => Err(said(why)),
    }
}

/// Where the shared memory is, if it is of this start of the machine.
fn region_of(path: &Path) -> Option<PathBuf> {
    let text = fs::read_to_string(path.join("region")).ok()?;
    let (boot_then, at) = text.split_once('\n')?;
    (boot_then == boot()).then(|| PathBuf::from(at.trim_end_matches('\n')))
}

/// Takes part in what other processes have open.
fn join(at: &Path, path: &Path, options: &Options) -> Result<Arc<Home<Machine>>, Error> {
    let region = Region::open(at.join("region"), &options.sizes.region())?;
    Home::open(&region, &(Arc::new(System::new()) as _), path, &options.sizes)
}

/// Takes over what killed processes left; none if that is not whole.
fn rejoin(at: &Path, path: &Path, options: &Options) -> Option<Arc<Home<Machine>>> {
    let home = join(at, path, options).ok()?;
    let whole = !home.log.is_broken() && home.manager.region().sweep().is_ok();
    whole.then_some(home)
}

/// Makes new shared memory, and recovers the store into it.
fn begin(path: &Path, id: &str, options: &Options) -> Result<Arc<Home<Machine>>, Error> {
    let said = |why: std::io::Error| refused(path, why);
    let memory = Path::new(SHM).join(format!("latchwork-{id}"));
    let beside = path.join("memory");
    for old in [&memory, &beside] {
        match fs::remove_dir_all(old) {
            Err(why) if why.kind() != ErrorKind::NotFound => return Err(said(why)),
            _ => {}
        }
    }
    let in_memory = match options.place {
        Place::Memory => true,
        Place::Beside => false,
        Place::Auto => room() >= options.sizes.memory() + options.sizes.memory() / 8,
    };
    let at = if in_memory { memory } else { beside };
    fs::DirBuilder::new().mode(0o700).create(&at).map_err(said)?;
    let region = Region::create(at.join("region"), &options.sizes.region())?;
    let home = Home::open(&region, &(Arc::new(System::new()) as _), path, &options.sizes)?;
    // Only what is recovered is joined.
    let fresh = path.join("region-new");
    fs::write(&fresh, format!("{}\n{}\n", boot(), at.display())).map_err(said)?;
    fs::rename(&fresh, path.join("region")).map_err(said)?;
    Ok(home)
}

impl Folder {
    /// Closes the store: the last process that has it open makes a checkpoint, and takes the shared
    /// memory away.
    pub(crate) fn close(&self, finish: impl FnOnce() -> Result<(), Error>) {
        let Ok(opening) = File::open(self.path.join("opening")) else { return };
        if opening.lock().is_err() {
            return;
        }
        // The lock becomes exclusive only if no other process has it.
        let _ = self.live.unlock();
        if self.live.try_lock().is_ok()
            && finish().is_ok()
            && let Some(at) = region_of(&self.path)
        {
            let _ = fs::remove_file(self.path.join("region"));
            let _ = fs::remove_dir_all(at);
        }
        // Before `opening` goes: the next process must not find it locked.
        let _ = self.live.unlock();
    }
}

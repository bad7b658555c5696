//! A store's folder: who has it open, and where its shared memory lies.
//!
//! ```text
//! identity   what this is: a format, a random number, bytes of pages and segments; written once
//! data       pages
//! log/       the log
//! region     where the shared memory is, since which start of the machine, and of which folder
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

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use latchwork_disk::{Disk, System, within_limit};
use latchwork_machine::Shared as Machine;
use latchwork_region::Region;
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::error::refused;
use crate::files::home::{Home, Sizes};
use crate::files::redo::lanes;
use crate::place::{Kind, file_system};
use crate::{Error, Refusal};

const TITLE: &str = "latchwork store, format ";
const FORMAT: u64 = 5;
/// The most bytes of a folder's path: those of the files in it are kept in shared memory.
const PATH_MAX: usize = 250;
/// Where shared memory lies.
pub(crate) const SHM: &str = "/dev/shm";
/// What the folders there are named by.
pub(crate) const PREFIX: &str = "latchwork-";
/// The file of such a folder that says of which store it is.
pub(crate) const OF: &str = "store";

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
    pub place: Place,
    /// Whether a store is made where there is none.
    pub create: bool,
    /// Whether it may lie on a network file system: the caller knows that all its processes are on
    /// one machine, and that locks work there.
    pub network: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { sizes: Sizes::default(), place: Place::default(), create: true, network: false }
    }
}

/// A store's folder, as a process that has it open holds it.
#[derive(Debug)]
pub(crate) struct Folder {
    /// The path that it had when it was opened: it may be another folder's by now.
    pub(crate) path: PathBuf,
    /// The folder itself.
    here: File,
    /// Where its shared memory is, if that is in `/dev/shm`.
    memory: PathBuf,
    /// Locked, shared, for as long as the store is open.
    live: Locked,
}

/// A file that this process has locked, until the value goes. That lets go of the lock by a call of
/// its own: a child that another thread forks meanwhile has the file open, too, and keeps the lock
/// of one that is closed only.
#[derive(Debug)]
pub(crate) struct Locked {
    file: File,
    process: u32,
}

impl Locked {
    fn new(file: File) -> Self {
        Self { file, process: std::process::id() }
    }

    /// Waits until the file is locked for this process alone.
    fn alone(file: File) -> Result<Self, std::io::Error> {
        loop {
            match file.lock() {
                // A signal came.
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                locked => return locked.map(|()| Self::new(file)),
            }
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // In the child of a fork it is the parent's lock.
        if self.process == std::process::id() {
            let _ = self.file.unlock();
        }
    }
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
    let said = |why: std::io::Error| refused(path, why);
    match fs::metadata(path) {
        Ok(about) if !about.is_dir() => return Err(refused(path, Refusal::NotAFolder)),
        Err(why) if why.kind() == ErrorKind::NotADirectory => {
            return Err(refused(path, Refusal::NotAFolder));
        }
        _ => {}
    }
    if !options.create && !path.join("identity").exists() {
        return Err(refused(path, Refusal::NoStore));
    }
    let on = file_system(path)?;
    if on.kind == Kind::Network && !options.network {
        return Err(refused(path, Refusal::Network { kind: on.name }));
    }
    check_path(path)?;
    fs::create_dir_all(path).map_err(said)?;
    // One name for all: what lies in the memory has it.
    let path = &fs::canonicalize(path).map_err(said)?;
    check_path(path)?;
    // What is written below is written here, also if the folder is moved and another has its path.
    let disk: Arc<dyn Disk> = Arc::new(System::below(path)?);
    let here = File::open(path).map_err(said)?;
    let _opening = Locked::alone(lock_file(path, "opening")?).map_err(said)?;
    let mut options = *options;
    let id = identity(path, &mut options.sizes)?;
    options.sizes.check()?;
    let options = &options;
    let live = Locked::new(lock_file(path, "live")?);
    let others = match live.file.try_lock() {
        Ok(()) => false,
        Err(TryLockError::WouldBlock) => true,
        Err(TryLockError::Error(why)) => return Err(said(why)),
    };
    let at = region_of(path, &id)?;
    let home = match (at.filter(|at| at.join("region").exists()), others) {
        (Some(at), true) => Some(join(&at, path, &disk, options)?),
        (None, true) => return Err(refused(path, Refusal::OtherNamespace)),
        // All are gone: what they left is joined if it is whole.
        (Some(at), false) => rejoin(&at, path, &disk, options)?,
        (None, false) => None,
    };
    live.file.lock_shared().map_err(said)?;
    let home = match home {
        Some(home) => home,
        None => begin(path, &id, &disk, options)?,
    };
    Ok((home, Folder { path: path.clone(), here, memory: memory_of(path, &id), live }))
}

/// Whether shared memory can have the names of the files in a folder.
fn check_path(path: &Path) -> Result<(), Error> {
    match path.to_str() {
        Some(text) if text.len() <= PATH_MAX && !text.contains(['\n', '\r']) => Ok(()),
        _ => Err(refused(path, Refusal::Path)),
    }
}

/// A file that is there to be locked.
fn lock_file(path: &Path, name: &str) -> Result<File, Error> {
    // Nobody else can lock it: a lock takes no more than the right to read.
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.open(path.join(name)).map_err(|why| refused(path, why))
}

/// The store's number, and the sizes that it keeps; made if the folder has none.
fn identity(path: &Path, sizes: &mut Sizes) -> Result<String, Error> {
    let said = |why: std::io::Error| refused(path, why);
    match fs::read(path.join("identity")) {
        Ok(bytes) => read_identity(&bytes, sizes).map_err(|why| refused(path, why)),
        Err(why) if why.kind() == ErrorKind::NotFound => {
            let ours = ["opening", "live", "identity-new"];
            let other = fs::read_dir(path).map_err(said)?.filter_map(Result::ok);
            let mut other = other.map(|entry| entry.file_name());
            match other.find(|name| !ours.contains(&name.to_string_lossy().as_ref())) {
                Some(name) => Err(refused(path, Refusal::NotEmpty { name })),
                None => write_identity(path, sizes),
            }
        }
        Err(why) => Err(said(why)),
    }
}

/// Makes a folder a store: it gets a number.
pub(crate) fn write_identity(path: &Path, sizes: &Sizes) -> Result<String, Error> {
    let said = |why: std::io::Error| refused(path, why);
    let id = random().map_err(said)?;
    let fresh = path.join("identity-new");
    let Sizes { page, log_segment, .. } = sizes;
    let text = format!("{TITLE}{FORMAT}\n{id}\npage {page}\nsegment {log_segment}\n");
    write_file(&fresh, &text).and_then(|file| file.sync_all()).map_err(said)?;
    fs::rename(&fresh, path.join("identity")).map_err(said)?;
    File::open(path).and_then(|folder| folder.sync_all()).map_err(said)?;
    // As far as this user may, and that file system can.
    if let Some(around) = path.parent().and_then(|around| File::open(around).ok()) {
        let _ = around.sync_all();
    }
    Ok(id)
}

/// Makes a file of this text.
fn write_file(path: &Path, text: &str) -> std::io::Result<File> {
    let mut file = File::create(path)?;
    within_limit(text.len() as u64, || file.write_all(text.as_bytes()))?;
    Ok(file)
}

/// The number that an identity says, and the sizes; one that was written before it said these has
/// what the caller says.
pub(crate) fn read_identity(bytes: &[u8], sizes: &mut Sizes) -> Result<String, Refusal> {
    let wrong = |what| Refusal::Damaged { file: "identity", what };
    let text = str::from_utf8(bytes).map_err(|_| wrong("it is no text"))?;
    if !text.ends_with('\n') {
        return Err(wrong("it is cut off"));
    }
    let mut lines = text.lines();
    let format = lines.next().and_then(|line| line.strip_prefix(TITLE));
    match format.ok_or(wrong("another program wrote it"))?.parse() {
        Ok(FORMAT) => {}
        Ok(format) if format > FORMAT => return Err(Refusal::Newer { format }),
        Ok(format) => return Err(Refusal::Older { format }),
        Err(_) => return Err(wrong("its format")),
    }
    let id = lines.next().unwrap_or_default();
    if id.len() != 32 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(wrong("no number of a store"));
    }
    let mut names = Vec::new();
    for line in lines {
        let (name, bytes) = line.split_once(' ').unwrap_or_default();
        if names.contains(&name) {
            return Err(wrong("a line that is there twice"));
        }
        names.push(name);
        let bytes = bytes.parse::<u64>().map_err(|_| wrong("a size"))?;
        match name {
            "page" => sizes.page = u32::try_from(bytes).map_err(|_| wrong("a size"))?,
            "segment" => sizes.log_segment = bytes,
            _ => return Err(wrong("a line")),
        }
    }
    // The log's buffer is no larger than a segment of it.
    while sizes.log_buffer > sizes.log_segment {
        sizes.log_buffer /= 2;
    }
    sizes.check().map_err(|_| wrong("a size"))?;
    Ok(id.to_owned())
}

/// The folder in `/dev/shm` of the store in this folder: another of the same number, which is a
/// copy of it, has another.
fn memory_of(path: &Path, id: &str) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;

    let inode = fs::metadata(path).map_or(0, |about| about.ino());
    // FNV-1a, 64 bits.
    let bytes = path.as_os_str().as_bytes().iter().copied().chain(inode.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    Path::new(SHM).join(format!("{PREFIX}{id}-{hash:016x}"))
}

/// What a folder's file `region` says.
pub(crate) struct Told {
    /// Whether the machine was not started again since.
    pub(crate) now: bool,
    /// Where the memory is.
    pub(crate) at: PathBuf,
    /// Of which folder.
    pub(crate) of: PathBuf,
}

/// Reads a folder's file `region`; none if there is none.
pub(crate) fn told(path: &Path) -> Result<Option<Told>, Error> {
    let text = match fs::read_to_string(path.join("region")) {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|why| refused(path, why))?,
    };
    parse(&text).map(Some).map_err(|why| refused(path, why))
}

fn parse(text: &str) -> Result<Told, Refusal> {
    let mut lines = text.lines();
    let (Some(boot_then), Some(at), Some(of)) = (lines.next(), lines.next(), lines.next()) else {
        let what = "it is cut off; `forget-memory` has the files alone count";
        return Err(Refusal::Damaged { file: "region", what });
    };
    Ok(Told { now: boot_then == boot(), at: PathBuf::from(at), of: PathBuf::from(of) })
}

/// Where the shared memory is, if it is of this start of the machine.
fn region_of(path: &Path, id: &str) -> Result<Option<PathBuf>, Error> {
    let Some(told) = told(path)?.filter(|told| told.now) else { return Ok(None) };
    if told.of != path {
        return Err(refused(path, Refusal::Elsewhere { path: told.of }));
    }
    if told.at != memory_of(path, id) && told.at != path.join("memory") {
        let what = "it names memory that is not this store's";
        return Err(refused(path, Refusal::Damaged { file: "region", what }));
    }
    Ok(Some(told.at))
}

/// Takes part in what other processes have open.
fn join(
    at: &Path,
    path: &Path,
    disk: &Arc<dyn Disk>,
    options: &Options,
) -> Result<Arc<Home<Machine>>, Error> {
    let region = Region::open(at.join("region"), &options.sizes.region())?;
    Home::open(&region, disk, path, &options.sizes, lanes())
}

/// Takes over what killed processes left; none if that is damaged, or its log could not be written.
/// Nothing else has the memory thrown away: it may have commits that the files do not.
fn rejoin(
    at: &Path,
    path: &Path,
    disk: &Arc<dyn Disk>,
    options: &Options,
) -> Result<Option<Arc<Home<Machine>>>, Error> {
    let home = match join(at, path, disk, options) {
        Err(why) if is_damage(&why) => return Ok(None),
        joined => joined?,
    };
    // Before the dead are undone: that would be written into pages that are not the store's.
    home.has_its_pages()?;
    match home.sweep() {
        Err(why) if is_damage(&why) => return Ok(None),
        Ok(_) | Err(Error::NotUndone { .. }) => {}
        Err(why) => return Err(why),
    }
    Ok((!home.log.is_broken()).then_some(home))
}

/// Whether an error says that shared memory is not what it was when it was left.
fn is_damage(why: &Error) -> bool {
    use latchwork_lockmgr::Error as Locks;
    use latchwork_log::Error as Log;
    use latchwork_pool::Error as Pool;
    use latchwork_region::Error as Region;

    let region = match why {
        Error::Log(Log::Corrupt { .. } | Log::Broken) | Error::Pool(Pool::Corrupt(_)) => {
            return true;
        }
        Error::Region(why)
        | Error::Log(Log::Region(why))
        | Error::Pool(Pool::Region(why))
        | Error::Locks(Locks::Region(why)) => why,
        _ => return false,
    };
    matches!(
        region,
        Region::NotFound
            | Region::Foreign
            | Region::Truncated { .. }
            | Region::Corrupt { .. }
            | Region::OutOfRange(_)
            | Region::OutOfArea(_)
            | Region::ForeignArea
    )
}

/// Whether there are pages and no log of them: a new log would make them older than they are.
fn has_lost_log(path: &Path) -> bool {
    use std::io::Read;

    let is_there = fs::read_dir(path.join("log")).is_ok_and(|mut files| files.next().is_some());
    let mut page = Vec::new();
    let data = File::open(path.join("data"));
    let read = data.and_then(|data| data.take(4096).read_to_end(&mut page));
    // The file may have room for pages that were never written.
    !is_there && read.is_ok() && page.iter().any(|byte| *byte != 0)
}

/// Makes new shared memory, and recovers the store into it.
fn begin(
    path: &Path,
    id: &str,
    disk: &Arc<dyn Disk>,
    options: &Options,
) -> Result<Arc<Home<Machine>>, Error> {
    if has_lost_log(path) {
        let what = "it is not there, and pages are: `salvage` reads them";
        return Err(refused(path, Refusal::Damaged { file: "log", what }));
    }
    let said = |why: std::io::Error| refused(path, why);
    let (memory, beside) = (memory_of(path, id), path.join("memory"));
    // What it says of memory that is gone must not lead to what is recovered now, and may die of
    // it.
    match fs::remove_file(path.join("region")) {
        Err(why) if why.kind() != ErrorKind::NotFound => return Err(said(why)),
        _ => {}
    }
    // Another store, that was made in the folder of this one.
    if beside.join("identity").exists() {
        return Err(refused(path, Refusal::NotEmpty { name: "memory".into() }));
    }
    for old in [&memory, &beside] {
        match fs::remove_dir_all(old) {
            Err(why) if why.kind() != ErrorKind::NotFound => return Err(said(why)),
            _ => {}
        }
    }
    let needed = options.sizes.memory() + options.sizes.memory() / 8;
    let at = if is_in_memory(options.place, room(), needed) { memory } else { beside };
    fs::DirBuilder::new().mode(0o700).create(&at).map_err(said)?;
    write_file(&at.join(OF), &format!("{}\n", path.display())).map_err(said)?;
    let made = Region::create(at.join("region"), &options.sizes.region()).map_err(Error::from);
    let made = made.and_then(|region| Home::open(&region, disk, path, &options.sizes, lanes()));
    // Memory of a store that does not open is nobody's.
    let home = made.inspect_err(|_| drop(fs::remove_dir_all(&at)))?;
    // Only what is recovered is joined.
    let fresh = path.join("region-new");
    let text = format!("{}\n{}\n{}\n", boot(), at.display(), path.display());
    // Else a crash of the machine could leave the name with nothing in the file.
    write_file(&fresh, &text).and_then(|file| file.sync_all()).map_err(said)?;
    fs::rename(&fresh, path.join("region")).map_err(said)?;
    Ok(home)
}

/// Whether memory goes to `/dev/shm`, which has so much room, where it needs so much.
fn is_in_memory(place: Place, room: u64, needed: u64) -> bool {
    match place {
        Place::Memory => true,
        Place::Beside => false,
        Place::Auto => room >= needed,
    }
}

/// A store that nobody has open, and that nobody opens while this lives.
#[derive(Debug)]
pub(crate) struct AtRest {
    pub(crate) path: PathBuf,
    pub(crate) id: String,
    /// Locked.
    _opening: Option<Locked>,
}

/// Takes hold of a store that nobody has open, and says what sizes it keeps. Nothing is written.
pub(crate) fn at_rest(path: &Path, sizes: &mut Sizes) -> Result<AtRest, Error> {
    let path = fs::canonicalize(path).map_err(|why| match why.kind() {
        ErrorKind::NotFound => refused(path, Refusal::NoStore),
        _ => refused(path, why),
    })?;
    let said = |why: std::io::Error| refused(&path, why);
    // What was never opened, or came out of an archive, may not have the files that are locked.
    let file = |name: &str| match File::open(path.join(name)) {
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some).map_err(said),
    };
    let opening = file("opening")?.map(Locked::alone).transpose().map_err(said)?;
    if let Some(live) = file("live")?.map(Locked::new) {
        match live.file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(refused(&path, Refusal::InUse)),
            Err(TryLockError::Error(why)) => return Err(said(why)),
        }
    }
    let bytes = match fs::read(path.join("identity")) {
        Err(why) if why.kind() == ErrorKind::NotFound => Err(refused(&path, Refusal::NoStore)),
        other => other.map_err(said),
    }?;
    let id = read_identity(&bytes, sizes).map_err(|why| refused(&path, why))?;
    Ok(AtRest { path, id, _opening: opening })
}

impl AtRest {
    /// Where memory is that killed processes left, if this machine has it.
    pub(crate) fn left(&self) -> Result<Option<PathBuf>, Error> {
        let Some(at) = region_of(&self.path, &self.id)? else { return Ok(None) };
        // What this user may not look at is there.
        let there = at.join("region").try_exists().map_err(|why| refused(&self.path, why))?;
        Ok(there.then_some(at))
    }
}

impl Folder {
    /// Closes the store: the last process that has it open makes a checkpoint, and takes the shared
    /// memory away.
    pub(crate) fn close(&self, finish: impl FnOnce() -> Result<(), Error>) {
        let Ok(_opening) = self.file("opening").and_then(Locked::alone) else { return };
        // The lock becomes exclusive only if no other process has it.
        let _ = self.live.file.unlock();
        if self.live.file.try_lock().is_ok()
            && finish().is_ok()
            && let Ok(told) = self.file("region").and_then(std::io::read_to_string)
            && let Ok(Told { now: true, at, of }) = parse(&told)
            && of == self.path
        {
            let _ = rustix::fs::unlinkat(&self.here, "region", AtFlags::empty());
            if at == self.memory || at == self.path.join("memory") && self.is_there() {
                let _ = fs::remove_dir_all(at);
            }
        }
        // Before `opening` goes: the next process must not find it locked.
        let _ = self.live.file.unlock();
    }

    /// A file of it.
    fn file(&self, name: &str) -> Result<File, std::io::Error> {
        let how = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.here, name, how, Mode::empty())?.into())
    }

    /// Whether the folder has the path that it had.
    fn is_there(&self) -> bool {
        let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        let both = fs::metadata(&self.path).and_then(|there| Ok((there, self.here.metadata()?)));
        both.is_ok_and(|(there, here)| same(there, here))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_beside_the_data_where_there_is_no_room() {
        let needed = Sizes::default().memory();
        assert!(is_in_memory(Place::Auto, needed, needed));
        assert!(!is_in_memory(Place::Auto, 64 << 20, needed), "as containers have it");
        assert!(is_in_memory(Place::Memory, 0, needed));
        assert!(!is_in_memory(Place::Beside, u64::MAX, needed));
    }

    #[test]
    fn an_identity_that_is_anything_is_refused_or_understood() {
        let number = "0123456789abcdef0123456789abcdef";
        let sound = format!("{TITLE}{FORMAT}\n{number}\npage 4096\nsegment 4194304\n");
        let read = |bytes: &[u8]| read_identity(bytes, &mut Sizes::default());
        assert_eq!(read(sound.as_bytes()).as_deref(), Ok(number));
        assert_eq!(read(format!("{TITLE}{FORMAT}\n{number}\n").as_bytes()).as_deref(), Ok(number));
        let newer = sound.replace("format 5", "format 6");
        assert_eq!(read(newer.as_bytes()), Err(Refusal::Newer { format: 6 }));
        let older = sound.replace("format 5", "format 4");
        assert_eq!(read(older.as_bytes()), Err(Refusal::Older { format: 4 }));
        for length in 0..sound.len() {
            if let Ok(id) = read(&sound.as_bytes()[..length]) {
                assert!(sound[..length].ends_with('\n'), "{length}: {id}");
            }
        }
        for wrong in ["page 0", "page 5000", "page 99999999999", "segment 1", "room 7", "page"] {
            let text = sound.replace("page 4096", wrong);
            assert!(matches!(read(text.as_bytes()), Err(Refusal::Damaged { .. })), "{wrong}");
        }
        let path = sound.replace(number, "../../../../../../../../../../../e");
        assert!(matches!(read(path.as_bytes()), Err(Refusal::Damaged { .. })));
        assert!(matches!(read(b"\xff\xfe\n"), Err(Refusal::Damaged { .. })));
    }
}

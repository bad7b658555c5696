//! The folders that profiles are written to: one for each run, with a file for each process.
//!
//! A folder is locked for as long as latchwork waits for its program. One that nobody holds, and
//! none of whose processes runs, is what a killed latchwork left: the next one removes it.

use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::found;

/// Where such folders are made, if not in memory.
const ROOT: &str = "LATCHWORK_FOLDER";

/// A folder younger than this may not have been locked yet.
const YOUNG: Duration = Duration::from_secs(10);

/// A folder that only this user can look into, removed when dropped.
pub(crate) struct Folder {
    path: PathBuf,
    /// Holds the lock.
    _held: File,
    is_kept: bool,
}

impl Folder {
    /// A new one. Removes those that others left behind.
    pub(crate) fn new() -> std::io::Result<Self> {
        sweep();
        let mut last = ErrorKind::NotFound.into();
        for root in roots() {
            for n in 0..100u32 {
                let path = root.join(format!("{}{}.{n}", prefix(), std::process::id()));
                match DirBuilder::new().mode(0o700).create(&path) {
                    Ok(()) => {
                        let held = File::open(&path)?;
                        held.lock()?;
                        return Ok(Self { path, _held: held, is_kept: false });
                    }
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                    Err(error) => {
                        last = error;
                        break;
                    }
                }
            }
        }
        Err(last)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the folder, for processes that still write to it.
    pub(crate) fn keep(mut self) -> PathBuf {
        self.is_kept = true;
        self.path.clone()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn prefix() -> String {
    // SAFETY: it only tells.
    format!("latchwork-{}-", unsafe { libc::geteuid() })
}

/// Where such folders are made: memory first, for the segments are written as memory is.
fn roots() -> Vec<PathBuf> {
    match std::env::var_os(ROOT) {
        Some(root) => vec![root.into()],
        None => vec!["/dev/shm".into(), std::env::temp_dir()],
    }
}

/// Whether a name is two numbers and a dot, and perhaps something behind another: so folders are
/// called behind their prefix, and the files in them.
fn is_numbered(name: &str, more: bool) -> bool {
    let mut parts = name.split('.');
    let numbers: Vec<_> = parts.by_ref().take(2).collect();
    let number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    numbers.len() == 2 && numbers.iter().all(number) && (more || parts.next().is_none())
}

/// This user's folders.
fn all() -> impl Iterator<Item = PathBuf> {
    let prefix = prefix();
    // SAFETY: it only tells.
    let user = unsafe { libc::geteuid() };
    let own = move |entry: &fs::DirEntry| {
        // Somebody else's folder may lie in a folder that all may write to.
        let name = entry.file_name();
        name.to_string_lossy().strip_prefix(&prefix).is_some_and(|name| is_numbered(name, false))
            && entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == user)
    };
    let folders = roots().into_iter().filter_map(|root| fs::read_dir(root).ok());
    folders.flatten().flatten().filter(own).map(|entry| entry.path())
}

/// Whether latchwork waits for a program that writes to a folder.
pub(crate) fn is_held(folder: &Path) -> bool {
    let lock = File::open(folder).map(|folder| folder.try_lock());
    matches!(lock, Ok(Err(fs::TryLockError::WouldBlock)))
}

/// Whether anything may still be written to a folder.
fn is_live(folder: &Path) -> bool {
    is_held(folder) || found::read(folder).is_running()
}

/// The folders of programs that run.
pub(crate) fn live() -> Vec<PathBuf> {
    all().filter(|folder| is_live(folder)).collect()
}

/// The folder in which a process writes its profile, or that it waits for.
pub(crate) fn of_process(process: u32) -> Option<PathBuf> {
    let waits = format!("{}{process}.", prefix());
    let is_of = |folder: &PathBuf| {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        folder.join(format!("{process}.0")).exists() || name.starts_with(&waits)
    };
    let found: Vec<_> = all().filter(is_of).collect();
    // Process numbers come again: of two folders it is the one of a program that runs.
    found.iter().find(|folder| is_live(folder)).or(found.first()).cloned()
}

/// Whether nothing lies in a folder that no profile has.
fn has_profiles_alone(folder: &Path) -> bool {
    let is_one = |entry: std::io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| is_numbered(&entry.file_name().to_string_lossy(), true))
    };
    fs::read_dir(folder).is_ok_and(|mut entries| entries.all(is_one))
}

fn sweep() {
    for folder in all().filter(|folder| has_profiles_alone(folder)) {
        let changed = folder.metadata().and_then(|data| data.modified());
        let age = changed.ok().and_then(|changed| changed.elapsed().ok());
        if age.is_some_and(|age| age > YOUNG) && !is_live(&folder) {
            let _ = fs::remove_dir_all(&folder);
        }
    }
}

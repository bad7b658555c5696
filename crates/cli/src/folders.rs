//! The folders of profiles: one for each run, with a file for each process.
//!
//! A folder is locked while latchwork waits for its program. An unlocked folder without running
//! processes was left by a killed latchwork: the next one removes it.

use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::found;

/// Where such folders are created, if not in memory.
const ROOT: &str = "LATCHWORK_FOLDER";

/// A folder younger than this may not be locked yet.
const YOUNG: Duration = Duration::from_secs(10);

/// A folder with access for this user only, removed on drop.
pub(crate) struct Folder {
    path: PathBuf,
    /// Holds the lock.
    _held: File,
    is_kept: bool,
}

impl Folder {
    /// Creates a folder. Removes those left by killed processes.
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

    /// Keeps the folder, for processes that still write to it.
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
    // SAFETY: it only returns a number.
    format!("latchwork-{}-", unsafe { libc::geteuid() })
}

/// The places for such folders: memory first, because the segments are written like memory.
fn roots() -> Vec<PathBuf> {
    match std::env::var_os(ROOT) {
        Some(root) => vec![root.into()],
        None => vec!["/dev/shm".into(), std::env::temp_dir()],
    }
}

/// Whether a name consists of two numbers with a dot in between, and optionally a further part
/// after another dot: the names of folders after their prefix, and of the files in them.
fn is_numbered(name: &str, more: bool) -> bool {
    let mut parts = name.split('.');
    let numbers: Vec<_> = parts.by_ref().take(2).collect();
    let number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    numbers.len() == 2 && numbers.iter().all(number) && (more || parts.next().is_none())
}

/// Returns this user's folders.
fn all() -> impl Iterator<Item = PathBuf> {
    let prefix = prefix();
    // SAFETY: it only returns a number.
    let user = unsafe { libc::geteuid() };
    let own = move |entry: &fs::DirEntry| {
        // Another user's folder may lie in a folder that all users may write to.
        let name = entry.file_name();
        name.to_string_lossy().strip_prefix(&prefix).is_some_and(|name| is_numbered(name, false))
            && entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == user)
    };
    let folders = roots().into_iter().filter_map(|root| fs::read_dir(root).ok());
    folders.flatten().flatten().filter(own).map(|entry| entry.path())
}

/// Returns whether latchwork waits for a program that writes to a folder.
pub(crate) fn is_held(folder: &Path) -> bool {
    let lock = File::open(folder).map(|folder| folder.try_lock());
    matches!(lock, Ok(Err(fs::TryLockError::WouldBlock)))
}

/// Whether a folder may still be written to.
fn is_live(folder: &Path) -> bool {
    is_held(folder) || found::read(folder).is_running()
}

/// Returns the folders of running programs.
pub(crate) fn live() -> Vec<PathBuf> {
    all().filter(|folder| is_live(folder)).collect()
}

/// Returns the folder of a process's profile, or of the program that it waits for.
pub(crate) fn of_process(process: u32) -> Option<PathBuf> {
    let waits = format!("{}{process}.", prefix());
    let is_of = |folder: &PathBuf| {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        folder.join(format!("{process}.0")).exists() || name.starts_with(&waits)
    };
    let found: Vec<_> = all().filter(is_of).collect();
    // Process numbers are reused: of two folders, the one of a running program is meant.
    found.iter().find(|folder| is_live(folder)).or(found.first()).cloned()
}

/// Whether a folder contains only files of profiles.
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

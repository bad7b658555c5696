//! Temporary directories. They are removed even if their process was killed.
//!
//! A directory is locked as long as its process lives. An unlocked directory was left by a process
//! that was interrupted or killed; the next process that creates one next to it locks and removes
//! it. A new directory can therefore be removed before its creator has locked it. The creator then
//! makes another one.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{env, process};

/// A temporary directory, removed on drop.
pub struct Dir {
    path: PathBuf,
    /// Holds the lock.
    _held: File,
}

impl Dir {
    /// Creates a directory in `base`, by default in memory if the system has such a file system.
    pub(crate) fn new(base: Option<&Path>) -> io::Result<Self> {
        let memory = Path::new("/dev/shm");
        let temporary = if memory.is_dir() { memory.to_owned() } else { env::temp_dir() };
        Self::named(base.unwrap_or(&temporary), "latchwork-bench-")
    }

    /// Creates a directory in `base`, named `prefix` and two numbers. Removes abandoned ones.
    pub fn named(base: &Path, prefix: &str) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        sweep(base, prefix);
        loop {
            // Relaxed: only the uniqueness of the number matters.
            let number = COUNT.fetch_add(1, Relaxed);
            let path = base.join(format!("{prefix}{}-{number}", process::id()));
            match fs::create_dir(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            let held = match File::open(&path) {
                // Another process has removed it.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                held => held.inspect_err(|_| drop(fs::remove_dir(&path)))?,
            };
            // On a file system without locks no process removes it either.
            let _ = held.lock();
            if is_at(&held, &path) {
                return Ok(Self { path, _held: held });
            }
        }
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Whether `path` still names the opened directory.
fn is_at(held: &File, path: &Path) -> bool {
    let (held, there) = (held.metadata(), fs::symlink_metadata(path));
    held.is_ok_and(|held| there.is_ok_and(|it| (it.dev(), it.ino()) == (held.dev(), held.ino())))
}

/// Whether a name is the prefix and two numbers.
fn is_ours(name: &str, prefix: &str) -> bool {
    let numbers = name.strip_prefix(prefix).and_then(|rest| rest.split_once('-'));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    numbers.is_some_and(|(process, number)| is_number(process) && is_number(number))
}

/// Removes the unlocked directories with this prefix that belong to this user.
fn sweep(base: &Path, prefix: &str) {
    let user = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        // Symbolic links are not followed. A directory in a world-writable place may belong to
        // another user.
        let is_own = entry.metadata().is_ok_and(|data| data.is_dir() && data.uid() == user);
        if is_own && is_ours(&entry.file_name().to_string_lossy(), prefix) {
            let Ok(held) = File::open(entry.path()) else { continue };
            if held.try_lock().is_ok() {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_left_is_removed_and_nothing_else() {
        let base = Dir::new(None).unwrap();
        let there = |name: &str| base.path().join(name).exists();
        let left = ["latchwork-bench-7-0", "latchwork-bench-7-1"];
        let others = ["latchwork-bench-7", "latchwork-bench-7-x", "latchwork-demo-7-0", "data"];
        for name in left.iter().chain(&others) {
            fs::create_dir_all(base.path().join(name).join("store")).unwrap();
        }
        std::os::unix::fs::symlink("data", base.path().join("latchwork-bench-7-2")).unwrap();
        let held = File::open(base.path().join(left[1])).unwrap();
        held.lock().unwrap();
        let first = Dir::new(Some(base.path())).unwrap();
        assert!(!there(left[0]), "it had no holder");
        assert!(there(left[1]), "it is held");
        assert!(others.iter().all(|name| there(name)) && there("latchwork-bench-7-2/store"));
        drop(held);
        let second = Dir::new(Some(base.path())).unwrap();
        assert!(!there(left[1]), "it has no holder any more");
        assert!(first.path().exists() && second.path().exists(), "those of one process");
        let path = first.path().to_owned();
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn makers_and_removers_do_not_meet() {
        let base = Dir::new(None).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let dir = Dir::new(Some(base.path())).unwrap();
                        fs::write(dir.path().join("data"), "a").unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    }
}

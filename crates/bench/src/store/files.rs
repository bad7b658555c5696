//! Bytes of a store's files, and what a crash of the machine takes away.

use std::fs::{self, File};
use std::io;
use std::ops::AddAssign;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use latchwork_rivals::StoreKind;
use rustix::fs::{Advice, fadvise};

use super::Subject;
use super::ours::Ours;

/// Bytes on the disk. Memory that processes share is in none of them, wherever it lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bytes {
    pub(super) data: u64,
    pub(super) log: u64,
}

impl Bytes {
    pub(super) fn all(self) -> u64 {
        self.data + self.log
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        self.data += other.data;
        self.log += other.log;
    }
}

/// Whether a file of this name is a log: as Berkeley DB, RocksDB, SQLite and fjall call theirs.
fn is_log(name: &str) -> bool {
    name.starts_with("log.") || [".log", "-wal", ".jnl"].iter().any(|end| name.ends_with(end))
}

/// Whether it is shared memory: as Berkeley DB, SQLite and LMDB call theirs.
fn is_memory(name: &str) -> bool {
    name.starts_with("__db.") || name.ends_with("-shm") || name == "lock.mdb"
}

/// Calls for each file of a folder and of those in it; says whether the folder is one of logs.
fn each_file(
    folder: &Path,
    logs: bool,
    each: &mut dyn FnMut(&Path, &str, bool) -> io::Result<()>,
) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        let name = name.to_string_lossy();
        if path.is_dir() {
            each_file(&path, name == "log" || name.starts_with("journal"), each)?;
        } else {
            each(&path, &name, logs)?;
        }
    }
    Ok(())
}

/// Bytes of all files in a folder.
pub(super) fn bytes(folder: &Path) -> io::Result<Bytes> {
    let mut sum = Bytes::default();
    each_file(folder, false, &mut |path, name, logs| {
        let bytes = match fs::metadata(path) {
            Ok(about) => about.blocks() * 512,
            // A store that is open removes files.
            Err(why) if why.kind() == io::ErrorKind::NotFound => 0,
            Err(why) => return Err(why),
        };
        if is_memory(name) {
        } else if logs || is_log(name) {
            sum.log += bytes;
        } else {
            sum.data += bytes;
        }
        Ok(())
    })?;
    Ok(sum)
}

/// Bytes that this process has passed to the system to be written, to whatever file.
pub(super) fn written() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse().ok())
}

/// What a crash of the machine does to a store whose processes were killed, as far as a program
/// can do it: shared memory is gone, and what is synced is not in the system's cache. What was
/// written and not synced is still there.
pub(super) fn crash(subject: Subject, folder: &Path) -> io::Result<()> {
    match subject {
        Subject::Ours => {
            let forgot = latchwork_store::discard_shared_memory(Ours::folder(folder));
            forgot.map_err(|why| io::Error::other(why.to_string()))?;
        }
        Subject::Rival(StoreKind::BerkeleyDb) => each_file(folder, false, &mut |path, name, _| {
            if is_memory(name) { fs::remove_file(path) } else { Ok(()) }
        })?,
        // The others' processes share no memory but what they find to be stale.
        Subject::Rival(_) | Subject::Device => {}
    }
    each_file(folder, false, &mut |path, _, _| {
        // A file system that has no such cache does not mind.
        let _ = fadvise(File::open(path)?, 0, None, Advice::DontNeed);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_and_memory_are_told_from_data() {
        let folder = crate::dir::Dir::new(None).unwrap();
        fs::create_dir(folder.path().join("log")).unwrap();
        for name in ["data", "log/0000", "t0.db", "log.0000000001", "db-wal", "__db.001", "db-shm"]
        {
            fs::write(folder.path().join(name), [1; 4096]).unwrap();
        }
        assert_eq!(bytes(folder.path()).unwrap(), Bytes { data: 8192, log: 3 * 4096 });
        assert!(written().unwrap() > 0);
    }
}

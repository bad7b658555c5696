//! The file system of a store's folder: local, or shared with other machines.
//!
//! The processes of a store share memory, and locks that the kernel releases when their holder
//! dies. Neither works across machines, so network file systems are refused. FUSE may be local or
//! not; it is allowed, and reported.

use std::path::Path;

use crate::Error;
use crate::error::refused;

/// The machines that write the files of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// This machine.
    Local,
    /// This machine; the files are lost when it stops.
    Memory,
    /// A user-space program (FUSE). It is unknown whether other machines write the files and
    /// whether a sync makes them durable.
    Program,
    /// Several machines.
    Network,
}

/// The file system of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileSystem {
    /// Its name, or `unknown`.
    pub name: &'static str,
    /// Which machines write it.
    pub kind: Kind,
    /// Its magic number, from `statfs(2)`.
    pub magic: u64,
}

/// Magic numbers of file systems, from `linux/magic.h` or from the file system's own sources.
const KNOWN: &[(u64, &str, Kind)] = &[
    (0xef53, "ext4", Kind::Local),
    (0x5846_5342, "xfs", Kind::Local),
    (0x9123_683e, "btrfs", Kind::Local),
    (0xf2f5_2010, "f2fs", Kind::Local),
    (0x2fc1_2fc1, "zfs", Kind::Local),
    (0xca45_1a4e, "bcachefs", Kind::Local),
    (0x794c_7630, "overlay", Kind::Local),
    (0x0102_1994, "tmpfs", Kind::Memory),
    (0x8584_58f6, "ramfs", Kind::Memory),
    (0x6573_5546, "fuse", Kind::Program),
    (0x6969, "nfs", Kind::Network),
    (0x517b, "smb", Kind::Network),
    (0xff53_4d42, "cifs", Kind::Network),
    (0xfe53_4d42, "smb2", Kind::Network),
    (0x0102_1997, "9p", Kind::Network),
    (0x00c3_6400, "ceph", Kind::Network),
    (0x5346_414f, "afs", Kind::Network),
    (0x6b41_4653, "kafs", Kind::Network),
    (0x7375_7245, "coda", Kind::Network),
    (0x564c, "ncp", Kind::Network),
    (0x0bd0_0bd0, "lustre", Kind::Network),
    (0x4750_4653, "gpfs", Kind::Network),
    (0x1983_0326, "beegfs", Kind::Network),
    (0x0116_1970, "gfs2", Kind::Network),
    (0x7461_636f, "ocfs2", Kind::Network),
    (0x2003_0528, "orangefs", Kind::Network),
    (0x786f_4256, "vboxsf", Kind::Network),
];

impl FileSystem {
    /// Returns the file system with this magic number. An unknown number counts as local.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{FileSystem, Kind};
    ///
    /// assert_eq!(FileSystem::of(0x6969).kind, Kind::Network);
    /// assert_eq!(FileSystem::of(0xef53).name, "ext4");
    /// ```
    pub fn of(magic: u64) -> Self {
        let known = KNOWN.iter().find(|known| known.0 == magic);
        let (name, kind) = known.map_or(("unknown", Kind::Local), |known| (known.1, known.2));
        Self { name, kind, magic }
    }
}

/// Returns the file system of a path, or of the nearest existing folder above it.
///
/// # Errors
///
/// [`Error::Open`] with the error of the system.
pub fn file_system(path: &Path) -> Result<FileSystem, Error> {
    let path = std::path::absolute(path).map_err(|why| refused(path, why))?;
    let there = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let about = rustix::fs::statfs(there);
    let about = about.map_err(|why| refused(&path, std::io::Error::from(why)))?;
    // The field is signed on some machines; 32 bits count.
    Ok(FileSystem::of(about.f_type as u64 & 0xffff_ffff))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_are_known_by_their_numbers() {
        let of = |magic| FileSystem::of(magic).kind;
        // As statfs(2) has them.
        let network = [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997, 0x00c3_6400];
        assert!(network.into_iter().all(|magic| of(magic) == Kind::Network));
        let local = [0xef53, 0x5846_5342, 0x9123_683e, 0x794c_7630, 0x1234_5678];
        assert!(local.into_iter().all(|magic| of(magic) == Kind::Local));
        assert_eq!((of(0x6573_5546), of(0x0102_1994)), (Kind::Program, Kind::Memory));
        assert_eq!(file_system(Path::new("/dev/shm/not/there")).unwrap().kind, Kind::Memory);
    }
}

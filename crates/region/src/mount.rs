//! Whether a file's memory is what processes left there: a mark that ends with it.
//!
//! What processes write to a mapped file is in the memory of the machine, and is there for the
//! next one that maps it, also when all are dead. It is not where the file's system was
//! unmounted without being written, as when its device is lost or a snapshot of it is put back:
//! then the file is as some of it was written out, each page at another time, though its path,
//! its inode and the start of the machine are the same. So a region's file is marked when it is
//! made, by what Linux keeps with the inode in memory and writes to no disk: the hint how long
//! what is written lives (`F_SET_RW_HINT`, Linux 4.13). The mark also ends where the kernel
//! needs the inode's room, once nobody has the file open: then nothing is known of the memory,
//! and it is not believed.
//!
//! Of a file system that is memory itself nothing is left when it is unmounted.

use std::fs::File;
use std::os::fd::AsRawFd;

use rustix::fs::FsWord;

/// fcntl(2): not in `libc`.
const GET_HINT: libc::c_int = 1024 + 11;
const SET_HINT: libc::c_int = 1024 + 12;
/// `RWH_WRITE_LIFE_SHORT`: true of shared memory, and not what a file has by itself.
const SHORT: u64 = 2;

const TMPFS: FsWord = 0x0102_1994;
const RAMFS: FsWord = 0x8584_58f6;

/// Marks a file. Where the system has no such mark the file has none.
pub(crate) fn mark(file: &File) {
    let hint = SHORT;
    // SAFETY: the call reads the hint, which outlives it.
    unsafe { libc::fcntl(file.as_raw_fd(), SET_HINT, &hint) };
}

/// Whether a file was marked, and its file system was there all the time since.
pub(crate) fn is_marked(file: &File) -> bool {
    let is_memory =
        rustix::fs::fstatfs(file).is_ok_and(|about| [TMPFS, RAMFS].contains(&about.f_type));
    let mut hint = 0;
    // SAFETY: the call writes the hint, which outlives it.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), GET_HINT, &mut hint) };
    is_memory || asked == 0 && hint == SHORT
}

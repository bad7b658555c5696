//! Detects whether a file's memory is as its processes left it, with a mark that ends with that
//! memory.
//!
//! Stores to a mapped file are in the machine's memory and visible to the next process that maps
//! it, even if all others are dead. This fails if the file system was unmounted without being
//! written, as when its device is lost or restored from a snapshot. Then each page of the file is
//! as it was last written out, at different times, although path, inode and boot of the machine are
//! the same. So a region's file is marked when it is created, with a value that Linux keeps with
//! the inode in memory and never writes to disk: the write-lifetime hint (`F_SET_RW_HINT`, Linux
//! 4.13). The mark also ends when the kernel evicts the inode after all processes have closed it.
//! Then nothing is known of the memory, and it is not trusted.
//!
//! On a memory file system nothing remains after an unmount.

use std::fs::File;
use std::os::fd::AsRawFd;

use rustix::fs::FsWord;

/// fcntl(2): not in `libc`.
const GET_HINT: libc::c_int = 1024 + 11;
const SET_HINT: libc::c_int = 1024 + 12;
/// `RWH_WRITE_LIFE_SHORT`: true of shared memory, and not a default.
const SHORT: u64 = 2;

const TMPFS: FsWord = 0x0102_1994;
const RAMFS: FsWord = 0x8584_58f6;

/// Marks a file. Has no effect where the system does not support the mark.
pub(crate) fn mark(file: &File) {
    let hint = SHORT;
    // SAFETY: the call reads the hint, which outlives it.
    unsafe { libc::fcntl(file.as_raw_fd(), SET_HINT, &hint) };
}

/// Returns whether a file was marked and its file system has been mounted since.
pub(crate) fn is_marked(file: &File) -> bool {
    let is_memory =
        rustix::fs::fstatfs(file).is_ok_and(|about| [TMPFS, RAMFS].contains(&about.f_type));
    let mut hint = 0;
    // SAFETY: the call writes the hint, which outlives it.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), GET_HINT, &mut hint) };
    is_memory || asked == 0 && hint == SHORT
}

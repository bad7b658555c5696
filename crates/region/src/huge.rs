//! Huge pages for files in memory.
//!
//! A file in `/dev/shm` lies in huge pages only where the whole system is set to it, which is
//! nowhere by default; `MADV_COLLAPSE` (Linux 6.1) asks for some. It is asked before space is set
//! aside in small pages: a huge page is then made zero once, where small ones would each be made
//! zero, and copied.
//!
//! What this does not get, [`extend`] sets aside behind it, in small pages.

use core::time::Duration;
use std::fs::File;

use latchwork_machine::{ConstMachine, Deadline};
use rustix::mm::{MapFlags, ProtFlags};

use crate::space::{HUGE, extend, reserve_aligned, unmap};

/// What statfs(2) says of a file system in memory.
const TMPFS: i64 = 0x0102_1994;

/// How long is asked on: a system whose memory is in pieces takes long for each.
const PATIENCE: Duration = Duration::from_millis(200);

/// Bytes of a file that has none yet between `from` and `to`: those of whole huge pages are set
/// aside in such pages, as far as the system has them. Nothing that is there changes.
pub(crate) fn prefer<M: ConstMachine>(file: &File, from: u64, to: u64) {
    let huge = HUGE as u64;
    let (first, end) = (from / huge * huge, to / huge * huge);
    let Ok(about) = rustix::fs::fstatfs(file) else { return };
    // In a folder that is nearly full `extend` has to fail, and leave nothing behind.
    let has_room = about.f_bavail.saturating_mul(about.f_bsize as u64) >= to - from;
    if first >= end || about.f_type != TMPFS || !has_room {
        return;
    }
    // The file gets its length, by its last page.
    if extend(file, to - 1, to).is_err() {
        return;
    }
    let length = (end - first) as usize;
    let Ok(base) = reserve_aligned(length) else { return };
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the addresses were set aside above, for this call alone; no reference is made to what
    // is mapped there, and it is unmapped below.
    let mapped =
        unsafe { rustix::mm::mmap(base.cast(), length, ProtFlags::READ, flags, file, first) };
    if mapped.is_ok() {
        let deadline = Deadline::after::<M>(PATIENCE);
        for at in (0..length).step_by(HUGE) {
            let block = first + at as u64;
            // One page, for a block that has none is refused as one that was cut off.
            let begun = block < from || extend(file, block, block + 1).is_ok();
            if !begun || !collapse(base.wrapping_add(at)) || deadline.passed::<M>() {
                break;
            }
        }
    }
    unmap(base, length);
}

/// Has the system put the memory of a mapping's huge page in one; says whether it did.
pub(crate) fn collapse(at: *mut u8) -> bool {
    // SAFETY: it changes no byte and no address, whatever is mapped there; where that is nothing,
    // or not the whole of a huge page, the system refuses.
    unsafe { libc::madvise(at.cast(), HUGE, libc::MADV_COLLAPSE) == 0 }
}

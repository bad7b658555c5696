//! Huge pages for files in memory.
//!
//! A file in `/dev/shm` has huge pages only if the whole system is set to it, which is not the
//! default. `MADV_COLLAPSE` (Linux 6.1) requests them for a mapping. The request comes before space
//! is allocated in small pages: a huge page is then zeroed once, whereas small pages would each be
//! zeroed and then copied.
//!
//! [`extend`] allocates the rest in small pages.

use core::time::Duration;
use std::fs::File;

use latchwork_machine::{ConstMachine, Deadline};
use rustix::mm::{MapFlags, ProtFlags};

use crate::space::{HUGE, extend, reserve_aligned, unmap};

/// The type that statfs(2) returns for a file system in memory.
const TMPFS: i64 = 0x0102_1994;

/// How long requests continue: a system with fragmented memory takes long for each.
const PATIENCE: Duration = Duration::from_millis(200);

/// Allocates the bytes of a new part of a file between `from` and `to` in huge pages, as far as the
/// system has any. Existing content does not change.
pub(crate) fn prefer<M: ConstMachine>(file: &File, from: u64, to: u64) {
    let huge = HUGE as u64;
    let (first, end) = (from / huge * huge, to / huge * huge);
    let Ok(about) = rustix::fs::fstatfs(file) else { return };
    // In a nearly full folder `extend` must fail, and leave nothing behind.
    let has_room = about.f_bavail.saturating_mul(about.f_bsize as u64) >= to - from;
    if first >= end || about.f_type != TMPFS || !has_room {
        return;
    }
    // The file gets its length by its last page.
    if extend(file, to - 1, to).is_err() {
        return;
    }
    let length = (end - first) as usize;
    let Ok(base) = reserve_aligned(length) else { return };
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the addresses were reserved above for this call alone; no reference is made to the
    // mapping, which is unmapped below.
    let mapped =
        unsafe { rustix::mm::mmap(base.cast(), length, ProtFlags::READ, flags, file, first) };
    if mapped.is_ok() {
        let deadline = Deadline::after::<M>(PATIENCE);
        for at in (0..length).step_by(HUGE) {
            let block = first + at as u64;
            // One page: a block without any is refused as one that was truncated.
            let begun = block < from || extend(file, block, block + 1).is_ok();
            if !begun || !collapse(base.wrapping_add(at)) || deadline.passed::<M>() {
                break;
            }
        }
    }
    unmap(base, length);
}

/// Asks the system to collapse a mapping's huge page; returns whether it did.
pub(crate) fn collapse(at: *mut u8) -> bool {
    // SAFETY: it changes no byte and no address, whatever is mapped there. If that is not a whole
    // huge page, the system refuses.
    unsafe { libc::madvise(at.cast(), HUGE, libc::MADV_COLLAPSE) == 0 }
}

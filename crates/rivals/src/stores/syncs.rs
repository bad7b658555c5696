//! Counts the file syncs of this program.
//!
//! The count verifies that a store's durable commits are durable. The program's own `fdatasync`,
//! `fsync`, `msync` and `sync_file_range` take precedence over the C library's for all code linked
//! into it. Each counts and makes the system call.

use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

static COUNT: AtomicU64 = AtomicU64::new(0);

pub(super) fn count() -> u64 {
    // Relaxed: no other data depends on this counter.
    COUNT.load(Relaxed)
}

fn one_more() {
    // Relaxed: no other data depends on this counter.
    COUNT.fetch_add(1, Relaxed);
}

/// Replaces the C library's function.
#[unsafe(no_mangle)]
extern "C" fn fdatasync(fd: c_int) -> c_int {
    one_more();
    // SAFETY: the system checks the descriptor.
    unsafe { libc::syscall(libc::SYS_fdatasync, fd) as c_int }
}

/// Replaces the C library's function.
#[unsafe(no_mangle)]
extern "C" fn fsync(fd: c_int) -> c_int {
    one_more();
    // SAFETY: the system checks the descriptor.
    unsafe { libc::syscall(libc::SYS_fsync, fd) as c_int }
}

/// Replaces the C library's function.
#[unsafe(no_mangle)]
extern "C" fn msync(at: *mut c_void, length: usize, flags: c_int) -> c_int {
    one_more();
    // SAFETY: the system checks the range.
    unsafe { libc::syscall(libc::SYS_msync, at, length, flags) as c_int }
}

/// Replaces the C library's function.
#[unsafe(no_mangle)]
extern "C" fn sync_file_range(fd: c_int, offset: i64, count: i64, flags: c_uint) -> c_int {
    one_more();
    // SAFETY: the system checks the descriptor and the range.
    unsafe { libc::syscall(libc::SYS_sync_file_range, fd, offset, count, flags) as c_int }
}

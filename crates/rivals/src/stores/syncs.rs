//! Counts the syncs of this program.
//!
//! What a store calls durable is not believed but counted. The program's own `fdatasync`, `fsync`,
//! `msync` and `sync_file_range` come before the C library's, for all code that is linked into it.
//! Each counts and does the system call.

use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

static COUNT: AtomicU64 = AtomicU64::new(0);

pub(super) fn count() -> u64 {
    // Relaxed: a count that nothing else is read by.
    COUNT.load(Relaxed)
}

fn one_more() {
    // Relaxed: as above.
    COUNT.fetch_add(1, Relaxed);
}

/// As the C library's.
#[unsafe(no_mangle)]
extern "C" fn fdatasync(fd: c_int) -> c_int {
    one_more();
    // SAFETY: the system checks the descriptor.
    unsafe { libc::syscall(libc::SYS_fdatasync, fd) as c_int }
}

/// As the C library's.
#[unsafe(no_mangle)]
extern "C" fn fsync(fd: c_int) -> c_int {
    one_more();
    // SAFETY: the system checks the descriptor.
    unsafe { libc::syscall(libc::SYS_fsync, fd) as c_int }
}

/// As the C library's.
#[unsafe(no_mangle)]
extern "C" fn msync(at: *mut c_void, length: usize, flags: c_int) -> c_int {
    one_more();
    // SAFETY: the system checks the range.
    unsafe { libc::syscall(libc::SYS_msync, at, length, flags) as c_int }
}

/// As the C library's.
#[unsafe(no_mangle)]
extern "C" fn sync_file_range(fd: c_int, offset: i64, count: i64, flags: c_uint) -> c_int {
    one_more();
    // SAFETY: the system checks the descriptor and the range.
    unsafe { libc::syscall(libc::SYS_sync_file_range, fd, offset, count, flags) as c_int }
}

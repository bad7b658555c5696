//! Reserving addresses of this process and allocating space in files.

use std::fs::File;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::Error;

/// The size of a huge page on most systems.
pub(crate) const HUGE: usize = 1 << 21;

/// Reserves addresses without mapping anything.
pub(crate) fn reserve(bytes: usize) -> Result<*mut u8, Error> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping, at any free address.
    let base = unsafe {
        rustix::mm::mmap_anonymous(core::ptr::null_mut(), bytes, ProtFlags::empty(), flags)
    };
    base.map(|base| base.cast()).map_err(|_| Error::TooLarge(bytes as u64))
}

/// Reserves addresses aligned for huge pages, so that a mapping from the start of a file can use
/// huge pages.
pub(crate) fn reserve_aligned(bytes: usize) -> Result<*mut u8, Error> {
    let whole = bytes.checked_add(HUGE).ok_or(Error::TooLarge(bytes as u64))?;
    let start = reserve(whole)?;
    let skip = start.addr().next_multiple_of(HUGE) - start.addr();
    unmap(start, skip);
    unmap(start.wrapping_add(skip + bytes), HUGE - skip);
    Ok(start.wrapping_add(skip))
}

pub(crate) fn unmap(at: *mut u8, bytes: usize) {
    // SAFETY: the caller mapped the range and owns it, and no reference to it remains.
    let _ = unsafe { rustix::mm::munmap(at.cast(), bytes) };
}

fn no_signals() -> libc::sigset_t {
    let mut none = core::mem::MaybeUninit::uninit();
    // SAFETY: a set that outlives the call.
    unsafe { libc::sigemptyset(none.as_mut_ptr()) };
    // SAFETY: it was written above.
    unsafe { none.assume_init() }
}

/// Runs `call` with `SIGXFSZ` blocked for this thread, and discards the signal if the call raised
/// it.
///
/// A process that makes a file longer than `RLIMIT_FSIZE` is sent this signal, which kills it, in
/// addition to the error. The error is sufficient. A signal that was pending before is left
/// pending.
fn without_signal<T>(call: impl FnOnce() -> T) -> T {
    let mut it = no_signals();
    let (mut waiting, mut old) = (it, it);
    // SAFETY: a set that outlives the call; the signal is one.
    unsafe { libc::sigaddset(&mut it, libc::SIGXFSZ) };
    // SAFETY: as above.
    unsafe { libc::sigpending(&mut waiting) };
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &it, &mut old) };
    let done = call();
    // SAFETY: as above.
    if unsafe { libc::sigismember(&waiting, libc::SIGXFSZ) } == 0 {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: as above; the place for signal information may be null.
        let take = || unsafe { libc::sigtimedwait(&it, core::ptr::null_mut(), &now) };
        while take() == -1
            && Errno::from_io_error(&std::io::Error::last_os_error()) == Some(Errno::INTR)
        {}
    }
    // SAFETY: as above; the place for the old mask may be null.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &old, core::ptr::null_mut()) };
    done
}

/// The least that is allocated at once: a few microseconds of work.
const PIECE: u64 = 1 << 16;

/// Allocates space in a file.
pub(crate) fn extend(file: &File, from: u64, to: u64) -> Result<(), Error> {
    without_signal(|| set_aside(file, from, to))
}

fn set_aside(file: &File, from: u64, to: u64) -> Result<(), Error> {
    let (mut at, mut piece) = (from, to - from);
    while at < to {
        let length = piece.min(to - at);
        match rustix::fs::fallocate(file, FallocateFlags::empty(), at, length) {
            Ok(()) => at += length,
            // An interrupted call is undone. With a periodic timer signal the whole call might
            // never complete; smaller pieces do.
            Err(Errno::INTR) => piece = (piece / 2).max(PIECE),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Err(Error::NoFallocate),
            Err(e) => return Err(Error::of("fallocate", e)),
        }
    }
    Ok(())
}

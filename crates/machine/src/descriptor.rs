//! Opens files whose descriptors are never 0, 1 or 2.
//!
//! A daemon, or a program in another language, may have closed the standard descriptors. The system
//! gives the lowest free number to the next file that is opened, and the next message on standard
//! error would overwrite that file. So all crates of this project open files here. While a standard
//! descriptor is closed, `/dev/null` takes its place for the duration of the call.
//!
//! If another thread closes a standard descriptor during the call, the file can have its number for
//! a moment; it gets another number before the call returns.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::path::Arg;

/// The first descriptor that a file may have.
const FIRST: i32 = 3;

/// Opens a file, as openat(2) does, with a descriptor above 2 that is closed at an `exec`. A call
/// that a signal interrupts is repeated.
///
/// # Errors
///
/// Those of openat(2).
pub fn open_at(
    folder: impl AsFd,
    path: impl Arg + Copy,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC;
    let plugs = if (0..FIRST).all(is_open) { Plugs::default() } else { Plugs::new() };
    let opened = loop {
        match rustix::fs::openat(&folder, path, flags, mode) {
            Err(Errno::INTR) => {}
            other => break other,
        }
    };
    drop(plugs);
    above_standard(opened?)
}

/// Opens a file, as open(2) does, with a descriptor above 2: see [`open_at`].
///
/// # Errors
///
/// Those of open(2).
pub fn open(path: impl Arg + Copy, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    open_at(CWD, path, flags, mode)
}

/// Whether this process has a descriptor of this number.
fn is_open(number: i32) -> bool {
    // SAFETY: the descriptor is only queried; whether it exists is the question.
    let asked = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_getfd(asked).is_ok()
}

/// Gives a file a descriptor above 2.
fn above_standard(opened: OwnedFd) -> Result<OwnedFd, Errno> {
    if opened.as_raw_fd() >= FIRST {
        return Ok(opened);
    }
    let high = rustix::io::fcntl_dupfd_cloexec(&opened, FIRST);
    close(opened);
    high
}

/// Closes with the system call itself: the C library's `close` is a cancellation point.
fn close(opened: OwnedFd) {
    // SAFETY: no other value owns the descriptor, which is given up here.
    unsafe { rustix::io::close(opened.into_raw_fd()) };
}

/// The files that occupy closed standard descriptors during a call.
#[derive(Default)]
struct Plugs([Option<OwnedFd>; FIRST as usize]);

impl Plugs {
    fn new() -> Self {
        let mut plugs = Self::default();
        for plug in &mut plugs.0 {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            let Ok(opened) = rustix::fs::openat(CWD, c"/dev/null", flags, Mode::empty()) else {
                break;
            };
            if opened.as_raw_fd() >= FIRST {
                close(opened);
                break;
            }
            *plug = Some(opened);
        }
        plugs
    }
}

impl Drop for Plugs {
    fn drop(&mut self) {
        self.0.iter_mut().filter_map(Option::take).for_each(close);
    }
}

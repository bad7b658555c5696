//! The limit of this process on the length of its files (`RLIMIT_FSIZE`): an error instead of a
//! signal.
//!
//! In addition to the error, the system sends `SIGXFSZ` to the calling thread, which kills the
//! process. A call that stays below the limit costs one extra look at the limit. A call that does
//! not runs with the signal blocked for this thread, which then discards the signal.
//! `latchwork-region` does the same when it grows a file (`memory.rs`); neither crate depends on
//! the other.

use rustix::io::Errno;

/// The longest file that this process may create.
fn limit() -> u64 {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the result is written to a valid place.
    match unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limits) } {
        0 => limits.rlim_cur,
        // Then the signal is blocked in any case.
        _ => 0,
    }
}

/// No signals.
fn no_signals() -> libc::sigset_t {
    let mut none = core::mem::MaybeUninit::uninit();
    // SAFETY: a set that outlives the call.
    unsafe { libc::sigemptyset(none.as_mut_ptr()) };
    // SAFETY: it was written above.
    unsafe { none.assume_init() }
}

/// Runs a call that may make a file `end` bytes long. If this process may not make files that long
/// (`RLIMIT_FSIZE`), the call returns an error and raises no `SIGXFSZ`, which would end the
/// process.
pub fn within_limit<T>(end: u64, call: impl FnOnce() -> T) -> T {
    if end <= limit() { call() } else { without_signal(call) }
}

/// Runs `call` with `SIGXFSZ` blocked for this thread, and discards the signal if the call raised
/// it. A signal that was pending before is left pending.
pub(crate) fn without_signal<T>(call: impl FnOnce() -> T) -> T {
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

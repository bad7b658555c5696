//! The limit of this process on the length of its files (`RLIMIT_FSIZE`): an error and no signal.
//!
//! The system sends `SIGXFSZ` beside the error, to the thread that called, and that kills the
//! process. A call that stays below the limit is not slowed down but by one look at the limit; one
//! that does not is made with the signal blocked for this thread, which then takes the signal back.
//! `latchwork-region` does the same as it grows a file (`memory.rs`); neither crate knows the
//! other.

use rustix::io::Errno;

/// How long this process may make a file.
fn limit() -> u64 {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a place for the answer.
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

/// Makes a call that may make a file so long. One that is refused because this process may not make
/// files so long (`RLIMIT_FSIZE`) is an error, and no `SIGXFSZ`, which would end the process.
pub fn within_limit<T>(end: u64, call: impl FnOnce() -> T) -> T {
    if end <= limit() { call() } else { without_signal(call) }
}

/// Does something while `SIGXFSZ` is blocked for this thread, and takes it back if it came of that.
/// One that was sent before is left for the thread that it was sent to.
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
        // SAFETY: as above; where to say more about the signal may be null.
        let take = || unsafe { libc::sigtimedwait(&it, core::ptr::null_mut(), &now) };
        while take() == -1
            && Errno::from_io_error(&std::io::Error::last_os_error()) == Some(Errno::INTR)
        {}
    }
    // SAFETY: as above; where to say what it was may be null.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &old, core::ptr::null_mut()) };
    done
}

//! Runs code that ends its process or changes the process's limits, in the child of a fork.

/// Runs a function in a forked child and returns its wait status: zero if the function returned,
/// not zero if it panicked or a signal killed it.
///
/// # Panics
///
/// If `fork` fails.
pub fn in_child(work: impl FnOnce()) -> i32 {
    // SAFETY: the child has one thread, does what the parent could do, and ends.
    match unsafe { libc::fork() } {
        0 => {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // SAFETY: only ends this process.
            unsafe { libc::_exit(i32::from(done.is_err())) }
        }
        child => {
            let mut status = -1;
            // SAFETY: our child, and a place for its status.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            status
        }
    }
}

/// Sets a soft limit of this process (`RLIMIT_*`), at most to the hard limit.
///
/// # Panics
///
/// If the system refuses.
pub fn limit(what: libc::__rlimit_resource_t, soft: u64) {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a place for the answer.
    assert_eq!(unsafe { libc::getrlimit(what, &mut limits) }, 0);
    limits.rlim_cur = soft.min(limits.rlim_max);
    // SAFETY: limits that outlive the call.
    assert_eq!(unsafe { libc::setrlimit(what, &limits) }, 0);
}

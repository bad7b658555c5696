//! Work that ends their process, or changes what it may do: done in the child of a fork.

/// Does something in a forked child, and returns what the system says of its end: zero if it came
/// back, and no zero if it panicked or a signal killed it.
///
/// # Panics
///
/// If there can be no child.
pub fn in_child(work: impl FnOnce()) -> i32 {
    // SAFETY: the child does what the parent could, on the one thread that it has, and then ends.
    match unsafe { libc::fork() } {
        0 => {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // SAFETY: ends this process, and does nothing else.
            unsafe { libc::_exit(i32::from(done.is_err())) }
        }
        child => {
            let mut status = -1;
            // SAFETY: a child of ours, and a place for what became of it.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            status
        }
    }
}

/// Sets this process's soft limit of something (`RLIMIT_*`), or as much of it as is allowed.
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

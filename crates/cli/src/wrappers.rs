//! Functions between a program's own code and ours: ways to lock, not callers that lock.
//!
//! A report that named `__gthread_mutex_lock` would name every lock of every C++ program. So frames
//! of the C and C++ libraries, of their headers, and of other libraries' names for a mutex are
//! skipped, and the program's own line remains.

/// Folders of headers that contain no program's own code.
const HEADERS: [&str; 4] = ["/usr/include/", "/usr/lib/gcc/", "/include/c++/", "/rustc/"];

/// Libraries that lock only on behalf of others.
const LIBRARIES: [&str; 8] = [
    "libc.so",
    "libpthread.so",
    "libpthread-",
    "libc-2.",
    "libstdc++.so",
    "libc++.so",
    "libc++abi.so",
    "liblatchwork_interpose.so",
];

/// Beginnings of function names that mean locking.
const FUNCTIONS: [&str; 29] = [
    "pthread_",
    "__pthread_",
    "__gthread_",
    "__gthrw_",
    "std::",
    "__gnu_cxx::",
    "boost::",
    "absl::Mutex",
    "folly::",
    "tbb::",
    "g_mutex_",
    "g_rec_mutex_",
    "g_rw_lock_",
    "g_static_mutex_",
    "g_static_rec_mutex_",
    "g_cond_",
    "uv_mutex_",
    "uv_rwlock_",
    "uv_cond_",
    "apr_thread_mutex_",
    "apr_thread_rwlock_",
    "PR_Lock",
    "SDL_LockMutex",
    "SDL_mutexP",
    "CRYPTO_THREAD_",
    "PyThread_",
    "sqlite3_mutex_enter",
    "pthreadMutexEnter",
    "inline_mysql_",
];

/// Returns whether a frame is only a way to lock.
pub(crate) fn is_wrapper(function: Option<&str>, source: Option<&str>, module: &str) -> bool {
    let library = module.rsplit('/').next().unwrap_or_default();
    LIBRARIES.iter().any(|name| library.starts_with(name))
        || source.is_some_and(|path| HEADERS.iter().any(|folder| is_in(path, folder)))
        || function.is_some_and(|name| FUNCTIONS.iter().any(|start| name.starts_with(start)))
}

/// Whether a path is in a folder: `/include/c++/` is one anywhere, the others are at the root.
fn is_in(path: &str, folder: &str) -> bool {
    path.starts_with(folder) || folder.contains("c++") && path.contains(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_passed_over_is_a_wrapper() {
        let header = Some("/usr/include/x86_64-linux-gnu/c++/12/bits/gthr-default.h");
        assert!(is_wrapper(Some("__gthread_mutex_lock"), header, "/home/prog"));
        assert!(is_wrapper(Some("lock_guard"), Some("/opt/gcc/include/c++/13/mutex"), "/prog"));
        assert!(is_wrapper(Some("g_rec_mutex_lock"), None, "/usr/lib/libglib-2.0.so.0"));
        assert!(is_wrapper(None, None, "/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30"));
        assert!(!is_wrapper(Some("g_main_loop_run"), None, "/usr/lib/libglib-2.0.so.0"));
        assert!(!is_wrapper(Some("worker"), Some("/home/me/include/pool.h"), "/home/me/prog"));
        assert!(!is_wrapper(None, None, "/home/me/libcrypt.so"));
    }
}

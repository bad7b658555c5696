//! A limit on the length of files (`RLIMIT_FSIZE`) is an error and no signal. The test runs in a
//! separate process, which a signal would kill.

use std::path::{Path, PathBuf};

use latchwork_check::again;
use latchwork_check::forked::limit;
use latchwork_disk::{ALIGNMENT, Buffer, Disk, Error, File, Open, System};

const LIMIT: u64 = 1 << 16;

fn open(path: &Path, how: Open) -> Box<dyn File> {
    System::new().open(path, how).unwrap()
}

fn is_full(end: Result<(), Error>) -> bool {
    matches!(end, Err(Error::NoSpace(_)))
}

/// Returns whether this thread blocks the signal, and whether one is pending.
fn signal() -> (bool, bool) {
    let mut sets = [core::mem::MaybeUninit::<libc::sigset_t>::zeroed(); 2];
    let none = core::ptr::null();
    // SAFETY: a place for the answer; nothing is changed.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, none, sets[0].as_mut_ptr()) };
    // SAFETY: a place for the answer.
    unsafe { libc::sigpending(sets[1].as_mut_ptr()) };
    // SAFETY: both were written above.
    let has = |set: usize| unsafe { libc::sigismember(sets[set].as_ptr(), libc::SIGXFSZ) == 1 };
    (has(0), has(1))
}

/// The child process, controlled by its environment. Does nothing in the parent.
#[test]
fn child() {
    let Some(path) = std::env::var_os("LIMITS_FILE").map(PathBuf::from) else { return };
    let file = open(&path, Open::FRESH);
    let longer = open(&path.with_extension("longer"), Open::FRESH);
    longer.write(2 * LIMIT, b"before").unwrap();
    limit(libc::RLIMIT_FSIZE, LIMIT);
    let before = signal();
    // Beyond the limit, across it, and up to it.
    assert!(is_full(file.write(LIMIT, b"x")));
    assert!(is_full(file.write(u64::from(u32::MAX), b"x")));
    assert!(is_full(file.write(LIMIT - 2, b"four")));
    file.write(LIMIT - 2, b"ok").unwrap();
    assert_eq!(file.length(), Ok(LIMIT));
    assert!(is_full(file.allocate(0, LIMIT + 1)));
    file.allocate(0, LIMIT).unwrap();
    assert!(is_full(file.truncate(LIMIT + 1)));
    file.truncate(LIMIT - 1).unwrap();
    assert!(is_full(file.allocate(u64::MAX >> 1, 1)));
    // A file that is already longer can be read and shortened, but not written beyond the limit.
    longer.read(2 * LIMIT, &mut [0; 6]).unwrap();
    assert!(is_full(longer.write(2 * LIMIT, b"after")));
    longer.truncate(10).unwrap();
    if let Ok(direct) = System::new().open(&path, Open { direct: true, ..Open::WRITE }) {
        assert!(is_full(direct.write(LIMIT, &Buffer::new(ALIGNMENT))));
    }
    // The thread's signal mask is unchanged, and a signal sent to it stays pending.
    assert_eq!(signal(), before);
    let mut it = core::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: a set that outlives the call; a valid signal number.
    unsafe { libc::sigaddset(it.as_mut_ptr(), libc::SIGXFSZ) };
    // SAFETY: as above; the old mask is not needed.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, it.as_ptr(), core::ptr::null_mut()) };
    // SAFETY: this thread blocks it.
    unsafe { libc::raise(libc::SIGXFSZ) };
    assert!(is_full(file.write(LIMIT, b"x")));
    assert_eq!(signal(), (true, true), "a signal sent to the thread was lost");
    limit(libc::RLIMIT_FSIZE, u64::MAX);
    file.write(LIMIT, b"x").unwrap();
}

#[test]
fn a_limit_of_files_is_an_error_and_no_signal() {
    let path = std::env::temp_dir().join(format!("disk-limits-{}", std::process::id()));
    let remove = || {
        for path in [&path, &path.with_extension("longer")] {
            let _ = std::fs::remove_file(path);
        }
    };
    remove();
    let ended = again(module_path!(), "child").env("LIMITS_FILE", &path).status().unwrap();
    remove();
    assert!(ended.success(), "{ended}");
}

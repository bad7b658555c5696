//! Initialization before the program runs, and in the child of a fork.
//!
//! Our constructor is linked to run before all others (`-z initfirst`), so the latch is chosen
//! before the first lock. It reads the environment that the loader passes, because `getenv` may not
//! work yet. Without it everything works, with the default latch.

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::Ordering::Relaxed;

use latchwork_machine::Native;

use crate::abi::{COND_MONOTONIC, COND_SHARED, Cond, Mutex, PREFER_WRITER, RECURSIVE, Rwlock};
use crate::mode::{self, GLIBC, MODE, PROFILE};
use crate::{cond, real};

type Constructor = unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char);

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: Constructor = start;

unsafe extern "C" fn start(
    count: c_int,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) {
    // SAFETY: the loader passes the environment to constructors.
    let variable = |name: &[u8]| unsafe { find(environment, name) };
    let mut mode = variable(b"LATCHWORK_LATCH").and_then(mode::by_name).unwrap_or(0);
    // SAFETY: it calls functions of the C library on objects of its own.
    if !unsafe { layout_is_known() } {
        mode = GLIBC;
    }
    // SAFETY: the loader passes the arguments to constructors; there may be none.
    let called = (count > 0).then(|| unsafe { CStr::from_ptr(*arguments) }.to_bytes());
    if let Some(folder) = variable(b"LATCHWORK_PROFILE") {
        let is_this = |only| latchwork_profile::is_this_program(only, called.unwrap_or_default());
        if variable(b"LATCHWORK_ONLY").is_none_or(is_this) {
            let name = variable(b"LATCHWORK_LATCH").unwrap_or(b"shfl");
            let depth = variable(b"LATCHWORK_DEPTH").map_or(1, number);
            if latchwork_profile::start(folder, name, depth) {
                mode |= PROFILE;
            }
        } else {
            latchwork_profile::passed_over(folder);
        }
    }
    // Relaxed: there is one thread.
    MODE.store(mode, Relaxed);
    // SAFETY: the handler exists as long as this library, which is never unloaded.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
}

/// Parses a decimal number; invalid text counts as zero.
fn number(text: &[u8]) -> usize {
    core::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Returns the value of a variable, without the zero byte.
///
/// # Safety
///
/// `environment` is valid: strings, then a null pointer; or is null itself.
unsafe fn find(environment: *const *const c_char, name: &[u8]) -> Option<&'static [u8]> {
    let mut next = environment;
    while !next.is_null() {
        // SAFETY: the caller promises it; the null pointer has not been passed.
        let entry = unsafe { *next };
        if entry.is_null() {
            break;
        }
        // SAFETY: the caller's promise is the same.
        let entry = unsafe { CStr::from_ptr(entry) }.to_bytes();
        if let Some(value) = entry.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"=")) {
            return Some(value);
        }
        next = next.wrapping_add(1);
    }
    None
}

/// In the child of a fork, before the program's own handlers.
///
/// The locks of the forking thread stay held, and it keeps its number, so it can release them.
/// Other threads that waited do not exist in the child: queues that name them are empty.
unsafe extern "C" fn forked() {
    cond::forked();
    Native::table().forked();
    latchwork_profile::forked();
}

/// Whether the C library's objects have the layout of `abi.rs`.
///
/// # Safety
///
/// Call it before a second thread starts.
unsafe fn layout_is_known() -> bool {
    // SAFETY: zero is a value of all of these, and each is initialised below.
    let (mut mutex, mut lock, mut cond): (
        libc::pthread_mutex_t,
        libc::pthread_rwlock_t,
        libc::pthread_cond_t,
    ) = unsafe { core::mem::zeroed() };
    // SAFETY: attributes are initialised before they are used, and objects by their attributes.
    unsafe {
        let mut attr = core::mem::zeroed();
        libc::pthread_mutexattr_init(&mut attr);
        libc::pthread_mutexattr_settype(&mut attr, libc::PTHREAD_MUTEX_RECURSIVE);
        real::mutex_init(&mut mutex, &attr);
        let mut attr = core::mem::zeroed();
        libc::pthread_rwlockattr_init(&mut attr);
        pthread_rwlockattr_setkind_np(&mut attr, PREFER_WRITER as c_int);
        libc::pthread_rwlockattr_setpshared(&mut attr, libc::PTHREAD_PROCESS_SHARED);
        real::rwlock_init(&mut lock, &attr);
        let mut attr = core::mem::zeroed();
        libc::pthread_condattr_init(&mut attr);
        libc::pthread_condattr_setclock(&mut attr, libc::CLOCK_MONOTONIC);
        libc::pthread_condattr_setpshared(&mut attr, libc::PTHREAD_PROCESS_SHARED);
        real::cond_init(&mut cond, &attr);
    }
    // SAFETY: `abi.rs` asserts that these are no larger and no more aligned.
    let (mutex, lock, cond) = unsafe {
        (
            &*(&raw const mutex).cast::<Mutex>(),
            &*(&raw const lock).cast::<Rwlock>(),
            &*(&raw const cond).cast::<Cond>(),
        )
    };
    mutex.kind.load(Relaxed) == RECURSIVE
        && lock.shared.load(Relaxed) != 0
        && lock.flags.load(Relaxed) == PREFER_WRITER
        && cond.flags.load(Relaxed) & 3 == COND_SHARED | COND_MONOTONIC
}

unsafe extern "C" {
    fn pthread_rwlockattr_setkind_np(attr: *mut libc::pthread_rwlockattr_t, kind: c_int) -> c_int;
}

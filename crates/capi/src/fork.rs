//! Whether an object was made by this process, or by the process that forked it.

use core::ptr::null_mut;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicPtr, AtomicU64};

/// A page that the kernel clears in the child of a fork (`MADV_WIPEONFORK`, Linux 4.14): so a
/// child is recognised however it was made, also by `clone(2)`. Null before it is first needed, and
/// mapped until the process ends.
static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());

/// Whether this process has this number, which [`token`] has returned in this one or in another.
#[inline]
pub(crate) fn is_token(number: u64) -> bool {
    // Acquire: with the AcqRel of `word`, so that it is mapped.
    // SAFETY: null, or the page.
    match unsafe { PAGE.load(Acquire).as_ref() } {
        // Relaxed: it orders nothing. A page that was cleared has no number.
        Some(word) => word.load(Relaxed) == number,
        None => false,
    }
}

/// A number that this process has, and none of its ancestors and children.
pub(crate) fn token() -> u64 {
    let word = word();
    // Relaxed: it orders nothing. All threads that this process has know the same number, or are
    // about to choose it.
    match word.load(Relaxed) {
        0 => choose(word),
        token => token,
    }
}

fn word() -> &'static AtomicU64 {
    // Acquire: with the AcqRel below.
    // SAFETY: null, or the page.
    if let Some(word) = unsafe { PAGE.load(Acquire).as_ref() } {
        return word;
    }
    let page = map();
    // AcqRel: publishes the page to the Acquire above; Acquire of the other thread's.
    let page = match PAGE.compare_exchange(null_mut(), page, AcqRel, Acquire) {
        Ok(_) => page,
        Err(other) => {
            // SAFETY: no other thread has seen it.
            unsafe { libc::munmap(page.cast(), 4096) };
            other
        }
    };
    // SAFETY: it is mapped for ever.
    unsafe { &*page }
}

fn map() -> *mut AtomicU64 {
    // SAFETY: an anonymous mapping that no other part of the program knows.
    let at = unsafe {
        libc::mmap(
            null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert!(at != libc::MAP_FAILED, "latchwork: no page of memory");
    // SAFETY: the page that was mapped above.
    let wiped = unsafe { libc::madvise(at, 4096, libc::MADV_WIPEONFORK) };
    assert!(wiped == 0, "latchwork: the kernel is older than Linux 4.14");
    at.cast()
}

#[cold]
fn choose(word: &AtomicU64) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    // No process forks and has a child that comes here within one nanosecond of its own choice.
    let chosen = (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64);
    let chosen = chosen.max(1);
    // Relaxed, twice: see `token`. One thread chooses for all.
    word.compare_exchange(0, chosen, Relaxed, Relaxed).map_or_else(|other| other, |_| chosen)
}

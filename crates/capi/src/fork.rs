//! Whether an object was made by this process, or by the process that forked it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A page that the kernel clears in the child of a fork (`MADV_WIPEONFORK`, Linux 4.14): so a
/// child is recognised however it was made, also by `clone(2)`.
struct Page(*const AtomicU64);

// SAFETY: the page is mapped until the process ends, and has atomics only.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

static PAGE: OnceLock<Page> = OnceLock::new();

/// A number that this process has, and none of its ancestors and children.
#[inline]
pub(crate) fn token() -> u64 {
    let page = PAGE.get_or_init(map);
    // SAFETY: it is mapped for ever.
    let word = unsafe { &*page.0 };
    // Relaxed: it orders nothing. All threads that this process has know the same number, or are
    // about to choose it.
    match word.load(Relaxed) {
        0 => choose(word),
        token => token,
    }
}

fn map() -> Page {
    // SAFETY: an anonymous mapping that no other part of the program knows.
    let at = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
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
    Page(at.cast())
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

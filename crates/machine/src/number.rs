//! A number for each thread of the process.

use core::cell::Cell;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// The number given out last.
static LAST: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// Returns this thread's number, which no other thread gets; zero while the thread's values are
/// dropped.
#[inline]
pub(crate) fn number() -> u64 {
    let known = |number: &Cell<u64>| {
        if number.get() == 0 {
            // Relaxed: each thread gets another number, in any order.
            number.set(LAST.fetch_add(1, Relaxed) + 1);
        }
        number.get()
    };
    NUMBER.try_with(known).unwrap_or(0)
}

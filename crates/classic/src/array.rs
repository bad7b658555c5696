//! Anderson's array lock: a circular array of flags, and each waiter polls its own.
//!
//! T. E. Anderson, "The performance of spin lock alternatives for shared-memory multiprocessors",
//! 1990. First come, first served. A release costs one miss, and a lock one line for every thread.
//!
//! State: `next` counts arrivals; `flags[at]` is 1 when the thread that arrived at `at` may enter.
//! Invariants: at most one flag is 1, and none is while the lock is held: a holder clears its flag
//! before it sets the next. The array has at least as many flags as threads, so no two threads wait
//! at one flag, and a power of two of them, so that `next` may wrap.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{Integer, Machine, Padded, Word};

use crate::words::words;
use crate::{Bytes, Lock, Named, Row, row};

/// Anderson's array lock: a line for each thread.
pub struct Array<M: Machine> {
    next: Padded<M::AtomicU32>,
    flags: Row<M::AtomicU32>,
    /// The position of each thread's flag, private to it.
    at: Row<M::AtomicU32>,
}

impl<M: Machine> Named for Array<M> {
    words!(next, [flags], [at]);
}

impl<M: Machine> Lock for Array<M> {
    fn new(threads: usize) -> Self {
        let flags: Row<M::AtomicU32> = row(threads.next_power_of_two());
        // Relaxed: no other thread knows the lock yet.
        flags[0].store(1, Relaxed);
        Self { next: Padded::default(), flags, at: row(threads) }
    }

    fn lock(&self, me: usize) {
        // Release: our earlier clearing of a flag comes before the next thread at that flag.
        // Acquire: and so do those of the others; otherwise an old 1 might be seen.
        let at = self.next.fetch_add(1, AcqRel) as usize % self.flags.len();
        self.at[me].store(at as u32, Relaxed);
        // Acquire: synchronizes with the Release in `unlock`.
        M::spin_until(&*self.flags[at], Acquire, |flag| flag == 1);
        // Relaxed: published by the exchange of the next thread that arrives, as above.
        self.flags[at].store(0, Relaxed);
    }

    fn unlock(&self, me: usize) {
        let at = self.at[me].load(Relaxed) as usize;
        // Release: synchronizes with the Acquire in `lock`.
        self.flags[(at + 1) % self.flags.len()].store(1, Release);
    }

    fn bytes(&self, _: usize) -> Bytes {
        Bytes::new(size_of::<Padded<M::AtomicU32>>() * (1 + self.flags.len()), 0)
    }
}

//! Anderson's array lock: a ring of flags, and each waiter looks at its own.
//!
//! T. E. Anderson, "The performance of spin lock alternatives for shared-memory multiprocessors",
//! 1990. First come, first served; a release costs one miss, and a lock a line for every thread.
//!
//! State: `next` counts arrivals; `flags[at]` is 1 when whoever came at `at` may go in.
//! Invariants: at most one flag is 1, and none is while the lock is held: a holder takes its flag
//! down before it raises the next. The ring has as many flags as threads at least, so nobody comes
//! to a flag at which another waits, and a power of two of them, so that `next` may wrap.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{Integer, Machine, Padded, Word};

use crate::words::words;
use crate::{Bytes, Lock, Named, Row, row};

/// Anderson's array lock: a line for each thread.
pub struct Array<M: Machine> {
    next: Padded<M::AtomicU32>,
    flags: Row<M::AtomicU32>,
    /// Where each thread's flag is: its own affair.
    at: Row<M::AtomicU32>,
}

impl<M: Machine> Named for Array<M> {
    words!(next, [flags], [at]);
}

impl<M: Machine> Lock for Array<M> {
    fn new(threads: usize) -> Self {
        let flags: Row<M::AtomicU32> = row(threads.next_power_of_two());
        // Relaxed: nobody else knows the lock yet.
        flags[0].store(1, Relaxed);
        Self { next: Padded::default(), flags, at: row(threads) }
    }

    fn lock(&self, me: usize) {
        // Release: our earlier clearing of a flag comes before whoever comes to that flag next.
        // Acquire: and so does everybody's; else an old 1 might be seen.
        let at = self.next.fetch_add(1, AcqRel) as usize % self.flags.len();
        self.at[me].store(at as u32, Relaxed);
        // Acquire: synchronizes with the Release in `unlock`.
        M::spin_until(&*self.flags[at], Acquire, |flag| flag == 1);
        // Relaxed: passed on by the exchange of whoever draws next after us, as above.
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

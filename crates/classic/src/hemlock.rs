//! Hemlock: a queue lock with one word for each thread, and none for each waiter.
//!
//! D. Dice and A. Kogan, "Hemlock: compact and scalable mutual exclusion", SPAA 2021. As in CLH, a
//! thread polls its predecessor's word; but that word stays its thread's, because a release waits
//! until the successor has seen it.
//!
//! State: `tail`, the last thread or zero; a thread's `grant`, 1 from its release until the next
//! has seen it. (The paper stores the lock's address there, because a thread's one word serves all
//! locks; here a word serves one lock.) Invariant: one thread polls a `grant`, the one that found
//! its owner at `tail`.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{Machine, Padded, Word};

use crate::words::words;
use crate::{Bytes, Lock, Named, Row, row};

/// Hemlock: 4 bytes, and 4 for each thread.
pub struct Hemlock<M: Machine> {
    tail: Padded<M::AtomicU32>,
    grants: Row<M::AtomicU32>,
}

impl<M: Machine> Named for Hemlock<M> {
    words!(tail, [grants]);
}

impl<M: Machine> Lock for Hemlock<M> {
    fn new(threads: usize) -> Self {
        Self { tail: Padded::default(), grants: row(threads) }
    }

    fn lock(&self, me: usize) {
        // Acquire: synchronizes with the Release in `unlock`, if that left the lock free. Release:
        // keeps that true for later threads.
        let before = self.tail.swap(me as u32 + 1, AcqRel);
        if before != 0 {
            let grant = &*self.grants[before as usize - 1];
            // Acquire: synchronizes with the Release in `unlock`.
            M::spin_until(grant, Acquire, |grant| grant == 1);
            // Release: synchronizes with the Acquire of the wait in `unlock`.
            grant.store(0, Release);
        }
    }

    fn unlock(&self, me: usize) {
        // Release: synchronizes with the Acquire of the exchange in `lock`.
        if self.tail.compare_exchange(me as u32 + 1, 0, Release, Relaxed).is_ok() {
            return;
        }
        let grant = &*self.grants[me];
        // Release: synchronizes with the Acquire of the wait in `lock`.
        grant.store(1, Release);
        // Acquire: synchronizes with the Release in `lock`, which has seen it.
        M::spin_until(grant, Acquire, |grant| grant == 0);
    }

    fn bytes(&self, _: usize) -> Bytes {
        Bytes::new(size_of::<M::AtomicU32>(), size_of::<M::AtomicU32>())
    }
}

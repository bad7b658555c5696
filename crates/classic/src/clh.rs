//! The CLH queue lock: each waiter polls the node of its predecessor.
//!
//! T. Craig, 1993; P. Magnusson, A. Landin and E. Hagersten, 1994. First come, first served. The
//! list has no links: a waiter knows its predecessor's node and takes over that node when it
//! leaves.
//!
//! State: `tail`, the last node; a node's `held`, 1 until its owner releases. There is one node
//! more than threads; each thread owns one of them at a time, and the one at `tail` belongs to the
//! next arriving thread. Invariants: one thread polls a node; the lock is free if and only if the
//! node at `tail` is not `held`.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{Machine, Padded, Word};

use crate::words::words;
use crate::{Bytes, Lock, Named, Row, row};

/// Values that only one thread reads.
#[derive(Default)]
struct Own<M: Machine> {
    mine: M::AtomicU32,
    before: M::AtomicU32,
}

impl<M: Machine> Named for Own<M> {
    words!(mine, before);
}

/// The CLH lock: 4 bytes and a node, and a node for each thread.
pub struct Clh<M: Machine> {
    /// Node 0 at first, which is not held.
    tail: Padded<M::AtomicU32>,
    held: Row<M::AtomicU32>,
    own: Row<Own<M>>,
}

impl<M: Machine> Named for Clh<M> {
    words!(tail, [held], [own]);
}

impl<M: Machine> Lock for Clh<M> {
    fn new(threads: usize) -> Self {
        let own: Row<Own<M>> = row(threads);
        for (thread, own) in own.iter().enumerate() {
            own.mine.store(thread as u32 + 1, Relaxed);
        }
        Self { tail: Padded::default(), held: row(threads + 1), own }
    }

    fn lock(&self, me: usize) {
        let own = &self.own[me];
        // Relaxed: private, and the exchange passes `held` on.
        let mine = own.mine.load(Relaxed);
        self.held[mine as usize].store(1, Relaxed);
        // Release: our `held` is set before the next thread polls it. Acquire: and our
        // predecessor's was set before we poll it.
        let before = self.tail.swap(mine, AcqRel);
        own.before.store(before, Relaxed);
        // Acquire: synchronizes with the Release in `unlock`.
        M::spin_until(&*self.held[before as usize], Acquire, |held| held == 0);
    }

    fn unlock(&self, me: usize) {
        let own = &self.own[me];
        // Relaxed: private.
        let mine = own.mine.load(Relaxed);
        // Release: synchronizes with the Acquire of the wait in `lock`.
        self.held[mine as usize].store(0, Release);
        // Relaxed: private. No thread polls our predecessor's node any more.
        own.mine.store(own.before.load(Relaxed), Relaxed);
    }

    fn bytes(&self, _: usize) -> Bytes {
        let word = size_of::<M::AtomicU32>();
        Bytes::new(2 * word, word)
    }
}

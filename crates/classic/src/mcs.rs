//! The MCS queue lock: a list of waiters, each of which polls its own node.
//!
//! J. Mellor-Crummey and M. Scott, "Algorithms for scalable synchronization on shared-memory
//! multiprocessors", 1991. First come, first served; a hand-over costs one miss.
//!
//! State: `tail`, the last node's number or zero; a node's `next`, and `waits`, 1 until its turn.
//! Invariants: the lock is free if and only if `tail` is zero; the holder's node is the first; a
//! node's `next` is written once, by its successor; a node is in use until its holder's release has
//! found it last, or has found and called the next.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{Machine, Padded, Word};

use crate::words::words;
use crate::{Bytes, Lock, Named, Row, row};

#[derive(Default)]
#[repr(C)]
struct Node<M: Machine> {
    next: M::AtomicU32,
    waits: M::AtomicU32,
}

impl<M: Machine> Named for Node<M> {
    words!(next, waits);
}

/// The MCS lock: 4 bytes, and 8 for each thread that waits or holds.
pub struct Mcs<M: Machine> {
    tail: Padded<M::AtomicU32>,
    nodes: Row<Node<M>>,
}

impl<M: Machine> Named for Mcs<M> {
    words!(tail, [nodes]);
}

impl<M: Machine> Lock for Mcs<M> {
    fn new(threads: usize) -> Self {
        Self { tail: Padded::default(), nodes: row(threads) }
    }

    fn lock(&self, me: usize) {
        let (node, number) = (&self.nodes[me], me as u32 + 1);
        // Relaxed: the exchange publishes it.
        node.next.store(0, Relaxed);
        // Release: our cleared `next` comes before the link of our successor. Acquire: and before
        // us comes the last holder's section, if it left an empty queue in `unlock`.
        let before = self.tail.swap(number, AcqRel);
        if before == 0 {
            return;
        }
        node.waits.store(1, Relaxed);
        // Release: synchronizes with the Acquire in `unlock`, which clears `waits` after it was
        // set.
        self.nodes[before as usize - 1].next.store(number, Release);
        // Acquire: synchronizes with the Release in `unlock`.
        M::spin_until(&node.waits, Acquire, |waits| waits == 0);
    }

    fn unlock(&self, me: usize) {
        let (node, number) = (&self.nodes[me], me as u32 + 1);
        // Acquire: synchronizes with the Release of the link in `lock`.
        let mut next = node.next.load(Acquire);
        if next == 0 {
            // Release: synchronizes with the Acquire of the exchange in `lock`.
            if self.tail.compare_exchange(number, 0, Release, Relaxed).is_ok() {
                return;
            }
            // Acquire: as above.
            next = M::spin_until(&node.next, Acquire, |next| next != 0);
        }
        // Release: synchronizes with the Acquire of the wait in `lock`.
        self.nodes[next as usize - 1].waits.store(0, Release);
    }

    fn bytes(&self, _: usize) -> Bytes {
        Bytes::new(size_of::<M::AtomicU32>(), size_of::<Node<M>>())
    }
}

//! Linux's queue of optimistic spinners: an MCS queue that a thread may leave before its turn.
//!
//! T. Chen, W. Long, J. Low and P. Zijlstra, 2013-2014. Inside the sleeping locks it lets one
//! thread at a time poll the owner, and lets all sleep when their time is up.
//!
//! State: `tail`, the last node or zero; a node's `next`, `prev` and `turn`. Invariants: a leaving
//! thread first removes itself from its predecessor's `next`, then determines its successor, and
//! only then joins the two; so of two neighbours that leave at once, the later one waits for the
//! earlier.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{Machine, Word};

use crate::waiters::Looks;
use crate::words::words;
use crate::{Named, Row, row};

#[derive(Default)]
struct Node<M: Machine> {
    next: M::AtomicU32,
    prev: M::AtomicU32,
    turn: M::AtomicU32,
}

impl<M: Machine> Named for Node<M> {
    words!(next, prev, turn);
}

/// The queue's nodes; its tail is a word of the lock.
pub(crate) struct Osq<M: Machine> {
    nodes: Row<Node<M>>,
}

impl<M: Machine> Named for Osq<M> {
    words!([nodes]);
}

impl<M: Machine> Osq<M> {
    pub(crate) fn new(threads: usize) -> Self {
        Self { nodes: row(threads) }
    }

    fn at(&self, number: u32) -> &Node<M> {
        &self.nodes[number as usize - 1]
    }

    /// Queues until it is our turn, or until `looks` are spent; then returns false.
    pub(crate) fn lock(&self, tail: &M::AtomicU32, me: usize, looks: &Looks<M>) -> bool {
        let (node, number) = (&self.nodes[me], me as u32 + 1);
        // Relaxed: the exchange publishes them.
        node.next.store(0, Relaxed);
        node.turn.store(0, Relaxed);
        // Release: our cleared node comes before the link of our successor. Acquire: so does that
        // of our predecessor.
        let mut before = tail.swap(number, AcqRel);
        if before == 0 {
            return true;
        }
        node.prev.store(before, Relaxed);
        // Release: synchronizes with the Acquire in `next_of`; `prev` comes before it.
        self.at(before).next.store(number, Release);
        // Acquire: synchronizes with the Release in `call`.
        let turn = M::spin_until(&node.turn, Acquire, |turn| turn == 1 || looks.spent());
        if turn == 1 {
            return true;
        }
        // Relaxed: a link to a node of ours, which we know.
        while self.at(before).next.load(Relaxed) != number
            || self.at(before).next.compare_exchange(number, 0, Relaxed, Relaxed).is_err()
        {
            // Acquire: synchronizes with the Release in `call`.
            if node.turn.load(Acquire) == 1 {
                return true;
            }
            M::relax();
            // Acquire: synchronizes with the Release below, of a predecessor that left.
            before = node.prev.load(Acquire);
        }
        if let Some(next) = self.next_of(tail, me, before) {
            // Release: synchronizes with the Acquire of `prev` above.
            self.at(next).prev.store(before, Release);
            // Release: synchronizes with the Acquire in `next_of`.
            self.at(before).next.store(next, Release);
        }
        false
    }

    pub(crate) fn unlock(&self, tail: &M::AtomicU32, me: usize) {
        if let Some(next) = self.next_of(tail, me, 0) {
            // Release: synchronizes with the Acquire of `turn` in `lock`.
            self.at(next).turn.store(1, Release);
        }
    }

    /// Returns the successor, which stays, or none: then `before` is the last node.
    fn next_of(&self, tail: &M::AtomicU32, me: usize, before: u32) -> Option<u32> {
        let (node, number) = (&self.nodes[me], me as u32 + 1);
        loop {
            // Release: our stores come before the thread that finds `before` there.
            if tail.load(Relaxed) == number
                && tail.compare_exchange(number, before, Release, Relaxed).is_ok()
            {
                return None;
            }
            // Acquire: synchronizes with the Release of the links in `lock`.
            if node.next.load(Relaxed) != 0 {
                let next = node.next.swap(0, Acquire);
                if next != 0 {
                    return Some(next);
                }
            }
            M::relax();
        }
    }

    /// Bytes of a waiter.
    pub(crate) const fn bytes() -> usize {
        size_of::<Node<M>>()
    }
}

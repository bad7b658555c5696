//! A lock as Linux's queued spinlock: four bytes, a pending bit for the second, a queue for the rest.
//!
//! W. Long, P. Zijlstra and others, 2014, after Mellor-Crummey and Scott, 1991.
//!
//! ```text
//!  byte 0   1         2            3
//! ┌────────┬─────────┬──────────────┐
//! │ held   │ pending │ tail: u16    │   tail: last node or zero
//! └────────┴─────────┴──────────────┘
//! ```
//!
//! | lock | a comer |
//! |---|---|
//! | all zero | takes it: one exchange |
//! | held alone | sets `pending` and waits on the lock; it needs no node |
//! | pending or queued | queues, and waits on its own node to become the head |
//!
//! The head waits until the lock is neither held nor pending, takes it, and calls the next.
//!
//! The kernel exchanges the whole word in its fast path and its parts elsewhere, for which Rust's
//! memory model has no words. Here all steps are on the parts, so a comer that saw nobody wait may
//! overtake who began to wait since: each at most once. What it costs is the same: all of it lies in
//! one line, the release is a store, and a joiner makes one exchange.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{Machine, Padded, Word};

use crate::{Bytes, Lock, Row, row};

/// The most threads: a node's number has 16 bits.
pub(crate) const THREADS_MAX: usize = 0xFFFF;

#[derive(Default)]
#[repr(C)]
struct Node<M: Machine> {
    next: M::AtomicU32,
    head: M::AtomicU32,
}

#[derive(Default)]
#[repr(C)]
struct Parts<M: Machine> {
    held: M::AtomicU8,
    pending: M::AtomicU8,
    tail: M::AtomicU16,
}

/// A lock as Linux's queued spinlock: 4 bytes, and 8 for each thread that waits in the queue.
pub struct Qspinlock<M: Machine> {
    parts: Padded<Parts<M>>,
    nodes: Row<Node<M>>,
}

impl<M: Machine> Lock for Qspinlock<M> {
    fn new(threads: usize) -> Self {
        assert!(threads <= THREADS_MAX, "a queued spinlock serves {THREADS_MAX} threads");
        Self { parts: Padded::default(), nodes: row(threads) }
    }

    #[inline]
    fn lock(&self, me: usize) {
        let parts = &*self.parts;
        // Relaxed: hints; `take` decides.
        let alone = parts.tail.load(Relaxed) == 0 && parts.pending.load(Relaxed) == 0;
        if !(alone && self.take()) {
            self.lock_slow(me);
        }
    }

    #[inline]
    fn unlock(&self, _: usize) {
        // Release: synchronizes with the Acquire in `take`.
        self.parts.held.store(0, Release);
    }

    fn bytes(&self, _: usize) -> Bytes {
        Bytes { lock: size_of::<Parts<M>>(), waiter: size_of::<Node<M>>(), holder: 0 }
    }
}

impl<M: Machine> Qspinlock<M> {
    #[inline]
    fn take(&self) -> bool {
        // Acquire: synchronizes with the Release in `unlock`.
        self.parts.held.compare_exchange(0, 1, Acquire, Relaxed).is_ok()
    }

    /// Waits on the lock itself, as the one that may.
    fn take_soon(&self) {
        loop {
            // Relaxed: `take` acquires.
            M::spin_until(&self.parts.held, Relaxed, |held| held == 0);
            if self.take() {
                return;
            }
        }
    }

    #[cold]
    fn lock_slow(&self, me: usize) {
        let parts = &*self.parts;
        // Relaxed: pending decides who waits where and guards nothing.
        if parts.tail.load(Relaxed) == 0
            && parts.pending.compare_exchange(0, 1, Relaxed, Relaxed).is_ok()
        {
            self.take_soon();
            parts.pending.store(0, Relaxed);
            return;
        }
        self.queue(me);
    }

    fn queue(&self, me: usize) {
        let (parts, node, number) = (&*self.parts, &self.nodes[me], me as u16 + 1);
        // Relaxed: the exchange passes them on.
        node.next.store(0, Relaxed);
        node.head.store(0, Relaxed);
        // Release: our cleared node comes before the link of who finds us there. Acquire: so does
        // that of the one before us.
        let before = parts.tail.swap(number, AcqRel);
        if before != 0 {
            // Release: synchronizes with the Acquire below, of the head before us.
            self.nodes[usize::from(before) - 1].next.store(u32::from(number), Release);
            // Acquire: synchronizes with the Release below, of the head before us.
            M::spin_until(&node.head, Acquire, |head| head == 1);
        }
        // Relaxed: `take` acquires.
        M::spin_until(&parts.pending, Relaxed, |pending| pending == 0);
        self.take_soon();
        // Release: our node is ours again, and clear, before the next first comer uses the queue.
        if parts.tail.compare_exchange(number, 0, Release, Relaxed).is_ok() {
            return;
        }
        // Acquire: synchronizes with the Release of the link above.
        let next = M::spin_until(&node.next, Acquire, |next| next != 0);
        // Release: synchronizes with the Acquire of the wait above.
        self.nodes[next as usize - 1].head.store(1, Release);
    }
}

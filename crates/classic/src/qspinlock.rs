//! A lock like Linux's queued spinlock: four bytes, a pending bit for the second thread, a queue
//! for the rest.
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
//! | lock | an arriving thread |
//! |---|---|
//! | all zero | takes it: one exchange |
//! | held alone | sets `pending` and waits on the lock; it needs no node |
//! | pending or queued | queues, and waits on its own node to become the head |
//!
//! The head waits until the lock is neither held nor pending, takes it, and calls the next. The
//! [`Order`] decides which thread it calls, like hooks in the kernel's patches: [`Fifo`] here,
//! `ByNode` in `cna_kernel.rs`.
//!
//! The kernel exchanges the whole word in its fast path and its parts elsewhere, which Rust's
//! memory model cannot express. Here all steps are on the parts, so an arriving thread that saw no
//! waiter may overtake threads that began to wait since, each at most once. The cost is the same:
//! all parts are in one line, the release is a store, and a joining thread makes one exchange.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{Machine, Padded, Word};

use crate::words::words;
use crate::{Bytes, Lock, Named, Nothing, Row, row};

/// The most threads: a node's number has 16 bits.
pub(crate) const THREADS_MAX: usize = 0xFFFF;

/// Not the head yet.
const WAITS: u32 = 0;
/// The head; an order may pass larger values.
pub(crate) const HEAD: u32 = 1;

/// A waiter's node: the common part, and the order's own.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Node<M: Machine, T> {
    pub(crate) next: M::AtomicU32,
    pub(crate) head: M::AtomicU32,
    pub(crate) more: T,
}

impl<M: Machine, T: Named> Named for Node<M, T> {
    words!(next, head, more);
}

#[derive(Default)]
#[repr(C)]
struct Parts<M: Machine> {
    held: M::AtomicU8,
    pending: M::AtomicU8,
    tail: M::AtomicU16,
}

impl<M: Machine> Named for Parts<M> {
    words!(held, pending, tail);
}

/// Decides which thread the head of a queued spinlock calls next.
pub trait Order<M: Machine>: Sized + Send + Sync + 'static {
    /// An order's own part of a node.
    type More: Default + Named + Send + Sync + 'static;

    /// Prepares the node of a thread that is about to queue.
    fn join(more: &Self::More);

    /// Removes the head from the queue, and calls the next. The head has the lock.
    fn leave(lock: &Qspinlock<M, Self>, me: usize);
}

/// First come, first served.
pub struct Fifo;

impl<M: Machine> Order<M> for Fifo {
    type More = Nothing;

    fn join(_: &Nothing) {}

    fn leave(lock: &Qspinlock<M, Self>, me: usize) {
        if !lock.close(me, 0) {
            lock.call(lock.next(me), HEAD);
        }
    }
}

/// A lock like Linux's queued spinlock: 4 bytes, and 8 for each thread that waits in the queue.
pub struct Qspinlock<M: Machine, O: Order<M> = Fifo> {
    parts: Padded<Parts<M>>,
    nodes: Row<Node<M, O::More>>,
}

impl<M: Machine, O: Order<M>> Named for Qspinlock<M, O> {
    words!(parts, [nodes]);
}

impl<M: Machine, O: Order<M>> Lock for Qspinlock<M, O> {
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
        let waiter = size_of::<Node<M, O::More>>();
        Bytes { lock: size_of::<Parts<M>>(), waiter, holder: 0 }
    }
}

impl<M: Machine, O: Order<M>> Qspinlock<M, O> {
    #[inline]
    fn take(&self) -> bool {
        // Acquire: synchronizes with the Release in `unlock`.
        self.parts.held.compare_exchange(0, 1, Acquire, Relaxed).is_ok()
    }

    /// Waits on the lock itself, as the only thread that may.
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
        // Relaxed: pending decides which thread waits where and guards nothing.
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
        // Relaxed: the exchange publishes them.
        node.next.store(0, Relaxed);
        node.head.store(WAITS, Relaxed);
        O::join(&node.more);
        // Release: our cleared node comes before the link of our successor. Acquire: so does that
        // of our predecessor.
        let before = parts.tail.swap(number, AcqRel);
        if before == 0 {
            node.head.store(HEAD, Relaxed);
        } else {
            // Release: synchronizes with the Acquire of threads that read the link: `next` and
            // orders.
            self.nodes[usize::from(before) - 1].next.store(u32::from(number), Release);
            // Acquire: synchronizes with the Release in `call`.
            M::spin_until(&node.head, Acquire, |head| head != WAITS);
        }
        // Relaxed: `take` acquires.
        M::spin_until(&parts.pending, Relaxed, |pending| pending == 0);
        self.take_soon();
        O::leave(self, me);
    }

    /// Returns the node of this number.
    pub(crate) fn at(&self, number: u32) -> &Node<M, O::More> {
        &self.nodes[number as usize - 1]
    }

    /// Removes the head if no thread is known to follow, and makes `last` the last node. Returns
    /// whether no thread followed.
    pub(crate) fn close(&self, me: usize, last: u32) -> bool {
        // Relaxed: a hint; if a thread follows, the exchange fails.
        if self.nodes[me].next.load(Relaxed) != 0 {
            return false;
        }
        // Release: our node is ours again, and clear, before the next first thread uses the queue;
        // and an order's stores to `last` come before its successor.
        self.parts.tail.compare_exchange(me as u16 + 1, last as u16, Release, Relaxed).is_ok()
    }

    /// Returns the following thread, which may be about to arrive.
    pub(crate) fn next(&self, me: usize) -> u32 {
        // Acquire: synchronizes with the Release of the link in `queue`.
        M::spin_until(&self.nodes[me].next, Acquire, |next| next != 0)
    }

    /// Makes the thread of this number the head.
    pub(crate) fn call(&self, number: u32, with: u32) {
        // Release: synchronizes with the Acquire of the wait in `queue`.
        self.at(number).head.store(with, Release);
    }
}

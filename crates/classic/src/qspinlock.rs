//! A lock as Linux's queued spinlock: four bytes, a pending bit for the second, a queue for the rest.
//!
//! W. Long, P. Zijlstra and others, 2014, after Mellor-Crummey and Scott, 1991.
//!
//! ```text
//!  31                 16 15     9    8    7         0
//! ┌─────────────────────┬────────┬───────┬───────────┐
//! │ last node or zero   │   0    │PENDING│ HELD      │
//! └─────────────────────┴────────┴───────┴───────────┘
//! ```
//!
//! | word | a comer |
//! |---|---|
//! | zero | takes it: one exchange |
//! | held alone | sets `PENDING` and waits on the word; it needs no node |
//! | pending or queued | queues, and waits on its own node to become the head |
//!
//! The head waits on the word until it is neither held nor pending, takes it, and calls the next.
//! Invariants: nobody overtakes while anybody is pending or queued; one thread has set `PENDING`.
//!
//! The kernel stores and exchanges parts of the word, which Rust's memory model has no word for.
//! This is its form for many cpus, where all steps are on the whole word; and the release subtracts
//! where the kernel stores a byte, so it costs a locked instruction more.

use core::cell::Cell;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{Integer, Machine, Padded, Word};

use crate::{Bytes, Lock, Row, row};

const HELD: u32 = 1;
const PENDING: u32 = 1 << 8;
const TAIL_SHIFT: u32 = 16;
const TAIL: u32 = 0xFFFF << TAIL_SHIFT;
/// Looks at a word that is pending and not held, and so about to be held (x86's value).
const PENDING_LOOKS: u32 = 512;

/// The most threads: a node's number has 16 bits.
pub(crate) const THREADS_MAX: usize = 0xFFFF;

#[derive(Default)]
#[repr(C)]
struct Node<M: Machine> {
    next: M::AtomicU32,
    head: M::AtomicU32,
}

/// A lock as Linux's queued spinlock: 4 bytes, and 8 for each thread that waits in the queue.
pub struct Qspinlock<M: Machine> {
    word: Padded<M::AtomicU32>,
    nodes: Row<Node<M>>,
}

impl<M: Machine> Lock for Qspinlock<M> {
    fn new(threads: usize) -> Self {
        assert!(threads <= THREADS_MAX, "a queued spinlock serves {THREADS_MAX} threads");
        Self { word: Padded::default(), nodes: row(threads) }
    }

    #[inline]
    fn lock(&self, me: usize) {
        // Acquire: synchronizes with the Release in `unlock`.
        if let Err(seen) = self.word.compare_exchange(0, HELD, Acquire, Relaxed) {
            self.lock_slow(me, seen);
        }
    }

    #[inline]
    fn unlock(&self, _: usize) {
        // Release: synchronizes with the Acquire of whoever takes it.
        self.word.fetch_sub(HELD, Release);
    }

    fn bytes(&self, _: usize) -> Bytes {
        Bytes { lock: size_of::<M::AtomicU32>(), waiter: size_of::<Node<M>>(), holder: 0 }
    }
}

impl<M: Machine> Qspinlock<M> {
    #[cold]
    fn lock_slow(&self, me: usize, mut seen: u32) {
        if seen == PENDING {
            let looks = Cell::new(if M::SPIN_NS == 0 { 1 } else { PENDING_LOOKS });
            // Relaxed: whatever is seen, an exchange follows.
            seen = M::spin_until(&*self.word, Relaxed, |word| {
                looks.set(looks.get().saturating_sub(1));
                word != PENDING || looks.get() == 0
            });
        }
        if seen & !HELD == 0 && self.pend() {
            return;
        }
        self.queue(me);
    }

    /// Waits as the one that is pending, if it is the only one to wait.
    fn pend(&self) -> bool {
        // Acquire: synchronizes with the Release in `unlock`, if the holder has just left.
        let seen = self.word.fetch_or(PENDING, Acquire);
        if seen & !HELD != 0 {
            if seen & PENDING == 0 {
                // Relaxed: it takes back what nobody acted on.
                self.word.fetch_and(!PENDING, Relaxed);
            }
            return false;
        }
        if seen & HELD != 0 {
            // Acquire: synchronizes with the Release in `unlock`.
            M::spin_until(&*self.word, Acquire, |word| word & HELD == 0);
        }
        // Relaxed: acquired above.
        self.word.fetch_sub(PENDING - HELD, Relaxed);
        true
    }

    fn queue(&self, me: usize) {
        let (node, tail) = (&self.nodes[me], (me as u32 + 1) << TAIL_SHIFT);
        // Relaxed: the exchange passes them on.
        node.next.store(0, Relaxed);
        node.head.store(0, Relaxed);
        // Acquire: synchronizes with the Release in `unlock`.
        if self.word.compare_exchange(0, HELD, Acquire, Relaxed).is_ok() {
            return;
        }
        let mut seen = self.word.load(Relaxed);
        // Release: our cleared node comes before the link of who finds us there. Acquire: so does
        // that of the one before us.
        while let Err(now) = self.word.compare_exchange(seen, seen & !TAIL | tail, AcqRel, Relaxed)
        {
            seen = now;
        }
        if seen & TAIL != 0 {
            let before = &self.nodes[(seen >> TAIL_SHIFT) as usize - 1];
            // Release: synchronizes with the Acquire in `call_next`.
            before.next.store(me as u32 + 1, Release);
            // Acquire: synchronizes with the Release in `call_next`.
            M::spin_until(&node.head, Acquire, |head| head == 1);
        }
        // Acquire: synchronizes with the Release in `unlock`. From here on nobody but us takes it:
        // there is a tail, so nobody begins to pend.
        let seen = M::spin_until(&*self.word, Acquire, |word| word & (HELD | PENDING) == 0);
        // Relaxed: acquired above. A comer may still set PENDING for a moment, and take it back.
        if seen == tail && self.word.compare_exchange(tail, HELD, Relaxed, Relaxed).is_ok() {
            return;
        }
        self.word.fetch_or(HELD, Relaxed);
        self.call_next(node, tail);
    }

    fn call_next(&self, node: &Node<M>, tail: u32) {
        debug_assert_ne!(tail, 0);
        // Acquire: synchronizes with the Release of the link in `queue`.
        let next = M::spin_until(&node.next, Acquire, |next| next != 0);
        // Release: synchronizes with the Acquire of the wait in `queue`.
        self.nodes[next as usize - 1].head.store(1, Release);
    }
}

//! The bakery algorithm: take a number higher than all visible ones, and wait for the lower ones.
//!
//! L. Lamport, "A new solution of Dijkstra's concurrent programming problem", 1974. It uses loads
//! and stores only, first come, first served; each entry reads two words of every thread.
//!
//! State: for each thread `choosing`, and `number`, zero if it does not want the lock. Invariants:
//! of two threads with numbers the lower one enters first, of equal ones the lower thread; a thread
//! that has chosen keeps its number until it leaves. Numbers have 64 bits and do not wrap.
//!
//! Memory order: an arriving thread writes `choosing`, then reads numbers; a thread with a number
//! reads `choosing`. Both have a fence in between: either the arriving thread sees the number and
//! takes a higher one, or the other sees it choosing and waits.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use latchwork_machine::{Machine, Padded, Word};

use crate::words::words;
use crate::{Bytes, Lock, Named, Row, row};

#[derive(Default)]
struct Customer<M: Machine> {
    number: M::AtomicU64,
    choosing: M::AtomicU32,
}

impl<M: Machine> Named for Customer<M> {
    words!(number, choosing);
}

/// Lamport's bakery: a line for each thread.
pub struct Bakery<M: Machine> {
    customers: Row<Customer<M>>,
}

impl<M: Machine> Named for Bakery<M> {
    words!([customers]);
}

impl<M: Machine> Lock for Bakery<M> {
    fn new(threads: usize) -> Self {
        Self { customers: row(threads) }
    }

    fn lock(&self, me: usize) {
        let own = &self.customers[me];
        // Relaxed: the fence orders.
        own.choosing.store(1, Relaxed);
        // SeqCst: pairs with the fence below, of a thread that has chosen.
        M::fence(SeqCst);
        let highest = self.customers.iter().map(|other| other.number.load(Relaxed)).max();
        let number = 1 + highest.unwrap_or(0);
        own.number.store(number, Relaxed);
        // Release: synchronizes with the Acquire below, so that a thread that sees us done sees our
        // number.
        own.choosing.store(0, Release);
        // SeqCst: pairs with the fence above, of a thread that is choosing.
        M::fence(SeqCst);
        for (thread, other) in self.customers.iter().enumerate() {
            if thread == me {
                continue;
            }
            // Acquire: synchronizes with the Release above.
            M::spin_until(&other.choosing, Acquire, |choosing| choosing == 0);
            // Acquire: synchronizes with the Release in `unlock`.
            M::spin_until(&other.number, Acquire, |theirs| {
                theirs == 0 || (theirs, thread) > (number, me)
            });
        }
    }

    fn unlock(&self, me: usize) {
        // Release: synchronizes with the Acquire in `lock`.
        self.customers[me].number.store(0, Release);
    }

    fn bytes(&self, _: usize) -> Bytes {
        let line = size_of::<Padded<Customer<M>>>();
        Bytes::new(line * self.customers.len(), 0)
    }
}

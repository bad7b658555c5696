//! The compact NUMA-aware lock inside a queued spinlock: four bytes, and none while it is held.
//!
//! A. Kogan and D. Dice, patches for Linux, 2019 to 2021, after "Compact NUMA-aware locks", EuroSys
//! 2019. Unlike in [`Cna`](crate::Cna), the head of the queue sorts, when it has taken the lock and
//!       calls the next head: the first waiter of its own node; those before it are moved to the
//!       second queue. This is the version of the patches of 2019, with which ShflLock was compared
//!       (SOSP 2019). Later versions begin to sort while they wait, and the last one examines one
//!       waiter at a time.
//!
//! State: the queued spinlock's, and in a node
//!
//! | word | meaning |
//! |---|---|
//! | `head` | 0 waits; 1 the head; else the head, and a number plus one: the second queue's last |
//! | `next` | in the main queue; or in the second, which is circular, so its last knows its first |
//! | `place` | the NUMA node |
//! | `passes` | hand-overs since the second queue, the queue or a turn began |
//!
//! Invariants: only the head knows the second queue and passes it on, with `passes`; only the head
//! writes links that are not zero, and only of nodes that are not last.
//!
//! Without a second queue, the patches sort only in one head out of 128, chosen by lot, so that a
//! lock with few waiters is left alone; their turns end by a count of 65,536 at first and after 10
//! ms later. We count for both: a queue is sorted from its 128th hand-over on, and a turn has as
//! many as [`Cna::TURN_MAX`](crate::Cna::TURN_MAX) for the reasons given there. The patches'
//! precedence for interrupts is omitted.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{Machine, Word};

use crate::qspinlock::{HEAD, Node, Order, Qspinlock};
use crate::words::words;
use crate::{Cna, Named, node_here};

/// A waiter's place, and the length of its turn.
///
/// Relaxed: the link publishes `place`, and `call` publishes `passes`.
#[derive(Default)]
#[repr(C)]
pub struct Turn<M: Machine> {
    place: M::AtomicU32,
    passes: M::AtomicU32,
}

impl<M: Machine> Named for Turn<M> {
    words!(place, passes);
}

/// Calls waiters of the head's node first for a turn.
pub struct ByNode;

impl ByNode {
    /// Hand-overs of a queue before it is sorted. None for a model checker, whose runs are short.
    const fn unsorted<M: Machine>() -> u32 {
        if M::SPIN_NS == 0 { 0 } else { 128 }
    }
}

/// The compact NUMA-aware lock in a queued spinlock: 4 bytes, and 16 for each thread that queues.
pub type CnaKernel<M> = Qspinlock<M, ByNode>;

impl<M: Machine> Order<M> for ByNode {
    type More = Turn<M>;

    fn join(turn: &Turn<M>) {
        turn.place.store(node_here::<M>() as u32, Relaxed);
        turn.passes.store(0, Relaxed);
    }

    fn leave(lock: &Qspinlock<M, Self>, me: usize) {
        let own = lock.at(me as u32 + 1);
        // Relaxed: ours.
        let (head, passes) = (own.head.load(Relaxed), own.more.passes.load(Relaxed));
        let last = (head != HEAD).then(|| lock.at(head - 1));
        // Relaxed: the second queue's links are the head's.
        let first = last.map(|last| last.next.load(Relaxed));
        if own.next.load(Relaxed) == 0 {
            // The second queue, if it exists, becomes the main one, no longer circular before other
            // threads find it.
            last.inspect(|last| last.next.store(0, Relaxed));
            if lock.close(me, head - HEAD) {
                first.inspect(|first| lock.pass(*first, 0, HEAD));
                return;
            }
            last.inspect(|last| last.next.store(first.unwrap_or(0), Relaxed));
        }
        let next = lock.next(me);
        let sorts = match last {
            None => passes >= Self::unsorted::<M>(),
            Some(_) => passes < Cna::<M>::TURN_MAX,
        };
        if sorts && let Some(neighbour) = lock.neighbour(own, next) {
            // Relaxed: ours.
            let now = own.head.load(Relaxed);
            let begins = head == HEAD && now != HEAD;
            return lock.pass(neighbour, if begins { 1 } else { passes.saturating_add(1) }, now);
        }
        match (last, first) {
            (Some(last), Some(first)) => {
                // Release: publishes the link to `next` for the Acquire of the thread that reads it
                // here.
                last.next.store(next, Release);
                // The next turn begins at once, so that the rhythm of the count does not favour the
                // same node.
                lock.pass(first, Self::unsorted::<M>(), HEAD);
            }
            _ => lock.pass(next, passes.saturating_add(1), HEAD),
        }
    }
}

impl<M: Machine> CnaKernel<M> {
    fn pass(&self, number: u32, passes: u32, head: u32) {
        self.at(number).more.passes.store(passes, Relaxed);
        self.call(number, head);
    }

    /// Defers the waiters before the first waiter of the head's node, and returns that waiter, if
    /// it exists.
    fn neighbour(&self, own: &Node<M, Turn<M>>, next: u32) -> Option<u32> {
        let place = own.more.place.load(Relaxed);
        let (mut skipped, mut at) = (0, next);
        while self.at(at).more.place.load(Relaxed) != place {
            skipped = at;
            // Acquire: synchronizes with the Release of the link in `queue`.
            at = self.at(at).next.load(Acquire);
            if at == 0 {
                return None;
            }
        }
        if skipped != 0 {
            // Relaxed: `call` passes on the second queue, from head to head.
            let head = own.head.load(Relaxed);
            let mut first = next;
            if head != HEAD {
                let last = self.at(head - 1);
                first = last.next.load(Relaxed);
                last.next.store(next, Relaxed);
            }
            self.at(skipped).next.store(first, Relaxed);
            own.head.store(skipped + 1, Relaxed);
        }
        Some(at)
    }
}

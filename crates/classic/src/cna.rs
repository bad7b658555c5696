//! Compact NUMA-aware lock: an MCS queue whose holder defers the waiters of other nodes.
//!
//! D. Dice and A. Kogan, "Compact NUMA-aware locks", EuroSys 2019. As small as MCS. At release the
//! holder calls the first waiter of its own node, and moves those before it to a second queue,
//! which is put back in front when no neighbour waits, and at the end of a turn.
//!
//! The end of a turn differs between versions. The paper draws lots, 1 in 65,536 hand-overs; the
//! patches for Linux first counted to 65,536 and later waited 10 ms; the authors of ShflLock drew 1
//! in 1024 in their C code for CNA (2019). With sections of 100 ns, a turn of 65,536 takes about 7
//! ms, which is too long in practice and hides, in a shorter run, that turns end at all. So we
//! count, as the patches did, but to [`Cna::TURN_MAX`]: one crossing hand-over in a thousand costs
//! no measurable throughput.
//!
//! State: `tail`, the last node or zero; in a node
//!
//! | word | meaning |
//! |---|---|
//! | `turn` | 0 waits; 1 its turn; else its turn, and a number plus one: the second queue's first |
//! | `place` | NUMA node plus one, or 0 if it did not wait |
//! | `next` | in the main queue, or in the second |
//! | `second_tail` | in the second queue's first node: that queue's last |
//! | `passes` | hand-overs since the second queue exists |
//!
//! Invariants: the holder's node is the main queue's first, and only its `turn` leads to the second
//! queue; only the holder writes links that are not zero; the last of the second queue has `next`
//! zero. Deferred waiters were not last, so `tail` is never in the second queue while the main one
//! has a waiter.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{Machine, Padded, Word};

use crate::words::words;
use crate::{Bytes, Lock, Named, Row, node_here, row};

const WAITS: u32 = 0;
const TURN: u32 = 1;

#[derive(Default)]
#[repr(C)]
struct Node<M: Machine> {
    next: M::AtomicU32,
    turn: M::AtomicU32,
    place: M::AtomicU32,
    second_tail: M::AtomicU32,
    passes: M::AtomicU32,
}

impl<M: Machine> Named for Node<M> {
    words!(next, turn, place, second_tail, passes);
}

/// The compact NUMA-aware lock: 4 bytes, and 20 for each thread that waits or holds.
pub struct Cna<M: Machine> {
    tail: Padded<M::AtomicU32>,
    nodes: Row<Node<M>>,
}

impl<M: Machine> Named for Cna<M> {
    words!(tail, [nodes]);
}

impl<M: Machine> Lock for Cna<M> {
    fn new(threads: usize) -> Self {
        Self { tail: Padded::default(), nodes: row(threads) }
    }

    fn lock(&self, me: usize) {
        let (node, number) = (&self.nodes[me], me as u32 + 1);
        // Relaxed: the exchange publishes them.
        node.next.store(0, Relaxed);
        node.place.store(0, Relaxed);
        node.turn.store(WAITS, Relaxed);
        // Release: our cleared node comes before the link of our successor. Acquire: and before us
        // comes the last holder's section, if it left an empty queue in `unlock`.
        let before = self.tail.swap(number, AcqRel);
        if before == 0 {
            node.turn.store(TURN, Relaxed);
            return;
        }
        node.place.store(node_here::<M>() as u32 + 1, Relaxed);
        // Release: synchronizes with the Acquire of the links in `unlock` and `neighbour`.
        self.at(before).next.store(number, Release);
        // Acquire: synchronizes with the Release in `call`.
        M::spin_until(&node.turn, Acquire, |turn| turn != WAITS);
    }

    fn unlock(&self, me: usize) {
        let (node, number) = (&self.nodes[me], me as u32 + 1);
        let turn = node.turn.load(Relaxed);
        // Acquire: synchronizes with the Release of the link in `lock`.
        let mut next = node.next.load(Acquire);
        if next == 0 {
            // The second queue, if it exists, becomes the main one.
            let last = if turn == TURN { 0 } else { self.at(turn - 1).second_tail.load(Relaxed) };
            // Release: synchronizes with the Acquire of the exchange in `lock`.
            if self.tail.compare_exchange(number, last, Release, Relaxed).is_ok() {
                if turn != TURN {
                    self.call(turn - 1, TURN);
                }
                return;
            }
            // Acquire: as above.
            next = M::spin_until(&node.next, Acquire, |next| next != 0);
        }
        // Relaxed: `call` passes it from holder to holder.
        let passes = if turn == TURN { 0 } else { node.passes.load(Relaxed) };
        if passes < Self::TURN_MAX
            && let Some(neighbour) = self.neighbour(node, next)
        {
            self.at(neighbour).passes.store(passes + 1, Relaxed);
            self.call(neighbour, node.turn.load(Relaxed));
        } else if turn != TURN {
            let last = self.at(turn - 1).second_tail.load(Relaxed);
            // Release: as in `lock`, whose link to `next` this passes on.
            self.at(last).next.store(next, Release);
            self.call(turn - 1, TURN);
        } else {
            self.call(next, TURN);
        }
    }

    fn bytes(&self, _: usize) -> Bytes {
        Bytes::new(size_of::<M::AtomicU32>(), size_of::<Node<M>>())
    }
}

impl<M: Machine> Cna<M> {
    /// Hand-overs on a node while others are deferred; then it is their turn. One for a model
    /// checker, whose runs are short.
    pub const TURN_MAX: u32 = if M::SPIN_NS == 0 { 1 } else { 1024 };

    fn at(&self, number: u32) -> &Node<M> {
        &self.nodes[number as usize - 1]
    }

    fn call(&self, number: u32, turn: u32) {
        // Release: synchronizes with the Acquire of the wait in `lock`.
        self.at(number).turn.store(turn, Release);
    }

    /// Defers the waiters before the first waiter of the holder's node, and returns that waiter, if
    /// it exists.
    fn neighbour(&self, node: &Node<M>, next: u32) -> Option<u32> {
        // Relaxed: the link to a node publishes its fields.
        let place = match node.place.load(Relaxed) {
            0 => node_here::<M>() as u32 + 1,
            place => place,
        };
        let (first, mut last, mut at) = (next, 0, next);
        while self.at(at).place.load(Relaxed) != place {
            last = at;
            // Acquire: synchronizes with the Release of the link in `lock`.
            at = self.at(at).next.load(Acquire);
            if at == 0 {
                return None;
            }
        }
        if last != 0 {
            // Relaxed: passed on by `call`, from holder to holder.
            let turn = node.turn.load(Relaxed);
            if turn == TURN {
                node.turn.store(first + 1, Relaxed);
                self.at(first).second_tail.store(last, Relaxed);
            } else {
                let head = self.at(turn - 1);
                self.at(head.second_tail.load(Relaxed)).next.store(first, Relaxed);
                head.second_tail.store(last, Relaxed);
            }
            self.at(last).next.store(0, Relaxed);
        }
        Some(at)
    }
}

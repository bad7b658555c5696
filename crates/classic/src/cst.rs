//! The CST lock: a queue of threads on each node, a queue of nodes, and a separate list of
//! sleepers.
//!
//! S. Kashyap, C. Min and T. Kim, "Scalable NUMA-aware blocking synchronization primitives", USENIX
//! ATC 2017. A lock that is used on one node should not pay for all nodes: a node's part is created
//! when its first thread arrives. The lock should never be given to a sleeping thread: a waiter
//! polls for its quantum and then sleeps, and a release gives the lock to the first polling thread,
//! and moves the sleepers before it to a list of their own.
//!
//! State: `nodes`, a bit for each part in use; `serving`, the holder's node plus one; `tail` of the
//! nodes' queue. In a part: `tail` of its threads, `asleep`, the list; its `next` and `turn` among
//! nodes. In a thread's node, `next`, `aside`, its link in the list, and `status`:
//!
//! | status | meaning | becomes |
//! |---|---|---|
//! | `WAITS` | queued and polling | a number or `CLIMB` by a release, `SLEEPS` by its thread |
//! | `SLEEPS` | queued or on the list | `AGAIN`, by a release that leaves |
//! | `AGAIN` | woken, in no queue | `WAITS`, by its thread, which queues |
//! | 1 to `BATCH` | its turn, with the nodes' queue; the number of the section on this node | |
//! | `CLIMB` | its turn, without the nodes' queue | 1, by its thread, once it has that as well |
//!
//! Invariants: only the first of a part's queue uses the part's `asleep`, `next` and `turn`; a node
//! on the list is not read as a part of the queue any more.
//!
//! The parts are allocated with the lock, because nothing here allocates while it waits; a part
//! that was never used is neither touched nor counted in [`Lock::bytes`]. The paper leaves open
//! when sleepers are woken; here all are woken at the end of a batch, while other nodes have their
//! turn, or when no thread on the node polls any more.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{Integer, Machine, Padded, Word};

use crate::waiters::Looks;
use crate::words::words;
use crate::{Bytes, Lock, NODES_MAX, Named, Row, node_here, row};

const AGAIN: u32 = 0;
const FIRST: u32 = 1;
const WAITS: u32 = u32::MAX;
const CLIMB: u32 = u32::MAX - 1;
const SLEEPS: u32 = u32::MAX - 2;

const _: () = assert!(NODES_MAX <= u64::BITS as usize);

#[derive(Default)]
#[repr(C)]
struct Node<M: Machine> {
    next: M::AtomicU32,
    status: M::AtomicU32,
    aside: M::AtomicU32,
}

impl<M: Machine> Named for Node<M> {
    words!(next, status, aside);
}

/// A node's place among nodes, on another line than the queue of its threads.
#[derive(Default)]
#[repr(C, align(64))]
struct Place<M: Machine> {
    next: M::AtomicU32,
    turn: M::AtomicU32,
}

impl<M: Machine> Named for Place<M> {
    words!(next, turn);
}

#[derive(Default)]
#[repr(C)]
struct Part<M: Machine> {
    tail: M::AtomicU32,
    asleep: M::AtomicU32,
    place: Place<M>,
}

impl<M: Machine> Named for Part<M> {
    words!(tail, asleep, place);
}

#[derive(Default)]
#[repr(C)]
struct State<M: Machine> {
    nodes: M::AtomicU64,
    serving: M::AtomicU32,
    tail: M::AtomicU32,
}

impl<M: Machine> Named for State<M> {
    words!(nodes, serving, tail);
}

/// The CST lock: 16 bytes, 128 for each node in use, and 12 for each thread that waits or holds.
pub struct Cst<M: Machine> {
    state: Padded<State<M>>,
    parts: Row<Part<M>>,
    nodes: Row<Node<M>>,
}

impl<M: Machine> Named for Cst<M> {
    words!(state, [parts], [nodes]);
}

impl<M: Machine> Cst<M> {
    /// Sections of a turn on one node, as in the authors' code.
    pub const BATCH: u32 = 128;

    fn at(&self, number: u32) -> &Node<M> {
        &self.nodes[number as usize - 1]
    }

    /// Returns the part of a node, in use from now on.
    fn part(&self, numa: usize) -> &Part<M> {
        let State { nodes, serving, .. } = &*self.state;
        let bit = 1 << numa;
        // Relaxed: a free part is all zero, and was before the lock was shared.
        if serving.load(Relaxed) != numa as u32 + 1 && nodes.load(Relaxed) & bit == 0 {
            nodes.fetch_or(bit, Relaxed);
        }
        &self.parts[numa]
    }

    /// Queues on the node and waits, finally asleep. Returns whether the nodes' queue must be
    /// entered.
    fn wait(&self, part: &Part<M>, me: usize) -> bool {
        let (node, number, looks) = (&self.nodes[me], me as u32 + 1, Looks::<M>::new());
        loop {
            // Relaxed: the exchange publishes them.
            node.next.store(0, Relaxed);
            node.status.store(WAITS, Relaxed);
            // Release: our cleared node comes before the link of our successor. Acquire: and before
            // us come the stores of the last thread of the node to its part.
            let before = part.tail.swap(number, AcqRel);
            if before == 0 {
                return true;
            }
            // Release: synchronizes with the Acquire of the links in `hand`.
            self.at(before).next.store(number, Release);
            // Acquire: synchronizes with the Release in `hand`.
            let mut status =
                M::spin_until(&node.status, Acquire, |now| now != WAITS || looks.spent());
            // Acquire: as above, if it was called at the last moment.
            if status == WAITS
                && let Err(called) = node.status.compare_exchange(WAITS, SLEEPS, Relaxed, Acquire)
            {
                status = called;
            } else if status == WAITS {
                status = self.sleep(node);
            }
            if status != AGAIN {
                return status == CLIMB;
            }
        }
    }

    fn sleep(&self, node: &Node<M>) -> u32 {
        loop {
            // Acquire: synchronizes with the Release in `wake`.
            let status = node.status.load(Acquire);
            if status != SLEEPS {
                return status;
            }
            M::wait(&node.status, SLEEPS, None);
        }
    }

    /// Gives `status` to the first polling thread after `at`, and defers the sleepers before it.
    /// Without a polling thread, returns the last of them, or `at` itself.
    fn hand(&self, part: &Part<M>, me: usize, mut at: u32, status: u32) -> Option<u32> {
        loop {
            // Acquire: synchronizes with the Release of the link in `wait`.
            let next = self.at(at).next.load(Acquire);
            if next == 0 {
                return Some(at);
            }
            if at != me as u32 + 1 {
                // Relaxed: private to the first of the queue.
                self.at(at).aside.store(part.asleep.load(Relaxed), Relaxed);
                part.asleep.store(at, Relaxed);
            }
            // Release: synchronizes with the Acquire in `wait`.
            if self.at(next).status.compare_exchange(WAITS, status, Release, Relaxed).is_ok() {
                return None;
            }
            at = next;
        }
    }

    /// Wakes a list of sleepers.
    fn wake(&self, list: u32) {
        let mut at = list;
        while at != 0 {
            let node = self.at(at);
            // Relaxed: written by an earlier holder, or by us.
            at = node.aside.load(Relaxed);
            // Release: synchronizes with the Acquire in `sleep`: we have read its links.
            node.status.store(AGAIN, Release);
            M::wake(&node.status);
        }
    }

    fn lock_nodes(&self, numa: usize) {
        let (place, number) = (&self.parts[numa].place, numa as u32 + 1);
        // Relaxed: the exchange publishes them.
        place.next.store(0, Relaxed);
        place.turn.store(0, Relaxed);
        // Release: our cleared place comes before the link of our successor. Acquire: and before us
        // comes the last holder's section, if it left an empty queue.
        let before = self.state.tail.swap(number, AcqRel);
        if before != 0 {
            // Release: synchronizes with the Acquire of the links in `unlock_nodes`.
            self.parts[before as usize - 1].place.next.store(number, Release);
            // Acquire: synchronizes with the Release in `unlock_nodes`.
            M::spin_until(&place.turn, Acquire, |turn| turn == 1);
        }
        // Relaxed: for the holder, and a hint for arriving threads.
        self.state.serving.store(number, Relaxed);
    }

    fn unlock_nodes(&self, numa: usize) {
        let (place, number) = (&self.parts[numa].place, numa as u32 + 1);
        // Acquire: synchronizes with the Release of the link in `lock_nodes`.
        let mut next = place.next.load(Acquire);
        if next == 0 {
            // Release: synchronizes with the Acquire of the exchange in `lock_nodes`.
            if self.state.tail.compare_exchange(number, 0, Release, Relaxed).is_ok() {
                return;
            }
            // Acquire: as above.
            next = M::spin_until(&place.next, Acquire, |next| next != 0);
        }
        // Release: synchronizes with the Acquire of the wait in `lock_nodes`.
        self.parts[next as usize - 1].place.turn.store(1, Release);
    }
}

impl<M: Machine> Lock for Cst<M> {
    fn new(threads: usize) -> Self {
        Self { state: Padded::default(), parts: row(NODES_MAX), nodes: row(threads) }
    }

    fn lock(&self, me: usize) {
        let numa = node_here::<M>();
        if self.wait(self.part(numa), me) {
            // Relaxed: private until `unlock`.
            self.nodes[me].status.store(FIRST, Relaxed);
            self.lock_nodes(numa);
        }
    }

    fn unlock(&self, me: usize) {
        // Relaxed: private to the holder, like all of its node's part except `tail`.
        let numa = self.state.serving.load(Relaxed) as usize - 1;
        let (part, own) = (&self.parts[numa], me as u32 + 1);
        let passes = self.nodes[me].status.load(Relaxed);
        let mut last = own;
        if passes < Self::BATCH {
            match self.hand(part, me, own, passes + 1) {
                None => return,
                Some(at) => last = at,
            }
        }
        let asleep = part.asleep.load(Relaxed);
        part.asleep.store(0, Relaxed);
        self.unlock_nodes(numa);
        while let Some(at) = self.hand(part, me, last, CLIMB) {
            let more = part.asleep.load(Relaxed);
            part.asleep.store(0, Relaxed);
            // Release: synchronizes with the Acquire of the exchange in `wait`.
            if part.tail.compare_exchange(at, 0, Release, Relaxed).is_ok() {
                if at != own {
                    // The last one, which also sleeps.
                    self.at(at).aside.store(0, Relaxed);
                    self.wake(at);
                }
                self.wake(more);
                break;
            }
            part.asleep.store(more, Relaxed);
            // Relaxed: `hand` acquires.
            M::spin_until(&self.at(at).next, Relaxed, |next| next != 0);
            last = at;
        }
        self.wake(asleep);
    }

    fn bytes(&self, nodes: usize) -> Bytes {
        // Relaxed: a count.
        let used = self.state.nodes.load(Relaxed).count_ones() as usize;
        let parts = used.min(nodes) * size_of::<Padded<Part<M>>>();
        Bytes::new(size_of::<State<M>>() + parts, size_of::<Node<M>>())
    }
}

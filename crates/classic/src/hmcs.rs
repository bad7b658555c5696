//! Hierarchical MCS: a queue of threads on each node, and a queue of nodes.
//!
//! M. Chabbi, M. Fagan and J. Mellor-Crummey, "High performance locks for multi-level NUMA
//! systems", PPoPP 2015, with two levels: HMCS<2>. The first of a node's queue enters the node's
//! own queue node in the root's queue, and the call to a neighbour carries a count of passes; at
//! [`Hmcs::TURN_MAX`] the root is released and the neighbour must queue there itself.
//!
//! State: `tails[0]` the root's, `tails[1 + n]` node n's; a queue node's `next` and `status`:
//!
//! | status | meaning |
//! |---|---|
//! | `WAIT` | not its turn |
//! | 1 to `TURN_MAX` | its turn, with the root; the number of the section on this node |
//! | `CLIMB` | its turn, without the root |
//!
//! Invariants: the first of a node's queue that has the root is in its section; only that first
//! thread uses the queue node of its NUMA node, on behalf of the whole node.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{Machine, Padded, Word};

use crate::words::words;
use crate::{Bytes, Lock, NODES_MAX, Named, Row, node_here, row};

const WAIT: u32 = u32::MAX;
const CLIMB: u32 = u32::MAX - 1;
const FIRST: u32 = 1;
/// The status that the root's queue passes on: any except `WAIT`.
const ROOT_PASSED: u32 = FIRST;

#[derive(Default)]
#[repr(C)]
struct Node<M: Machine> {
    next: M::AtomicU32,
    status: M::AtomicU32,
}

impl<M: Machine> Named for Node<M> {
    words!(next, status);
}

/// The queues of both levels, for locks that differ in where a thread enters.
pub(crate) struct Tree<M: Machine> {
    tails: Row<M::AtomicU32>,
    /// The threads' queue nodes, and behind them the NUMA nodes'.
    nodes: Row<Node<M>>,
    threads: usize,
}

impl<M: Machine> Named for Tree<M> {
    words!([tails], [nodes]);
}

impl<M: Machine> Tree<M> {
    /// Sections of a turn on one node, before the root is released.
    ///
    /// The paper names no number: it computes one for each level from the machine's latencies and
    /// the desired share of the best throughput. This is LiTL's number (Guiroux, Lachaize and
    /// Quema, USENIX ATC 2016), so that HMCS and the cohort locks are compared with one bound.
    pub(crate) const TURN_MAX: u32 = 100;

    pub(crate) fn new(threads: usize) -> Self {
        Self { tails: row(1 + NODES_MAX), nodes: row(threads + NODES_MAX), threads }
    }

    /// Enters queue node `at` in a queue. Returns the status that it was called with, if it had to
    /// wait.
    fn enter(&self, tail: &M::AtomicU32, at: usize) -> Option<u32> {
        let (node, number) = (&self.nodes[at], at as u32 + 1);
        // Relaxed: the exchange publishes them.
        node.status.store(WAIT, Relaxed);
        node.next.store(0, Relaxed);
        // Release: our cleared node comes before the link of our successor. Acquire: and before us
        // comes the last holder's section, if it left an empty queue in `leave`.
        let before = tail.swap(number, AcqRel);
        if before == 0 {
            return None;
        }
        // Release: synchronizes with the Acquire of the links in `leave` and `unlock_node`.
        self.nodes[before as usize - 1].next.store(number, Release);
        // Acquire: synchronizes with the Release in `leave` and `unlock_node`.
        Some(M::spin_until(&node.status, Acquire, |status| status != WAIT))
    }

    /// Removes queue node `at` from a queue and calls the next with `status`.
    fn leave(&self, tail: &M::AtomicU32, at: usize, status: u32) {
        let (node, number) = (&self.nodes[at], at as u32 + 1);
        // Acquire: synchronizes with the Release of the link in `enter`.
        let mut next = node.next.load(Acquire);
        if next == 0 {
            // Release: synchronizes with the Acquire of the exchange in `enter`.
            if tail.compare_exchange(number, 0, Release, Relaxed).is_ok() {
                return;
            }
            // Acquire: as above.
            next = M::spin_until(&node.next, Acquire, |next| next != 0);
        }
        // Release: synchronizes with the Acquire of the wait in `enter`.
        self.nodes[next as usize - 1].status.store(status, Release);
    }

    /// Takes the root with queue node `at`. Returns whether another node was before it.
    pub(crate) fn lock_root(&self, at: usize) -> bool {
        self.enter(&self.tails[0], at).is_some()
    }

    pub(crate) fn unlock_root(&self, at: usize) {
        self.leave(&self.tails[0], at, ROOT_PASSED);
    }

    /// Takes NUMA node `numa`, and the root for it if necessary. Returns whether a neighbour was
    /// before it.
    pub(crate) fn lock_node(&self, numa: usize, me: usize) -> bool {
        let called = self.enter(&self.tails[1 + numa], me);
        if called.is_none_or(|status| status == CLIMB) {
            // Relaxed: private until `unlock_node`.
            self.nodes[me].status.store(FIRST, Relaxed);
            self.lock_root(self.threads + numa);
        }
        called.is_some()
    }

    /// Passes to a neighbour, or releases both. Returns whether it passed.
    pub(crate) fn unlock_node(&self, numa: usize, me: usize) -> bool {
        let node = &self.nodes[me];
        // Relaxed: private to the holder.
        let passes = node.status.load(Relaxed);
        if passes < Self::TURN_MAX {
            // Acquire: synchronizes with the Release of the link in `enter`.
            let next = node.next.load(Acquire);
            if next != 0 {
                // Release: synchronizes with the Acquire of the wait in `enter`.
                self.nodes[next as usize - 1].status.store(passes + 1, Release);
                return true;
            }
        }
        self.unlock_root(self.threads + numa);
        self.leave(&self.tails[1 + numa], me, CLIMB);
        false
    }

    /// Returns whether no thread holds or waits for the root.
    pub(crate) fn is_root_free(&self) -> bool {
        // Relaxed: a hint.
        self.tails[0].load(Relaxed) == 0
    }

    pub(crate) fn bytes(&self, nodes: usize) -> Bytes {
        let line = size_of::<Padded<M::AtomicU32>>();
        Bytes::new(line * (1 + 2 * nodes), size_of::<Node<M>>())
    }
}

/// The hierarchical MCS lock of two levels: a line, two for each node, and 8 bytes a thread.
pub struct Hmcs<M: Machine> {
    tree: Tree<M>,
    /// The node on which each thread took the lock, private to it.
    at: Row<M::AtomicU32>,
}

impl<M: Machine> Named for Hmcs<M> {
    words!(tree, [at]);
}

impl<M: Machine> Hmcs<M> {
    /// Sections of a turn on one node, before the root is released.
    pub const TURN_MAX: u32 = Tree::<M>::TURN_MAX;
}

impl<M: Machine> Lock for Hmcs<M> {
    fn new(threads: usize) -> Self {
        Self { tree: Tree::new(threads), at: row(threads) }
    }

    fn lock(&self, me: usize) {
        let numa = node_here::<M>();
        // Relaxed: private.
        self.at[me].store(numa as u32, Relaxed);
        self.tree.lock_node(numa, me);
    }

    fn unlock(&self, me: usize) {
        // Relaxed: private.
        self.tree.unlock_node(self.at[me].load(Relaxed) as usize, me);
    }

    fn bytes(&self, nodes: usize) -> Bytes {
        self.tree.bytes(nodes)
    }
}

//! Lock cohorting: a lock for each node, and one global lock, which stays on a node for a while.
//!
//! D. Dice, V. Marathe and N. Shavit, "Lock cohorting", PPoPP 2012. A thread that holds its node's
//! lock and the global one releases only the node's lock if a neighbour waits there, and the
//! neighbour then already has the global one. After 100 such passes the global lock is released as
//! well.
//!
//! The global lock may be released by another thread than the one that took it. The local lock must
//! know whether a thread waits (the paper's `alone?`), and pass a bit to the next holder.
//!
//! State: the global lock; for each node a local lock and `passes`, how often it was passed since
//! the node got the global lock. Invariants: a thread in its section holds its local lock, and its
//! node holds the global one; the local lock's holder reads and writes `passes`.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{Integer, Machine, Padded, Word};

use crate::ticket::Ticket;
use crate::ttas::Ttas;
use crate::words::words;
use crate::{Bytes, Lock, NODES_MAX, Named, Nothing, Row, node_here, row};

/// A lock of one node's threads.
pub trait Local<M: Machine>: Default + Named + Send + Sync + 'static {
    /// Per-thread state; a thread waits at one local lock at a time.
    type Node: Default + Named + Send + Sync + 'static;

    /// Locks it; returns whether the global lock comes with it.
    fn lock(&self, nodes: &Row<Self::Node>, me: usize) -> bool;
    /// Returns whether no other thread is known to wait. Called by the holder; if false, a thread
    /// does wait.
    fn alone(&self, nodes: &Row<Self::Node>, me: usize) -> bool;
    /// Passes it to the next thread, with or without the global lock.
    fn unlock(&self, nodes: &Row<Self::Node>, me: usize, global: bool);
}

/// One node's part, on lines of its own.
#[derive(Default)]
#[repr(C)]
struct Part<M: Machine, L> {
    local: L,
    passes: M::AtomicU32,
}

impl<M: Machine, L: Named> Named for Part<M, L> {
    words!(local, passes);
}

/// A cohort lock of a global lock `G` and local ones `L`: a line, and a line for each node.
pub struct Cohort<M: Machine, G, L: Local<M>> {
    global: G,
    parts: Row<Part<M, L>>,
    nodes: Row<L::Node>,
    /// The node on which each thread took the lock, private to it.
    at: Row<M::AtomicU32>,
}

impl<M: Machine, G: Named, L: Local<M>> Named for Cohort<M, G, L> {
    words!(global, [parts], [nodes], [at]);
}

/// A backoff lock above MCS locks.
pub type CBoMcs<M> = Cohort<M, Ttas<M>, LocalMcs<M>>;
/// A ticket lock above ticket locks.
pub type CohortTicket<M> = Cohort<M, Ticket<M>, LocalTicket<M>>;

impl<M: Machine, G, L: Local<M>> Cohort<M, G, L> {
    /// Passes on a node before the global lock is released (the paper's bound).
    pub const PASSES_MAX: u32 = 100;

    /// Returns the lock that a cohort holds as a whole.
    pub(crate) fn global(&self) -> &G {
        &self.global
    }
}

impl<M: Machine, G: Lock, L: Local<M>> Lock for Cohort<M, G, L> {
    fn new(threads: usize) -> Self {
        Self { global: G::new(0), parts: row(NODES_MAX), nodes: row(threads), at: row(threads) }
    }

    fn lock(&self, me: usize) {
        let node = node_here::<M>();
        // Relaxed: private.
        self.at[me].store(node as u32, Relaxed);
        if !self.parts[node].local.lock(&self.nodes, me) {
            self.global.lock(me);
        }
    }

    fn unlock(&self, me: usize) {
        // Relaxed: private; and `passes` is guarded by the local lock.
        let part = &self.parts[self.at[me].load(Relaxed) as usize];
        let passes = part.passes.load(Relaxed);
        let passed = passes < Self::PASSES_MAX && !part.local.alone(&self.nodes, me);
        part.passes.store(if passed { passes + 1 } else { 0 }, Relaxed);
        if !passed {
            self.global.unlock(me);
        }
        part.local.unlock(&self.nodes, me, passed);
    }

    fn bytes(&self, nodes: usize) -> Bytes {
        let line = size_of::<Padded<Part<M, L>>>();
        Bytes::new(line * (1 + nodes), size_of::<L::Node>())
    }
}

/// A ticket lock that carries a bit: 12 bytes.
#[derive(Default)]
#[repr(C)]
pub struct LocalTicket<M: Machine> {
    next: M::AtomicU32,
    serving: M::AtomicU32,
    global: M::AtomicU32,
}

impl<M: Machine> Named for LocalTicket<M> {
    words!(next, serving, global);
}

impl<M: Machine> Local<M> for LocalTicket<M> {
    type Node = Nothing;

    fn lock(&self, _: &Row<Nothing>, _: usize) -> bool {
        // Relaxed: the number is all there is.
        let mine = self.next.fetch_add(1, Relaxed);
        // Acquire: synchronizes with the Release in `unlock`.
        M::spin_until(&self.serving, Acquire, |serving| serving == mine);
        self.global.load(Relaxed) != 0
    }

    fn alone(&self, _: &Row<Nothing>, _: usize) -> bool {
        // Relaxed: the thread with the next ticket waits for ours to end.
        self.next.load(Relaxed) == self.serving.load(Relaxed).wrapping_add(1)
    }

    fn unlock(&self, _: &Row<Nothing>, _: usize, global: bool) {
        // Relaxed: guarded by the lock.
        self.global.store(u32::from(global), Relaxed);
        let mine = self.serving.load(Relaxed);
        // Release: synchronizes with the Acquire in `lock`.
        self.serving.store(mine.wrapping_add(1), Release);
    }
}

const WAITS: u32 = 0;
const TURN: u32 = 1;
const TURN_GLOBAL: u32 = 2;

/// An MCS lock whose call carries a bit: 4 bytes.
#[derive(Default)]
pub struct LocalMcs<M: Machine> {
    tail: M::AtomicU32,
}

impl<M: Machine> Named for LocalMcs<M> {
    words!(tail);
}

/// The node of [`LocalMcs`]: 8 bytes.
#[derive(Default)]
#[repr(C)]
pub struct McsNode<M: Machine> {
    next: M::AtomicU32,
    turn: M::AtomicU32,
}

impl<M: Machine> Named for McsNode<M> {
    words!(next, turn);
}

impl<M: Machine> Local<M> for LocalMcs<M> {
    type Node = McsNode<M>;

    fn lock(&self, nodes: &Row<McsNode<M>>, me: usize) -> bool {
        let (node, number) = (&nodes[me], me as u32 + 1);
        // Relaxed: the exchange publishes them.
        node.next.store(0, Relaxed);
        node.turn.store(WAITS, Relaxed);
        // Release: our cleared node comes before the link of our successor. Acquire: and before us
        // comes the last holder's section, if it left an empty queue in `unlock`.
        let before = self.tail.swap(number, AcqRel);
        if before == 0 {
            return false;
        }
        // Release: synchronizes with the Acquire of the links below.
        nodes[before as usize - 1].next.store(number, Release);
        // Acquire: synchronizes with the Release of the call in `unlock`.
        M::spin_until(&node.turn, Acquire, |turn| turn != WAITS) == TURN_GLOBAL
    }

    fn alone(&self, nodes: &Row<McsNode<M>>, me: usize) -> bool {
        // Relaxed: `unlock` checks again.
        nodes[me].next.load(Relaxed) == 0
    }

    fn unlock(&self, nodes: &Row<McsNode<M>>, me: usize, global: bool) {
        let (node, number) = (&nodes[me], me as u32 + 1);
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
        let turn = if global { TURN_GLOBAL } else { TURN };
        // Release: synchronizes with the Acquire of the wait in `lock`.
        nodes[next as usize - 1].turn.store(turn, Release);
    }
}

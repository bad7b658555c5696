//! A time-published queue lock: MCS whose waiters publish that they run, and whose releases skip
//! those that do not.
//!
//! B. He, W. Scherer and M. Scott, "Preemption adaptivity in time-published queue-based spin
//! locks", HiPC 2005: MCS-TP. A waiter writes the time to its node as it polls. A release walks the
//! queue to the first waiter whose time is not stale, and removes all before it. A waiter whose
//! patience ends leaves its node in the queue, yields if the holder seems to sleep, and takes its
//! place again if it was not removed in the meantime.
//!
//! State: `tail`, the last node or zero; `since`, when the last holder arrived; a node's `next`,
//! `time` and `status`:
//!
//! | status | meaning | becomes |
//! |---|---|---|
//! | `OUT` | in no queue | `WAITS`, by its thread, which queues |
//! | `WAITS` | queued, and its thread polls | `CALLED` or `OUT` by a release, `LEFT` by its thread |
//! | `LEFT` | queued, and its thread is away | `OUT` by a release, `WAITS` by its thread |
//! | `CALLED` | holds the lock | `OUT`, by its release |
//!
//! Invariants: a release writes `OUT` to a node after it has read its `next` or has closed the
//! queue behind it, and does not access it again; only then is it queued again. A release that
//! meets more nodes than there are threads keeps the rest in the queue until its end, because
//! otherwise they could return behind it for ever (the paper's treadmill).

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{Clock, Machine, Padded, Word};

use crate::words::words;
use crate::{Bytes, Lock, Named, Row, row};

const OUT: u32 = 0;
const WAITS: u32 = 1;
const LEFT: u32 = 2;
const CALLED: u32 = 3;

#[derive(Default)]
#[repr(C)]
struct Node<M: Machine> {
    time: M::AtomicU64,
    next: M::AtomicU32,
    status: M::AtomicU32,
}

impl<M: Machine> Named for Node<M> {
    words!(time, next, status);
}

#[derive(Default)]
#[repr(C)]
struct State<M: Machine> {
    tail: M::AtomicU32,
    since: M::AtomicU64,
}

impl<M: Machine> Named for State<M> {
    words!(tail, since);
}

/// The time-published MCS lock: 16 bytes, and 16 for each thread that waits or holds.
pub struct McsTp<M: Machine> {
    state: Padded<State<M>>,
    nodes: Row<Node<M>>,
}

impl<M: Machine> Named for McsTp<M> {
    words!(state, [nodes]);
}

impl<M: Machine> McsTp<M> {
    /// Nanoseconds after which a waiter leaves the queue. This and the other constants are those of
    /// RCL's benchmarks (Lozi and others, 2012), which LiTL adopted.
    pub const PATIENCE_NS: u64 = 50_000;
    /// Age in nanoseconds at which a waiter's time becomes stale.
    pub const STALE_NS: u64 = 10_000;
    /// Nanoseconds in a section after which its holder is assumed to sleep.
    pub const SECTION_NS: u64 = 10_000_000;

    fn at(&self, number: u32) -> &Node<M> {
        &self.nodes[number as usize - 1]
    }

    fn now() -> u64 {
        M::now(Clock::Monotonic)
    }

    /// Queues or takes its place again, and waits. Returns whether it is its turn.
    fn attempt(&self, me: usize, patience: u64) -> bool {
        let (node, number, began) = (&self.nodes[me], me as u32 + 1, Self::now());
        // Relaxed: read by releases as a hint.
        node.time.store(began, Relaxed);
        // Acquire: synchronizes with the Release of `OUT` in `unlock`: it has read our `next`.
        if node.status.compare_exchange(LEFT, WAITS, Acquire, Acquire).is_err() {
            // Relaxed: the exchange publishes them.
            node.next.store(0, Relaxed);
            node.status.store(WAITS, Relaxed);
            // Release: our cleared node comes before the link of our successor. Acquire: and before
            // us comes the last holder's section, if it left an empty queue in `unlock`.
            let before = self.state.tail.swap(number, AcqRel);
            if before == 0 {
                return true;
            }
            // Release: synchronizes with the Acquire of the links in `unlock`.
            self.at(before).next.store(number, Release);
        }
        loop {
            // Acquire: synchronizes with the Release of `CALLED` and `OUT` in `unlock`.
            match node.status.load(Acquire) {
                CALLED => return true,
                OUT => return false,
                _ => {}
            }
            let now = Self::now();
            node.time.store(now, Relaxed);
            // Relaxed: we leave only our node, which was published before.
            if now.saturating_sub(began) >= patience
                && node.status.compare_exchange(WAITS, LEFT, Relaxed, Relaxed).is_ok()
            {
                return false;
            }
            M::relax();
        }
    }

    /// Removes the nodes from `first` up to, but without, `end`.
    fn let_go(&self, first: u32, end: u32) {
        let mut at = first;
        while at != end {
            // Relaxed: read before, by this thread, with Acquire.
            let next = self.at(at).next.load(Relaxed);
            // Release: synchronizes with the Acquire in `attempt`.
            self.at(at).status.store(OUT, Release);
            at = next;
        }
    }
}

impl<M: Machine> Lock for McsTp<M> {
    fn new(threads: usize) -> Self {
        Self { state: Padded::default(), nodes: row(threads) }
    }

    fn lock(&self, me: usize) {
        // For a model checker no time passes.
        let patience = if M::SPIN_NS == 0 { u64::MAX } else { Self::PATIENCE_NS };
        while !self.attempt(me, patience) {
            // Relaxed: a hint.
            let since = self.state.since.load(Relaxed);
            if Self::now().saturating_sub(since) > Self::SECTION_NS {
                M::yield_now();
            }
        }
        self.state.since.store(Self::now(), Relaxed);
    }

    fn unlock(&self, me: usize) {
        let (mut at, mut met, mut kept) = (me as u32 + 1, 0, 0);
        loop {
            // Acquire: synchronizes with the Release of the link in `attempt`.
            let mut next = self.at(at).next.load(Acquire);
            if next == 0 {
                // Release: synchronizes with the Acquire of the exchange in `attempt`.
                if self.state.tail.compare_exchange(at, 0, Release, Relaxed).is_ok() {
                    // The last one's `next` is zero, which ends the list.
                    return self.let_go(if kept == 0 { at } else { kept }, 0);
                }
                // Acquire: as above.
                next = M::spin_until(&self.at(at).next, Acquire, |next| next != 0);
            }
            met += 1;
            if kept == 0 && met > self.nodes.len() {
                kept = at;
            }
            if kept == 0 {
                self.let_go(at, next);
            }
            let node = self.at(next);
            // Relaxed: hints; the exchange decides.
            let fresh = |time| Self::now().saturating_sub(time) <= Self::STALE_NS;
            // Release: synchronizes with the Acquire of the wait in `attempt`.
            if node.status.load(Relaxed) == WAITS
                && fresh(node.time.load(Relaxed))
                && node.status.compare_exchange(WAITS, CALLED, Release, Relaxed).is_ok()
            {
                if kept != 0 {
                    self.let_go(kept, next);
                }
                return;
            }
            at = next;
        }
    }

    fn bytes(&self, _: usize) -> Bytes {
        Bytes::new(size_of::<State<M>>(), size_of::<Node<M>>())
    }
}

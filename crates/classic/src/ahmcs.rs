//! Adaptive HMCS: a thread without waiting neighbours enters at the root instead of climbing the
//! tree.
//!
//! M. Chabbi and J. Mellor-Crummey, "Contention-conscious, locality-preserving locks", PPoPP 2016,
//! on the two levels of [`Hmcs`](crate::Hmcs). It has a fast path, which enters at the root when
//! the root is free, and hysteresis, which moves a thread's entry to the root after it has met no
//! neighbour for a while, and back after it has waited there for a while.
//!
//! State: HMCS's, and each thread's private `entry`, `streak` and position. Invariants: HMCS's; a
//! thread's queue node is in at most one of the two queues.

use core::sync::atomic::Ordering::Relaxed;

use latchwork_machine::{Machine, Word};

use crate::hmcs::Tree;
use crate::words::words;
use crate::{Bytes, Lock, Named, Row, node_here, row};

/// Consecutive entries in favour of the other level before a thread moves there.
const STREAK: u32 = 8;
/// In `at`: took the root itself.
const AT_ROOT: u32 = u32::MAX;

// Words of one thread are Relaxed: no other thread reads them.
#[derive(Default)]
struct Own<M: Machine> {
    /// 1 if it enters at the root.
    entry: M::AtomicU32,
    streak: M::AtomicU32,
    at: M::AtomicU32,
    /// 1 if a neighbour was before it.
    met: M::AtomicU32,
}

impl<M: Machine> Named for Own<M> {
    words!(entry, streak, at, met);
}

impl<M: Machine> Own<M> {
    /// Counts an entry in favour of the other level, or restarts the count.
    fn argue(&self, for_the_other: bool) {
        let streak = if for_the_other { self.streak.load(Relaxed) + 1 } else { 0 };
        if streak < STREAK {
            self.streak.store(streak, Relaxed);
        } else {
            self.entry.store(1 - self.entry.load(Relaxed), Relaxed);
            self.streak.store(0, Relaxed);
        }
    }
}

/// The adaptive HMCS lock of two levels: as large as HMCS.
pub struct Ahmcs<M: Machine> {
    tree: Tree<M>,
    own: Row<Own<M>>,
}

impl<M: Machine> Named for Ahmcs<M> {
    words!(tree, [own]);
}

impl<M: Machine> Lock for Ahmcs<M> {
    fn new(threads: usize) -> Self {
        Self { tree: Tree::new(threads), own: row(threads) }
    }

    fn lock(&self, me: usize) {
        let own = &self.own[me];
        let enters_root = own.entry.load(Relaxed) == 1;
        if enters_root || self.tree.is_root_free() {
            own.at.store(AT_ROOT, Relaxed);
            let waited = self.tree.lock_root(me);
            if enters_root {
                own.argue(waited);
            }
            return;
        }
        let numa = node_here::<M>();
        own.at.store(numa as u32, Relaxed);
        own.met.store(u32::from(self.tree.lock_node(numa, me)), Relaxed);
    }

    fn unlock(&self, me: usize) {
        let own = &self.own[me];
        match own.at.load(Relaxed) {
            AT_ROOT => self.tree.unlock_root(me),
            numa => {
                let passed = self.tree.unlock_node(numa as usize, me);
                own.argue(!passed && own.met.load(Relaxed) == 0);
            }
        }
    }

    fn bytes(&self, nodes: usize) -> Bytes {
        self.tree.bytes(nodes)
    }
}

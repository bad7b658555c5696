//! A reader-writer lock on cohorts: readers count on their own node, writers are a cohort lock.
//!
//! I. Calciu, D. Dice, Y. Lev, V. Luchangco, V. Marathe and N. Shavit, "NUMA-aware reader-writer
//! locks", PPoPP 2013: C-RW-WP, which prefers writers, over C-TKT-TKT.
//!
//! State: the writers' cohort lock; for each node the number of its readers; `barrier`, the number
//! of readers that have lost patience. Invariants: a writer in its section holds the cohort lock
//! and has seen every count zero since; a reader in its section has counted itself and then seen
//! the cohort lock free; writers that arrive while there is a barrier wait.
//!
//! Memory order: a reader counts itself and then reads the lock; a writer takes the lock and then
//! reads the counts. Both have a fence in between: if the reader's comes first, the writer sees it
//! counted and waits; if the writer's does, the reader sees the lock taken and withdraws.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use latchwork_machine::{Integer, Machine, Padded, Word};

use crate::cohort::CohortTicket;
use crate::words::words;
use crate::{Bytes, Lock, NODES_MAX, Named, Row, SharedLock, node_here, row};

/// A reader-writer lock on cohorts: a line, and two for each node.
pub struct CohortRw<M: Machine> {
    writers: CohortTicket<M>,
    readers: Row<M::AtomicU32>,
    barrier: Padded<M::AtomicU32>,
    /// The node on which each thread counted itself, private to it.
    at: Row<M::AtomicU32>,
}

impl<M: Machine> Named for CohortRw<M> {
    words!(writers, [readers], barrier, [at]);
}

impl<M: Machine> CohortRw<M> {
    /// Releases that a reader lets pass before it stops new writers. The paper gives no number;
    /// this is a turn on each of ten nodes.
    pub const PATIENCE: u32 = 10;
}

impl<M: Machine> SharedLock for CohortRw<M> {
    fn new(threads: usize) -> Self {
        let (readers, barrier, at) = (row(NODES_MAX), Padded::default(), row(threads));
        Self { writers: Lock::new(threads), readers, barrier, at }
    }

    fn read(&self, me: usize) {
        let node = node_here::<M>();
        // Relaxed: private.
        self.at[me].store(node as u32, Relaxed);
        let mut seen = 0;
        loop {
            // Relaxed: the fence orders.
            self.readers[node].fetch_add(1, Relaxed);
            // SeqCst: pairs with the fence in `write`.
            M::fence(SeqCst);
            if !self.writers.global().is_held() {
                break;
            }
            // Relaxed: nothing was read.
            self.readers[node].fetch_sub(1, Relaxed);
            seen += 1;
            if seen == Self::PATIENCE {
                // Relaxed: it only makes writers wait, and guards nothing.
                self.barrier.fetch_add(1, Relaxed);
            }
            self.writers.global().outwait();
        }
        if seen >= Self::PATIENCE {
            self.barrier.fetch_sub(1, Relaxed);
        }
    }

    fn unread(&self, me: usize) {
        // Relaxed: private.
        let node = self.at[me].load(Relaxed) as usize;
        // Release: synchronizes with the Acquire in `write`.
        self.readers[node].fetch_sub(1, Release);
    }

    fn write(&self, me: usize) {
        // Relaxed: as above.
        M::spin_until(&*self.barrier, Relaxed, |impatient| impatient == 0);
        self.writers.lock(me);
        // SeqCst: pairs with the fence in `read`.
        M::fence(SeqCst);
        for count in &self.readers {
            // Acquire: synchronizes with the Release in `unread`.
            M::spin_until(&**count, Acquire, |count| count == 0);
        }
    }

    fn unwrite(&self, me: usize) {
        self.writers.unlock(me);
    }

    fn bytes(&self, nodes: usize) -> Bytes {
        let line = size_of::<Padded<M::AtomicU32>>();
        let writers = self.writers.bytes(nodes);
        Bytes { lock: writers.lock + line * (1 + nodes), ..writers }
    }
}

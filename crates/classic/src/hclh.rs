//! Hierarchical CLH: each node gathers a queue, which is spliced as a whole into a global one.
//!
//! V. Luchangco, D. Nussbaum and N. Shavit, "A hierarchical CLH queue lock", Euro-Par 2006. A
//! thread that arrives at an empty queue of its node is its master: it waits a little for others,
//! appends the gathered queue to the global one, and waits for the predecessor there. The others
//! wait for their neighbours. If arrivals are further apart than that delay, it is a CLH lock.
//!
//! State: `global`, the last node; `locals` for each NUMA node a last node plus one, or zero; a
//! node's `held`. Invariants: a node has one successor, in its local segment or in the global
//! queue. Only the successor polls the node and then owns it, as in CLH.
//!
//! It differs from the paper in one point. There the local tail stays after the splice, marked, and
//! two threads read it: the next master, and its successor in the global queue, which may reuse it
//! before the master has read it. Here the master takes the tail away, by an exchange.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{Machine, Padded, Word};

use crate::backoff::Backoff;
use crate::words::words;
use crate::{Bytes, Lock, NODES_MAX, Named, Row, node_here, row};

/// How long a master lets others gather, in pauses: a few microseconds. The paper calls it the
/// combining delay, and tunes it.
const GATHER_PAUSES: u32 = 256;

/// Values that only one thread reads.
#[derive(Default)]
struct Own<M: Machine> {
    mine: M::AtomicU32,
    before: M::AtomicU32,
}

impl<M: Machine> Named for Own<M> {
    words!(mine, before);
}

/// The hierarchical CLH lock: a line, a line for each NUMA node, and a node for each thread.
pub struct Hclh<M: Machine> {
    /// Node 0 at first, which is not held.
    global: Padded<M::AtomicU32>,
    locals: Row<M::AtomicU32>,
    held: Row<M::AtomicU32>,
    own: Row<Own<M>>,
}

impl<M: Machine> Named for Hclh<M> {
    words!(global, [locals], [held], [own]);
}

impl<M: Machine> Lock for Hclh<M> {
    fn new(threads: usize) -> Self {
        let own: Row<Own<M>> = row(threads);
        for (thread, own) in own.iter().enumerate() {
            own.mine.store(thread as u32 + 1, Relaxed);
        }
        Self { global: Padded::default(), locals: row(NODES_MAX), held: row(threads + 1), own }
    }

    fn lock(&self, me: usize) {
        let (own, local) = (&self.own[me], &*self.locals[node_here::<M>()]);
        // Relaxed: private, and the exchange passes `held` on.
        let mine = own.mine.load(Relaxed);
        self.held[mine as usize].store(1, Relaxed);
        // Release: our `held` is set before the next thread polls it. Acquire: and our
        // predecessor's was set before we poll it; so in all exchanges here.
        let mut before = local.swap(mine + 1, AcqRel);
        if before == 0 {
            Backoff::<M>::new(GATHER_PAUSES, GATHER_PAUSES).pause();
            // AcqRel, here and below: Acquire and Release as above.
            let last = local.swap(0, AcqRel) - 1;
            before = self.global.swap(last, AcqRel);
        } else {
            before -= 1;
        }
        own.before.store(before, Relaxed);
        // Acquire: synchronizes with the Release in `unlock`.
        M::spin_until(&*self.held[before as usize], Acquire, |held| held == 0);
    }

    fn unlock(&self, me: usize) {
        let own = &self.own[me];
        // Relaxed: private.
        let mine = own.mine.load(Relaxed);
        // Release: synchronizes with the Acquire of the wait in `lock`.
        self.held[mine as usize].store(0, Release);
        // Relaxed: private. No thread polls our predecessor's node any more.
        own.mine.store(own.before.load(Relaxed), Relaxed);
    }

    fn bytes(&self, nodes: usize) -> Bytes {
        let line = size_of::<Padded<M::AtomicU32>>();
        Bytes::new(line * (1 + nodes), size_of::<M::AtomicU32>())
    }
}

//! Hierarchical backoff: test and set on a word that contains the holder's node.
//!
//! Z. Radovic and E. Hagersten, "Hierarchical backoff locks for nonuniform communication
//! architectures", HPCA 2003: the basic form. A thread that finds a neighbour holding the lock
//! tries again soon, others later. So neighbours tend to get it, without a bound.
//!
//! State: one word, zero if free, or the holder's node plus one. Invariant: the thread that changed
//! it from zero holds the lock until it writes zero.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{Machine, Padded, Word};

use crate::backoff::Backoff;
use crate::words::words;
use crate::{Bytes, Lock, Named, node_here};

/// Pauses between tries: first and most, near and far. The paper tunes them to its machine; these
/// are about the time of a line within a node, and between nodes.
const NEAR: (u32, u32) = (4, 256);
const FAR: (u32, u32) = (32, 4096);

/// A hierarchical backoff lock: 4 bytes.
#[derive(Default)]
pub struct Hbo<M: Machine> {
    holder: Padded<M::AtomicU32>,
}

impl<M: Machine> Named for Hbo<M> {
    words!(holder);
}

impl<M: Machine> Lock for Hbo<M> {
    fn new(_: usize) -> Self {
        Self::default()
    }

    fn lock(&self, _: usize) {
        let mine = node_here::<M>() as u32 + 1;
        let mut near = Backoff::<M>::new(NEAR.0, NEAR.1);
        let mut far = Backoff::<M>::new(FAR.0, FAR.1);
        // Acquire: synchronizes with the Release in `unlock`.
        while let Err(holder) = self.holder.compare_exchange(0, mine, Acquire, Relaxed) {
            if holder == mine { near.pause() } else { far.pause() }
        }
    }

    fn unlock(&self, _: usize) {
        // Release: synchronizes with the Acquire in `lock`.
        self.holder.store(0, Release);
    }

    fn bytes(&self, _: usize) -> Bytes {
        Bytes::new(size_of::<M::AtomicU32>(), 0)
    }
}

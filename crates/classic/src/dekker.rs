//! Dekker's algorithm: two threads, loads and stores only.
//!
//! T. J. Dekker, as reported by E. W. Dijkstra, 1965. The first solution of mutual exclusion.
//!
//! State: each thread's `wants`; `turn`, which thread has precedence if both want. Invariants: a
//! thread in its section wants; `turn` changes only at the end of a section.
//!
//! Memory order: both write `wants` and then read the other's. Both have a fence in between: if our
//! fence comes first, the other sees that we want; if theirs does, we see that they want.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use latchwork_machine::{Machine, Padded, Word};

use crate::words::words;
use crate::{Bytes, Lock, Named, Row, row};

/// Dekker's lock for two threads: three words.
pub struct Dekker<M: Machine> {
    wants: Row<M::AtomicU32>,
    turn: Padded<M::AtomicU32>,
}

impl<M: Machine> Named for Dekker<M> {
    words!([wants], turn);
}

impl<M: Machine> Lock for Dekker<M> {
    fn new(threads: usize) -> Self {
        assert!(threads <= 2, "Dekker's algorithm serves 2 threads, not {threads}");
        Self { wants: row(2), turn: Padded::default() }
    }

    fn lock(&self, me: usize) {
        let (mine, other) = (&*self.wants[me], &*self.wants[1 - me]);
        loop {
            // Relaxed: the fence orders.
            mine.store(1, Relaxed);
            // SeqCst: pairs with the same fence in the other thread.
            M::fence(SeqCst);
            // Acquire: synchronizes with the Release in `unlock`, here and below.
            if other.load(Acquire) == 0 {
                return;
            }
            // Relaxed: a thread never reads a `turn` older than its own last write, which gave it
            // away; so a turn that is seen to be ours still is.
            if self.turn.load(Relaxed) == me as u32 {
                M::spin_until(other, Acquire, |wants| wants == 0);
                return;
            }
            // Release: a thread that enters because of this 0 also comes after our last section.
            mine.store(0, Release);
            M::spin_until(&*self.turn, Relaxed, |turn| turn == me as u32);
        }
    }

    fn unlock(&self, me: usize) {
        // Relaxed: it only decides which thread waits.
        self.turn.store(1 - me as u32, Relaxed);
        // Release: synchronizes with the Acquire in `lock`.
        self.wants[me].store(0, Release);
    }

    fn bytes(&self, _: usize) -> Bytes {
        Bytes::new(3 * size_of::<M::AtomicU32>(), 0)
    }
}

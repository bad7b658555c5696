//! Test, then test and set: poll until it is free, and only then exchange.
//!
//! Rudolph and Segall, 1984; with exponential backoff, Anderson, 1990. Waiters poll a copy in their
//! own cache. At a release all of them miss, and then all exchange. Backoff after a lost exchange
//! reduces these conflicts.
//!
//! State: one byte, 0 free, 1 held. Invariant: the thread that changed 0 to 1 holds it until it
//! writes 0.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{Machine, Padded, Word};

use crate::backoff::Backoff;
use crate::words::words;
use crate::{Bytes, Lock, Named};

/// Pauses after the first lost exchange.
const PAUSES_FIRST: u32 = 4;
/// The most pauses between two tries: a few microseconds.
const PAUSES_MAX: u32 = 1024;

/// Test, then test and set: 1 byte.
#[derive(Default)]
pub struct Ttas<M: Machine, const BACKOFF: bool = true> {
    held: Padded<M::AtomicU8>,
}

impl<M: Machine, const BACKOFF: bool> Named for Ttas<M, BACKOFF> {
    words!(held);
}

/// Without backoff, as "Everything you always wanted to know about synchronization" (SOSP 2013)
/// measures it.
pub type TtasPlain<M> = Ttas<M, false>;

impl<M: Machine, const BACKOFF: bool> Ttas<M, BACKOFF> {
    /// Takes it if it is free.
    pub(crate) fn try_lock(&self) -> bool {
        // Relaxed: the exchange orders. Acquire: synchronizes with the Release in `unlock`.
        self.held.load(Relaxed) == 0 && self.held.compare_exchange(0, 1, Acquire, Relaxed).is_ok()
    }
}

impl<M: Machine, const BACKOFF: bool> Lock for Ttas<M, BACKOFF> {
    fn new(_: usize) -> Self {
        Self::default()
    }

    fn lock(&self, _: usize) {
        let mut backoff = Backoff::<M>::new(PAUSES_FIRST, PAUSES_MAX);
        loop {
            // Relaxed: the exchange that follows orders.
            M::spin_until(&*self.held, Relaxed, |held| held == 0);
            // Acquire: synchronizes with the Release in `unlock`.
            if self.held.compare_exchange(0, 1, Acquire, Relaxed).is_ok() {
                return;
            }
            if BACKOFF {
                backoff.pause();
            }
        }
    }

    fn unlock(&self, _: usize) {
        // Release: synchronizes with the Acquire in `lock` and `try_lock`.
        self.held.store(0, Release);
    }

    fn bytes(&self, _: usize) -> Bytes {
        Bytes::new(size_of::<M::AtomicU8>(), 0)
    }
}

//! Test and set: all threads exchange until one finds zero.
//!
//! As old as the instruction. Each try takes the line from the holder, so the release waits behind
//! the tries of all threads.
//!
//! State: one byte, 0 free, 1 held. Invariant: the thread that changed 0 to 1 holds it until it
//! writes 0.

use core::sync::atomic::Ordering::{Acquire, Release};

use latchwork_machine::{Machine, Padded, Word};

use crate::backoff::Backoff;
use crate::words::words;
use crate::{Bytes, Lock, Named};

/// Test and set: 1 byte.
#[derive(Default)]
pub struct Tas<M: Machine> {
    held: Padded<M::AtomicU8>,
}

impl<M: Machine> Named for Tas<M> {
    words!(held);
}

impl<M: Machine> Lock for Tas<M> {
    fn new(_: usize) -> Self {
        Self::default()
    }

    fn lock(&self, _: usize) {
        let mut backoff = Backoff::<M>::new(1, 1);
        // Acquire: synchronizes with the Release in `unlock`.
        while self.held.swap(1, Acquire) != 0 {
            backoff.pause();
        }
    }

    fn unlock(&self, _: usize) {
        // Release: synchronizes with the Acquire in `lock`.
        self.held.store(0, Release);
    }

    fn bytes(&self, _: usize) -> Bytes {
        Bytes::new(size_of::<M::AtomicU8>(), 0)
    }
}

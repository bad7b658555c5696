//! A ticket lock: first come, first served.
//!
//! Reed and Kanodia, 1979; as a spin lock Mellor-Crummey and Scott, 1991, here without their
//! proportional backoff. An arrival costs one atomic operation; all threads wait on one word, so
//! each release costs every waiter a miss.
//!
//! State: `next`, the next ticket, and `serving`, the ticket that holds the lock; both on one line.
//! Invariants: `next - serving` threads hold or wait; only the holder writes `serving`; any thread
//! may release it on behalf of the holder, so that it can be the global part of a cohort lock.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{Integer, Machine, Padded, Word};

use crate::words::words;
use crate::{Bytes, Lock, Named};

#[derive(Default)]
#[repr(C)]
struct State<M: Machine> {
    next: M::AtomicU32,
    serving: M::AtomicU32,
}

impl<M: Machine> Named for State<M> {
    words!(next, serving);
}

/// A ticket lock: 8 bytes.
#[derive(Default)]
pub struct Ticket<M: Machine> {
    state: Padded<State<M>>,
}

impl<M: Machine> Named for Ticket<M> {
    words!(state);
}

impl<M: Machine> Ticket<M> {
    /// Returns whether it is held. If not, all earlier sections are visible.
    pub(crate) fn is_held(&self) -> bool {
        // Relaxed: the caller fences before.
        let next = self.state.next.load(Relaxed);
        // Acquire: synchronizes with the Release in `unlock`.
        self.state.serving.load(Acquire) != next
    }

    /// Waits for a release, if it is held.
    pub(crate) fn outwait(&self) {
        // Relaxed: the caller checks again.
        let serving = self.state.serving.load(Relaxed);
        if self.state.next.load(Relaxed) != serving {
            M::spin_until(&self.state.serving, Relaxed, |now| now != serving);
        }
    }
}

impl<M: Machine> Lock for Ticket<M> {
    fn new(_: usize) -> Self {
        Self::default()
    }

    fn lock(&self, _: usize) {
        // Relaxed: only the ticket's number matters.
        let mine = self.state.next.fetch_add(1, Relaxed);
        // Acquire: synchronizes with the Release in `unlock`.
        M::spin_until(&self.state.serving, Acquire, |serving| serving == mine);
    }

    fn unlock(&self, _: usize) {
        // Relaxed: only the holder writes it.
        let mine = self.state.serving.load(Relaxed);
        // Release: synchronizes with the Acquire in `lock`.
        self.state.serving.store(mine.wrapping_add(1), Release);
    }

    fn bytes(&self, _: usize) -> Bytes {
        Bytes::new(size_of::<State<M>>(), 0)
    }
}

//! Exponential backoff between tries (Anderson, 1990).

use core::marker::PhantomData;

use latchwork_machine::Machine;

/// Rounds of pausing after which the processor is yielded, as in `Machine::spin_until`.
const ROUNDS: u32 = 64;

/// Pauses that double from round to round, between bounds.
pub(crate) struct Backoff<M> {
    pauses: u32,
    pauses_max: u32,
    rounds: u32,
    machine: PhantomData<M>,
}

impl<M: Machine> Backoff<M> {
    /// From `first` pauses to `most`. Equal bounds make it constant.
    pub(crate) fn new(first: u32, most: u32) -> Self {
        Self { pauses: first, pauses_max: most, rounds: 0, machine: PhantomData }
    }

    /// Waits.
    pub(crate) fn pause(&mut self) {
        self.rounds += 1;
        if self.rounds.is_multiple_of(ROUNDS) {
            M::yield_now();
        }
        // One pause suffices for a model checker.
        let pauses = if M::SPIN_NS == 0 { 1 } else { self.pauses };
        for _ in 0..pauses {
            M::relax();
        }
        self.pauses = (self.pauses * 2).min(self.pauses_max);
    }
}

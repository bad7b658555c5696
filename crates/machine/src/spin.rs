//! Spinning for a time, not for a count of PAUSEs.
//!
//! A PAUSE took some 10 cycles before Intel's Skylake and takes some 140 since; a budget counted
//! in them is off by a factor of ten on one machine or the other.

use core::marker::PhantomData;

use crate::{Clock, Machine};

/// PAUSEs between two looks, up to which the clock is not asked: it costs as much as they do.
const PAUSES_UNTIMED: u32 = 8;

/// The most PAUSEs between two looks at the word that one waits for.
///
/// Looking seldom is what lets the holder work in peace: each look costs it a cache miss.
const PAUSES_MAX: u32 = 64;

/// A budget of nanoseconds to be spent looking at a word, ever more seldom.
pub struct Spin<M> {
    budget_ns: u64,
    began: u64,
    pauses: u32,
    most: u32,
    machine: PhantomData<M>,
}

impl<M: Machine> Spin<M> {
    /// A budget that begins to run after the first few looks, at [`again`](Self::again).
    pub fn new(budget_ns: u64) -> Self {
        Self { budget_ns, began: 0, pauses: 1, most: PAUSES_MAX, machine: PhantomData }
    }

    /// The same with few PAUSEs between two looks, for a waiter whose turn is next: it learns of a
    /// release at once.
    pub fn near(budget_ns: u64) -> Self {
        Self { most: PAUSES_UNTIMED, ..Self::new(budget_ns) }
    }

    /// Pauses and returns true, or returns false: the budget is spent.
    pub fn again(&mut self) -> bool {
        self.again_while(|| true)
    }

    /// As [`again`](Self::again), with a look after each pause, for a word that lies near: it
    /// ends early if that is not `quiet` any more.
    #[inline]
    pub fn again_while(&mut self, quiet: impl Fn() -> bool) -> bool {
        if self.budget_ns == 0 {
            return false;
        }
        if self.pauses > PAUSES_UNTIMED || self.pauses == self.most {
            let now = M::now(Clock::Monotonic);
            if self.began == 0 {
                self.began = now;
            } else if now.wrapping_sub(self.began) >= self.budget_ns {
                return false;
            }
        }
        for _ in 0..self.pauses {
            M::relax();
            if !quiet() {
                break;
            }
        }
        self.pauses = (self.pauses * 2).min(self.most);
        true
    }
}

//! Spinning for a time instead of a number of PAUSE instructions.
//!
//! A PAUSE took about 10 cycles before Intel's Skylake and takes about 140 since, so a budget
//! counted in them is wrong by a factor of ten on one of them.

use core::marker::PhantomData;

use crate::{Clock, Machine, Slot};

/// PAUSEs between two reads up to which the clock is not read: reading it costs as much as they do.
const PAUSES_UNTIMED: u32 = 8;

/// The most PAUSEs between two reads of the awaited word.
///
/// Reading seldom lets the holder work undisturbed: each read costs it a cache miss.
const PAUSES_MAX: u32 = 64;

/// The result of a yield is used for this many times its duration: yields that give the processor
/// away take at most this fraction of a thread's time.
const BELIEVED: u64 = 16;
/// A yield that takes longer, in nanoseconds, counts as this long: the thread may have been
/// stopped.
const LONGEST: u64 = 10_000_000;

/// Yields. If the yield, which began at `began`, took as long as a switch to another thread and
/// back, returns until when this thread assumes that others want its processor: monotonic
/// nanoseconds.
pub fn crowded_until<M: Machine>(began: u64) -> Option<u64> {
    M::yield_now();
    let ended = M::now(Clock::Monotonic);
    let took = ended.wrapping_sub(began);
    let believed = took.min(LONGEST).saturating_mul(BELIEVED);
    (took >= M::SPIN_NS).then(|| ended.saturating_add(believed))
}

/// Returns whether another thread wants the processor of this thread, whose slot this is: then a
/// yield takes as long as that thread's time slice.
///
/// Costs a yield, before which it calls `prepare`, unless a recent yield has shown it.
pub fn finds_crowd<M: Machine>(slot: &Slot<M>, prepare: impl FnOnce()) -> bool {
    let began = M::now(Clock::Monotonic);
    if M::SPIN_NS == 0 || slot.is_crowded(began) {
        return true;
    }
    prepare();
    let Some(until) = crowded_until::<M>(began) else { return false };
    slot.crowd(until);
    true
}

/// Pauses for this many nanoseconds without reading memory. Meanwhile the awaited line stays with
/// its holder.
pub fn pause_for<M: Machine>(ns: u64) {
    let began = M::now(Clock::Monotonic);
    while M::now(Clock::Monotonic).wrapping_sub(began) < ns {
        (0..PAUSES_UNTIMED).for_each(|_| M::relax());
    }
}

/// A budget of nanoseconds for polling a word, at growing intervals.
pub struct Spin<M> {
    budget_ns: u64,
    began: u64,
    pauses: u32,
    most: u32,
    machine: PhantomData<M>,
}

impl<M: Machine> Spin<M> {
    /// Creates a budget that starts to run after the first few reads, at [`again`](Self::again).
    pub fn new(budget_ns: u64) -> Self {
        Self { budget_ns, began: 0, pauses: 1, most: PAUSES_MAX, machine: PhantomData }
    }

    /// Creates a budget with few PAUSEs between two reads for the waiter that is next and should
    /// see a release at once.
    pub fn near(budget_ns: u64) -> Self {
        Self { most: PAUSES_UNTIMED, ..Self::new(budget_ns) }
    }

    /// Pauses and returns true; returns false if the budget is spent.
    pub fn again(&mut self) -> bool {
        self.again_while(|| true)
    }

    /// [`again`](Self::again) with a read after each pause for a word in a near cache. It ends
    /// early when `quiet` returns false.
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

//! The [`Machine`] trait.

use core::sync::atomic::Ordering;

use crate::{Chain, Clock, Deadline, Integer, Level, Place, Slots, Word};

/// The reason why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The thread was woken, the word had changed, or the wait ended spuriously: read the word
    /// again.
    Woken,
    /// The deadline has passed.
    TimedOut,
}

/// The operations that a lock needs from its machine.
///
/// Words have the size of their values on the machines of this crate; only loom's are larger. Two
/// implementors are in this crate ([`Native`](crate::Native), [`Shared`](crate::Shared)); the crate
/// `check` has loom's, and a native one with an invented topology.
pub trait Machine: Default + Send + Sync + 'static {
    /// A word of one byte.
    type AtomicU8: Integer<Value = u8>;
    /// A word of two bytes.
    type AtomicU16: Integer<Value = u16>;
    /// A word of four bytes; the only size that can be waited on.
    type AtomicU32: Integer<Value = u32>;
    /// A word of eight bytes.
    type AtomicU64: Integer<Value = u64>;

    /// How long a waiter spins before it sleeps, in nanoseconds. Zero sleeps at once, which model
    /// checkers need.
    const SPIN_NS: u64;

    /// Executes a fence, as in `core::sync::atomic`.
    fn fence(order: Ordering);

    /// Executes the cheap half of an asymmetric pair of fences, which costs no instruction.
    ///
    /// It orders a store before it and a load after it against a store before and a load after a
    /// [`heavy_barrier`](Self::heavy_barrier) of another thread, so at least one of the two threads
    /// sees the other's store. (Dice, Huang and Yang, 2001; `membarrier(2)`.)
    fn light_barrier();

    /// [`light_barrier`](Self::light_barrier) for callers in whose process a heavy barrier has
    /// returned true. The system's barrier then reaches the threads of the process, and `Shared`
    /// need not check that.
    #[inline(always)]
    fn reached_barrier() {
        Self::light_barrier();
    }

    /// Executes the expensive half: makes every thread that shares this memory pass a barrier.
    /// Costs microseconds.
    ///
    /// Returns false if the system cannot. Then nothing is ordered, and the caller must not sleep
    /// without a bound.
    fn heavy_barrier() -> bool;

    /// Tells the core that this is a spin loop.
    fn relax();

    /// Gives the processor to another thread.
    fn yield_now();

    /// Reads `word` until `done` accepts its value for a change that another running thread is
    /// about to make. Does not sleep.
    fn spin_until<W: Word>(word: &W, order: Ordering, done: impl Fn(W::Value) -> bool) -> W::Value {
        let mut looks = 0u32;
        loop {
            let seen = word.load(order);
            if done(seen) {
                return seen;
            }
            looks += 1;
            // The other thread is between two instructions, or was preempted there.
            if looks.is_multiple_of(64) { Self::yield_now() } else { Self::relax() }
        }
    }

    /// Sleeps while `word` holds `expected`, until woken or until the deadline.
    ///
    /// May return early without a reason. Neither this function nor [`wake`](Self::wake) changes
    /// `errno`.
    fn wait(word: &Self::AtomicU32, expected: u32, deadline: Option<Deadline>) -> Waited;

    /// Wakes the thread that sleeps on `word`: the owner of the slot that contains it.
    ///
    /// It takes a reference because threads sleep only on words of slots, and slots outlive every
    /// latch. The latch itself may no longer exist when its last waiter is woken.
    fn wake(word: &Self::AtomicU32);

    /// Returns the nanoseconds of a clock.
    fn now(clock: Clock) -> u64;

    /// Returns this thread's number, which no other thread of the process ever has; zero if it is
    /// not known, as in a thread that is ending.
    #[inline]
    fn thread() -> u64 {
        crate::number::number()
    }

    /// Returns where this thread runs at this moment. A hint.
    fn place() -> Place;

    /// Returns whether this machine's cores differ at `level`, so that sorting waiters by it can
    /// help.
    fn spread(level: Level) -> bool;

    /// Returns the slots that serve the latch around `word`. Only the address of `word` is used,
    /// because a latch may no longer exist when its last waiter is woken.
    ///
    /// # Panics
    ///
    /// [`Shared`](crate::Shared) panics if `word` lies in no mapping that this process attached.
    fn slots<'a>(word: *const Self::AtomicU32) -> Slots<'a, Self>;

    /// Returns the start of this thread's chain of slots among `slots`, or zero if it has none yet.
    fn chain(slots: &Slots<'_, Self>) -> Chain;

    /// Records the start of this thread's chain.
    fn set_chain(slots: &Slots<'_, Self>, chain: Chain);
}

/// A machine whose words can be created at compile time: all except loom's.
#[allow(clippy::declare_interior_mutable_const, reason = "each use is meant to be a new word")]
pub trait ConstMachine: Machine {
    /// A byte of zero.
    const U8: Self::AtomicU8;
    /// Two bytes of zero.
    const U16: Self::AtomicU16;
    /// Four bytes of zero.
    const U32: Self::AtomicU32;
    /// Eight bytes of zero.
    const U64: Self::AtomicU64;

    /// Copies words as little-endian bytes, as many as both slices have.
    ///
    /// Other threads may store to the words at the same time. The result may then mix old and new
    /// bytes, even within a word, so the caller must validate afterwards. The loads are relaxed.
    #[inline]
    fn copy_words(from: &[Self::AtomicU64], into: &mut [[u8; 8]]) {
        for (word, place) in from.iter().zip(into) {
            // Relaxed: the caller orders.
            *place = word.load(Ordering::Relaxed).to_le_bytes();
        }
    }

    /// Stores little-endian bytes as words, as many as both slices have.
    ///
    /// Other threads may load the words at the same time. They may then read a mix of old and new
    /// bytes, even within a word, so they must validate afterwards. The stores are relaxed.
    #[inline]
    fn store_words(from: &[[u8; 8]], to: &[Self::AtomicU64]) {
        for (bytes, word) in from.iter().zip(to) {
            // Relaxed: the caller orders.
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// Prefetches the word. A hint, which has no effect on machines without one.
    #[inline(always)]
    fn prefetch(_word: &Self::AtomicU64) {}

    /// Appends words to the bytes of `to`, with the same guarantees as
    /// [`copy_words`](Self::copy_words).
    #[inline]
    fn append_words(from: &[Self::AtomicU64], to: &mut Vec<u8>) {
        to.reserve(size_of_val(from));
        for word in from {
            // Relaxed: the caller orders.
            to.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
    }
}

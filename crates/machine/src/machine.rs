//! The [`Machine`] trait.

use core::sync::atomic::Ordering;

use crate::{Chain, Clock, Deadline, Integer, Level, Place, Slots, Word};

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Woken, or the word had changed, or for no reason at all: look again.
    Woken,
    /// The deadline has passed.
    TimedOut,
}

/// What a lock runs on.
///
/// The words have inherent size on the machines of this crate; only loom's are larger. Two
/// implementors live here ([`Native`](crate::Native), [`Shared`](crate::Shared)), and the crate
/// `check` has loom's and a native one with an invented topology.
pub trait Machine: Default + Send + Sync + 'static {
    /// One byte.
    type AtomicU8: Integer<Value = u8>;
    /// Two bytes.
    type AtomicU16: Integer<Value = u16>;
    /// Four bytes; the only size that can be waited on.
    type AtomicU32: Integer<Value = u32>;
    /// Eight bytes.
    type AtomicU64: Integer<Value = u64>;

    /// How long a waiter looks before it sleeps, in nanoseconds. Zero sleeps at once, which is
    /// what a model checker wants.
    const SPIN_NS: u64;

    /// A fence, as in `core::sync::atomic`.
    fn fence(order: Ordering);

    /// The cheap half of an asymmetric pair of fences: free in machine code.
    ///
    /// A store before it and a load after it, on the quick side, are ordered against a store
    /// before and a load after a [`heavy_barrier`](Self::heavy_barrier) on the slow side, so at
    /// least one of the two sees the other's store. (Dice, Huang and Yang, 2001; `membarrier(2)`.)
    fn light_barrier();

    /// The same, for callers who know that a heavy barrier has returned true in this process: then
    /// the system's barrier reaches its threads, and `Shared` need not look whether it does.
    #[inline(always)]
    fn reached_barrier() {
        Self::light_barrier();
    }

    /// The dear half: makes every thread that shares this memory pass a barrier.
    ///
    /// False if the system cannot: then nothing is ordered and the caller must not sleep without
    /// a bound. Costs microseconds.
    fn heavy_barrier() -> bool;

    /// Tells the core that this is a spin loop.
    fn relax();

    /// Gives the processor to another thread.
    fn yield_now();

    /// Looks at `word` until `done`, for something that another running thread is about to do.
    fn spin_until<W: Word>(word: &W, order: Ordering, done: impl Fn(W::Value) -> bool) -> W::Value {
        let mut looks = 0u32;
        loop {
            let seen = word.load(order);
            if done(seen) {
                return seen;
            }
            looks += 1;
            // The other thread is between two instructions, or it lost its processor there.
            if looks.is_multiple_of(64) { Self::yield_now() } else { Self::relax() }
        }
    }

    /// Sleeps while `word` holds `expected`, until woken or past the deadline.
    ///
    /// May return early for no reason. Neither this nor [`wake`](Self::wake) touches `errno`.
    fn wait(word: &Self::AtomicU32, expected: u32, deadline: Option<Deadline>) -> Waited;

    /// Wakes whoever sleeps on `word`: the owner of the slot that it lies in.
    ///
    /// It takes a reference because only words of slots are slept on, and slots outlive every
    /// latch: the latch itself may be gone by the time its last waiter is woken.
    fn wake(word: &Self::AtomicU32);

    /// Nanoseconds on a clock.
    fn now(clock: Clock) -> u64;

    /// This thread's number, which no other thread of the process ever has; zero if it is not
    /// known, as of a thread that ends.
    #[inline]
    fn thread() -> u64 {
        crate::number::number()
    }

    /// Where this thread runs at this moment: a hint.
    fn place() -> Place;

    /// Whether this machine's cores differ at `level`, so that sorting waiters by it gains.
    fn spread(level: Level) -> bool;

    /// The slots that serve the latch around `word`, which is an address and no more: a latch may
    /// be gone by the time its last waiter is woken.
    ///
    /// # Panics
    ///
    /// [`Shared`](crate::Shared) panics if `word` lies in no mapping that this process attached.
    fn slots<'a>(word: *const Self::AtomicU32) -> Slots<'a, Self>;

    /// This thread's own slots among `slots`: where the chain begins, zero if it has none yet.
    fn chain(slots: &Slots<'_, Self>) -> Chain;

    /// Remembers where this thread's chain begins.
    fn set_chain(slots: &Slots<'_, Self>, chain: Chain);
}

/// A machine whose words can be made at compile time: all but loom's.
#[allow(clippy::declare_interior_mutable_const, reason = "each use is meant to be a new word")]
pub trait ConstMachine: Machine {
    /// A zero byte.
    const U8: Self::AtomicU8;
    /// Two zero bytes.
    const U16: Self::AtomicU16;
    /// Four zero bytes.
    const U32: Self::AtomicU32;
    /// Eight zero bytes.
    const U64: Self::AtomicU64;

    /// Copies words as bytes in the order of a little-endian machine, as many as there are of both.
    ///
    /// Other threads may store to the words meanwhile: what is copied may be of before or after,
    /// even within a word, as it is for a reader that validates afterwards. Relaxed.
    #[inline]
    fn copy_words(from: &[Self::AtomicU64], into: &mut [[u8; 8]]) {
        for (word, place) in from.iter().zip(into) {
            // Relaxed: the caller orders.
            *place = word.load(Ordering::Relaxed).to_le_bytes();
        }
    }

    /// Stores bytes as words in the order of a little-endian machine, as many as there are of both.
    ///
    /// Other threads may load the words meanwhile: what they find may be of before or after, even
    /// within a word, as it is for a reader that validates afterwards. Relaxed.
    #[inline]
    fn store_words(from: &[[u8; 8]], to: &[Self::AtomicU64]) {
        for (bytes, word) in from.iter().zip(to) {
            // Relaxed: the caller orders.
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// Says that the word will be read soon: a hint, which does nothing where it cannot.
    #[inline(always)]
    fn prefetch(_word: &Self::AtomicU64) {}

    /// Adds words to the bytes of `to`. As [`copy_words`](Self::copy_words).
    #[inline]
    fn append_words(from: &[Self::AtomicU64], to: &mut Vec<u8>) {
        to.reserve(size_of_val(from));
        for word in from {
            // Relaxed: the caller orders.
            to.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
    }
}

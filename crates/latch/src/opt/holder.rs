//! Who takes an [`OptLatch`], and what it knows of others.

use core::fmt;
use core::marker::PhantomData;
use core::time::Duration;

use latchwork_machine::{Machine, Native, Slots};

use super::{HOLDER, HOLDER_SHIFT, OptLatch};

/// The number of a holder: 1 to 16,383, for a latch has 14 bits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderNumber(u16);

impl HolderNumber {
    /// The highest number.
    pub const MAX: u32 = (1 << 14) - 1;

    /// A number, if it is 1 to [`MAX`](Self::MAX).
    pub const fn new(number: u32) -> Option<Self> {
        if number == 0 || number > Self::MAX { None } else { Some(Self(number as u16)) }
    }

    /// The number itself.
    pub const fn get(self) -> u32 {
        self.0 as u32
    }

    /// As the field of a latch.
    pub(super) const fn bits(self) -> u64 {
        (self.0 as u64) << HOLDER_SHIFT
    }

    /// From the field of a latch.
    pub(super) const fn of(word: u64) -> Option<Self> {
        Self::new(((word & HOLDER) >> HOLDER_SHIFT) as u32)
    }
}

/// A latch is held by a writer that is dead: what it guards must be repaired.
///
/// See [`OptLatch::take_over`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderDied(pub HolderNumber);

impl fmt::Display for HolderDied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "holder {} of a latch is dead", self.0.get())
    }
}

impl core::error::Error for HolderDied {}

/// A thread that takes latches: its number, where it waits, and what it knows of other holders.
///
/// All that use a latch at a time have different numbers. Only slow paths call any method but
/// [`number`](Self::number).
pub trait Holder<M: Machine = Native> {
    /// How many trials this thread loses to others, each of [`Machine::SPIN_NS`], before it is
    /// handed the latch.
    const LOSSES: u32 = 4;

    /// This thread's number.
    fn number(&self) -> HolderNumber;

    /// The slots in which threads wait for `latch`: the same for all that use it.
    fn slots(&self, latch: &OptLatch<M>) -> Slots<'_, M> {
        M::slots((&raw const *latch).cast())
    }

    /// The name of `latch`, the same for all that use it and different from that of all other
    /// latches with the same slots. Its address, unless several processes use it.
    fn name(&self, latch: &OptLatch<M>) -> u64 {
        (&raw const *latch).addr() as u64
    }

    /// How long a waiter sleeps before it looks whether a holder is dead. None sleeps until it is
    /// called, and is right if no thread can end while it is in a call of a latch.
    fn nap(&self) -> Option<Duration> {
        None
    }

    /// Whether the thread with this number is dead, and its number not yet given to another. Asked
    /// after each nap by each that waits, and by a holder that is about to hand the latch over: so
    /// it takes no latch, and leaves repairs to the thread that gets [`HolderDied`].
    fn is_dead(&self, number: HolderNumber) -> bool {
        let _ = number;
        false
    }
}

/// A holder of latches that one process uses.
#[derive(Debug)]
pub struct LocalHolder<M: Machine = Native> {
    number: HolderNumber,
    machine: PhantomData<M>,
}

impl<M: Machine> LocalHolder<M> {
    /// The holder with this number, which no other thread has at the same time.
    pub const fn new(number: HolderNumber) -> Self {
        Self { number, machine: PhantomData }
    }
}

impl<M: Machine> Holder<M> for LocalHolder<M> {
    #[inline]
    fn number(&self) -> HolderNumber {
        self.number
    }
}

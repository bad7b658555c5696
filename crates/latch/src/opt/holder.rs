//! Holders of an [`OptLatch`], and their knowledge of each other.

use core::fmt;
use core::marker::PhantomData;
use core::time::Duration;

use latchwork_machine::{Machine, Native, Slots};

use super::{HOLDER, HOLDER_SHIFT, OptLatch};

/// The number of a holder: 1 to 16,383, because a latch has 14 bits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderNumber(u16);

impl HolderNumber {
    /// The highest number.
    pub const MAX: u32 = (1 << 14) - 1;

    /// Creates a number, if it is 1 to [`MAX`](Self::MAX).
    pub const fn new(number: u32) -> Option<Self> {
        if number == 0 || number > Self::MAX { None } else { Some(Self(number as u16)) }
    }

    /// Returns the number.
    pub const fn get(self) -> u32 {
        self.0 as u32
    }

    /// Returns the number as the field of a latch.
    pub(super) const fn bits(self) -> u64 {
        (self.0 as u64) << HOLDER_SHIFT
    }

    /// Returns the number in the field of a latch, if it has one.
    pub(super) const fn of(word: u64) -> Option<Self> {
        Self::new(((word & HOLDER) >> HOLDER_SHIFT) as u32)
    }
}

/// The error of a latch that a dead writer holds: the guarded data must be repaired.
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

/// A thread that takes latches: its number, its waiting slot, and its knowledge of other holders.
///
/// All concurrent users of a latch must have different numbers. Only slow paths call methods other
/// than [`number`](Self::number).
pub trait Holder<M: Machine = Native> {
    /// How many attempts, each of [`Machine::SPIN_NS`], this thread loses to others before it is
    /// handed the latch.
    const LOSSES: u32 = 4;

    /// Returns this thread's number.
    fn number(&self) -> HolderNumber;

    /// Returns the slots in which threads wait for `latch`. They must be the same for all its
    /// users.
    fn slots(&self, latch: &OptLatch<M>) -> Slots<'_, M> {
        M::slots((&raw const *latch).cast())
    }

    /// Returns the name of `latch`: the same for all its users, and different from the names of all
    /// other latches with the same slots. By default its address, which suffices within one
    /// process.
    fn name(&self, latch: &OptLatch<M>) -> u64 {
        (&raw const *latch).addr() as u64
    }

    /// Returns how long a waiter sleeps before it checks whether a holder is dead. `None` means
    /// that it sleeps until it is called; this is correct if no thread can end during a call of a
    /// latch.
    fn nap(&self) -> Option<Duration> {
        None
    }

    /// Returns whether the thread with this number is dead and its number not yet given to another.
    /// Each waiter calls it after each nap, and so does a holder that is about to hand the latch
    /// over. So it must take no latch, and must leave repairs to the thread that gets
    /// [`HolderDied`].
    fn is_dead(&self, number: HolderNumber) -> bool {
        let _ = number;
        false
    }
}

/// A holder of latches that are used by one process.
#[derive(Debug)]
pub struct LocalHolder<M: Machine = Native> {
    number: HolderNumber,
    machine: PhantomData<M>,
}

impl<M: Machine> LocalHolder<M> {
    /// Creates the holder with this number, which no other thread may have at the same time.
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

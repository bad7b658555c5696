//! Words that name a slot: four bytes, or two in a small latch.

use latchwork_machine::{MAX_SLOTS, Word};

// Two bytes hold every number, and one value without a slot.
const _: () = assert!(MAX_SLOTS < u16::MAX as u32);

/// A word that holds the number of a slot, zero, or [`NO_SLOT`].
pub(crate) trait Number: Word<Value: Into<u32>> {
    /// Converts the number to the type of the word.
    fn narrow(number: u32) -> Self::Value;
}

/// A number that no slot has.
pub(crate) const NO_SLOT: u32 = u16::MAX as u32;

impl<W: Word<Value: Into<u32> + TryFrom<u32>>> Number for W {
    #[inline]
    fn narrow(number: u32) -> Self::Value {
        number.try_into().unwrap_or_else(|_| unreachable!("no slot has the number {number}"))
    }
}

//! The stamp that a record bears: the thread slot of its last writer, and where in the log that is.
//!
//! ```text
//! 63        48 47                                    0
//! | slot      | position of the log record, in 16 B   |
//! ```
//!
//! 0 is nobody's: a record that was there before all that the log still knows. The 48 bits reach to
//! 4.5 PB of log, a year and a half of a million writes a second; before that the store refuses to
//! write (`files/checkpoint.rs`).

use core::fmt;

const POSITION_BITS: u32 = 48;
const UNIT: u64 = 16;

/// Who wrote a record last: a thread slot and a position in the log.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Stamp(u64);

const _: () = assert!(size_of::<Stamp>() == 8);

impl Stamp {
    /// Nobody's that matters any more.
    pub const NOBODY: Self = Self(0);

    /// A slot's, at a position that is a multiple of 16. Both are cut to what there is room for.
    pub const fn new(slot: u16, at: u64) -> Self {
        Self(((slot as u64) << POSITION_BITS) | ((at / UNIT) & ((1 << POSITION_BITS) - 1)))
    }

    /// The word in a record's header.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The stamp of such a word; every word is one.
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// The thread slot.
    pub const fn slot(self) -> u16 {
        (self.0 >> POSITION_BITS) as u16
    }

    /// The position in the log.
    pub const fn at(self) -> u64 {
        (self.0 & ((1 << POSITION_BITS) - 1)) * UNIT
    }
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NOBODY => f.write_str("Stamp(nobody)"),
            _ => write!(f, "Stamp(slot {} at {})", self.slot(), self.at()),
        }
    }
}

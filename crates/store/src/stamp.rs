//! The stamp of a record: the thread slot of its last writer, and the position of the write in the
//! log.
//!
//! ```text
//! 63        48 47                                    0
//! | slot      | position of the log record, in 16 B   |
//! ```
//!
//! 0 stands for no writer: the record is older than all that the log contains. 48 bits address 4.5
//! PB of log, which is a year and a half at a million writes a second; before that, the store
//! refuses to write (`files/checkpoint.rs`).

use core::fmt;

const POSITION_BITS: u32 = 48;
const UNIT: u64 = 16;

/// The last writer of a record: a thread slot and a position in the log.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Stamp(u64);

const _: () = assert!(size_of::<Stamp>() == 8);

impl Stamp {
    /// The stamp of a record whose writer no longer matters.
    pub const NOBODY: Self = Self(0);

    /// Creates the stamp of a slot at a position, which is a multiple of 16. Excess bits are cut
    /// off.
    pub const fn new(slot: u16, at: u64) -> Self {
        Self(((slot as u64) << POSITION_BITS) | ((at / UNIT) & ((1 << POSITION_BITS) - 1)))
    }

    /// Returns the word that a record's header stores.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Creates the stamp from such a word; every word is valid.
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// Returns the thread slot.
    pub const fn slot(self) -> u16 {
        (self.0 >> POSITION_BITS) as u16
    }

    /// Returns the position in the log.
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

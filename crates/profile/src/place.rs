//! The place where a latch was taken, in one word.
//!
//! ```text
//!  63  60  59                                         0
//! ┌──────┬─────────────────────────────────────────────┐
//! │ 1-4  │ a return address: a call site of this class │
//! │  15  │ the index of a call chain                   │
//! │   0  │ nowhere that is known                       │
//! └──────┴─────────────────────────────────────────────┘
//! ```

use crate::layout::{CHAINS, Class};

const SHIFT: u32 = 60;
const CHAIN: u64 = 15;
const REST: u64 = (1 << SHIFT) - 1;

/// The place where a latch was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The call with this return address, and the class.
    Site(u64, Class),
    /// The end of the call chain with this index for a thread that had waited.
    Chain(usize),
}

impl Place {
    /// Returns the word of this place; never zero.
    pub(crate) fn word(self) -> u64 {
        match self {
            Self::Site(address, class) => address & REST | (class as u64) << SHIFT,
            Self::Chain(index) => CHAIN << SHIFT | index as u64,
        }
    }

    /// Returns the place of a word; none if it is invalid.
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        match word >> SHIFT {
            CHAIN => {
                Some(Self::Chain((word & REST) as usize)).filter(|_| word & REST < CHAINS as u64)
            }
            class => Some(Self::Site(word & REST, Class::from_number(class as u32)?)),
        }
    }
}

const _: () = assert!(CHAINS < 1 << 16);

//! An entry of a weak page: the part of a lock that is in its owner's own memory.
//!
//! ```text
//!  63       32 31       16 15     8 7     0
//! | bias      | count     | length | mode |     count 0 is free; hash and name stay
//! ```

use crate::memory::bias::Bias;
use crate::memory::typed::Stored;
use crate::mode::Mode;

/// Words of a name in an entry.
pub(crate) const WEAK_WORDS: usize = 8;
/// The longest name of an entry, in bytes.
pub(crate) const LENGTH_MAX: usize = WEAK_WORDS * 8;

/// The fields of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The value of its bias when the lock was taken.
    pub(crate) bias: Bias,
    pub(crate) count: u32,
    pub(crate) length: usize,
    pub(crate) mode: Mode,
}

impl Stored for Entry {
    type In = u64;

    #[inline(always)]
    fn of(word: u64) -> Self {
        Self {
            bias: Bias::of((word >> 32) as u32),
            count: (word >> 16) as u32 & 0xffff,
            length: (word >> 8) as usize & 0xff,
            mode: Mode(word as u8),
        }
    }

    #[inline(always)]
    fn word(self) -> u64 {
        u64::from(self.bias.word()) << 32
            | u64::from(self.count) << 16
            | (self.length as u64) << 8
            | u64::from(self.mode.0)
    }
}

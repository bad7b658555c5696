//! The modes of an object that are held and waited for, in one word: an upper bound.
//!
//! ```text
//!  31        16 15     0
//! | waited for | held   |
//! ```
//!
//! A mode that is in a mask but not in a request is removed when it would block a request: see
//! `table/granting.rs`.

use crate::memory::state::State;
use crate::memory::typed::Stored;

/// Two masks of modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Masks {
    pub(crate) held: u16,
    pub(crate) waited: u16,
}

impl Masks {
    pub(crate) const NONE: Self = Self { held: 0, waited: 0 };

    /// Returns these masks with the modes of one more request.
    #[inline(always)]
    pub(crate) fn with(mut self, state: State) -> Self {
        if state.holds() {
            self.held |= state.mode.bit();
        }
        if state.waits() {
            self.waited |= state.want.bit();
        }
        self
    }
}

impl Stored for Masks {
    type In = u32;

    #[inline(always)]
    fn of(word: u32) -> Self {
        Self { held: word as u16, waited: (word >> 16) as u16 }
    }

    #[inline(always)]
    fn word(self) -> u32 {
        u32::from(self.held) | u32::from(self.waited) << 16
    }
}

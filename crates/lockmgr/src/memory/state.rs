//! The state of a request: one word, on which its owner sleeps.
//!
//! ```text
//!  31   24 23    16 15    8 7      0
//! | why   | wanted | held  | status |
//! ```

use crate::memory::typed::Stored;
use crate::mode::Mode;

/// A value of `why` for a waiter: the lock is free, and the waiter may take it unless another
/// request is faster.
pub(crate) const CALLED: u32 = 0xff;

/// The status of a request: the low byte of its state.
pub(crate) mod status {
    /// In no queue.
    pub(crate) const NEW: u32 = 0;
    /// Granted.
    pub(crate) const HELD: u32 = 1;
    /// Waiting, with nothing held.
    pub(crate) const WAITING: u32 = 2;
    /// Waiting for a stronger mode than the one held.
    pub(crate) const CONVERTING: u32 = 3;
    /// Refused, and in no queue.
    pub(crate) const DENIED: u32 = 4;
    /// Waiting, and between two places of its queue.
    pub(crate) const AWAY: u32 = 5;
}

/// The fields of a request's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) status: u32,
    /// The mode held.
    pub(crate) mode: Mode,
    /// The mode wanted.
    pub(crate) want: Mode,
    /// Why it was refused, or [`CALLED`]; otherwise zero.
    pub(crate) why: u32,
}

impl Stored for State {
    type In = u32;

    #[inline(always)]
    fn of(word: u32) -> Self {
        let byte = |n: u32| (word >> n) as u8;
        Self { status: word & 255, mode: Mode(byte(8)), want: Mode(byte(16)), why: word >> 24 }
    }

    #[inline(always)]
    fn word(self) -> u32 {
        self.status | u32::from(self.mode.0) << 8 | u32::from(self.want.0) << 16 | self.why << 24
    }
}

impl State {
    /// The state of a request that is in no queue.
    pub(crate) const NEW: Self = Self { status: status::NEW, mode: Mode(0), want: Mode(0), why: 0 };

    #[inline(always)]
    pub(crate) fn held(mode: Mode) -> Self {
        Self { status: status::HELD, mode, want: mode, why: 0 }
    }

    #[inline(always)]
    pub(crate) fn waiting(want: Mode) -> Self {
        Self { status: status::WAITING, mode: want, want, why: 0 }
    }

    /// Returns whether its owner holds the object.
    #[inline(always)]
    pub(crate) fn holds(self) -> bool {
        self.status == status::HELD || self.status == status::CONVERTING
    }

    /// Returns whether its owner waits.
    #[inline(always)]
    pub(crate) fn waits(self) -> bool {
        matches!(self.status, status::WAITING | status::CONVERTING | status::AWAY)
    }

    /// Returns whether its owner waits and was called.
    #[inline(always)]
    pub(crate) fn is_called(self) -> bool {
        self.status == status::WAITING && self.why == CALLED
    }

    /// Returns the modes that it holds or wants, as a mask.
    #[inline(always)]
    pub(crate) fn mask(self) -> u16 {
        match self.status {
            status::HELD => self.mode.bit(),
            status::WAITING | status::AWAY => self.want.bit(),
            status::CONVERTING => self.mode.bit() | self.want.bit(),
            _ => 0,
        }
    }
}

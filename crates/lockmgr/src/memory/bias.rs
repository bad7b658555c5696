//! The value of a bias: its kind, and how often it changed. The two low bits are the kind:
//!
//! ```text
//!  x0   closed     all locks are in the table; one more than the value before
//!  01   open       weak locks are in their owners' pages
//!  11   reserved   one owner alone may hold the entry's name: `fastpath/reserved.rs`
//! ```
//!
//! All zero is closed, and has never been anything else.

use crate::memory::typed::stored_as_it_is;

/// A bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bias(u32);

stored_as_it_is!(Bias);

impl Bias {
    /// Closed, and never anything else.
    pub(crate) const NEW: Self = Self(0);

    /// From here on the bias stays closed, because an entry must never meet its bias's value again.
    /// A bias opens at most 2^30 times, each time after many requests. Then weak locks of its names
    /// stay in the table.
    const TOP: u32 = u32::MAX - 8;

    #[inline(always)]
    pub(crate) fn is_open(self) -> bool {
        self.0 % 4 == 1
    }

    #[inline(always)]
    pub(crate) fn is_closed(self) -> bool {
        self.0.is_multiple_of(2)
    }

    #[inline(always)]
    pub(crate) fn is_reserved(self) -> bool {
        self.0 % 4 == 3
    }

    /// Returns the value before it was closed, if it was ever anything else.
    #[inline(always)]
    pub(crate) fn before(self) -> Option<Self> {
        self.0.checked_sub(1).map(Self)
    }

    /// Returns the closed value that follows an open or reserved one. In a damaged region the bias
    /// may have any value.
    #[inline(always)]
    pub(crate) fn closed(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Returns the open value that follows a closed one.
    #[inline(always)]
    pub(crate) fn opened(self) -> Option<Self> {
        (self.0 < Self::TOP).then(|| Self(((self.0 + 2) & !3) + 1))
    }

    /// Returns the reserved value that follows a closed one.
    #[inline(always)]
    pub(crate) fn reserved(self) -> Option<Self> {
        (self.0 < Self::TOP).then_some(Self(self.0 | 3))
    }
}

#[cfg(test)]
mod tests {
    use super::Bias;

    #[test]
    fn no_value_comes_twice() {
        let (mut closed, mut last) = (Bias::NEW, Bias::NEW);
        for turn in 0..1000 {
            assert!(closed.is_closed() && !closed.is_open() && !closed.is_reserved());
            let next = if turn % 3 == 0 { closed.reserved() } else { closed.opened() }.unwrap();
            assert_eq!((next.is_reserved(), next.is_open()), (turn % 3 == 0, turn % 3 != 0));
            assert!(next.0 > last.0 && next.0 > closed.0);
            (last, closed) = (next, next.closed());
            assert_eq!(closed.before(), Some(next));
        }
        assert_eq!(Bias::NEW.before(), None);
        assert_eq!((Bias(u32::MAX - 1).opened(), Bias(u32::MAX - 1).reserved()), (None, None));
    }
}

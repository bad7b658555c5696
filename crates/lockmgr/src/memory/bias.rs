//! The value of a bias: what it is now, and how often it changed. The two low bits say which:
//!
//! ```text
//!  x0   closed     all is in the table; one more than what it was before
//!  01   open       weak locks are in their owners' pages
//!  11   reserved   one entry's owner alone has the entry's name: `fastpath/reserved.rs`
//! ```
//!
//! All zero is closed, and never was anything else.

use crate::memory::typed::stored_as_it_is;

/// What a bias is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bias(u32);

stored_as_it_is!(Bias);

impl Bias {
    /// Closed, and never anything else.
    pub(crate) const NEW: Self = Self(0);

    /// Near the top it stays closed: an entry must never meet its bias's value again. It opens 2^30
    /// times at most, each time after many requests; then weak locks of its names are in the table.
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

    /// What it was before it was closed, if it was anything.
    #[inline(always)]
    pub(crate) fn before(self) -> Option<Self> {
        self.0.checked_sub(1).map(Self)
    }

    /// What it is when it was open or reserved and is closed. In a damaged region it may be any.
    #[inline(always)]
    pub(crate) fn closed(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// What it is when it was closed and is opened.
    #[inline(always)]
    pub(crate) fn opened(self) -> Option<Self> {
        (self.0 < Self::TOP).then(|| Self(((self.0 + 2) & !3) + 1))
    }

    /// What it is when it was closed and is reserved.
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

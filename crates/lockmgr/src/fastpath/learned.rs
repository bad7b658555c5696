//! After how many weak requests a bias is worth opening: what a partition learns of its own use.
//!
//! To open a bias saves each weak request that follows the way through the table, and costs the
//! next strong request a closing: a barrier, and a look at the owners that may have entries, of
//! which a machine of many processors has many. How many weak requests come between two strong
//! ones, and what a closing takes, each partition notes in one word, under its latch:
//!
//! ```text
//!  31      21 20        9 8      0
//! | closing  | between   | misses |   closing: a mean, of 128 ns; between: a mean, in eighths
//! ```
//!
//! Where more requests are to be expected than a closing is worth, the bias opens at once: how many
//! are still to come does not depend on how many have come, as far as anybody knows. Else it opens
//! after as many as a closing is worth: then it costs twice the least, at most (Karlin, Manasse,
//! Rudolph and Sleator, 1988: *competitive snoopy caching*).

/// What a weak request costs more in the table, in nanoseconds.
const SAVED: u32 = 100;
/// After so many weak requests a bias opens that is worth it.
const SOON: u32 = 2;
/// The same where nothing is known yet, and the least where it is not worth it.
const AT_FIRST: u32 = 32;

/// Bits of each part of the word.
const MISSES: u32 = 9;
const BETWEEN: u32 = 12;
const CLOSING: u32 = 11;
/// What the mean of closings counts, as a power of two of nanoseconds.
const UNIT: u32 = 7;
/// The most that the first closing is taken to be: what `AT_FIRST` requests are worth.
const FIRST: u32 = (AT_FIRST * SAVED) >> UNIT;

/// What a partition has learned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Learned {
    /// Weak requests that met a closed bias since the last strong one.
    misses: u32,
    /// Weak requests between two strong ones, in eighths.
    between: u32,
    /// What a closing takes.
    closing: u32,
}

impl Learned {
    #[inline(always)]
    pub(crate) fn of(word: u32) -> Self {
        Self {
            misses: word & ((1 << MISSES) - 1),
            between: word >> MISSES & ((1 << BETWEEN) - 1),
            closing: word >> (MISSES + BETWEEN),
        }
    }

    #[inline(always)]
    pub(crate) fn word(self) -> u32 {
        let between = self.between.min((1 << BETWEEN) - 1);
        let closing = self.closing.min((1 << CLOSING) - 1);
        self.misses.min((1 << MISSES) - 1) | between << MISSES | closing << (MISSES + BETWEEN)
    }

    /// How many weak requests a closing is worth.
    fn worth(self) -> u32 {
        (self.closing << UNIT) / SAVED
    }

    /// After how many weak requests a bias opens.
    pub(crate) fn opens_after(self) -> u32 {
        let worth = self.worth();
        if self.closing != 0 && self.between / 8 > worth {
            SOON
        } else {
            worth.clamp(AT_FIRST, (1 << MISSES) - 1)
        }
    }

    /// A weak request met a closed bias; says whether that is to open.
    pub(crate) fn missed(&mut self) -> bool {
        self.misses += 1;
        self.misses >= self.opens_after()
    }

    /// A bias was opened.
    pub(crate) fn opened(&mut self) {
        self.misses = 0;
    }

    /// A strong request came. While a bias was open nobody counted; so many more than it opened
    /// after are to be expected as at any time.
    #[inline(always)]
    pub(crate) fn strong(&mut self, was_open: bool) {
        let came = if was_open { self.opens_after() + self.between / 8 } else { self.misses };
        self.between = self.between - self.between / 8 + came;
        self.misses = 0;
    }

    /// A closing took so long. A thread that the system stopped in the middle of one says little of
    /// the next: one that took long adds a quarter at most.
    pub(crate) fn closed(&mut self, nanoseconds: u64) {
        let took = (nanoseconds >> UNIT).min(1 << CLOSING) as u32;
        self.closing = match self.closing {
            0 => took.clamp(1, FIRST),
            mean if took < mean => (mean + took) / 2,
            mean => mean + took.min(2 * mean).saturating_sub(mean).div_ceil(4),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A partition to which so many weak requests come between two strong ones, and whose closings
    /// take so long; and after how many of them a bias opens in the end.
    fn after(between: u32, closing: u64) -> u32 {
        let (mut learned, mut open) = (Learned::default(), false);
        for _ in 0..200 {
            for _ in 0..between {
                if !open && learned.missed() {
                    learned.opened();
                    open = true;
                }
            }
            learned.strong(open);
            if open {
                learned.closed(closing);
                open = false;
            }
            learned = Learned::of(learned.word());
        }
        learned.opens_after()
    }

    #[test]
    fn a_bias_opens_at_once_where_that_is_worth_it() {
        assert_eq!(Learned::default().opens_after(), AT_FIRST);
        // A closing of 5 us is worth 50 weak requests.
        assert_eq!(after(100, 5_000), SOON);
        assert!((32..=64).contains(&after(40, 5_000)));
        // Too few to open it even once.
        assert_eq!(after(4, 5_000), AT_FIRST);
        // On a machine of many processors a closing may take long.
        assert!((300..=500).contains(&after(300, 47_000)));
        assert_eq!(after(u32::from(u16::MAX), u64::MAX), (1 << MISSES) - 1);
    }

    #[test]
    fn a_thread_that_was_stopped_says_little() {
        let mut learned = Learned::default();
        learned.closed(u64::MAX);
        assert_eq!(learned.opens_after(), AT_FIRST);
        (0..20).for_each(|_| learned.closed(5_000));
        let before = learned.closing;
        learned.closed(10_000_000);
        assert!(before == 39 && learned.closing <= before + before.div_ceil(4));
        learned.closed(5_000);
        assert!(learned.closing <= before + 5);
    }

    #[test]
    fn a_word_keeps_it() {
        let learned = Learned { misses: 7, between: 801, closing: 40 };
        assert_eq!(Learned::of(learned.word()), learned);
        let most = Learned { misses: u32::MAX, between: u32::MAX, closing: u32::MAX };
        assert_eq!(most.word(), u32::MAX);
        assert_eq!(Learned::of(0), Learned::default());
    }
}

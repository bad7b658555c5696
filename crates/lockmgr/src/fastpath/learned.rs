//! When to open a bias: each partition learns how many weak requests make it worthwhile.
//!
//! Opening a bias saves each later weak request the path through the table. It costs the next
//! strong request a closing: a barrier, and an inspection of the owners that may have entries,
//! which are many on a machine with many processors. Each partition records how many weak requests
//! occur between two strong ones, and how long a closing takes, in one word under its latch:
//! ```text
//!  31      21 20        9 8      0
//! | closing  | between   | misses |   closing: mean, in 128 ns; between: mean, in eighths
//! ```
//!
//! If more weak requests are expected than a closing costs, the bias opens immediately: the number
//! of requests still to come is assumed to be independent of the number that came. Otherwise it
//! opens after as many requests as a closing costs. The total cost is then at most twice the
//! minimum (Karlin, Manasse, Rudolph and Sleator, 1988: *competitive snoopy caching*).

/// The additional cost of a weak request through the table, in nanoseconds.
const SAVED: u32 = 100;
/// The number of weak requests after which a bias opens if opening pays off.
const SOON: u32 = 2;
/// The number of weak requests before anything is learned, and the minimum if opening does not pay
/// off.
const AT_FIRST: u32 = 32;

/// Bits of each part of the word.
const MISSES: u32 = 9;
const BETWEEN: u32 = 12;
const CLOSING: u32 = 11;
/// The unit of the mean of closings: a power of two of nanoseconds.
const UNIT: u32 = 7;
/// The upper bound for the first closing: the cost of `AT_FIRST` requests.
const FIRST: u32 = (AT_FIRST * SAVED) >> UNIT;

/// The measurements of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Learned {
    /// Weak requests that met a closed bias since the last strong one.
    misses: u32,
    /// Weak requests between two strong ones, in eighths.
    between: u32,
    /// Duration of a closing.
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

    /// Returns how many weak requests cost as much as a closing.
    fn worth(self) -> u32 {
        (self.closing << UNIT) / SAVED
    }

    /// Returns the number of weak requests after which a bias opens.
    pub(crate) fn opens_after(self) -> u32 {
        let worth = self.worth();
        if self.closing != 0 && self.between / 8 > worth {
            SOON
        } else {
            worth.clamp(AT_FIRST, (1 << MISSES) - 1)
        }
    }

    /// Counts a weak request that found a closed bias. Returns whether the bias must be opened.
    pub(crate) fn missed(&mut self) -> bool {
        self.misses += 1;
        self.misses >= self.opens_after()
    }

    /// Records that a bias was opened.
    pub(crate) fn opened(&mut self) {
        self.misses = 0;
    }

    /// Records a strong request. Weak requests under an open bias are not counted, so as many as
    /// usual are assumed after it opened.
    #[inline(always)]
    pub(crate) fn strong(&mut self, was_open: bool) {
        let came = if was_open { self.opens_after() + self.between / 8 } else { self.misses };
        self.between = self.between - self.between / 8 + came;
        self.misses = 0;
    }

    /// Records the duration of a closing. A thread may be preempted during a closing, so a long one
    /// raises the mean by at most a quarter.
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

    /// Simulates a partition with so many weak requests between two strong ones, and closings of
    /// this duration. Returns the number of requests after which a bias opens in the end.
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
    fn a_bias_opens_immediately_if_that_pays_off() {
        assert_eq!(Learned::default().opens_after(), AT_FIRST);
        // A closing of 5 us is worth 50 weak requests.
        assert_eq!(after(100, 5_000), SOON);
        assert!((32..=64).contains(&after(40, 5_000)));
        // Too few to open the bias once.
        assert_eq!(after(4, 5_000), AT_FIRST);
        // On a machine of many processors a closing may take long.
        assert!((300..=500).contains(&after(300, 47_000)));
        assert_eq!(after(u32::from(u16::MAX), u64::MAX), (1 << MISSES) - 1);
    }

    #[test]
    fn a_preempted_thread_changes_the_mean_little() {
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
    fn a_word_holds_all_fields() {
        let learned = Learned { misses: 7, between: 801, closing: 40 };
        assert_eq!(Learned::of(learned.word()), learned);
        let most = Learned { misses: u32::MAX, between: u32::MAX, closing: u32::MAX };
        assert_eq!(most.word(), u32::MAX);
        assert_eq!(Learned::of(0), Learned::default());
    }
}

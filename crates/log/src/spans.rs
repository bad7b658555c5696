//! The division of the log into segments.
//!
//! A new log begins with small files, so that a small store takes little room. Segment 0 holds
//! `first` bytes, and each of the next segments as many as all before it together, until that is
//! `size` bytes; all later ones hold `size`:
//!
//! ```text
//! first 512 KiB, size 64 MiB:  0: 512 KiB  1: 512 KiB  2: 1 MiB ..  7: 32 MiB  8 ..: 64 MiB
//! ```
//!
//! The beginning of a segment follows from its number and these two sizes, which never change.

/// The sizes of a log's segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spans {
    first: u64,
    size: u64,
    /// The number of the first segment of full size.
    full: u64,
    /// The place where that segment begins.
    full_at: u64,
}

impl Spans {
    /// Creates the division of a log whose first segment has `first` bytes and whose largest have
    /// `size` bytes. Returns `None` for invalid sizes.
    pub(crate) fn new(first: u64, size: u64) -> Option<Self> {
        let whole = |bytes: u64| bytes >= 4096 && bytes.is_multiple_of(4096) && bytes <= 1 << 40;
        if !whole(first) || !whole(size) || first > size {
            return None;
        }
        // The largest number that does not exceed `size`.
        let doublings = (size / first).ilog2();
        Some(Self { first, size, full: u64::from(doublings) + 1, full_at: first << doublings })
    }

    /// Returns the size of the first segment in bytes.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Returns the full size of a segment in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Returns the number of the segment that holds the byte at a place of the log.
    pub(crate) fn number(&self, at: u64) -> u64 {
        match at.checked_sub(self.full_at) {
            Some(rest) => self.full + rest / self.size,
            None if at < self.first => 0,
            None => u64::from((at / self.first).ilog2()) + 1,
        }
    }

    /// Returns the place where a segment begins.
    pub(crate) fn start(&self, number: u64) -> u64 {
        match number.checked_sub(self.full) {
            Some(rest) => self.full_at.saturating_add(rest.saturating_mul(self.size)),
            None if number == 0 => 0,
            None => self.first << (number - 1),
        }
    }

    /// Returns the place where the next segment begins.
    pub(crate) fn end(&self, number: u64) -> u64 {
        self.start(number.saturating_add(1))
    }

    /// Returns the size of a segment in bytes.
    pub(crate) fn length(&self, number: u64) -> u64 {
        self.end(number) - self.start(number)
    }

    /// Returns the segments that hold the bytes from `from` to before `to`; an empty range if there
    /// are no bytes.
    pub(crate) fn of(&self, from: u64, to: u64) -> core::ops::Range<u64> {
        if from < to { self.number(from)..self.number(to - 1) + 1 } else { 0..0 }
    }

    /// Returns whether all places in this segment and the next one fit into 64 bits.
    pub(crate) fn has(&self, number: u64) -> bool {
        number < u64::MAX / self.size - 1
    }
}

#[cfg(test)]
mod tests {
    use super::Spans;

    #[test]
    fn segments_follow_each_other_and_hold_every_byte() {
        let (kib, mib) = (1 << 10, 1 << 20);
        for (first, size) in [
            (512 * kib, 64 * mib),
            (512 * kib, 512 * kib),
            (512 * kib, 768 * kib),
            (512 * kib, mib),
            (4096, 12_288),
            (4096, 4096),
            (64 * kib, 5 * mib + 4096),
        ] {
            let spans = Spans::new(first, size).unwrap();
            let mut at = 0;
            for number in 0..40 {
                assert_eq!(spans.start(number), at, "{number} of {first}, {size}");
                let length = spans.length(number);
                assert!(length >= first && length <= size && length.is_multiple_of(4096));
                for inside in [at, at + 1, at + length / 2, at + length - 1] {
                    assert_eq!(spans.number(inside), number, "{inside} of {first}, {size}");
                }
                assert_eq!(spans.of(at, at + length), number..number + 1);
                assert!(number < 30 || length == size);
                at += length;
            }
        }
        let grown = Spans::new(512 * kib, 64 * mib).unwrap();
        assert_eq!(
            [0, 1, 2, 7, 8].map(|n| grown.length(n) / kib),
            [512, 512, 1024, 32_768, 65_536]
        );
        assert_eq!(grown.start(8), 64 * mib);
    }

    #[test]
    fn sizes_that_no_log_has_are_refused() {
        for (first, size) in [(0, 0), (4096, 0), (8192, 4096), (4097, 8192), (4096, 1 << 41)] {
            assert_eq!(Spans::new(first, size), None, "{first}, {size}");
        }
    }
}

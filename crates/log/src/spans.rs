//! Which bytes of the log each segment holds.
//!
//! A new log begins with small files, so that a small store takes little room. Segment 0 holds
//! `first` bytes, and each of the next segments as many as all before it together, until that is
//! `size` bytes; all later ones hold `size`:
//!
//! ```text
//! first 512 KiB, size 64 MiB:  0: 512 KiB  1: 512 KiB  2: 1 MiB ..  7: 32 MiB  8 ..: 64 MiB
//! ```
//!
//! So where a segment begins follows from its number and these two sizes, which never change.

/// How a log is divided into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spans {
    first: u64,
    size: u64,
    /// The number of the first segment of full size.
    full: u64,
    /// Where that one begins.
    full_at: u64,
}

impl Spans {
    /// Of a log that begins with a segment of `first` bytes and grows to segments of `size` bytes.
    /// None if no log is divided so.
    pub(crate) fn new(first: u64, size: u64) -> Option<Self> {
        let whole = |bytes: u64| bytes >= 4096 && bytes.is_multiple_of(4096) && bytes <= 1 << 40;
        if !whole(first) || !whole(size) || first > size {
            return None;
        }
        // The largest that is not larger than `size`.
        let doublings = (size / first).ilog2();
        Some(Self { first, size, full: u64::from(doublings) + 1, full_at: first << doublings })
    }

    /// Bytes of the first segment.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Bytes of a segment of full size.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The segment that holds the byte at a place of the log.
    pub(crate) fn number(&self, at: u64) -> u64 {
        match at.checked_sub(self.full_at) {
            Some(rest) => self.full + rest / self.size,
            None if at < self.first => 0,
            None => u64::from((at / self.first).ilog2()) + 1,
        }
    }

    /// Where a segment begins.
    pub(crate) fn start(&self, number: u64) -> u64 {
        match number.checked_sub(self.full) {
            Some(rest) => self.full_at.saturating_add(rest.saturating_mul(self.size)),
            None if number == 0 => 0,
            None => self.first << (number - 1),
        }
    }

    /// Where the segment behind this one begins.
    pub(crate) fn end(&self, number: u64) -> u64 {
        self.start(number.saturating_add(1))
    }

    /// Bytes of a segment.
    pub(crate) fn length(&self, number: u64) -> u64 {
        self.end(number) - self.start(number)
    }

    /// The segments that hold the bytes from `from` to before `to`; none if there are no bytes.
    pub(crate) fn of(&self, from: u64, to: u64) -> core::ops::Range<u64> {
        if from < to { self.number(from)..self.number(to - 1) + 1 } else { 0..0 }
    }

    /// Whether no place has a number beyond those of 64 bits, in a segment of this number and
    /// the one behind it.
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

//! The work under a latch and between acquisitions: cache lines that prove exclusion, and
//! computing.

use core::hint::black_box;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// The speed of this processor, by which nanoseconds become rounds of computing.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    rounds_per_ns: f64,
}

impl Pace {
    /// Measures the speed in about 10 ms. The fastest of many attempts was undisturbed.
    pub fn measure() -> Self {
        const ROUNDS: u32 = 100_000;
        let once = || {
            let start = Instant::now();
            compute(ROUNDS);
            start.elapsed().as_nanos().max(1)
        };
        let best = (0..50).map(|_| once()).min().unwrap_or(1);
        Self { rounds_per_ns: f64::from(ROUNDS) / best as f64 }
    }

    /// The rounds of computing that take `ns` on an otherwise idle core.
    pub fn rounds(&self, ns: u32) -> u32 {
        (f64::from(ns) * self.rounds_per_ns).round() as u32
    }
}

/// Dependent multiplications without memory accesses.
#[inline]
pub(crate) fn compute(rounds: u32) {
    let mut x = 1u64;
    for _ in 0..rounds {
        x = black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

/// Xorshift: the same numbers in each run, different ones in each thread.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: usize) -> Self {
        Self((seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A random number.
    #[inline]
    pub(crate) fn any(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }

    /// `mean` plus or minus up to a half, at random. Threads with constant times would fall into
    /// step.
    #[inline]
    pub(crate) fn around(&mut self, mean: u32) -> u32 {
        mean / 2 + ((u64::from(self.any()) * u64::from(mean)) >> 32) as u32
    }
}

/// Largest number of cache lines of a section.
pub const MAX_LINES: usize = 8;

#[derive(Default)]
#[repr(C, align(64))]
struct Line {
    /// Written first, read first.
    first: AtomicU64,
    /// Not zero while a writer is inside. Used in the first line only.
    inside: AtomicU64,
    filler: [AtomicU64; 5],
    /// Written last, read last.
    last: AtomicU64,
}

/// The protected data.
///
/// Its words are atomic, so a broken latch gives a wrong number instead of undefined behaviour. No
/// access is stronger than a plain load or store, so only the latch keeps the words consistent.
#[derive(Default)]
pub(crate) struct Section {
    lines: [Line; MAX_LINES],
}

/// The size of a section: lines touched, and rounds of computing spread over them.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) lines: usize,
    pub(crate) rounds: u32,
}

impl Section {
    /// The section of an exclusive holder. Returns false if another thread was inside.
    #[inline]
    pub(crate) fn write(&self, extent: Extent) -> bool {
        // Relaxed, also below: the latch under test orders these.
        let alone = self.lines[0].inside.load(Relaxed) == 0;
        self.lines[0].inside.store(1, Relaxed);
        for line in &self.lines[..extent.lines] {
            let next = line.first.load(Relaxed) + 1;
            line.first.store(next, Relaxed);
            compute(extent.rounds / extent.lines as u32);
            line.last.store(next, Relaxed);
        }
        let still_alone = self.lines[0].inside.load(Relaxed) == 1;
        self.lines[0].inside.store(0, Relaxed);
        alone && still_alone
    }

    /// The section of a sharer. Returns false if a writer was inside or came in.
    #[inline]
    pub(crate) fn read(&self, extent: Extent) -> bool {
        let mut quiet = self.lines[0].inside.load(Relaxed) == 0;
        for line in &self.lines[..extent.lines] {
            let seen = line.first.load(Relaxed);
            compute(extent.rounds / extent.lines as u32);
            quiet &= line.last.load(Relaxed) == seen;
        }
        quiet
    }

    /// Whether a writer is inside now.
    #[inline]
    pub(crate) fn occupied(&self) -> bool {
        self.lines[0].inside.load(Relaxed) != 0
    }

    /// The writes seen by the lines: the number of writers if they excluded each other.
    pub(crate) fn writes(&self) -> u64 {
        self.lines[0].last.load(Relaxed)
    }
}

// A section consists of whole cache lines.
const _: () = assert!(size_of::<Line>() == 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_counts_its_writers() {
        let section = Section::default();
        let extent = Extent { lines: 3, rounds: 10 };
        assert!((0..5).all(|_| section.write(extent)) && section.read(extent));
        assert_eq!(section.writes(), 5);
        assert!(!section.occupied());
    }

    #[test]
    fn a_section_notices_company() {
        let section = Section::default();
        let extent = Extent { lines: 1, rounds: 0 };
        section.lines[0].inside.store(1, Relaxed);
        assert!(section.occupied() && !section.read(extent) && !section.write(extent));
        section.lines[0].last.store(7, Relaxed);
        assert!(!section.read(extent), "a torn write");
    }

    #[test]
    fn random_pauses_keep_their_mean() {
        let mut random = Random::new(3);
        let pauses: Vec<u32> = (0..10_000).map(|_| random.around(100)).collect();
        assert!(pauses.iter().all(|p| (50..150).contains(p)));
        let mean = pauses.iter().sum::<u32>() / 10_000;
        assert!((97..103).contains(&mean), "{mean}");
        assert_eq!(random.around(0), 0);
    }
}

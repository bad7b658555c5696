//! Durations of waits by mode, counted in powers of two.

use core::fmt;

use crate::mode::{MODES_MAX, Mode};

/// Number of classes of durations. The last one is unbounded.
pub const WAIT_CLASSES: usize = 40;

/// A histogram of the durations of waits, by the mode that was waited for. 6 kB, of fixed size.
///
/// Class `n` counts the waits of 2^n to 2^(n+1) nanoseconds. The first class also counts shorter
/// waits, and the last one, which begins at 9 minutes, all longer ones. [`merge`](Self::merge) adds
/// the histograms of several sessions.
#[derive(Clone, PartialEq, Eq)]
pub struct Waits {
    /// The set of the modes that were counted, in the high bits of a mode; `None` before the first
    /// wait.
    set: Option<u8>,
    counts: [[u64; WAIT_CLASSES]; MODES_MAX],
    sums: [u64; MODES_MAX],
    longest: [u64; MODES_MAX],
}

impl Default for Waits {
    fn default() -> Self {
        Self::new()
    }
}

impl Waits {
    /// Creates an empty histogram.
    pub const fn new() -> Self {
        Self {
            set: None,
            counts: [[0; WAIT_CLASSES]; MODES_MAX],
            sums: [0; MODES_MAX],
            longest: [0; MODES_MAX],
        }
    }

    /// Counts a wait of this many nanoseconds. A wait for a mode of another set than the first
    /// one's is ignored.
    pub fn add(&mut self, mode: Mode, ns: u64) {
        let at = mode.at();
        if *self.set.get_or_insert(mode.0 & !15) == mode.0 & !15 {
            self.counts[at][class(ns)] += 1;
            self.sums[at] = self.sums[at].saturating_add(ns);
            self.longest[at] = self.longest[at].max(ns);
        }
    }

    /// Adds another histogram.
    ///
    /// If its set of modes differs, modes are added by number.
    pub fn merge(&mut self, other: &Self) {
        self.set = self.set.or(other.set);
        for (counts, more) in self.counts.iter_mut().flatten().zip(other.counts.iter().flatten()) {
            *counts += more;
        }
        for (sum, more) in self.sums.iter_mut().zip(other.sums) {
            *sum = sum.saturating_add(more);
        }
        for (longest, other) in self.longest.iter_mut().zip(other.longest) {
            *longest = (*longest).max(other);
        }
    }

    /// Returns the index of a mode, or `None` if it belongs to another set.
    fn place(&self, mode: Mode) -> Option<usize> {
        (self.set == Some(mode.0 & !15)).then(|| mode.at())
    }

    /// Returns the modes that were waited for.
    pub fn modes(&self) -> impl Iterator<Item = Mode> {
        let set = self.set.unwrap_or(0);
        let all = (0..MODES_MAX as u8).map(move |number| Mode::of(set, number));
        all.filter(|mode| self.count(*mode) != 0)
    }

    /// Returns the number of waits for a mode.
    pub fn count(&self, mode: Mode) -> u64 {
        self.classes(mode).iter().sum()
    }

    /// Returns the number of waits for a mode, by class.
    pub fn classes(&self, mode: Mode) -> [u64; WAIT_CLASSES] {
        self.place(mode).map_or([0; WAIT_CLASSES], |at| self.counts[at])
    }

    /// Returns the total time that requests for a mode waited, in nanoseconds.
    pub fn sum(&self, mode: Mode) -> u64 {
        self.place(mode).map_or(0, |at| self.sums[at])
    }

    /// Returns the longest wait for a mode, in nanoseconds.
    pub fn longest(&self, mode: Mode) -> u64 {
        self.place(mode).map_or(0, |at| self.longest[at])
    }

    /// Returns a duration in nanoseconds that this share of the waits for a mode did not exceed:
    /// the end of the class of that wait, or the longest wait if that is less. Zero without waits.
    pub fn quantile(&self, mode: Mode, share: f64) -> u64 {
        let rank = (share.clamp(0.0, 1.0) * self.count(mode) as f64).ceil() as u64;
        let mut seen = 0;
        for (class, count) in self.classes(mode).iter().enumerate() {
            seen += count;
            if seen != 0 && seen >= rank {
                let end = if class + 1 == WAIT_CLASSES { u64::MAX } else { (2 << class) - 1 };
                return end.min(self.longest(mode));
            }
        }
        0
    }
}

/// Returns the class in which a wait is counted.
fn class(ns: u64) -> usize {
    (ns.max(1).ilog2() as usize).min(WAIT_CLASSES - 1)
}

impl fmt::Debug for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let modes = self.modes().map(|mode| {
            let classes = self.classes(mode).into_iter().enumerate().filter(|(_, n)| *n != 0);
            (mode.number(), classes.collect::<Vec<_>>())
        });
        f.debug_map().entries(modes).finish()
    }
}

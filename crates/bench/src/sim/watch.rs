//! Measurement of a simulated thread.

use std::cell::RefCell;

use hdrhistogram::Histogram;
use latchwork_sim::clock;

/// Operations per thread and their waits.
pub(super) struct Tally {
    pub(super) ops: Vec<u64>,
    pub(super) waits: Histogram<u64>,
}

/// The counting window and the counters.
pub(super) struct Watch<'a> {
    pub(super) me: usize,
    pub(super) from: f64,
    pub(super) until: f64,
    pub(super) tally: &'a RefCell<Tally>,
}

impl Watch<'_> {
    /// Whether the run continues.
    pub(super) fn goes_on(&self) -> bool {
        now() < self.until
    }

    /// Runs an acquisition and records its duration.
    pub(super) fn waited(&self, enter: &mut dyn FnMut()) {
        let asked = now();
        enter();
        self.has_waited(asked, now());
    }

    /// Records the duration of an acquisition.
    pub(super) fn has_waited(&self, asked: f64, got: f64) {
        if asked >= self.from {
            self.tally.borrow_mut().waits.saturating_record((got - asked).max(1.0) as u64);
        }
    }

    /// Counts an operation.
    pub(super) fn done(&self) {
        if (self.from..self.until).contains(&now()) {
            self.tally.borrow_mut().ops[self.me] += 1;
        }
    }
}

/// The simulated time in nanoseconds. Reading it costs no simulated time.
pub(super) fn now() -> f64 {
    clock().map_or(0.0, |(_, ns)| ns)
}

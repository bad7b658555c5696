//! What is measured of a thread.

use std::cell::RefCell;

use hdrhistogram::Histogram;
use latchwork_sim::clock;

/// Operations by thread, and how long they waited.
pub(super) struct Tally {
    pub(super) ops: Vec<u64>,
    pub(super) waits: Histogram<u64>,
}

/// When to count, and the counts.
pub(super) struct Watch<'a> {
    pub(super) me: usize,
    pub(super) from: f64,
    pub(super) until: f64,
    pub(super) tally: &'a RefCell<Tally>,
}

impl Watch<'_> {
    /// Whether the run is not over.
    pub(super) fn goes_on(&self) -> bool {
        now() < self.until
    }

    /// Acquires something, and notes how long that took.
    pub(super) fn waited(&self, enter: &mut dyn FnMut()) {
        let asked = now();
        enter();
        self.has_waited(asked, now());
    }

    /// Notes how long it took to acquire something.
    pub(super) fn has_waited(&self, asked: f64, got: f64) {
        if asked >= self.from {
            self.tally.borrow_mut().waits.saturating_record((got - asked).max(1.0) as u64);
        }
    }

    /// An operation is done.
    pub(super) fn done(&self) {
        if (self.from..self.until).contains(&now()) {
            self.tally.borrow_mut().ops[self.me] += 1;
        }
    }
}

/// Simulated nanoseconds, which it costs nothing to ask for.
pub(super) fn now() -> f64 {
    clock().map_or(0.0, |(_, ns)| ns)
}

//! The clock of measurements and the histograms of times.

use hdrhistogram::Histogram;
use latchwork_machine::{Clock, Machine, Native};

/// Nanoseconds on the monotonic clock, which all processes share.
pub(crate) fn now() -> u64 {
    Native::now(Clock::Monotonic)
}

/// A histogram of times up to an hour, with a precision of 1 %.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 2).expect("valid bounds")
}

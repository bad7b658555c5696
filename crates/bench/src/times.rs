//! The clock of measurements, and where times are collected.

use hdrhistogram::Histogram;
use latchwork_machine::{Clock, Machine, Native};

/// Nanoseconds on the monotonic clock, the same in every process.
pub(crate) fn now() -> u64 {
    Native::now(Clock::Monotonic)
}

/// Times up to an hour, to within a hundredth.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 2).expect("valid bounds")
}

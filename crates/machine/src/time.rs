//! Clocks and deadlines.

use core::time::Duration;

/// The clock of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Never runs backwards. Use this one.
    Monotonic,
    /// Wall-clock time, which an administrator may set: that of POSIX's `timedlock`.
    Realtime,
}

/// The instant at which a waiter gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// The clock.
    pub clock: Clock,
    /// Nanoseconds on that clock.
    pub at: u64,
}

impl Deadline {
    /// Returns the deadline `timeout` from now on a machine's monotonic clock. Saturates after
    /// about 584 years.
    pub fn after<M: crate::Machine>(timeout: Duration) -> Self {
        Self::since(M::now(Clock::Monotonic), timeout)
    }

    /// Returns the deadline `timeout` after an instant of the monotonic clock. Saturates likewise.
    pub fn since(began: u64, timeout: Duration) -> Self {
        let wait = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        Self { clock: Clock::Monotonic, at: began.saturating_add(wait) }
    }

    /// Returns the time that is left; zero when the deadline has passed.
    pub fn left<M: crate::Machine>(&self) -> Duration {
        Duration::from_nanos(self.at.saturating_sub(M::now(self.clock)))
    }

    /// Returns whether the deadline has passed.
    pub fn passed<M: crate::Machine>(&self) -> bool {
        M::now(self.clock) >= self.at
    }
}

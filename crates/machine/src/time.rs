//! Clocks, and when to give up waiting.

use core::time::Duration;

/// Which clock a deadline is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Never goes back; the one to use.
    Monotonic,
    /// The wall's time, which an administrator may set: what POSIX's `timedlock` asks for.
    Realtime,
}

/// An instant at which a waiter gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// The clock that decides.
    pub clock: Clock,
    /// Nanoseconds on that clock.
    pub at: u64,
}

impl Deadline {
    /// `timeout` from now on a machine's monotonic clock. Saturates after some 584 years.
    pub fn after<M: crate::Machine>(timeout: Duration) -> Self {
        Self::since(M::now(Clock::Monotonic), timeout)
    }

    /// `timeout` after an instant of the monotonic clock. As [`after`](Self::after).
    pub fn since(began: u64, timeout: Duration) -> Self {
        let wait = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        Self { clock: Clock::Monotonic, at: began.saturating_add(wait) }
    }

    /// How long it is until then; zero when its time has come.
    pub fn left<M: crate::Machine>(&self) -> Duration {
        Duration::from_nanos(self.at.saturating_sub(M::now(self.clock)))
    }

    /// Whether its time has come.
    pub fn passed<M: crate::Machine>(&self) -> bool {
        M::now(self.clock) >= self.at
    }
}

//! Turns of groups of neighbours at a latch: whether they are given, and the group of a thread.
//!
//! While threads queue, a latch that gives turns lets newcomers of one group enter and makes all
//! others queue. So the line of its word stays with one group of cores, and as many of their
//! sections fit into a turn as threads of the group wait. That pays off if sections are short, so
//! that the threads of one group fully use the word. With long sections it would block the other
//! groups without benefit. A head that arrives while one thread holds the latch measures the
//! section, and stores the result in the word.

use latchwork_machine::{Clock, Level, Machine};

use crate::{Park, Policy};

/// Sections longer than this, in nanoseconds, are long.
///
/// The threads of one group fully use a word if a section and the time between two sections are
/// shorter than as many transfers of its line between sockets as there are threads: 24 of 100 to
/// 140 ns on the simulated machines. A section is a part of that.
const LONG_NS: u64 = 1_000;

/// A head's measurement of a section.
pub(crate) struct Look {
    since: Option<u64>,
}

impl Look {
    /// Begins a measurement, if a thread holds the latch.
    pub(crate) fn new<M: Machine>(held: bool) -> Self {
        Self { since: held.then(|| M::now(Clock::Monotonic)) }
    }

    /// Ends the measurement when the head has the latch. Returns whether the section was short, or
    /// `None` if it was not measured.
    pub(crate) fn is_short<M: Machine>(&self) -> Option<bool> {
        let since = self.since?;
        Some(M::now(Clock::Monotonic).wrapping_sub(since) < LONG_NS)
    }
}

/// Returns this thread's group, 1 to `groups`; zero on a machine without groups. With more groups
/// than numbers, some share a number and take their turns together.
///
/// The result is a hint: if the thread has moved since, that costs only time.
pub(crate) fn group<M: Machine>(groups: u32) -> u32 {
    if M::spread(LEVEL) { M::place().cache() % groups + 1 } else { 0 }
}

/// The level of a group.
pub(crate) const LEVEL: Level = Park::LEVEL;

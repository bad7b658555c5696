//! Whether groups of neighbours are to take turns at a latch, and which group a thread is of.
//!
//! While others queue, a latch that gives turns lets newcomers of one group in and has all others
//! queue. So the line of its word stays with one group of cores, and as many sections of theirs fit
//! into a turn as wait. That pays where sections are short, so that the threads of one group use
//! the word up. Where they are long it would keep the other groups out for nothing. A head that
//! comes while one thread holds the latch sees which it is, and says so in the word.

use latchwork_machine::{Clock, Level, Machine};

use crate::{Park, Policy};

/// A section that lasts longer is a long one, in nanoseconds.
///
/// The threads of one group use a word up if a section and what lies between two take less than as
/// many transfers of its line between sockets as there are threads: 24 of 100 to 140 ns on the
/// simulated machines, of which a section is a part.
const LONG_NS: u64 = 1_000;

/// What a head sees of the length of a section.
pub(crate) struct Look {
    since: Option<u64>,
}

impl Look {
    /// Begins, when one thread is seen to hold the latch, or not.
    pub(crate) fn new<M: Machine>(held: bool) -> Self {
        Self { since: held.then(|| M::now(Clock::Monotonic)) }
    }

    /// Ends, when the head has the latch: whether sections are short, if that was seen.
    pub(crate) fn is_short<M: Machine>(&self) -> Option<bool> {
        let since = self.since?;
        Some(M::now(Clock::Monotonic).wrapping_sub(since) < LONG_NS)
    }
}

/// This thread's group, 1 to `groups`; zero on a machine without groups. Where there are more some
/// have the same number, and their turns together.
///
/// A hint: a thread that has moved since costs time and nothing else.
pub(crate) fn group<M: Machine>(groups: u32) -> u32 {
    if M::spread(LEVEL) { M::place().cache() % groups + 1 } else { 0 }
}

/// What makes a group.
pub(crate) const LEVEL: Level = Park::LEVEL;

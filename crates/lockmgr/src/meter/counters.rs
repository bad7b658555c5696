//! Counters of a session, in its own memory.

use core::cell::Cell;

/// Counters of a session. They are stored in its own memory, so counting touches no shared line.
/// Add the counters of several sessions with `+=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Requests for locks.
    pub requests: u64,
    /// Requests granted in the owner's own memory.
    pub weak: u64,
    /// Requests granted in the table, immediately or after a wait.
    pub granted: u64,
    /// Requests that waited. [`Session::waits`](crate::Session::waits) has the durations.
    pub waits: u64,
    /// Waits that ended because the owner was the victim of a deadlock.
    pub victims: u64,
    /// Waits that ended because the owner was wounded or aborted.
    pub aborted: u64,
    /// Waits that ended at their deadline.
    pub timeouts: u64,
    /// Waits that their owner cancelled.
    pub withdrawn: u64,
    /// Deadlocks that this session broke by aborting a victim.
    pub deadlocks: u64,
    /// Deadlocks that it broke by moving a waiter.
    pub reordered: u64,
    /// Dead threads that this session swept.
    pub swept: u64,
    /// Owners of dead threads that it kept for recovery.
    pub orphans: u64,
}

impl Stats {
    /// Returns the share of all grants that were made in the owner's own memory: 0 to 1, and 1
    /// without grants.
    pub fn fast_share(&self) -> f64 {
        match self.weak + self.granted {
            0 => 1.0,
            all => self.weak as f64 / all as f64,
        }
    }
}

/// Each counter is a word of its own, so that counting touches no other.
macro_rules! counters {
    ($($name:ident: $field:ident),* $(,)?) => {
        #[derive(Default)]
        pub(crate) struct Counters {
            $($field: Cell<u64>,)*
        }

        impl Counters {
            $(#[inline(always)]
            pub(crate) fn $name(&self) {
                self.$field.set(self.$field.get() + 1);
            })*

            pub(crate) fn read(&self) -> Stats {
                Stats { $($field: self.$field.get(),)* }
            }
        }

        impl core::ops::AddAssign for Stats {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

counters!(
    request: requests,
    weak: weak,
    granted: granted,
    waited: waits,
    deadlock: deadlocks,
    reordered: reordered,
    victim: victims,
    aborted: aborted,
    timed_out: timeouts,
    withdrawn: withdrawn,
    swept: swept,
    orphaned: orphans,
);

//! What a session has done, counted in its own memory.

use core::cell::Cell;

/// What a session has done; kept in its own memory, so that counting costs nobody else. Those of
/// several sessions are added up with `+=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Requests for locks.
    pub requests: u64,
    /// Granted in the owner's own memory.
    pub weak: u64,
    /// Granted in the table, at once or later.
    pub granted: u64,
    /// Requests that had to wait. How long they did is in
    /// [`Session::waits`](crate::Session::waits).
    pub waits: u64,
    /// Waits that ended because the owner was the victim of a deadlock.
    pub victims: u64,
    /// Waits that ended because the owner was wounded or told to fail.
    pub aborted: u64,
    /// Waits that ended at their deadline.
    pub timeouts: u64,
    /// Waits that their owner gave up.
    pub withdrawn: u64,
    /// Deadlocks that this session broke by a victim.
    pub deadlocks: u64,
    /// Deadlocks that it broke by moving a waiter.
    pub reordered: u64,
    /// Dead threads that it put right.
    pub swept: u64,
    /// Owners of those that it kept for recovery.
    pub orphans: u64,
}

impl Stats {
    /// The share of all grants that were made in the owner's own memory, on no shared line: 0 to 1;
    /// 1 if there were none.
    pub fn fast_share(&self) -> f64 {
        match self.weak + self.granted {
            0 => 1.0,
            all => self.weak as f64 / all as f64,
        }
    }
}

/// Each a word of its own, so that counting one touches no other.
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

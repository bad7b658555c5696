//! Counts of a thread for [`Store::metrics`](crate::Store::metrics): words of its slot, after the
//! lines of `shared.rs`.
//!
//! Only the thread that has the slot writes them, so a count is a load and a store on a line that
//! no other thread writes. They outlive the thread and its process: the next thread with the slot
//! adds to them. A killed process loses the counts that it had not published, at most those of the
//! last 48 commits of each thread.

use core::sync::atomic::Ordering::Relaxed;

use latchwork_lockmgr::Error as LocksError;
use latchwork_machine::{Clock, ConstMachine, Word};

use crate::Error;
use crate::files::shared::{LINE, METER, SLOTS, Shared};

/// The upper bounds of the buckets of commits, in microseconds. One more bucket counts the rest.
pub(crate) const BOUNDS: [u64; 11] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 1_000_000];

/// Reasons of rollbacks, in the order of their words.
pub(crate) const REASONS: [&str; 6] =
    ["deadlock", "timeout", "too_old", "no_space", "rejected", "other"];

/// Words of a slot: the buckets of commits come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    CommitNs = BOUNDS.len() as isize + 1,
    /// The first of the reasons.
    Aborts,
    LockWaits = Self::Aborts as isize + REASONS.len() as isize,
    LockNs,
    Checkpoints,
    CheckpointNs,
    CheckpointsFailed,
    Syncs,
    Reads,
    Writes,
    BytesRead,
    BytesWritten,
    Punched,
}

const _: () = assert!((Count::Punched as u64) < METER);

/// The counts of its lock session that a worker has published.
#[derive(Clone, Copy, Default)]
pub(crate) struct Locked {
    pub(crate) waits: u64,
    pub(crate) ns: u64,
}

/// Returns the monotonic clock in nanoseconds.
pub(crate) fn now<M: ConstMachine>() -> u64 {
    M::now(Clock::Monotonic)
}

/// Returns the index of the reason of a rollback.
pub(crate) fn reason(why: Option<&Error>) -> u64 {
    match why {
        None | Some(Error::Rejected(_)) => 4,
        Some(Error::Aborted { why }) => reason(Some(why)),
        Some(Error::Lock { why, .. } | Error::Locks(why)) => match why {
            LocksError::Deadlock(_) => 0,
            LocksError::TimedOut | LocksError::NotGranted => 1,
            _ => 5,
        },
        Some(Error::Deadline { .. }) => 1,
        Some(Error::TransactionTooOld | Error::SnapshotTooOld { .. }) => 2,
        Some(why) if why.is_no_space() => 3,
        Some(_) => 5,
    }
}

impl<M: ConstMachine> Shared<M> {
    fn meter(&self, slot: u64, word: u64) -> Result<&M::AtomicU64, Error> {
        self.word(SLOTS + self.slots * LINE + slot * METER + word)
    }

    /// Adds to a word of a slot. Called by the thread that has the slot.
    pub(crate) fn add(&self, slot: u16, word: u64, n: u64) {
        if n != 0
            && let Ok(word) = self.meter(u64::from(slot), word)
        {
            // Relaxed, both: a count that no other thread writes.
            word.store(word.load(Relaxed).wrapping_add(n), Relaxed);
        }
    }

    /// Returns the sums over all slots.
    pub(crate) fn metered(&self) -> Result<[u64; METER as usize], Error> {
        let mut sums = [0_u64; METER as usize];
        for slot in 0..self.slots.min(u64::from(self.log.slots_high())) {
            for (word, sum) in (0..).zip(&mut sums) {
                *sum = sum.wrapping_add(self.meter(slot, word)?.load(Relaxed));
            }
        }
        Ok(sums)
    }
}

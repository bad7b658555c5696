//! Waiting of a leader for the threads that the last sync released.
//!
//! Without it, n threads that commit again and again form two groups: those that the last sync
//! released find the next one begun, without them, and each commit takes two syncs. So a leader
//! waits until as many threads have asked for durability as the last sync released, or until none
//! has asked for a quarter of the time that the last sync took, and not longer than that sync.
//!
//! If the threads do not come back in time, because they do other work between two commits, the
//! next [`SKIPPED`] groups are not waited for. A thread that commits alone waits only if the last
//! sync was for several threads, and so at most once.
//!
//! All orderings are Relaxed: the words are hints, and a wrong one costs a part of a sync's time.

use core::sync::atomic::Ordering::Relaxed;

use latchwork_machine::{Clock, Integer, Machine, Word};

/// The number of groups that are not waited for after one that did not come.
const SKIPPED: u64 = 31;
/// The longest wait in nanoseconds, for slow disks: there it saves little.
const LONGEST: u64 = 1_000_000;
/// The longest wait in yields, for a clock that stands still.
const YIELDS: u32 = 10_000;

/// The state that leaders share.
#[repr(C, align(64))]
pub(crate) struct Gather<M: Machine> {
    /// How many calls had to wait for durability.
    asked: M::AtomicU64,
    /// The value of `asked` when the threads that the last sync released are back; or zero.
    expected: M::AtomicU64,
    /// How long the last sync took, in nanoseconds.
    sync: M::AtomicU64,
    /// The number of groups that are not waited for.
    skip: M::AtomicU64,
}

impl<M: Machine> Gather<M> {
    /// Counts a call that has to wait for durability, if calls are expected.
    pub(crate) fn ask(&self) {
        if self.expected.load(Relaxed) != 0 {
            self.asked.fetch_add(1, Relaxed);
        }
    }

    /// Waits for the threads that the last sync released.
    pub(crate) fn wait(&self) {
        let expected = self.expected.load(Relaxed);
        if expected == 0 {
            return;
        }
        let sync = self.sync.load(Relaxed).min(LONGEST);
        let begun = M::now(Clock::Monotonic);
        let (mut asked, mut last) = (0, begun);
        for _ in 0..YIELDS {
            let now = M::now(Clock::Monotonic);
            let seen = self.asked.load(Relaxed);
            if seen >= expected {
                return;
            }
            if seen != asked {
                (asked, last) = (seen, now);
            }
            if now.saturating_sub(last) > sync / 4 || now.saturating_sub(begun) > sync {
                break;
            }
            M::yield_now();
        }
        self.skip.store(SKIPPED, Relaxed);
    }

    /// Records that a sync that began at `begun` has ended, and releases `others` threads beside
    /// the leader.
    pub(crate) fn synced(&self, begun: u64, others: u64) {
        let skip = self.skip.load(Relaxed);
        let is_expected = others > 0 && skip == 0;
        if others > 0 {
            self.skip.store(skip.saturating_sub(1), Relaxed);
            self.sync.store(M::now(Clock::Monotonic).saturating_sub(begun), Relaxed);
        }
        let asked = self.asked.load(Relaxed);
        let expected = if is_expected { asked.wrapping_add(others + 1) } else { 0 };
        self.expected.store(expected, Relaxed);
    }
}

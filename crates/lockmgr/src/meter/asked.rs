//! Counts how often a session requests a name, to choose names to reserve.

use core::cell::Cell;

/// Request counters of a session.
const COUNTERS: usize = 512;

/// How often the required number of requests may be doubled.
const DOUBLED: u32 = 8;

/// Counts the requests of a session for one name.
#[derive(Default)]
struct RequestCounter {
    /// The low half of the name's hash; rarely equal for two names.
    tag: Cell<u32>,
    times: Cell<u32>,
    /// How often the reservation of the name was given up since the first one.
    closed: Cell<u32>,
    /// Whether another name mapped to the counter since the last request for this one.
    doubted: Cell<bool>,
}

/// Names that a session requests often.
pub(crate) struct RequestCounters([RequestCounter; COUNTERS]);

impl Default for RequestCounters {
    fn default() -> Self {
        Self(core::array::from_fn(|_| RequestCounter::default()))
    }
}

impl RequestCounters {
    /// Returns the counter of a hash, and its tag there.
    #[inline(always)]
    fn of(&self, hash: u64) -> (&RequestCounter, u32) {
        (&self.0[(hash >> 23) as usize % COUNTERS], hash as u32)
    }

    /// Counts a request. Returns whether the name should be reserved now.
    #[inline]
    pub(crate) fn asked(&self, hash: u64, after: u32) -> bool {
        let (counter, tag) = self.of(hash);
        if counter.tag.get() != tag {
            // A second request of another name replaces a name that was not requested in between.
            if counter.times.get() == 0 || counter.doubted.replace(true) {
                counter.tag.set(tag);
                counter.times.set(1);
                counter.closed.set(0);
                counter.doubted.set(false);
            }
            return after == 1;
        }
        counter.doubted.set(false);
        counter.times.set(counter.times.get().saturating_add(1));
        after != 0 && counter.times.get() >> counter.closed.get() >= after
    }

    /// Restarts the count of a name that was reserved or cannot be.
    pub(crate) fn begin(&self, hash: u64) {
        let (counter, tag) = self.of(hash);
        if counter.tag.get() == tag {
            counter.times.set(1);
        }
    }

    /// Records that a reservation was given up: another owner requested the name, or its entry was
    /// needed.
    pub(crate) fn closed(&self, hash: u64) {
        let (counter, tag) = self.of(hash);
        if counter.tag.get() == tag {
            counter.closed.set((counter.closed.get() + 1).min(DOUBLED));
        }
        self.begin(hash);
    }
}

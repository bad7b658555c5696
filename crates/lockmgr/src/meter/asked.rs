//! How often a session asked for a name.

use core::cell::Cell;

/// Request counters of a session.
const COUNTERS: usize = 512;

/// How often the number of times may be doubled.
const DOUBLED: u32 = 8;

/// How often a session asked for a name.
#[derive(Default)]
struct RequestCounter {
    /// Of the name: equal for equal ones, and nearly always different for others.
    tag: Cell<u32>,
    times: Cell<u32>,
    /// How often it was given up since it was first kept.
    closed: Cell<u32>,
    /// Whether another name wanted the counter since this one came by.
    doubted: Cell<bool>,
}

/// Names that a session asks for often.
pub(crate) struct RequestCounters([RequestCounter; COUNTERS]);

impl Default for RequestCounters {
    fn default() -> Self {
        Self(core::array::from_fn(|_| RequestCounter::default()))
    }
}

impl RequestCounters {
    /// The counter of a hash, and its tag there.
    #[inline(always)]
    fn of(&self, hash: u64) -> (&RequestCounter, u32) {
        (&self.0[(hash >> 23) as usize % COUNTERS], hash as u32)
    }

    /// Counts a request, and returns whether there were so many that the name is to be kept.
    #[inline]
    pub(crate) fn asked(&self, hash: u64, after: u32) -> bool {
        let (counter, tag) = self.of(hash);
        if counter.tag.get() != tag {
            // A name that does not come back goes at the second try of one that does.
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

    /// Begins to count a name anew: it was kept, or could not be.
    pub(crate) fn begin(&self, hash: u64) {
        let (counter, tag) = self.of(hash);
        if counter.tag.get() == tag {
            counter.times.set(1);
        }
    }

    /// Notes that a name that was kept is not any more: others wanted it, or the room.
    pub(crate) fn closed(&self, hash: u64) {
        let (counter, tag) = self.of(hash);
        if counter.tag.get() == tag {
            counter.closed.set((counter.closed.get() + 1).min(DOUBLED));
        }
        self.begin(hash);
    }
}

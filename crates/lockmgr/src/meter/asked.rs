//! How often a session asked for a name.

use core::cell::Cell;

/// Seats of a session.
const SEATS: usize = 512;

/// How often the number of times may be doubled.
const DOUBLED: u32 = 8;

/// How often a session asked for a name.
#[derive(Default)]
struct Seat {
    /// Of the name: equal for equal ones, and nearly always different for others.
    tag: Cell<u32>,
    times: Cell<u32>,
    /// How often it was given up since it was first kept.
    closed: Cell<u32>,
    /// Whether another name wanted the seat since this one came by.
    doubted: Cell<bool>,
}

/// Names that a session asks for often.
pub(crate) struct Seats([Seat; SEATS]);

impl Default for Seats {
    fn default() -> Self {
        Self(core::array::from_fn(|_| Seat::default()))
    }
}

impl Seats {
    /// The seat of a hash, and its tag there.
    #[inline(always)]
    fn of(&self, hash: u64) -> (&Seat, u32) {
        (&self.0[(hash >> 23) as usize % SEATS], hash as u32)
    }

    /// Counts a request, and returns whether there were so many that the name is to be kept.
    #[inline]
    pub(crate) fn asked(&self, hash: u64, after: u32) -> bool {
        let (seat, tag) = self.of(hash);
        if seat.tag.get() != tag {
            // A name that does not come back goes at the second try of one that does.
            if seat.times.get() == 0 || seat.doubted.replace(true) {
                seat.tag.set(tag);
                seat.times.set(1);
                seat.closed.set(0);
                seat.doubted.set(false);
            }
            return after == 1;
        }
        seat.doubted.set(false);
        seat.times.set(seat.times.get().saturating_add(1));
        after != 0 && seat.times.get() >> seat.closed.get() >= after
    }

    /// Begins to count a name anew: it was kept, or could not be.
    pub(crate) fn begin(&self, hash: u64) {
        let (seat, tag) = self.of(hash);
        if seat.tag.get() == tag {
            seat.times.set(1);
        }
    }

    /// Notes that a name that was kept is not any more: others wanted it, or the room.
    pub(crate) fn closed(&self, hash: u64) {
        let (seat, tag) = self.of(hash);
        if seat.tag.get() == tag {
            seat.closed.set((seat.closed.get() + 1).min(DOUBLED));
        }
        self.begin(hash);
    }
}

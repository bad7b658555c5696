//! What a handle has done: counted in its own memory, so that a read counts without a store that
//! others notice.

use core::cell::Cell;

use crate::FileId;
use crate::layout::{FILES, place_of};

/// Classes of length: the last one has no end.
pub const TIME_CLASSES: usize = 40;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),*) => {
        /// What a handle has done.
        #[derive(Debug, Default)]
        pub(crate) struct Counts { $(pub(crate) $name: Cell<u64>),* }

        /// What all handles have done that stored their counts, those of dead threads among them.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats { $($(#[$doc])* pub $name: u64),* }

        impl Counts {
            /// All counts, each taken and set to zero.
            pub(crate) fn take(&self) -> Vec<u64> { vec![$(self.$name.take()),*] }
            /// All counts.
            pub(crate) fn look(&self) -> Vec<u64> { vec![$(self.$name.get()),*] }
        }

        impl Stats {
            /// Names and values, in one order.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
            pub(crate) fn add(&mut self, mut next: impl FnMut(u64) -> u64) {
                let mut at = 0;
                $(self.$name = self.$name.wrapping_add(next(at)); at += 1;)*
                let _ = at;
            }
        }
    };
}

counts! {
    /// Optimistic reads that found their page at once, to the next 32.
    reads,
    /// Reads that had to begin again because a writer came in between.
    restarts,
    /// Reads that did not find their page at once: it was not there, or a writer had it.
    slow,
    /// Reference marks that reads stored: the only store of a read that found its page.
    marked,
    /// Reads that shared the latch, after too many restarts.
    fallbacks,
    /// Pages read from disk.
    faults,
    /// Pages that could not be read.
    failed,
    /// Pages evicted.
    evicted,
    /// Evictions that had to write pages out first.
    evicted_dirty,
    /// Pages written out.
    written,
    /// Frames taken over from dead threads.
    repaired,
    /// Pages left half changed that could not be rebuilt then.
    poisoned,
    /// Pages rebuilt.
    rebuilt,
    /// Pages freed.
    freed,
    /// Pages made under the number of one that was freed.
    reused,
    /// Pages read before they were asked for.
    prefetched
}

/// What a handle has counted by file, and how long it waited; not stored yet.
pub(crate) struct Meter {
    /// By the files' places.
    pub(crate) files: Box<[Cell<Done>; FILES as usize]>,
    /// Waits, by class.
    pub(crate) waited: [Cell<u64>; TIME_CLASSES],
}

/// What was done with the file of this number.
#[derive(Clone, Copy, Default)]
pub(crate) struct Done {
    pub(crate) number: u16,
    pub(crate) reads: u64,
    pub(crate) waits: u64,
}

impl Default for Meter {
    fn default() -> Self {
        let files = Box::new(core::array::from_fn(|_| Cell::default()));
        Self { files, waited: [const { Cell::new(0) }; TIME_CLASSES] }
    }
}

impl Meter {
    /// Counts something done with a file. What was counted of another one, which had its place
    /// before, is forgotten.
    pub(crate) fn of_file(&self, file: FileId, count: impl FnOnce(&mut Done)) {
        let place = &self.files[usize::from(place_of(file.number))];
        let mut done = place.get();
        if done.number != file.number {
            done = Done { number: file.number, ..Done::default() };
        }
        count(&mut done);
        place.set(done);
    }
}

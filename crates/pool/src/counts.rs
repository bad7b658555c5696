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
    files: Box<[Cell<Done>; FILES as usize]>,
    /// The places of which something was counted, a bit each.
    touched: [Cell<u64>; FILES as usize / 64],
    /// Waits, by class.
    waited: Cell<[u64; TIME_CLASSES]>,
    waits: Cell<bool>,
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
        Self {
            files: Box::new(core::array::from_fn(|_| Cell::default())),
            touched: Default::default(),
            waited: Cell::new([0; TIME_CLASSES]),
            waits: Cell::default(),
        }
    }
}

impl Meter {
    /// Counts something done with a file. What was counted of another one, which had its place
    /// before, is forgotten.
    pub(crate) fn of_file(&self, file: FileId, count: impl FnOnce(&mut Done)) {
        let at = usize::from(place_of(file.number));
        let (place, touched) = (&self.files[at], &self.touched[at / 64]);
        touched.set(touched.get() | 1 << (at % 64));
        let mut done = place.get();
        if done.number != file.number {
            done = Done { number: file.number, ..Done::default() };
        }
        count(&mut done);
        place.set(done);
    }

    /// Counts a wait of this class.
    pub(crate) fn wait(&self, class: usize) {
        let mut waited = self.waited.get();
        waited[class] += 1;
        self.waited.set(waited);
        self.waits.set(true);
    }

    /// What was counted by file since the last call: a look at few words if that is little.
    pub(crate) fn take_files(&self, mut each: impl FnMut(Done)) {
        for (word, touched) in self.touched.iter().enumerate() {
            let mut bits = touched.take();
            while bits != 0 {
                each(self.files[word * 64 + bits.trailing_zeros() as usize].take());
                bits &= bits - 1;
            }
        }
    }

    /// The waits since the last call, by class; none if there were none.
    pub(crate) fn take_waits(&self) -> Option<[u64; TIME_CLASSES]> {
        self.waits.take().then(|| self.waited.replace([0; TIME_CLASSES]))
    }
}

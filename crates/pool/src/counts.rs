//! Counts of a handle's operations, in its own memory, so that a read counts without a store that
//! other threads notice.

use core::cell::Cell;

use crate::FileId;
use crate::layout::{FILES, place_of};

/// Number of duration classes. The last one has no upper bound.
pub const TIME_CLASSES: usize = 40;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),*) => {
        /// The counts of a handle.
        #[derive(Debug, Default)]
        pub(crate) struct Counts { $(pub(crate) $name: Cell<u64>),* }

        /// The sum of the counts that all handles have stored, including those of dead threads.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats { $($(#[$doc])* pub $name: u64),* }

        impl Counts {
            /// Returns all counts and sets them to zero.
            pub(crate) fn take(&self) -> Vec<u64> { vec![$(self.$name.take()),*] }
            /// Returns all counts.
            pub(crate) fn look(&self) -> Vec<u64> { vec![$(self.$name.get()),*] }
        }

        impl Stats {
            /// Returns names and values in a fixed order.
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
    /// Optimistic reads that found their page at once, rounded to 32.
    reads,
    /// Reads that started again because of a concurrent writer.
    restarts,
    /// Reads that did not find their page at once: it was not cached, or a writer held it.
    slow,
    /// Reference marks that reads stored: the only store of a read that finds its page.
    marked,
    /// Reads that shared the latch, after too many restarts.
    fallbacks,
    /// Pages read from disk.
    faults,
    /// Pages that could not be read.
    failed,
    /// Pages evicted.
    evicted,
    /// Evictions that first had to write pages.
    evicted_dirty,
    /// Pages written out.
    written,
    /// Frames taken over from dead threads.
    repaired,
    /// Pages left half changed that could not be rebuilt at that time.
    poisoned,
    /// Pages rebuilt.
    rebuilt,
    /// Pages freed.
    freed,
    /// Pages created under the number of a freed page.
    reused,
    /// Pages read before they were requested.
    prefetched
}

/// A handle's counts by file and its wait times, not stored yet.
pub(crate) struct Meter {
    /// By the files' places in the table.
    files: Box<[Cell<Done>; FILES as usize]>,
    /// The places with counts, one bit each.
    touched: [Cell<u64>; FILES as usize / 64],
    /// Waits, by class.
    waited: Cell<[u64; TIME_CLASSES]>,
    waits: Cell<bool>,
}

/// Operations on the file of this number.
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
    /// Counts an operation on a file. Counts of an earlier file in the same place are dropped.
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

    /// Calls `each` with the counts by file since the last call. Reads few words if few files were
    /// counted.
    pub(crate) fn take_files(&self, mut each: impl FnMut(Done)) {
        for (word, touched) in self.touched.iter().enumerate() {
            let mut bits = touched.take();
            while bits != 0 {
                each(self.files[word * 64 + bits.trailing_zeros() as usize].take());
                bits &= bits - 1;
            }
        }
    }

    /// Returns the waits since the last call, by class; none if there were none.
    pub(crate) fn take_waits(&self) -> Option<[u64; TIME_CLASSES]> {
        self.waits.take().then(|| self.waited.replace([0; TIME_CLASSES]))
    }
}

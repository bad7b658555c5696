//! Counts for each file and durations of slow operations, in words that all processes share.
//!
//! A handle counts reads that find their page, and waits, in its own memory, and adds them to the
//! shared words periodically. Operations that access the disk are counted in the shared words at
//! once.

use core::sync::atomic::Ordering::Relaxed;

use latchwork_machine::{Clock, ConstMachine, Integer, Word};

use crate::counts::TIME_CLASSES;
use crate::layout::{Desc, FILE_COUNTS, TIMES_AT, file_at, untag};
use crate::point::point;
use crate::{Error, FileId, Handle, Pool};

/// A timed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timed {
    /// A page read from disk, from the request to the page, including the eviction that it needed.
    Fault,
    /// A page written, including the log flush that it needed.
    Write,
    /// A wait for a thread that had the page.
    Wait,
}

impl Timed {
    /// All timed operations.
    pub const ALL: [Self; 3] = [Self::Fault, Self::Write, Self::Wait];

    /// Returns its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fault => "fault",
            Self::Write => "write",
            Self::Wait => "wait",
        }
    }

    fn at(self, class: usize) -> u64 {
        TIMES_AT + self as u64 * 64 + class as u64
    }
}

/// Durations of an operation: class `n` counts those of 2^n to 2^(n+1) nanoseconds, the first also
/// those of zero, the last (from 9 minutes) also all longer ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times(pub [u64; TIME_CLASSES]);

impl Times {
    /// Returns the number of operations.
    pub fn count(&self) -> u64 {
        self.0.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the nanoseconds that this share of the operations did not exceed: the end of its
    /// class. Zero without operations.
    pub fn quantile(&self, share: f64) -> u64 {
        let rank = (share.clamp(0.0, 1.0) * self.count() as f64).ceil() as u64;
        let mut seen = 0;
        for (class, count) in self.0.iter().enumerate() {
            seen = count.saturating_add(seen);
            if seen != 0 && seen >= rank {
                return if class + 1 == TIME_CLASSES { u64::MAX } else { (2 << class) - 1 };
            }
        }
        0
    }
}

macro_rules! file_counts {
    ($($(#[$doc:meta])* $name:ident $count:ident),*) => {
        /// Counts of operations on a file's pages, by all processes since the region was created.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct FileStats { $($(#[$doc])* pub $name: u64),* }

        #[derive(Clone, Copy)]
        pub(crate) enum FileCount { $($count),* }

        impl FileStats {
            /// Returns names and values in a fixed order.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }

        impl<M: ConstMachine> Pool<M> {
            /// Returns the counts of a file.
            ///
            /// # Errors
            ///
            /// [`Error::NoFile`]; [`Error::Region`] in the child of a fork.
            pub fn file_stats(&self, file: FileId) -> Result<FileStats, Error> {
                self.kind(file.number)?;
                Ok(FileStats {
                    // Relaxed: counts.
                    $($name: self.file_count(file.number, FileCount::$count)?.load(Relaxed)),*
                })
            }
        }
    };
}

file_counts! {
    /// Reads that found their page at once: stored by each handle periodically, in steps of 32.
    reads Reads,
    /// Pages read from disk because a thread requested them, without those that were
    /// [prefetched](Handle::prefetch).
    faults Faults,
    /// Pages that could not be read.
    failed Failed,
    /// Pages evicted.
    evicted Evicted,
    /// Pages written out.
    written Written,
    /// Reads and writes that waited for a thread that had the page: stored like `reads`.
    waits Waits
}

impl FileStats {
    /// Returns the share of the reads that found their page in the pool; 1 before the first.
    pub fn hit_rate(&self) -> f64 {
        let looks = self.reads as f64 + self.faults as f64 + self.failed as f64;
        if looks == 0.0 { 1.0 } else { self.reads as f64 / looks }
    }
}

/// Returns the class of a duration in nanoseconds.
fn class_of(ns: u64) -> usize {
    (ns.max(1).ilog2() as usize).min(TIME_CLASSES - 1)
}

/// Returns nanoseconds on the monotonic clock.
pub(crate) fn now<M: ConstMachine>() -> u64 {
    M::now(Clock::Monotonic)
}

impl<M: ConstMachine> Pool<M> {
    fn file_count(&self, file: u16, count: FileCount) -> Result<&M::AtomicU64, Error> {
        Ok(self.inner.head.word(file_at(file, FILE_COUNTS + count as u64))?)
    }

    pub(crate) fn count_of(&self, file: u16, count: FileCount, n: u64) {
        if let Ok(word) = self.file_count(file, count) {
            // Relaxed: a count.
            word.fetch_add(n, Relaxed);
        }
    }

    /// Returns the durations of an operation in all processes since the region was created.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] in the child of a fork.
    pub fn times(&self, of: Timed) -> Result<Times, Error> {
        let mut times = Times([0; TIME_CLASSES]);
        for (class, count) in times.0.iter_mut().enumerate() {
            // Relaxed: a count.
            *count = self.inner.head.word(of.at(class))?.load(Relaxed);
        }
        Ok(times)
    }
}

impl<M: ConstMachine> Handle<'_, M> {
    /// Counts an operation that began at `from`, by [`now`], and has ended.
    pub(crate) fn took(&self, what: Timed, from: u64) {
        let class = class_of(now::<M>().saturating_sub(from));
        if let Ok(word) = self.pool().inner.head.word(what.at(class)) {
            // Relaxed: a count.
            word.fetch_add(1, Relaxed);
        }
    }

    /// Waits for a thread that has a page of this file, and counts the wait.
    #[cold]
    pub(crate) fn waited<R>(&self, file: FileId, wait: impl FnOnce() -> R) -> R {
        point("page.waits");
        let from = now::<M>();
        let result = wait();
        let class = class_of(now::<M>().saturating_sub(from));
        self.meter.of_file(file, |done| done.waits += 1);
        self.meter.wait(class);
        result
    }

    /// Adds the handle's counts by file and wait times to the shared counts.
    pub(crate) fn store_meter(&self) {
        let pool = self.pool();
        self.meter.take_files(|done| {
            // Counts of a removed file are dropped.
            if pool.kind(done.number).is_ok() {
                pool.count_of(done.number, FileCount::Reads, done.reads);
                pool.count_of(done.number, FileCount::Waits, done.waits);
            }
        });
        let Some(waited) = self.meter.take_waits() else { return };
        for (class, count) in waited.into_iter().enumerate().filter(|(_, count)| *count != 0) {
            if let Ok(word) = pool.inner.head.word(Timed::Wait.at(class)) {
                // Relaxed: a count.
                word.fetch_add(count, Relaxed);
            }
        }
    }

    /// Counts an eviction of a frame's page, whose latch is held.
    pub(crate) fn count_evicted(&self, desc: &Desc<M>) {
        self.count(|counts| &counts.evicted);
        if let Some((file, _)) = untag(desc.tag.load(Relaxed)) {
            self.pool().count_of(file, FileCount::Evicted, 1);
        }
    }
}

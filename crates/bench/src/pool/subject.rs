//! Who keeps the pages.

use core::fmt;
use std::path::Path;

/// Whose pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Ours.
    Pool,
    /// Berkeley DB's.
    BerkeleyDb,
    /// A mapping of the file.
    Mmap,
    /// A system call for each read.
    Pread,
}

impl Subject {
    /// All of them, ours first.
    pub const ALL: [Self; 4] = [Self::Pool, Self::BerkeleyDb, Self::Mmap, Self::Pread];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::BerkeleyDb => "berkeley-db",
            Self::Mmap => "mmap",
            Self::Pread => "pread",
        }
    }
}

/// Why a measurement is worth nothing. Time alone never is a reason.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The subject refused.
    Refused {
        /// Whose pool.
        subject: Subject,
        /// What it said.
        why: String,
    },
    /// A page's bytes were not those that were put there.
    Wrong {
        /// Whose pool.
        subject: Subject,
        /// The page.
        page: u32,
        /// What was found.
        found: u64,
    },
    /// The optimistic path of ours was never taken.
    NeverOptimistic {
        /// In which workload.
        workload: &'static str,
    },
    /// The file of pages could not be made.
    File(std::io::Error),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { subject, why } => write!(f, "{}: {why}", subject.name()),
            Self::Wrong { subject, page, found } => {
                write!(f, "{}: page {page} holds {found}", subject.name())
            }
            Self::NeverOptimistic { workload } => {
                write!(f, "pool: no read of {workload} took the optimistic path")
            }
            Self::File(error) => write!(f, "the file of pages: {error}"),
        }
    }
}

impl core::error::Error for Fault {}

/// What was done in a window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    pub(super) operations: u64,
    /// Reads by the optimistic path; only ours has one.
    pub(super) optimistic: u64,
    /// Stores of reads where other threads load; only ours counts them.
    pub(super) stores: u64,
    pub(super) faults: u64,
}

/// The value that page `page` holds at first. Each change adds one.
pub(super) const fn value(page: u32) -> u64 {
    (page as u64) << 32
}

/// A pool of somebody's, to be used by many threads.
pub(super) trait Keeper: Send + Sync {
    /// Makes the file, or opens it, with `pages` pages.
    fn open(file: &Path, frames: u32, pages: u32) -> Result<Self, String>
    where
        Self: Sized;

    /// Runs `work` on this thread with what reads and what adds one.
    fn with(
        &self,
        work: &mut dyn FnMut(&mut dyn Uses) -> Result<Done, Fault>,
    ) -> Result<Done, Fault>;
}

/// A thread's use of a pool: a batch at a time, so that the call costs nothing.
pub(super) trait Uses {
    /// Does the operations, and checks what is read. Says why it could not.
    fn batch(&mut self, operations: &[super::work::Operation]) -> Result<(), Fault>;

    /// What was done, the operations aside.
    fn done(&mut self) -> Done {
        Done::default()
    }
}

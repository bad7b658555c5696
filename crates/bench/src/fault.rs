//! Why a benchmark failed.

use core::fmt;
use std::time::Duration;

/// What makes a measurement worthless, or shows that a latch is broken. Time alone never does.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Two threads were inside at once.
    Overlap {
        /// Whose latch.
        subject: &'static str,
        /// In which cell.
        cell: String,
        /// Sections entered by exclusive holders.
        entered: u64,
        /// Sections whose writes remained.
        counted: u64,
        /// Sections that saw somebody else inside.
        met: u64,
    },
    /// A bench of contention in which nobody ever found the latch held.
    NeverContended {
        /// Whose latch.
        subject: &'static str,
        /// In which cell.
        cell: String,
        /// How many times a thread looked.
        looks: u64,
    },
    /// Nothing was done, or not what the cell is about: a mix of writes without a write.
    Nothing {
        /// Whose latch.
        subject: &'static str,
        /// In which cell.
        cell: String,
        /// What did not happen.
        what: &'static str,
    },
    /// Threads did not come back: a wake-up was lost, or one starves.
    Stuck {
        /// Whose latch.
        subject: &'static str,
        /// In which cell.
        cell: String,
        /// How many threads are missing.
        threads: usize,
        /// For how long they were awaited.
        waited: Duration,
    },
    /// The system gives no more threads, or does not let them be pinned.
    Threads(std::io::Error),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overlap { subject, cell, entered, counted, met } => write!(
                f,
                "{subject} does not exclude ({cell}): {entered} sections were entered, {counted} \
                 remained, {met} met somebody inside"
            ),
            Self::NeverContended { subject, cell, looks } => write!(
                f,
                "{subject} was never contended ({cell}): {looks} looks, and it was always free"
            ),
            Self::Nothing { subject, cell, what } => {
                write!(f, "{subject} did nothing that counts ({cell}): not a single {what}")
            }
            Self::Stuck { subject, cell, threads, waited } => write!(
                f,
                "{subject} is stuck ({cell}): {threads} threads did not come back within \
                 {waited:?} of the end"
            ),
            Self::Threads(error) => write!(f, "cannot start the threads of a bench: {error}"),
        }
    }
}

impl std::error::Error for Fault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Threads(error) => Some(error),
            _ => None,
        }
    }
}

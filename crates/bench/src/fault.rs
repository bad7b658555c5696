//! Errors of a benchmark.

use core::fmt;
use std::time::Duration;

/// Why a measurement is invalid, or which defect of a latch it found. Timing alone is never a
/// fault.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Two threads were inside at once.
    Overlap {
        /// The latch.
        subject: &'static str,
        /// The cell.
        cell: String,
        /// Sections entered by exclusive holders.
        entered: u64,
        /// Sections whose writes remained.
        counted: u64,
        /// Sections that met another thread inside.
        met: u64,
    },
    /// No thread of a contention benchmark ever found the latch held.
    NeverContended {
        /// The latch.
        subject: &'static str,
        /// The cell.
        cell: String,
        /// Number of checks.
        looks: u64,
    },
    /// The cell's subject did not occur, for example a mix without a write.
    Nothing {
        /// The latch.
        subject: &'static str,
        /// The cell.
        cell: String,
        /// The missing event.
        what: &'static str,
    },
    /// Threads did not return: a lost wake-up or starvation.
    Stuck {
        /// The latch.
        subject: &'static str,
        /// The cell.
        cell: String,
        /// Number of missing threads.
        threads: usize,
        /// Time waited for them.
        waited: Duration,
    },
    /// The system refuses more threads, or refuses to pin them.
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

//! Errors of a measurement.

use core::fmt;
use std::io;

use super::plan::{Cell, Subject};

/// Why a measurement is invalid. Timing alone is never a reason.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The pool returned an error.
    Refused {
        /// The pool.
        subject: Subject,
        /// The error.
        why: String,
    },
    /// A page had wrong contents.
    Wrong {
        /// The pool.
        subject: Subject,
        /// The page.
        page: u32,
        /// The value found.
        found: u64,
    },
    /// The cell's subject did not occur.
    Nothing {
        /// The cell.
        cell: Cell,
        /// The missing event.
        what: &'static str,
    },
    /// The page file could not be created or read, or a process not started.
    System(io::Error),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { subject, why } => write!(f, "{}: {why}", subject.name()),
            Self::Wrong { subject, page, found } => {
                write!(f, "{}: page {page} holds {found}", subject.name())
            }
            Self::Nothing { cell, what } => write!(f, "pool ({cell}): not a single {what}"),
            Self::System(error) => write!(f, "the file of pages, or a process: {error}"),
        }
    }
}

impl core::error::Error for Fault {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::System(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

//! Why a measurement is worth nothing.

use core::fmt;
use std::io;

use super::plan::{Cell, Subject};

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
    /// What the cell is about did not happen.
    Nothing {
        /// In which cell.
        cell: Cell,
        /// What did not happen.
        what: &'static str,
    },
    /// The file of pages could not be made or read, or a process not be started.
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

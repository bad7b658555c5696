//! Starts the measuring processes of each measurement and collects their results.

use core::fmt;
use std::io;
use std::process::Command;

use super::job::{Job, Outcome};
use super::timing::now;
use super::{Cell, Place, Settings, Subject, Workload};
use crate::child::{DONE, READY, Worker};
use crate::dir::Dir;

/// Why a measurement failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fault {
    /// A process cannot be started or reached.
    Process(io::Error),
    /// A process reported an error.
    Failed {
        /// The lock manager.
        subject: Subject,
        /// The cell.
        cell: Cell,
        /// The error.
        why: String,
    },
    /// The cell's subject did not occur.
    Nothing {
        /// The lock manager.
        subject: Subject,
        /// The cell.
        cell: Cell,
        /// The missing event.
        what: &'static str,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(error) => write!(f, "cannot start a process that measures: {error}"),
            Self::Failed { subject, cell, why } => {
                write!(f, "{} failed ({cell}): {why}", subject.name())
            }
            Self::Nothing { subject, cell, what } => {
                let name = subject.name();
                write!(f, "{name} did nothing that counts ({cell}): not a single {what}")
            }
        }
    }
}

impl std::error::Error for Fault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Process(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Process(error)
    }
}

/// Warm-up of the workers before the window: a tenth of it, plus start-up time.
fn warm_up(settings: &Settings) -> u64 {
    settings.window.as_nanos() as u64 / 10 + 5_000_000
}

/// Measures once.
pub(crate) fn measure(
    subject: Subject,
    cell: &Cell,
    settings: &Settings,
    launch: &dyn Fn() -> Command,
) -> Result<Outcome, Fault> {
    let dir = match cell.place {
        Place::Private => None,
        Place::Region | Place::Processes => Some(Dir::new(settings.dir.as_deref())?),
    };
    let waiters = if subject.is_rival() { settings.rival_waiters } else { settings.waiters };
    let procs = cell.procs();
    let threads = cell.workers / procs;
    let failed = |why| Fault::Failed { subject, cell: *cell, why };
    let mut workers = Vec::new();
    for number in 0..procs {
        let job = Job {
            subject,
            workload: cell.workload,
            dir: dir.as_ref().map(|dir| dir.path().to_owned()),
            threads,
            first: number * threads,
            window_ns: settings.window.as_nanos() as u64,
            trials: settings.trials,
            waiters: if cell.workload.has_waiters() { waiters } else { 0 },
            others: cell.others,
            held: if cell.workload == Workload::Held { settings.held } else { 0 },
            patience_ms: settings.patience.as_millis() as u64,
        };
        // One after the other: the first process creates what the others open.
        let mut worker = Worker::start(launch(), &job)?;
        worker.hear(READY).map_err(failed)?;
        workers.push(worker);
    }
    let at = now() + warm_up(settings);
    for worker in &mut workers {
        worker.begin(at)?;
    }
    let mut outcomes = Vec::new();
    for worker in &mut workers {
        let text = worker.hear(DONE).map_err(failed)?;
        outcomes.push(serde_json::from_str(&text).map_err(io::Error::from)?);
    }
    let outcome = Outcome::together(outcomes);
    match outcome.missing(cell, subject) {
        Some(what) => Err(Fault::Nothing { subject, cell: *cell, what }),
        None => Ok(outcome),
    }
}

//! A process that measures: it is told a job, opens the store, and does it.

use std::path::Path;
use std::time::Duration;

use latchwork_rivals::{Store, StoreError, StoreOptions, StoreResult};

use super::job::{Job, Outcome, Task};
use super::ours::Ours;
use super::{Subject, transfer, work};
use crate::child;

/// Opens a subject's store.
fn open(subject: Subject, folder: &Path, options: &StoreOptions) -> StoreResult<Box<dyn Store>> {
    match subject {
        Subject::Ours => Ok(Box::new(Ours::open(folder, options)?)),
        Subject::Rival(kind) => kind.open(folder, options),
    }
}

/// The life of a process that measures. It ends when the job is done.
pub fn serve() -> ! {
    let job: Job = child::job();
    child::end_within(Duration::from_millis(job.patience_ms));
    match run(&job) {
        Ok(outcome) => child::done(&outcome),
        Err(error) => child::fail(&error),
    }
}

fn run(job: &Job) -> StoreResult<Outcome> {
    let unknown = StoreError::Failed("open", format!("no store is called {}", job.subject));
    let subject = Subject::named(&job.subject).ok_or(unknown)?;
    let measured = match job.task {
        Task::Measure(workload) => workload.is_durable(),
        Task::Load | Task::Verify => false,
    };
    let store = open(subject, &job.folder, &job.data.options(job.cache, measured))?;
    let store = store.as_ref();
    match job.task {
        Task::Load => {
            job.data.load(store)?;
            Ok(Outcome::default())
        }
        Task::Measure(workload) => {
            let outcome = work::measure(store, workload, job)?;
            // Its calls of the system do not go through the C symbols that are counted.
            let syncs = outcome.syncs.filter(|_| subject.is_rival());
            Ok(Outcome { syncs, ..outcome })
        }
        Task::Verify => {
            transfer::verify(store.session()?.as_mut())?;
            Ok(Outcome::default())
        }
    }
}

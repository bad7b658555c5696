//! A measuring process: it reads its job, opens the store and runs the job.

use std::path::Path;
use std::time::Duration;

use latchwork_rivals::{Store, StoreError, StoreOptions, StoreResult};

use super::device::Device;
use super::job::{Job, Outcome, Task};
use super::ours::Ours;
use super::{Subject, Workload, files, held, killed, transfer, work};
use crate::child;
use crate::times::now;

/// Opens the store of a subject.
fn open(subject: Subject, folder: &Path, options: &StoreOptions) -> StoreResult<Box<dyn Store>> {
    match subject {
        Subject::Ours => Ok(Box::new(Ours::open(folder, options)?)),
        Subject::Device => Ok(Box::new(Device::open(folder)?)),
        Subject::Rival(kind) => kind.open(folder, options),
    }
}

/// Runs a measuring process and ends it with the job.
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
    let durable = match job.task {
        Task::Measure(workload) => workload.is_durable(),
        Task::Log { .. } => true,
        _ => false,
    };
    let options = job.data.options(job.cache, durable);
    let options = StoreOptions {
        recover: matches!(job.task, Task::Reopen { .. }),
        budget: options.budget.or(job.budget),
        ..options
    };
    let begun = now();
    let store = open(subject, &job.folder, &options)?;
    let store = store.as_ref();
    match job.task {
        Task::Load if subject == Subject::Device => store.settle()?,
        Task::Load => return load(store, job),
        Task::Measure(Workload::HeldSnapshot) => return held::measure(store, job),
        Task::Measure(workload) => return work::measure(store, workload, job),
        Task::Verify => transfer::verify(store.session()?.as_mut())?,
        Task::Commit { client } => killed::commit(store, job, client)?,
        Task::Log { client, bytes } => killed::log(store, job, client, bytes)?,
        Task::Reopen { client } => return killed::reopen(store, job, client, begun),
    }
    Ok(Outcome::default())
}

/// Loads the data and returns the bytes written.
fn load(store: &dyn Store, job: &Job) -> StoreResult<Outcome> {
    let (begun, before) = (now(), files::written());
    job.data.load(store)?;
    let ops_per_s = job.data.records() as f64 * 1e9 / (now() - begun).max(1) as f64;
    let mut outcome = Outcome { ops_per_s, ..Outcome::default() };
    if let (Some(after), Some(before)) = (files::written(), before) {
        outcome.figures.insert("written_bytes".to_owned(), (after - before) as f64);
    }
    Ok(outcome)
}

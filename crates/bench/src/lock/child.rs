//! A process that measures: it is told a job, opens, waits for the start, and says what came of it.

use std::time::Duration;

use latchwork_machine::{Native, Shared};

use super::Subject;
use super::bdb::Rival;
use super::job::{Job, Outcome};
use super::operations;
use super::ours::Ours;
use super::steep;
use super::table::Stop;
pub(crate) use crate::child::fail;
use crate::child::{self, start};

/// The life of a process that measures. It ends when the job is done.
pub fn serve() -> ! {
    let job: Job = child::job();
    child::end_within(Duration::from_millis(job.patience_ms));
    match measure(&job) {
        Ok(outcome) => child::done(&outcome),
        Err(Stop::Deadlock) => fail(&"a deadlock where there can be none"),
        Err(Stop::Fault(why)) => fail(&why),
    }
}

fn measure(job: &Job) -> Result<Outcome, Stop> {
    if job.workload.is_steep() {
        return steep::measure(job, start);
    }
    match (job.subject, &job.dir) {
        (Subject::Ours, None) => operations::measure::<Ours<Native>>(job, start),
        (Subject::Ours, Some(_)) => operations::measure::<Ours<Shared>>(job, start),
        (Subject::BerkeleyDb, _) => operations::measure::<Rival>(job, start),
    }
}

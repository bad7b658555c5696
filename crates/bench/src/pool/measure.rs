//! A measurement: the pool with its file, and the workers.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Barrier;
use std::time::Duration;

use latchwork_machine::{Native, Shared};
use serde::{Deserialize, Serialize};

use super::fault::Fault;
use super::keeper::{Keeper, Scene};
use super::ours::Ours;
use super::outcome::Outcome;
use super::plan::{Cell, Place, Settings, Subject, Workload};
use super::rivals::{Called, Mapped, Theirs, Words};
use super::work::Part;
use crate::child::{self, DONE, READY, Worker};
use crate::dir::Dir;
use crate::times::now;

/// The job of a process: a worker's part, and the paths of the pages.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Job {
    subject: Subject,
    file: PathBuf,
    shared: PathBuf,
    part: Part,
}

/// A pool with its file; dropping it removes the file.
pub(super) struct Kept {
    pub(super) subject: Subject,
    /// `None` after the pool is dropped, which happens before its files are removed.
    keeper: Option<Box<dyn Keeper>>,
    place: Place,
    file: PathBuf,
    /// Directory of shared memory, if any.
    shared: Option<Dir>,
    _pages: Dir,
}

/// Opens a pool.
fn open(subject: Subject, scene: &Scene<'_>) -> Result<Box<dyn Keeper>, String> {
    fn boxed<K: Keeper + 'static>(scene: &Scene<'_>) -> Result<Box<dyn Keeper>, String> {
        Ok(Box::new(K::open(scene)?))
    }
    match (subject, scene.shared) {
        (Subject::Pool, None) => boxed::<Ours<Native>>(scene),
        (Subject::Pool, Some(_)) => boxed::<Ours<Shared>>(scene),
        (Subject::BerkeleyDb, _) => boxed::<Theirs>(scene),
        (Subject::Mmap, _) => boxed::<Mapped>(scene),
        (Subject::Pread, _) => boxed::<Called>(scene),
        (Subject::Slice, _) => boxed::<Words>(scene),
    }
}

impl Kept {
    /// Creates the pages.
    pub(super) fn make(
        subject: Subject,
        settings: &Settings,
        workload: Workload,
        place: Place,
    ) -> Result<Self, String> {
        let told = |error: io::Error| error.to_string();
        let dir = std::path::absolute(&settings.dir).map_err(told)?;
        let pages = Dir::new(Some(&dir)).map_err(told)?;
        let shared = match place {
            Place::Threads => None,
            Place::Processes => Some(Dir::new(None).map_err(told)?),
        };
        let file = pages.path().join("pages");
        let scene = Scene {
            file: &file,
            shared: shared.as_ref().map(Dir::path),
            make: true,
            frames: settings.frames,
            pages: workload.pages(settings.frames),
            direct: workload == Workload::BeyondDirect,
        };
        let keeper = Some(open(subject, &scene)?);
        Ok(Self { subject, keeper, place, file, shared, _pages: pages })
    }

    /// Measures once. `launch` starts a process that calls [`serve`].
    pub(super) fn measure(
        &self,
        settings: &Settings,
        cell: Cell,
        run: u64,
        launch: &dyn Fn() -> Command,
    ) -> Result<Outcome, Fault> {
        let part = |number| Part {
            workload: cell.workload,
            frames: settings.frames,
            number,
            workers: cell.workers,
            window_ns: settings.window.as_nanos() as u64,
            run,
        };
        match (self.place, &self.keeper) {
            (Place::Threads, Some(keeper)) => threads(&**keeper, cell.workers, part),
            _ => self.processes(cell.workers, part, launch),
        }
    }

    fn processes(
        &self,
        count: usize,
        part: impl Fn(usize) -> Part,
        launch: &dyn Fn() -> Command,
    ) -> Result<Outcome, Fault> {
        let shared = self.shared.as_ref().map_or(PathBuf::new(), |dir| dir.path().to_owned());
        let refused = |why| Fault::Refused { subject: self.subject, why };
        let mut workers = Vec::new();
        for number in 0..count {
            let (subject, file, shared) = (self.subject, self.file.clone(), shared.clone());
            workers
                .push(Worker::start(launch(), &Job { subject, file, shared, part: part(number) })?);
        }
        for worker in &mut workers {
            worker.hear(READY).map_err(refused)?;
        }
        let at = now() + 5_000_000;
        for worker in &mut workers {
            worker.begin(at)?;
        }
        let mut outcomes = Vec::new();
        for worker in &mut workers {
            let text = worker.hear(DONE).map_err(refused)?;
            outcomes.push(serde_json::from_str(&text).map_err(io::Error::from)?);
        }
        Ok(Outcome::together(outcomes))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.keeper = None;
    }
}

fn threads(
    keeper: &dyn Keeper,
    count: usize,
    part: impl Fn(usize) -> Part + Sync,
) -> Result<Outcome, Fault> {
    let ready = Barrier::new(count);
    let work = |number| {
        let mut waited = false;
        let done = run(keeper, &part(number), &mut || {
            waited = true;
            ready.wait();
            now()
        });
        if !waited {
            // It failed before the start; the other workers still start.
            ready.wait();
        }
        done
    };
    let work = &work;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..count).map(|n| scope.spawn(move || work(n))).collect();
        let ended = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        ended.collect::<Result<Vec<_>, _>>().map(Outcome::together)
    })
}

fn run(keeper: &dyn Keeper, part: &Part, start: &mut dyn FnMut() -> u64) -> Result<Outcome, Fault> {
    let told = part.workload == Workload::ScanTold;
    keeper.with(part.scan_from(), told, &mut |uses| part.work(uses, start))
}

/// Time allowed to a measuring process besides its window.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a measuring process and ends it with the job.
pub fn serve() -> ! {
    let job: Job = child::job();
    child::end_within(PATIENCE + Duration::from_nanos(job.part.window_ns));
    let scene = Scene {
        file: &job.file,
        shared: Some(&job.shared),
        make: false,
        frames: job.part.frames,
        pages: job.part.workload.pages(job.part.frames),
        direct: false,
    };
    let keeper = open(job.subject, &scene).unwrap_or_else(|why| child::fail(&why));
    match run(&*keeper, &job.part, &mut child::start) {
        Ok(outcome) => child::done(&outcome),
        Err(fault) => child::fail(&fault),
    }
}

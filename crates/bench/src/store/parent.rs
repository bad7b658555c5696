//! Starts the processes that load, measure and add up, and hears what they say.

use core::fmt;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, io};

use super::data::Data;
use super::job::{Job, Outcome, Task};
use super::{Cell, Settings, Subject};
use crate::child::{DONE, Dir, READY, Worker};
use crate::times::now;

/// Why a measurement failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fault {
    /// A process cannot be started, or a folder not be made.
    Process(io::Error),
    /// A process failed, and said why.
    Failed(String),
    /// What the cell is about did not happen.
    Nothing(&'static str),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(error) => write!(f, "cannot start a process that measures: {error}"),
            Self::Failed(why) => f.write_str(why),
            Self::Nothing(what) => write!(f, "nothing that counts happened: not a single {what}"),
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

/// The stores of one data set, removed when it is dropped.
pub(super) struct Stores<'s> {
    data: Data,
    settings: &'s Settings,
    launch: &'s dyn Fn() -> Command,
    dir: Dir,
    loaded: HashMap<Subject, PathBuf>,
}

/// How long it took to load, and what it left.
pub(super) struct Loaded {
    pub(super) records_per_s: f64,
    pub(super) bytes_per_record: f64,
}

/// Bytes of all files in a folder that are on the disk.
fn bytes(folder: &Path) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let about = entry.metadata()?;
        sum += if about.is_dir() { bytes(&entry.path())? } else { about.blocks() * 512 };
    }
    Ok(sum)
}

impl<'s> Stores<'s> {
    pub(super) fn new(
        data: Data,
        settings: &'s Settings,
        launch: &'s dyn Fn() -> Command,
    ) -> Result<Self, Fault> {
        let temporary = std::env::temp_dir();
        let disk = settings.disk.as_deref().unwrap_or(&temporary);
        let base = if data.is_durable() { Some(disk) } else { settings.memory.as_deref() };
        Ok(Self { data, settings, launch, dir: Dir::new(base)?, loaded: HashMap::new() })
    }

    fn job(&self, subject: Subject, task: Task, folder: &Path) -> Job {
        Job {
            subject: subject.name().to_owned(),
            task,
            data: self.data,
            folder: folder.to_owned(),
            cache: self.settings.cache,
            threads: 1,
            first: 0,
            window_ns: self.settings.window.as_nanos() as u64,
            patience_ms: self.settings.patience.as_millis() as u64,
        }
    }

    /// Runs a process that needs no start.
    fn alone(&self, job: &Job) -> Result<Outcome, Fault> {
        let mut worker = Worker::start((self.launch)(), job)?;
        let text = worker.hear(DONE).map_err(Fault::Failed)?;
        Ok(serde_json::from_str(&text).map_err(io::Error::from)?)
    }

    /// Makes and fills a store.
    pub(super) fn load(&mut self, subject: Subject) -> Result<Loaded, Fault> {
        let folder = self.dir.0.join(subject.name());
        fs::create_dir(&folder)?;
        let began = Instant::now();
        self.alone(&self.job(subject, Task::Load, &folder))?;
        let seconds = began.elapsed().as_secs_f64();
        let records = self.data.records() as f64;
        let bytes_per_record = bytes(&folder)? as f64 / records;
        self.loaded.insert(subject, folder);
        Ok(Loaded { records_per_s: records / seconds, bytes_per_record })
    }

    /// Measures once; if some worker did nothing in the window, as on a machine that is busy with
    /// other things, once more in a longer one.
    pub(super) fn measure(&self, subject: Subject, cell: &Cell) -> Result<Outcome, Fault> {
        let window = self.settings.window;
        match self.measure_for(subject, cell, window) {
            Err(Fault::Nothing(_)) => self.measure_for(subject, cell, window * 10),
            result => result,
        }
    }

    fn measure_for(
        &self,
        subject: Subject,
        cell: &Cell,
        window: Duration,
    ) -> Result<Outcome, Fault> {
        let missing = || Fault::Failed("its data is not loaded".to_owned());
        let folder = self.loaded.get(&subject).ok_or_else(missing)?;
        let threads = cell.threads / cell.procs;
        let mut workers = Vec::new();
        for number in 0..cell.procs {
            let task = Task::Measure(cell.workload);
            let job = Job {
                threads,
                first: number * threads,
                window_ns: window.as_nanos() as u64,
                ..self.job(subject, task, folder)
            };
            let mut worker = Worker::start((self.launch)(), &job)?;
            worker.hear(READY).map_err(Fault::Failed)?;
            workers.push(worker);
        }
        // A third of the window to warm up, and time to get going.
        let at = now() + window.as_nanos() as u64 / 3 + 10_000_000;
        for worker in &mut workers {
            worker.begin(at)?;
        }
        let mut outcomes = Vec::new();
        for worker in &mut workers {
            let text = worker.hear(DONE).map_err(Fault::Failed)?;
            outcomes.push(serde_json::from_str(&text).map_err(io::Error::from)?);
        }
        let outcome = Outcome::together(outcomes);
        outcome.missing(cell).map_or(Ok(outcome), |what| Err(Fault::Nothing(what)))
    }

    /// Adds a bank's tables up.
    pub(super) fn verify(&self, subject: Subject) -> Result<(), Fault> {
        match self.loaded.get(&subject) {
            Some(folder) => self.alone(&self.job(subject, Task::Verify, folder)).map(|_| ()),
            None => Ok(()),
        }
    }
}

//! Starts the processes that load, measure and check, and collects their results.

use core::cell::Cell;
use core::fmt;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{fs, io};

use super::data::Data;
use super::files::Bytes;
use super::job::{Job, Outcome, Task};
use super::{Settings, Subject, files, keys, plan};
use crate::child::{DONE, READY, Worker};
use crate::dir::Dir;
use crate::times::now;

/// Least warm-up of a store, if the window is as long. Otherwise a third of the window.
const WARM: Duration = Duration::from_millis(150);

/// Why a measurement failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fault {
    /// A process cannot be started or a directory not created.
    Process(io::Error),
    /// A process reported an error.
    Failed(String),
    /// The cell's subject did not occur.
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

/// The stores of one data set, removed on drop.
pub(super) struct Stores<'s> {
    data: Data,
    settings: &'s Settings,
    launch: &'s dyn Fn() -> Command,
    dir: Dir,
    loaded: HashMap<Subject, PathBuf>,
    clients: Cell<u64>,
}

/// The duration of loading and the sizes afterwards.
pub(super) struct Loaded {
    pub(super) records_per_s: f64,
    pub(super) bytes_per_record: f64,
    /// Bytes passed to `write` calls.
    written: Option<f64>,
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
        let dir = Dir::new(base)?;
        Ok(Self { data, settings, launch, dir, loaded: HashMap::new(), clients: Cell::new(0) })
    }

    fn job(&self, subject: Subject, task: Task, folder: &Path) -> Job {
        Job {
            subject: subject.name().to_owned(),
            task,
            data: self.data,
            folder: folder.to_owned(),
            cache: self.settings.cache,
            budget: self.settings.budget,
            threads: 1,
            first: 0,
            window_ns: self.settings.window.as_nanos() as u64,
            patience_ms: self.settings.patience.as_millis() as u64,
        }
    }

    /// Runs a process that needs no common start.
    fn alone(&self, job: &Job) -> Result<Outcome, Fault> {
        let mut worker = Worker::start((self.launch)(), job)?;
        let text = worker.hear(DONE).map_err(Fault::Failed)?;
        Ok(serde_json::from_str(&text).map_err(io::Error::from)?)
    }

    /// The directory of a loaded store.
    pub(super) fn folder(&self, subject: Subject) -> Result<&Path, Fault> {
        let missing = || Fault::Failed("its data is not loaded".to_owned());
        self.loaded.get(&subject).map(PathBuf::as_path).ok_or_else(missing)
    }

    /// The data set.
    pub(super) fn data(&self) -> Data {
        self.data
    }

    /// Processes killed in one measurement.
    pub(super) fn kills(&self) -> usize {
        self.settings.kills
    }

    /// An unused client number.
    pub(super) fn next_client(&self) -> u64 {
        self.clients.set(self.clients.get() + 1);
        self.clients.get()
    }

    /// Starts a process with a task on a loaded store.
    pub(super) fn start(&self, subject: Subject, task: Task) -> Result<Worker, Fault> {
        let job = self.job(subject, task, self.folder(subject)?);
        Ok(Worker::start((self.launch)(), &job)?)
    }

    /// Runs a process with a task on a loaded store and returns its result.
    pub(super) fn told(&self, subject: Subject, task: Task) -> Result<Outcome, Fault> {
        self.alone(&self.job(subject, task, self.folder(subject)?))
    }

    /// Creates and fills a store.
    pub(super) fn load(&mut self, subject: Subject) -> Result<Loaded, Fault> {
        let folder = self.dir.path().join(subject.name());
        let loaded = match self.data {
            // Loaded by each measurement.
            Data::Fresh { .. } => {
                Loaded { records_per_s: 0.0, bytes_per_record: 0.0, written: None }
            }
            _ => self.load_in(subject, &folder)?.0,
        };
        self.loaded.insert(subject, folder);
        Ok(loaded)
    }

    fn load_in(&self, subject: Subject, folder: &Path) -> Result<(Loaded, Bytes), Fault> {
        fs::create_dir(folder)?;
        let loaded = self.fill(subject, folder);
        if loaded.is_err() {
            // Otherwise the next one could not create it. The first error is the one to report.
            let _ = fs::remove_dir_all(folder);
        }
        loaded
    }

    fn fill(&self, subject: Subject, folder: &Path) -> Result<(Loaded, Bytes), Fault> {
        let outcome = self.alone(&self.job(subject, Task::Load, folder))?;
        let bytes = files::bytes(folder)?;
        let loaded = Loaded {
            records_per_s: outcome.ops_per_s,
            bytes_per_record: bytes.all() as f64 / self.data.records() as f64,
            written: outcome.figures.get("written_bytes").copied(),
        };
        Ok((loaded, bytes))
    }

    /// Loads a new store and removes it.
    pub(super) fn measure_load(&self, subject: Subject) -> Result<Outcome, Fault> {
        let folder = self.folder(subject)?;
        let (loaded, bytes) = self.load_in(subject, folder)?;
        fs::remove_dir_all(folder)?;
        let records = self.data.records() as f64;
        let mut outcome = Outcome { ops_per_s: loaded.records_per_s, ..Outcome::default() };
        let stored = records * (16 + keys::VALUE) as f64;
        let mut add = |name: &str, number: f64| outcome.figures.insert(name.to_owned(), number);
        add("bytes_per_record", bytes.data as f64 / records);
        add("log_bytes", bytes.log as f64);
        if let Some(written) = loaded.written {
            add("written_per_byte", written / stored);
        }
        Ok(outcome)
    }

    /// Measures once. If some worker did nothing in the window, as on a busy machine, repeats with
    /// longer windows.
    pub(super) fn measure(&self, subject: Subject, cell: &plan::Cell) -> Result<Outcome, Fault> {
        let window = self.settings.window;
        let longest = (window * 100).min(Duration::from_secs(2)).max(window * 10);
        let mut outcome = self.measure_for(subject, cell, window);
        let mut last = window;
        while last < longest && matches!(outcome, Err(Fault::Nothing(_))) {
            last = (last * 10).min(longest);
            outcome = self.measure_for(subject, cell, last);
        }
        outcome
    }

    fn measure_for(
        &self,
        subject: Subject,
        cell: &plan::Cell,
        window: Duration,
    ) -> Result<Outcome, Fault> {
        let folder = self.folder(subject)?;
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
        // Warm-up and start-up time: a newly opened store reads pages and maps memory, and a store
        // with a log may log each whole page at its first change.
        let warm = (window / 3).max(WARM.min(window)).as_nanos() as u64;
        let at = now() + warm + 10_000_000;
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

    /// Checks the sums of a bank's tables.
    pub(super) fn verify(&self, subject: Subject) -> Result<(), Fault> {
        match self.loaded.get(&subject) {
            Some(folder) => self.alone(&self.job(subject, Task::Verify, folder)).map(|_| ()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Workload;
    use super::*;

    #[test]
    fn a_load_that_fails_leaves_nothing_in_the_way_of_the_next() {
        let settings = Settings::default();
        let launch = || Command::new("false");
        let data = settings.data(Workload::Load);
        let mut stores = Stores::new(data, &settings, &launch).expect("a folder");
        stores.load(Subject::Ours).expect("nothing to do yet");
        for run in 0..2 {
            let failed = stores.measure_load(Subject::Ours);
            let told = failed.map(|_| ()).expect_err("its process fails").to_string();
            assert!(!told.contains("File exists"), "run {run}: {told}");
        }
    }
}

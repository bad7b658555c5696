//! The runs, and the rows that come of them.

use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use latchwork_rivals::BdbPool;
use serde::Serialize;

use super::ours::Ours;
use super::rivals::{Called, Mapped};
use super::subject::{Done, Fault, Keeper, Subject};
use super::work::{Operation, Settings, Workload, operations};
use crate::row::{maybe_short, short};
use crate::stats::{Ratio, median, spread};

/// A measured row. Numbers are medians over the runs.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `pool`.
    pub bench: &'static str,
    /// Whose pool.
    pub subject: &'static str,
    /// Whether it is other people's.
    pub rival: bool,
    /// `native`.
    pub machine: &'static str,
    /// Threads that read.
    pub threads: usize,
    /// Processes.
    pub procs: usize,
    /// The workload.
    pub params: Params,
    /// Operations a second, of all threads.
    #[serde(serialize_with = "short")]
    pub ops_per_s: f64,
    /// Nanoseconds of one thread for an operation.
    #[serde(serialize_with = "short")]
    pub ns_per_op: f64,
    /// The interquartile range over the median.
    #[serde(serialize_with = "short")]
    pub spread: f64,
    /// How often it was measured.
    pub runs: usize,
    /// The spread is over a fifth and the runs do not agree on which is faster.
    pub noisy: bool,
    /// Stores of a read where other threads load, counted; none where nobody counts.
    #[serde(serialize_with = "maybe_short")]
    pub stores_per_read: Option<f64>,
    /// The share of operations that found their page in the pool, counted.
    #[serde(serialize_with = "maybe_short")]
    pub hit_rate: Option<f64>,
    /// Throughput over Berkeley DB's, the median of the runs' own ratios.
    #[serde(serialize_with = "maybe_short")]
    pub ratio: Option<f64>,
}

/// A row's workload.
#[derive(Clone, Debug, Serialize)]
pub struct Params {
    /// Its name.
    pub workload: &'static str,
    /// Frames of 8 KiB.
    pub frames: u32,
    /// Pages of the file.
    pub pages: u32,
    /// Milliseconds of one measurement.
    pub window_ms: u64,
}

/// All runs of one subject in one cell.
#[derive(Clone, Debug)]
pub struct Series {
    /// Whose pool.
    pub subject: Subject,
    /// What it did.
    pub workload: Workload,
    /// With how many threads.
    pub threads: usize,
    rates: Vec<f64>,
    done: Done,
}

/// What came of a benchmark.
#[derive(Clone, Debug)]
pub struct Report {
    /// A series for each subject and cell.
    pub series: Vec<Series>,
    /// Why Berkeley DB is not among them.
    pub absent: Option<String>,
    settings: Settings,
}

/// How far a benchmark has come.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Measurements made.
    pub done: usize,
    /// Measurements in all.
    pub total: usize,
    /// Whose is made next.
    pub subject: Subject,
    /// In which workload.
    pub workload: Workload,
}

/// Measures all cells of `settings`, `runs` times, and tells `progress` before each measurement.
///
/// # Errors
///
/// [`Fault`]: what makes a measurement worthless.
pub fn run(settings: Settings, progress: &mut dyn FnMut(Step)) -> Result<Report, Fault> {
    let mut report = Report { series: Vec::new(), absent: None, settings };
    let settings = report.settings.clone();
    let cells = settings.only.len() * settings.threads.len();
    let (mut done, total) = (0, cells * settings.runs * Subject::ALL.len());
    for workload in settings.only.iter().copied() {
        let mut keepers = Vec::new();
        for subject in Subject::ALL {
            if workload == Workload::Write && matches!(subject, Subject::Mmap | Subject::Pread) {
                continue;
            }
            match Kept::open(subject, &settings, workload) {
                Ok(kept) => keepers.push(kept),
                Err(why) if subject == Subject::BerkeleyDb => report.absent = Some(why),
                Err(why) => return Err(Fault::Refused { subject, why }),
            }
        }
        for threads in settings.threads.iter().copied() {
            let start = report.series.len();
            for kept in &keepers {
                let subject = kept.subject;
                let (rates, done) = (Vec::new(), Done::default());
                report.series.push(Series { subject, workload, threads, rates, done });
            }
            for run in 0..settings.runs {
                for turn in 0..keepers.len() {
                    let which = (run + turn) % keepers.len();
                    let kept = &keepers[which];
                    progress(Step { done, total, subject: kept.subject, workload });
                    done += 1;
                    let (rate, more) = measure(kept, &settings, workload, threads)?;
                    let series = &mut report.series[start + which];
                    series.rates.push(rate);
                    series.done.operations += more.operations;
                    series.done.optimistic += more.optimistic;
                    series.done.stores += more.stores;
                    series.done.faults += more.faults;
                }
            }
            let ours = &report.series[start];
            if ours.subject == Subject::Pool && never_optimistic(&ours.done, &settings, threads) {
                return Err(Fault::NeverOptimistic { workload: workload.name() });
            }
        }
    }
    Ok(report)
}

/// Whether the optimistic path was never taken, although it could have been.
///
/// Reads that found their page are counted in steps of 32 by each thread: so few reads as may lie
/// in the steps say nothing, and a short window on a slow device may have no more.
fn never_optimistic(done: &Done, settings: &Settings, threads: usize) -> bool {
    let unseen = 32 * threads as u64 * settings.runs as u64;
    done.optimistic == 0 && done.operations > done.faults + unseen
}

/// A subject with its file, which goes away with it.
struct Kept {
    subject: Subject,
    /// None once it is dropped, which is before the file is removed.
    keeper: Option<Box<dyn Keeper>>,
    path: PathBuf,
}

impl Kept {
    fn open(subject: Subject, settings: &Settings, workload: Workload) -> Result<Self, String> {
        let name = format!("latchwork-bench-pool-{}-{}", subject.name(), std::process::id());
        let path = settings.dir.join(name);
        let _ = std::fs::remove_file(&path);
        let path = std::path::absolute(&path).map_err(|error| error.to_string())?;
        let (frames, pages) = (settings.frames, workload.pages(settings.frames));
        fn boxed<K: Keeper + 'static>(
            path: &Path,
            frames: u32,
            pages: u32,
        ) -> Result<Box<dyn Keeper>, String> {
            Ok(Box::new(K::open(path, frames, pages)?))
        }
        let keeper = match subject {
            Subject::Pool => boxed::<Ours>(&path, frames, pages),
            Subject::BerkeleyDb => boxed::<BdbPool>(&path, frames, pages),
            Subject::Mmap => boxed::<Mapped>(&path, frames, pages),
            Subject::Pread => boxed::<Called>(&path, frames, pages),
        };
        keeper.map(|keeper| Self { subject, keeper: Some(keeper), path })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.keeper = None;
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Operations between two looks at the clock.
const BATCH: usize = 512;

/// Operations a second of all threads, and what they did.
fn measure(
    kept: &Kept,
    settings: &Settings,
    workload: Workload,
    threads: usize,
) -> Result<(f64, Done), Fault> {
    let (begin, over) = (Barrier::new(threads + 1), AtomicBool::new(false));
    let work = |number: usize| {
        let todo = operations(workload, settings.frames, number as u64 + 1);
        let once = |uses: &mut dyn super::subject::Uses| loop_over(uses, &todo, &begin, &over);
        let mut once = once;
        kept.keeper.as_ref().map_or(Ok(Done::default()), |keeper| keeper.with(&mut once))
    };
    let (work, begin, over) = (&work, &begin, &over);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|n| scope.spawn(move || work(n))).collect();
        begin.wait();
        let start = Instant::now();
        std::thread::sleep(settings.window);
        over.store(true, Relaxed);
        let mut all = Done::default();
        let mut fault = None;
        for worker in workers {
            match worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
                Ok(done) => {
                    all.operations += done.operations;
                    all.optimistic += done.optimistic;
                    all.stores += done.stores;
                    all.faults += done.faults;
                }
                Err(other) => fault = Some(other),
            }
        }
        let seconds = start.elapsed().max(Duration::from_nanos(1)).as_secs_f64();
        match fault {
            Some(fault) => Err(fault),
            None => Ok((all.operations as f64 / seconds, all)),
        }
    })
}

fn loop_over(
    uses: &mut dyn super::subject::Uses,
    todo: &[Operation],
    begin: &Barrier,
    over: &AtomicBool,
) -> Result<Done, Fault> {
    let first = uses.batch(&todo[..todo.len().min(BATCH)]);
    let before = uses.done();
    begin.wait();
    first?;
    let mut operations = 0;
    'all: loop {
        for batch in todo.chunks(BATCH) {
            uses.batch(batch)?;
            operations += batch.len() as u64;
            // Relaxed: it is seen in time.
            if over.load(Relaxed) {
                break 'all;
            }
        }
    }
    let after = uses.done();
    Ok(Done {
        operations,
        optimistic: after.optimistic - before.optimistic,
        stores: after.stores - before.stores,
        faults: after.faults - before.faults,
    })
}

impl Report {
    /// The rows, in the order of the series.
    pub fn rows(&self) -> Vec<Row> {
        self.series.iter().map(|series| self.row(series)).collect()
    }

    fn row(&self, series: &Series) -> Row {
        let Series { subject, workload, threads, .. } = *series;
        let rival = self.series.iter().find(|other| {
            other.subject == Subject::BerkeleyDb
                && other.workload == workload
                && other.threads == threads
        });
        let ratio = rival.and_then(|rival| Ratio::paired(&series.rates, &rival.rates));
        let (rate, done) = (median(&series.rates), series.done);
        let ours = subject == Subject::Pool;
        let per = |count: u64| ours.then(|| count as f64 / done.operations.max(1) as f64);
        Row {
            bench: "pool",
            subject: subject.name(),
            rival: !ours,
            machine: "native",
            threads,
            procs: 1,
            params: Params {
                workload: workload.name(),
                frames: self.settings.frames,
                pages: workload.pages(self.settings.frames),
                window_ms: self.settings.window.as_millis() as u64,
            },
            ops_per_s: rate,
            ns_per_op: threads as f64 * 1e9 / rate.max(f64::MIN_POSITIVE),
            spread: spread(&series.rates),
            runs: series.rates.len(),
            noisy: spread(&series.rates) > 0.2 && ratio.is_none_or(|ratio| !ratio.unanimous),
            stores_per_read: per(done.stores),
            hit_rate: per(done.operations.saturating_sub(done.faults)),
            ratio: ratio.filter(|_| subject != Subject::BerkeleyDb).map(|ratio| ratio.mid),
        }
    }
}

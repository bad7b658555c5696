//! The runs and their rows.

use std::process::Command;

use serde::Serialize;

use super::fault::Fault;
use super::measure::Kept;
use super::outcome::Outcome;
use super::plan::{Cell, Place, Settings, Subject, Workload};
use crate::row::{maybe_short, short};
use crate::stats::{Ratio, fairness, median, noisy, spread};

/// A measured row. Numbers are medians over the runs.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `pool`.
    pub bench: &'static str,
    /// The pool.
    pub subject: &'static str,
    /// Whether it is a rival.
    pub rival: bool,
    /// `native`.
    pub machine: &'static str,
    /// Reading threads of each process.
    pub threads: usize,
    /// Processes.
    pub procs: usize,
    /// The workload.
    pub params: Params,
    /// Operations per second, of all workers.
    #[serde(serialize_with = "short")]
    pub ops_per_s: f64,
    /// Nanoseconds per operation of one worker.
    #[serde(serialize_with = "short")]
    pub ns_per_op: f64,
    /// The interquartile range over the median.
    #[serde(serialize_with = "short")]
    pub spread: f64,
    /// Median time of the operations that were timed alone, including the cost of the clock.
    #[serde(serialize_with = "short")]
    pub p50_ns: f64,
    /// 99th percentile of the same times.
    #[serde(serialize_with = "short")]
    pub p99_ns: f64,
    /// Share of all operations done by the busier half of the workers; 0.5 is fair.
    #[serde(serialize_with = "maybe_short")]
    pub fairness: Option<f64>,
    /// Number of runs.
    pub runs: usize,
    /// Whether the spread is above 20 % and the runs disagree on which side is faster.
    pub noisy: bool,
    /// Stores per read to memory that other threads load. `None` where they are not counted.
    #[serde(serialize_with = "maybe_short")]
    pub stores_per_read: Option<f64>,
    /// Fraction of operations that found their page in the pool. With a scan, of the operations on
    /// the hot set.
    #[serde(serialize_with = "maybe_short")]
    pub hit_rate: Option<f64>,
    /// Throughput over Berkeley DB's: the median of the ratios of the runs.
    #[serde(serialize_with = "maybe_short")]
    pub ratio: Option<f64>,
}

/// The workload of a row.
#[derive(Clone, Debug, Serialize)]
pub struct Params {
    /// The name.
    pub workload: &'static str,
    /// Frames of 8 KiB.
    pub frames: u32,
    /// Pages of the file.
    pub pages: u32,
    /// Milliseconds of one measurement.
    pub window_ms: u64,
}

/// All runs of one pool in one cell.
#[derive(Clone, Debug)]
pub struct Series {
    /// The pool.
    pub subject: Subject,
    /// The cell.
    pub cell: Cell,
    pub(super) outcomes: Vec<Outcome>,
}

impl Series {
    /// A number of each run.
    pub(super) fn each(&self, number: impl Fn(&Outcome) -> f64) -> Vec<f64> {
        self.outcomes.iter().map(number).collect()
    }

    pub(super) fn rates(&self) -> Vec<f64> {
        self.each(|outcome| outcome.ops_per_s)
    }
}

/// The result of a benchmark.
#[derive(Clone, Debug)]
pub struct Report {
    /// One series per pool and cell.
    pub series: Vec<Series>,
    /// Why Berkeley DB is missing.
    pub absent: Option<String>,
    /// Why the file system supports no direct I/O.
    pub no_direct: Option<String>,
    settings: Settings,
}

/// Progress of a benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Measurements made.
    pub done: usize,
    /// Measurements in all.
    pub total: usize,
    /// The next pool.
    pub subject: Subject,
    /// The next cell.
    pub cell: Cell,
}

/// Measures all cells of `settings` `runs` times. Calls `progress` before each measurement.
/// `launch` starts a process that calls [`serve`](super::serve).
///
/// # Errors
///
/// [`Fault`] if a measurement is invalid.
pub fn run(
    settings: Settings,
    launch: &dyn Fn() -> Command,
    progress: &mut dyn FnMut(Step),
) -> Result<Report, Fault> {
    let mut report = Report { series: Vec::new(), absent: None, no_direct: None, settings };
    let settings = report.settings.clone();
    let cells: Vec<_> = settings.only.iter().flat_map(|only| settings.cells(*only)).collect();
    let of = |cell: &Cell| Subject::ALL.iter().filter(|subject| cell.has(**subject)).count();
    let (mut done, total) = (0, cells.iter().map(of).sum::<usize>() * settings.runs);
    for cells in
        cells.chunk_by(|one, next| (one.workload, one.place) == (next.workload, next.place))
    {
        let keepers = report.make(&settings, cells[0])?;
        for cell in cells.iter().copied() {
            let start = report.series.len();
            let series = keepers.iter().map(|kept| Series::new(kept.subject, cell));
            report.series.extend(series);
            for run in 0..settings.runs {
                for turn in 0..keepers.len() {
                    let which = (run + turn) % keepers.len();
                    let kept = &keepers[which];
                    progress(Step { done, total, subject: kept.subject, cell });
                    done += 1;
                    let outcome = kept.measure(&settings, cell, run as u64, launch)?;
                    report.series[start + which].outcomes.push(outcome);
                }
            }
            for series in &report.series[start..] {
                series.check(cell)?;
            }
        }
    }
    Ok(report)
}

impl Series {
    fn new(subject: Subject, cell: Cell) -> Self {
        Self { subject, cell, outcomes: Vec::new() }
    }

    /// Whether the cell's subject occurred.
    fn check(&self, cell: Cell) -> Result<(), Fault> {
        let nothing = |what| Err(Fault::Nothing { cell, what });
        if self.outcomes.iter().any(|outcome| outcome.operations() == 0) {
            return nothing("operation of somebody's");
        }
        if self.subject != Subject::Pool {
            return Ok(());
        }
        let sum = |of: fn(&Outcome) -> u64| self.outcomes.iter().map(of).sum::<u64>();
        let (all, faults) = (sum(Outcome::operations), sum(|outcome| outcome.counted.faults));
        // Each worker counts hits in steps of 32. Fewer reads than the steps can hide prove
        // nothing; a short window on a slow device may have no more.
        let unseen = 32 * (cell.workers * self.outcomes.len()) as u64;
        let optimistic = sum(|outcome| outcome.counted.optimistic);
        let reads = all * u64::from(10 - cell.workload.changes()) / 10;
        if optimistic == 0 && reads > faults + unseen {
            return nothing("read that took the optimistic path");
        }
        let beyond = matches!(cell.workload, Workload::BeyondMemory | Workload::BeyondDirect);
        if beyond && faults == 0 {
            return nothing("page read from the file");
        }
        let write_back = cell.workload == Workload::WriteBack;
        if write_back && sum(|outcome| outcome.counted.evicted_dirty) == 0 {
            return nothing("changed page evicted");
        }
        let scans = matches!(cell.workload, Workload::Scan | Workload::ScanTold);
        if scans && sum(|outcome| outcome.counted.scan_faults) == 0 {
            return nothing("page of the scan read from the file");
        }
        Ok(())
    }
}

impl Report {
    /// Opens the pools of a workload in a place, without those that this system does not support.
    fn make(&mut self, settings: &Settings, cell: Cell) -> Result<Vec<Kept>, Fault> {
        let mut keepers = Vec::new();
        for subject in Subject::ALL.into_iter().filter(|subject| cell.has(*subject)) {
            match Kept::make(subject, settings, cell.workload, cell.place) {
                Ok(kept) => keepers.push(kept),
                Err(why) if subject == Subject::BerkeleyDb => self.absent = Some(why),
                Err(why) if cell.workload == Workload::BeyondDirect => self.no_direct = Some(why),
                Err(why) => return Err(Fault::Refused { subject, why }),
            }
        }
        Ok(keepers)
    }

    /// The series of a pool in a cell.
    pub(super) fn find(&self, subject: Subject, cell: Cell) -> Option<&Series> {
        self.series.iter().find(|series| series.subject == subject && series.cell == cell)
    }

    /// The rows, in the order of the series.
    pub fn rows(&self) -> Vec<Row> {
        self.series.iter().map(|series| self.row(series)).collect()
    }

    fn row(&self, series: &Series) -> Row {
        let (subject, cell, rates) = (series.subject, series.cell, series.rates());
        let rival = self.find(Subject::BerkeleyDb, cell);
        let ratio = rival.and_then(|rival| Ratio::paired(&rates, &rival.rates()));
        let rate = median(&rates);
        let ours = subject == Subject::Pool;
        let mut all = Outcome::default();
        for outcome in &series.outcomes {
            all.by_worker.push(outcome.operations());
            all.counted.add(&outcome.counted);
        }
        let (operations, counted) = (all.operations(), all.counted);
        let of_hot = operations - counted.scanned;
        let hits = of_hot.saturating_sub(counted.faults - counted.scan_faults);
        let fair = series.outcomes.iter().filter_map(|outcome| fairness(&outcome.by_worker));
        let fair: Vec<f64> = fair.collect();
        let (threads, procs) = match cell.place {
            Place::Threads => (cell.workers, 1),
            Place::Processes => (1, cell.workers),
        };
        let measured = cell.workers - usize::from(cell.workload.has_a_last());
        Row {
            bench: "pool",
            subject: subject.name(),
            rival: !ours,
            machine: "native",
            threads,
            procs,
            params: Params {
                workload: cell.workload.name(),
                frames: self.settings.frames,
                pages: cell.workload.pages(self.settings.frames),
                window_ms: self.settings.window.as_millis() as u64,
            },
            ops_per_s: rate,
            ns_per_op: measured as f64 * 1e9 / rate.max(f64::MIN_POSITIVE),
            spread: spread(&rates),
            p50_ns: median(&series.each(|outcome| outcome.p50_ns)),
            p99_ns: median(&series.each(|outcome| outcome.p99_ns)),
            fairness: (!fair.is_empty()).then(|| median(&fair)),
            runs: rates.len(),
            noisy: noisy(&rates, ratio),
            stores_per_read: ours.then(|| counted.stores as f64 / operations.max(1) as f64),
            hit_rate: ours.then(|| hits as f64 / of_hot.max(1) as f64),
            ratio: ratio.filter(|_| subject != Subject::BerkeleyDb).map(|ratio| ratio.mid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_runs_are_no_agreement() {
        let settings = Settings::default();
        let cell = Cell { workload: Workload::Hot, place: Place::Threads, workers: 1 };
        let series = |subject, rates: &[f64]| {
            let outcome = |rate: &f64| Outcome { ops_per_s: *rate, ..Outcome::default() };
            Series { subject, cell, outcomes: rates.iter().map(outcome).collect() }
        };
        let noisy = |runs| {
            let ours = series(Subject::Pool, &[4.0, 8.0, 4.0][..runs]);
            let theirs = series(Subject::BerkeleyDb, &[1.0, 2.0, 1.0][..runs]);
            let (settings, series) = (settings.clone(), vec![ours, theirs]);
            Report { series, absent: None, no_direct: None, settings }.rows()[0].noisy
        };
        assert_eq!((noisy(2), noisy(3)), (true, false));
    }
}

//! The benchmark: all stores in every cell, in turn, repeated.

use std::collections::BTreeMap;
use std::process::Command;

use super::data::Data;
use super::figures::quoted;
use super::job::Task;
use super::parent::Stores;
use super::row::{Params, Row};
use super::{Cell, Fault, Outcome, Settings, Subject, Workload, trials};
use crate::report::order;
use crate::stats::{Ratio, fairness, median, noisy, quantile, spread};

/// One store in one cell: an outcome for each run that did not fail.
#[derive(Clone, Debug)]
pub struct Series {
    /// The cell.
    pub cell: Cell,
    /// The store.
    pub subject: Subject,
    /// The outcomes with the numbers of their runs. A failed run has no outcome; later runs are
    /// compared with those of the same number.
    pub outcomes: Vec<(usize, Outcome)>,
}

impl Series {
    /// The outcomes of all runs.
    fn all(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().map(|(_, outcome)| outcome)
    }

    /// The outcome of one run.
    fn of_run(&self, number: usize) -> Option<&Outcome> {
        self.outcomes.iter().find(|(run, _)| *run == number).map(|(_, outcome)| outcome)
    }

    /// Operations per second of each run.
    pub fn rates(&self) -> Vec<f64> {
        self.all().map(|outcome| outcome.ops_per_s).collect()
    }

    /// The ratio of its rate to another's, over the runs in which neither failed.
    fn ratio_to(&self, other: &Self) -> Option<Ratio> {
        let pair =
            |(run, ours): &(usize, Outcome)| Some((ours.ops_per_s, other.of_run(*run)?.ops_per_s));
        let (ours, theirs): (Vec<f64>, Vec<f64>) = self.outcomes.iter().filter_map(pair).unzip();
        Ratio::paired(&ours, &theirs)
    }
}

/// The loading of a data set.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The store.
    pub subject: Subject,
    /// The first workload on the data set.
    pub cell: Cell,
    /// Records per second, in random order, 1,000 per transaction.
    pub records_per_s: f64,
    /// Bytes on disk per record, including the log.
    pub bytes_per_record: f64,
}

/// The result of a benchmark.
#[derive(Clone, Debug)]
pub struct Report {
    /// The settings.
    pub settings: Settings,
    /// The series, in the order of cells and subjects.
    pub series: Vec<Series>,
    /// The loads, in the order of data sets and subjects.
    pub loads: Vec<Load>,
    /// Requested stores that are missing, and why.
    pub absent: Vec<(Subject, String)>,
    /// Releases of the stores.
    pub releases: Vec<(Subject, String)>,
    /// Cells in which a store failed, and the error.
    pub failures: Vec<(Subject, Cell, String)>,
}

/// The next measurement.
pub struct Step {
    /// Measurements done.
    pub done: usize,
    /// Measurements in all.
    pub total: usize,
    /// The next store.
    pub subject: Subject,
    /// Its cell.
    pub cell: Cell,
}

/// Runs the benchmark and calls `step` before each measurement. `launch` returns the command of a
/// process that only calls [`serve`](super::serve).
///
/// The report names stores that are missing or fail; the others continue.
///
/// # Errors
///
/// [`Fault::Process`] if no process can be started or no directory created.
pub fn run(
    settings: Settings,
    launch: &dyn Fn() -> Command,
    step: &mut dyn FnMut(&Step),
) -> Result<Report, Fault> {
    let mut report = Report {
        settings: settings.clone(),
        series: Vec::new(),
        loads: Vec::new(),
        absent: Vec::new(),
        releases: Vec::new(),
        failures: Vec::new(),
    };
    let mut subjects = Vec::new();
    for subject in &settings.subjects {
        let release = match *subject {
            Subject::Ours | Subject::Device => Ok(env!("CARGO_PKG_VERSION").to_owned()),
            Subject::Rival(kind) => kind.release(),
        };
        match release {
            Ok(release) => {
                report.releases.push((*subject, release));
                subjects.push(*subject);
            }
            Err(error) => report.absent.push((*subject, error.to_string())),
        }
    }
    let cells = Cell::all(&settings);
    // The device is measured wherever commits wait for it.
    subjects.push(Subject::Device);
    let fits = |cell: &Cell| subjects.iter().filter(|subject| subject.fits(cell)).count();
    let total = cells.iter().map(fits).sum::<usize>() * settings.runs;
    let mut progress = Progress { total, done: 0, step };
    let mut rest = &cells[..];
    while let Some(first) = rest.first() {
        let data = settings.data(first.workload);
        let same = |cell: &&Cell| settings.data(cell.workload) == data;
        let (group, others) = rest.split_at(rest.iter().take_while(same).count());
        one_data_set(&mut report, data, group, &subjects, launch, &mut progress)?;
        rest = others;
    }
    Ok(report)
}

/// The progress of the benchmark.
struct Progress<'p> {
    total: usize,
    done: usize,
    step: &'p mut dyn FnMut(&Step),
}

impl Progress<'_> {
    fn next(&mut self, subject: Subject, cell: &Cell) {
        let (done, total) = (self.done, self.total);
        (self.step)(&Step { done, total, subject, cell: *cell });
        self.done += 1;
    }
}

/// Loads a data set, measures its cells and removes it.
fn one_data_set(
    report: &mut Report,
    data: Data,
    cells: &[Cell],
    subjects: &[Subject],
    launch: &dyn Fn() -> Command,
    progress: &mut Progress<'_>,
) -> Result<(), Fault> {
    let settings = report.settings.clone();
    let mut stores = Stores::new(data, &settings, launch)?;
    let mut there = Vec::new();
    for subject in subjects.iter().filter(|subject| cells.iter().any(|cell| subject.fits(cell))) {
        match stores.load(*subject) {
            Ok(loaded) => {
                there.push(*subject);
                if *subject == Subject::Device || matches!(data, Data::Fresh { .. }) {
                    continue;
                }
                report.loads.push(Load {
                    subject: *subject,
                    cell: cells[0],
                    records_per_s: loaded.records_per_s,
                    bytes_per_record: loaded.bytes_per_record,
                });
            }
            Err(fault) => report.failures.push((*subject, cells[0], format!("load: {fault}"))),
        }
    }
    let start = report.series.len();
    for cell in cells {
        let fresh = there.iter().filter(|subject| subject.fits(cell));
        report.series.extend(fresh.map(|subject| Series {
            cell: *cell,
            subject: *subject,
            outcomes: Vec::new(),
        }));
    }
    for run in 0..settings.runs {
        for cell in cells {
            for player in order(there.len(), run) {
                let subject = there[player];
                let found =
                    |series: &&mut Series| series.cell == *cell && series.subject == subject;
                let Some(series) = report.series[start..].iter_mut().find(found) else { continue };
                progress.next(subject, cell);
                match measure(&stores, subject, cell) {
                    Ok(outcome) => series.outcomes.push((run, outcome)),
                    Err(fault) => report.failures.push((subject, *cell, fault.to_string())),
                }
            }
        }
    }
    for subject in there.iter().filter(|_| cells[0].workload.is_transfer()) {
        if let Err(fault) = stores.verify(*subject) {
            report.failures.push((*subject, cells[0], fault.to_string()));
        }
    }
    report.series.retain(|series| !series.outcomes.is_empty());
    Ok(())
}

/// Measures one store in one cell.
fn measure(stores: &Stores<'_>, subject: Subject, cell: &Cell) -> Result<Outcome, Fault> {
    match cell.workload {
        Workload::Load => stores.measure_load(subject),
        Workload::HeldSnapshot => stores.told(subject, Task::Measure(cell.workload)),
        Workload::KillOne | Workload::KillAll | Workload::Crash => {
            trials::measure(stores, subject, cell)
        }
        _ => stores.measure(subject, cell),
    }
}

impl Report {
    /// The rows, in the order of the series.
    pub fn rows(&self) -> Vec<Row> {
        self.series.iter().map(|series| self.row(series)).collect()
    }

    /// The fastest rival in a cell.
    fn best_rival(&self, cell: &Cell) -> Option<&Series> {
        let rivals =
            self.series.iter().filter(|series| series.cell == *cell && series.subject.is_rival());
        rivals.max_by(|a, b| median(&a.rates()).total_cmp(&median(&b.rates())))
    }

    fn row(&self, series: &Series) -> Row {
        let Series { cell, subject, .. } = series;
        let middle =
            |number: fn(&Outcome) -> f64| median(&series.all().map(number).collect::<Vec<f64>>());
        let best = self.best_rival(cell).filter(|best| best.subject != *subject);
        let ratio = best.and_then(|best| series.ratio_to(best));
        let spread = spread(&series.rates());
        let ops_per_s = middle(|outcome| outcome.ops_per_s);
        // Times measured one by one are too few in one run for its quantiles.
        let pooled = |all: fn(&Outcome) -> &[u64], q| {
            let all: Vec<f64> = series.all().flat_map(all).map(|ns| *ns as f64).collect();
            (!all.is_empty()).then(|| quantile(&all, q))
        };
        let samples = |q| pooled(|outcome| &outcome.samples, q);
        let mut figures = quoted(&self.figures(series));
        let control = pooled(|outcome| &outcome.controls, 0.99);
        figures.extend(control.map(|ns| ("p99_without_kill_ns", ns)));
        let fair: Vec<f64> =
            series.all().filter_map(|outcome| fairness(&outcome.by_worker)).collect();
        let done: u64 = series.all().map(Outcome::done).sum();
        let again: u64 = series.all().map(|outcome| outcome.again).sum();
        let writes: Vec<f64> = series.all().filter_map(|outcome| outcome.writes_per_s).collect();
        Row {
            bench: "store",
            subject: subject.name(),
            rival: subject.is_rival(),
            machine: "native",
            threads: cell.threads,
            procs: cell.procs,
            params: Params::new(cell, &self.settings),
            ops_per_s,
            ns_per_op: 1e9 / ops_per_s.max(f64::MIN_POSITIVE),
            spread,
            p50_ns: samples(0.5).unwrap_or_else(|| middle(|outcome| outcome.p50_ns)),
            p99_ns: samples(0.99).unwrap_or_else(|| middle(|outcome| outcome.p99_ns)),
            fairness: (!fair.is_empty()).then(|| median(&fair)),
            runs: series.outcomes.len(),
            noisy: noisy(&series.rates(), ratio),
            again_per_op: again as f64 / done.max(1) as f64,
            writes_per_s: (!writes.is_empty()).then(|| median(&writes)),
            ratio: ratio.map(|ratio| ratio.mid),
            ratio_low: ratio.map(|ratio| ratio.low),
            ratio_high: ratio.map(|ratio| ratio.high),
            figures,
        }
    }

    /// The series of the same store, or of the device, in another cell.
    fn other(&self, subject: Subject, workload: Workload) -> Option<&Series> {
        let alone = Cell { workload, threads: 1, procs: 1 };
        let found = |series: &&Series| series.subject == subject && series.cell == alone;
        self.series.iter().find(found)
    }

    /// The numbers of each run, including those relative to other series of the run.
    fn figures(&self, series: &Series) -> Vec<BTreeMap<String, f64>> {
        let Series { cell, subject, outcomes } = series;
        let beside = cell.workload == Workload::ReadWhileWriting;
        let alone = |workload| self.other(*subject, workload).filter(|_| beside);
        let (reads, writes) = (alone(Workload::Get), alone(Workload::Put));
        let durable = cell.workload.is_durable();
        let device = self.other(Subject::Device, cell.workload).filter(|_| durable);
        let run = |(number, outcome): &(usize, Outcome)| {
            let mut figures = outcome.figures.clone();
            let mut add = |name: &str, number: Option<f64>| {
                figures.extend(number.map(|number| (name.to_owned(), number)));
            };
            let of = |other: Option<&Series>, figure: fn(&Outcome) -> f64| {
                other?.of_run(*number).map(figure).filter(|figure| *figure > 0.0)
            };
            let over = |mine: f64, other: Option<f64>| other.map(|other| mine / other);
            let rate = |outcome: &Outcome| outcome.ops_per_s;
            let round = of(device, |device| device.p50_ns);
            add("of_device", over(outcome.ops_per_s, of(device, rate)));
            add("p50_rounds", over(outcome.p50_ns, round));
            add("p99_rounds", over(outcome.p99_ns, round));
            let syncs = outcome.syncs.filter(|_| durable).map(|syncs| syncs as f64);
            add("syncs_per_op", syncs.map(|syncs| syncs / outcome.done().max(1) as f64));
            add("procs_max_over_min", outcome.max_over_min(cell.procs).filter(|_| durable));
            add("reads_kept", over(outcome.ops_per_s, of(reads, rate)));
            add("p99_over_alone", over(outcome.p99_ns, of(reads, |alone| alone.p99_ns)));
            let kept = outcome.writes_per_s.and_then(|mine| over(mine, of(writes, rate)));
            add("writes_kept", kept);
            let held = cell.workload == Workload::HeldSnapshot && *subject == Subject::Ours;
            let history = self.settings.data(cell.workload).history().filter(|_| held);
            add("history_bytes", history.map(|bytes| bytes as f64));
            figures
        };
        outcomes.iter().map(run).collect()
    }
}

#[cfg(test)]
mod tests {
    use latchwork_rivals::StoreKind;

    use super::*;

    const CELL: Cell = Cell { workload: Workload::Get, threads: 1, procs: 1 };

    /// The rates of our store and of another in each run, `None` if it failed.
    fn report(ours: &[Option<f64>], theirs: &[Option<f64>]) -> Report {
        let series = |subject, rates: &[Option<f64>]| {
            let outcome = |(run, rate): (usize, &Option<f64>)| {
                Some((run, Outcome { ops_per_s: (*rate)?, ..Outcome::default() }))
            };
            let outcomes = rates.iter().enumerate().filter_map(outcome).collect();
            Series { cell: CELL, subject, outcomes }
        };
        let rival = Subject::Rival(StoreKind::ALL[0]);
        Report {
            settings: Settings::default(),
            series: vec![series(Subject::Ours, ours), series(rival, theirs)],
            loads: Vec::new(),
            absent: Vec::new(),
            releases: Vec::new(),
            failures: Vec::new(),
        }
    }

    #[test]
    fn a_run_that_failed_does_not_shift_those_after_it() {
        // Twice as fast in each run, on a machine that becomes ten times as fast from run to run.
        let ours = [Some(2.0), Some(20.0), Some(200.0), Some(2_000.0)];
        let theirs = [Some(1.0), None, Some(100.0), Some(1_000.0)];
        let row = &report(&ours, &theirs).rows()[0];
        assert_eq!((row.ratio_low, row.ratio, row.ratio_high), (Some(2.0), Some(2.0), Some(2.0)));
        let row = &report(&theirs, &ours).rows()[0];
        assert_eq!((row.ratio, row.runs), (Some(0.5), 3));
    }

    #[test]
    fn two_runs_are_no_agreement() {
        let noisy = |runs| {
            let of = |rates: [f64; 3]| rates.map(Some)[..runs].to_vec();
            report(&of([4.0, 8.0, 4.0]), &of([1.0, 2.0, 1.0])).rows()[0].noisy
        };
        assert_eq!((noisy(2), noisy(3)), (true, false));
    }
}

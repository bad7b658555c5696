//! The whole benchmark: all stores in every cell, in turn, again and again.

use std::collections::BTreeMap;
use std::process::Command;

use super::data::Data;
use super::figures::quoted;
use super::job::Task;
use super::parent::Stores;
use super::row::{Params, Row};
use super::{Cell, Fault, Outcome, Settings, Subject, Workload, trials};
use crate::report::order;
use crate::stats::{Ratio, fairness, median, quantile, spread};

/// One store in one cell: an outcome for each run.
#[derive(Clone, Debug)]
pub struct Series {
    /// Where.
    pub cell: Cell,
    /// Whose.
    pub subject: Subject,
    /// What, by run.
    pub outcomes: Vec<Outcome>,
}

impl Series {
    /// Operations a second, by run.
    pub fn rates(&self) -> Vec<f64> {
        self.outcomes.iter().map(|outcome| outcome.ops_per_s).collect()
    }
}

/// How a data set was loaded, once.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Whose.
    pub subject: Subject,
    /// The first workload that the data is for.
    pub cell: Cell,
    /// Records a second, in random order, 1,000 in a transaction.
    pub records_per_s: f64,
    /// Bytes on the disk for each record, with the log.
    pub bytes_per_record: f64,
}

/// All that was measured.
#[derive(Clone, Debug)]
pub struct Report {
    /// How.
    pub settings: Settings,
    /// In the order of cells and subjects.
    pub series: Vec<Series>,
    /// In the order of data sets and subjects.
    pub loads: Vec<Load>,
    /// Stores that were wanted and are not there, and why.
    pub absent: Vec<(Subject, String)>,
    /// Releases of those that are.
    pub releases: Vec<(Subject, String)>,
    /// Cells in which a store failed, and how.
    pub failures: Vec<(Subject, Cell, String)>,
}

/// The measurement that is about to begin.
pub struct Step {
    /// Measurements done.
    pub done: usize,
    /// Measurements in all.
    pub total: usize,
    /// Whose store is next.
    pub subject: Subject,
    /// Where.
    pub cell: Cell,
}

/// Runs the benchmark and tells `step` of each measurement. `launch` makes the command of a process
/// that calls [`serve`](super::serve) and nothing else.
///
/// A store that is not there is named in the report, and so is one that fails; the others go on.
///
/// # Errors
///
/// [`Fault::Process`], if no process can be started or no folder be made.
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
    // The device is no store: it is measured wherever commits wait for it.
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

/// How far it is.
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

/// Loads a data set, measures its cells, and removes it.
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
                    Ok(outcome) => series.outcomes.push(outcome),
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

/// A spread of more than this makes a comparison worthless, unless all runs agree.
const NOISY: f64 = 0.2;

impl Report {
    /// The rows, in the order of the series.
    pub fn rows(&self) -> Vec<Row> {
        self.series.iter().map(|series| self.row(series)).collect()
    }

    /// The fastest of other people's stores in a cell.
    fn best_rival(&self, cell: &Cell) -> Option<&Series> {
        let rivals =
            self.series.iter().filter(|series| series.cell == *cell && series.subject.is_rival());
        rivals.max_by(|a, b| median(&a.rates()).total_cmp(&median(&b.rates())))
    }

    fn row(&self, series: &Series) -> Row {
        let Series { cell, subject, outcomes } = series;
        let middle = |number: fn(&Outcome) -> f64| {
            median(&outcomes.iter().map(number).collect::<Vec<f64>>())
        };
        let best = self.best_rival(cell).filter(|best| best.subject != *subject);
        let ratio = best.and_then(|best| Ratio::paired(&series.rates(), &best.rates()));
        let spread = spread(&series.rates());
        let ops_per_s = middle(|outcome| outcome.ops_per_s);
        // What is timed one by one is too little in a run for quantiles of it.
        let pooled = |all: fn(&Outcome) -> &[u64], q| {
            let all: Vec<f64> = outcomes.iter().flat_map(all).map(|ns| *ns as f64).collect();
            (!all.is_empty()).then(|| quantile(&all, q))
        };
        let samples = |q| pooled(|outcome| &outcome.samples, q);
        let mut figures = quoted(&self.figures(series));
        let control = pooled(|outcome| &outcome.controls, 0.99);
        figures.extend(control.map(|ns| ("p99_without_kill_ns", ns)));
        let fair: Vec<f64> =
            outcomes.iter().filter_map(|outcome| fairness(&outcome.by_worker)).collect();
        let done: u64 = outcomes.iter().map(Outcome::done).sum();
        let again: u64 = outcomes.iter().map(|outcome| outcome.again).sum();
        let writes: Vec<f64> = outcomes.iter().filter_map(|outcome| outcome.writes_per_s).collect();
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
            runs: outcomes.len(),
            noisy: spread > NOISY && !ratio.is_some_and(|ratio| ratio.unanimous),
            again_per_op: again as f64 / done.max(1) as f64,
            writes_per_s: (!writes.is_empty()).then(|| median(&writes)),
            ratio: ratio.map(|ratio| ratio.mid),
            ratio_low: ratio.map(|ratio| ratio.low),
            ratio_high: ratio.map(|ratio| ratio.high),
            figures,
        }
    }

    /// What was measured of the same store in another cell, or of the device, run by run.
    fn other(&self, subject: Subject, workload: Workload) -> Option<&[Outcome]> {
        let alone = Cell { workload, threads: 1, procs: 1 };
        let found = |series: &&Series| series.subject == subject && series.cell == alone;
        self.series.iter().find(found).map(|series| &series.outcomes[..])
    }

    /// The numbers of each run, those counted in that compare it with others of the run.
    fn figures(&self, series: &Series) -> Vec<BTreeMap<String, f64>> {
        let Series { cell, subject, outcomes } = series;
        let beside = cell.workload == Workload::ReadWhileWriting;
        let alone = |workload| self.other(*subject, workload).filter(|_| beside);
        let (reads, writes) = (alone(Workload::Get), alone(Workload::Put));
        let durable = cell.workload.is_durable();
        let device = self.other(Subject::Device, cell.workload).filter(|_| durable);
        let run = |(at, outcome): (usize, &Outcome)| {
            let mut figures = outcome.figures.clone();
            let mut add = |name: &str, number: Option<f64>| {
                figures.extend(number.map(|number| (name.to_owned(), number)));
            };
            let of = |all: Option<&[Outcome]>, number: fn(&Outcome) -> f64| {
                all.and_then(|all| all.get(at)).map(number).filter(|number| *number > 0.0)
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
        outcomes.iter().enumerate().map(run).collect()
    }
}

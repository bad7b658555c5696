//! The whole benchmark: all stores in every cell, in turn, again and again.

use std::process::Command;

use super::data::Data;
use super::parent::Stores;
use super::row::{Params, Row};
use super::{Cell, Fault, Outcome, Settings, Subject};
use crate::report::order;
use crate::stats::{Ratio, fairness, median, spread};

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
            Subject::Ours => Ok(env!("CARGO_PKG_VERSION").to_owned()),
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
    let total = cells.len() * subjects.len() * settings.runs;
    let mut progress = Progress { total, done: 0, step };
    let mut rest = &cells[..];
    while let Some(first) = rest.first() {
        let data = first.workload.data(&settings);
        let same = |cell: &&Cell| cell.workload.data(&settings) == data;
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
    for subject in subjects {
        match stores.load(*subject) {
            Ok(loaded) => {
                there.push(*subject);
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
        let fits = |subject: &&Subject| cell.procs == 1 || subject.is_shared();
        let fresh = there.iter().filter(fits);
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
                match stores.measure(subject, cell) {
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
        let fair: Vec<f64> =
            outcomes.iter().filter_map(|outcome| fairness(&outcome.by_worker)).collect();
        let done: u64 = outcomes.iter().map(Outcome::done).sum();
        let again: u64 = outcomes.iter().map(|outcome| outcome.again).sum();
        let syncs: Option<u64> = outcomes.iter().map(|outcome| outcome.syncs).sum();
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
            p50_ns: middle(|outcome| outcome.p50_ns),
            p99_ns: middle(|outcome| outcome.p99_ns),
            fairness: (!fair.is_empty()).then(|| median(&fair)),
            runs: outcomes.len(),
            noisy: spread > NOISY && !ratio.is_some_and(|ratio| ratio.unanimous),
            again_per_op: again as f64 / done.max(1) as f64,
            syncs_per_op: syncs
                .filter(|_| cell.workload.is_durable())
                .map(|syncs| syncs as f64 / done.max(1) as f64),
            writes_per_s: (!writes.is_empty()).then(|| median(&writes)),
            ratio: ratio.map(|ratio| ratio.mid),
            ratio_low: ratio.map(|ratio| ratio.low),
            ratio_high: ratio.map(|ratio| ratio.high),
        }
    }
}

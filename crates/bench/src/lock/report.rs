//! The benchmark: both lock managers in every cell, in turn, repeated.

use std::process::Command;

use latchwork_rivals::Bdb;

use super::parent::measure;
use super::row::{Params, Row};
use super::{Cell, Fault, Outcome, Settings, Subject};
use crate::report::order;
use crate::stats::{Ratio, fairness, median, noisy, spread};

/// One lock manager in one cell: one outcome per run.
#[derive(Clone, Debug)]
pub struct Series {
    /// The cell.
    pub cell: Cell,
    /// The lock manager.
    pub subject: Subject,
    /// The outcomes.
    pub outcomes: Vec<Outcome>,
}

impl Series {
    /// A number of each run.
    pub fn each(&self, number: impl Fn(&Outcome) -> f64) -> Vec<f64> {
        self.outcomes.iter().map(number).collect()
    }

    /// Operations per second of each run.
    pub fn rates(&self) -> Vec<f64> {
        self.each(|outcome| outcome.ops_per_s)
    }
}

/// The result of a benchmark.
#[derive(Clone, Debug)]
pub struct Report {
    /// The settings.
    pub settings: Settings,
    /// The series, in the order of cells and subjects.
    pub series: Vec<Series>,
    /// The rival's release.
    pub release: Option<String>,
    /// Why a requested rival is missing.
    pub absent: Option<String>,
}

/// The next measurement.
pub struct Step {
    /// Measurements done.
    pub done: usize,
    /// Measurements in all.
    pub total: usize,
    /// The next lock manager.
    pub subject: Subject,
    /// Its cell.
    pub cell: Cell,
}

/// Runs the benchmark and calls `step` before each measurement. `launch` returns the command of a
/// process that only calls [`serve`](super::serve).
///
/// If Berkeley DB is requested and not installed, the report says so and our lock manager runs
/// alone.
///
/// # Errors
///
/// The first [`Fault`].
pub fn run(
    settings: Settings,
    launch: &dyn Fn() -> Command,
    step: &mut dyn FnMut(&Step),
) -> Result<Report, Fault> {
    let mut subjects = settings.subjects.clone();
    let (mut release, mut absent) = (None, None);
    if subjects.contains(&Subject::BerkeleyDb) {
        match Bdb::release() {
            Ok(found) => release = Some(found),
            Err(error) => {
                absent = Some(error.to_string());
                subjects.retain(|subject| !subject.is_rival());
            }
        }
    }
    let cells = Cell::all(&settings.only);
    let empty = |(cell, subject): (&Cell, &Subject)| Series {
        cell: *cell,
        subject: *subject,
        outcomes: Vec::new(),
    };
    let takes_part =
        |(cell, subject): &(&Cell, &Subject)| !(cell.workload.is_steep() && subject.is_rival());
    let pairs = cells.iter().flat_map(|cell| subjects.iter().map(move |s| (cell, s)));
    let pairs = pairs.filter(takes_part);
    let mut series: Vec<Series> = pairs.map(empty).collect();
    let total = series.len() * settings.runs;
    let mut done = 0;
    for run in 0..settings.runs {
        for cell in &cells {
            for player in order(subjects.len(), run) {
                let subject = subjects[player];
                let of = |one: &&mut Series| one.cell == *cell && one.subject == subject;
                let Some(series) = series.iter_mut().find(of) else { continue };
                step(&Step { done, total, subject, cell: *cell });
                let outcome = measure(subject, cell, &settings, launch)?;
                series.outcomes.push(outcome);
                done += 1;
            }
        }
    }
    Ok(Report { settings, series, release, absent })
}

impl Report {
    /// The series of a lock manager in a cell.
    pub fn find(&self, subject: Subject, cell: &Cell) -> Option<&Series> {
        self.series.iter().find(|series| series.subject == subject && series.cell == *cell)
    }

    /// The rows, in the order of the series.
    pub fn rows(&self) -> Vec<Row> {
        self.series.iter().map(|series| self.row(series)).collect()
    }

    fn row(&self, series: &Series) -> Row {
        let Series { cell, subject, outcomes } = series;
        let middle = |number: fn(&Outcome) -> f64| median(&series.each(number));
        let rival = self.find(Subject::BerkeleyDb, cell).filter(|_| !subject.is_rival());
        let ratio = rival.and_then(|rival| Ratio::paired(&series.rates(), &rival.rates()));
        let spread = spread(&series.rates());
        let ops_per_s = middle(|outcome| outcome.ops_per_s);
        let fair: Vec<f64> =
            outcomes.iter().filter_map(|outcome| fairness(&outcome.by_worker)).collect();
        let bytes: Vec<f64> =
            outcomes.iter().filter_map(|outcome| outcome.bytes_per_lock).collect();
        let counted: u64 = outcomes.iter().map(|outcome| outcome.counted).sum();
        let fast: u64 = outcomes.iter().map(|outcome| outcome.fast).sum();
        Row {
            bench: "lock",
            subject: subject.name(),
            rival: subject.is_rival(),
            machine: "native",
            threads: cell.workers,
            procs: cell.procs(),
            params: Params::new(cell, outcomes, &self.settings),
            ops_per_s,
            ns_per_op: 1e9 / ops_per_s.max(f64::MIN_POSITIVE),
            spread,
            p50_ns: middle(|outcome| outcome.p50_ns),
            p99_ns: middle(|outcome| outcome.p99_ns),
            fairness: (!fair.is_empty()).then(|| median(&fair)),
            runs: outcomes.len(),
            noisy: noisy(&series.rates(), ratio),
            counted,
            fast: (!subject.is_rival()).then(|| fast as f64 / counted.max(1) as f64),
            victims: cell.workload.cycle().map(|_| outcomes.iter().map(|o| o.victims).sum()),
            bytes_per_lock: (!bytes.is_empty()).then(|| median(&bytes)),
            region_bytes: outcomes.iter().map(|outcome| outcome.region_bytes).max().unwrap_or(0),
            ratio: ratio.map(|ratio| ratio.mid),
            ratio_low: ratio.map(|ratio| ratio.low),
            ratio_high: ratio.map(|ratio| ratio.high),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_runs_are_no_agreement() {
        let settings = Settings::default();
        let cell = Cell::all(&settings.only)[0];
        let series = |subject, rates: &[f64]| {
            let outcome = |rate: &f64| Outcome { ops_per_s: *rate, ..Outcome::default() };
            Series { cell, subject, outcomes: rates.iter().map(outcome).collect() }
        };
        let noisy = |runs| {
            let ours = series(Subject::Ours, &[4.0, 8.0, 4.0][..runs]);
            let theirs = series(Subject::BerkeleyDb, &[1.0, 2.0, 1.0][..runs]);
            let (settings, series) = (settings.clone(), vec![ours, theirs]);
            Report { settings, series, release: None, absent: None }.rows()[0].noisy
        };
        assert_eq!((noisy(2), noisy(3)), (true, false));
    }
}

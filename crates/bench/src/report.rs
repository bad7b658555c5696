//! The benchmark: every latch in every cell, in turn, repeated.

use std::time::Duration;

use crate::stats::{Ratio, median, noisy, quantile, spread};
use crate::{Bench, Case, Cell, Fault, Pace, Role, Row, Sample, Settings, Subject};

/// The numbers of one latch in one cell and role, one per run.
#[derive(Clone, Debug)]
pub struct Series {
    /// Index of the cell in the report.
    pub cell: usize,
    /// The measured operation.
    pub role: Role,
    /// The latch.
    pub subject: &'static str,
    /// Whether it is a rival.
    pub rival: bool,
    /// Operations per second.
    pub ops_per_s: Vec<f64>,
    /// Median wait of the runs that sampled waits; see [`Part`](crate::Part).
    pub p50_ns: Vec<f64>,
    /// 99th percentile of the waits.
    pub p99_ns: Vec<f64>,
    /// Longest wait of a run.
    pub max_ns: Vec<f64>,
    /// See [`fairness`](crate::stats::fairness).
    pub fairness: Vec<f64>,
    /// Fraction of checks that found a writer inside or the next thread at the latch.
    pub contended: Option<f64>,
}

/// The result of a benchmark.
pub struct Report {
    /// The settings.
    pub settings: Settings,
    /// The latches.
    pub subjects: Vec<Subject>,
    /// The cells.
    pub cells: Vec<Cell>,
    /// The series, in the order of cells, roles and latches.
    pub series: Vec<Series>,
}

/// The next measurement.
pub struct Step<'a> {
    /// Measurements done.
    pub done: usize,
    /// Measurements in all.
    pub total: usize,
    /// The next latch.
    pub subject: &'static str,
    /// Its cell.
    pub cell: &'a Cell,
}

/// The order in which `count` subjects are measured in a run. Each run starts with another subject
/// and every second run is in reverse, so no subject always follows the same neighbour.
pub fn order(count: usize, run: usize) -> Vec<usize> {
    let forwards = |i| (run + i) % count;
    let backwards = |i| (run % count + count - i) % count;
    let even = run.is_multiple_of(2);
    (0..count).map(|i| if even { forwards(i) } else { backwards(i) }).collect()
}

/// Runs the benchmark and calls `step` before each measurement.
///
/// # Errors
///
/// The first fault; see [`Fault`].
pub fn run(
    settings: Settings,
    subjects: Vec<Subject>,
    step: &mut dyn FnMut(&Step<'_>),
) -> Result<Report, Fault> {
    let pace = Pace::measure();
    let mut cells = Cell::all(&settings);
    cells.retain(|cell| subjects.iter().any(|s| s.takes_part(cell)));
    let players: Vec<Vec<&Subject>> =
        cells.iter().map(|cell| subjects.iter().filter(|s| s.takes_part(cell)).collect()).collect();
    let total = players.iter().map(Vec::len).sum::<usize>() * settings.runs;

    let mut samples: Vec<Vec<Vec<Sample>>> =
        players.iter().map(|subjects| vec![Vec::new(); subjects.len()]).collect();
    let mut done = 0;
    for run in 0..settings.runs {
        for (at, cell) in cells.iter().enumerate() {
            for player in order(players[at].len(), run) {
                let subject = players[at][player];
                step(&Step { done, total, subject: subject.name, cell });
                samples[at][player].push(subject.measure(&case(&settings, subject, cell, pace))?);
                done += 1;
            }
        }
    }

    let mut series = Vec::new();
    for (at, cell) in cells.iter().enumerate() {
        for (subject, samples) in players[at].iter().zip(&samples[at]) {
            prove_contention(subject, samples, &case(&settings, subject, cell, pace))?;
        }
        for (part, role) in cell.roles().iter().enumerate() {
            let of = |(subject, samples): (&&Subject, &Vec<Sample>)| {
                Series::new(at, *role, part, subject, samples)
            };
            series.extend(players[at].iter().zip(&samples[at]).map(of));
        }
    }
    Ok(Report { settings, subjects, cells, series })
}

fn case<'a>(settings: &Settings, subject: &Subject, cell: &'a Cell, pace: Pace) -> Case<'a> {
    let (window, pin, patience) = (settings.window, settings.pin, settings.patience);
    Case { subject: subject.name, cell, pace, window, pin, patience }
}

/// Checks that a contention benchmark had contention. A busy machine may prevent it, so the
/// measurement is repeated with a longer duration before it is a fault.
fn prove_contention(subject: &Subject, samples: &[Sample], case: &Case<'_>) -> Result<(), Fault> {
    let contest = matches!(case.cell.bench, Bench::Short | Bench::Long) && case.cell.threads > 1;
    if !contest || samples.iter().any(|s| s.busy > 0) {
        return Ok(());
    }
    let mut looks: u64 = samples.iter().map(|s| s.looks).sum();
    for longer in [5, 20] {
        let window = case.window.max(Duration::from_millis(100)) * longer;
        let sample = subject.measure(&Case { window, ..*case })?;
        if sample.busy > 0 {
            return Ok(());
        }
        looks += sample.looks;
    }
    let cell = case.cell.to_string();
    Err(Fault::NeverContended { subject: subject.name, cell, looks })
}

impl Series {
    fn new(cell: usize, role: Role, part: usize, subject: &Subject, samples: &[Sample]) -> Self {
        let parts = || samples.iter().map(|sample| &sample.parts[part]);
        let looks: u64 = samples.iter().map(|s| s.looks).sum();
        let busy: u64 = samples.iter().map(|s| s.busy).sum();
        Self {
            cell,
            role,
            subject: subject.name,
            rival: subject.rival,
            ops_per_s: parts().map(|p| p.ops_per_s).collect(),
            p50_ns: parts().filter_map(|p| p.p50_ns).collect(),
            p99_ns: parts().filter_map(|p| p.p99_ns).collect(),
            max_ns: parts().filter_map(|p| p.max_ns).collect(),
            fairness: samples.iter().filter_map(|s| s.fairness).collect(),
            contended: (looks > 0).then(|| busy as f64 / looks as f64),
        }
    }
}

impl Report {
    /// The series of `subject` in the first cell that `cell` accepts.
    pub fn find(&self, subject: &str, role: Role, cell: impl Fn(&Cell) -> bool) -> Option<&Series> {
        let fits =
            |s: &&Series| s.subject == subject && s.role == role && cell(&self.cells[s.cell]);
        self.series.iter().find(fits)
    }

    /// The rival with the highest median throughput in the cell of `series`.
    pub fn best_rival(&self, series: &Series) -> Option<&Series> {
        let beside = |s: &&Series| s.rival && s.cell == series.cell && s.role == series.role;
        let speed = |s: &&Series| median(&s.ops_per_s);
        self.series.iter().filter(beside).max_by(|a, b| speed(a).total_cmp(&speed(b)))
    }

    /// A row for each series.
    pub fn rows(&self) -> Vec<Row> {
        self.series.iter().map(|series| self.row(series)).collect()
    }

    fn row(&self, series: &Series) -> Row {
        let cell = &self.cells[series.cell];
        let best = self.best_rival(series).filter(|best| best.subject != series.subject);
        let ratio = best.and_then(|best| Ratio::paired(&series.ops_per_s, &best.ops_per_s));
        let spread = spread(&series.ops_per_s);
        let middle = |values: &[f64]| (!values.is_empty()).then(|| median(values));
        let ops_per_s = median(&series.ops_per_s);
        let ratio_to = best.map(|best| best.subject);
        Row {
            bench: "latch",
            subject: series.subject,
            rival: series.rival,
            machine: "native",
            threads: cell.threads,
            procs: 1,
            params: crate::row::Params::new(cell, series.role, &self.settings),
            ops_per_s,
            ns_per_op: 1e9 / ops_per_s,
            spread,
            p50_ns: middle(&series.p50_ns),
            p99_ns: middle(&series.p99_ns),
            fairness: middle(&series.fairness),
            runs: series.ops_per_s.len(),
            noisy: noisy(&series.ops_per_s, ratio),
            role: series.role,
            max_ns: (!series.max_ns.is_empty()).then(|| quantile(&series.max_ns, 1.0)),
            contended: series.contended,
            ratio: ratio.map(|r| r.mid),
            ratio_low: ratio.map(|r| r.low),
            ratio_high: ratio.map(|r| r.high),
            ratio_to,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, Part};

    const FREE: Subject = Subject {
        name: "free",
        rival: false,
        kind: Kind::Exclusive,
        size: 0,
        measure: |case| {
            let (p50_ns, p99_ns, max_ns) = (Some(1.0), Some(1.0), Some(1.0));
            let part = Part { role: case.cell.side, ops_per_s: 1e6, p50_ns, p99_ns, max_ns };
            Ok(Sample { parts: vec![part], fairness: Some(0.5), looks: 10, busy: 0 })
        },
    };

    #[test]
    fn a_contest_that_nobody_contends_fails() {
        let settings = Settings { only: vec![Bench::Short], runs: 2, ..Settings::default() };
        let Err(fault) = run(settings, vec![FREE], &mut |_| ()) else { panic!("it passed") };
        let expected = "free was never contended (short section, threads: 2): 40 looks, and it was always free";
        assert_eq!(fault.to_string(), expected);
    }

    #[test]
    fn one_thread_need_not_contend() {
        let threads = Some(vec![1]);
        let settings = Settings { only: vec![Bench::Short], threads, ..Settings::default() };
        let report = run(settings, vec![FREE], &mut |_| ());
        assert_eq!(report.map(|r| r.rows().len()).ok(), Some(1));
    }

    #[test]
    fn a_row_is_noisy_only_if_the_runs_do_not_agree() {
        let settings = Settings { only: vec![Bench::Short], ..Settings::default() };
        let threads = Some(vec![1]);
        let rival = Subject { name: "rival", rival: true, ..FREE };
        let report = run(Settings { threads, ..settings }, vec![FREE, rival], &mut |_| ());
        let Ok(mut report) = report else { panic!("a fault") };
        let noisy = |report: &mut Report, ours: [f64; 3], theirs: [f64; 3]| {
            report.series[0].ops_per_s = ours.to_vec();
            report.series[1].ops_per_s = theirs.to_vec();
            let rows = report.rows();
            assert_eq!((rows[0].ratio_to, rows[1].ratio_to), (Some("rival"), None));
            rows[0].noisy
        };
        assert!(!noisy(&mut report, [1.0, 1.05, 1.1], [1.0, 1.1, 1.0]), "a small spread");
        assert!(noisy(&mut report, [1.0, 2.0, 3.0], [2.0, 2.0, 2.0]), "a large one");
        assert!(!noisy(&mut report, [1.0, 2.0, 3.0], [0.5, 1.0, 1.5]), "and yet twice as fast");
    }
}

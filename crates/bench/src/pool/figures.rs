//! The targets of our pool, compared with the measurements.

use super::plan::{Cell, Place, Subject, Workload};
use super::report::{Report, Series};
use crate::stats::Ratio;
use crate::{Bound, Figure};

use super::outcome::Outcome;
use Bound::{AtLeast, AtMost};
use Place::{Processes, Threads};
use Subject::{BerkeleyDb, Pool, Pread, Slice};
use Workload::{BeyondDirect, Calm, Hot, Scan, ScanTold, Search, Uniform, WriteBack};

/// The targets to which `report` has measurements.
pub fn figures(report: &Report) -> Vec<Figure> {
    let mut to = Judge { report, figures: Vec::new() };
    to.hot();
    to.workers();
    to.search();
    to.beyond();
    to.scans();
    to.write_back();
    to.figures
}

struct Judge<'a> {
    report: &'a Report,
    figures: Vec<Figure>,
}

impl<'a> Judge<'a> {
    fn of(
        &self,
        subject: Subject,
        workload: Workload,
        place: Place,
        workers: usize,
    ) -> Option<&'a Series> {
        self.report.find(subject, Cell { workload, place, workers })
    }

    /// Judges a number of each run.
    fn number(
        &mut self,
        what: String,
        bound: Bound,
        series: Option<&Series>,
        number: impl Fn(&Outcome) -> f64,
    ) {
        let Some(series) = series else { return };
        let ones = vec![1.0; series.outcomes.len()];
        if let Some(ratio) = Ratio::paired(&series.each(number), &ones) {
            self.figures.push(Figure::of_ratio(what, bound, ratio));
        }
    }

    /// Judges the ratio of two numbers, run by run.
    fn ratio(
        &mut self,
        what: String,
        bound: Bound,
        pair: (Option<&Series>, Option<&Series>),
        number: impl Fn(&Outcome) -> f64,
    ) {
        let (Some(over), Some(under)) = pair else { return };
        if let Some(ratio) = Ratio::paired(&over.each(&number), &under.each(&number)) {
            self.figures.push(Figure::of_ratio(what, bound, ratio));
        }
    }

    fn hot(&mut self) {
        let ours = self.of(Pool, Hot, Threads, 1);
        self.number("hot, 1 thread, ns a read".into(), AtMost(25.0), ours, |o| 1e9 / o.ops_per_s);
        let what = "hot, stores where others load, a read".to_owned();
        let workers = self.of(Pool, Hot, Threads, 2).or(ours);
        self.number(what, AtMost(0.001), workers, |outcome| {
            outcome.counted.stores as f64 / outcome.operations().max(1) as f64
        });
        for (workers, times) in [(1, 8.0), (2, 15.0)] {
            let pair =
                (self.of(Pool, Hot, Threads, workers), self.of(BerkeleyDb, Hot, Threads, workers));
            let what = format!("hot, {}, rate: ours / Berkeley DB's", threads(workers));
            self.ratio(what, AtLeast(times), pair, rate);
        }
    }

    fn workers(&mut self) {
        for workload in [Hot, Uniform] {
            let name = workload.name();
            let two = self.of(Pool, workload, Threads, 2);
            let pair = (two, self.of(Pool, workload, Threads, 1));
            self.ratio(format!("{name}, rate: 2 threads / 1"), AtLeast(1.9), pair, rate);
            let pair = (self.of(Pool, workload, Processes, 2), two);
            self.ratio(format!("{name}, rate: 2 processes / 2 threads"), AtLeast(0.9), pair, rate);
        }
    }

    fn search(&mut self) {
        let pair = (self.of(Slice, Search, Threads, 1), self.of(Pool, Search, Threads, 1));
        let what = "search of 80 keys, time: page / slice".to_owned();
        self.ratio(what, AtMost(1.15), pair, rate);
    }

    fn beyond(&mut self) {
        for workers in [1, 2] {
            let of = |subject| self.of(subject, BeyondDirect, Threads, workers);
            let pair = (of(Pool), of(Pread));
            let what = format!("beyond-direct, {}, rate: ours / pread", threads(workers));
            self.ratio(what, AtLeast(0.9), pair, rate);
        }
    }

    fn scans(&mut self) {
        for workload in [Scan, ScanTold] {
            let what = format!("{}, hit rate of the hot set beside it", workload.name());
            self.number(what, AtLeast(0.95), self.of(Pool, workload, Threads, 1), |outcome| {
                let counted = outcome.counted;
                let all = outcome.operations() - counted.scanned;
                1.0 - (counted.faults - counted.scan_faults) as f64 / all.max(1) as f64
            });
        }
    }

    fn write_back(&mut self) {
        let of = |workload| self.of(Pool, workload, Threads, 2);
        let what = "readers' p99: beside write-back / calm".to_owned();
        self.ratio(what, AtMost(2.0), (of(WriteBack), of(Calm)), |outcome| outcome.p99_ns);
    }
}

fn rate(outcome: &Outcome) -> f64 {
    outcome.ops_per_s
}

fn threads(count: usize) -> String {
    if count == 1 { "1 thread".to_owned() } else { format!("{count} threads") }
}

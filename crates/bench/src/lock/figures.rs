//! What our lock manager is to reach, beside what was measured.

use super::{Cell, Outcome, Place, Report, Series, Subject, Workload};
use crate::stats::{Ratio, median};
use crate::{Bound, Figure};

use Bound::{AtLeast, AtMost};
use Place::{Private, Processes, Region};
use Workload::{Calm, Cycle2, Cycle100, Detecting, Held, OneObject, ReleaseAll, Strong, Weak};

/// The figures that `report` has something to say about.
pub fn figures(report: &Report) -> Vec<Figure> {
    let mut to = Judge { report, figures: Vec::new() };
    to.one_worker();
    to.places();
    to.two_workers();
    to.deadlocks();
    to.sizes();
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
        self.report.find(subject, &Cell { workload, place, workers, others: 0 })
    }

    fn ours(&self, workload: Workload, place: Place, workers: usize) -> Option<&'a Series> {
        self.of(Subject::Ours, workload, place, workers)
    }

    /// Judges a number of each run.
    fn number(
        &mut self,
        what: String,
        bound: Bound,
        series: Option<&Series>,
        each: impl Fn(&Outcome) -> f64,
    ) {
        let Some(series) = series else { return };
        let numbers = series.each(each);
        let ones = vec![1.0; numbers.len()];
        let Some(ratio) = Ratio::paired(&numbers, &ones) else { return };
        self.figures.push(Figure::of_ratio(what, bound, ratio));
    }

    /// Judges one's number over another's, run by run.
    fn ratio(
        &mut self,
        what: String,
        bound: Bound,
        pair: (Option<&Series>, Option<&Series>),
        each: impl Fn(&Outcome) -> f64,
    ) {
        let (Some(over), Some(under)) = pair else { return };
        let Some(ratio) = Ratio::paired(&over.each(&each), &under.each(&each)) else { return };
        self.figures.push(Figure::of_ratio(what, bound, ratio));
    }

    fn one_worker(&mut self) {
        for (workload, limit, speed) in [(Weak, 20.0, 4.0), (Strong, 50.0, 1.8)] {
            let name = workload.name();
            let ours = self.ours(workload, Private, 1);
            let theirs = self.of(Subject::BerkeleyDb, workload, Private, 1);
            self.number(format!("{name} lock and unlock, ns"), AtMost(limit), ours, batch_ns);
            let what = format!("{name} lock and unlock, speed: ours / theirs");
            self.ratio(what, AtLeast(speed), (theirs, ours), batch_ns);
        }
    }

    fn places(&mut self) {
        for workload in [Weak, Strong] {
            let what = format!("{}, time: shared region / private", workload.name());
            let pair = (self.ours(workload, Region, 1), self.ours(workload, Private, 1));
            self.ratio(what, AtMost(1.1), pair, batch_ns);
        }
        for workload in [Weak, Strong, OneObject] {
            let what = format!("{}, time: 2 processes / 2 threads", workload.name());
            let pair = (self.ours(workload, Processes, 2), self.ours(workload, Region, 2));
            self.ratio(what, AtMost(1.1), pair, pair_ns);
        }
    }

    /// How much faster two workers are than one of the same place.
    fn scaling(
        &self,
        subject: Subject,
        workload: Workload,
        place: Place,
    ) -> (Option<&'a Series>, Option<&'a Series>) {
        let (alone, home) = (
            if workload == OneObject { Weak } else { workload },
            if place == Processes { Region } else { place },
        );
        (self.of(subject, workload, place, 2), self.of(subject, alone, home, 1))
    }

    fn two_workers(&mut self) {
        for workload in [Weak, Strong, OneObject] {
            for place in [Private, Processes] {
                let workers = if place == Processes { "processes" } else { "threads" };
                let what = match workload {
                    OneObject => format!("one object read, rate: 2 {workers} / 1"),
                    _ => format!("{} disjoint, rate: 2 {workers} / 1", workload.name()),
                };
                let theirs = match self.scaling(Subject::BerkeleyDb, workload, place) {
                    (Some(two), Some(one)) => Ratio::paired(&two.rates(), &one.rates()),
                    _ => None,
                };
                let theirs = theirs.map_or(String::new(), |r| format!(" (theirs {:.2})", r.mid));
                let pair = self.scaling(Subject::Ours, workload, place);
                self.ratio(what + &theirs, AtLeast(1.9), pair, rate);
            }
        }
    }

    fn deadlocks(&mut self) {
        let all = self.ours(ReleaseAll, Private, 1);
        self.number("release of 1,000 locks, us".into(), AtMost(50.0), all, |o| o.p50_ns / 1e3);
        for (workload, limit) in [(Cycle2, 1.0), (Cycle100, 10.0)] {
            let Some(series) = self.ours(workload, Private, 1) else { continue };
            let waiters = median(&series.each(|outcome| outcome.waiters as f64));
            let ring = workload.ring().unwrap_or(0);
            let what = format!("ring of {ring} broken, ms ({waiters} waiters)");
            self.number(what, AtMost(limit), Some(series), |outcome| outcome.p50_ns / 1e6);
        }
        let pair = (self.ours(Detecting, Private, 1), self.ours(Calm, Private, 1));
        let what = "others' p99: deadlocks looked for / not".to_owned();
        self.ratio(what, AtMost(1.1), pair, |outcome| outcome.p99_ns);
    }

    fn sizes(&mut self) {
        let Some(series) = self.ours(Held, Private, 1) else { return };
        let held = series.outcomes.first().map_or(0, |outcome| outcome.held);
        let what = format!("bytes a strong lock ({held} held)");
        self.number(what, AtMost(128.0), Some(series), |o| o.bytes_per_lock.unwrap_or(0.0));
    }
}

fn rate(outcome: &Outcome) -> f64 {
    outcome.ops_per_s
}

/// Of one worker, whom nobody disturbs but the rest of the machine: the median batch was left
/// alone.
fn batch_ns(outcome: &Outcome) -> f64 {
    outcome.p50_ns
}

fn pair_ns(outcome: &Outcome) -> f64 {
    1e9 / outcome.ops_per_s.max(f64::MIN_POSITIVE)
}

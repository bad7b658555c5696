//! The targets of our lock manager, compared with the measurements.

use super::{Cell, Outcome, Place, Report, Series, Subject, Workload};
use crate::stats::{Ratio, median};
use crate::{Bound, Figure};

use Bound::{AtLeast, AtMost};
use Place::{Private, Processes, Region};
use Workload::{
    Calm, Cold, Cycle2, Cycle100, Detecting, Held, LookBehind, OneObject, OwnerBeside, ReleaseAll,
    ReleaseBehind, SessionBeside, SharedBehind, Strong, StrongBeside, Table, WaitBehind, Weak,
    Zipf,
};

/// The targets to which `report` has measurements.
pub fn figures(report: &Report) -> Vec<Figure> {
    let mut to = Judge { report, figures: Vec::new() };
    to.one_worker();
    to.places();
    to.two_workers();
    to.table();
    to.deadlocks();
    to.sizes();
    to.steep();
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

    /// Judges the ratio of two numbers, run by run.
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
        for (workload, limit, speed) in [(Weak, 20.0, 10.0), (Strong, 50.0, 10.0)] {
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

    /// The speed-up from one worker to two in the same place.
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

    /// Locks that are new to their owner or that other owners write: the requests of a transaction.
    fn table(&mut self) {
        let goals = [
            (Table, Private, 1, 4.0),
            (Table, Private, 2, 4.0),
            (Cold, Private, 1, 1.5),
            (Cold, Private, 2, 3.0),
            (Zipf, Private, 2, 3.0),
            (Zipf, Region, 2, 3.0),
            (Zipf, Processes, 2, 3.0),
            (Held, Private, 1, 1.0),
        ];
        for (workload, place, workers, goal) in goals {
            let what = match workload {
                Held => "first locks, rate: ours / theirs".to_owned(),
                _ => {
                    let (name, place) = (workload.name(), place.name());
                    format!("{name}, {place}, {workers}, rate: ours / theirs")
                }
            };
            let theirs = self.of(Subject::BerkeleyDb, workload, place, workers);
            self.ratio(what, AtLeast(goal), (self.ours(workload, place, workers), theirs), rate);
        }
        let theirs = self.of(Subject::BerkeleyDb, ReleaseAll, Private, 1);
        let pair = (theirs, self.ours(ReleaseAll, Private, 1));
        let what = "release of 1,000 locks, speed: ours / theirs".to_owned();
        self.ratio(what, AtLeast(2.0), pair, |outcome| outcome.p50_ns);
    }

    fn deadlocks(&mut self) {
        let all = self.ours(ReleaseAll, Private, 1);
        self.number("release of 1,000 locks, us".into(), AtMost(50.0), all, |o| o.p50_ns / 1e3);
        for (workload, limit) in [(Cycle2, 1.0), (Cycle100, 10.0)] {
            let Some(series) = self.ours(workload, Private, 1) else { continue };
            let waiters = median(&series.each(|outcome| outcome.waiters as f64));
            let cycle = workload.cycle().unwrap_or(0);
            let what = format!("cycle of {cycle} broken, ms ({waiters} waiters)");
            self.number(what, AtMost(limit), Some(series), |outcome| outcome.p50_ns / 1e6);
        }
        let pair = (self.ours(Detecting, Private, 1), self.ours(Calm, Private, 1));
        let what = "others' p99: deadlocks looked for / not".to_owned();
        self.ratio(what, AtMost(1.1), pair, |outcome| outcome.p99_ns);
    }

    /// The cost of a request among 10,000 others, in microseconds or relative to its cost among
    /// one.
    fn steep(&mut self) {
        let beside = |workload, others| {
            let cell = Cell { workload, place: Private, workers: 1, others };
            self.report.find(Subject::Ours, &cell)
        };
        let [one, .., most] = Cell::OTHERS;
        let pair = |workload| (beside(workload, most), beside(workload, one));
        let (new, released) = (pair(StrongBeside), pair(ReleaseBehind));
        let p50_us = |outcome: &Outcome| outcome.p50_ns / 1e3;
        // A timeout of 1 ms, and 2 ms for the rest of the thread's work.
        let limits = [
            (SharedBehind, 3_000.0),
            (WaitBehind, 3_000.0),
            (LookBehind, 5_000.0),
            (OwnerBeside, 1.0),
            (SessionBeside, 4.0),
        ];
        let limited = limits.map(|(workload, limit)| (workload, limit, beside(workload, most)));
        for (workload, pair) in [(StrongBeside, new), (ReleaseBehind, released)] {
            let what = format!("{}, time: {most} / {one}", workload.name());
            self.ratio(what, AtMost(1.5), pair, |outcome| outcome.p50_ns);
        }
        for (workload, limit, series) in limited {
            self.number(format!("{} {most}, us", workload.name()), AtMost(limit), series, p50_us);
        }
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

/// The time of one worker without contention. The median batch is free of disturbance by the
/// machine.
fn batch_ns(outcome: &Outcome) -> f64 {
    outcome.p50_ns
}

fn pair_ns(outcome: &Outcome) -> f64 {
    1e9 / outcome.ops_per_s.max(f64::MIN_POSITIVE)
}

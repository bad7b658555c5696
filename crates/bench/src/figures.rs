//! The targets of our latches, compared with the measurements.

use core::fmt;

use latchwork_machine::{Native, Slot};

use crate::report::{Report, Series};
use crate::stats::Ratio;
use crate::{Bench, Cell, Role};

/// A target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
    /// Exactly this.
    Exactly(f64),
}

impl Bound {
    fn met_by(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
            Self::Exactly(limit) => value == limit,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(limit) => write!(f, "<= {limit}"),
            Self::AtLeast(limit) => write!(f, ">= {limit}"),
            Self::Exactly(limit) => write!(f, "= {limit}"),
        }
    }
}

/// The outcome of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// The target is met.
    Met,
    /// The target is missed.
    Missed,
    /// The runs disagree or are too few.
    TooNoisy,
}

impl Reached {
    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::TooNoisy => "too noisy",
        }
    }
}

/// A ratio whose quartiles are closer than this is judged by its median.
const CLOSE: f64 = 0.1;

/// The fewest runs that are judged.
const ENOUGH: usize = 3;

/// A target and its measurement.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The measured quantity.
    pub what: String,
    /// The target.
    pub bound: Bound,
    /// The median.
    pub measured: f64,
    /// The quartiles, if the quantity varies.
    pub range: Option<(f64, f64)>,
    /// The outcome.
    pub reached: Reached,
}

impl Figure {
    /// Judges paired ratios by their median, if the quartiles lie on one side of the target or are
    /// close enough together.
    pub fn of_ratio(what: String, bound: Bound, ratio: Ratio) -> Self {
        let agree = bound.met_by(ratio.low) == bound.met_by(ratio.high);
        let close = (ratio.high - ratio.low) <= CLOSE * ratio.mid;
        let reached = match bound.met_by(ratio.mid) {
            _ if ratio.pairs < ENOUGH || !(agree || close) => Reached::TooNoisy,
            true => Reached::Met,
            false => Reached::Missed,
        };
        let range = Some((ratio.low, ratio.high));
        Self { what, bound, measured: ratio.mid, range, reached }
    }

    fn of_size(what: &str, bound: Bound, size: usize) -> Self {
        let reached = if bound.met_by(size as f64) { Reached::Met } else { Reached::Missed };
        let what = format!("size of {what}, bytes");
        Self { what, bound, measured: size as f64, range: None, reached }
    }
}

/// Our reader-writer latches.
const SHARED: [&str; 3] = ["shfl-rwlock", "lw-latch", "lw-latch-cas"];

/// The targets to which `report` has measurements.
pub fn figures(report: &Report) -> Vec<Figure> {
    let mut figures = Vec::new();
    uncontended(report, &mut figures);
    sections(report, &mut figures);
    mix(report, &mut figures);
    sizes(report, &mut figures);
    figures
}

/// Ratio of times: `ours` over `theirs`.
fn time(ours: &Series, theirs: &Series) -> Option<Ratio> {
    Ratio::paired(&theirs.ops_per_s, &ours.ops_per_s)
}

/// The short name of a rival.
fn family(rival: &str) -> &str {
    rival.strip_suffix("-mutex").or_else(|| rival.strip_suffix("-rwlock")).unwrap_or(rival)
}

fn uncontended(report: &Report, figures: &mut Vec<Figure>) {
    let cell = |cell: &Cell| cell.bench == Bench::Uncontended;
    let mut compare = |ours: &str, theirs: &str, role: Role, limit: f64| {
        let pair = report.find(ours, role, cell).zip(report.find(theirs, role, cell));
        let Some(ratio) = pair.and_then(|(ours, theirs)| time(ours, theirs)) else { return };
        let side = if role == Role::Read { " read" } else { "" };
        let what = format!("uncontended{side} time: {ours} / {}", family(theirs));
        figures.push(Figure::of_ratio(what, Bound::AtMost(limit), ratio));
    };
    for (rival, limit) in [("parking-lot-mutex", 0.75), ("std-mutex", 0.75), ("pthread-mutex", 1.0)]
    {
        compare("shfl-mutex", rival, Role::Exclusive, limit);
    }
    for ours in SHARED {
        compare(ours, "parking-lot-rwlock", Role::Read, 1.0);
    }
}

fn sections(report: &Report, figures: &mut Vec<Figure>) {
    const OURS: &str = "shfl-mutex";
    for bench in [Bench::Short, Bench::Long] {
        let find = |threads: usize| {
            report.find(OURS, Role::Exclusive, |c| c.bench == bench && c.threads == threads)
        };
        let section = bench.name();
        for threads in [2, 32] {
            let pair = find(threads).and_then(|ours| Some((ours, report.best_rival(ours)?)));
            let Some((ours, theirs)) = pair else { continue };
            let Some(ratio) = Ratio::paired(&ours.ops_per_s, &theirs.ops_per_s) else { continue };
            let rival = theirs.subject;
            let what = format!("{section} x {threads} threads, ops/s: {OURS} / {}", family(rival));
            figures.push(Figure::of_ratio(what, Bound::AtLeast(1.0), ratio));
        }
        let pair = find(32).zip(find(2));
        let ratio = pair.and_then(|(many, two)| Ratio::paired(&many.ops_per_s, &two.ops_per_s));
        if let Some(ratio) = ratio {
            let what = format!("{section}, ops/s: {OURS} at 32 threads / at 2");
            figures.push(Figure::of_ratio(what, Bound::AtLeast(0.9), ratio));
        }
    }
}

fn mix(report: &Report, figures: &mut Vec<Figure>) {
    const THEIRS: &str = "parking-lot-rwlock";
    let cell = |c: &Cell| c.bench == Bench::Mix && c.threads == 8 && c.writes == 0.01;
    let pair = |ours, role| report.find(ours, role, cell).zip(report.find(THEIRS, role, cell));
    for ours in SHARED {
        let waits = pair(ours, Role::Write).and_then(|(o, t)| Ratio::paired(&o.p99_ns, &t.p99_ns));
        if let Some(ratio) = waits {
            let what = format!("1 % writes, writers' p99: {ours} / {}", family(THEIRS));
            figures.push(Figure::of_ratio(what, Bound::AtMost(1.0), ratio));
        }
        let reads =
            pair(ours, Role::Read).and_then(|(o, t)| Ratio::paired(&o.ops_per_s, &t.ops_per_s));
        if let Some(ratio) = reads {
            let what = format!("1 % writes, reads/s: {ours} / {}", family(THEIRS));
            figures.push(Figure::of_ratio(what, Bound::AtLeast(1.0), ratio));
        }
    }
}

fn sizes(report: &Report, figures: &mut Vec<Figure>) {
    for subject in report.subjects.iter().filter(|s| !s.rival) {
        let bound = match subject.name {
            "shfl-mutex" | "shfl-spin" => Bound::Exactly(8.0),
            name if SHARED.contains(&name) => Bound::AtMost(16.0),
            _ => continue,
        };
        figures.push(Figure::of_size(subject.name, bound, subject.size));
    }
    let slot = size_of::<Slot<Native>>();
    figures.push(Figure::of_size("a waiting thread's slot", Bound::Exactly(64.0), slot));
}

//! Published curves and the simulator's predictions, point by point.

use latchwork_sim::Spec;
use serde::Serialize;

use super::lock::Subject;
use super::run::{Plan, RunError, run};
use super::workload::Workload;

const SOSP13: &str = include_str!("../../data/sosp13_xeon80.csv");
const OPTERON: &str = include_str!("../../data/sosp13_opteron48.csv");
const SOSP19: &str = include_str!("../../data/shfllock_sosp19.csv");

/// A figure with which the simulator is validated.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// The name on the command line.
    pub name: &'static str,
    /// The publication.
    pub source: &'static str,
    /// The simulated machine.
    pub machine: &'static str,
    /// The simulated workload.
    pub workload: &'static str,
    /// Numbers of threads up to this one were used for fitting. Larger ones are predicted.
    pub fitted: usize,
    /// The numbers of threads that are judged.
    pub threads: &'static [usize],
    /// Simulated microseconds per point.
    pub us: f64,
    data: &'static str,
    prefix: &'static str,
    series: &'static [(&'static str, &'static str)],
}

/// All figures.
pub const FIGURES: &[Figure] = &[
    Figure {
        name: "sosp13-4",
        source: "SOSP'13 figure 4: atomics on one line",
        machine: "westmere-ex-80",
        workload: "line",
        fitted: 80,
        threads: &[1, 2, 5, 10, 20, 40, 60, 80],
        us: 1000.0,
        data: SOSP13,
        prefix: "fig4",
        series: ATOMICS,
    },
    Figure {
        name: "sosp13-4-opteron",
        source: "SOSP'13 figure 4: atomics on one line, on the 48-core Opteron",
        machine: "opteron-48",
        workload: "line",
        fitted: 48,
        threads: &[1, 2, 3, 6, 8, 12, 18, 24, 36, 42, 48],
        us: 1000.0,
        data: OPTERON,
        prefix: "fig4",
        series: ATOMICS,
    },
    Figure {
        name: "sosp13-5",
        source: "SOSP'13 figure 5: one lock",
        machine: "westmere-ex-80",
        workload: "lock-loop",
        fitted: 0,
        threads: &[2, 5, 10, 20, 40, 80],
        us: 1000.0,
        data: SOSP13,
        prefix: "fig5",
        series: &[("TAS", "tas"), ("TTAS", "ttas-plain"), ("TICKET", "ticket"), ("MCS", "mcs")],
    },
    Figure {
        name: "sosp19-11a",
        source: "SOSP'19 figure 11a: a hash table under one spinlock",
        machine: "broadwell-ex-192",
        workload: "hash-table",
        fitted: 24,
        threads: &[1, 2, 4, 12, 24, 48, 96, 144, 192],
        us: 1000.0,
        data: SOSP19,
        prefix: "fig11a",
        series: KERNEL,
    },
    Figure {
        name: "sosp19-8b",
        source: "SOSP'19 figure 8b: lock1",
        machine: "broadwell-ex-192",
        workload: "lock1",
        fitted: 24,
        threads: &[1, 2, 4, 8, 12, 24, 48, 96, 144, 192],
        us: 1000.0,
        data: SOSP19,
        prefix: "fig8b",
        series: KERNEL,
    },
    Figure {
        name: "sosp19-8a",
        source: "SOSP'19 figure 8a: MWRL, renames",
        machine: "broadwell-ex-192",
        workload: "rename",
        fitted: 24,
        threads: &[1, 2, 4, 24, 48, 96, 144, 192],
        us: 2000.0,
        data: SOSP19,
        prefix: "fig8a",
        series: KERNEL,
    },
    Figure {
        name: "sosp19-11e",
        source: "SOSP'19 figure 11e: the same hash table, ShflLock step by step",
        machine: "broadwell-ex-192",
        workload: "hash-table",
        fitted: 24,
        threads: &[192],
        us: 2000.0,
        data: SOSP19,
        prefix: "fig11e",
        series: STEPS,
    },
];

/// Equated because the outcome of an atomic operation does not affect its cost here.
const ATOMICS: &[(&str, &str)] =
    &[("FAI", "fai"), ("SWAP", "swap"), ("CAS", "swap"), ("TAS", "swap"), ("CAS_FAI", "cas-fai")];

const STEPS: &[(&str, &str)] = &[
    ("Base", "shfl-base"),
    ("+Shuffler", "shfl-shuffler"),
    ("+Shufflers", "shfl-shufflers"),
    ("+qlast", "shfl-spin"),
];

const KERNEL: &[(&str, &str)] = &[
    ("Stock", "qspinlock"),
    ("Cohort", "c-bo-mcs"),
    ("CNA", "cna-kernel"),
    ("ShflLock_NB", "shfl-spin"),
];

/// A point of a figure.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Judged {
    /// The figure's name.
    pub figure: &'static str,
    /// The curve's name there.
    pub series: &'static str,
    /// Our name of the lock.
    pub subject: &'static str,
    /// Threads.
    pub threads: usize,
    /// Whether the point was used for fitting.
    pub fitted: bool,
    /// Published, in millions per second.
    pub published: f64,
    /// Predicted, in millions per second.
    pub predicted: f64,
}

impl Figure {
    /// The figure of this name.
    pub fn named(name: &str) -> Option<Self> {
        FIGURES.iter().copied().find(|f| f.name == name)
    }

    /// The published points: series, our name of it, threads and millions per second.
    pub fn points(&self) -> Vec<(&'static str, &'static str, usize, f64)> {
        let mut found = Vec::new();
        for line in self.data.lines().filter(|line| line.starts_with(self.prefix)) {
            let mut fields = line.split(',').skip(2);
            let (Some(series), Some(threads), Some(value)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let ours = self.series.iter().find(|(theirs, _)| *theirs == series);
            if let (Some((series, ours)), Ok(threads), Ok(value)) =
                (ours, threads.parse(), value.parse())
            {
                found.push((*series, *ours, threads, value));
            }
        }
        found
    }

    /// Predicts one point, which was published as `published`.
    ///
    /// # Errors
    ///
    /// If the run fails.
    pub fn judge(
        &self,
        point: (&'static str, &'static str, usize, f64),
    ) -> Result<Judged, RunError> {
        let (series, subject, threads, published) = point;
        let spec = Spec::shipped(self.machine).expect("a machine that is shipped");
        let plan = Plan {
            spec: &spec,
            workload: Workload::named(self.workload).expect("a workload that there is"),
            subject: Subject::named(subject).expect("a lock that there is"),
            threads,
            ns: self.us * 1000.0,
            seed: 1,
        };
        let predicted = run(&plan)?.ops_per_s / 1e6;
        let (figure, fitted) = (self.name, threads <= self.fitted);
        Ok(Judged { figure, series, subject, threads, fitted, published, predicted })
    }

    /// The published points that are judged.
    pub fn judged_points(&self) -> Vec<(&'static str, &'static str, usize, f64)> {
        self.points().into_iter().filter(|p| self.threads.contains(&p.2)).collect()
    }
}

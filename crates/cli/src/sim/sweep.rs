//! Many points at once: each simulation runs on one host thread, independent of others.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use indicatif::{ProgressBar, ProgressStyle};
use latchwork_bench::sim::{self, Plan, Point, RunError, Subject};

use super::Scene;

/// The points: every latch with every number of threads, with each seed.
pub(super) struct Cells<'a> {
    pub(super) latches: &'a [Subject],
    pub(super) threads: &'a [usize],
    pub(super) seeds: usize,
}

/// A latch without a result.
pub(super) struct Fault {
    threads: usize,
    seed: u64,
    why: RunError,
}

impl Fault {
    /// Returns whether the latch is faulty; false if it merely serves fewer threads.
    pub(super) fn is_failure(&self) -> bool {
        !matches!(self.why, RunError::Threads(..))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_failure() {
            true => write!(f, "{} (threads {}, seed {})", self.why, self.threads, self.seed),
            false => write!(f, "{}", self.why),
        }
    }
}

/// The points of a latch with a number of threads, by seed.
pub(super) type Cell = Vec<Point>;

/// Runs them on `jobs` host threads. Returns cells by number of threads, then latch, as requested;
/// those without a result are empty. The progress line begins with `title`.
pub(super) fn run(
    scene: &Scene,
    cells: &Cells<'_>,
    jobs: usize,
    title: &str,
) -> (Vec<Cell>, Vec<Fault>) {
    let count = cells.threads.len() * cells.latches.len();
    let total = count * cells.seeds;
    let bar = ProgressBar::new(total as u64);
    let style = ProgressStyle::with_template("{prefix} {bar:24} {pos}/{len} {eta:>4} {msg}");
    bar.set_style(style.expect("a template that makes sense"));
    bar.set_prefix(title.to_owned());
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<Result<Point, Fault>>>> =
        (0..total).map(|_| Mutex::default()).collect();
    let work = || {
        loop {
            // Relaxed: only the number matters; the scope's end publishes the results.
            let turn = next.fetch_add(1, Relaxed);
            if turn >= total {
                return;
            }
            // The largest first, so that no host thread is left with one at the end.
            let index = total - 1 - turn;
            let (cell, seed) = (index / cells.seeds, scene.seed + (index % cells.seeds) as u64);
            let threads = cells.threads[cell / cells.latches.len()];
            let subject = cells.latches[cell % cells.latches.len()];
            bar.set_message(format!("{threads} threads: {}", subject.name));
            let point = sim::run(&plan(scene, subject, threads, seed));
            let point = point.map_err(|why| Fault { threads, seed, why });
            *done[index].lock().expect("nobody panics with it") = Some(point);
            bar.inc(1);
        }
    };
    std::thread::scope(|scope| {
        (0..jobs.min(total)).for_each(|_| _ = scope.spawn(work));
    });
    bar.finish_and_clear();
    let (mut points, mut faults) = (vec![Vec::new(); count], Vec::<Fault>::new());
    for (index, point) in done.into_iter().enumerate() {
        match point.into_inner().expect("nobody panics with it").expect("every turn was taken") {
            Ok(point) => points[index / cells.seeds].push(point),
            Err(fault) => {
                // That a latch cannot serve so many threads is reported once, not for each seed.
                let said = |other: &Fault| other.to_string() == fault.to_string();
                if !faults.iter().any(said) {
                    faults.push(fault);
                }
            }
        }
    }
    (points, faults)
}

/// Returns one run of a scene.
pub(super) fn plan(scene: &Scene, subject: Subject, threads: usize, seed: u64) -> Plan<'_> {
    Plan { spec: &scene.spec, workload: scene.workload, subject, threads, ns: scene.ns, seed }
}

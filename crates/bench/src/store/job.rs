//! What a process that measures is told, and what it says.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::data::Data;
use super::{Cell, Workload};

/// What a process is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Put the data in.
    Load,
    /// Measure.
    Measure(Workload),
    /// Add the transfers up.
    Verify,
    /// Commit until it is killed.
    Commit { client: u64 },
    /// Write until so much log would be redone, and wait to be killed.
    Log { client: u64, bytes: u64 },
    /// Open what killed processes left, commit once, and count what is missing.
    Reopen { client: u64 },
}

/// A process's job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The store's name.
    pub(crate) subject: String,
    pub(crate) task: Task,
    pub(crate) data: Data,
    pub(crate) folder: PathBuf,
    pub(crate) cache: usize,
    pub(crate) budget: Option<u64>,
    /// Its workers.
    pub(crate) threads: usize,
    /// The number of the first of them among all workers.
    pub(crate) first: usize,
    pub(crate) window_ns: u64,
    pub(crate) patience_ms: u64,
}

/// What was measured, by one process or by all of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Operations a second, of all workers together.
    pub ops_per_s: f64,
    /// Half of them took no longer, in nanoseconds.
    pub p50_ns: f64,
    /// Of a hundred, the longest but one.
    pub p99_ns: f64,
    /// Operations within the window, by worker.
    pub by_worker: Vec<u64>,
    /// Transactions that had to be run once more.
    pub again: u64,
    /// Syncs of files within the window, where they are counted.
    pub syncs: Option<u64>,
    /// Writes a second of the thread that writes beside the readers.
    pub writes_per_s: Option<f64>,
    /// What is timed that is no operation of a window, one by one: pauses, times to open. The
    /// quantiles are of those of all runs.
    pub samples: Vec<u64>,
    /// As many, of the same with nothing done.
    pub controls: Vec<u64>,
    /// Other numbers, by the names of [`FIGURES`](super::FIGURES).
    pub figures: BTreeMap<String, f64>,
}

impl Outcome {
    /// What several processes did in the same window.
    pub(crate) fn together(outcomes: Vec<Self>) -> Self {
        let mut all = outcomes.into_iter();
        let mut sum = all.next().unwrap_or_default();
        for one in all {
            sum.ops_per_s += one.ops_per_s;
            sum.p50_ns = sum.p50_ns.max(one.p50_ns);
            sum.p99_ns = sum.p99_ns.max(one.p99_ns);
            sum.by_worker.extend(one.by_worker);
            sum.again += one.again;
            sum.syncs = sum.syncs.zip(one.syncs).map(|(a, b)| a + b);
        }
        sum
    }

    /// The busiest process's operations over those of the least busy one.
    pub(crate) fn max_over_min(&self, procs: usize) -> Option<f64> {
        let each = self.by_worker.len() / procs;
        let sums = self.by_worker.chunks(each.max(1)).map(|one| one.iter().sum::<u64>());
        let most = sums.clone().max().filter(|_| procs > 1)?;
        Some(most as f64 / sums.min()?.max(1) as f64)
    }

    /// Operations within the window.
    pub fn done(&self) -> u64 {
        self.by_worker.iter().sum()
    }

    /// What did not happen though the cell is about it.
    pub fn missing(&self, cell: &Cell) -> Option<&'static str> {
        let writer = usize::from(cell.workload == Workload::ReadWhileWriting);
        if self.by_worker.len() + writer != cell.threads || self.by_worker.contains(&0) {
            return Some("operation of some worker");
        }
        if self.ops_per_s <= 0.0 {
            return Some("time");
        }
        if writer == 1 && self.writes_per_s.is_none_or(|rate| rate <= 0.0) {
            return Some("write beside the readers");
        }
        None
    }
}

//! The job of a measuring process and its result.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::data::Data;
use super::{Cell, Workload};

/// The task of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Load the data.
    Load,
    /// Measure a workload.
    Measure(Workload),
    /// Check the sums of the transfers.
    Verify,
    /// Commit until killed.
    Commit { client: u64 },
    /// Write until recovery would replay this many bytes of log, then wait to be killed.
    Log { client: u64, bytes: u64 },
    /// Open the store of killed processes, commit once, count missing commits.
    Reopen { client: u64 },
}

/// The job of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The name of the store.
    pub(crate) subject: String,
    pub(crate) task: Task,
    pub(crate) data: Data,
    pub(crate) folder: PathBuf,
    pub(crate) cache: usize,
    pub(crate) budget: Option<u64>,
    /// Worker threads of the process.
    pub(crate) threads: usize,
    /// Index of its first worker among all workers.
    pub(crate) first: usize,
    pub(crate) window_ns: u64,
    pub(crate) patience_ms: u64,
}

/// The result of one process, or of all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Operations per second, of all workers together.
    pub ops_per_s: f64,
    /// Median, in nanoseconds.
    pub p50_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
    /// Operations within the window, per worker.
    pub by_worker: Vec<u64>,
    /// Transactions that were retried.
    pub again: u64,
    /// Syncs of files within the window, if counted.
    pub syncs: Option<u64>,
    /// Writes per second of the writer during the reads.
    pub writes_per_s: Option<f64>,
    /// Times measured one by one outside of a window: pauses, times to open. Quantiles are over all
    /// runs.
    pub samples: Vec<u64>,
    /// The same times without the event, as a control.
    pub controls: Vec<u64>,
    /// Other numbers, named as in [`FIGURES`](super::FIGURES).
    pub figures: BTreeMap<String, f64>,
}

impl Outcome {
    /// Combines the results of several processes in the same window.
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

    /// Operations of the busiest process over those of the least busy one.
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

    /// The event that the cell is about, if it did not occur.
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

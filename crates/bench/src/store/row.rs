//! A row of the table, as programs read it.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::data::{Data, ROW};
use super::keys::VALUE;
use super::{Cell, Settings};
use crate::row::{maybe_short, rounded, short};

/// A measured row. Numbers are medians over the runs, but for those an operation, which are of all
/// runs.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `store`.
    pub bench: &'static str,
    /// Whose store.
    pub subject: &'static str,
    /// Whether it is other people's.
    pub rival: bool,
    /// `native`.
    pub machine: &'static str,
    /// Threads, in all processes.
    pub threads: usize,
    /// Processes.
    pub procs: usize,
    /// The workload.
    pub params: Params,
    /// Operations a second of all threads.
    #[serde(serialize_with = "short")]
    pub ops_per_s: f64,
    /// Nanoseconds between two operations, whichever thread does them.
    #[serde(serialize_with = "short")]
    pub ns_per_op: f64,
    /// The interquartile range of the rate over its median.
    #[serde(serialize_with = "short")]
    pub spread: f64,
    /// Half of the operations took no longer; of short reads, one in 16 is timed.
    #[serde(serialize_with = "short")]
    pub p50_ns: f64,
    /// As `p50_ns`, for 99 of 100.
    #[serde(serialize_with = "short")]
    pub p99_ns: f64,
    /// The busier half of the threads' share of all operations; 0.5 is fair.
    #[serde(serialize_with = "maybe_short")]
    pub fairness: Option<f64>,
    /// How often it was measured.
    pub runs: usize,
    /// The spread is over a fifth and the runs do not agree on which is faster.
    pub noisy: bool,
    /// Transactions run once more, an operation.
    #[serde(serialize_with = "short")]
    pub again_per_op: f64,
    /// Writes a second of the thread beside the readers.
    #[serde(serialize_with = "maybe_short")]
    pub writes_per_s: Option<f64>,
    /// Rate over the best other store's, the median of the runs' own ratios.
    #[serde(serialize_with = "maybe_short")]
    pub ratio: Option<f64>,
    /// The lower quartile of the ratios.
    #[serde(serialize_with = "maybe_short")]
    pub ratio_low: Option<f64>,
    /// The upper quartile of the ratios.
    #[serde(serialize_with = "maybe_short")]
    pub ratio_high: Option<f64>,
    /// What the workload has to say besides, by the names of [`FIGURES`](super::FIGURES).
    #[serde(flatten, serialize_with = "all_short")]
    pub figures: BTreeMap<&'static str, f64>,
}

fn all_short<S: Serializer>(
    figures: &BTreeMap<&'static str, f64>,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.collect_map(figures.iter().map(|(name, number)| (name, rounded(*number))))
}

/// A row's workload.
#[derive(Clone, Debug, Serialize)]
pub struct Params {
    /// See the module.
    pub workload: &'static str,
    /// `none` or `full`: whether a commit waits for the disk.
    pub mode: &'static str,
    /// Records that were loaded.
    pub records: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Branches, of transfers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<usize>,
    /// Bytes of the cache.
    pub cache_bytes: usize,
    /// Bytes of log between two checkpoints of ours, if it was told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_bytes: Option<u64>,
    /// Milliseconds of one measurement.
    pub window_ms: u64,
    /// Processors that the program may use.
    pub cpus: usize,
}

impl Params {
    pub(super) fn new(cell: &Cell, settings: &Settings) -> Self {
        let data = settings.data(cell.workload);
        let (value_bytes, scale) = match data {
            Data::Ycsb { .. } => (ROW, None),
            Data::Bank { scale } => (64, Some(scale)),
            _ => (VALUE, None),
        };
        Self {
            workload: cell.workload.name(),
            mode: if cell.workload.is_durable() { "full" } else { "none" },
            records: data.records(),
            value_bytes,
            scale,
            cache_bytes: settings.cache,
            budget_bytes: settings.budget,
            window_ms: settings.window.as_millis() as u64,
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

//! A row of the table in machine-readable form.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::data::{Data, ROW};
use super::keys::VALUE;
use super::{Cell, Settings};
use crate::row::{maybe_short, rounded, short};

/// A measured row. Numbers are medians over the runs; numbers per operation are over all runs.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `store`.
    pub bench: &'static str,
    /// The store.
    pub subject: &'static str,
    /// Whether it is a rival.
    pub rival: bool,
    /// `native`.
    pub machine: &'static str,
    /// Threads of all processes.
    pub threads: usize,
    /// Processes.
    pub procs: usize,
    /// The workload.
    pub params: Params,
    /// Operations per second of all threads.
    #[serde(serialize_with = "short")]
    pub ops_per_s: f64,
    /// Nanoseconds between two operations, of all threads together.
    #[serde(serialize_with = "short")]
    pub ns_per_op: f64,
    /// The interquartile range of the rate over its median.
    #[serde(serialize_with = "short")]
    pub spread: f64,
    /// Median time of an operation. Of short reads one in 16 is timed.
    #[serde(serialize_with = "short")]
    pub p50_ns: f64,
    /// 99th percentile of the same times.
    #[serde(serialize_with = "short")]
    pub p99_ns: f64,
    /// Share of all operations done by the busier half of the threads; 0.5 is fair.
    #[serde(serialize_with = "maybe_short")]
    pub fairness: Option<f64>,
    /// Number of runs.
    pub runs: usize,
    /// Whether the spread is above 20 % and the runs disagree on which side is faster.
    pub noisy: bool,
    /// Retries per operation.
    #[serde(serialize_with = "short")]
    pub again_per_op: f64,
    /// Writes per second of the writing thread during the reads.
    #[serde(serialize_with = "maybe_short")]
    pub writes_per_s: Option<f64>,
    /// Rate over the best rival's: the median of the ratios of the runs.
    #[serde(serialize_with = "maybe_short")]
    pub ratio: Option<f64>,
    /// The lower quartile of the ratios.
    #[serde(serialize_with = "maybe_short")]
    pub ratio_low: Option<f64>,
    /// The upper quartile of the ratios.
    #[serde(serialize_with = "maybe_short")]
    pub ratio_high: Option<f64>,
    /// Other numbers of the workload, named as in [`FIGURES`](super::FIGURES).
    #[serde(flatten, serialize_with = "all_short")]
    pub figures: BTreeMap<&'static str, f64>,
}

fn all_short<S: Serializer>(
    figures: &BTreeMap<&'static str, f64>,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.collect_map(figures.iter().map(|(name, number)| (name, rounded(*number))))
}

/// The workload of a row.
#[derive(Clone, Debug, Serialize)]
pub struct Params {
    /// See the module.
    pub workload: &'static str,
    /// `full` if a commit waits for the disk, `none` otherwise.
    pub mode: &'static str,
    /// Loaded records.
    pub records: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Branches, of transfers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<usize>,
    /// Bytes of the cache.
    pub cache_bytes: usize,
    /// Bytes of log between two checkpoints of our store, if set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_bytes: Option<u64>,
    /// Milliseconds of one measurement.
    pub window_ms: u64,
    /// Processors available to the program.
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

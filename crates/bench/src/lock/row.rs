//! A row of the table in machine-readable form.

use serde::Serialize;

use super::{Cell, Outcome, Settings};
use crate::row::{maybe_short, short};

/// A measured row. Numbers are medians over the runs; counts are sums.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `lock`.
    pub bench: &'static str,
    /// The lock manager.
    pub subject: &'static str,
    /// Whether it is a rival.
    pub rival: bool,
    /// `native`.
    pub machine: &'static str,
    /// Workers of all processes.
    pub threads: usize,
    /// Processes that hold locks.
    pub procs: usize,
    /// The workload.
    pub params: Params,
    /// Operations per second of all workers.
    #[serde(serialize_with = "short")]
    pub ops_per_s: f64,
    /// Nanoseconds between two operations, of all workers together.
    #[serde(serialize_with = "short")]
    pub ns_per_op: f64,
    /// The interquartile range of the rate over its median.
    #[serde(serialize_with = "short")]
    pub spread: f64,
    /// Median time of an operation. For `weak`, `strong` and `one-object`: of batches of 256, per
    /// operation.
    #[serde(serialize_with = "short")]
    pub p50_ns: f64,
    /// 99th percentile of the same times.
    #[serde(serialize_with = "short")]
    pub p99_ns: f64,
    /// Share of all operations done by the busier half of the workers; 0.5 is fair.
    #[serde(serialize_with = "maybe_short")]
    pub fairness: Option<f64>,
    /// Number of runs.
    pub runs: usize,
    /// Whether the spread is above 20 % and the runs disagree on which side is faster.
    pub noisy: bool,
    /// Requests counted by the lock manager, over all runs.
    pub counted: u64,
    /// Fraction of the requests granted without a store to shared memory. Only ours counts them.
    #[serde(serialize_with = "maybe_short")]
    pub fast: Option<f64>,
    /// Victims of deadlocks, over all runs.
    pub victims: Option<u64>,
    /// Growth of the process per held lock, in bytes.
    #[serde(serialize_with = "maybe_short")]
    pub bytes_per_lock: Option<f64>,
    /// The largest size of the region, in bytes.
    pub region_bytes: u64,
    /// Rate over the rival's: the median of the ratios of the runs. Above 1 is faster.
    #[serde(serialize_with = "maybe_short")]
    pub ratio: Option<f64>,
    /// The lower quartile of the ratios.
    #[serde(serialize_with = "maybe_short")]
    pub ratio_low: Option<f64>,
    /// The upper quartile of the ratios.
    #[serde(serialize_with = "maybe_short")]
    pub ratio_high: Option<f64>,
}

/// The workload of a row. Parameters that do not apply are absent.
#[derive(Clone, Debug, Serialize)]
pub struct Params {
    /// See the module.
    pub workload: &'static str,
    /// `private`, `region` or `processes`.
    pub place: &'static str,
    /// `weak` or `strong`.
    pub mode: &'static str,
    /// Bytes of a name.
    pub name_bytes: usize,
    /// Locks held at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
    /// Owners of a cycle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycle: Option<usize>,
    /// Waiting requests of other owners.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiters: Option<u64>,
    /// Other owners or sessions present.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub others: Option<u64>,
    /// Milliseconds of one measurement, if it lasts a window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_ms: Option<u64>,
    /// Repetitions within a measurement, if each is timed alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trials: Option<usize>,
    /// Processors available to the program.
    pub cpus: usize,
}

impl Params {
    pub(super) fn new(cell: &Cell, outcomes: &[Outcome], settings: &Settings) -> Self {
        use super::Workload::{Calm, Cycle2, Cycle100, Detecting, ReleaseAll, Zipf};

        let workload = cell.workload;
        let most = |number: fn(&Outcome) -> u64| outcomes.iter().map(number).max();
        let windowed = workload.is_rate() || matches!(workload, Calm | Detecting);
        let tried = matches!(workload, Cycle2 | Cycle100 | ReleaseAll) || workload.is_steep();
        Self {
            workload: workload.name(),
            place: cell.place.name(),
            mode: match workload {
                Zipf => "mixed",
                _ if workload.is_steep() => "granular",
                _ if workload.is_strong() => "strong",
                _ => "weak",
            },
            name_bytes: if workload.is_steep() { 5 } else { 16 },
            held: most(|outcome| outcome.held).filter(|held| *held > 0),
            cycle: workload.cycle(),
            waiters: workload.has_waiters().then(|| most(|o| o.waiters).unwrap_or(0)),
            others: most(|outcome| outcome.others).filter(|others| *others > 0),
            window_ms: windowed.then_some(settings.window.as_millis() as u64),
            trials: tried.then_some(settings.trials),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

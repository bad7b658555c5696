//! A row of the table, as programs read it.

use serde::Serialize;

use super::{Cell, Outcome, Settings};
use crate::row::{maybe_short, short};

/// A measured row. Numbers are medians over the runs, but for counts, which are sums.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `lock`.
    pub bench: &'static str,
    /// Whose lock manager.
    pub subject: &'static str,
    /// Whether it is other people's.
    pub rival: bool,
    /// `native`.
    pub machine: &'static str,
    /// Workers, in all processes.
    pub threads: usize,
    /// Processes that hold locks.
    pub procs: usize,
    /// The workload.
    pub params: Params,
    /// Operations a second of all workers.
    #[serde(serialize_with = "short")]
    pub ops_per_s: f64,
    /// Nanoseconds between two operations, whoever does them.
    #[serde(serialize_with = "short")]
    pub ns_per_op: f64,
    /// The interquartile range of the rate over its median.
    #[serde(serialize_with = "short")]
    pub spread: f64,
    /// Half of the operations took no longer; of `weak`, `strong` and `one-object`, half of the
    /// batches of 256, per operation.
    #[serde(serialize_with = "short")]
    pub p50_ns: f64,
    /// As `p50_ns`, for 99 of 100.
    #[serde(serialize_with = "short")]
    pub p99_ns: f64,
    /// The busier half of the workers' share of all operations; 0.5 is fair.
    #[serde(serialize_with = "maybe_short")]
    pub fairness: Option<f64>,
    /// How often it was measured.
    pub runs: usize,
    /// The spread is over a fifth and the runs do not agree on who is faster.
    pub noisy: bool,
    /// Requests that the lock manager itself counted, of all runs.
    pub counted: u64,
    /// The share of them that stored into no shared line; of ours alone.
    #[serde(serialize_with = "maybe_short")]
    pub fast: Option<f64>,
    /// Owners that gave way to break a deadlock, of all runs.
    pub victims: Option<u64>,
    /// Bytes that the process grew by for each held lock.
    #[serde(serialize_with = "maybe_short")]
    pub bytes_per_lock: Option<f64>,
    /// The most bytes that the region had.
    pub region_bytes: u64,
    /// Rate over the rival's, the median of the runs' own ratios: above 1 is faster.
    #[serde(serialize_with = "maybe_short")]
    pub ratio: Option<f64>,
    /// The lower quartile of the ratios.
    #[serde(serialize_with = "maybe_short")]
    pub ratio_low: Option<f64>,
    /// The upper quartile of the ratios.
    #[serde(serialize_with = "maybe_short")]
    pub ratio_high: Option<f64>,
}

/// A row's workload. What a workload has not is not there.
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
    /// Locks held at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
    /// Owners in a ring.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ring: Option<usize>,
    /// Requests of others that waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiters: Option<u64>,
    /// Owners, or sessions, that are there besides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub others: Option<u64>,
    /// Milliseconds of one measurement, if it is as long as a window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_ms: Option<u64>,
    /// How often it was done in a measurement, if each is timed by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trials: Option<usize>,
    /// Processors that the program may use.
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
            ring: workload.ring(),
            waiters: workload.has_waiters().then(|| most(|o| o.waiters).unwrap_or(0)),
            others: most(|outcome| outcome.others).filter(|others| *others > 0),
            window_ms: windowed.then_some(settings.window.as_millis() as u64),
            trials: tried.then_some(settings.trials),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

//! A row of the table, as programs read it.

use serde::{Serialize, Serializer};

use crate::{Cell, Role, Settings};

/// A measured row. Numbers are medians over the runs.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `latch`.
    pub bench: &'static str,
    /// Whose latch.
    pub subject: &'static str,
    /// Whether it is other people's.
    pub rival: bool,
    /// `native`.
    pub machine: &'static str,
    /// Threads that use the latch.
    pub threads: usize,
    /// Processes that use the latch.
    pub procs: usize,
    /// The workload.
    pub params: Params,
    /// Operations a second of all threads; of this role, in a mix.
    #[serde(serialize_with = "short")]
    pub ops_per_s: f64,
    /// Nanoseconds between two operations, whoever does them.
    #[serde(serialize_with = "short")]
    pub ns_per_op: f64,
    /// The interquartile range of the throughput over its median.
    #[serde(serialize_with = "short")]
    pub spread: f64,
    /// Half of the sampled waits were no longer, the clock's own time included. Uncontended, where
    /// nobody waits: half of the batches took no longer per operation.
    #[serde(serialize_with = "maybe_short")]
    pub p50_ns: Option<f64>,
    /// As `p50_ns`, for 99 of 100.
    #[serde(serialize_with = "maybe_short")]
    pub p99_ns: Option<f64>,
    /// The busier half of the threads' share of all operations; 0.5 is fair.
    #[serde(serialize_with = "maybe_short")]
    pub fairness: Option<f64>,
    /// How often it was measured.
    pub runs: usize,
    /// The spread is over a fifth and the runs do not agree on who is faster.
    pub noisy: bool,
    /// Which side of the latch.
    pub role: Role,
    /// The longest sampled wait of all runs.
    #[serde(serialize_with = "maybe_short")]
    pub max_ns: Option<f64>,
    /// The share of looks before an operation that found a writer inside, or the next thread at
    /// the latch. At 1 in 16 operations, a measure of how busy the latch is.
    #[serde(serialize_with = "maybe_short")]
    pub contended: Option<f64>,
    /// Throughput over the best rival's, the median of the runs' own ratios: above 1 is faster.
    /// The best rival itself has none.
    #[serde(serialize_with = "maybe_short")]
    pub ratio: Option<f64>,
    /// The lower quartile of the ratios.
    #[serde(serialize_with = "maybe_short")]
    pub ratio_low: Option<f64>,
    /// The upper quartile of the ratios.
    #[serde(serialize_with = "maybe_short")]
    pub ratio_high: Option<f64>,
    /// The best rival.
    pub ratio_to: Option<&'static str>,
}

/// A row's workload. What a workload has not is not there.
#[derive(Clone, Debug, Serialize)]
pub struct Params {
    /// `uncontended`, `short`, `long` or `mix`.
    pub workload: &'static str,
    /// `exclusive`, `read` or `write`.
    pub role: Role,
    /// The share of writes in a mix, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mix: Option<f64>,
    /// `short` or `long`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section: Option<&'static str>,
    /// Nanoseconds of computing in a section.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_ns: Option<u32>,
    /// Cache lines that a section touches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines: Option<usize>,
    /// Mean nanoseconds of computing between sections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outside_ns: Option<u32>,
    /// One of how many operations had its wait timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operations_per_sample: Option<u64>,
    /// Milliseconds of one measurement.
    pub window_ms: u64,
    /// Processors that the program may use.
    pub cpus: usize,
    /// Whether threads were bound to processors.
    pub pinned: bool,
}

impl Params {
    pub(crate) fn new(cell: &Cell, role: Role, settings: &Settings) -> Self {
        let workload = cell.bench.name();
        let contest = cell.lines > 0;
        let samples = match role {
            Role::Read => cell.reads_per_sample(),
            Role::Exclusive | Role::Write => cell.writes_per_sample(),
        };
        Self {
            workload,
            role,
            mix: (workload == "mix").then_some(cell.writes),
            section: contest.then_some(if cell.lines > 1 { "long" } else { "short" }),
            section_ns: contest.then_some(cell.section_ns),
            lines: contest.then_some(cell.lines),
            outside_ns: contest.then_some(cell.outside_ns),
            operations_per_sample: contest.then_some(samples),
            window_ms: settings.window.as_millis() as u64,
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            pinned: settings.pin,
        }
    }
}

/// Five digits that count: more are not true.
pub(crate) fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let digits = 4 - value.abs().log10().floor() as i32;
    if digits <= 0 {
        return value.round();
    }
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
pub(crate) fn short<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(rounded(*value))
}

pub(crate) fn maybe_short<S: Serializer>(value: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
    value.map(rounded).serialize(to)
}

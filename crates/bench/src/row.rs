//! A row of the table in machine-readable form.

use serde::{Serialize, Serializer};

use crate::{Cell, Role, Settings};

/// A measured row. Numbers are medians over the runs.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `latch`.
    pub bench: &'static str,
    /// The latch.
    pub subject: &'static str,
    /// Whether it is a rival.
    pub rival: bool,
    /// `native`.
    pub machine: &'static str,
    /// Threads that use the latch.
    pub threads: usize,
    /// Processes that use the latch.
    pub procs: usize,
    /// The workload.
    pub params: Params,
    /// Operations per second of all threads; in a mix, of this role.
    #[serde(serialize_with = "short")]
    pub ops_per_s: f64,
    /// Nanoseconds between two operations, of all threads together.
    #[serde(serialize_with = "short")]
    pub ns_per_op: f64,
    /// The interquartile range of the throughput over its median.
    #[serde(serialize_with = "short")]
    pub spread: f64,
    /// Median of the sampled waits, including the cost of the clock. Without contention, median
    /// time per operation of the batches.
    #[serde(serialize_with = "maybe_short")]
    pub p50_ns: Option<f64>,
    /// 99th percentile of the same times.
    #[serde(serialize_with = "maybe_short")]
    pub p99_ns: Option<f64>,
    /// Share of all operations done by the busier half of the threads; 0.5 is fair.
    #[serde(serialize_with = "maybe_short")]
    pub fairness: Option<f64>,
    /// Number of runs.
    pub runs: usize,
    /// Whether the spread is above 20 % and the runs disagree on which side is faster.
    pub noisy: bool,
    /// The measured operation.
    pub role: Role,
    /// The longest sampled wait of all runs.
    #[serde(serialize_with = "maybe_short")]
    pub max_ns: Option<f64>,
    /// Fraction of checks before an operation that found a writer inside or the next thread at the
    /// latch. At 1 in 16 operations it measures how busy the latch is.
    #[serde(serialize_with = "maybe_short")]
    pub contended: Option<f64>,
    /// Throughput over the best rival's: the median of the ratios of the runs. Above 1 is faster.
    /// `None` for the best rival itself.
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

/// The workload of a row. Parameters that do not apply are absent.
#[derive(Clone, Debug, Serialize)]
pub struct Params {
    /// `uncontended`, `short`, `long` or `mix`.
    pub workload: &'static str,
    /// `exclusive`, `read` or `write`.
    pub role: Role,
    /// Fraction of writes in a mix, 0 to 1.
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
    /// Every how many operations the wait of one is timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operations_per_sample: Option<u64>,
    /// Milliseconds of one measurement.
    pub window_ms: u64,
    /// Processors available to the program.
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

/// Rounds to five significant digits, the precision of the measurement.
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

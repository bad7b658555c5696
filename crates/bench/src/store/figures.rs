//! The numbers of single workloads besides rates: one table, by name.

use std::collections::BTreeMap;

use crate::stats::median;

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A count.
    Count,
    /// Nanoseconds.
    Time,
    /// Bytes.
    Bytes,
    /// A ratio.
    Times,
}

/// The aggregation over the runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Median,
    Most,
    Sum,
}

/// A number in the rows of some workloads.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// The name in machine-readable rows.
    pub name: &'static str,
    /// The heading of its column.
    pub label: &'static str,
    /// The unit.
    pub unit: Unit,
    over: Over,
}

macro_rules! figures {
    ($($name:literal $label:literal $unit:ident $over:ident;)*) => {
        /// All numbers, in the order of columns.
        pub const FIGURES: &[Figure] = &[$(
            Figure { name: $name, label: $label, unit: Unit::$unit, over: Over::$over },
        )*];
    };
}

figures! {
    // Durable commits, in multiples of the device's median in the same run.
    "of_device" "x\ndevice" Times Median;
    "p50_rounds" "p50\nrounds" Times Median;
    "p99_rounds" "p99\nrounds" Times Median;
    "syncs_per_op" "syncs\neach" Times Median;
    "procs_max_over_min" "procs'\nmax:min" Times Median;
    // Readers concurrent with a writer, relative to readers alone.
    "reads_kept" "reads\nkept" Times Median;
    "p99_over_alone" "p99 /\nalone" Times Median;
    "writes_kept" "writes\nkept" Times Median;
    // Writing with a snapshot held, relative to writing without. Of files: the maximum of all runs.
    "held_kept" "kept" Times Median;
    "held_bytes" "written" Bytes Median;
    "data_growth_bytes" "data\ngrowth" Bytes Most;
    "log_bytes" "log" Bytes Most;
    "history_bytes" "history" Bytes Most;
    "too_old" "too\nold" Count Sum;
    // Loading.
    "bytes_per_record" "B a\nrecord" Times Median;
    "written_per_byte" "written\na byte" Times Median;
    // Kills and crashes.
    "trials" "trials" Count Sum;
    "longest_ns" "longest" Time Most;
    "p99_without_kill_ns" "p99\nno kill" Time Median;
    "stuck" "stuck" Count Sum;
    "open_ns" "open" Time Median;
    "redo_bytes" "to redo" Bytes Median;
    "lost" "lost" Count Sum;
}

/// Aggregates the numbers of several runs.
pub(super) fn quoted(runs: &[BTreeMap<String, f64>]) -> BTreeMap<&'static str, f64> {
    let mut quoted = BTreeMap::new();
    for figure in FIGURES {
        let found: Vec<f64> = runs.iter().filter_map(|run| run.get(figure.name)).copied().collect();
        if found.is_empty() {
            continue;
        }
        let number = match figure.over {
            Over::Median => median(&found),
            Over::Most => found.iter().copied().fold(f64::MIN, f64::max),
            Over::Sum => found.iter().sum(),
        };
        quoted.insert(figure.name, number);
    }
    quoted
}

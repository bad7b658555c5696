//! What some workloads have to say besides rates: one table of numbers by name.

use std::collections::BTreeMap;

use crate::stats::median;

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    Count,
    /// Nanoseconds.
    Time,
    /// Bytes.
    Bytes,
    /// A ratio.
    Times,
}

/// What is quoted of several runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Median,
    Most,
    Sum,
}

/// A number that rows of some workloads have.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its name in rows that programs read.
    pub name: &'static str,
    /// Its column's head.
    pub label: &'static str,
    /// What it counts.
    pub unit: Unit,
    over: Over,
}

macro_rules! figures {
    ($($name:literal $label:literal $unit:ident $over:ident;)*) => {
        /// All of them, in the order of columns.
        pub const FIGURES: &[Figure] = &[$(
            Figure { name: $name, label: $label, unit: Unit::$unit, over: Over::$over },
        )*];
    };
}

figures! {
    // Durable commits: in rounds, each the device's own median in the same run.
    "of_device" "x\ndevice" Times Median;
    "p50_rounds" "p50\nrounds" Times Median;
    "p99_rounds" "p99\nrounds" Times Median;
    "syncs_per_op" "syncs\neach" Times Median;
    "procs_max_over_min" "procs'\nmax:min" Times Median;
    // Readers beside a writer: over the same alone.
    "reads_kept" "reads\nkept" Times Median;
    "p99_over_alone" "p99 /\nalone" Times Median;
    "writes_kept" "writes\nkept" Times Median;
    // Writing while a snapshot is held: over the same without; the most of all runs, of files.
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

/// The numbers of several runs as one.
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

//! A row of the result, for programs.

use std::collections::BTreeSet;
use std::io::{self, Write};

use latchwork_bench::sim::{Point, Subject};
use latchwork_bench::stats::{Ratio, median, noisy, spread};
use serde::Serialize;

use super::Scene;
use super::sweep::{Cell, Cells};

/// A latch with a number of threads. Numbers are medians over the seeds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    bench: &'static str,
    pub(super) subject: &'static str,
    pub(super) rival: bool,
    machine: String,
    pub(super) threads: usize,
    procs: usize,
    params: Params,
    pub(super) ops_per_s: f64,
    ns_per_op: f64,
    spread: f64,
    p50_ns: f64,
    pub(super) p99_ns: f64,
    pub(super) fairness: f64,
    pub(super) runs: usize,
    pub(super) noisy: bool,
    max_ns: f64,
    near_per_op: f64,
    far_per_op: f64,
    pub(super) accesses: f64,
    /// Mean processor time of the runs on the host; independent of the seed.
    pub(super) host_s: f64,
    /// Simulated accesses per second of that time.
    host_accesses_per_s: f64,
    /// Throughput over the first latch's: the median of the ratios by seed.
    pub(super) ratio: Option<f64>,
    pub(super) ratio_to: Option<&'static str>,
    /// Throughput over that of one thread times the threads; none without a run of one thread.
    pub(super) linear: Option<f64>,
    /// For a lock manager: the share of requests that it granted in their owners' own memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    weak: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Params {
    workload: &'static str,
    inside: u64,
    outside: u64,
    /// For a workload of latches with a table: writes per thousand operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    writes: Option<u32>,
    /// For a workload of an engine: the number of objects, pages, records or branches.
    #[serde(skip_serializing_if = "Option::is_none")]
    objects: Option<usize>,
    us: u64,
    seed: u64,
}

impl Params {
    pub(super) fn new(scene: &Scene, subject: &Subject) -> Self {
        let workload = &scene.workload;
        Self {
            workload: workload.name,
            inside: workload.inside(subject),
            outside: workload.outside(subject),
            writes: workload.writes(),
            objects: workload.on(subject).map(|operations| operations.objects().0),
            us: scene.us,
            seed: scene.seed,
        }
    }
}

impl Row {
    /// Returns a row for each cell with a result.
    pub(super) fn all(scene: &Scene, cells: &Cells<'_>, points: &[Cell]) -> Vec<Self> {
        let rows = points.chunks(cells.latches.len()).flat_map(|line| {
            let first = &line[0];
            line.iter()
                .zip(cells.latches)
                .filter(|(cell, _)| !cell.is_empty())
                .map(move |(cell, subject)| Self::new(scene, subject, cell, first))
        });
        let mut rows: Vec<Self> = rows.collect();
        let alone: Vec<Self> = rows.iter().filter(|row| row.threads == 1).cloned().collect();
        for row in &mut rows {
            let one = alone.iter().find(|one| one.subject == row.subject && one.ops_per_s > 0.0);
            let linear = one.map(|one| one.ops_per_s * row.threads as f64);
            row.linear = linear.map(|linear| rounded(row.ops_per_s / linear));
        }
        rows
    }

    fn new(scene: &Scene, subject: &Subject, cell: &Cell, first: &Cell) -> Self {
        let of = |pick: fn(&Point) -> f64| cell.iter().map(pick).collect::<Vec<_>>();
        let middle = |pick| rounded(median(&of(pick)));
        let speeds = of(|point| point.ops_per_s);
        let theirs: Vec<f64> = first.iter().map(|point| point.ops_per_s).collect();
        let same = first.first().is_some_and(|point| point.subject == cell[0].subject);
        let ratio = if same { None } else { Ratio::paired(&speeds, &theirs) };
        let host_s: f64 = of(|point| point.host_s).iter().sum();
        let point = &cell[0];
        Self {
            bench: "sim",
            subject: point.subject,
            rival: point.rival,
            machine: point.machine.clone(),
            threads: point.threads,
            procs: 1,
            params: Params::new(scene, subject),
            ops_per_s: middle(|point| point.ops_per_s),
            ns_per_op: middle(
                |point| if point.ops_per_s > 0.0 { 1e9 / point.ops_per_s } else { 0.0 },
            ),
            spread: rounded(spread(&speeds)),
            p50_ns: middle(|point| point.p50_ns),
            p99_ns: middle(|point| point.p99_ns),
            fairness: middle(|point| point.fairness),
            runs: cell.len(),
            noisy: noisy(&speeds, ratio),
            max_ns: middle(|point| point.max_ns),
            near_per_op: middle(|point| point.near_per_op),
            far_per_op: middle(|point| point.far_per_op),
            accesses: middle(|point| point.accesses as f64),
            host_s: rounded(host_s / cell.len() as f64),
            host_accesses_per_s: rounded(
                cell.iter().map(|p| p.accesses as f64).sum::<f64>() / host_s,
            ),
            ratio: ratio.map(|ratio| rounded(ratio.mid)),
            ratio_to: ratio.and(first.first()).map(|point| point.subject),
            linear: None,
            weak: point.weak.map(rounded),
        }
    }
}

/// Rounds to five significant digits.
pub(super) fn rounded(value: f64) -> f64 {
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

/// JSON lines.
pub(super) fn json(rows: &[impl Serialize], out: &mut impl Write) -> io::Result<()> {
    for row in rows {
        serde_json::to_writer(&mut *out, row)?;
        writeln!(out)?;
    }
    Ok(())
}

/// Prints a line for each row, with a column for each parameter; missing values are empty.
pub(super) fn csv(rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    let flat = |row: &Row| -> serde_json::Map<String, serde_json::Value> {
        let serde_json::Value::Object(map) = serde_json::json!(row) else {
            return Default::default();
        };
        let one = |(key, value): (String, serde_json::Value)| match value {
            serde_json::Value::Object(inner) => inner.into_iter().collect(),
            value => serde_json::Map::from_iter([(key, value)]),
        };
        map.into_iter().flat_map(one).collect()
    };
    let cell = |value: &serde_json::Value| match value {
        serde_json::Value::Null => String::new(),
        serde_json::Value::String(text) => quoted(text),
        value => value.to_string(),
    };
    let rows: Vec<_> = rows.iter().map(flat).collect();
    let names: BTreeSet<&str> =
        rows.iter().flat_map(|row| row.keys()).map(String::as_str).collect();
    writeln!(out, "{}", Vec::from_iter(names.iter().copied()).join(","))?;
    for row in &rows {
        let cells: Vec<_> =
            names.iter().map(|name| row.get(*name).map_or(String::new(), cell)).collect();
        writeln!(out, "{}", cells.join(","))?;
    }
    Ok(())
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text.to_owned()
}

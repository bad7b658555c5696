//! Where the cycles of a run were spent.

use std::io::{self, IsTerminal, Write};

use latchwork_bench::sim::{self, Point, RunError, Subject};
use latchwork_sim::Misses;
use serde::Serialize;

use super::Scene;
use super::row::{self, Params, rounded};
use super::sweep::plan;
use crate::output;

/// A cache line, or several equal ones.
#[derive(Clone, Debug, Serialize)]
struct Line {
    bench: &'static str,
    subject: &'static str,
    rival: bool,
    machine: String,
    threads: usize,
    procs: usize,
    params: Params,
    /// The field, with its offset from the label in bytes.
    line: String,
    /// Its share of all waiting for lines.
    share: f64,
    /// How long an operation's threads and store buffers waited for it, in nanoseconds.
    ns_per_op: f64,
    near_per_op: f64,
    far_per_op: f64,
}

/// Whether the lines under this label are equal.
fn many(label: &str) -> bool {
    let known = [
        "data",
        "table",
        "pins",
        "biases",
        "directory",
        "chains",
        "weak-page",
        "buckets",
        "headers",
        "frames",
        "log-buffer",
        "log-slot",
        "store-slot",
        "pool-head",
        "pool-xlat",
        "pool-desc",
        "pool-frames",
        "pages",
    ];
    known.contains(&label) || label.starts_with("cells-of-")
}

/// Sums the lines of a workload's data, of which there are many equal ones.
fn summed(misses: Vec<(String, Misses)>) -> Vec<(String, Misses)> {
    let mut sums: Vec<(String, Misses)> = Vec::new();
    for (line, seen) in misses {
        let (label, _) = line.split_once('+').unwrap_or((&line, ""));
        let label = label.trim_end();
        let name = if many(label) { label } else { &line };
        match sums.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => {
                sum.near += seen.near;
                sum.far += seen.far;
                sum.cycles += seen.cycles;
            }
            None => sums.push((name.to_owned(), seen)),
        }
    }
    sums.sort_by(|a, b| b.1.cycles.cmp(&a.1.cycles).then_with(|| a.0.cmp(&b.0)));
    sums
}

/// The result.
pub(super) struct Told {
    point: Point,
    lines: Vec<Line>,
    title: String,
    timed: &'static str,
}

impl Told {
    /// Runs it, with the first seed.
    pub(super) fn new(scene: &Scene, latch: Subject, threads: usize) -> Result<Self, RunError> {
        let mut point = sim::run(&plan(scene, latch, threads, scene.seed))?;
        let misses = summed(std::mem::take(&mut point.misses));
        // Transfers are also counted during the warm-up.
        let ns = scene.ns * 1.25;
        let ops = (point.ops_per_s * ns / 1e9).max(1.0);
        let total: u64 = misses.iter().map(|(_, seen)| seen.cycles).sum();
        let lines = misses.into_iter().map(|(line, seen)| Line {
            bench: "sim-explain",
            subject: point.subject,
            rival: point.rival,
            machine: point.machine.clone(),
            threads,
            procs: 1,
            params: Params::new(scene, &latch),
            line,
            share: rounded(seen.cycles as f64 / total.max(1) as f64),
            ns_per_op: rounded(seen.cycles as f64 / scene.spec.ghz / ops),
            near_per_op: rounded(seen.near as f64 / ops),
            far_per_op: rounded(seen.far as f64 / ops),
        });
        let lines = lines.collect();
        let busy = total as f64 / scene.spec.ghz / (ns * threads as f64);
        let title = format!(
            "simulated: {} under {} on {}, {threads} threads, {} us, seed {}\n\
             {:.3} million operations a second; fetching lines took {:.0} % of the threads' time",
            scene.workload.name,
            point.subject,
            scene.spec.name,
            scene.us,
            scene.seed,
            point.ops_per_s / 1e6,
            busy * 100.0,
        );
        Ok(Self { point, lines, title, timed: scene.workload.timed() })
    }

    /// JSON lines.
    pub(super) fn json(&self, out: &mut impl Write) -> io::Result<()> {
        row::json(&self.lines, out)
    }

    /// Prints a table of the first `top`.
    pub(super) fn print(&self, top: usize, out: &mut impl Write) -> io::Result<()> {
        let colour = io::stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        writeln!(out, "{}\n", self.title)?;
        let header = ["line", "waiting", "ns an op", "near an op", "far an op"];
        let mut table = output::table(&header, 1..5, colour);
        let mut add = |name: &str, share: f64, ns: f64, near: f64, far: f64| {
            table.add_row([
                output::head(name, 50),
                format!("{:.1} %", share * 100.0),
                format!("{ns:.1}"),
                format!("{near:.3}"),
                format!("{far:.3}"),
            ]);
        };
        let (shown, rest) = self.lines.split_at(top.min(self.lines.len()));
        for line in shown {
            add(&line.line, line.share, line.ns_per_op, line.near_per_op, line.far_per_op);
        }
        let sum = |lines: &[Line], pick: fn(&Line) -> f64| lines.iter().map(pick).sum::<f64>();
        let mut all = |name: &str, lines: &[Line]| {
            let (share, ns) = (sum(lines, |l| l.share), sum(lines, |l| l.ns_per_op));
            add(name, share, ns, sum(lines, |l| l.near_per_op), sum(lines, |l| l.far_per_op));
        };
        if !rest.is_empty() {
            all(&format!("{} more", rest.len()), rest);
        }
        all("all", &self.lines);
        writeln!(out, "{table}")?;
        writeln!(
            out,
            "\nnear: from a cache in the same socket, or its memory; far: from another socket.\n\
             The busier half of the threads did {:.1} % of the operations (50 % is fair).\n\
             Time of {}: median {}, p99 {}",
            self.point.fairness * 100.0,
            self.timed,
            output::time(self.point.p50_ns as u64),
            output::time(self.point.p99_ns as u64),
        )
    }
}

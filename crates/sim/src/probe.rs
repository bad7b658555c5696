//! Measuring the host as a machine: costs of its cores and of the transfers between them.
//!
//! Two threads, each pinned to a cpu. One brings some lines into a state; the other walks them,
//! each access waiting for the previous one, in an order that no prefetcher predicts. So a figure
//! is the time that the requesting core waits, as the simulator defines it. Two cores also pass one
//! line back and forth by compare-and-swap, as core-to-core-latency does; the model does not use
//! this figure, which is written for comparison.
//!
//! Every figure is the median of many rounds, so occasional activity of other programs does not
//! affect it.

mod shape;
mod walk;

use std::fmt::{self, Write};
use std::io;

use latchwork_machine::{Place, Topology as Host};
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::spec::Spec;
use crate::topology::Topology;
use shape::Shape;
use walk::{CASES, Case, Couple, alone, median};

/// The machine whose figures are borrowed. The model was fitted on it.
const LIKE: &str = "westmere-ex-80";

static SYSFS: Host = Host::at("/sys/devices/system");

/// The measurements of this host.
#[derive(Clone, Debug)]
pub struct Probe {
    title: String,
    ghz: f64,
    l1: f64,
    atomic_hit: f64,
    pause: f64,
    shape: Shape,
    /// Nanoseconds of each case at each distance; `None` if there is no such pair or the case
    /// cannot be measured. `pairs` is the number of pairs at each distance.
    figures: Vec<(Case, &'static str, Vec<Option<f64>>)>,
    pairs: Vec<usize>,
}

/// Measures this host. Takes some seconds, and occupies two cpus at a time.
///
/// # Errors
///
/// Returns an error if the system does not report, or does not allow to choose, where a thread
/// runs.
pub fn probe() -> io::Result<Probe> {
    let cpus = allowed()?;
    let places: Vec<(usize, Place)> = cpus.iter().map(|cpu| (*cpu, SYSFS.place_of(*cpu))).collect();
    let shape = Shape::of(&places, numa_distance);
    let alone = alone(cpus[0])?;
    let distances = shape.distances();
    let mut figures: Vec<_> =
        CASES.iter().map(|(case, key)| (*case, *key, vec![None; distances])).collect();
    let mut pairs = Vec::new();
    for distance in 0..distances {
        let there = shape.pairs(&places, distance);
        for (case, _, row) in figures.iter_mut().filter(|(case, ..)| case.can_be_measured()) {
            let mut all = Vec::new();
            for (a, b) in &there {
                all.push(Couple::measure(*case, *a, *b)?);
            }
            row[distance] = (!all.is_empty()).then(|| median(&mut all));
        }
        pairs.push(there.len());
    }
    Ok(Probe {
        title: title(cpus.len()),
        ghz: alone.ghz,
        l1: alone.l1,
        atomic_hit: alone.atomic_hit,
        pause: alone.pause,
        shape,
        figures,
        pairs,
    })
}

/// Returns the cpus that this program may use.
fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None).map_err(refused)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

fn refused(errno: rustix::io::Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.raw_os_error())
}

fn title(cpus: usize) -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or(std::env::consts::ARCH, |(_, model)| model);
    let model: String = model.chars().filter(|c| !c.is_control() && !"\"\\".contains(*c)).collect();
    format!("{model}, {cpus} cpus")
}

/// Returns the kernel's distance between two nodes.
fn numa_distance(from: u32, to: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/sys/devices/system/node/node{from}/distance"));
    text.ok()?.split_whitespace().nth(to as usize)?.parse().ok()
}

impl Probe {
    /// Returns the file of a machine named `here`, for [`Spec::parse`].
    pub fn toml(&self) -> String {
        let mut text = String::new();
        self.write(&mut text).expect("a string has room");
        text
    }

    fn write(&self, to: &mut String) -> fmt::Result {
        let shape = &self.shape;
        writeln!(to, "name = \"here\"")?;
        writeln!(to, "title = \"{}\"", self.title)?;
        writeln!(to, "source = \"measured on this host by latchwork sim probe\"")?;
        writeln!(
            to,
            "# For all that is not below; missing latencies in proportion to atomic.modified."
        )?;
        writeln!(to, "like = \"{LIKE}\"")?;
        writeln!(to, "ghz = {:.2}\n\n[topology]", self.ghz)?;
        if shape.uneven {
            writeln!(to, "# Not all alike: taken for the largest.")?;
        }
        writeln!(to, "sockets = {}", shape.sockets)?;
        writeln!(to, "caches = {}", shape.caches)?;
        writeln!(to, "cores = {}", shape.cores)?;
        writeln!(to, "smt = {}", shape.smt)?;
        if shape.sockets > 1 {
            let rows: Vec<_> = shape.hops.iter().map(|row| format!("  {row:?},\n")).collect();
            writeln!(to, "hops = [\n{}]", rows.concat())?;
        }
        let names = self.distances().join(", ");
        writeln!(to, "\n# By distance: {names}.\n[latency]\nunit = \"ns\"")?;
        for (case, key, row) in &self.figures {
            let numbers: Vec<_> = match (case, complete(row)) {
                (_, Some(row)) => row.iter().map(|ns| format!("{:.1}", ns.max(1.0))).collect(),
                (Case::AtomicModified, None) => self.anchor(row),
                (_, None) => continue,
            };
            let kept = if *case == Case::Handover { "# A line passed on by CAS: " } else { "" };
            let borrowed = if complete(row).is_none() { "   # in part borrowed" } else { "" };
            writeln!(to, "{kept}{key} = [{}]{borrowed}", numbers.join(", "))?;
        }
        writeln!(to, "\n[core]")?;
        for (key, cycles) in self.core() {
            writeln!(to, "{key} = {:.0}", cycles.max(1.0))?;
        }
        writeln!(to, "smt_share = {:.1}   # borrowed", like().costs.smt_share)
    }

    /// Returns the figures of the distances, with the other machine's where one is missing.
    fn anchor(&self, row: &[Option<f64>]) -> Vec<String> {
        let (like, shape) = (like(), &self.shape);
        let mine = Topology::new(shape.sockets, shape.caches, shape.cores, shape.smt, &shape.hops);
        let borrowed = |at: usize| {
            let there = mine.as_ref().map_or(0, |mine| mine.matching(at, &like.topology));
            like.costs.atomic.modified[there] / like.ghz
        };
        let one =
            |(at, ns): (usize, &Option<f64>)| format!("{:.1}", ns.unwrap_or_else(|| borrowed(at)));
        row.iter().enumerate().map(one).collect()
    }

    fn core(&self) -> [(&'static str, f64); 3] {
        [("l1", self.l1), ("atomic_hit", self.atomic_hit), ("pause", self.pause)]
    }

    fn distances(&self) -> Vec<String> {
        let mut names = vec!["same cache".to_owned()];
        names.extend((self.shape.caches > 1).then(|| "same socket".to_owned()));
        names.extend((1..=self.shape.most_hops()).map(|hops| format!("{hops} hops")));
        names
    }
}

/// Displays what was measured and what was not.
impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = &self.shape;
        writeln!(f, "{}", self.title)?;
        write!(f, "{} sockets, {} caches each, ", shape.sockets, shape.caches)?;
        writeln!(f, "{} cores each, {} hardware threads each", shape.cores, shape.smt)?;
        write!(f, "{:.2} GHz as it ran;", self.ghz)?;
        for (key, cycles) in self.core() {
            write!(f, " {key} {cycles:.0}")?;
        }
        writeln!(f, " cycles")?;
        for (at, name) in self.distances().iter().enumerate() {
            writeln!(f, "{name}, ns, median of {} pairs of cpus:", self.pairs[at])?;
            for (_, key, row) in &self.figures {
                match row[at] {
                    Some(ns) => writeln!(f, "  {key:<16} {ns:>7.1}")?,
                    None => writeln!(f, "  {key:<16} not measured",)?,
                }
            }
        }
        let missing = self.figures.iter().filter(|(.., row)| complete(row).is_none());
        let missing: Vec<_> =
            missing.map(|(_, key, _)| *key).chain(["load.shared", "store"]).collect();
        write!(
            f,
            "borrowed from {LIKE}, in proportion to atomic.modified: {}\n\
             borrowed as they are: smt_share, coherence, os",
            missing.join(", ")
        )
    }
}

fn complete(row: &[Option<f64>]) -> Option<Vec<f64>> {
    row.iter().copied().collect()
}

fn like() -> Spec {
    Spec::shipped(LIKE).expect("a machine that comes with the program")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_describes_a_machine() {
        let probe = probe().unwrap();
        let spec = Spec::parse(&probe.toml()).unwrap();
        assert_eq!(spec.name, "here");
        assert_eq!(spec.topology.distances(), probe.shape.distances());
        let row = probe.figures.iter().find(|(case, ..)| *case == Case::AtomicModified).unwrap();
        let written = complete(&row.2);
        if let Some(written) = written {
            let read = spec.costs.atomic.modified[0] / spec.ghz;
            assert!((read - written[0].max(1.0)).abs() < 0.06, "{read} {written:?}");
        }
    }

    #[test]
    fn a_host_of_one_core_borrows_all_latencies() {
        let shape = Shape::of(&[(0, Place::UNKNOWN)], |_, _| None);
        let figures = CASES.iter().map(|(case, key)| (*case, *key, vec![None])).collect();
        let probe = Probe {
            title: "one".into(),
            ghz: 2.0,
            l1: 4.2,
            atomic_hit: 18.0,
            pause: 40.0,
            shape,
            figures,
            pairs: vec![0],
        };
        let spec = Spec::parse(&probe.toml()).unwrap();
        assert!((spec.costs.atomic.modified[0] / 2.0 - 120.0 / 2.13).abs() < 0.1);
        assert_eq!((spec.costs.l1, spec.costs.pause), (4, 40));
        assert!(probe.to_string().contains("not measured"));
    }
}

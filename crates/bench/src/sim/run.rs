//! One simulated run, and what it measures.

use std::cell::RefCell;

use hdrhistogram::Histogram;
use latchwork_sim::{Misses, Simulation, Spec, Stuck, clock, work};
use serde::Serialize;

use super::lock::Subject;
use super::workload::{Dice, Shared, Workload, operation};

/// What to run.
#[derive(Clone)]
pub struct Plan<'a> {
    /// The machine.
    pub spec: &'a Spec,
    /// What the threads do.
    pub workload: Workload,
    /// The lock that they do it under.
    pub subject: Subject,
    /// How many there are.
    pub threads: usize,
    /// Simulated nanoseconds that are measured; a quarter as many come before, to warm up.
    pub ns: f64,
    /// Decides what chance decides.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The machine's name.
    pub machine: String,
    /// The workload's.
    pub workload: &'static str,
    /// The lock's.
    pub subject: &'static str,
    /// Whether it is other people's.
    pub rival: bool,
    /// Threads.
    pub threads: usize,
    /// Operations a second, of all threads.
    pub ops_per_s: f64,
    /// The busier half of the threads' share of all operations; 0.5 is fair.
    pub fairness: f64,
    /// Half of the waits were no longer.
    pub p50_ns: f64,
    /// 99 of 100 were no longer.
    pub p99_ns: f64,
    /// The longest wait.
    pub max_ns: f64,
    /// Transfers of lines an operation within a socket.
    pub near_per_op: f64,
    /// Transfers of lines an operation across sockets.
    pub far_per_op: f64,
    /// Accesses to shared memory that were simulated.
    pub accesses: u64,
    /// Seconds that the host took.
    pub host_s: f64,
    /// Where the waiting was, the dearest first.
    #[serde(skip)]
    pub misses: Vec<(String, Misses)>,
}

struct Tally {
    ops: Vec<u64>,
    waits: Histogram<u64>,
}

/// Runs it.
///
/// # Errors
///
/// If the lock cannot serve so many threads, or its threads are stuck.
pub fn run(plan: &Plan<'_>) -> Result<Point, RunError> {
    let lock = plan.subject.make(plan.threads);
    let lock = lock.ok_or(RunError::Threads(plan.subject.name, plan.threads))?;
    let shape = &plan.workload.shape;
    let shared = Shared::new(shape);
    let waits = Histogram::new_with_bounds(1, 60_000_000_000, 2).expect("bounds that make sense");
    let tally = RefCell::new(Tally { ops: vec![0; plan.threads], waits });
    let mut simulation = Simulation::new(plan.spec, plan.seed);
    for (name, part) in shared.parts() {
        simulation.label(part, name);
        simulation.warm(part, plan.threads);
    }
    let (start, len) = lock.place();
    simulation.label_at(start, len, plan.subject.name);
    for (offset, len, field) in lock.fields() {
        simulation.label_at(start + offset, *len, format!("{}.{field}", plan.subject.name));
    }
    let (from, until) = (plan.ns / 4.0, plan.ns * 1.25);
    let body = |me: usize| {
        let (lock, shared, tally) = (&*lock, &shared, &tally);
        let mut dice = Dice::new(plan.seed, me);
        let life = move || {
            // Out of step, as threads are that come through a barrier.
            work(dice.below(1000) as u64);
            while now() < until {
                operation(shape, lock, shared, me, &mut dice, |enter| {
                    let asked = now();
                    enter();
                    let waited = now() - asked;
                    if asked >= from {
                        tally.borrow_mut().waits.saturating_record(waited.max(1.0) as u64);
                    }
                });
                if (from..until).contains(&now()) {
                    tally.borrow_mut().ops[me] += 1;
                }
            }
        };
        Box::new(life) as Box<dyn FnOnce()>
    };
    let outcome = simulation.run((0..plan.threads).map(body).collect());
    let outcome = outcome.map_err(|stuck| RunError::Stuck(plan.subject.name, stuck))?;
    let Tally { ops, waits } = tally.into_inner();
    let total: u64 = ops.iter().sum();
    let (near, far) =
        outcome.misses.iter().fold((0, 0), |sum, (_, m)| (sum.0 + m.near, sum.1 + m.far));
    // Transfers are counted from the first moment on, operations not.
    let all = total as f64 * until / plan.ns;
    Ok(Point {
        machine: plan.spec.name.clone(),
        workload: plan.workload.name,
        subject: plan.subject.name,
        rival: plan.subject.rival,
        threads: plan.threads,
        ops_per_s: total as f64 * 1e9 / plan.ns,
        fairness: fairness(ops),
        p50_ns: waits.value_at_quantile(0.5) as f64,
        p99_ns: waits.value_at_quantile(0.99) as f64,
        max_ns: waits.max() as f64,
        near_per_op: near as f64 / all.max(1.0),
        far_per_op: far as f64 / all.max(1.0),
        accesses: outcome.accesses,
        host_s: outcome.host.as_secs_f64(),
        misses: outcome.misses,
    })
}

fn now() -> f64 {
    clock().map_or(0.0, |(_, ns)| ns)
}

/// The busier half's share: 0.5 if all do the same.
fn fairness(mut ops: Vec<u64>) -> f64 {
    ops.sort_unstable();
    let total: u64 = ops.iter().sum();
    let busier: u64 = ops[ops.len() / 2..].iter().sum();
    match ops.len() {
        1 => 0.5,
        _ => busier as f64 / total.max(1) as f64,
    }
}

/// Why a run has no result.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RunError {
    /// The lock cannot serve so many threads.
    Threads(&'static str, usize),
    /// The lock's threads are stuck: it has a fault, or the simulator.
    Stuck(&'static str, Box<Stuck>),
}

impl std::fmt::Display for RunError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Threads(name, threads) => write!(f, "{name} cannot serve {threads} threads"),
            Self::Stuck(name, stuck) => write!(f, "{name}: {stuck}"),
        }
    }
}

impl std::error::Error for RunError {}

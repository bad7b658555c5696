//! One simulated run and its results.

use std::cell::RefCell;

use hdrhistogram::Histogram;
use latchwork_sim::{Misses, Simulation, Spec, Stuck, work};
use serde::Serialize;

use super::dice::Dice;
use super::engine::{self, Engine};
use super::lock::{SimLock, Subject};
use super::watch::{Tally, Watch};
use super::workload::{Shared, Workload, operation};
use crate::stats::fairness;

/// The parameters of a run.
#[derive(Clone)]
pub struct Plan<'a> {
    /// The machine.
    pub spec: &'a Spec,
    /// The workload.
    pub workload: Workload,
    /// The lock.
    pub subject: Subject,
    /// Number of threads.
    pub threads: usize,
    /// Measured simulated nanoseconds. Warm-up adds a quarter.
    pub ns: f64,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The machine's name.
    pub machine: String,
    /// The workload's name.
    pub workload: &'static str,
    /// The lock's name.
    pub subject: &'static str,
    /// Whether it is a rival.
    pub rival: bool,
    /// Threads.
    pub threads: usize,
    /// Operations per second, of all threads.
    pub ops_per_s: f64,
    /// Share of all operations done by the busier half of the threads; 0.5 is fair.
    pub fairness: f64,
    /// Median wait.
    pub p50_ns: f64,
    /// 99th percentile of the waits.
    pub p99_ns: f64,
    /// The longest wait.
    pub max_ns: f64,
    /// Transfers of cache lines per operation within a socket.
    pub near_per_op: f64,
    /// Transfers of cache lines per operation across sockets.
    pub far_per_op: f64,
    /// Of a lock manager, the fraction of requests granted in their owner's own memory.
    pub weak: Option<f64>,
    /// Simulated accesses to shared memory.
    pub accesses: u64,
    /// Processor seconds of the host.
    pub host_s: f64,
    /// Cache misses by place, the most expensive first.
    #[serde(skip)]
    pub misses: Vec<(String, Misses)>,
}

/// The object shared by the threads of a run.
enum Common {
    Latch(Box<dyn SimLock>, Shared),
    /// An engine, and its first error.
    Engine(Box<dyn Engine>, RefCell<Option<String>>),
}

impl Common {
    fn new(plan: &Plan<'_>) -> Result<Self, RunError> {
        let Plan { workload, subject, threads, .. } = plan;
        if !workload.takes(subject) {
            return Err(RunError::Unfit(workload.name, subject.name));
        }
        if let Some(operations) = workload.on(subject) {
            let engine = engine::make(subject.name, workload.shape.inside, operations, *threads);
            let engine = engine.map_err(|why| RunError::Engine(subject.name, why))?;
            return Ok(Self::Engine(engine, RefCell::default()));
        }
        let lock = subject.make(*threads).ok_or(RunError::Threads(subject.name, *threads))?;
        Ok(Self::Latch(lock, Shared::new(&workload.shape)))
    }

    fn label(&self, plan: &Plan<'_>, simulation: &mut Simulation) {
        let (lock, shared) = match self {
            Self::Latch(lock, shared) => (lock, shared),
            Self::Engine(engine, _) => return engine.set_up(simulation),
        };
        for (name, part) in shared.parts() {
            simulation.label(part, name);
            simulation.warm(part, plan.threads);
        }
        lock.tell_words(plan.subject.name, &mut |start, len, word| {
            simulation.label_at(start, len, word);
        });
    }

    fn live(&self, plan: &Plan<'_>, watch: &Watch<'_>) {
        let mut dice = Dice::new(plan.seed, watch.me);
        // Out of step, like threads that leave a barrier.
        work(dice.below(1000) as u64);
        match self {
            Self::Engine(engine, fault) => {
                if let Err(why) = engine.live(watch.me, &mut dice, watch) {
                    fault.borrow_mut().get_or_insert(why);
                }
            }
            Self::Latch(lock, shared) => {
                let shape = &plan.workload.shape;
                let pause = shape.pause.cycles(plan.spec, plan.threads);
                while watch.goes_on() {
                    operation(shape, &**lock, shared, &mut dice, pause, watch);
                    watch.done();
                }
            }
        }
    }
}

impl Common {
    /// Checks after the run; see [`Engine::judge`].
    fn judge(&self) -> Result<Option<f64>, String> {
        match self {
            Self::Latch(..) => Ok(None),
            Self::Engine(engine, fault) => match fault.take() {
                Some(why) => Err(why),
                None => engine.judge(),
            },
        }
    }
}

/// Runs the plan.
///
/// # Errors
///
/// If the lock cannot serve the number of threads or the workload, or if threads are stuck.
pub fn run(plan: &Plan<'_>) -> Result<Point, RunError> {
    run_on(plan, &Common::new(plan)?)
}

/// Runs a shipped machine, workload and lock, by name, for `ns` nanoseconds.
///
/// # Panics
///
/// If a name is unknown.
pub(super) fn run_shipped(
    machine: &str,
    workload: &str,
    subject: &str,
    threads: usize,
    ns: f64,
) -> Result<Point, RunError> {
    let spec = Spec::shipped(machine).expect("a machine that is shipped");
    run(&Plan {
        spec: &spec,
        workload: Workload::named(workload).expect("a workload that there is"),
        subject: Subject::named(subject).expect("a lock that there is"),
        threads,
        ns,
        seed: 1,
    })
}

/// A run is stuck after this multiple of its planned time.
const LONGER: f64 = 8.0;
/// Plus this: a run may be shorter than one sleep of a waiter.
const GRACE_NS: f64 = 1e8;

/// The simulated nanosecond at which a run gives up.
fn last_ns(plan: &Plan<'_>) -> f64 {
    // Threads that wait at the end of the run are served first. Where threads share processors,
    // each may have to wait for its turn.
    let turns = plan.threads.saturating_sub(1) / plan.spec.topology.cpus() * plan.threads;
    let turns_ns = turns as f64 * plan.spec.os.slice_us * 1e3;
    plan.ns * 1.25 * LONGER + GRACE_NS + turns_ns
}

fn run_on(plan: &Plan<'_>, common: &Common) -> Result<Point, RunError> {
    let waits = Histogram::new_with_bounds(1, 60_000_000_000, 2).expect("bounds that make sense");
    let tally = RefCell::new(Tally { ops: vec![0; plan.threads], waits });
    let mut simulation = Simulation::new(plan.spec, plan.seed).last_ns(last_ns(plan));
    common.label(plan, &mut simulation);
    let (from, until) = (plan.ns / 4.0, plan.ns * 1.25);
    let body = |me: usize| {
        let watch = Watch { me, from, until, tally: &tally };
        Box::new(move || common.live(plan, &watch)) as Box<dyn FnOnce()>
    };
    let outcome = simulation.run((0..plan.threads).map(body).collect());
    let outcome = outcome.map_err(|stuck| RunError::Stuck(plan.subject.name, stuck))?;
    let weak = common.judge().map_err(|why| RunError::Engine(plan.subject.name, why))?;
    let Tally { ops, waits } = tally.into_inner();
    let total: u64 = ops.iter().sum();
    let (near, far) =
        outcome.misses.iter().fold((0, 0), |sum, (_, m)| (sum.0 + m.near, sum.1 + m.far));
    // Transfers are counted from the start, operations are not.
    let all = total as f64 * until / plan.ns;
    Ok(Point {
        machine: plan.spec.name.clone(),
        workload: plan.workload.name,
        subject: plan.subject.name,
        rival: plan.subject.rival,
        threads: plan.threads,
        ops_per_s: total as f64 * 1e9 / plan.ns,
        fairness: fairness(&ops).unwrap_or(0.5),
        p50_ns: waits.value_at_quantile(0.5) as f64,
        p99_ns: waits.value_at_quantile(0.99) as f64,
        max_ns: waits.max() as f64,
        near_per_op: near as f64 / all.max(1.0),
        far_per_op: far as f64 / all.max(1.0),
        weak,
        accesses: outcome.accesses,
        host_s: outcome.host.as_secs_f64(),
        misses: outcome.misses,
    })
}

/// Why a run has no result.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RunError {
    /// The lock cannot serve this number of threads.
    Threads(&'static str, usize),
    /// The lock does not fit the workload.
    Unfit(&'static str, &'static str),
    /// An engine returned an error or a wrong result.
    Engine(&'static str, String),
    /// Threads are stuck: a defect of the lock or of the simulator.
    Stuck(&'static str, Box<Stuck>),
}

impl std::fmt::Display for RunError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Threads(name, threads) => write!(f, "{name} cannot serve {threads} threads"),
            Self::Unfit(workload, name) => write!(f, "{workload} is not about {name}"),
            Self::Engine(name, what) => write!(f, "{name}: {what}"),
            Self::Stuck(name, stuck) => write!(f, "{name}: {stuck}"),
        }
    }
}

impl std::error::Error for RunError {}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;

    use latchwork_machine::{Deadline, Machine, Word};
    use latchwork_sim::Simulated;

    use super::*;

    /// A lock that is never granted.
    struct Never {
        word: <Simulated as Machine>::AtomicU32,
        /// Whether a waiter sleeps between two polls.
        naps: bool,
    }

    impl SimLock for Never {
        fn lock(&self, _: usize) {
            while self.word.load(Relaxed) == 0 {
                if self.naps {
                    let soon = Deadline::after::<Simulated>(Duration::from_millis(1));
                    let _ = Simulated::wait(&self.word, 0, Some(soon));
                } else {
                    Simulated::relax();
                }
            }
        }
        fn unlock(&self, _: usize) {}
    }

    #[test]
    fn who_never_gets_a_lock_is_told_of() {
        let spec = Spec::shipped("xeon-24t").expect("a machine that is shipped");
        for (naps, threads) in [(true, 1), (true, 3), (false, 1)] {
            let workload = Workload::named("lock-loop").expect("a workload that there is");
            let subject = Subject::named("tas").expect("a lock that there is");
            let plan = Plan { spec: &spec, workload, subject, threads, ns: 1e4, seed: 1 };
            let never = Never { word: Default::default(), naps };
            let common = Common::Latch(Box::new(never), Shared::new(&workload.shape));
            let ended = run_on(&plan, &common).map(|_| ());
            let stuck = ended.expect_err("it came to an end").to_string();
            assert!(stuck.starts_with("tas: no end in sight"), "{stuck}");
        }
    }

    fn point(machine: &str, workload: &str, subject: &str, threads: usize) -> Point {
        run_shipped(machine, workload, subject, threads, 200_000.0)
            .unwrap_or_else(|why| panic!("{why}"))
    }

    #[test]
    fn of_three_that_take_turns_no_half_is_the_busier() {
        let point = point("xeon-24t", "lock-loop", "ticket", 3);
        assert!(point.fairness < 0.55, "{}", point.fairness);
    }

    #[test]
    fn who_sends_its_sections_waits_for_them() {
        let sent = point("xeon-24t", "lock-loop", "flat-combining", 8);
        let taken = point("xeon-24t", "lock-loop", "mcs", 8);
        assert!(0.0 < sent.p50_ns && sent.p50_ns <= sent.p99_ns, "{sent:?}");
        assert!(sent.p50_ns < 10.0 * taken.p50_ns, "{sent:?} and {taken:?}");
    }
}

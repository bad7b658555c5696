//! One simulated run, and what it measures.

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
    /// Of a lock manager, the part of requests that it granted in their owners' own memory.
    pub weak: Option<f64>,
    /// Accesses to shared memory that were simulated.
    pub accesses: u64,
    /// Seconds of a processor of the host.
    pub host_s: f64,
    /// Where the waiting was, the dearest first.
    #[serde(skip)]
    pub misses: Vec<(String, Misses)>,
}

/// What the threads of a run have in common.
enum Common {
    Latch(Box<dyn SimLock>, Shared),
    /// And what went wrong first.
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
        // Out of step, as threads are that come through a barrier.
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
    /// For after the run; see [`Engine::judge`].
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

/// Runs it.
///
/// # Errors
///
/// If the lock cannot serve so many threads, or this workload, or its threads are stuck.
pub fn run(plan: &Plan<'_>) -> Result<Point, RunError> {
    run_on(plan, &Common::new(plan)?)
}

/// The same of what is shipped, by its names, for so many nanoseconds.
///
/// # Panics
///
/// If there is no machine, workload or latch of that name.
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

/// A run may take so many times as long as it was to take before it is stuck.
const LONGER: f64 = 8.0;
/// And so much longer in any case, for one may be shorter than a nap of a waiter.
const GRACE_NS: f64 = 1e8;

/// The simulated nanosecond at which a run gives up.
fn last_ns(plan: &Plan<'_>) -> f64 {
    // Who waits as the run ends is served first; where threads share processors each of them may
    // have to wait for its turn.
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
    // Transfers are counted from the first moment on, operations not.
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
    /// The lock cannot serve so many threads.
    Threads(&'static str, usize),
    /// The workload is not about such a lock.
    Unfit(&'static str, &'static str),
    /// An engine did something wrong.
    Engine(&'static str, String),
    /// The lock's threads are stuck: it has a fault, or the simulator.
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

    /// A lock that nobody gets.
    struct Never {
        word: <Simulated as Machine>::AtomicU32,
        /// Whether who waits sleeps between two looks.
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
        assert!(sent.p50_ns < 10.0 * taken.p50_ns, "{sent:?} beside {taken:?}");
    }
}

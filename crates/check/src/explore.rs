//! Properties on the simulated machine, under random schedules that a seed replays.

use std::fmt;
use std::sync::atomic::AtomicU64 as Plain;
use std::sync::atomic::Ordering::Relaxed;

use latchwork_machine::{Machine, Word};
use latchwork_sim::{Explorer, Outcome, Simulated, Simulation, Spec, Stuck};

use crate::law::Numbered;

/// The body of a simulated thread.
pub type Body<'a> = Box<dyn FnOnce() + 'a>;

/// Boxes the body of a simulated thread.
pub fn body<'a>(f: impl FnOnce() + 'a) -> Body<'a> {
    Box::new(f)
}

/// Accesses after which a run of a few threads and operations counts as endless.
const LIMIT: u64 = 200_000;

/// The approximate number of accesses of a run, over which changes of priority are distributed.
const LENGTH: u64 = 400;

/// The schedule of a run, determined by the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule(pub u64);

impl Schedule {
    /// Random if the number is even. Otherwise by priorities, with one to four changes.
    pub fn explorer(self) -> Explorer {
        match self.changes() {
            None => Explorer::random(self.0),
            Some(changes) => Explorer::pct(self.0, changes, LENGTH),
        }
    }

    fn changes(self) -> Option<usize> {
        (self.0 % 2 == 1).then_some(1 + (self.0 / 2 % 4) as usize)
    }

    /// Runs the bodies on a machine of two sockets with two cores each.
    pub fn run(self, bodies: Vec<Body<'_>>) -> Result<Outcome, Box<Stuck>> {
        Simulation::new(&two_by_two(), self.0).explore(self.explorer()).limit(LIMIT).run(bodies)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.changes() {
            None => write!(f, "seed {} (at random)", self.0),
            Some(changes) => write!(f, "seed {} (by priorities, {changes} changes)", self.0),
        }
    }
}

/// A small machine with two nodes, so that waiters are sorted.
pub fn two_by_two() -> Spec {
    Spec::parse(
        r#"
        name = "two-by-two"
        title = "two sockets with two cores each"
        source = "invented"
        like = "westmere-ex-80"
        ghz = 2.0
        [topology]
        sockets = 2
        cores = 2
        [latency]
        unit = "cycles"
        atomic.modified = [120, 324]
        "#,
    )
    .expect("a good description")
}

/// The first schedule of `schedules` under which `law` fails, with the error, which contains the
/// seed.
pub fn explore(
    schedules: impl IntoIterator<Item = u64>,
    law: impl Fn(Schedule) -> Result<(), String>,
) -> Result<(), String> {
    for number in schedules {
        let schedule = Schedule(number);
        law(schedule).map_err(|error| format!("{schedule}: {error}"))?;
    }
    Ok(())
}

/// The seeds of a run: `many`, or the one to be replayed.
pub fn seeds(many: u64) -> std::ops::Range<u64> {
    match std::env::var("LATCHWORK_SEED") {
        Ok(one) => {
            let one = one.parse().expect("LATCHWORK_SEED is a number");
            one..one + 1
        }
        Err(_) => 0..many,
    }
}

/// The seed in an error of [`explore`].
pub fn seed_in(error: &str) -> u64 {
    error.split([' ', ':']).nth(1).and_then(|seed| seed.parse().ok()).expect("a seed is said")
}

/// A counter of two words of the simulated machine. It is torn if two threads count at once.
#[derive(Default)]
pub struct Counted {
    first: <Simulated as Machine>::AtomicU64,
    second: <Simulated as Machine>::AtomicU64,
    torn: Plain,
}

impl Counted {
    /// Counts one. Only the lock excludes other threads.
    pub fn count(&self) {
        let seen = self.first.load(Relaxed);
        self.first.store(seen + 1, Relaxed);
        self.torn.fetch_add(u64::from(self.second.load(Relaxed) != seen), Relaxed);
        self.second.store(seen + 1, Relaxed);
    }

    /// Reads both words.
    pub fn read(&self) {
        let second = self.second.load(Relaxed);
        self.torn.fetch_add(u64::from(self.first.load(Relaxed) != second), Relaxed);
    }

    /// Checks after the run that the counter is not torn and equals `expected`.
    pub fn check(&self, expected: u64) -> Result<(), String> {
        let (torn, counted) = (self.torn.load(Relaxed), self.first.load(Relaxed));
        if torn == 0 && counted == expected {
            return Ok(());
        }
        Err(format!("{expected} written, {counted} counted, {torn} torn"))
    }
}

/// Threads count under the lock. No count is lost and all threads end. Every third operation only
/// reads.
pub fn everybody_counts(
    lock: &(impl Numbered + ?Sized),
    threads: usize,
    each: usize,
    schedule: Schedule,
) -> Result<(), String> {
    let counted = Counted::default();
    let reads = |thread: usize, i: usize| (i + thread) % 3 == 2;
    let life = |thread: usize| {
        let counted = &counted;
        body(move || {
            for i in 0..each {
                match reads(thread, i) {
                    true => lock.beside(thread, &mut || counted.read()),
                    false => lock.alone(thread, &mut || counted.count()),
                }
            }
        })
    };
    let ended = schedule.run((0..threads).map(life).collect());
    ended.map_err(|stuck| stuck.to_string())?;
    let all = (0..threads).flat_map(|thread| (0..each).map(move |i| (thread, i)));
    counted.check(all.filter(|(thread, i)| !reads(*thread, *i)).count() as u64)
}

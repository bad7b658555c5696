//! The results of a run.

use std::fmt;
use std::time::Duration;

use crate::world::World;

/// Transfers caused by an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Misses {
    /// From a cache in the same socket, or its own memory.
    pub near: u64,
    /// From another socket.
    pub far: u64,
    /// Cycles for which threads or store buffers waited for them.
    pub cycles: u64,
}

impl Misses {
    pub(crate) fn add(&mut self, near: bool, cycles: u64) {
        self.near += u64::from(near);
        self.far += u64::from(!near);
        self.cycles += cycles;
    }
}

/// The result of a completed run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Simulated time at the end, in nanoseconds.
    pub ns: f64,
    /// Accesses to shared memory.
    pub accesses: u64,
    /// Switches from one thread to another on a processor.
    pub switches: u64,
    /// Changes of priority, in an exploration by priority.
    pub changes: usize,
    /// Processor time of the host that the run used, without the time of other programs.
    pub host: Duration,
    /// The cost of misses, the most expensive first: by label, with the offset in it.
    pub misses: Vec<(String, Misses)>,
}

impl Outcome {
    pub(crate) fn new(world: &mut World, host: Duration) -> Self {
        let ended = world.threads.iter().map(|t| t.time).max().unwrap_or(0);
        let mut misses: Vec<(String, Misses)> = Vec::new();
        let mut places = std::collections::BTreeMap::new();
        for (address, seen) in &world.lines.misses {
            // Slots are many and alike, so they are summed by field.
            let name = generic(&label(&world.labels, *address));
            let at = *places.entry(name.clone()).or_insert_with(|| {
                misses.push((name, Misses::default()));
                misses.len() - 1
            });
            let sum = &mut misses[at].1;
            sum.near += seen.near;
            sum.far += seen.far;
            sum.cycles += seen.cycles;
        }
        misses.sort_by(|a, b| b.1.cycles.cmp(&a.1.cycles).then_with(|| a.0.cmp(&b.0)));
        Self {
            ns: ended as f64 / world.spec.ghz,
            accesses: world.accesses,
            switches: world.os.switches,
            changes: world.explorer.as_ref().map_or(0, |explorer| explorer.fallen),
            host,
            misses,
        }
    }
}

/// Returns the processor time that this host thread has used.
pub(crate) fn spent() -> Duration {
    let mut spent = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `spent` alone.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut spent) };
    assert!(failed == 0, "every Linux has this clock");
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

/// Removes the number from names of things that are many.
fn generic(name: &str) -> String {
    let Some((head, rest)) = name.split_once(' ') else { return name.to_owned() };
    let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    format!("{head}{rest}")
}

/// Returns the label of an address, with the offset. The last of overlapping labels is used.
pub(crate) fn label(labels: &[(usize, usize, String)], address: usize) -> String {
    let covers =
        |(start, len, _): &&(usize, usize, String)| (*start..start + len).contains(&address);
    match labels.iter().rev().find(covers) {
        Some((start, _, name)) if address == *start => name.clone(),
        Some((start, _, name)) => format!("{name} +{}", address - start),
        None => "unnamed".to_owned(),
    }
}

/// The state of a thread when no thread could continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadState {
    /// Its number.
    pub thread: usize,
    /// The processor that it runs on.
    pub cpu: usize,
    /// Its activity, or the object of its wait.
    pub doing: String,
}

/// Why a run did not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stuck {
    /// No thread can continue: a deadlock, or a lost wake-up.
    Deadlock(Vec<ThreadState>),
    /// The limit of accesses or of time was reached.
    Endless(Vec<ThreadState>),
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, states) = match self {
            Self::Deadlock(states) => ("no thread can go on", states),
            Self::Endless(states) => ("no end in sight", states),
        };
        f.write_str(what)?;
        for state in states.iter().filter(|s| s.doing != "done") {
            write!(f, "\n  thread {} on cpu {}: {}", state.thread, state.cpu, state.doing)?;
        }
        Ok(())
    }
}

impl std::error::Error for Stuck {}

//! Threads that start together, and a window in the middle of their work.
//!
//! Each thread counts on a cache line of its own. The conductor sleeps and reads all counters at
//! the beginning and at the end of the window. Neither the start of the last thread nor the end of
//! a long wait affects the result. A window that is overslept is only longer.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use latchwork_machine::Padded;
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Fault;

/// The phases of a slot. Zero, the first phase, is the warm-up.
const MEASURING: u8 = 1;
const STOP: u8 = 2;

/// Index of the exclusive operations in pairs of counters.
pub(crate) const EXCLUSIVE: usize = 0;
/// Index of the shared operations.
pub(crate) const SHARED: usize = 1;

/// The cache lines of one thread.
#[derive(Default)]
pub(crate) struct Slot {
    done: Padded<Count>,
    phase: Padded<AtomicU8>,
}

#[derive(Default)]
struct Count {
    done: [AtomicU64; 2],
    /// Not zero from before the acquisition of the latch until after its release.
    engaged: AtomicU64,
}

impl Slot {
    /// Whether to continue, and whether the next operation is measured.
    #[inline]
    pub(crate) fn go_on(&self) -> Option<bool> {
        // Relaxed: a flag that orders nothing; results are sent through a channel.
        match self.phase.load(Relaxed) {
            STOP => None,
            phase => Some(phase == MEASURING),
        }
    }

    /// Announces an acquisition of this thread.
    #[inline]
    pub(crate) fn engage(&self) {
        // Relaxed, also below: one writer; readers need only the number.
        self.done.engaged.store(1, Relaxed);
    }

    /// Counts an operation after the release.
    #[inline]
    pub(crate) fn count(&self, kind: usize) {
        let done = &self.done.done[kind];
        done.store(done.load(Relaxed) + 1, Relaxed);
        self.done.engaged.store(0, Relaxed);
    }

    /// Whether the thread of this slot waits for the latch or holds it.
    pub(crate) fn engaged(&self) -> bool {
        self.done.engaged.load(Relaxed) != 0
    }

    fn done(&self) -> [u64; 2] {
        [self.done.done[0].load(Relaxed), self.done.done[1].load(Relaxed)]
    }
}

/// The result of a thread.
pub(crate) struct Tally {
    /// Exclusive sections entered in total.
    pub(crate) entered: u64,
    /// Sections that met another thread inside.
    pub(crate) met: u64,
    /// Checks before an acquisition.
    pub(crate) looks: u64,
    /// Checks that found the latch held or waited for.
    pub(crate) busy: u64,
    /// Waits of sampled operations, in nanoseconds.
    pub(crate) waits: [Histogram<u32>; 2],
}

impl Tally {
    pub(crate) fn new() -> Self {
        // Up to an hour, with a precision of 1 %.
        let empty = || Histogram::new_with_bounds(1, 3_600_000_000_000, 2).expect("valid bounds");
        Self { entered: 0, met: 0, looks: 0, busy: 0, waits: [empty(), empty()] }
    }

    pub(crate) fn waited(&mut self, kind: usize, wait: Duration) {
        let ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        self.waits[kind].saturating_record(ns);
    }

    fn add(&mut self, other: &Tally) {
        self.entered += other.entered;
        self.met += other.met;
        self.looks += other.looks;
        self.busy += other.busy;
        for (all, one) in self.waits.iter_mut().zip(&other.waits) {
            all.add(one).expect("equal bounds");
        }
    }
}

/// The work of a team.
pub(crate) trait Load: Send + Sync + 'static {
    /// The work of thread `number` until its slot stops it.
    fn work(&self, slots: &[Slot], number: usize) -> Tally;
}

/// The parameters of a run of a team.
pub(crate) struct Conduct<'a> {
    pub(crate) subject: &'static str,
    pub(crate) cell: &'a dyn core::fmt::Display,
    pub(crate) threads: usize,
    pub(crate) window: Duration,
    pub(crate) pin: bool,
    pub(crate) patience: Duration,
    /// Kinds of operation that must occur in the window.
    pub(crate) wanted: &'a [usize],
}

/// The counts of a window.
pub(crate) struct Window {
    pub(crate) lasted: Duration,
    /// Per thread.
    pub(crate) done: Vec<[u64; 2]>,
    pub(crate) tally: Tally,
}

/// Runs a team. The threads of a stuck team are leaked, because nothing can end them.
pub(crate) fn conduct<W: Load>(load: &Arc<W>, how: &Conduct<'_>) -> Result<Window, Fault> {
    let slots: Arc<[Slot]> = (0..how.threads).map(|_| Slot::default()).collect();
    let start = Arc::new(Barrier::new(how.threads + 1));
    let (finished, results) = mpsc::channel();
    let cpus = if how.pin { allowed_cpus()? } else { Vec::new() };
    for number in 0..how.threads {
        let (load, slots, start) = (Arc::clone(load), Arc::clone(&slots), Arc::clone(&start));
        let finished = finished.clone();
        let cpu = (!cpus.is_empty()).then(|| cpus[number % cpus.len()]);
        let work = move || {
            let pinned = cpu.map_or(Ok(()), pin_to);
            start.wait();
            let tally = load.work(&slots, number);
            // The team was given up.
            let _ = finished.send(pinned.map(|()| tally));
        };
        let name = format!("bench-{number}");
        thread::Builder::new().name(name).spawn(work).map_err(Fault::Threads)?;
    }
    drop(finished);

    start.wait();
    thread::sleep((how.window / 10).max(Duration::from_millis(2)));
    set_phase(&slots, MEASURING);
    let (from, before) = snapshot(&slots, how.window);
    let (mut to, mut after);
    loop {
        thread::sleep(how.window);
        (to, after) = snapshot(&slots, how.window);
        let sum = |done: &[[u64; 2]], kind: usize| done.iter().map(|d| d[kind]).sum::<u64>();
        let happened = |kind: &usize| sum(&after, *kind) > sum(&before, *kind);
        if how.wanted.iter().all(happened) || from.elapsed() > how.patience {
            break;
        }
    }
    set_phase(&slots, STOP);

    let mut tally = Tally::new();
    let until = Instant::now() + how.patience;
    for back in 0..how.threads {
        let left = until.saturating_duration_since(Instant::now());
        // A closed channel means that a thread panicked, which it has reported itself.
        let result = results.recv_timeout(left).map_err(|_| Fault::Stuck {
            subject: how.subject,
            cell: how.cell.to_string(),
            threads: how.threads - back,
            waited: how.patience,
        })?;
        tally.add(&result.map_err(Fault::Threads)?);
    }
    let in_window = |(b, a): (&[u64; 2], &[u64; 2])| [a[0] - b[0], a[1] - b[1]];
    let done = before.iter().zip(&after).map(in_window).collect();
    Ok(Window { lasted: to - from, done, tally })
}

fn set_phase(slots: &[Slot], phase: u8) {
    for slot in slots {
        slot.phase.store(phase, Relaxed);
    }
}

/// All counters with the time of reading. Repeated if the conductor was descheduled in between.
fn snapshot(slots: &[Slot], window: Duration) -> (Instant, Vec<[u64; 2]>) {
    let mut tries = 0;
    loop {
        let start = Instant::now();
        let done = slots.iter().map(Slot::done).collect();
        let took = start.elapsed();
        tries += 1;
        if took < window / 200 || tries == 20 {
            return (start + took / 2, done);
        }
    }
}

fn allowed_cpus() -> Result<Vec<usize>, Fault> {
    let set = sched_getaffinity(None).map_err(|errno| Fault::Threads(system(errno)))?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Binds this thread to the first processor available to it.
pub(crate) fn pin_first() -> Result<(), Fault> {
    match allowed_cpus()?.first() {
        Some(cpu) => pin_to(*cpu).map_err(Fault::Threads),
        None => Ok(()),
    }
}

fn pin_to(cpu: usize) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(system)
}

fn system(errno: Errno) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno.raw_os_error())
}

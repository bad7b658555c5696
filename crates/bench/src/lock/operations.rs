//! The workloads, for any lock manager.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::fs;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};

use super::child;
use super::job::{Job, Outcome};
use super::table::{Kind, Needs, Owner, Stop, Table, name};
use super::timing::{now, timed};
use super::{Workload, deadlocks};
pub(crate) use crate::times::histogram;

/// Operations between two readings of the clock.
const BATCH: u64 = 256;
/// Operations of a worker before it counts. With fewer, weak locks are not on the fast path yet.
const WARM: u64 = 32 * BATCH;
/// Objects of each worker.
const OBJECTS: usize = 16;
/// Objects of each worker, more than an owner has memory for.
const MANY: usize = 1000;
/// Objects of each worker, more than the caches hold.
const COLD: usize = 1_000_000;
/// Objects, a few of them hot; also the length of the request sequence.
const ZIPF: usize = 100_000;
/// Locks released at once.
pub(crate) const RELEASED: usize = 1000;

/// Runs the job. `start` returns the start time; it is called once the lock manager is open.
pub(crate) fn measure<T: Table>(job: &Job, start: impl FnOnce() -> u64) -> Result<Outcome, Stop> {
    let cycle = job.workload.cycle().unwrap_or(2);
    let needs = Needs {
        locks: job.held.max(job.waiters * 2).max(RELEASED) + 4 * cycle,
        owners: job.waiters + cycle + job.threads,
        detect: job.workload.cycle().is_some(),
    };
    let table = T::open(job.dir.as_deref(), needs)?;
    if job.workload == Workload::Cold {
        grow(&table, job)?;
    }
    // Before the start: on a busy machine this takes longer than the window.
    let workers = if job.workload.is_rate() { job.threads } else { 0 };
    let plans: Vec<_> = (0..workers).map(|thread| requests(job, job.first + thread)).collect();
    let at = start();
    let mut outcome = match job.workload {
        Workload::Weak
        | Workload::Strong
        | Workload::Table
        | Workload::Cold
        | Workload::OneObject
        | Workload::Zipf => rate(&table, job, plans, at)?,
        Workload::ReleaseAll => release_all(&table, job)?,
        Workload::Cycle2 | Workload::Cycle100 => deadlocks::time(&table, job, cycle)?,
        Workload::Calm | Workload::Detecting => deadlocks::beside(&table, job)?,
        Workload::Held => held(&table, job)?,
        // The other workloads need more than a lock table.
        _ => return Err(Stop::fault("a steep place is measured by `steep.rs`")),
    };
    let counted = table.counted()?;
    (outcome.counted, outcome.fast) = (counted.requests, counted.fast);
    outcome.region_bytes = table.region_bytes()?;
    Ok(outcome)
}

/// Takes each lock once, so that growth of the table is not measured.
fn grow<T: Table>(table: &T, job: &Job) -> Result<(), Stop> {
    table.with_owner(|owner| {
        for (name, strong) in (0..job.threads).flat_map(|thread| requests(job, job.first + thread))
        {
            let held = owner.lock(&name, strong)?;
            owner.unlock(&name, held)?;
        }
        Ok(())
    })
}

/// The result of one worker in the window.
struct Share {
    done: u64,
    asked: u64,
    lasted: u64,
    times: Histogram<u64>,
}

/// The requests of a worker, in order: name, and whether strong.
type Plan = Vec<([u8; 16], bool)>;

fn rate<T: Table>(table: &T, job: &Job, plans: Vec<Plan>, at: u64) -> Result<Outcome, Stop> {
    let shares = Mutex::new(Vec::new());
    thread::scope(|threads| {
        for plan in plans {
            let shares = &shares;
            threads.spawn(move || {
                let share = table.with_owner(|owner| pairs(owner, job, &plan, at));
                let share = share.unwrap_or_else(|stop| child::fail(&format!("{stop:?}")));
                shares.lock().expect("no worker panics").push(share);
            });
        }
    });
    let shares = shares.into_inner().expect("no worker panics");
    let mut outcome = Outcome::default();
    let mut times = histogram();
    for share in &shares {
        outcome.ops_per_s += share.done as f64 * 1e9 / share.lasted.max(1) as f64;
        outcome.by_worker.push(share.done);
        outcome.asked += share.asked;
        times.add(&share.times).expect("equal bounds");
    }
    // Of batches, in tenths of nanoseconds.
    outcome.p50_ns = times.value_at_quantile(0.5) as f64 / 10.0;
    outcome.p99_ns = times.value_at_quantile(0.99) as f64 / 10.0;
    Ok(outcome)
}

/// The requests of a worker, in order.
fn requests(job: &Job, worker: usize) -> Plan {
    let strong = job.workload.is_strong();
    let own = |count: usize| (0..count).map(|number| (name(Kind::Own, worker, number), strong));
    match job.workload {
        Workload::OneObject => vec![(name(Kind::Common, 0, 0), strong)],
        Workload::Table => own(MANY).collect(),
        Workload::Cold => own(COLD).collect(),
        Workload::Zipf => {
            let mut rng = SmallRng::seed_from_u64(worker as u64);
            let ranks = Zipf::new(ZIPF as f64, 0.99).expect("a number of objects, and a slope");
            let request = |rng: &mut SmallRng| {
                let rank: f64 = ranks.sample(rng);
                (name(Kind::Common, 0, rank as usize), rng.random_ratio(1, 10))
            };
            (0..ZIPF).map(|_| request(&mut rng)).collect()
        }
        _ => own(OBJECTS).collect(),
    }
}

/// Locks and unlocks until a tenth after the window, which begins at `at`; the other workers are
/// active as long as one counts. A worker that the system schedules late still warms up and then
/// counts.
fn pairs<O: Owner>(owner: &O, job: &Job, plan: &Plan, at: u64) -> Result<Share, Stop> {
    let mut next = 0;
    let mut share = Share { done: 0, asked: 0, lasted: 0, times: histogram() };
    let mut batch = |share: &mut Share| -> Result<(), Stop> {
        for _ in 0..BATCH {
            let (name, strong) = &plan[next];
            next = if next + 1 == plan.len() { 0 } else { next + 1 };
            let held = owner.lock(name, *strong)?;
            owner.unlock(name, held)?;
        }
        share.asked += BATCH;
        Ok(())
    };
    while now() < at || share.asked < WARM {
        batch(&mut share)?;
    }
    let begun = now();
    let mut last = begun;
    while share.done == 0 || last < at + job.window_ns {
        batch(&mut share)?;
        let next = now();
        share.done += BATCH;
        share.times.saturating_record((next - last) * 10 / BATCH);
        last = next;
    }
    share.lasted = last - begun;
    while now() < at + job.window_ns * 11 / 10 {
        batch(&mut share)?;
    }
    Ok(share)
}

fn release_all<T: Table>(table: &T, job: &Job) -> Result<Outcome, Stop> {
    let mut times = Vec::new();
    table.with_owner(|owner| {
        // The first trials allocate memory.
        for trial in 0..job.trials + 2 {
            for number in 0..RELEASED {
                owner.lock(&name(Kind::Own, 0, number), true)?;
            }
            let begun = now();
            owner.release_all()?;
            if trial >= 2 {
                times.push((now() - begun) as f64);
            }
        }
        Ok(())
    })?;
    let asked = (RELEASED * (job.trials + 2)) as u64;
    Ok(Outcome { asked, held: RELEASED as u64, ..timed(&times) })
}

/// Resident memory of the process, in bytes.
fn resident() -> Result<u64, Stop> {
    let text = fs::read_to_string("/proc/self/statm").map_err(Stop::fault)?;
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    let pages = pages.ok_or_else(|| Stop::fault("/proc/self/statm has no second number"))?;
    Ok(pages * rustix::param::page_size() as u64)
}

fn held<T: Table>(table: &T, job: &Job) -> Result<Outcome, Stop> {
    const FIRST: usize = 1000;
    table.with_owner(|owner| {
        // Memory that exists for any number of locks is not counted.
        for number in 0..FIRST {
            owner.lock(&name(Kind::Own, 0, number), true)?;
        }
        let before = resident()?;
        let begun = now();
        for number in FIRST..FIRST + job.held {
            owner.lock(&name(Kind::Own, 0, number), true)?;
        }
        let each = (now() - begun) as f64 / job.held as f64;
        let grown = resident()?.saturating_sub(before);
        owner.release_all()?;
        Ok(Outcome {
            asked: (FIRST + job.held) as u64,
            by_worker: vec![job.held as u64],
            held: job.held as u64,
            bytes_per_lock: Some(grown as f64 / job.held as f64),
            ..timed(&[each])
        })
    })
}

/// A barrier with a time stamp.
pub(crate) struct Line {
    all: Barrier,
    at: AtomicU64,
}

impl Line {
    pub(crate) fn new(count: usize) -> Self {
        Self { all: Barrier::new(count), at: AtomicU64::new(0) }
    }

    /// Waits for all others.
    pub(crate) fn wait(&self) {
        self.all.wait();
    }

    /// Stores the current time.
    pub(crate) fn mark(&self) {
        // Relaxed, also below: read after the threads have ended.
        self.at.store(now(), Relaxed);
    }

    /// The stored time.
    pub(crate) fn marked(&self) -> u64 {
        self.at.load(Relaxed)
    }
}

/// Waits until at least `count` requests wait.
pub(crate) fn until_waiting<T: Table>(table: &T, count: u64) -> Result<(), Stop> {
    while table.waits()? < count {
        thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

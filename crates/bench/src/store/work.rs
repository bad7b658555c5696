//! The workloads, for any store.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use hdrhistogram::Histogram;
use latchwork_rivals::{Reads, Session, Store, StoreResult, Writes};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::Workload;
use super::data::Data;
use super::job::{Job, Outcome};
use super::keys::{self, VALUE};
use super::transfer::Transfers;
use super::ycsb::Ycsb;
use crate::child;
use crate::times::{histogram, now};

/// Every how many short operations one is timed.
const SAMPLE: u64 = 16;
/// Reads or updates in a long transaction.
const LONG: u64 = 1000;

/// The start of the workers: after the first operation of each, because a store opens files with
/// it.
struct Gate {
    warm: Barrier,
    go: Barrier,
    /// Start of the window on the monotonic clock, common to all workers.
    from: AtomicU64,
    length: u64,
}

impl Gate {
    /// Waits for the others and returns the begin and end of the window.
    fn pass(&self) -> (u64, u64) {
        self.warm.wait();
        self.go.wait();
        // Relaxed: ordered by the barrier before it.
        let from = self.from.load(Relaxed);
        (from, from + self.length)
    }
}

/// The result of one worker in the window.
struct Share {
    done: u64,
    again: u64,
    times: Histogram<u64>,
    writes: bool,
}

/// Opens a session per worker and counts operations.
pub(super) fn measure(store: &dyn Store, workload: Workload, job: &Job) -> StoreResult<Outcome> {
    let gate = Gate {
        warm: Barrier::new(job.threads + 1),
        go: Barrier::new(job.threads + 1),
        from: AtomicU64::new(0),
        length: job.window_ns,
    };
    let rows = AtomicU64::new(job.data.rows());
    // A process whose only thread writes waits for no reader.
    let readers_done = AtomicBool::new(job.threads == 1);
    let shares = Mutex::new(Vec::new());
    let mut synced = None;
    thread::scope(|threads| {
        for thread in 0..job.threads {
            let (shares, rows, readers_done) = (&shares, &rows, &readers_done);
            let gate = &gate;
            threads.spawn(move || {
                let number = job.first + thread;
                let worker = Worker { workload, data: job.data, number, rows, readers_done };
                let share = store.session().and_then(|mut s| worker.run(s.as_mut(), gate));
                let share = share.unwrap_or_else(|error| child::fail(&error));
                shares.lock().expect("no worker panics").push(share);
            });
        }
        gate.warm.wait();
        // Relaxed: ordered by the barrier after it; below, this thread's own store.
        gate.from.store(child::start(), Relaxed);
        gate.go.wait();
        // Within the window only, like operations.
        let from = gate.from.load(Relaxed);
        sleep_until(from);
        let before = store.syncs();
        sleep_until(from + gate.length);
        synced = store.syncs().zip(before).map(|(after, before)| after - before);
    });
    let shares = shares.into_inner().expect("no worker panics");
    let seconds = job.window_ns as f64 / 1e9;
    let mut outcome = Outcome::default();
    let mut times = histogram();
    for share in &shares {
        if share.writes {
            outcome.writes_per_s = Some(share.done as f64 / seconds);
            continue;
        }
        outcome.ops_per_s += share.done as f64 / seconds;
        outcome.by_worker.push(share.done);
        outcome.again += share.again;
        times.add(&share.times).expect("equal bounds");
    }
    outcome.p50_ns = times.value_at_quantile(0.5) as f64;
    outcome.p99_ns = times.value_at_quantile(0.99) as f64;
    // The store's own threads sync too; all syncs are a cost of the operations.
    outcome.syncs = synced;
    Ok(outcome)
}

/// Sleeps until a time on the monotonic clock.
fn sleep_until(at: u64) {
    thread::sleep(Duration::from_nanos(at.saturating_sub(now())));
}

/// Runs `once`, waits at the gate and repeats `once` until the end of the window. Counts what began
/// and ended within it. `once` returns its numbers of operations and of retries.
fn repeat(
    gate: &Gate,
    sample: u64,
    mut once: impl FnMut() -> StoreResult<(u64, u64)>,
) -> StoreResult<Share> {
    let mut share = Share { done: 0, again: 0, times: histogram(), writes: false };
    once()?;
    let (from, to) = gate.pass();
    loop {
        let began = now();
        let (each, mut again) = once()?;
        let ended = now();
        let mut done = each;
        for _ in 1..sample {
            let (each, more) = once()?;
            done += each;
            again += more;
        }
        let end = if sample == 1 { ended } else { now() };
        if end >= to {
            return Ok(share);
        }
        if began >= from {
            share.done += done;
            share.again += again;
            share.times.saturating_record((ended - began) / each.max(1));
        }
    }
}

/// The work of one thread.
struct Worker<'w> {
    workload: Workload,
    data: Data,
    number: usize,
    /// Rows in the store, which grows.
    rows: &'w AtomicU64,
    readers_done: &'w AtomicBool,
}

impl Worker<'_> {
    fn run(&self, session: &mut dyn Session, gate: &Gate) -> StoreResult<Share> {
        let mut rng = SmallRng::seed_from_u64(self.number as u64 + 1);
        match (self.workload, self.data) {
            (Workload::ReadWhileWriting, _) if self.number == 0 => {
                self.write_beside(session, gate, &mut rng)
            }
            (Workload::TprocB1 | Workload::TprocB10, Data::Bank { scale }) => {
                let mut transfers = Transfers::new(scale, self.number);
                repeat(gate, 1, || Ok((1, transfers.one(session, &mut rng)?)))
            }
            (_, Data::Ycsb { .. }) => {
                let mut ycsb = Ycsb::new(self.workload, self.rows, self.data.rows(), self.number);
                repeat(gate, 1, || Ok((1, ycsb.one(session, &mut rng)?)))
            }
            (Workload::Rrand | Workload::Rhot | Workload::Sepdb, _) => {
                self.read_seed(session, gate, &mut rng)
            }
            (Workload::Snap, _) => self.read_snapshot(session, gate, &mut rng),
            (Workload::Put | Workload::Durable | Workload::Wrand | Workload::Batch, _) => {
                self.write(session, gate, &mut rng)
            }
            (Workload::Range10 | Workload::Scan100 | Workload::ScanAll, _) => {
                self.scan(session, gate, &mut rng)
            }
            _ => self.read(session, gate, &mut rng),
        }
    }

    /// A uniformly distributed key number.
    fn any(&self, rng: &mut SmallRng) -> u64 {
        rng.random_range(0..self.data.rows())
    }

    fn read(
        &self,
        session: &mut dyn Session,
        gate: &Gate,
        rng: &mut SmallRng,
    ) -> StoreResult<Share> {
        let mut value = Vec::with_capacity(VALUE);
        let share = match self.workload {
            Workload::GetLong => repeat(gate, 1, || {
                session.read(&mut |txn: &mut dyn Reads| {
                    for _ in 0..LONG {
                        txn.get(0, &keys::record(self.any(rng)), &mut value)?;
                    }
                    Ok(())
                })?;
                Ok((LONG, 0))
            }),
            Workload::GetRw => repeat(gate, 1, || {
                let key = keys::record(self.any(rng));
                let again = session
                    .write(&mut |txn: &mut dyn Writes| txn.get(0, &key, &mut value).map(|_| ()))?;
                Ok((1, again))
            }),
            _ => repeat(gate, SAMPLE, || {
                session.get(0, &keys::record(self.any(rng)), &mut value)?;
                Ok((1, 0))
            }),
        };
        // Relaxed: the moment at which the writer stops does not matter.
        self.readers_done.store(true, Relaxed);
        share
    }

    fn read_seed(
        &self,
        session: &mut dyn Session,
        gate: &Gate,
        rng: &mut SmallRng,
    ) -> StoreResult<Share> {
        let mut value = Vec::with_capacity(VALUE);
        let table = if self.workload == Workload::Sepdb { self.number } else { 0 };
        let hot = self.workload == Workload::Rhot;
        repeat(gate, SAMPLE, || {
            let number = if hot { 0 } else { self.any(rng) };
            session.get(table, &keys::seed(number), &mut value)?;
            Ok((1, 0))
        })
    }

    /// Reads in one snapshot, taken before the window and kept to its end.
    fn read_snapshot(
        &self,
        session: &mut dyn Session,
        gate: &Gate,
        rng: &mut SmallRng,
    ) -> StoreResult<Share> {
        let mut value = Vec::with_capacity(VALUE);
        let mut share = None;
        session.read(&mut |txn: &mut dyn Reads| {
            share = Some(repeat(gate, SAMPLE, || {
                txn.get(0, &keys::seed(self.any(rng)), &mut value)?;
                Ok((1, 0))
            })?);
            Ok(())
        })?;
        share.ok_or(latchwork_rivals::StoreError::Again)
    }

    fn write(
        &self,
        session: &mut dyn Session,
        gate: &Gate,
        rng: &mut SmallRng,
    ) -> StoreResult<Share> {
        let mut value = [0; VALUE];
        match self.workload {
            Workload::Batch => repeat(gate, 1, || {
                let again = session.write(&mut |txn: &mut dyn Writes| {
                    for _ in 0..LONG {
                        let number = self.any(rng);
                        keys::fill(&mut value, number, rng);
                        txn.put(0, &keys::record(number), &value)?;
                    }
                    Ok(())
                })?;
                Ok((LONG, again))
            }),
            Workload::Wrand => repeat(gate, 1, || {
                let number = self.any(rng);
                keys::fill(&mut value, number, rng);
                session.put(0, &keys::seed(number), &value)?;
                Ok((1, 0))
            }),
            _ => repeat(gate, 1, || {
                let number = self.any(rng);
                keys::fill(&mut value, number, rng);
                session.put(0, &keys::record(number), &value)?;
                Ok((1, 0))
            }),
        }
    }

    fn write_beside(
        &self,
        session: &mut dyn Session,
        gate: &Gate,
        rng: &mut SmallRng,
    ) -> StoreResult<Share> {
        let mut share = self.write(session, gate, rng)?;
        share.writes = true;
        let mut value = [0; VALUE];
        // The last reads of the others must not run without the writer. Relaxed, as at the store.
        while !self.readers_done.load(Relaxed) {
            let number = self.any(rng);
            keys::fill(&mut value, number, rng);
            session.put(0, &keys::record(number), &value)?;
        }
        Ok(share)
    }

    fn scan(
        &self,
        session: &mut dyn Session,
        gate: &Gate,
        rng: &mut SmallRng,
    ) -> StoreResult<Share> {
        let (limit, all) = match self.workload {
            Workload::Range10 => (10, false),
            Workload::Scan100 => (100, false),
            _ => (usize::MAX, true),
        };
        repeat(gate, 1, || {
            let from = keys::record(if all { 0 } else { self.any(rng) });
            let (mut bytes, mut count) = (0, 0);
            session.read(&mut |txn: &mut dyn Reads| {
                count = txn.scan(0, &from, limit, &mut |_, value| bytes += keys::read(value))?;
                Ok(())
            })?;
            core::hint::black_box(bytes);
            // A full scan counts records, because few scans fit into a window.
            Ok((if all { count as u64 } else { 1 }, 0))
        })
    }
}

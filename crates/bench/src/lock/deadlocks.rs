//! Deadlocks: owners that wait for each other in a cycle, and the cost to owners outside of it.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::Duration;

use super::Workload;
use super::child;
use super::job::{Job, Outcome};
use super::operations::{Line, histogram, until_waiting};
use super::table::{Kind, Owner, Stop, Table, name};
use super::timing::{now, timed};

/// Time from the request that closes a cycle to the report of the deadlock.
pub(crate) fn time<T: Table>(table: &T, job: &Job, cycle: usize) -> Result<Outcome, Stop> {
    table.with_waiters(job.waiters, || {
        let mut times = Vec::new();
        let mut victims = 0;
        for _ in 0..job.trials {
            let (time, told) = once(table, cycle)?;
            times.push(time);
            victims += told;
        }
        Ok(Outcome {
            asked: (job.trials * cycle * 2) as u64,
            cycles: job.trials as u64,
            victims,
            waiters: job.waiters as u64,
            ..timed(&times)
        })
    })
}

/// One cycle: nanoseconds until it was broken, and the number of victims.
fn once<T: Table>(table: &T, cycle: usize) -> Result<(f64, u64), Stop> {
    let before = table.waits()?;
    let line = Line::new(cycle);
    let (broken, victims) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
    thread::scope(|threads| {
        for place in 0..cycle {
            let (line, broken, victims) = (&line, &broken, &victims);
            let action = move |owner: &T::Owner<'_>| {
                owner.lock(&name(Kind::Cycle, 0, place), true)?;
                line.wait();
                if place == cycle - 1 {
                    until_waiting(table, before + cycle as u64 - 1)?;
                    line.mark();
                }
                let end = owner.lock(&name(Kind::Cycle, 0, (place + 1) % cycle), true);
                match end {
                    Err(Stop::Deadlock) => {
                        // Relaxed, also below: read after all threads have ended.
                        broken.fetch_min(now(), Relaxed);
                        victims.fetch_add(1, Relaxed);
                    }
                    other => drop(other?),
                }
                owner.release_all()
            };
            threads.spawn(move || {
                let end = table.with_owner(action);
                end.unwrap_or_else(|stop| child::fail(&format!("in a cycle: {stop:?}")));
            });
        }
    });
    let time = broken.load(Relaxed).saturating_sub(line.marked());
    Ok((time as f64, victims.load(Relaxed)))
}

/// How long the two owners hold their first lock before they request the second, and how long they
/// then pause.
const PAUSE: Duration = Duration::from_micros(200);

/// Exclusive locks of one worker, each timed, while two others deadlock.
pub(crate) fn beside<T: Table>(table: &T, job: &Job) -> Result<Outcome, Stop> {
    let detecting = job.workload == Workload::Detecting;
    let (stop, victims, asked) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut times = histogram();
    let mut done = 0u64;
    let mut lasted = 0;
    table.with_waiters(job.waiters, || {
        thread::scope(|threads| {
            for place in 0..2 {
                let (stop, victims, asked) = (&stop, &victims, &asked);
                // The same order in both owners gives no deadlocks; opposite orders give them.
                let first = if detecting { place } else { 0 };
                let action = move |owner: &T::Owner<'_>| {
                    owner.lock(&name(Kind::Cycle, 0, first), true)?;
                    thread::sleep(PAUSE);
                    match owner.lock(&name(Kind::Cycle, 0, 1 - first), true) {
                        Err(Stop::Deadlock) => {
                            // Relaxed, also below: counters, and a flag that orders nothing.
                            victims.fetch_add(1, Relaxed);
                        }
                        other => drop(other?),
                    }
                    asked.fetch_add(2, Relaxed);
                    owner.release_all()
                };
                threads.spawn(move || {
                    while !stop.load(Relaxed) {
                        let end = table.with_owner(action);
                        end.unwrap_or_else(|stop| child::fail(&format!("in a cycle: {stop:?}")));
                        thread::sleep(PAUSE);
                    }
                });
            }
            let end = table.with_owner(|owner| {
                let begun = now();
                let mut last = begun;
                while last < begun + job.window_ns || (detecting && victims.load(Relaxed) == 0) {
                    let name = name(Kind::Own, 0, (done % 64) as usize);
                    let held = owner.lock(&name, true)?;
                    owner.unlock(&name, held)?;
                    let next = now();
                    times.saturating_record(next - last);
                    (last, done) = (next, done + 1);
                }
                lasted = last - begun;
                Ok(())
            });
            stop.store(true, Relaxed);
            end
        })
    })?;
    let victims = victims.load(Relaxed);
    Ok(Outcome {
        ops_per_s: done as f64 * 1e9 / lasted.max(1) as f64,
        p50_ns: times.value_at_quantile(0.5) as f64,
        p99_ns: times.value_at_quantile(0.99) as f64,
        by_worker: vec![done],
        asked: done + asked.load(Relaxed),
        cycles: victims,
        victims,
        waiters: job.waiters as u64,
        ..Outcome::default()
    })
}

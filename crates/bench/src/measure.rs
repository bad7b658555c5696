//! One measurement of one latch under one workload.

use core::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use latchwork_machine::Padded;

use crate::contest::{self, Alone};
use crate::latch::{Exclusive, Shared};
use crate::stats::quantile;
use crate::work::Pace;
use crate::{Bench, Cell, Fault, Role, team};

/// A measurement.
pub struct Case<'a> {
    /// The latch, for messages.
    pub subject: &'static str,
    /// The workload.
    pub cell: &'a Cell,
    /// The speed of the processor.
    pub pace: Pace,
    /// Duration of the measurement; warm-up takes a tenth more.
    pub window: Duration,
    /// Whether thread i is bound to processor i modulo their number.
    pub pin: bool,
    /// How long to wait for threads at the end.
    pub patience: Duration,
}

/// The numbers of one role.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The role.
    pub role: Role,
    /// Operations per second, of all threads together.
    pub ops_per_s: f64,
    /// Median wait in nanoseconds. Without contention, the median time of an operation.
    pub p50_ns: Option<f64>,
    /// 99th percentile of the waits.
    pub p99_ns: Option<f64>,
    /// The longest sampled wait.
    pub max_ns: Option<f64>,
}

/// The result of a measurement.
#[derive(Clone, Debug)]
pub struct Sample {
    /// One part for each role of the cell, in order.
    pub parts: Vec<Part>,
    /// See [`fairness`](crate::stats::fairness).
    pub fairness: Option<f64>,
    /// Checks before an operation whether a writer was inside or another thread at the latch.
    pub looks: u64,
    /// Checks that found one.
    pub busy: u64,
}

/// Measures an exclusive latch.
pub(crate) fn exclusive<L: Exclusive>(case: &Case<'_>) -> Result<Sample, Fault> {
    match case.cell.bench {
        Bench::Uncontended => {
            let latch = Padded(L::default());
            uncontended(case, move || latch.exclusive(|| black_box(())))
        }
        _ => contest::contended::<Alone<L>>(case),
    }
}

/// Measures a reader-writer latch.
pub(crate) fn shared<L: Shared>(case: &Case<'_>) -> Result<Sample, Fault> {
    let latch = Padded(L::default());
    match (case.cell.bench, case.cell.side) {
        (Bench::Uncontended, Role::Read) => {
            uncontended(case, move || latch.shared(|| black_box(())))
        }
        (Bench::Uncontended, _) => uncontended(case, move || latch.exclusive(|| black_box(()))),
        _ => contest::contended::<L>(case),
    }
}

/// Operations between two readings of the clock: about 10 us, including 25 ns for the clock.
const BATCH: u32 = 1000;

/// One thread, in batches. Its caller is a second, sleeping thread, without which glibc would skip
/// its atomics.
fn uncontended(case: &Case<'_>, operation: impl Fn() + Send + 'static) -> Result<Sample, Fault> {
    let (window, pin) = (case.window, case.pin);
    let work = move || -> Result<Vec<f64>, Fault> {
        if pin {
            team::pin_first()?;
        }
        let batch = || {
            let start = Instant::now();
            for _ in 0..BATCH {
                operation();
            }
            start.elapsed().as_nanos() as f64 / f64::from(BATCH)
        };
        let start = Instant::now();
        while start.elapsed() < window / 10 {
            batch();
        }
        let mut batches = Vec::with_capacity(100_000);
        while batches.is_empty() || start.elapsed() < window * 11 / 10 {
            batches.push(batch());
        }
        Ok(batches)
    };
    let worker = thread::Builder::new().spawn(work).map_err(Fault::Threads)?;
    let batches = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let at = |q| quantile(&batches, q);
    let part = Part {
        role: case.cell.side,
        ops_per_s: 1e9 / at(0.5).max(f64::MIN_POSITIVE),
        p50_ns: Some(at(0.5)),
        p99_ns: Some(at(0.99)),
        max_ns: Some(at(1.0)),
    };
    Ok(Sample { parts: vec![part], fairness: None, looks: 0, busy: 0 })
}

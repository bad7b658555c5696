//! One latch under one workload, once.

use core::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use latchwork_machine::Padded;

use crate::contest::{self, Alone};
use crate::latch::{Exclusive, Shared};
use crate::stats::quantile;
use crate::work::Pace;
use crate::{Bench, Cell, Fault, Role, team};

/// What is to be measured, and how.
pub struct Case<'a> {
    /// Whose latch, for messages.
    pub subject: &'static str,
    /// The workload.
    pub cell: &'a Cell,
    /// How fast this processor is.
    pub pace: Pace,
    /// How long to measure; warming up takes a tenth more.
    pub window: Duration,
    /// Whether thread i is bound to the i-th processor, modulo their number.
    pub pin: bool,
    /// How long to wait for threads at the end.
    pub patience: Duration,
}

/// One side's figures.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Which side.
    pub role: Role,
    /// Operations a second, of all threads together.
    pub ops_per_s: f64,
    /// Median wait; uncontended, the median time of an operation. As for all three, nanoseconds.
    pub p50_ns: Option<f64>,
    /// Of a hundred waits, the longest but one.
    pub p99_ns: Option<f64>,
    /// The longest sampled wait.
    pub max_ns: Option<f64>,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Sample {
    /// A part for each of the cell's roles, in their order.
    pub parts: Vec<Part>,
    /// See [`fairness`](crate::stats::fairness).
    pub fairness: Option<f64>,
    /// How often a thread looked, before it asked, whether a writer was inside or another at the
    /// latch.
    pub looks: u64,
    /// How often one was.
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

/// Operations between two looks at the clock: some 10 us, of which the clock takes 25 ns.
const BATCH: u32 = 1000;

/// One thread, in batches; its caller is the second thread that is alive and sleeps, without which
/// glibc would skip its atomics.
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

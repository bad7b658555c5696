//! The clock of the measurements, and statistics of operations timed one by one.

use super::job::Outcome;
use crate::stats::quantile;
pub(crate) use crate::times::now;

/// The outcome of operations timed one by one.
pub(crate) fn timed(times: &[f64]) -> Outcome {
    let p50_ns = quantile(times, 0.5);
    Outcome {
        ops_per_s: 1e9 / p50_ns.max(1.0),
        p50_ns,
        p99_ns: quantile(times, 0.99),
        by_worker: vec![times.len() as u64],
        ..Outcome::default()
    }
}

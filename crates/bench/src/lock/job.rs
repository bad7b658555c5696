//! The job of a measuring process and its result.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Cell, Subject, Workload};

/// The job of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) subject: Subject,
    pub(crate) workload: Workload,
    /// Directory of shared memory. `None` for private memory.
    pub(crate) dir: Option<PathBuf>,
    /// Worker threads of the process.
    pub(crate) threads: usize,
    /// Index of its first worker among all workers.
    pub(crate) first: usize,
    pub(crate) window_ns: u64,
    pub(crate) trials: usize,
    pub(crate) waiters: usize,
    pub(crate) held: usize,
    /// Number of other requests present.
    pub(crate) others: usize,
    pub(crate) patience_ms: u64,
}

/// The result of one process, or of all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Operations per second, of all workers together.
    pub ops_per_s: f64,
    /// Median, in nanoseconds.
    pub p50_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
    /// Operations within the window, per worker.
    pub by_worker: Vec<u64>,
    /// Lock requests, counted by the benchmark.
    pub asked: u64,
    /// Lock requests, counted by the lock manager.
    pub counted: u64,
    /// Requests granted without a store to shared memory. Only ours counts them.
    pub fast: u64,
    /// Cycles formed.
    pub cycles: u64,
    /// Owners chosen as victims.
    pub victims: u64,
    /// Waiting requests of other owners.
    pub waiters: u64,
    /// Locks held at the same time.
    pub held: u64,
    /// Growth of the process per lock, in bytes.
    pub bytes_per_lock: Option<f64>,
    /// Number of other requests present.
    pub others: u64,
    /// Bytes of the lock manager's region at the end.
    pub region_bytes: u64,
}

impl Outcome {
    /// Combines the results of several processes in the same window.
    pub(crate) fn together(outcomes: Vec<Self>) -> Self {
        let mut all = outcomes.into_iter();
        let mut sum = all.next().unwrap_or_default();
        for one in all {
            sum.ops_per_s += one.ops_per_s;
            sum.p50_ns = sum.p50_ns.max(one.p50_ns);
            sum.p99_ns = sum.p99_ns.max(one.p99_ns);
            sum.by_worker.extend(one.by_worker);
            sum.asked += one.asked;
            sum.counted += one.counted;
            sum.fast += one.fast;
        }
        sum
    }

    /// The event that the cell is about, if it did not occur.
    ///
    /// A lock manager that counts fewer requests than were made was not used. A weak lock never
    /// granted on the fast path, or a deadlock benchmark without a deadlock, measures something
    /// else.
    pub fn missing(&self, cell: &Cell, subject: Subject) -> Option<&'static str> {
        let Cell { workload, workers, .. } = *cell;
        let ours = subject == Subject::Ours;
        if self.asked == 0 || self.by_worker.len() != workers || self.by_worker.contains(&0) {
            return Some("operation of some worker");
        }
        if self.counted < self.asked {
            return Some("request for some of the operations, by its own count");
        }
        if self.ops_per_s <= 0.0 || self.p99_ns <= 0.0 {
            return Some("time");
        }
        if ours && !workload.is_strong() && self.fast == 0 {
            return Some("weak lock on the fast path");
        }
        let in_table = matches!(workload, Workload::Table | Workload::Cold);
        if ours && in_table && self.fast > self.counted / 4 {
            return Some("strong lock that went through the table");
        }
        if workload.cycle().is_some() && (self.cycles == 0 || self.victims == 0) {
            return Some("deadlock");
        }
        if workload == Workload::Calm && self.victims != 0 {
            return Some("quiet while nobody looks for deadlocks");
        }
        if workload.has_waiters() && self.waiters == 0 {
            return Some("waiter");
        }
        if workload.is_steep() && self.others == 0 {
            return Some("owner besides");
        }
        if workload == Workload::Held && (self.held == 0 || self.bytes_per_lock.is_none()) {
            return Some("held lock");
        }
        None
    }
}

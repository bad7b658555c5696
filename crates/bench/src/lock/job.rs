//! What a process that measures is told, and what it says.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Cell, Subject, Workload};

/// What a process is to measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) subject: Subject,
    pub(crate) workload: Workload,
    /// A directory of its own, for memory that is shared; none if it is not.
    pub(crate) dir: Option<PathBuf>,
    /// Its workers that are threads.
    pub(crate) threads: usize,
    /// The number of the first of them among all workers.
    pub(crate) first: usize,
    pub(crate) window_ns: u64,
    pub(crate) trials: usize,
    pub(crate) waiters: usize,
    pub(crate) held: usize,
    /// Beside how many others.
    pub(crate) others: usize,
    pub(crate) patience_ms: u64,
}

/// What was measured, by one process or by all of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Operations a second, of all workers together.
    pub ops_per_s: f64,
    /// Half of them took no longer, in nanoseconds.
    pub p50_ns: f64,
    /// Of a hundred, the longest but one.
    pub p99_ns: f64,
    /// Operations within the window, by worker.
    pub by_worker: Vec<u64>,
    /// Locks that were asked for, by our count.
    pub asked: u64,
    /// Locks that were asked for, by the lock manager's own count.
    pub counted: u64,
    /// Those of them that were granted without a shared store; of ours alone.
    pub fast: u64,
    /// Rings that formed.
    pub rings: u64,
    /// Owners that were told to give way.
    pub victims: u64,
    /// Requests of others that were waiting.
    pub waiters: u64,
    /// Locks held at a time.
    pub held: u64,
    /// Bytes that the process grew by, for each of them.
    pub bytes_per_lock: Option<f64>,
    /// Beside how many others it was.
    pub others: u64,
    /// Bytes of the lock manager's region in the end.
    pub region_bytes: u64,
}

impl Outcome {
    /// What several processes did in the same window.
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

    /// What did not happen though the cell is about it.
    ///
    /// A lock manager that counts fewer requests than were made was not asked; a weak lock that
    /// is never granted on the fast path, or a deadlock bench without a deadlock, measures
    /// something else.
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
        if workload.ring().is_some() && (self.rings == 0 || self.victims == 0) {
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

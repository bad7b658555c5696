//! Results of workers.

use serde::{Deserialize, Serialize};

/// The counters of a worker. Only our pool has them.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Counted {
    /// Reads on the optimistic path.
    pub(super) optimistic: u64,
    /// Stores by reads to memory that other threads load.
    pub(super) stores: u64,
    /// Pages read from the file.
    pub(super) faults: u64,
    /// Reads of a scan, and the faults among them.
    pub(super) scanned: u64,
    pub(super) scan_faults: u64,
    /// Evictions that first wrote pages out, including those of the background worker.
    pub(super) evicted_dirty: u64,
}

impl Counted {
    fn each(&mut self, other: &Self, change: fn(u64, u64) -> u64) {
        let Self { optimistic, stores, faults, scanned, scan_faults, evicted_dirty } = self;
        *optimistic = change(*optimistic, other.optimistic);
        *stores = change(*stores, other.stores);
        *faults = change(*faults, other.faults);
        *scanned = change(*scanned, other.scanned);
        *scan_faults = change(*scan_faults, other.scan_faults);
        *evicted_dirty = change(*evicted_dirty, other.evicted_dirty);
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.each(other, |one, other| one + other);
    }

    pub(super) fn since(mut self, before: &Self) -> Self {
        self.each(before, |now, before| now - before);
        self
    }
}

/// The result of a measurement, of one worker or of several.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) ops_per_s: f64,
    /// Over operations timed one by one, including the cost of the clock.
    pub(super) p50_ns: f64,
    pub(super) p99_ns: f64,
    /// Of each measured worker.
    pub(super) by_worker: Vec<u64>,
    pub(super) counted: Counted,
}

impl Outcome {
    /// Combines workers of the same window. Times are those of the slowest.
    pub(super) fn together(outcomes: Vec<Self>) -> Self {
        let mut all = Self::default();
        for one in outcomes {
            all.ops_per_s += one.ops_per_s;
            all.p50_ns = all.p50_ns.max(one.p50_ns);
            all.p99_ns = all.p99_ns.max(one.p99_ns);
            all.by_worker.extend(one.by_worker);
            all.counted.add(&one.counted);
        }
        all
    }

    pub(super) fn operations(&self) -> u64 {
        self.by_worker.iter().sum()
    }
}

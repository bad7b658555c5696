//! The work of a worker.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use serde::{Deserialize, Serialize};

use super::fault::Fault;
use super::keeper::{Operation, Uses};
use super::outcome::{Counted, Outcome};
use super::pages::KEYS;
use super::plan::Workload;
use crate::times::{histogram, now};

/// A worker's part of a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) workload: Workload,
    pub(super) frames: u32,
    /// Index of the worker and number of workers.
    pub(super) number: usize,
    pub(super) workers: usize,
    pub(super) window_ns: u64,
    /// Number of the run. Each run draws other pages and continues a scan elsewhere.
    pub(super) run: u64,
}

impl Part {
    /// Whether this is the background worker that is not measured.
    fn is_beside(&self) -> bool {
        self.workload.has_a_last() && self.number + 1 == self.workers
    }

    /// Where the worker's scan begins in this run: as far as possible from the other workers and
    /// from the last run.
    pub(super) fn scan_from(&self) -> u32 {
        let pages = u64::from(self.workload.pages(self.frames));
        let share = pages / self.workers as u64;
        ((share * self.number as u64 + self.run * (pages / 7 * 3)) % pages) as u32
    }

    /// The operations, prepared before timing; their number is a power of two.
    fn operations(&self) -> Vec<Operation> {
        const COUNT: usize = 1 << 16;
        let (workload, pages) = (self.workload, self.workload.pages(self.frames));
        let hot = self.frames / 4;
        // Different in each run: a short run on a slow device would otherwise hit the pages of the
        // last one.
        let mut random = SmallRng::seed_from_u64(self.run << 16 | self.number as u64);
        let skew = Zipf::new(f64::from(pages), 0.99).ok();
        let next = |_| match workload {
            Workload::Hot => Operation::Read(7),
            Workload::Uniform | Workload::BeyondMemory | Workload::BeyondDirect => {
                Operation::Read(random.random_range(0..pages))
            }
            Workload::Zipf => {
                let rank = skew.as_ref().map_or(0.0, |skew| skew.sample(&mut random));
                // Neighbours in rank are not neighbours in the file.
                Operation::Read((rank as u32).wrapping_mul(2_654_435_761) % pages)
            }
            Workload::Search => {
                Operation::Search(random.random_range(0..pages), random.random_range(0..KEYS))
            }
            Workload::Write | Workload::WriteHalf | Workload::WriteHeavy => {
                let page = random.random_range(0..pages);
                if random.random_range(0..10) < workload.changes() {
                    Operation::Add(page)
                } else {
                    Operation::Read(page)
                }
            }
            Workload::Scan | Workload::ScanTold => match random.random_range(0..10) {
                0 => Operation::Scan,
                _ => Operation::Read(random.random_range(0..hot)),
            },
            Workload::WriteBack if self.is_beside() => {
                Operation::Add(random.random_range(hot..pages))
            }
            Workload::Calm | Workload::WriteBack => Operation::Read(random.random_range(0..hot)),
        };
        (0..COUNT).map(next).collect()
    }

    /// Runs the part. `start` returns the start time on the monotonic clock.
    ///
    /// First reads all pages that must be in memory once; of a scan's pages, one batch.
    pub(super) fn work(
        &self,
        uses: &mut dyn Uses,
        start: &mut dyn FnMut() -> u64,
    ) -> Result<Outcome, Fault> {
        let (todo, batch) = (self.operations(), self.workload.batch());
        let warm = if self.workload.pages(self.frames) <= self.frames || self.is_beside() {
            uses.batch(&todo)
        } else {
            let pages = 0..self.frames / 4;
            let all: Vec<_> = pages.map(Operation::Read).collect();
            uses.batch(&all).and_then(|()| uses.batch(&todo[..batch]))
        };
        let before = uses.counted();
        let begin = start();
        // The other workers have started and wait for this one at the end.
        warm?;
        while now() < begin {
            core::hint::spin_loop();
        }
        let (mut times, mut done, from) = (histogram(), 0, now());
        let until = begin + self.window_ns;
        let until = 'all: loop {
            for batch in todo.chunks(batch) {
                let (last, others) = batch.split_last().unwrap_or((&Operation::Scan, &[]));
                uses.batch(others)?;
                let at = now();
                uses.batch(core::slice::from_ref(last))?;
                let end = now();
                times.saturating_record(end - at);
                done += batch.len() as u64;
                if end >= until {
                    break 'all end;
                }
            }
        };
        let counted = uses.counted().since(&before);
        if self.is_beside() {
            // Only the evictions of the background worker are reported.
            let counted = Counted { evicted_dirty: counted.evicted_dirty, ..Counted::default() };
            return Ok(Outcome { counted, ..Outcome::default() });
        }
        Ok(Outcome {
            ops_per_s: done as f64 * 1e9 / (until - from).max(1) as f64,
            p50_ns: times.value_at_quantile(0.5) as f64,
            p99_ns: times.value_at_quantile(0.99) as f64,
            by_worker: vec![done],
            counted,
        })
    }
}

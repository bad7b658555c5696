//! The six workloads of YCSB (Cooper and others, SoCC'10).

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use latchwork_rivals::{Reads, Session, StoreResult, Writes};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::Workload;
use super::data::ROW;
use super::keys::{self, Skewed};

/// Largest number of rows of a scan.
const SCAN: usize = 100;

/// The rows seen by a worker.
pub(super) struct Ycsb<'y> {
    workload: Workload,
    skewed: Skewed,
    /// Rows in the store, including those inserted by workers of this process.
    rows: &'y AtomicU64,
    /// Loaded rows.
    loaded: u64,
    row: Vec<u8>,
    fresh: Vec<u8>,
}

impl<'y> Ycsb<'y> {
    pub(super) fn new(workload: Workload, rows: &'y AtomicU64, loaded: u64, worker: usize) -> Self {
        let skewed = Skewed::new(loaded, worker as u64);
        Self { workload, skewed, rows, loaded, row: Vec::with_capacity(ROW), fresh: vec![0; ROW] }
    }

    /// The key of a row. Inserted keys contain the process number, because other processes insert
    /// rows too, and rows of earlier runs remain.
    fn key(&self, number: u64) -> [u8; 24] {
        let process = if number < self.loaded { 0 } else { u64::from(std::process::id()) };
        keys::user(process << 40 | number)
    }

    /// Runs one operation and returns the number of retries.
    pub(super) fn one(
        &mut self,
        session: &mut dyn Session,
        rng: &mut SmallRng,
    ) -> StoreResult<u64> {
        let dice = rng.random_range(0..100);
        match self.workload {
            Workload::YcsbA if dice < 50 => self.update(session, rng),
            Workload::YcsbB if dice < 5 => self.update(session, rng),
            Workload::YcsbD | Workload::YcsbE if dice < 5 => self.insert(session, rng),
            Workload::YcsbE => self.scan(session, rng),
            Workload::YcsbF if dice < 50 => self.modify(session, rng),
            Workload::YcsbD => {
                let rank = self.skewed.rank();
                // Relaxed: no other data depends on this number; the newest row may not exist yet.
                let newest = self.rows.load(Relaxed) - 1;
                self.read(session, newest.saturating_sub(rank))
            }
            _ => {
                let rank = self.skewed.rank();
                self.read(session, rank)
            }
        }
    }

    fn read(&mut self, session: &mut dyn Session, number: u64) -> StoreResult<u64> {
        let key = self.key(number);
        session.get(0, &key, &mut self.row)?;
        Ok(0)
    }

    fn update(&mut self, session: &mut dyn Session, rng: &mut SmallRng) -> StoreResult<u64> {
        keys::fill(&mut self.fresh[..100], 0, rng);
        session.put(0, &keys::user(self.skewed.rank()), &self.fresh)?;
        Ok(0)
    }

    fn insert(&mut self, session: &mut dyn Session, rng: &mut SmallRng) -> StoreResult<u64> {
        keys::fill(&mut self.fresh[..100], 0, rng);
        // Relaxed: only the uniqueness of the number matters.
        let number = self.rows.fetch_add(1, Relaxed);
        session.put(0, &self.key(number), &self.fresh)?;
        Ok(0)
    }

    fn modify(&mut self, session: &mut dyn Session, rng: &mut SmallRng) -> StoreResult<u64> {
        let key = keys::user(self.skewed.rank());
        let row = &mut self.row;
        session.write(&mut |txn: &mut dyn Writes| {
            txn.get_for_update(0, &key, row)?;
            row.resize(ROW, 0);
            keys::fill(&mut row[..100], 0, rng);
            txn.put(0, &key, row)
        })
    }

    fn scan(&mut self, session: &mut dyn Session, rng: &mut SmallRng) -> StoreResult<u64> {
        let (from, limit) = (keys::user(self.skewed.rank()), rng.random_range(1..=SCAN));
        let mut bytes = 0;
        session.read(&mut |txn: &mut dyn Reads| {
            txn.scan(0, &from, limit, &mut |_, row| bytes += keys::read(row))?;
            Ok(())
        })?;
        core::hint::black_box(bytes);
        Ok(0)
    }
}

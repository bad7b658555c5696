//! Transfers between accounts, as TPC-B and Berkeley DB's `tproc_b` have them.
//!
//! A scale is 100,000 accounts, 100 tellers and one branch, each 64 bytes: a balance and padding,
//! by keys of 4 bytes. A transfer draws one of each, independently and uniformly, and an amount of
//! -499 to 500; reads and updates them in this order; and adds 16 bytes to the history.

use latchwork_rivals::{Reads, Session, StoreError, StoreResult, Writes};
use rand::RngExt;
use rand::rngs::SmallRng;

/// Tables of a bank.
pub(super) const TABLES: usize = 4;
/// Accounts of a scale.
pub(super) const ACCOUNTS: usize = 100_000;
const TELLERS: usize = 100;
const BYTES: usize = 64;
const HISTORY: usize = 3;

/// Rows of the first three tables.
fn rows(scale: usize) -> [u32; 3] {
    [ACCOUNTS * scale, TELLERS * scale, scale].map(|rows| rows as u32)
}

pub(super) fn records(scale: usize) -> u64 {
    rows(scale).iter().map(|rows| u64::from(*rows)).sum()
}

pub(super) fn load(session: &mut dyn Session, scale: usize, at_once: usize) -> StoreResult {
    for (table, rows) in rows(scale).into_iter().enumerate() {
        for part in super::keys::shuffled(u64::from(rows)).chunks(at_once) {
            session.write(&mut |txn: &mut dyn Writes| {
                for number in part {
                    txn.put(table, &(*number as u32).to_ne_bytes(), &[0; BYTES])?;
                }
                Ok(())
            })?;
        }
    }
    Ok(())
}

fn balance(row: &[u8]) -> StoreResult<i64> {
    let bytes = row.first_chunk().ok_or(StoreError::Failed("get", "a short row".to_owned()))?;
    Ok(i64::from_ne_bytes(*bytes))
}

/// A worker's transfers.
pub(super) struct Transfers {
    rows: [u32; 3],
    /// The next key in the history: the process, the worker, a count.
    history: u64,
    row: Vec<u8>,
}

impl Transfers {
    pub(super) fn new(scale: usize, worker: usize) -> Self {
        let process = u64::from(std::process::id()) & 0xff_ffff;
        let history = process << 40 | (worker as u64 & 0xff) << 32;
        Self { rows: rows(scale), history, row: Vec::with_capacity(BYTES) }
    }

    /// One of them; says how often it had to be run again.
    pub(super) fn one(
        &mut self,
        session: &mut dyn Session,
        rng: &mut SmallRng,
    ) -> StoreResult<u64> {
        let amount = rng.random_range(-499i64..=500);
        let keys = self.rows.map(|rows| rng.random_range(0..rows).to_ne_bytes());
        self.history += 1;
        let (history, row) = (self.history.to_be_bytes(), &mut self.row);
        session.write(&mut |txn: &mut dyn Writes| {
            for (table, key) in keys.iter().enumerate() {
                if !txn.get_for_update(table, key, row)? {
                    return Err(StoreError::Failed("get", "a missing row".to_owned()));
                }
                let sum = balance(row)? + amount;
                row[..8].copy_from_slice(&sum.to_ne_bytes());
                txn.put(table, key, row)?;
            }
            let mut entry = [0; 16];
            entry[..8].copy_from_slice(&amount.to_ne_bytes());
            txn.put_final(HISTORY, &history, &entry)
        })
    }
}

/// Adds up each table; they must be equal.
pub(super) fn verify(session: &mut dyn Session) -> StoreResult {
    let mut sums = [0i64; TABLES];
    session.read(&mut |txn: &mut dyn Reads| {
        for (table, sum) in sums.iter_mut().enumerate() {
            *sum = 0;
            txn.scan(table, &[0], usize::MAX, &mut |_, row| {
                *sum += balance(row).unwrap_or(i64::MIN / 4);
            })?;
        }
        Ok(())
    })?;
    if sums.iter().any(|sum| *sum != sums[0]) {
        let what = format!("accounts, tellers, branches and history add up to {sums:?}");
        return Err(StoreError::Failed("the sums", what));
    }
    Ok(())
}

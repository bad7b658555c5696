//! Our store in the simulator. Each simulated thread stands for a process.

use std::path::Path;
use std::sync::Arc;

use latchwork_disk::Disk;
use latchwork_region::Region;
use latchwork_sim::{Simulated, Simulation};
use latchwork_store::{Error, Mode, ReadTxn, Sizes, Store, Table, WriteTxn};

use super::super::dice::Dice;
use super::super::operations::Records;
use super::super::watch::Watch;
use super::disk::Timed;
use super::{Engine, drawn, pause, zipf};

const RECORDS: Table<u64, &[u8]> = Table::new("records");
/// Accounts, tellers, branches.
const SUMS: [Table<u64, &[u8]>; 3] =
    [Table::new("accounts"), Table::new("tellers"), Table::new("branches")];
const HISTORY: Table<u64, i64> = Table::new("history");
/// Rows per branch: accounts, a hundredth of TPC-B's; tellers, as in Berkeley DB's program.
const OF_A_BRANCH: [usize; 3] = [1000, 100, 1];
/// Bytes of a record and of a row of a transfer.
const RECORD: usize = 100;
const ROW: usize = 64;

/// One store, opened once per thread, as by a process of its own.
pub(super) struct Stores {
    records: Records,
    shares: Vec<f64>,
    stores: Vec<Store<Simulated>>,
}

/// The contents of a record; they contain its number.
fn record(number: u64, turn: u64) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..16].copy_from_slice(&turn.to_le_bytes());
    bytes
}

fn head(row: &[u8]) -> i64 {
    row.first_chunk().map_or(i64::MIN, |bytes| i64::from_le_bytes(*bytes))
}

impl Stores {
    pub(super) fn new(records: Records, threads: usize) -> Result<Self, String> {
        Self::try_new(records, threads).map_err(|error| error.to_string())
    }

    fn try_new(records: Records, threads: usize) -> Result<Self, Error> {
        let sizes = Sizes {
            cache: 64 << 20,
            // No checkpoint occurs in a run of milliseconds.
            log_budget: 1 << 30,
            locks: 256 << 20,
            threads: threads as u32 + 8,
            mode: Mode::None,
            ..Sizes::default()
        };
        let options = latchwork_region::Options {
            processes: threads as u32 + 1,
            threads: sizes.threads,
            waiters: sizes.threads.max(64),
            limit: sizes.locks,
            ..latchwork_region::Options::default()
        };
        let region = Region::heap(&options)?;
        let disk: Arc<dyn Disk> = Arc::new(Timed::new());
        let open = || Store::in_region(&region, &disk, Path::new("/store"), &sizes);
        let stores: Result<Vec<_>, _> = (0..threads).map(|_| open()).collect();
        let shares = if records.skewed { zipf(records.objects, 0.99) } else { Vec::new() };
        let made = Self { records, shares, stores: stores? };
        made.load()?;
        for me in 0..threads {
            made.look(me)?;
        }
        Ok(made)
    }

    fn load(&self) -> Result<(), Error> {
        let store = &self.stores[0];
        if !self.records.transfers {
            return store.write(|tx| {
                let all = 0..self.records.objects as u64;
                all.into_iter().try_for_each(|n| tx.put(&RECORDS, scattered(n), &record(n, 0)[..]))
            });
        }
        for (table, rows) in SUMS.iter().zip(OF_A_BRANCH) {
            let all = 0..(rows * self.records.objects) as u64;
            store.write(|tx| all.clone().try_for_each(|n| tx.put(table, n, &[0; ROW][..])))?;
        }
        store.write(|tx| tx.put(&HISTORY, 0, 0))
    }

    /// Opens a session and the tables, as a thread of a long run has already done.
    fn look(&self, me: usize) -> Result<(), Error> {
        let store = &self.stores[me];
        if !self.records.transfers {
            store.get(&RECORDS, 0)?;
            return store.put(&RECORDS, scattered(0), &record(0, 0)[..]);
        }
        let mine = me as u64;
        store.write(|tx| self.transfer(tx, [mine % 1000, mine % 100, 0], 0, mine << 40))
    }

    fn transfer(
        &self,
        tx: &mut WriteTxn<'_, '_, Simulated>,
        keys: [u64; 3],
        amount: i64,
        history: u64,
    ) -> Result<(), Error> {
        for (table, key) in SUMS.iter().zip(keys) {
            let row = tx.get_for_update(table, key)?.unwrap_or_default();
            let mut row: [u8; ROW] = row.try_into().unwrap_or([0; ROW]);
            let sum = head(&row) + amount;
            row[..8].copy_from_slice(&sum.to_le_bytes());
            tx.put(table, key, &row[..])?;
        }
        tx.put_final(&HISTORY, history, amount)
    }

    /// One operation.
    fn operation(&self, me: usize, turn: u64, dice: &mut Dice) -> Result<(), String> {
        let (store, told) = (&self.stores[me], |error: Error| error.to_string());
        if self.records.transfers {
            let keys = OF_A_BRANCH.map(|rows| dice.below(rows * self.records.objects) as u64);
            let amount = dice.below(1000) as i64 - 499;
            let history = (me as u64) << 40 | turn;
            return store.write(|tx| self.transfer(tx, keys, amount, history)).map_err(told);
        }
        let number = match self.records.skewed {
            true => drawn(&self.shares, dice),
            false => dice.below(self.records.objects),
        } as u64;
        if (dice.below(1000) as u32) < self.records.writes {
            return store.put(&RECORDS, scattered(number), &record(number, turn)[..]).map_err(told);
        }
        let found = store.get(&RECORDS, scattered(number)).map_err(told)?;
        match found.map(|row| head(&row)) {
            Some(told) if told == number as i64 => Ok(()),
            found => Err(format!("record {number} is {found:?}")),
        }
    }
}

/// Keeps frequent records apart.
fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Engine for Stores {
    fn set_up(&self, simulation: &mut Simulation) {
        for (start, len, name) in self.stores[0].places().unwrap_or_default() {
            let warm = match &*name {
                // The pages are in the first frames, except those that were reassigned at once.
                "pages" => 2 * len + (1 << 20),
                "pool-desc" | "pool-xlat" | "pool-head" => len.min(1 << 20),
                "store.low" | "store.visible" => len,
                _ => 0,
            };
            simulation.warm_at(start, warm, self.stores.len());
            simulation.label_at(start, len, name);
        }
    }

    fn live(&self, me: usize, dice: &mut Dice, watch: &Watch<'_>) -> Result<(), String> {
        for turn in 1.. {
            pause(self.records.outside, dice);
            if !watch.goes_on() {
                break;
            }
            let mut done = Ok(());
            watch.waited(&mut || done = self.operation(me, turn, dice));
            done?;
            watch.done();
        }
        Ok(())
    }

    fn judge(&self) -> Result<Option<f64>, String> {
        let sums = self.stores[0].read(|tx| {
            if !self.records.transfers {
                return rows(tx, &RECORDS).map(|(count, _)| vec![count]);
            }
            let mut sums: Vec<i64> = Vec::new();
            for table in &SUMS {
                sums.push(rows(tx, table)?.1);
            }
            let history: Result<Vec<_>, Error> = tx.range(&HISTORY, ..)?.collect();
            sums.push(history?.iter().map(|(_, amount)| amount).sum());
            Ok(sums)
        });
        let sums = sums.map_err(|error| error.to_string())?;
        let right = if self.records.transfers { sums[0] } else { self.records.objects as i64 };
        match sums.iter().all(|sum| *sum == right) {
            true => Ok(None),
            false => Err(format!("sums, or how many records there are: {sums:?}")),
        }
    }
}

/// The number of rows of a table and the sum of their heads.
fn rows(tx: &ReadTxn<'_, Simulated>, table: &Table<u64, &[u8]>) -> Result<(i64, i64), Error> {
    let (mut count, mut sum) = (0, 0i64);
    for row in tx.range(table, ..)? {
        count += 1;
        sum = sum.wrapping_add(head(&row?.1));
    }
    Ok((count, sum))
}

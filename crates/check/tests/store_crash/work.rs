//! The work of each process: transfers between accounts, rows that are written and removed, a
//! counter.

use std::fs::File;
use std::os::unix::fs::FileExt;

use latchwork_check::random::Random;
use latchwork_store::{Error, Mode, Options, Store, Table, TxnOptions};

use crate::Place;

const ACCOUNTS: Table<u64, i64> = Table::new("accounts");
const ROWS: Table<(u64, u64), &[u8]> = Table::new("rows");
/// Each process appends records and removes the oldest, so leaves become empty all the time.
const QUEUE: Table<(u64, u64), &[u8]> = Table::new("queue");
const COUNTERS: Table<u64, u64> = Table::new("counters");

const COUNT: u64 = 12;
const EACH: i64 = 1000;
/// Maximum number of rows of a process.
const ROWS_MAX: u64 = 200;
/// Acknowledgements of durable commits are stored this many places after those of all commits.
pub(crate) const DURABLE: u64 = 1 << 10;
/// Number of records in a process's queue.
const ALIVE: u64 = 40;

/// A working process. Each of its transactions increments its counter, and acknowledgements are
/// stored in a file, which survives a kill.
pub(crate) struct Worker {
    pub(crate) store: Store,
    answered: File,
    id: u64,
    random: Random,
    next: u64,
}

pub(crate) fn options() -> Options {
    let mut options = Options::default();
    options.sizes.cache = 2 << 20;
    options.sizes.log_buffer = 1 << 20;
    options.sizes.log_segment = 4 << 20;
    options.sizes.log_budget = 2 << 20;
    options.sizes.threads = 64;
    options
}

fn read(answered: &File, id: u64) -> u64 {
    let mut bytes = [0; 8];
    match answered.read_exact_at(&mut bytes, id * 8) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => 0,
    }
}

impl Worker {
    pub(crate) fn new(place: &Place, id: u64) -> Self {
        let store = Store::open_with(place.store(), &options()).unwrap();
        let answered = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .read(true)
            .open(place.path.join("answered"))
            .unwrap();
        let there = store.read(|tx| tx.get(&COUNTERS, id)).unwrap().unwrap_or(0);
        answered.write_all_at(&there.to_le_bytes(), id * 8).unwrap();
        let next = there + 1;
        let random = Random(id * 1_000_003 + next);
        Self { store, answered, id, random, next }
    }

    /// Creates the accounts.
    pub(crate) fn fill(&self) {
        let filled = self
            .store
            .write(|tx| (0..COUNT).try_for_each(|account| tx.put(&ACCOUNTS, account, EACH)));
        filled.unwrap();
    }

    /// Runs a transaction, which is committed or rolled back.
    pub(crate) fn round(&mut self) {
        let (id, next, random) = (self.id, self.next, &mut self.random);
        let mode = [Mode::None, Mode::None, Mode::None, Mode::Full][random.roll(4)];
        let patience = TxnOptions { mode: Some(mode), ..TxnOptions::default() };
        let rejected = random.below(10) == 0;
        let (from, to) = (random.below(COUNT), random.below(COUNT));
        let (row, length) = (random.below(ROWS_MAX), random.below(1200) as usize);
        let value = vec![id as u8; length];
        let written = self.store.write_with(&patience, |tx| {
            let has = tx.get_for_update(&ACCOUNTS, from)?.unwrap();
            tx.put(&ACCOUNTS, from, has - 1)?;
            let has = tx.get_for_update(&ACCOUNTS, to)?.unwrap();
            tx.put(&ACCOUNTS, to, has + 1)?;
            if length < 300 {
                tx.remove(&ROWS, (id, row))?;
            } else {
                tx.put(&ROWS, (id, row), &value)?;
            }
            tx.put(&QUEUE, (id, next), &[id as u8; 500])?;
            tx.remove(&QUEUE, (id, next.saturating_sub(ALIVE)))?;
            if row == 0 {
                // The sum of all accounts, read under locks.
                let rows = tx.range(&ACCOUNTS, ..)?.collect::<Result<Vec<_>, _>>()?;
                assert_eq!(rows.iter().map(|row| row.1).sum::<i64>(), COUNT as i64 * EACH);
            }
            match row % 2 {
                0 => tx.put(&COUNTERS, id, next)?,
                _ => tx.put_final(&COUNTERS, id, next)?,
            }
            if rejected { Err(Error::Rejected(String::new())) } else { Ok(()) }
        });
        match written {
            Err(Error::Rejected(_)) => {}
            other => {
                other.unwrap();
                self.answered.write_all_at(&next.to_le_bytes(), id * 8).unwrap();
                if mode == Mode::Full {
                    self.answered.write_all_at(&next.to_le_bytes(), (DURABLE + id) * 8).unwrap();
                }
                self.next += 1;
            }
        }
    }

    /// Pushes and pops until the process is killed.
    pub(crate) fn push_and_pop(&mut self) -> ! {
        let (id, patience) =
            (self.id, TxnOptions { mode: Some(Mode::None), ..TxnOptions::default() });
        loop {
            let next = self.next;
            let turned = self.store.write_with(&patience, |tx| {
                tx.put(&QUEUE, (id, next), &[id as u8; 500])?;
                tx.remove(&QUEUE, (id, next.saturating_sub(ALIVE)))?;
                tx.put(&COUNTERS, id, next)
            });
            turned.unwrap();
            self.answered.write_all_at(&next.to_le_bytes(), id * 8).unwrap();
            self.next += 1;
        }
    }

    /// Checks, while no process writes, that every page belongs to a table or is free, apart from
    /// one page per death. Returns the number of free pages.
    pub(crate) fn check_space(&self, deaths: u64) -> u64 {
        let space = self.store.space().unwrap();
        assert!(space.lost <= deaths, "{space:?}, {deaths} deaths");
        space.free
    }

    /// Number of acknowledged transactions of a process.
    pub(crate) fn answered(&self, id: u64) -> u64 {
        read(&self.answered, id)
    }

    /// The same without an open store.
    pub(crate) fn told(place: &Place, id: u64) -> u64 {
        File::open(place.path.join("answered")).map_or(0, |file| read(&file, id))
    }

    /// Compares the acknowledged transactions of a dead process with its counter.
    pub(crate) fn check(&self, id: u64) {
        let answered = self.answered(id);
        let there = self.store.read(|tx| tx.get(&COUNTERS, id)).unwrap().unwrap_or(0);
        assert!(
            there == answered || there == answered + 1,
            "process {id}: {answered} acknowledged, {there} present"
        );
    }

    /// The same after a crash of the machine.
    pub(crate) fn check_after_crash(&self, id: u64) {
        let (durable, answered) = (self.answered(DURABLE + id), self.answered(id));
        let there = self.store.read(|tx| tx.get(&COUNTERS, id)).unwrap().unwrap_or(0);
        assert!(
            (durable..=answered + 1).contains(&there),
            "process {id}: {durable} durable, {answered} acknowledged, {there} present"
        );
    }

    /// Checks the sum in a snapshot, and the values of all rows.
    pub(crate) fn audit(&self) {
        let sum = self.store.read(|tx| {
            tx.range(&ACCOUNTS, ..)?.try_fold(0, |sum, row| Ok::<_, Error>(sum + row?.1))
        });
        assert_eq!(sum.unwrap(), COUNT as i64 * EACH);
        let rows = self.store.read(|tx| {
            tx.range(&ROWS, ..)?.try_fold(0, |rows, row| {
                let ((id, _), value) = row?;
                assert!(value.iter().all(|byte| u64::from(*byte) == id), "a wrong row");
                Ok::<_, Error>(rows + 1)
            })
        });
        rows.unwrap();
        let queues = self.store.read(|tx| {
            tx.range(&QUEUE, ..)?.try_fold((u64::MAX, 0), |(of, last), row| {
                let ((id, number), value) = row?;
                assert!(id != of || number == last + 1, "queue {id} has {number} after {last}");
                assert!(value.iter().all(|byte| u64::from(*byte) == id), "a wrong row");
                Ok::<_, Error>((id, number))
            })
        });
        queues.unwrap();
    }
}

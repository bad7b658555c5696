//! Our store behind the common trait.
//!
//! Keys and values are byte slices in the tables' own encoding. Without durability: `Mode::None`;
//! the log is written when its buffer is full. Each process opens the directory itself; the size of
//! the cache is that of the first process.

use std::ops::Bound;
use std::path::{Path, PathBuf};

use latchwork_rivals::{Reads, Session, Store, StoreError, StoreOptions, StoreResult, Writes};
use latchwork_store::{Error, Mode, Operation, Options, ReadTxn, Table, TxnOptions, WriteTxn};

type Bytes = Table<&'static [u8], &'static [u8]>;
type Machine = latchwork_machine::Shared;

/// The store and the names of its tables.
pub(super) struct Ours {
    store: latchwork_store::Store,
    tables: Vec<Bytes>,
}

/// The names of tables, which must be `'static`.
const NAMES: [&str; 4] = ["t0", "t1", "t2", "t3"];

fn failed(call: &'static str) -> impl Fn(Error) -> StoreError {
    move |why| match why {
        Error::SnapshotTooOld { .. } => StoreError::TooOld,
        why if why.is_retryable() => StoreError::Again,
        why => StoreError::Failed(call, why.to_string()),
    }
}

/// Carries an error of the benchmark through a closure run by the store.
fn through(why: &StoreError) -> Error {
    Error::Rejected(why.to_string())
}

impl Ours {
    /// The path of the store in a directory of the benchmark.
    pub(super) fn folder(folder: &Path) -> PathBuf {
        folder.join("ours")
    }

    pub(super) fn open(folder: &Path, options: &StoreOptions) -> StoreResult<Self> {
        let mut ours = Options::default();
        ours.sizes.cache = options.cache as u64;
        ours.sizes.mode = if options.durable { Mode::Full } else { Mode::None };
        if let Some(budget) = options.budget {
            ours.sizes.log_budget = budget;
            ours.sizes.history = ours.sizes.history.max(budget);
        }
        if let Some(history) = options.history {
            // Log is removed in whole segments, so the history must have several.
            let segment = (history / 8).clamp(1 << 20, ours.sizes.log_segment);
            ours.sizes.history = history;
            ours.sizes.log_budget = ours.sizes.log_budget.min(history);
            ours.sizes.log_segment = 1 << segment.ilog2();
            ours.sizes.log_buffer = ours.sizes.log_buffer.min(ours.sizes.log_segment);
        }
        let store = latchwork_store::Store::open_with(Self::folder(folder), &ours);
        let names = NAMES.get(..options.tables).ok_or(StoreError::Missing("so many tables"))?;
        let tables = names.iter().map(|name| Table::new(name)).collect();
        Ok(Self { store: store.map_err(failed("open"))?, tables })
    }
}

impl Store for Ours {
    fn session(&self) -> StoreResult<Box<dyn Session + '_>> {
        Ok(Box::new(OurSession(self)))
    }

    fn settle(&self) -> StoreResult {
        self.store.checkpoint().map_err(failed("checkpoint"))
    }

    fn syncs(&self) -> Option<u64> {
        Some(self.store.disk_calls()[Operation::Sync])
    }

    fn to_redo(&self) -> Option<u64> {
        let now = self.store.activity().ok()?;
        Some(now.end - now.redo)
    }
}

struct OurSession<'o>(&'o Ours);

struct Snapshot<'s, 't> {
    tables: &'s [Bytes],
    txn: &'s ReadTxn<'t, Machine>,
}

struct Txn<'s, 'x, 't> {
    tables: &'s [Bytes],
    txn: &'s mut WriteTxn<'x, 't, Machine>,
    /// Why the transaction must be retried. The store retries it and keeps its age.
    again: Option<Error>,
}

impl Txn<'_, '_, '_> {
    fn failed(&mut self, call: &'static str, why: Error) -> StoreError {
        if why.is_retryable() {
            self.again = Some(why.clone());
        }
        failed(call)(why)
    }
}

fn give(value: &[u8], to: &mut Vec<u8>) {
    to.clear();
    to.extend_from_slice(value);
}

fn copy(value: Option<Vec<u8>>, to: &mut Vec<u8>) -> bool {
    value.map(|value| give(&value, to)).is_some()
}

impl Reads for Snapshot<'_, '_> {
    fn get(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        let found = self.txn.get_with(&self.tables[table], key, |value| give(value, to));
        Ok(found.map_err(failed("get"))?.is_some())
    }

    fn scan(
        &mut self,
        table: usize,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> StoreResult<usize> {
        let mut count = 0;
        let range = (Bound::Included(from), Bound::Unbounded);
        let rows = self.txn.scan(&self.tables[table], range, &mut |key, value| {
            each(key, value);
            count += 1;
            Ok(count < limit)
        });
        rows.map_err(failed("scan"))?;
        Ok(count)
    }
}

impl Reads for Txn<'_, '_, '_> {
    fn get(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        let value = self.txn.get(&self.tables[table], key);
        Ok(copy(value.map_err(|why| self.failed("get", why))?, to))
    }

    /// Reads and locks the whole range: no workload scans in a write transaction.
    fn scan(
        &mut self,
        table: usize,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> StoreResult<usize> {
        let range = (Bound::Included(from), Bound::Unbounded);
        let rows = self.txn.range(&self.tables[table], range);
        let rows = rows.map_err(|why| self.failed("range", why))?;
        let mut count = 0;
        for row in rows.take(limit) {
            let (key, value) = row.map_err(failed("range"))?;
            each(&key, &value);
            count += 1;
        }
        Ok(count)
    }
}

impl Writes for Txn<'_, '_, '_> {
    fn get_for_update(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        let value = self.txn.get_for_update(&self.tables[table], key);
        Ok(copy(value.map_err(|why| self.failed("get_for_update", why))?, to))
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> StoreResult {
        let put = self.txn.put(&self.tables[table], key, value);
        put.map_err(|why| self.failed("put", why))
    }

    fn put_final(&mut self, table: usize, key: &[u8], value: &[u8]) -> StoreResult {
        let put = self.txn.put_final(&self.tables[table], key, value);
        put.map_err(|why| self.failed("put", why))
    }
}

impl Session for OurSession<'_> {
    fn get(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        let table = &self.0.tables[table];
        let found = self.0.store.read(|txn| txn.get_with(table, key, |value| give(value, to)));
        Ok(found.map_err(failed("get"))?.is_some())
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> StoreResult {
        self.0.store.put(&self.0.tables[table], key, value).map_err(failed("put"))
    }

    fn read(&mut self, body: &mut dyn FnMut(&mut dyn Reads) -> StoreResult) -> StoreResult {
        let mut said = None;
        let done = self.0.store.read(|txn| {
            body(&mut Snapshot { tables: &self.0.tables, txn }).map_err(|why| {
                let error = through(&why);
                said = Some(why);
                error
            })
        });
        said.map_or_else(|| done.map_err(failed("read")), Err)
    }

    fn write(&mut self, body: &mut dyn FnMut(&mut dyn Writes) -> StoreResult) -> StoreResult<u64> {
        let mut said = None;
        let done = self.0.store.write_with(&TxnOptions::default(), |txn| {
            let mut txn = Txn { tables: &self.0.tables, txn, again: None };
            let why = match body(&mut txn) {
                Ok(()) => return Ok(()),
                Err(why) => why,
            };
            if let (StoreError::Again, Some(error)) = (&why, txn.again) {
                return Err(error);
            }
            let error = through(&why);
            said = Some(why);
            Err(error)
        });
        match (done, said) {
            (Ok(done), _) => Ok(u64::from(done.runs - 1)),
            (Err(_), Some(why)) => Err(why),
            (Err(why), None) => Err(failed("write")(why)),
        }
    }
}

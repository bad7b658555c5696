//! fjall's optimistic transactions as a store.

use std::path::Path;

use fjall::{
    KeyspaceCreateOptions, OptimisticTxDatabase, OptimisticTxKeyspace, OptimisticWriteTx,
    PersistMode, Readable, Snapshot,
};

use super::{Reads, Session, Store, StoreError, StoreOptions, StoreResult, Writes};

/// A database and its tables.
pub(super) struct Fjall {
    db: OptimisticTxDatabase,
    tables: Vec<OptimisticTxKeyspace>,
    durable: bool,
}

fn failed<E: core::fmt::Display>(call: &'static str) -> impl Fn(E) -> StoreError {
    move |why| StoreError::failed(call)(&why)
}

impl Fjall {
    pub(super) fn open(folder: &Path, options: &StoreOptions) -> StoreResult<Self> {
        let db = OptimisticTxDatabase::builder(folder).cache_size(options.cache as u64).open();
        let db = db.map_err(failed("open"))?;
        let table = |number| db.keyspace(&format!("t{number}"), KeyspaceCreateOptions::default);
        let tables: Result<_, _> = (0..options.tables).map(table).collect();
        Ok(Self { tables: tables.map_err(failed("keyspace"))?, db, durable: options.durable })
    }

    /// Waits for the disk if commits are durable.
    fn persist(&self) -> StoreResult {
        if !self.durable {
            return Ok(());
        }
        self.db.persist(PersistMode::SyncData).map_err(failed("persist"))
    }
}

impl Store for Fjall {
    fn session(&self) -> StoreResult<Box<dyn Session + '_>> {
        Ok(Box::new(FjallSession(self)))
    }

    /// Writes the journal. fjall's own threads decide about compaction.
    fn settle(&self) -> StoreResult {
        self.db.persist(PersistMode::SyncData).map_err(failed("persist"))
    }
}

struct FjallSession<'f>(&'f Fjall);

fn walk(
    records: fjall::Iter,
    limit: usize,
    each: &mut dyn FnMut(&[u8], &[u8]),
) -> StoreResult<usize> {
    let mut count = 0;
    for record in records.take(limit) {
        let (key, value) = record.into_inner().map_err(failed("next"))?;
        each(&key, &value);
        count += 1;
    }
    Ok(count)
}

fn copy(value: Option<fjall::Slice>, to: &mut Vec<u8>) -> bool {
    let Some(value) = value else { return false };
    to.clear();
    to.extend_from_slice(&value);
    true
}

struct Reading<'f> {
    fjall: &'f Fjall,
    snapshot: Snapshot,
}

impl Reads for Reading<'_> {
    fn get(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        let value = self.snapshot.get(&self.fjall.tables[table], key);
        Ok(copy(value.map_err(failed("get"))?, to))
    }

    fn scan(
        &mut self,
        table: usize,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> StoreResult<usize> {
        walk(self.snapshot.range(&self.fjall.tables[table], from..), limit, each)
    }
}

struct Txn<'f> {
    fjall: &'f Fjall,
    txn: OptimisticWriteTx,
}

impl Reads for Txn<'_> {
    fn get(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        let value = self.txn.get(&self.fjall.tables[table], key);
        Ok(copy(value.map_err(failed("get"))?, to))
    }

    fn scan(
        &mut self,
        table: usize,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> StoreResult<usize> {
        walk(self.txn.range(&self.fjall.tables[table], from..), limit, each)
    }
}

impl Writes for Txn<'_> {
    fn get_for_update(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        self.get(table, key, to)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> StoreResult {
        self.txn.insert(&self.fjall.tables[table], key, value);
        Ok(())
    }
}

impl Session for FjallSession<'_> {
    fn get(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        Ok(copy(self.0.tables[table].get(key).map_err(failed("get"))?, to))
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> StoreResult {
        self.0.tables[table].insert(key, value).map_err(failed("insert"))?;
        self.0.persist()
    }

    fn read(&mut self, body: &mut dyn FnMut(&mut dyn Reads) -> StoreResult) -> StoreResult {
        body(&mut Reading { fjall: self.0, snapshot: self.0.db.read_tx() })
    }

    fn write(&mut self, body: &mut dyn FnMut(&mut dyn Writes) -> StoreResult) -> StoreResult<u64> {
        let mut again = 0;
        loop {
            let txn = self.0.db.write_tx().map_err(failed("write_tx"))?;
            let mut txn = Txn { fjall: self.0, txn };
            if let Err(error) = body(&mut txn) {
                txn.txn.rollback();
                return Err(error);
            }
            if txn.txn.commit().map_err(failed("commit"))?.is_ok() {
                self.0.persist()?;
                return Ok(again);
            }
            again += 1;
        }
    }
}

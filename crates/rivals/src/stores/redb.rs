//! redb as a store.

use std::path::Path;

use redb::{Builder, Database, Durability, ReadableTable, TableDefinition, WriteTransaction};

use super::{Reads, Session, Store, StoreError, StoreOptions, StoreResult, Writes};

type Table = redb::ReadOnlyTable<&'static [u8], &'static [u8]>;
type Definition = TableDefinition<'static, &'static [u8], &'static [u8]>;

/// A database and the names of its tables.
pub(super) struct Redb {
    db: Database,
    tables: Vec<Definition>,
    durability: Durability,
}

fn failed<E: core::fmt::Display>(call: &'static str) -> impl Fn(E) -> StoreError {
    move |why| StoreError::failed(call)(&why)
}

impl Redb {
    pub(super) fn open(folder: &Path, options: &StoreOptions) -> StoreResult<Self> {
        let mut builder = Builder::new();
        builder.set_cache_size(options.cache);
        let db = builder.create(folder.join("redb")).map_err(failed("create"))?;
        // A definition needs a `'static` name. A benchmark opens few stores.
        let name = |number| -> &'static str { Box::leak(format!("t{number}").into_boxed_str()) };
        let tables = (0..options.tables).map(|number| Definition::new(name(number))).collect();
        let durability = if options.durable { Durability::Immediate } else { Durability::None };
        let redb = Self { db, tables, durability };
        let txn = redb.db.begin_write().map_err(failed("begin_write"))?;
        for table in &redb.tables {
            txn.open_table(*table).map_err(failed("open_table"))?;
        }
        txn.commit().map_err(failed("commit"))?;
        Ok(redb)
    }
}

impl Store for Redb {
    fn session(&self) -> StoreResult<Box<dyn Session + '_>> {
        Ok(Box::new(RedbSession(self)))
    }

    /// An empty durable transaction, which makes all earlier ones durable.
    fn settle(&self) -> StoreResult {
        let txn = self.db.begin_write().map_err(failed("begin_write"))?;
        txn.commit().map_err(failed("commit"))
    }
}

struct RedbSession<'r>(&'r Redb);

/// A read transaction. A table is opened on its first read.
struct Snapshot<'r> {
    redb: &'r Redb,
    txn: redb::ReadTransaction,
    open: Option<(usize, Table)>,
}

fn copy(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &[u8],
    to: &mut Vec<u8>,
) -> StoreResult<bool> {
    let Some(value) = table.get(key).map_err(failed("get"))? else { return Ok(false) };
    to.clear();
    to.extend_from_slice(value.value());
    Ok(true)
}

fn walk(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    from: &[u8],
    limit: usize,
    each: &mut dyn FnMut(&[u8], &[u8]),
) -> StoreResult<usize> {
    let mut count = 0;
    for record in table.range(from..).map_err(failed("range"))?.take(limit) {
        let (key, value) = record.map_err(failed("next"))?;
        each(key.value(), value.value());
        count += 1;
    }
    Ok(count)
}

impl Snapshot<'_> {
    fn table(&mut self, number: usize) -> StoreResult<&Table> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != number) {
            let name = self.redb.tables[number];
            let table = self.txn.open_table(name).map_err(failed("open_table"))?;
            self.open = Some((number, table));
        }
        let missing = || StoreError::Failed("open_table", "no table".to_owned());
        self.open.as_ref().map(|(_, table)| table).ok_or_else(missing)
    }
}

impl Reads for Snapshot<'_> {
    fn get(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        copy(self.table(table)?, key, to)
    }

    fn scan(
        &mut self,
        table: usize,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> StoreResult<usize> {
        walk(self.table(table)?, from, limit, each)
    }
}

struct Txn<'r> {
    redb: &'r Redb,
    txn: WriteTransaction,
}

impl Reads for Txn<'_> {
    fn get(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        copy(&self.txn.open_table(self.redb.tables[table]).map_err(failed("open_table"))?, key, to)
    }

    fn scan(
        &mut self,
        table: usize,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> StoreResult<usize> {
        let table = self.txn.open_table(self.redb.tables[table]).map_err(failed("open_table"))?;
        walk(&table, from, limit, each)
    }
}

impl Writes for Txn<'_> {
    fn get_for_update(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        self.get(table, key, to)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> StoreResult {
        let name = self.redb.tables[table];
        let mut table = self.txn.open_table(name).map_err(failed("open_table"))?;
        table.insert(key, value).map_err(failed("insert"))?;
        Ok(())
    }
}

impl RedbSession<'_> {
    fn snapshot(&self) -> StoreResult<Snapshot<'_>> {
        use redb::ReadableDatabase;
        let txn = self.0.db.begin_read().map_err(failed("begin_read"))?;
        Ok(Snapshot { redb: self.0, txn, open: None })
    }
}

impl Session for RedbSession<'_> {
    fn get(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        self.snapshot()?.get(table, key, to)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> StoreResult {
        self.write(&mut |txn| txn.put(table, key, value)).map(|_| ())
    }

    fn read(&mut self, body: &mut dyn FnMut(&mut dyn Reads) -> StoreResult) -> StoreResult {
        body(&mut self.snapshot()?)
    }

    fn write(&mut self, body: &mut dyn FnMut(&mut dyn Writes) -> StoreResult) -> StoreResult<u64> {
        let mut txn = self.0.db.begin_write().map_err(failed("begin_write"))?;
        txn.set_durability(self.0.durability).map_err(failed("set_durability"))?;
        let mut txn = Txn { redb: self.0, txn };
        match body(&mut txn) {
            Ok(()) => txn.txn.commit().map_err(failed("commit"))?,
            Err(error) => {
                txn.txn.abort().map_err(failed("abort"))?;
                return Err(error);
            }
        }
        Ok(0)
    }
}

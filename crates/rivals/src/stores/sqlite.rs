//! SQLite as a store, with a connection per session and a table of blobs per table.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use super::{Reads, Session, Store, StoreError, StoreOptions, StoreResult, Writes};

/// The path and the options.
pub(super) struct Sqlite {
    path: PathBuf,
    texts: Vec<Texts>,
    options: StoreOptions,
}

/// The statements of a table.
struct Texts {
    get: String,
    put: String,
    scan: String,
}

fn failed(call: &'static str) -> impl Fn(rusqlite::Error) -> StoreError {
    move |why| match why.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => {
            StoreError::Again
        }
        _ => StoreError::failed(call)(&why),
    }
}

impl Sqlite {
    pub(super) fn open(folder: &Path, options: &StoreOptions) -> StoreResult<Self> {
        let text = |n: usize| Texts {
            get: format!("SELECT v FROM t{n} WHERE k = ?1"),
            put: format!("INSERT INTO t{n} VALUES (?1, ?2) ON CONFLICT (k) DO UPDATE SET v = ?2"),
            scan: format!("SELECT k, v FROM t{n} WHERE k >= ?1 ORDER BY k LIMIT ?2"),
        };
        let texts = (0..options.tables).map(text).collect();
        let sqlite = Self { path: folder.join("sqlite"), texts, options: *options };
        let db = sqlite.connect()?;
        for n in 0..options.tables {
            let make = format!(
                "CREATE TABLE IF NOT EXISTS t{n} (k BLOB PRIMARY KEY, v BLOB) WITHOUT ROWID"
            );
            db.execute(&make, ()).map_err(failed("create table"))?;
        }
        Ok(sqlite)
    }

    fn connect(&self) -> StoreResult<Connection> {
        let db = Connection::open(&self.path).map_err(failed("open"))?;
        db.busy_timeout(Duration::from_secs(60)).map_err(failed("busy_timeout"))?;
        let synchronous = if self.options.durable { "FULL" } else { "OFF" };
        let pages = self.options.cache / 1024;
        let settings = format!(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous={synchronous}; \
             PRAGMA cache_size=-{pages}; PRAGMA mmap_size={};",
            2u64 << 30
        );
        db.execute_batch(&settings).map_err(failed("pragma"))?;
        Ok(db)
    }
}

impl Store for Sqlite {
    fn session(&self) -> StoreResult<Box<dyn Session + '_>> {
        Ok(Box::new(SqliteSession { sqlite: self, db: self.connect()? }))
    }

    fn settle(&self) -> StoreResult {
        self.connect()?
            .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
            .map_err(failed("wal_checkpoint"))
    }
}

struct SqliteSession<'s> {
    sqlite: &'s Sqlite,
    db: Connection,
}

/// A transaction, or the connection between two transactions.
struct Txn<'t> {
    sqlite: &'t Sqlite,
    db: &'t Connection,
}

impl Reads for Txn<'_> {
    fn get(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        let text = &self.sqlite.texts[table].get;
        let mut statement = self.db.prepare_cached(text).map_err(failed("prepare"))?;
        let found = statement.query_row((key,), |row| {
            to.clear();
            to.extend_from_slice(row.get_ref(0)?.as_blob()?);
            Ok(())
        });
        Ok(found.optional().map_err(failed("select"))?.is_some())
    }

    fn scan(
        &mut self,
        table: usize,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> StoreResult<usize> {
        let text = &self.sqlite.texts[table].scan;
        let mut statement = self.db.prepare_cached(text).map_err(failed("prepare"))?;
        let mut rows = statement.query((from, limit as i64)).map_err(failed("select"))?;
        let mut count = 0;
        while let Some(row) = rows.next().map_err(failed("next"))? {
            let blob = |column| -> rusqlite::Result<&[u8]> { Ok(row.get_ref(column)?.as_blob()?) };
            each(blob(0).map_err(failed("key"))?, blob(1).map_err(failed("value"))?);
            count += 1;
        }
        Ok(count)
    }
}

impl Writes for Txn<'_> {
    fn get_for_update(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        self.get(table, key, to)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> StoreResult {
        let text = &self.sqlite.texts[table].put;
        let mut statement = self.db.prepare_cached(text).map_err(failed("prepare"))?;
        statement.execute((key, value)).map_err(failed("insert"))?;
        Ok(())
    }
}

impl Session for SqliteSession<'_> {
    fn get(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        Txn { sqlite: self.sqlite, db: &self.db }.get(table, key, to)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> StoreResult {
        loop {
            match (Txn { sqlite: self.sqlite, db: &self.db }).put(table, key, value) {
                Err(StoreError::Again) => {}
                result => return result,
            }
        }
    }

    fn read(&mut self, body: &mut dyn FnMut(&mut dyn Reads) -> StoreResult) -> StoreResult {
        let txn = self.db.transaction().map_err(failed("begin"))?;
        body(&mut Txn { sqlite: self.sqlite, db: &txn })
    }

    fn write(&mut self, body: &mut dyn FnMut(&mut dyn Writes) -> StoreResult) -> StoreResult<u64> {
        let mut again = 0;
        loop {
            let begun = self.db.transaction_with_behavior(TransactionBehavior::Immediate);
            let result = begun.map_err(failed("begin")).and_then(|txn| {
                body(&mut Txn { sqlite: self.sqlite, db: &txn })?;
                txn.commit().map_err(failed("commit"))
            });
            match result {
                Err(StoreError::Again) => again += 1,
                result => return result.map(|()| again),
            }
        }
    }
}

//! A server to a store, which is built in a folder next to its own.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use latchwork_store::{Error, Refusal, ServerFailure, Store, TableInfo};

use super::into_store::{Loader, Merge};
use super::{CopyProgress, CopySummary, Sum, Told, differs, far, raw, scan};
use crate::catalog::all_tables;
use crate::error::server;
use crate::link::{Link, text};
use crate::postgres::{Postgres, PostgresOptions};
use crate::rows::bytes;
use crate::sql::BEGIN_READ;

/// Copies a snapshot of a database on a server into a store: the folder `path`, which does not
/// exist.
///
/// # Errors
///
/// [`Error::Open`] if the folder exists; [`Error::Server`]; those of the store.
pub fn from_server(address: &str, path: &Path, told: &mut Told<'_>) -> Result<CopySummary, Error> {
    if path.exists() {
        let name = path.file_name().unwrap_or_default().to_owned();
        return Err(Error::Open { path: path.to_owned(), why: Refusal::NotEmpty { name } });
    }
    let options = PostgresOptions { connections: 1, ..PostgresOptions::default() };
    let from = Postgres::open_with(address, &options)?;
    let build = beside(path);
    let store = Store::open(&build)?;
    let mut taken = from.pool().take(far())?;
    let summary = taken.connection()?.run(async |link| {
        link.all(&[text(BEGIN_READ)]).await?;
        let tables = all_tables(link).await?;
        let mut copy = FromServer { store: &store, told, progress: CopyProgress::default() };
        let summary = copy.all(link, &tables, &build).await?;
        link.all(&[text("COMMIT")]).await?;
        Ok(summary)
    })?;
    store.sync()?;
    store.close()?;
    let failed = |why: std::io::Error| server(ServerFailure::Other, why.to_string());
    fs::rename(&build, path).map_err(failed)?;
    let around = path.parent().filter(|around| !around.as_os_str().is_empty());
    let around = File::open(around.unwrap_or(Path::new("."))).map_err(failed)?;
    around.sync_all().map_err(failed)?;
    Ok(summary)
}

/// Where a store is built.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".copying");
    PathBuf::from(name)
}

struct FromServer<'c, 't> {
    store: &'c Store,
    told: &'c mut Told<'t>,
    progress: CopyProgress,
}

impl FromServer<'_, '_> {
    async fn all(
        &mut self,
        link: &Link,
        tables: &[TableInfo],
        build: &Path,
    ) -> Result<CopySummary, Error> {
        let names: BTreeSet<_> = tables.iter().map(|table| &table.name).collect();
        let there = self.store.table_infos()?;
        if let Some(other) = there.iter().find(|table| !names.contains(&table.name)) {
            let name = other.name.clone().into();
            return Err(Error::Open { path: build.to_owned(), why: Refusal::NotEmpty { name } });
        }
        let (mut all, mut found, mut sums) = (Sum::default(), 0, Vec::new());
        for table in tables {
            let sum = self.table(link, table, (all.records, all.bytes), &mut found).await?;
            all.records += sum.records;
            all.bytes += sum.bytes;
            all.add_bytes(&sum.checksum.to_le_bytes());
            sums.push(sum);
        }
        self.progress = CopyProgress { verifying: true, ..CopyProgress::default() };
        (self.told)(&self.progress);
        let snapshot = self.store.snapshot()?;
        for (table, wanted) in tables.iter().zip(sums) {
            let mut sum = Sum::default();
            sum.table(table);
            snapshot.scan(&raw(&table.name), .., &mut |key, value| {
                sum.record(key, value);
                Ok(true)
            })?;
            if sum != wanted {
                return Err(differs(&table.name, wanted, sum));
            }
            self.tell(table, (self.progress.records, self.progress.bytes), sum);
        }
        let Sum { records, bytes, checksum } = all;
        Ok(CopySummary { tables: tables.len() as u64, records, bytes, found, checksum })
    }

    fn tell(&mut self, table: &TableInfo, before: (u64, u64), sum: Sum) {
        self.progress.add(table, before, sum);
        (self.told)(&self.progress);
    }

    /// Makes a table of the store as it is on the server, and returns its sum.
    async fn table(
        &mut self,
        link: &Link,
        table: &TableInfo,
        before: (u64, u64),
        found: &mut u64,
    ) -> Result<Sum, Error> {
        let mut sum = Sum::default();
        sum.table(table);
        let (snapshot, of) = (self.store.snapshot()?, raw(&table.name));
        let mut merge = Merge::new(self.store, of, snapshot.range(&of, ..)?);
        let is_there = self.store.table_infos()?.iter().any(|there| there.name == table.name);
        let mut loader = (!is_there).then(|| Loader::start(self.store, table));
        let each = |row: &tokio_postgres::Row| {
            let (key, value) = (bytes(row, 0)?, bytes(row, 1)?);
            let is_written = match &mut loader {
                Some(load) if load.takes(key, value) => load.add(key, value, &mut sum)?,
                other => {
                    other.take().map_or(Ok(()), |load| load.end(&mut sum))?;
                    sum.record(key, value);
                    merge.add(key, value, found)?
                }
            };
            if is_written {
                self.tell(table, before, sum);
            }
            Ok(())
        };
        let streamed = link.stream(scan(&table.name), each).await;
        // An error of the load is the cause of one of the stream.
        loader.take().map_or(Ok(()), |load| load.end(&mut sum))?;
        streamed?;
        merge.end()?;
        // A table that was loaded has no types yet.
        self.store.make_table_of(table)?;
        self.tell(table, before, sum);
        Ok(sum)
    }
}

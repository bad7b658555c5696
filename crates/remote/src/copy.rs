//! Moving: a store to a server, and back.
//!
//! Both directions make the target equal to one snapshot of the source: the records of both are
//! read in order, and what differs is written. Into an empty target all is copied; a copy that was
//! killed continues where it was, with a snapshot of its own, and corrects the records that have
//! changed since.
//! In the end the target is read again, and its counts and checksums are compared with those of the
//! source.
//!
//! No program uses half a copy. On a server the row of the format is marked before the first record
//! is written, and [`Postgres::open`](crate::Postgres::open) refuses a database with the mark. A
//! store is built in the folder `NAME.copying`, which gets its name at the end.

use core::time::Duration;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::SinkExt;
use latchwork_store::{
    Error, Mode, Raw, ReadTxn, Refusal, Rows, ServerFailure, Store, Table, TableInfo, TxnOptions,
};

use crate::calls::checked;
use crate::catalog::add;
use crate::error::{of, server};
use crate::link::{Link, Message, Params, params, text};
use crate::postgres::{Postgres, PostgresOptions};
use crate::range::Range;
use crate::rows::bytes;
use crate::sql::{BEGIN, BEGIN_READ, Sql, tree_of};

/// How far a copy is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyProgress {
    /// Whether the target is read again to compare it.
    pub verifying: bool,
    /// The table.
    pub table: String,
    /// Records of all tables so far, of this pass.
    pub records: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
}

/// The contents of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopySummary {
    /// How many tables.
    pub tables: u64,
    /// How many records.
    pub records: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// How many records existed already: of a copy that was killed.
    pub found: u64,
    /// The CRC32C of the names of all tables, of all keys and values, and of their lengths.
    pub checksum: u32,
}

/// A callback that is called from time to time with the progress of a copy.
type Told<'t> = dyn FnMut(&CopyProgress) + 't;

type Record = (Vec<u8>, Vec<u8>);

/// Counts and a checksum of records in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    records: u64,
    bytes: u64,
    checksum: u32,
}

impl Sum {
    fn add_bytes(&mut self, of: &[u8]) {
        let length = (of.len() as u64).to_le_bytes();
        self.checksum = crc32c::crc32c_append(self.checksum, &length);
        self.checksum = crc32c::crc32c_append(self.checksum, of);
    }

    fn table(&mut self, table: &TableInfo) {
        self.add_bytes(table.name.as_bytes());
    }

    fn record(&mut self, key: &[u8], value: &[u8]) {
        self.records += 1;
        self.bytes += (key.len() + value.len()) as u64;
        self.add_bytes(key);
        self.add_bytes(value);
    }
}

/// Records of the source in order, counted as they are taken.
struct Source<I: Iterator<Item = Result<Record, Error>>> {
    rows: core::iter::Peekable<I>,
}

impl<I: Iterator<Item = Result<Record, Error>>> Source<I> {
    fn key(&mut self) -> Result<Option<&[u8]>, Error> {
        match self.rows.peek() {
            Some(Ok((key, _))) => Ok(Some(key)),
            Some(Err(why)) => Err(why.clone()),
            None => Ok(None),
        }
    }

    fn take(&mut self, sum: &mut Sum) -> Result<Option<Record>, Error> {
        let Some(record) = self.rows.next().transpose()? else { return Ok(None) };
        sum.record(&record.0, &record.1);
        Ok(Some(record))
    }
}

/// A change of the target: the value of a key, or none.
type Change = (Vec<u8>, Option<Vec<u8>>);

/// Appends the changes that make a target's record as it is in the source. Takes all records of the
/// source up to it.
fn changes_to<I: Iterator<Item = Result<Record, Error>>>(
    source: &mut Source<I>,
    (key, value): (&[u8], &[u8]),
    sum: &mut Sum,
    found: &mut u64,
    changes: &mut Vec<Change>,
) -> Result<(), Error> {
    while source.key()?.is_some_and(|next| next < key) {
        changes.extend(source.take(sum)?.map(|(key, value)| (key, Some(value))));
    }
    if source.key()?.is_none_or(|next| next != key) {
        changes.push((key.to_vec(), None));
        return Ok(());
    }
    if let Some((key, wanted)) = source.take(sum)? {
        match wanted == value {
            true => *found += 1,
            false => changes.push((key, Some(wanted))),
        }
    }
    Ok(())
}

/// How many records are written at a time, and bytes.
const RECORDS: usize = 20_000;
const BYTES: usize = 8 << 20;

/// A copy takes as long as it takes.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(365 * 24 * 3600)
}

fn raw(name: &str) -> Table<Raw, Raw> {
    Table::named(name)
}

fn differs(table: &str, source: Sum, target: Sum) -> Error {
    let Sum { records, checksum, .. } = source;
    let (there, other) = (target.records, target.checksum);
    let what = format!(
        "the copy of table {table} differs: it has {there} records with checksum {other:08x}, and \
         the source {records} with {checksum:08x}; copy again"
    );
    server(ServerFailure::Other, what)
}

/// Copies a snapshot of a store into a database on a server. The database has no tables of ours, or
/// those of a copy that was not finished.
///
/// # Errors
///
/// [`Error::TableExists`] if the database has tables already; [`Error::SnapshotTooOld`] if other
/// programs write much during the copy: call it again, it continues; [`Error::Server`].
pub fn to_server(store: &Store, address: &str, told: &mut Told<'_>) -> Result<CopySummary, Error> {
    let options = PostgresOptions { connections: 1, copying: true, ..PostgresOptions::default() };
    let target = Postgres::open_with(address, &options)?;
    let snapshot = store.snapshot()?;
    let tables = store.table_infos()?;
    if let Some(table) = tables.iter().find(|table| table.migrating) {
        return Err(Error::Migrating { table: table.name.clone() });
    }
    let mut taken = target.pool().take(far())?;
    taken.connection()?.run(async |link| {
        begin(link, &tables).await?;
        let mut copy =
            ToServer { link, snapshot: &snapshot, told, progress: CopyProgress::default() };
        let (mut all, mut found, mut sums) = (Sum::default(), 0, Vec::new());
        for table in &tables {
            sums.push(copy.table(table, &mut all, &mut found).await?);
        }
        copy.progress = CopyProgress { verifying: true, ..CopyProgress::default() };
        (copy.told)(&copy.progress);
        for (table, sum) in tables.iter().zip(sums) {
            copy.verify(table, sum).await?;
        }
        let end = "UPDATE latchwork_tables SET value_type = NULL WHERE tree = 0";
        link.all(&[text(end)]).await?;
        let Sum { records, bytes, checksum } = all;
        Ok(CopySummary { tables: tables.len() as u64, records, bytes, found, checksum })
    })
}

/// Marks the database, and gives it the tables of the source and no others.
async fn begin(link: &Link, tables: &[TableInfo]) -> Result<(), Error> {
    let marked = "SELECT tree FROM latchwork_tables WHERE tree = 0 AND value_type IS NOT NULL";
    let messages = link.client().simple_query(marked).await.map_err(|why| of(&why))?;
    let is_marked = messages
        .iter()
        .any(|message| matches!(message, tokio_postgres::SimpleQueryMessage::Row(_)));
    let there = link.tables().await?;
    if let (false, Some(table)) = (is_marked, there.first()) {
        return Err(Error::TableExists { table: table.name.clone() });
    }
    let names: BTreeSet<_> = tables.iter().map(|table| &table.name).collect();
    let numbers: BTreeSet<_> = tables.iter().map(|table| tree_of(&table.name)).collect();
    if numbers.len() != names.len() {
        return Err(server(ServerFailure::Other, "two tables have one number"));
    }
    link.all(&[text(BEGIN)]).await?;
    let mut sends = vec![text("UPDATE latchwork_tables SET value_type = 'copying' WHERE tree = 0")];
    for table in there.iter().filter(|table| !names.contains(&table.name)) {
        let tree = tree_of(&table.name);
        sends.push(Message::Bound(Sql::RemoveFrom, params![tree, Vec::<u8>::new()]));
        sends.push(Message::Text(
            format!("DELETE FROM latchwork_tables WHERE tree = {tree}").into(),
        ));
    }
    for table in tables {
        sends.extend([add(&table.name, table, false), add(&table.name, table, true)]);
    }
    sends.push(text("COMMIT"));
    link.all(&sends).await.map(drop)
}

/// All records of a table, from the first on.
fn scan(name: &str) -> (Sql, Params) {
    Range { from: Vec::new(), to: None }.scan(tree_of(name), false, i64::MAX)
}

struct ToServer<'c, 't> {
    link: &'c Link,
    snapshot: &'c ReadTxn<'static>,
    told: &'c mut Told<'t>,
    progress: CopyProgress,
}

impl ToServer<'_, '_> {
    fn tell(&mut self, table: &TableInfo, sum: Sum, before: (u64, u64)) {
        self.progress.table.clone_from(&table.name);
        (self.progress.records, self.progress.bytes) =
            (before.0 + sum.records, before.1 + sum.bytes);
        (self.told)(&self.progress);
    }

    /// Makes a table of the target as it is in the source.
    async fn table(
        &mut self,
        table: &TableInfo,
        all: &mut Sum,
        found: &mut u64,
    ) -> Result<Sum, Error> {
        let before = (all.records, all.bytes);
        let (mut sum, mut from) = (Sum::default(), Vec::new());
        sum.table(table);
        let rows: Rows<'_, Raw, Raw> = self.snapshot.range(&raw(&table.name), ..)?;
        let mut source = Source { rows: rows.peekable() };
        let tree = tree_of(&table.name);
        // Records of an earlier copy that was killed.
        loop {
            let range = Range { from, to: None };
            let (sql, params) = range.scan(tree, false, RECORDS as i64);
            let answer = self.link.all(&[Message::Bound(sql, params)]).await?;
            let rows = answer.iter().flat_map(|answer| &*answer.rows);
            let (mut changes, mut last) = (Vec::new(), None);
            for row in rows {
                let record = (bytes(row, 0)?, bytes(row, 1)?);
                changes_to(&mut source, record, &mut sum, found, &mut changes)?;
                last = Some(record.0.to_vec());
            }
            self.write(tree, changes).await?;
            self.tell(table, sum, before);
            let Some(last) = last else { break };
            from = crate::range::behind(&last);
        }
        self.rest(tree, &mut source, &mut sum, table, before).await?;
        all.records += sum.records;
        all.bytes += sum.bytes;
        all.add_bytes(&sum.checksum.to_le_bytes());
        Ok(sum)
    }

    /// Writes changes, some at a time.
    async fn write(&self, tree: i64, changes: Vec<Change>) -> Result<(), Error> {
        let mut changes = changes.into_iter().peekable();
        while changes.peek().is_some() {
            let mut sends = Vec::new();
            let mut size = 0;
            while size < BYTES
                && let Some((key, value)) = changes.next()
            {
                size += key.len() + value.as_ref().map_or(0, Vec::len);
                sends.push(match value {
                    Some(value) => Message::Bound(Sql::Put, params![tree, key, value]),
                    None => Message::Bound(Sql::Remove, params![tree, key]),
                });
            }
            sends.push(text("COMMIT"));
            self.link.all(&[text(BEGIN)]).await?;
            self.link.all(&sends).await?;
        }
        Ok(())
    }

    /// Copies what is left of the source: the target has nothing there.
    async fn rest<I: Iterator<Item = Result<Record, Error>>>(
        &mut self,
        tree: i64,
        source: &mut Source<I>,
        sum: &mut Sum,
        table: &TableInfo,
        before: (u64, u64),
    ) -> Result<(), Error> {
        while source.key()?.is_some() {
            let copy = "COPY latchwork_records (tree, key, value) FROM STDIN WITH BINARY";
            let sink = self.link.client().copy_in::<_, Bytes>(copy).await;
            let mut sink = core::pin::pin!(sink.map_err(|why| of(&why))?);
            let mut buffer = BytesMut::with_capacity(PIECE + (PIECE >> 2));
            buffer.put_slice(b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0");
            let mut size = 0;
            while size < 4 * BYTES
                && let Some((key, value)) = source.take(sum)?
            {
                checked(&table.name, &value)?;
                size += key.len() + value.len();
                buffer.put_i16(3);
                buffer.put_i32(8);
                buffer.put_i64(tree);
                for part in [key, value] {
                    buffer.put_i32(part.len() as i32);
                    buffer.put_slice(&part);
                }
                if buffer.len() >= PIECE {
                    let piece = buffer.split().freeze();
                    sink.send(piece).await.map_err(|why| of(&why))?;
                }
            }
            buffer.put_i16(-1);
            sink.send(buffer.split().freeze()).await.map_err(|why| of(&why))?;
            sink.finish().await.map_err(|why| of(&why))?;
            self.tell(table, *sum, before);
        }
        Ok(())
    }

    /// Reads a table of the target, and compares it with what was copied.
    async fn verify(&mut self, table: &TableInfo, wanted: Sum) -> Result<(), Error> {
        let mut sum = Sum::default();
        sum.table(table);
        let add = |row: &tokio_postgres::Row| {
            sum.record(bytes(row, 0)?, bytes(row, 1)?);
            Ok(())
        };
        self.link.stream(scan(&table.name), add).await?;
        if sum != wanted {
            return Err(differs(&table.name, wanted, sum));
        }
        let before = (self.progress.records, self.progress.bytes);
        self.tell(table, sum, before);
        Ok(())
    }
}

/// How many bytes of a `COPY` are sent at a time.
const PIECE: usize = 256 << 10;

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
        let tables = link.tables().await?;
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
            self.store.make_table_of(table)?;
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
        self.progress.table.clone_from(&table.name);
        (self.progress.records, self.progress.bytes) =
            (before.0 + sum.records, before.1 + sum.bytes);
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
        let of = raw(&table.name);
        let snapshot = self.store.snapshot()?;
        // Of a copy before this one.
        let there: Rows<'_, Raw, Raw> = snapshot.range(&of, ..)?;
        let mut there = there.peekable();
        let (mut sum, mut changes, mut size) = (Sum::default(), Vec::new(), 0);
        sum.table(table);
        let each = |row: &tokio_postgres::Row| {
            let (key, value) = (bytes(row, 0)?, bytes(row, 1)?);
            sum.record(key, value);
            while let Some(Ok((old, _))) = there.peek()
                && &old[..] < key
            {
                changes.push((old.clone(), None));
                there.next();
            }
            let old = there.next_if(|old| matches!(old, Ok((old, _)) if old == key));
            match old.transpose()? {
                Some((_, old)) if old == value => *found += 1,
                _ => {
                    size += key.len() + value.len();
                    changes.push((key.to_vec(), Some(value.to_vec())));
                }
            }
            if changes.len() >= STORE_RECORDS || size >= STORE_BYTES {
                self.write(&of, &mut changes)?;
                size = 0;
                self.tell(table, before, sum);
            }
            Ok(())
        };
        link.stream(scan(&table.name), each).await?;
        for old in there {
            changes.push((old?.0, None));
        }
        self.write(&of, &mut changes)?;
        self.tell(table, before, sum);
        Ok(sum)
    }

    fn write(&self, of: &Table<Raw, Raw>, changes: &mut Vec<Change>) -> Result<(), Error> {
        let options = TxnOptions { mode: Some(Mode::None), label: "copy", ..TxnOptions::default() };
        self.store.write_with(&options, |tx| {
            changes.iter().try_for_each(|(key, value)| match value {
                Some(value) => tx.put(of, key, value),
                None => tx.remove(of, key).map(drop),
            })
        })?;
        changes.clear();
        Ok(())
    }
}

/// How many records a transaction of the store has, and bytes.
const STORE_RECORDS: usize = 2000;
const STORE_BYTES: usize = 1 << 20;

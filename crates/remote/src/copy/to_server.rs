//! A store to a server: differing records are written, and missing tables are copied in bulk.

use std::collections::BTreeSet;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::SinkExt;
use latchwork_store::{Error, Raw, ReadTxn, Rows, ServerFailure, Store, TableInfo};

use super::{Change, CopyProgress, CopySummary, PIECE, Record, Sum, Told, differs, far, raw, scan};
use crate::calls::checked;
use crate::catalog::{add, all_tables};
use crate::error::{commit_unknown, leaves_commit_unknown, of, server};
use crate::link::{Answer, Link, Message, params, text};
use crate::postgres::{Postgres, PostgresOptions};
use crate::range::Range;
use crate::rows::{bytes, most_after};
use crate::sql::{BEGIN, Sql, tree_of};

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

/// How many bytes are written at a time.
const BYTES: usize = 8 << 20;

/// Copies a snapshot of a store into a database on a server. The database has no tables of ours, or
/// those of a copy that was not finished.
///
/// # Errors
///
/// [`Error::TableExists`] if the database has tables already; [`Error::SnapshotTooOld`] if other
/// programs write much during the copy: call it again, it continues; [`Error::Server`];
/// [`Error::CommitUnknown`] if the last answer was lost: the copy is complete if the database can
/// be opened.
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
        ended(link.exchange(&[text(end)]).await)?;
        let Sum { records, bytes, checksum } = all;
        Ok(CopySummary { tables: tables.len() as u64, records, bytes, found, checksum })
    })
}

/// Whether the mark is removed, which makes the copy complete.
fn ended(answers: Vec<Result<Answer, tokio_postgres::Error>>) -> Result<(), Error> {
    answers.into_iter().try_for_each(|answer| match answer {
        Err(why) if leaves_commit_unknown(&why) => Err(commit_unknown(of(&why))),
        other => other.map(drop).map_err(|why| of(&why)),
    })
}

/// Marks the database, and gives it the tables of the source and no others.
async fn begin(link: &Link, tables: &[TableInfo]) -> Result<(), Error> {
    let marked = "SELECT tree FROM latchwork_tables WHERE tree = 0 AND value_type IS NOT NULL";
    let messages = link.client().simple_query(marked).await.map_err(|why| of(&why))?;
    let is_marked = messages
        .iter()
        .any(|message| matches!(message, tokio_postgres::SimpleQueryMessage::Row(_)));
    let there = all_tables(link).await?;
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

struct ToServer<'c, 't> {
    link: &'c Link,
    snapshot: &'c ReadTxn<'static>,
    told: &'c mut Told<'t>,
    progress: CopyProgress,
}

impl ToServer<'_, '_> {
    fn tell(&mut self, table: &TableInfo, sum: Sum, before: (u64, u64)) {
        self.progress.add(table, before, sum);
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
        let (mut sum, mut from, mut limit) = (Sum::default(), Vec::new(), 1);
        sum.table(table);
        let rows: Rows<'_, Raw, Raw> = self.snapshot.range(&raw(&table.name), ..)?;
        let mut source = Source { rows: rows.peekable() };
        let tree = tree_of(&table.name);
        // Records of an earlier copy that was killed.
        loop {
            let range = Range { from, to: None };
            let (sql, params) = range.scan(tree, false, limit as i64);
            let mut answers = self.link.all(&[Message::Bound(sql, params)]).await?;
            let answer = answers.pop().unwrap_or_default();
            limit = (limit * 4).min(most_after(&answer));
            let (mut changes, mut last) = (Vec::new(), None);
            for row in answer.rows.iter() {
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

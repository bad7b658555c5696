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

mod from_server;
mod into_store;
mod to_server;

use core::time::Duration;
use std::time::Instant;

use bytes::{BufMut, BytesMut};
use latchwork_store::{Error, Raw, ServerFailure, Table, TableInfo};

pub use self::from_server::from_server;
pub use self::to_server::to_server;
use crate::error::server;
use crate::link::Params;
use crate::range::Range;
use crate::sql::{Sql, tree_of};

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

impl CopyProgress {
    /// Notes what was done of a table, behind the records and bytes of those before it.
    pub(crate) fn add(&mut self, table: &TableInfo, before: (u64, u64), sum: Sum) {
        self.table.clone_from(&table.name);
        (self.records, self.bytes) = (before.0 + sum.records, before.1 + sum.bytes);
    }
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
pub(crate) type Told<'t> = dyn FnMut(&CopyProgress) + 't;

pub(crate) type Record = (Vec<u8>, Vec<u8>);

/// Counts and a checksum of records in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    pub(crate) checksum: u32,
}

impl Sum {
    pub(crate) fn add_bytes(&mut self, of: &[u8]) {
        let length = (of.len() as u64).to_le_bytes();
        self.checksum = crc32c::crc32c_append(self.checksum, &length);
        self.checksum = crc32c::crc32c_append(self.checksum, of);
    }

    pub(crate) fn table(&mut self, table: &TableInfo) {
        self.add_bytes(table.name.as_bytes());
    }

    pub(crate) fn record(&mut self, key: &[u8], value: &[u8]) {
        self.count(key, value);
        self.add_bytes(key);
        self.add_bytes(value);
    }

    /// Counts a record whose bytes are [framed](frame) with others.
    pub(crate) fn count(&mut self, key: &[u8], value: &[u8]) {
        self.records += 1;
        self.bytes += (key.len() + value.len()) as u64;
    }

    /// Adds records that were [framed](frame) to the checksum, many at once.
    pub(crate) fn add_framed(&mut self, records: &[u8]) {
        self.checksum = crc32c::crc32c_append(self.checksum, records);
    }
}

/// Appends a part of a record as the checksum counts it: behind its length.
pub(crate) fn frame(part: &[u8], to: &mut BytesMut) {
    to.put_u64_le(part.len() as u64);
    to.put_slice(part);
}

/// A change of the target: the value of a key, or none.
pub(crate) type Change = (Vec<u8>, Option<Vec<u8>>);

pub(crate) fn raw(name: &str) -> Table<Raw, Raw> {
    Table::named(name)
}

pub(crate) fn differs(table: &str, source: Sum, target: Sum) -> Error {
    let Sum { records, checksum, .. } = source;
    let (there, other) = (target.records, target.checksum);
    let what = format!(
        "the copy of table {table} differs: it has {there} records with checksum {other:08x}, and \
         the source {records} with {checksum:08x}; copy again"
    );
    server(ServerFailure::Other, what)
}

/// All records of a table, from the first on.
pub(crate) fn scan(name: &str) -> (Sql, Params) {
    Range { from: Vec::new(), to: None }.scan(tree_of(name), false, i64::MAX)
}

/// A copy takes as long as it takes.
pub(crate) fn far() -> Instant {
    Instant::now() + Duration::from_secs(365 * 24 * 3600)
}

/// How many bytes are sent at a time.
pub(crate) const PIECE: usize = 256 << 10;

//! Rows of an answer as records of a table.

use core::error;

use latchwork_store::{Batch, Error, Header, Key, Record, Row as StoreRow, Table, Value};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};

use crate::error::of;
use crate::link::Answer;
use crate::range::behind;

/// A column of bytes.
pub(crate) fn bytes(row: &Row, at: usize) -> Result<&[u8], Error> {
    row.try_get(at).map_err(|why| of(&why))
}

/// A cell as the server has sent it, of any type; none if it is null.
pub(crate) fn cell(row: &Row, at: usize) -> Result<Option<&[u8]>, Error> {
    let cell = row.try_get::<_, Option<Cell<'_>>>(at).map_err(|why| of(&why))?;
    Ok(cell.map(|Cell(bytes)| bytes))
}

/// The bytes of a cell of any type.
struct Cell<'r>(&'r [u8]);

impl<'r> FromSql<'r> for Cell<'r> {
    fn from_sql(_: &Type, bytes: &'r [u8]) -> Result<Self, Box<dyn error::Error + Sync + Send>> {
        Ok(Self(bytes))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// The value of the only row, if there is one.
pub(crate) fn value<K: Key, V: Value>(
    table: &Table<K, V>,
    answer: &Answer,
) -> Result<Option<V::Owned>, Error> {
    let row = answer.rows.first();
    row.map(|row| table.value_of(bytes(row, 0)?)).transpose()
}

/// The record of the only row, if there is one.
pub(crate) fn record<K: Key, V: Value>(
    table: &Table<K, V>,
    answer: &Answer,
) -> Result<Option<Record<K, V>>, Error> {
    record_at(table, answer, 0)
}

/// The record of a row, if there is one.
pub(crate) fn record_at<K: Key, V: Value>(
    table: &Table<K, V>,
    answer: &Answer,
    at: usize,
) -> Result<Option<Record<K, V>>, Error> {
    let row = answer.rows.get(at);
    row.map(|row| Ok((table.key_of(bytes(row, 0)?)?, table.value_of(bytes(row, 1)?)?))).transpose()
}

/// The values of these keys, in their order.
pub(crate) fn values_of<K: Key, V: Value>(
    table: &Table<K, V>,
    keys: &[Vec<u8>],
    answer: &Answer,
) -> Result<Vec<Option<V::Owned>>, Error> {
    // No engine promises an order, but each keeps it: the row of a key follows that of the key
    // before.
    let mut rows = answer.rows.iter().cycle();
    let of = |key: &Vec<u8>| {
        for row in rows.by_ref().take(answer.rows.len()) {
            if bytes(row, 0)? == key {
                return cell(row, 1)?.map(|value| table.value_of(value)).transpose();
            }
        }
        Ok(None)
    };
    keys.iter().map(of).collect()
}

/// The number in the only row.
pub(crate) fn number(answer: &Answer) -> Result<u64, Error> {
    let number = answer.rows.first().map_or(Ok(0), |row| row.try_get::<_, i64>(0));
    Ok(number.map_err(|why| of(&why))?.unsigned_abs())
}

/// Puts the records of an answer into a batch.
pub(crate) fn fill(batch: &mut Batch, answer: &Answer) -> Result<(), Error> {
    batch.clear();
    for row in answer.rows.iter() {
        let (key, value) = (bytes(row, 0)?, bytes(row, 1)?);
        batch.push(StoreRow { key, value, header: Header::NONE, ghost: false });
    }
    Ok(())
}

/// How many records of a range are read at a time at most, and bytes.
const MOST: usize = 16 << 10;
const MOST_BYTES: usize = 8 << 20;

/// How many records to read next at most: as long as those of an answer, they have not too many
/// bytes.
pub(crate) fn most_after(answer: &Answer) -> usize {
    let bytes = answer.rows.iter().map(Row::raw_size_bytes).sum::<usize>();
    (MOST_BYTES.saturating_mul(answer.rows.len()) / bytes.max(1)).clamp(1, MOST)
}

/// Where the rest of a range begins, or ends if the range is read backwards; None if the limit has
/// cut off nothing.
pub(crate) fn next_of(answer: &Answer, back: bool, limit: usize) -> Result<Option<Vec<u8>>, Error> {
    let Some(last) = answer.rows.last().filter(|_| answer.rows.len() == limit) else {
        return Ok(None);
    };
    let last = bytes(last, 0)?;
    Ok(Some(if back { last.to_vec() } else { behind(last) }))
}

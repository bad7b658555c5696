//! Rows of an answer as records of a table.

use latchwork_store::{Batch, Error, Header, Key, Record, Row as StoreRow, Table, Value};
use tokio_postgres::Row;

use crate::error::of;
use crate::link::Answer;

/// A column of bytes.
pub(crate) fn bytes(row: &Row, at: usize) -> Result<&[u8], Error> {
    row.try_get(at).map_err(|why| of(&why))
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
    let row = answer.rows.first();
    row.map(|row| Ok((table.key_of(bytes(row, 0)?)?, table.value_of(bytes(row, 1)?)?))).transpose()
}

/// The values of these keys, in their order.
pub(crate) fn values_of<K: Key, V: Value>(
    table: &Table<K, V>,
    keys: &[Vec<u8>],
    answer: &Answer,
) -> Result<Vec<Option<V::Owned>>, Error> {
    let mut found = std::collections::HashMap::new();
    for row in &answer.rows {
        found.insert(bytes(row, 0)?, bytes(row, 1)?);
    }
    let of = |key: &Vec<u8>| found.get(&key[..]).map(|value| table.value_of(value)).transpose();
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
    for row in &answer.rows {
        let (key, value) = (bytes(row, 0)?, bytes(row, 1)?);
        batch.push(StoreRow { key, value, header: Header::NONE, ghost: false });
    }
    Ok(())
}

//! Reading at a position of the log: no lock, no wait, no retry.

use core::ops::{Bound, RangeBounds};

use crate::engine::{Engine, Found};
use crate::seen::View;
use crate::{Error, Key, Table, Value};

/// What a scan calls with each key and value; it goes on while that returns `true`.
pub type EachRecord<'e> = dyn FnMut(&[u8], &[u8]) -> Result<bool, Error> + 'e;

/// The same, with the newest version of each key.
pub(crate) type EachVersion<'e> = dyn FnMut(&[u8], Found) -> Result<bool, Error> + 'e;

/// The state of all tables at one position of the log, which is that between two transactions of a
/// serial order.
///
/// It holds no lock. It keeps the log's history from its position on; dropping it lets that go. If
/// its process dies, the slot's sweep does the same.
pub struct Snapshot<'e, E: Engine> {
    engine: &'e E,
    slot: u16,
    view: View,
}

impl<'e, E: Engine> Snapshot<'e, E> {
    /// A snapshot of now, of the thread that has this slot. A slot has one at a time.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`].
    pub fn new(engine: &'e E, slot: u16) -> Result<Self, Error> {
        let (at, low) = engine.remember(slot)?;
        Ok(Self { engine, slot, view: View { at, low } })
    }

    /// Its position in the log.
    pub fn at(&self) -> u64 {
        self.view.at
    }

    /// Reads a record's bytes. O(log n), and one read of the log for each version that is newer.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotTooOld`], [`Error::Engine`].
    pub fn get_raw(&self, tree: u32, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let newest = self.engine.newest(tree, key)?;
        Ok(self.version(tree, key, newest)?.value)
    }

    /// Reads a value. As [`get_raw`](Self::get_raw).
    ///
    /// # Errors
    ///
    /// As there; [`Error::KeyTooLong`], [`Error::Value`].
    pub fn get<K: Key, V: Value>(
        &self,
        tree: u32,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        let value = self.get_raw(tree, &table.key(&key)?)?;
        value.map(|bytes| table.value_of(&bytes)).transpose()
    }

    /// From a version back to the one that this snapshot sees.
    fn version(&self, tree: u32, key: &[u8], newest: Found) -> Result<Found, Error> {
        let mut version = newest;
        while !self.view.sees(version.stamp, self.engine) {
            version = self.engine.before(tree, key, version.stamp)?;
        }
        Ok(version)
    }

    /// Some records of a range, the first ones or the last, and where to go on.
    #[allow(clippy::type_complexity, reason = "it is taken apart at once")]
    pub(crate) fn some(
        &self,
        tree: u32,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        back: bool,
    ) -> Result<(Vec<(Vec<u8>, Vec<u8>)>, Option<Bound<Vec<u8>>>), Error> {
        let start = if back { range.1 } else { range.0 };
        let batch = self.engine.scan(tree, start, back)?;
        let mut rows = Vec::with_capacity(batch.rows.len());
        for (key, newest) in batch.rows {
            if !range.contains(&&key[..]) {
                return Ok((rows, None));
            }
            if let Some(value) = self.version(tree, &key, newest)?.value {
                rows.push((key, value));
            }
        }
        Ok((rows, batch.next))
    }

    /// Calls `each` for the records of a range in order, or backwards, until it returns `false`.
    /// O(log n) for some records at a time.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotTooOld`], [`Error::Engine`]; what `each` returns.
    pub fn scan_raw<'k>(
        &self,
        tree: u32,
        range: impl RangeBounds<&'k [u8]>,
        back: bool,
        each: &mut EachRecord<'_>,
    ) -> Result<(), Error> {
        walk(self.engine, tree, range, back, &mut |key, newest| match self
            .version(tree, key, newest)?
            .value
        {
            Some(value) => each(key, &value),
            None => Ok(true),
        })
    }
}

impl<E: Engine> Drop for Snapshot<'_, E> {
    fn drop(&mut self) {
        self.engine.forget(self.slot);
    }
}

/// Calls `each` for all records of a range, the removed ones too, until it returns `false`.
pub(crate) fn walk<'k, E: Engine>(
    engine: &E,
    tree: u32,
    range: impl RangeBounds<&'k [u8]>,
    back: bool,
    each: &mut EachVersion<'_>,
) -> Result<(), Error> {
    let start = if back { range.end_bound() } else { range.start_bound() };
    let mut next = Some(start.map(|key| key.to_vec()));
    while let Some(bound) = next {
        let batch = engine.scan(tree, bound.as_ref().map(Vec::as_slice), back)?;
        for (key, found) in batch.rows {
            if !range.contains(&&key[..]) || !each(&key, found)? {
                return Ok(());
            }
        }
        next = batch.next;
    }
    Ok(())
}

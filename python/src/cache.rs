//! The calls of a cache that are made most, without the interpreter while they have locks.
//!
//! An entry is a header and a body: `latchwork/cache/record.py` has the picture. `set` and `add`
//! change an entry that stays in its places in all indexes and counts for the same size: one record
//! of the log, which is the commit as well. `insert` adds an entry, or changes the size of one.
//! `delete` removes an entry. Both handle only entries that have neither a tag nor a long body.
//! Each call reports if it does not handle the case, and has then done nothing: `work.py` does all
//! cases.

use std::time::Duration;

use latchwork_store::{Error, Key, Level, TxnOptions, WriteTxn};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::cbor;
use crate::mapping::PyTable;
use crate::process::{go_on, wait};
use crate::table::{Def, change_bytes};
use crate::transaction::duration;

/// `HEAD` of `record.py`: the places of its parts.
const FLAGS: usize = 0;
const ROW: usize = 1;
const EXPIRE: usize = 9;
const USED: usize = 17;
const READS: usize = 25;
const INDEXED: usize = 29;
const RANK: usize = 37;
const REGION: usize = 45;
const UNITS: usize = 46;
pub(crate) const HEAD: usize = 50;

/// Regions of the eviction index.
const FRESH: u8 = 0;
const OUTSIDE: u8 = 255;
/// The unit of the counts, in bytes.
const UNIT: i64 = 256;
/// The counts of a process: their offsets from the first of its keys.
const COUNT: i64 = 0;
const SIZE: i64 = 1;

const HAS_TAG: u8 = 1;
const LONG: u8 = 2;
const TOUCHED: u8 = 4;
/// The policy that compares numbers of reads.
const LEAST_FREQUENTLY_USED: u8 = 3;
/// How the body of an integer begins: as itself, an int.
const INTEGER: [u8; 2] = [1, b'i'];

/// The header of an entry.
struct Head<'r>(&'r mut [u8; HEAD]);

impl Head<'_> {
    fn part<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|place| self.0[at + place])
    }

    fn float(&self, at: usize) -> f64 {
        f64::from_le_bytes(self.part(at))
    }

    fn number(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.part(at))
    }

    fn set<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        self.0[at..at + N].copy_from_slice(&bytes);
    }

    fn has(&self, flags: u8) -> bool {
        self.0[FLAGS] & flags != 0
    }

    /// Whether its place in the eviction index stays a lower bound, when it is used now.
    fn stays(&self, now: f64) -> bool {
        let least = if self.0[REGION] == LEAST_FREQUENTLY_USED { 0.0 } else { now };
        self.float(RANK) <= least
    }

    fn touch(&mut self, used: f64, reads: u32) {
        self.0[FLAGS] |= TOUCHED;
        self.set(USED, used.to_le_bytes());
        self.set(READS, reads.to_le_bytes());
    }
}

/// The header and the body of a record.
fn parts(record: &mut [u8]) -> Option<(Head<'_>, &mut [u8])> {
    let (head, body) = record.split_first_chunk_mut()?;
    Some((Head(head), body))
}

/// Whether an entry that needs so many units may keep the units that are counted for it.
fn fits(units: u32, counted: u32) -> bool {
    units <= counted && u64::from(counted) <= 4 * u64::from(units)
}

/// Replaces the body of a record, if the entry stays in its places in all indexes.
fn replace(record: &mut Vec<u8>, body: &[u8], now: f64, at: f64) -> Option<()> {
    let (mut head, _) = parts(record)?;
    if head.has(HAS_TAG | LONG) || at < head.float(INDEXED) || !head.stays(now) {
        return None;
    }
    head.set(EXPIRE, at.to_le_bytes());
    head.touch(now, 0);
    record.truncate(HEAD);
    record.extend_from_slice(body);
    Some(())
}

/// Stores a body that counts for `units` again. Returns whether it did.
#[pyfunction]
#[pyo3(name = "_cache_set")]
pub(crate) fn set(
    py: Python<'_>,
    table: Bound<'_, PyTable>,
    key: Bound<'_, PyAny>,
    body: Bound<'_, PyBytes>,
    how: (f64, f64, u32, f64),
) -> PyResult<bool> {
    let (now, at, units, time) = how;
    let (body, table) = (body.as_bytes(), table.get());
    let change = |record: &mut Vec<u8>| {
        let (head, _) = parts(record)?;
        if !fits(units, head.number(UNITS)) {
            return None;
        }
        replace(record, body, now, at)
    };
    let done = change_bytes(py, &table.db, &table.def, &key, duration(time)?, change)?;
    Ok(done.is_some())
}

/// Adds to an integer. Returns the sum.
#[pyfunction]
#[pyo3(name = "_cache_add")]
pub(crate) fn add(
    py: Python<'_>,
    table: Bound<'_, PyTable>,
    key: Bound<'_, PyAny>,
    delta: i64,
    how: (f64, bool, f64),
) -> PyResult<Option<i64>> {
    let (now, counts, time) = how;
    let table = table.get();
    let change = |record: &mut Vec<u8>| {
        let (mut head, body) = parts(record)?;
        let value = body.strip_prefix(&INTEGER).and_then(|body| body.try_into().ok())?;
        let sum = i64::from_le_bytes(value).checked_add(delta)?;
        if head.has(HAS_TAG | LONG) || head.float(EXPIRE) <= now {
            return None;
        }
        let reads = head.number(READS).saturating_add(counts.into());
        head.touch(now.max(head.float(USED)), reads);
        body[INTEGER.len()..].copy_from_slice(&sum.to_le_bytes());
        Some(sum)
    };
    change_bytes(py, &table.db, &table.def, &key, duration(time)?, change)
}

type Table<'py> = Bound<'py, PyTable>;

/// The tables that an entry without tag and long body has rows in.
#[derive(FromPyObject)]
pub(crate) struct Tables<'py>(Table<'py>, Table<'py>, Table<'py>, Table<'py>, Table<'py>);

struct Defs<'t> {
    entries: &'t Def,
    order: &'t Def,
    rank: &'t Def,
    expiry: &'t Def,
    counts: &'t Def,
}

impl Tables<'_> {
    fn defs(&self) -> Defs<'_> {
        Defs {
            entries: &self.0.get().def,
            order: &self.1.get().def,
            rank: &self.2.get().def,
            expiry: &self.3.get().def,
            counts: &self.4.get().def,
        }
    }

    /// Runs work in a transaction until it commits.
    fn write<R: Send>(
        &self,
        py: Python<'_>,
        time: f64,
        mut work: impl FnMut(&mut WriteTxn<'_, '_>) -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        let table = self.0.get();
        let (store, time): (_, Duration) = (table.db.get().store(py)?, duration(time)?);
        let (mode, level) = (table.def.mode, Level::ReadCommitted);
        let patience = TxnOptions { mode, time, level, ..TxnOptions::default() };
        let run = || {
            store.write_with(&patience, |tx| {
                go_on()?;
                work(tx)
            })
        };
        wait(py, run).map(|done| done.value)
    }
}

/// The bytes of a key of numbers.
fn key_of(place: Option<f64>, region: Option<u8>, row: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(24);
    if let Some(region) = region {
        i64::append(&region.into(), false, &mut key);
    }
    if let Some(place) = place {
        f64::append(&place, false, &mut key);
    }
    u64::append(&row, false, &mut key);
    key
}

impl Defs<'_> {
    /// Adds to what the process counts. It comes last: threads of a process share these records.
    fn count(
        &self,
        tx: &mut WriteTxn<'_, '_>,
        stripe: i64,
        (entries, units): (i64, i64),
    ) -> Result<(), Error> {
        let changes = [(COUNT, entries), (SIZE, UNIT * units)];
        for (what, more) in changes.into_iter().filter(|(_, more)| *more != 0) {
            let (mut key, table) = (Vec::with_capacity(10), &self.counts.table);
            i64::append(&(stripe + what), false, &mut key);
            let read = |bytes: &[u8]| bytes.first_chunk().map_or(0, |old| i64::from_le_bytes(*old));
            let old = tx.get_for_update_with(table, &key, read)?.unwrap_or(0);
            tx.put(table, &key, &(old + more).to_le_bytes())?;
        }
        Ok(())
    }
}

/// Adds an entry for a key without an entry, or replaces the body if the entry stays in its places
/// in all indexes. Returns how many more units the cache counts; None if it is no such case.
#[pyfunction]
#[pyo3(name = "_cache_insert")]
pub(crate) fn insert(
    py: Python<'_>,
    tables: Tables<'_>,
    key: Bound<'_, PyAny>,
    body: Bound<'_, PyBytes>,
    how: (f64, f64, u32, f64),
    place: (u64, bool, i64),
) -> PyResult<Option<i64>> {
    let ((now, at, units, time), (row, ranked, stripe)) = (how, place);
    let (defs, body) = (tables.defs(), body.as_bytes());
    let (entry, mut named) = (defs.entries.key(&key)?, Vec::new());
    cbor::encode(&key, &mut named)?;
    let mut record = vec![0; HEAD];
    let region = if ranked { FRESH } else { OUTSIDE };
    if let Some((mut head, _)) = parts(&mut record) {
        head.set(ROW, row.to_le_bytes());
        head.set(EXPIRE, at.to_le_bytes());
        head.set(USED, now.to_le_bytes());
        head.set(INDEXED, at.to_le_bytes());
        head.set(RANK, 0.0_f64.to_le_bytes());
        head.set(REGION, [region]);
        head.set(UNITS, units.to_le_bytes());
    }
    record.extend_from_slice(body);
    let mut old = Vec::new();
    tables.write(py, time, |tx| {
        let read = |bytes: &[u8]| bytes.clone_into(&mut old);
        if tx.get_for_update_with(&defs.entries.table, &entry, read)?.is_some() {
            let Some(()) = replace(&mut old, body, now, at) else { return Ok(None) };
            let Some((mut head, _)) = parts(&mut old) else { return Ok(None) };
            let counted = head.number(UNITS);
            let counts = if fits(units, counted) { counted } else { units };
            head.set(UNITS, counts.to_le_bytes());
            tx.put(&defs.entries.table, &entry, &old)?;
            let more = i64::from(counts) - i64::from(counted);
            return defs.count(tx, stripe, (0, more)).map(|()| Some(more));
        }
        let order = key_of(None, None, row);
        if tx.get_for_update_with(&defs.order.table, &order, |_| ())?.is_some() {
            return Ok(None);
        }
        tx.put(&defs.order.table, &order, &named)?;
        tx.put(&defs.entries.table, &entry, &record)?;
        if ranked {
            tx.put(&defs.rank.table, &key_of(Some(0.0), Some(FRESH), row), &named)?;
        }
        if at != f64::INFINITY {
            tx.put(&defs.expiry.table, &key_of(Some(at), None, row), &named)?;
        }
        let units = i64::from(units);
        defs.count(tx, stripe, (1, units)).map(|()| Some(units))
    })
}

/// Removes an entry that has not expired. Returns the units that it counted for, zero if there is
/// no such entry, and None if the entry has a tag or a long body.
#[pyfunction]
#[pyo3(name = "_cache_delete")]
pub(crate) fn delete(
    py: Python<'_>,
    tables: Tables<'_>,
    key: Bound<'_, PyAny>,
    how: (f64, i64, f64),
) -> PyResult<Option<u32>> {
    let (now, stripe, time) = how;
    let defs = tables.defs();
    let entry = defs.entries.key(&key)?;
    tables.write(py, time, |tx| {
        let read = |bytes: &[u8]| bytes.first_chunk::<HEAD>().copied();
        let found = tx.get_for_update_with(&defs.entries.table, &entry, read)?;
        let Some(found) = found else { return Ok(Some(0)) };
        let Some(mut found) = found else { return Ok(None) };
        let head = Head(&mut found);
        if head.has(HAS_TAG | LONG) {
            return Ok(None);
        }
        if head.float(EXPIRE) <= now {
            return Ok(Some(0));
        }
        let (row, region) = (u64::from_le_bytes(head.part(ROW)), head.0[REGION]);
        tx.remove(&defs.entries.table, &entry)?;
        tx.remove(&defs.order.table, &key_of(None, None, row))?;
        if region != OUTSIDE {
            let key = key_of(Some(head.float(RANK)), Some(region), row);
            tx.remove(&defs.rank.table, &key)?;
        }
        if head.float(INDEXED) != f64::INFINITY {
            tx.remove(&defs.expiry.table, &key_of(Some(head.float(INDEXED)), None, row))?;
        }
        let units = head.number(UNITS);
        defs.count(tx, stripe, (-1, -i64::from(units))).map(|()| Some(units))
    })
}

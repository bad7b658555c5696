//! The definition of a table, and the operations on it.

use std::cell::Cell;
use std::ops::Bound as End;
use std::time::Duration;

use latchwork_store::{Error, Key, Level, Mode, Raw, Table, TxnOptions, WriteTxn};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::errors::{missing, raise, type_error, value_error};
use crate::keys;
use crate::process::{go_on, wait};
use crate::snapshot::PySnapshot;
use crate::store::Db;
use crate::transaction::{PyTransaction, run};
use crate::types::Kind;
use crate::values::{self, Codec, Refusal};

/// A table: its name, its types, and how its commits wait.
pub(crate) struct Def {
    pub(crate) table: Table<Raw, Raw>,
    pub(crate) keys: Kind,
    pub(crate) key_type: String,
    pub(crate) values: Codec,
    pub(crate) value_type: String,
    pub(crate) mode: Option<Mode>,
}

/// The bounds of a range, as encoded keys.
pub(crate) type Range = (End<Vec<u8>>, End<Vec<u8>>);

/// Where a table is read or written.
#[derive(Clone, Copy)]
pub(crate) enum At<'a> {
    /// Each call is a transaction, or a snapshot.
    Store(&'a Py<Db>),
    Transaction(&'a Py<PyTransaction>),
    Snapshot(&'a Py<PySnapshot>),
}

pub(crate) type Object<'py> = Bound<'py, PyAny>;
pub(crate) type Pair<'py> = (Object<'py>, Object<'py>);
pub(crate) type Bytes = (Vec<u8>, Vec<u8>);

pub(crate) fn slices(range: &Range) -> (End<&[u8]>, End<&[u8]>) {
    (range.0.as_ref().map(Vec::as_slice), range.1.as_ref().map(Vec::as_slice))
}

impl Def {
    #[inline]
    pub(crate) fn key(&self, key: &Object<'_>) -> PyResult<Vec<u8>> {
        let mut to = Vec::with_capacity(64);
        keys::encode(&self.keys, key, &mut to)?;
        Ok(to)
    }

    /// Calls `work` with the encoded key, in memory that the thread reuses.
    #[inline]
    pub(crate) fn with_key<R>(
        &self,
        key: &Object<'_>,
        work: impl FnOnce(&[u8]) -> PyResult<R>,
    ) -> PyResult<R> {
        thread_local! {
            static BYTES: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
        }
        // A call inside of this one, by a codec, finds none, and makes its own.
        let mut bytes = BYTES.take();
        bytes.clear();
        let done = keys::encode(&self.keys, key, &mut bytes).and_then(|()| work(&bytes));
        if bytes.capacity() <= 4096 {
            BYTES.set(bytes);
        }
        done
    }

    /// The integer key behind another one.
    fn after(&self, key: i64) -> Result<i64, Refusal> {
        let most = match self.keys {
            Kind::Integer { signed, bits } => match bits - u32::from(signed) {
                63.. => i64::MAX,
                bits => (1 << bits) - 1,
            },
            _ => i64::MAX,
        };
        let next = key.checked_add(1).filter(|next| *next <= most);
        let text = "`append` finds no next key: the last key is the largest int that it writes";
        next.ok_or(Refusal::Overflow(text))
    }

    /// Writes a value behind the last record, under the next integer. With `alone` that is all that
    /// the transaction does: then it waits for no other one, and passes over keys that others have
    /// locked.
    pub(crate) fn append(
        &self,
        tx: &mut WriteTxn<'_, '_>,
        value: &[u8],
        alone: bool,
    ) -> Result<Result<i64, Refusal>, Error> {
        let last = match alone {
            true => tx.last_key(&self.table)?,
            false => tx.last(&self.table)?.map(|(key, _)| key),
        };
        let mut next = match last.map(|key| <i64 as Key>::decode(&key)) {
            None => Ok(0),
            Some(Ok(last)) => self.after(last),
            Some(Err(_)) => Err(Refusal::Type(
                "`append` needs a table whose last key is an int of 64 bits".to_owned(),
            )),
        };
        let mut key = Vec::new();
        while let Ok(number) = next {
            key.clear();
            <i64 as Key>::append(&number, false, &mut key);
            let inserted = match alone {
                true => tx.try_insert_final(&self.table, &key, value)?,
                false => match tx.insert(&self.table, &key, value) {
                    // Another transaction was first: its record is the last one now.
                    Err(Error::Exists { .. }) => false,
                    done => done.map(|()| true)?,
                },
            };
            if inserted {
                break;
            }
            next = self.after(number);
        }
        Ok(next)
    }

    /// Refuses `append` where no key is an integer.
    pub(crate) fn has_integers(&self) -> PyResult<()> {
        match self.keys {
            Kind::Parts | Kind::Integer { .. } => Ok(()),
            ref kind => {
                let text =
                    format!("`append` is for int keys, and the keys of the table are {kind}");
                Err(type_error(text))
            }
        }
    }

    /// How one call on the table is done.
    fn patience(&self, time: Option<Duration>) -> TxnOptions {
        let usual = TxnOptions::default();
        TxnOptions { mode: self.mode, time: time.unwrap_or(usual.time), ..usual }
    }

    /// The range of keys from one bound to another.
    pub(crate) fn range(
        &self,
        lo: Option<&Object<'_>>,
        hi: Option<&Object<'_>>,
        inclusive: bool,
    ) -> PyResult<Range> {
        let lo = match lo.filter(|lo| !lo.is_none()) {
            Some(lo) => End::Included(self.key(lo)?),
            None => End::Unbounded,
        };
        let hi = match hi.filter(|hi| !hi.is_none()) {
            Some(hi) if inclusive => End::Included(self.key(hi)?),
            Some(hi) => End::Excluded(self.key(hi)?),
            None => End::Unbounded,
        };
        Ok((lo, hi))
    }

    /// The range of keys that begin with these parts.
    pub(crate) fn prefix(&self, parts: &Bound<'_, PyTuple>) -> PyResult<Range> {
        let mut from = Vec::new();
        keys::encode_prefix(&self.keys, parts, &mut from)?;
        let mut to = from.clone();
        // No part of a key begins with this byte.
        to.push(0xff);
        Ok((End::Included(from), End::Excluded(to)))
    }

    pub(crate) fn pair<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        value: &[u8],
    ) -> PyResult<Pair<'py>> {
        Ok((keys::decode(py, &self.keys, key)?, self.values.decode(py, value)?))
    }
}

/// Reads a value.
#[inline]
pub(crate) fn get<'py>(
    py: Python<'py>,
    at: At<'_>,
    def: &Def,
    key: &[u8],
) -> PyResult<Option<Object<'py>>> {
    let decode = |bytes: &[u8]| def.values.decode(py, bytes);
    let found = match at {
        At::Store(db) => {
            let store = db.get().store(py)?;
            match def.values.is_custom() {
                true => store.get(&def.table, key).map(|found| found.map(|bytes| decode(&bytes))),
                false => store.read(|tx| tx.get_with(&def.table, key, decode)),
            }
        }
        At::Snapshot(snapshot) => {
            let snapshot = snapshot.get().take(py)?;
            match def.values.is_custom() {
                true => {
                    let found = snapshot.get(&def.table, key);
                    drop(snapshot);
                    found.map(|found| found.map(|bytes| decode(&bytes)))
                }
                false => snapshot.get_with(&def.table, key, decode),
            }
        }
        At::Transaction(tx) => {
            let found = tx.get().with(py, |tx| tx.get(&def.table, key))?;
            Ok(found.map(|bytes| decode(&bytes)))
        }
    };
    found.map_err(|why| raise(py, why))?.transpose()
}

pub(crate) fn contains(py: Python<'_>, at: At<'_>, def: &Def, key: &[u8]) -> PyResult<bool> {
    let found = match at {
        At::Store(db) => db.get().store(py)?.read(|tx| tx.contains(&def.table, key)),
        At::Snapshot(snapshot) => snapshot.get().take(py)?.contains(&def.table, key),
        At::Transaction(tx) => return tx.get().with(py, |tx| tx.contains(&def.table, key)),
    };
    found.map_err(|why| raise(py, why))
}

/// How many records a range has.
pub(crate) fn count(py: Python<'_>, at: At<'_>, def: &Def, range: &Range) -> PyResult<u64> {
    match at {
        At::Store(db) => {
            let store = db.get().store(py)?;
            wait(py, || store.read(|tx| tx.count(&def.table, slices(range))))
        }
        At::Snapshot(snapshot) => {
            let snapshot = snapshot.get().take(py)?;
            wait(py, || snapshot.count(&def.table, slices(range)))
        }
        At::Transaction(tx) => tx.get().with(py, |tx| tx.count(&def.table, slices(range))),
    }
}

/// The first record or the last.
pub(crate) fn end<'py>(
    py: Python<'py>,
    at: At<'_>,
    def: &Def,
    back: bool,
) -> PyResult<Option<Pair<'py>>> {
    let all = (End::Unbounded::<&[u8]>, End::Unbounded::<&[u8]>);
    let mut found = None;
    let mut each = |key: &[u8], value: &[u8]| {
        found = Some((key.to_vec(), value.to_vec()));
        Ok(false)
    };
    match at {
        At::Store(db) => {
            let store = db.get().store(py)?;
            wait(py, || {
                store.read(|tx| match back {
                    true => tx.scan_back(&def.table, all, &mut each),
                    false => tx.scan(&def.table, all, &mut each),
                })
            })?;
        }
        At::Snapshot(snapshot) => {
            let snapshot = snapshot.get().take(py)?;
            wait(py, || match back {
                true => snapshot.scan_back(&def.table, all, &mut each),
                false => snapshot.scan(&def.table, all, &mut each),
            })?;
        }
        At::Transaction(tx) => {
            found = tx.get().with(py, |tx| match back {
                true => tx.last(&def.table),
                false => tx.first(&def.table),
            })?;
        }
    }
    found.map(|(key, value)| def.pair(py, &key, &value)).transpose()
}

/// Runs work in the caller's transaction, or in a new transaction.
fn write<R: Send>(
    py: Python<'_>,
    at: At<'_>,
    def: &Def,
    work: impl FnMut(&mut WriteTxn<'_, '_>) -> Result<R, Error> + Send,
) -> PyResult<R> {
    write_at(py, at, def, Level::Serializable, work)
}

/// The same, with the level of a new transaction.
fn write_at<R: Send>(
    py: Python<'_>,
    at: At<'_>,
    def: &Def,
    level: Level,
    mut work: impl FnMut(&mut WriteTxn<'_, '_>) -> Result<R, Error> + Send,
) -> PyResult<R> {
    match at {
        At::Store(db) => {
            let store = db.get().store(py)?;
            let patience = TxnOptions { level, ..def.patience(None) };
            let run = || {
                store.write_with(&patience, |tx| {
                    go_on()?;
                    work(tx)
                })
            };
            wait(py, run).map(|done| done.value)
        }
        At::Transaction(tx) => tx.get().with(py, work),
        At::Snapshot(_) => Err(type_error("a snapshot is not written")),
    }
}

/// Runs work that calls Python in the caller's transaction, or in a new transaction, which may run
/// several times.
fn with_python<R>(
    py: Python<'_>,
    at: At<'_>,
    patience: &TxnOptions,
    mut work: impl FnMut(&PyTransaction) -> PyResult<R>,
) -> PyResult<R> {
    match at {
        At::Store(db) => run(py, db, patience, |tx| work(tx.get())),
        At::Transaction(tx) => work(tx.get()),
        At::Snapshot(_) => Err(type_error("a snapshot is not written")),
    }
}

#[inline]
pub(crate) fn put(
    py: Python<'_>,
    at: At<'_>,
    def: &Def,
    key: &Object<'_>,
    value: &Object<'_>,
) -> PyResult<()> {
    let value = def.values.encode(value)?;
    let value = &value[..];
    def.with_key(key, |key| match at {
        // The write and the commit are one record of the log.
        At::Store(_) => write(py, at, def, |tx| tx.put_final(&def.table, key, value)),
        _ => write(py, at, def, |tx| tx.put(&def.table, key, value)),
    })
}

pub(crate) fn insert(
    py: Python<'_>,
    at: At<'_>,
    def: &Def,
    key: &Object<'_>,
    value: &Object<'_>,
) -> PyResult<()> {
    let (key, value) = (def.key(key)?, def.values.encode(value)?);
    write(py, at, def, |tx| tx.insert(&def.table, &key, &value))
}

pub(crate) fn remove(py: Python<'_>, at: At<'_>, def: &Def, key: &Object<'_>) -> PyResult<bool> {
    let key = def.key(key)?;
    write(py, at, def, |tx| tx.remove(&def.table, &key))
}

/// Reads a value that the transaction will write.
pub(crate) fn get_for_update<'py>(
    py: Python<'py>,
    tx: &PyTransaction,
    def: &Def,
    key: &[u8],
) -> PyResult<Option<Object<'py>>> {
    let found = tx.with(py, |tx| tx.get_for_update(&def.table, key))?;
    found.map(|bytes| def.values.decode(py, &bytes)).transpose()
}

pub(crate) fn pop<'py>(
    py: Python<'py>,
    at: At<'_>,
    def: &Def,
    key: &Object<'py>,
    default: Option<Object<'py>>,
) -> PyResult<Object<'py>> {
    let bytes = def.key(key)?;
    let found = with_python(py, at, &def.patience(None), |tx| {
        // Before it is removed: a value that cannot be read stays.
        let found = get_for_update(py, tx, def, &bytes)?;
        if found.is_some() {
            tx.with(py, |tx| tx.remove(&def.table, &bytes))?;
        }
        Ok(found)
    })?;
    found.or(default).ok_or_else(|| missing(key))
}

pub(crate) fn setdefault<'py>(
    py: Python<'py>,
    at: At<'_>,
    def: &Def,
    key: &Object<'_>,
    default: Object<'py>,
) -> PyResult<Object<'py>> {
    let (key, value) = (def.key(key)?, def.values.encode(&default)?);
    let old = write(py, at, def, |tx| {
        let old = tx.get_for_update(&def.table, &key)?;
        if old.is_none() {
            tx.put(&def.table, &key, &value)?;
        }
        Ok(old)
    })?;
    old.map_or(Ok(default), |old| def.values.decode(py, &old))
}

/// Writes the result of the function for a value.
pub(crate) fn change<'py>(
    py: Python<'py>,
    at: At<'_>,
    def: &Def,
    key: &Object<'_>,
    (function, default): (&Object<'py>, &Object<'py>),
    time: Option<Duration>,
) -> PyResult<Object<'py>> {
    let (key, is_last) = (def.key(key)?, matches!(at, At::Store(_)));
    with_python(py, at, &def.patience(time), |tx| {
        let old = get_for_update(py, tx, def, &key)?;
        let new = function.call1((old.as_ref().unwrap_or(default),))?;
        let bytes = def.values.encode(&new)?;
        // In a transaction of its own the write and the commit are one record of the log.
        let put = |tx: &mut WriteTxn<'_, '_>| match is_last {
            true => tx.put_final(&def.table, &key, &bytes),
            false => tx.put(&def.table, &key, &bytes),
        };
        tx.with(py, put)?;
        drop(bytes);
        Ok(new)
    })
}

/// Adds to a number; a missing number is zero.
pub(crate) fn add<'py>(
    py: Python<'py>,
    at: At<'_>,
    def: &Def,
    key: &Object<'_>,
    amount: &Object<'_>,
) -> PyResult<Object<'py>> {
    let (key, amount) = (def.key(key)?, def.values.amount(amount)?);
    let is_last = matches!(at, At::Store(_));
    let sum = write(py, at, def, |tx| {
        let mut new = Vec::with_capacity(16);
        let add = |old: &[u8]| def.values.add(Some(old), amount, &mut new);
        let sum = match tx.get_for_update_with(&def.table, &key, add)? {
            Some(sum) => sum,
            None => def.values.add(None, amount, &mut new),
        };
        match is_last {
            _ if sum.is_err() => {}
            true => tx.put_final(&def.table, &key, &new)?,
            false => tx.put(&def.table, &key, &new)?,
        }
        Ok(sum)
    })?;
    values::number(py, sum.map_err(Refusal::raise)?)
}

/// Changes the bytes of a record by a function of this module, which runs without the interpreter,
/// in a transaction that ends with it. None if there is no record, or the function returns that.
pub(crate) fn change_bytes<R: Send>(
    py: Python<'_>,
    db: &Py<Db>,
    def: &Def,
    key: &Object<'_>,
    time: Duration,
    change: impl Fn(&mut Vec<u8>) -> Option<R> + Send + Sync,
) -> PyResult<Option<R>> {
    let (store, patience) = (db.get().store(py)?, def.patience(Some(time)));
    def.with_key(key, |key| {
        let mut record = Vec::new();
        let work = |tx: &mut WriteTxn<'_, '_>| {
            go_on()?;
            let read = |bytes: &[u8]| bytes.clone_into(&mut record);
            let Some(()) = tx.get_for_update_with(&def.table, key, read)? else { return Ok(None) };
            let Some(done) = change(&mut record) else { return Ok(None) };
            // The write and the commit are one record of the log.
            tx.put_final(&def.table, key, &record).map(|()| Some(done))
        };
        wait(py, || store.write_with(&patience, work)).map(|done| done.value)
    })
}

/// The pairs of a mapping, or of an iterable of pairs, as bytes.
fn pairs(def: &Def, of: &Object<'_>) -> PyResult<Vec<Bytes>> {
    let py = of.py();
    let items = match of.cast::<PyDict>() {
        Ok(dict) => dict.items().into_any(),
        Err(_) if of.hasattr("items")? => of.call_method0("items")?,
        Err(_) if of.hasattr("keys")? => {
            let keys = of.call_method0("keys")?.try_iter()?;
            let pair = |key: PyResult<Object<'_>>| {
                let key = key?;
                let value = of.get_item(&key)?;
                Ok((def.key(&key)?, def.values.encode(&value)?.into_owned()))
            };
            return keys.map(pair).collect();
        }
        Err(_) => of.clone(),
    };
    let mut all = Vec::new();
    for item in items.try_iter()? {
        let (key, value): (Object<'_>, Object<'_>) = item?.extract()?;
        all.push((def.key(&key)?, def.values.encode(&value)?.into_owned()));
    }
    let _ = py;
    Ok(all)
}

pub(crate) fn update(py: Python<'_>, at: At<'_>, def: &Def, of: &Object<'_>) -> PyResult<()> {
    let pairs = pairs(def, of)?;
    write(py, at, def, |tx| {
        pairs.iter().try_for_each(|(key, value)| tx.put(&def.table, key, value))
    })
}

/// Writes a value behind the last record, under the next integer.
pub(crate) fn append<'py>(
    py: Python<'py>,
    at: At<'_>,
    def: &Def,
    value: &Object<'_>,
) -> PyResult<Object<'py>> {
    def.has_integers()?;
    let value = def.values.encode(value)?;
    let alone = matches!(at, At::Store(_));
    let work = |tx: &mut WriteTxn<'_, '_>| def.append(tx, &value, alone);
    // It holds no range: others append at the same time.
    let key = write_at(py, at, def, Level::ReadCommitted, work)?;
    Ok(key.map_err(Refusal::raise)?.into_pyobject(py)?.into_any())
}

/// Removes the first record or the last.
pub(crate) fn pop_end<'py>(
    py: Python<'py>,
    at: At<'_>,
    def: &Def,
    back: bool,
) -> PyResult<Option<Pair<'py>>> {
    let pop = |tx: &mut WriteTxn<'_, '_>| match back {
        true => tx.pop_last(&def.table),
        false => tx.pop_first(&def.table),
    };
    if def.values.is_custom() {
        // A value that cannot be read stays.
        return with_python(py, at, &def.patience(None), |tx| {
            let found = tx.with(py, pop)?;
            found.map(|(key, value)| def.pair(py, &key, &value)).transpose()
        });
    }
    // A call by itself reads one record, which it locks. To hold the range before it as well would
    // only keep others from appending and from taking the next one.
    let popped = match at {
        At::Store(_) => {
            let pop = |tx: &mut WriteTxn<'_, '_>| tx.pop_final(&def.table, back);
            write_at(py, at, def, Level::ReadCommitted, pop)?
        }
        _ => write(py, at, def, pop)?,
    };
    let Some((key, value)) = popped else { return Ok(None) };
    match def.pair(py, &key, &value) {
        Ok(pair) => Ok(Some(pair)),
        Err(why) => {
            // The bytes are no value of the type: the record stays.
            write(py, at, def, |tx| tx.insert(&def.table, &key, &value))?;
            Err(why)
        }
    }
}

pub(crate) fn remove_range(py: Python<'_>, at: At<'_>, def: &Def, range: &Range) -> PyResult<u64> {
    write(py, at, def, |tx| tx.remove_range(&def.table, slices(range)))
}

/// A limit as Python gives it.
pub(crate) fn limit(limit: Option<i64>) -> PyResult<usize> {
    match limit {
        None => Ok(usize::MAX),
        Some(limit) => usize::try_from(limit).map_err(|_| value_error("a limit below zero")),
    }
}

/// A mode as Python gives it.
pub(crate) fn mode_name(mode: Mode) -> String {
    match mode {
        Mode::Full => "full".to_owned(),
        Mode::Write => "write".to_owned(),
        Mode::Periodic(period) => period.as_secs_f64().to_string(),
        _ => "none".to_owned(),
    }
}

/// Whether a transaction may run again after this exception: not after an exception that ends the
/// program.
pub(crate) fn is_plain(py: Python<'_>, why: &PyErr) -> bool {
    why.is_instance_of::<PyException>(py)
}

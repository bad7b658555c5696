//! An open store, for all threads of a process and of its forked children.

use std::mem::forget;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use latchwork_store::{Mode, Options, Sequence, Store, Table};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::errors::{closed, misuse, read_only, table_type, type_error};
use crate::mapping::PyTable;
use crate::process::{forks, wait};
use crate::snapshot::PySnapshot;
use crate::table::Def;
use crate::transaction::{PyAttempts, PyTransaction, duration, mode, patience, run};
use crate::types::{CBOR, Kind, PARTS, described};
use crate::values::Codec;

/// The store as one process has it open.
struct Slot {
    forks: u64,
    /// None once it is closed.
    store: RwLock<Option<Store>>,
}

#[pyclass(subclass, frozen, name = "_Store", module = "latchwork", weakref)]
pub(crate) struct Db {
    path: PathBuf,
    options: Options,
    closed: AtomicBool,
    /// A box: freed with the object; that of a parent is left as it is, because a thread that
    /// the child does not have may have locked a part of it.
    slot: AtomicPtr<Slot>,
    /// The tables that were named without types, as [`Known`]. They do not refer to the store: an
    /// object that is no longer used closes at once.
    tables: Py<PyDict>,
}

impl Drop for Db {
    fn drop(&mut self) {
        // SAFETY: it is a box of `new` or `reopen`, and the object is dropped.
        let slot = unsafe { Box::from_raw(*self.slot.get_mut()) };
        if slot.forks != forks() {
            forget(slot);
            return;
        }
        let store = slot.store.into_inner().unwrap_or_else(PoisonError::into_inner);
        // Closing may take a checkpoint.
        Python::try_attach(|py| py.detach(|| drop(store)));
    }
}

impl Db {
    /// The slot of this process.
    #[inline]
    fn slot(&self, py: Python<'_>) -> PyResult<&Slot> {
        // Acquire: synchronizes with the Release in `reopen`: the slot is seen.
        let slot = self.slot.load(Ordering::Acquire);
        // SAFETY: it is a box, and freed with the object or never.
        let slot = unsafe { &*slot };
        if slot.forks == forks() { Ok(slot) } else { self.reopen(py) }
    }

    /// Opens the store in the child of a fork.
    #[cold]
    fn reopen(&self, py: Python<'_>) -> PyResult<&Slot> {
        // Acquire: as in `slot`.
        let old = self.slot.load(Ordering::Acquire);
        // Relaxed: the child sees what its parent has stored.
        let store = match self.closed.load(Ordering::Relaxed) {
            true => None,
            false => Some(wait(py, || Store::open_with(&self.path, &self.options))?),
        };
        let new = Box::into_raw(Box::new(Slot { forks: forks(), store: RwLock::new(store) }));
        // AcqRel: synchronizes with the Acquire in `slot`, and with another thread that was first.
        let put = self.slot.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire);
        if put.is_err() {
            // SAFETY: no other thread has seen it.
            drop(unsafe { Box::from_raw(new) });
        }
        self.slot(py)
    }

    /// The store, for use in a call.
    #[inline]
    pub(crate) fn store(&self, py: Python<'_>) -> PyResult<Store> {
        let store = self.slot(py)?.store.read().unwrap_or_else(PoisonError::into_inner);
        store.clone().ok_or_else(|| closed(py, "store"))
    }

    /// Refuses a call that a read-only handle cannot do.
    pub(crate) fn writes(&self, py: Python<'_>, why: &str) -> PyResult<()> {
        if self.options.read_only { Err(read_only(py, why)) } else { Ok(()) }
    }

    /// Defines a table: its types are the recorded types, or the given ones.
    fn define(
        &self,
        py: Python<'_>,
        name: &str,
        (keys, values): (Option<&str>, Option<&Bound<'_, PyAny>>),
        (version, mode): (u32, Option<Mode>),
    ) -> PyResult<Def> {
        let store = self.store(py)?;
        let info = wait(py, || store.table_info(name))?;
        let known = info.and_then(|info| Some((info.key?, info.value?, info.version)));
        let (known_key, known_value, known_version) = match known {
            Some((key, value, version)) => (Some(key), Some(value), Some(version)),
            None => (None, None, None),
        };
        let key_type = keys.map(str::to_owned).or(known_key).unwrap_or_else(|| PARTS.to_owned());
        let (value_type, codec) = match values.filter(|values| !values.is_none()) {
            None => (known_value.unwrap_or_else(|| CBOR.to_owned()), None),
            Some(values) => match values.cast::<PyString>() {
                Ok(text) if text == "json" || text.to_cow()?.starts_with("json(") => {
                    let known = known_value.filter(|known| known.starts_with("json("));
                    (known.unwrap_or_else(|| "json(value)".to_owned()), None)
                }
                // The bytes of a type that only another program knows.
                Ok(text) if text == "bytes" && known_value.as_deref().is_some_and(is_own) => {
                    (known_value.unwrap_or_default(), None)
                }
                Ok(text) => {
                    let text = text.to_string();
                    Kind::named(&text, false)?;
                    (text, None)
                }
                Err(_) => {
                    let name = values.getattr("name").and_then(|name| name.extract::<String>());
                    let name = name.map_err(|_| {
                        type_error("values is the name of a type, or a Codec, or pickled(..)")
                    })?;
                    (format!("own({name})"), Some(values.clone()))
                }
            },
        };
        let kind = match keys {
            Some(keys) => Kind::named(keys, true)?,
            None => Kind::parse(&key_type),
        };
        if matches!(kind, Kind::Own | Kind::Cbor | Kind::Json) {
            let text = format!(
                "the keys of table {name:?} are of type {key_type}, which only the program that made \
                 the table knows"
            );
            return Err(table_type(py, name, text));
        }
        let codec = match (codec, Kind::parse(&value_type)) {
            (Some(codec), _) => custom(&codec)?,
            (None, Kind::Json) => {
                custom(PyModule::import(py, "latchwork._codecs")?.getattr("JSON")?.as_any())?
            }
            (None, Kind::Parts) => return Err(type_error("values are not of type parts")),
            (None, Kind::Own) if values.is_none_or(|values| values.is_none()) => {
                let text = format!(
                    "the values of table {name:?} are of type {value_type}, which this program has \
                     not named: pass values=Codec(..) with that name, or values=\"bytes\" to use \
                     the bytes as they are stored"
                );
                return Err(table_type(py, name, text));
            }
            (None, Kind::Own) => Codec::Kind(Kind::Bytes(None)),
            (None, kind) => Codec::Kind(kind),
        };
        let version = if version == 0 { known_version.unwrap_or(0) } else { version };
        let table = Table::named(name)
            .described(described(&key_type), described(&value_type))
            .with_version(version);
        Ok(Def { table, keys: kind, key_type, values: codec, value_type, mode })
    }
}

/// Whether a recorded type is that of a codec, or of another program.
fn is_own(text: &str) -> bool {
    Kind::parse(text) == Kind::Own
}

/// The definition of a table that was named without types.
#[pyclass(frozen, module = "latchwork")]
struct Known(Arc<Def>);

fn custom(of: &Bound<'_, PyAny>) -> PyResult<Codec> {
    let (dumps, loads) = (of.getattr("dumps")?.unbind(), of.getattr("loads")?.unbind());
    Ok(Codec::Custom { dumps, loads })
}

/// A table that a call names, by an object or a name.
#[inline]
pub(crate) fn table_of(db: &Py<Db>, table: &Bound<'_, PyAny>) -> PyResult<Py<PyTable>> {
    if let Ok(table) = table.cast_exact::<PyTable>() {
        if !table.get().db.is(db) {
            return Err(misuse(table.py(), "the table is of another store".to_owned()));
        }
        return Ok(table.clone().unbind());
    }
    let name = table.cast::<PyString>();
    let name = name.map_err(|_| type_error("a table is a Table or a name"))?;
    named(db, name)
}

/// The table of a name, with the types of the catalog.
fn named(db: &Py<Db>, name: &Bound<'_, PyString>) -> PyResult<Py<PyTable>> {
    let (py, this) = (name.py(), db.get());
    let tables = this.tables.bind(py);
    let def = match tables.get_item(name)? {
        Some(known) => known.cast_into::<Known>()?.get().0.clone(),
        None => {
            // A table that does not exist yet may get other types from another program.
            let def = Arc::new(this.define(py, &name.to_cow()?, (None, None), (0, None))?);
            tables.set_item(name, Py::new(py, Known(def.clone()))?)?;
            def
        }
    };
    Py::new(py, PyTable { def, db: db.clone_ref(py), codec: None })
}

#[pymethods]
impl Db {
    #[new]
    #[pyo3(signature = (path, /, *, mode=None, read_only=false, create=true, small=false, cache=None,
        cache_max=None, threads=None, log_budget=None, history=None, wait=None))]
    #[allow(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        mode: Option<Bound<'_, PyAny>>,
        read_only: bool,
        create: bool,
        small: bool,
        cache: Option<u64>,
        cache_max: Option<u64>,
        threads: Option<u32>,
        log_budget: Option<u64>,
        history: Option<u64>,
        wait: Option<f64>,
    ) -> PyResult<Self> {
        let mut options = if small { Options::small() } else { Options::default() };
        let sizes = &mut options.sizes;
        if let Some(how) = mode.filter(|mode| !mode.is_none()) {
            sizes.mode = self::mode(&how)?;
        }
        sizes.cache = cache.unwrap_or(sizes.cache);
        sizes.cache_max = cache_max.unwrap_or(sizes.cache_max);
        sizes.threads = threads.unwrap_or(sizes.threads);
        sizes.log_budget = log_budget.unwrap_or(sizes.log_budget);
        sizes.history = history.unwrap_or(sizes.history);
        (options.read_only, options.create) = (read_only, create);
        options.wait = wait.map(duration).transpose()?;
        let path = std::path::absolute(&path).unwrap_or(path);
        let store = crate::process::wait(py, || Store::open_with(&path, &options))?;
        let slot = Box::new(Slot { forks: forks(), store: RwLock::new(Some(store)) });
        let (closed, slot) = (AtomicBool::new(false), AtomicPtr::new(Box::into_raw(slot)));
        Ok(Self { path, options, closed, slot, tables: PyDict::new(py).unbind() })
    }

    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    #[getter]
    fn closed(&self) -> bool {
        // Relaxed: it says what was true a moment ago.
        self.closed.load(Ordering::Relaxed)
    }

    #[pyo3(signature = (name, /, *, keys=None, values=None, version=0, mode=None))]
    fn table(
        slf: &Bound<'_, Self>,
        name: Bound<'_, PyString>,
        keys: Option<&str>,
        values: Option<Bound<'_, PyAny>>,
        version: u32,
        mode: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyTable>> {
        let (py, this) = (slf.py(), slf.get());
        let mode = mode.filter(|mode| !mode.is_none()).map(|mode| self::mode(&mode)).transpose()?;
        let text = name.to_cow()?;
        let def = this.define(py, &text, (keys, values.as_ref()), (version, mode))?;
        let codec =
            values.filter(|values| !values.is_none() && !values.is_instance_of::<PyString>());
        let codec = codec.map(Bound::unbind);
        Py::new(py, PyTable { def: Arc::new(def), db: slf.clone().unbind(), codec })
    }

    fn __getitem__(slf: &Bound<'_, Self>, name: Bound<'_, PyString>) -> PyResult<Py<PyTable>> {
        named(slf.as_unbound(), &name)
    }

    #[pyo3(signature = (function, /, *, time=10.0, label="", level="serializable", mode=None))]
    fn write<'py>(
        slf: &Bound<'py, Self>,
        function: Bound<'py, PyAny>,
        time: f64,
        label: &str,
        level: &str,
        mode: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let options = patience(time, label, level, mode.as_ref())?;
        run(slf.py(), slf.as_unbound(), &options, |tx| function.call1((tx,)))
    }

    #[pyo3(signature = (*, time=10.0, label="", level="serializable", mode=None))]
    fn attempts(
        slf: &Bound<'_, Self>,
        time: f64,
        label: &str,
        level: &str,
        mode: Option<Bound<'_, PyAny>>,
    ) -> PyResult<PyAttempts> {
        let options = patience(time, label, level, mode.as_ref())?;
        Ok(PyAttempts::new(slf.py(), slf.as_unbound(), options))
    }

    #[pyo3(signature = (*, time=10.0, label="", level="serializable", mode=None))]
    fn begin(
        slf: &Bound<'_, Self>,
        time: f64,
        label: &str,
        level: &str,
        mode: Option<Bound<'_, PyAny>>,
    ) -> PyResult<PyTransaction> {
        let options = patience(time, label, level, mode.as_ref())?;
        PyTransaction::begin(slf.py(), slf.as_unbound(), &options, false)
    }

    fn snapshot(slf: &Bound<'_, Self>) -> PyResult<PySnapshot> {
        PySnapshot::new(slf.py(), slf.as_unbound())
    }

    #[pyo3(signature = (name, /, *, batch=None))]
    fn sequence(slf: &Bound<'_, Self>, name: &str, batch: Option<u64>) -> PyResult<PySequence> {
        let sequence = Sequence::named(name);
        let sequence = match batch {
            Some(0) => return Err(crate::errors::value_error("a batch of nothing")),
            Some(batch) => sequence.batch(batch),
            None => sequence,
        };
        Ok(PySequence { db: slf.clone().unbind(), sequence })
    }

    /// Waits until all commits of this process are durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let store = self.store(py)?;
        wait(py, || store.sync().map(drop))
    }

    fn checkpoint(&self, py: Python<'_>) -> PyResult<()> {
        let store = self.store(py)?;
        wait(py, || store.checkpoint())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let slot = self.slot(py)?;
        // Relaxed: a child of a fork sees it, and other threads see the lock's contents.
        self.closed.store(true, Ordering::Relaxed);
        let take = || slot.store.write().unwrap_or_else(PoisonError::into_inner).take();
        let Some(store) = py.detach(take) else { return Ok(()) };
        wait(py, || store.close().map(drop))
    }

    #[pyo3(name = "_enter")]
    fn enter(&self, py: Python<'_>) -> PyResult<()> {
        self.store(py).map(drop)
    }
}

#[pyclass(frozen, name = "Sequence", module = "latchwork")]
pub(crate) struct PySequence {
    db: Py<Db>,
    sequence: Sequence,
}

#[pymethods]
impl PySequence {
    fn next(&self, py: Python<'_>) -> PyResult<u64> {
        let store = self.db.get().store(py)?;
        wait(py, || store.next_number(&self.sequence))
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.next(py).map(Some)
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }
}

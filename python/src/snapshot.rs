//! Snapshots that are objects.

use std::mem::forget;
use std::sync::atomic::{AtomicBool, Ordering};

use latchwork_store::KeptSnapshot;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::{closed, forked};
use crate::mapping::PySnapshotTable;
use crate::process;
use crate::store::{Db, table_of};
use crate::table::{At, get};
use crate::turn::{Taken, Turn};

/// A snapshot of this process. The child of a fork never drops the snapshot of its parent.
pub(crate) struct Kept {
    snapshot: Option<KeptSnapshot>,
    forks: u64,
}

impl Kept {
    pub(crate) fn new(snapshot: KeptSnapshot) -> Self {
        Self { snapshot: Some(snapshot), forks: process::forks() }
    }

    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<&KeptSnapshot> {
        if self.forks != process::forks() {
            return Err(forked(py, "snapshot"));
        }
        self.snapshot.as_ref().ok_or_else(|| closed(py, "snapshot"))
    }

    fn end(&mut self) {
        let snapshot = self.snapshot.take();
        if self.forks != process::forks() {
            forget(snapshot);
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.end();
    }
}

/// A snapshot.
#[pyclass(frozen, name = "Snapshot", module = "latchwork")]
pub(crate) struct PySnapshot {
    kept: Turn<Kept>,
    closed: AtomicBool,
    forks: u64,
    db: Py<Db>,
}

/// A snapshot that a call has.
pub(crate) struct Reading<'s>(Taken<'s, Kept>);

impl std::ops::Deref for Reading<'_> {
    type Target = KeptSnapshot;

    #[inline]
    fn deref(&self) -> &KeptSnapshot {
        self.0.snapshot.as_ref().expect("it was there when it was taken, and is borrowed")
    }
}

impl PySnapshot {
    pub(crate) fn new(py: Python<'_>, db: &Py<Db>) -> PyResult<Self> {
        let store = db.get().store(py)?;
        let kept = process::wait(py, || store.snapshot().map(Kept::new))?;
        let closed = AtomicBool::new(false);
        Ok(Self { kept: Turn::new(kept), closed, forks: process::forks(), db: db.clone_ref(py) })
    }

    /// Checks that an iterator on it may continue.
    #[inline]
    pub(crate) fn check(&self, py: Python<'_>) -> PyResult<()> {
        // Relaxed: a thread that has closed it sees that it did, and another one may be late.
        match self.closed.load(Ordering::Relaxed) {
            true => Err(closed(py, "snapshot")),
            false => Ok(()),
        }
    }

    /// The snapshot, for use in a call.
    #[inline]
    pub(crate) fn take(&self, py: Python<'_>) -> PyResult<Reading<'_>> {
        // A thread that the child does not have may have it: so this comes first.
        if self.forks != process::forks() {
            return Err(forked(py, "snapshot"));
        }
        let taken = self.kept.take(py, "snapshot")?;
        match taken.snapshot {
            Some(_) => Ok(Reading(taken)),
            None => Err(closed(py, "snapshot")),
        }
    }
}

#[pymethods]
impl PySnapshot {
    fn __getitem__(slf: &Bound<'_, Self>, table: Bound<'_, PyAny>) -> PyResult<PySnapshotTable> {
        let table = table_of(&slf.get().db, &table)?;
        Ok(PySnapshotTable { table, snapshot: slf.clone().unbind() })
    }

    #[pyo3(signature = (table, key, default=None, /))]
    fn get<'py>(
        slf: &Bound<'py, Self>,
        table: Bound<'py, PyAny>,
        key: Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = slf.py();
        let table = table_of(&slf.get().db, &table)?;
        let def = &table.get().def;
        let found = get(py, At::Snapshot(slf.as_unbound()), def, &def.key(&key)?)?;
        Ok(found.or(default))
    }

    /// Its position in the log.
    #[getter]
    fn at(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.take(py)?.at())
    }

    /// How many bytes of log were written since.
    #[getter]
    fn behind(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.take(py)?.behind())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.forks == process::forks() {
            let mut kept = self.kept.take(py, "snapshot")?;
            // Relaxed: as in `check`.
            self.closed.store(true, Ordering::Relaxed);
            kept.end();
        }
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }
}

//! Iterators over records: some at a time are read without the interpreter.

use std::ops::Bound as End;

use latchwork_store::{Error, Raw, ReadTxn, Table};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::keys;
use crate::mapping::PyTable;
use crate::process;
use crate::snapshot::{Kept, PySnapshot};
use crate::table::{At, Def, Range, slices};
use crate::transaction::PyTransaction;
use crate::turn::Turn;

/// How many records are read at first; then four times as many, up to the most.
const FEW: usize = 32;
const MANY: usize = 4096;
/// After so many bytes no more records are read at a time.
const BYTES: usize = 1 << 20;

/// The items of an iterator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Keys,
    Values,
    Items,
}

/// Records, one behind the other.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    /// Where the key ends and where the value ends.
    ends: Vec<(usize, usize)>,
}

impl Batch {
    fn push(&mut self, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((key_end, self.bytes.len()));
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.bytes.shrink_to(2 * BYTES);
    }
}

/// Where the records are read.
enum From {
    /// In a snapshot of the iterator's own.
    Own(Kept),
    Snapshot(Py<PySnapshot>),
    /// All are in the batch.
    Read,
}

struct State {
    from: From,
    range: Range,
    back: bool,
    /// How many are still to be given at most.
    limit: usize,
    wanted: usize,
    batch: Batch,
    /// The next one of the batch, and where it begins.
    next: usize,
    start: usize,
}

#[pyclass(frozen, name = "Rows", module = "latchwork")]
pub(crate) struct PyRows {
    state: Turn<State>,
    table: Py<PyTable>,
    kind: Kind,
    of: Of,
}

/// The object that the records were read through. When that has ended, the iterator ends as well.
enum Of {
    Store,
    Snapshot(Py<PySnapshot>),
    /// A transaction, and which of its runs.
    Transaction(Py<PyTransaction>, u64),
}

impl Of {
    fn new(py: Python<'_>, at: At<'_>) -> Self {
        match at {
            At::Store(_) => Self::Store,
            At::Snapshot(snapshot) => Self::Snapshot(snapshot.clone_ref(py)),
            At::Transaction(tx) => Self::Transaction(tx.clone_ref(py), tx.get().run()),
        }
    }

    #[inline]
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        match self {
            Self::Store => Ok(()),
            Self::Snapshot(snapshot) => snapshot.get().check(py),
            Self::Transaction(tx, run) => tx.get().check(py, *run),
        }
    }
}

impl PyRows {
    pub(crate) fn new(
        py: Python<'_>,
        at: At<'_>,
        table: Py<PyTable>,
        kind: Kind,
        (range, back, limit): (Range, bool, usize),
    ) -> PyResult<Self> {
        let mut batch = Batch::default();
        let of = Of::new(py, at);
        let from = match at {
            At::Store(db) => {
                let store = db.get().store(py)?;
                From::Own(process::wait(py, || store.snapshot().map(Kept::new))?)
            }
            At::Snapshot(snapshot) => {
                drop(snapshot.get().take(py)?);
                From::Snapshot(snapshot.clone_ref(py))
            }
            At::Transaction(tx) => {
                let rows = table.get().def.table;
                tx.get().with(py, |tx| {
                    if limit == 0 {
                        return Ok(());
                    }
                    let mut each = |key: &[u8], value: &[u8]| {
                        batch.push(key, if kind == Kind::Keys { &[] } else { value });
                        Ok(batch.ends.len() < limit)
                    };
                    match back {
                        true => tx.scan_back(&rows, slices(&range), &mut each),
                        false => tx.scan(&rows, slices(&range), &mut each),
                    }
                })?;
                From::Read
            }
        };
        let (wanted, next, start) = (FEW, 0, 0);
        let state = State { from, range, back, limit, wanted, batch, next, start };
        Ok(Self { state: Turn::new(state), table, kind, of })
    }
}

/// Reads some records; returns whether there may be more.
fn read(
    tx: &ReadTxn<'_>,
    table: &Table<Raw, Raw>,
    (range, back): (&Range, bool),
    (wanted, keys_only): (usize, bool),
    batch: &mut Batch,
) -> Result<bool, Error> {
    let mut each = |key: &[u8], value: &[u8]| {
        batch.push(key, if keys_only { &[] } else { value });
        Ok(batch.ends.len() < wanted && batch.bytes.len() < BYTES)
    };
    match back {
        true => tx.scan_back(table, slices(range), &mut each)?,
        false => tx.scan(table, slices(range), &mut each)?,
    }
    Ok(batch.ends.len() >= wanted || batch.bytes.len() >= BYTES)
}

impl State {
    /// Reads more records.
    #[cold]
    fn fetch(&mut self, py: Python<'_>, table: &Table<Raw, Raw>, keys_only: bool) -> PyResult<()> {
        if let Some(last) = self.batch.ends.last() {
            let start = self.batch.ends.len().checked_sub(2).map_or(0, |at| self.batch.ends[at].1);
            let key = self.batch.bytes[start..last.0].to_vec();
            match self.back {
                true => self.range.1 = End::Excluded(key),
                false => self.range.0 = End::Excluded(key),
            }
        }
        self.batch.clear();
        (self.next, self.start) = (0, 0);
        let wanted = self.wanted.min(self.limit);
        self.wanted = (4 * self.wanted).min(MANY);
        let (range, back, batch) = (&self.range, self.back, &mut self.batch);
        let how = (wanted, keys_only);
        let more = match &self.from {
            From::Read => return Ok(()),
            From::Own(kept) => {
                // A snapshot is used by the one thread that has the iterator.
                let snapshot = Shared(kept.get(py)?);
                process::wait(py, move || read(snapshot.get(), table, (range, back), how, batch))
            }
            From::Snapshot(snapshot) => {
                let snapshot = snapshot.get().take(py)?;
                process::wait(py, move || read(&snapshot, table, (range, back), how, batch))
            }
        };
        if !more? {
            self.from = From::Read;
        }
        Ok(())
    }
}

/// A reference to a snapshot of this iterator alone.
struct Shared<'s>(&'s latchwork_store::KeptSnapshot);

// SAFETY: the iterator has the snapshot for itself, and one thread at a time has the iterator.
unsafe impl Send for Shared<'_> {}

impl<'s> Shared<'s> {
    fn get(self) -> &'s latchwork_store::KeptSnapshot {
        self.0
    }
}

#[pymethods]
impl PyRows {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.of.check(py)?;
        let mut state = self.state.take(py, "iterator")?;
        let state = &mut *state;
        let def: &Def = &self.table.get().def;
        if state.next == state.batch.ends.len() {
            if matches!(state.from, From::Read) || state.limit == 0 {
                return Ok(None);
            }
            state.fetch(py, &def.table, self.kind == Kind::Keys)?;
        }
        if state.limit == 0 {
            return Ok(None);
        }
        let Some((key_end, end)) = state.batch.ends.get(state.next).copied() else {
            return Ok(None);
        };
        let bytes = &state.batch.bytes;
        let (key, value) = (&bytes[state.start..key_end], &bytes[key_end..end]);
        (state.next, state.start, state.limit) = (state.next + 1, end, state.limit - 1);
        Ok(Some(match self.kind {
            Kind::Keys => keys::decode(py, &def.keys, key)?,
            Kind::Values => def.values.decode(py, value)?,
            Kind::Items => {
                let (key, value) = def.pair(py, key, value)?;
                PyTuple::new(py, [key, value])?.into_any()
            }
        }))
    }
}

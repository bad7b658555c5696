//! The classes of tables: mappings on a store, in a transaction, in a snapshot.

use std::ops::Bound as End;
use std::sync::Arc;

use pyo3::PyClass;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::{missing, type_error};
use crate::rows::{Kind, PyRows};
use crate::snapshot::PySnapshot;
use crate::store::Db;
use crate::table::{
    At, Def, Object, Pair, Range, add, append, change, contains, count, end, get, get_for_update,
    insert, limit, mode_name, pop, pop_end, put, remove, remove_range, setdefault, update,
};
use crate::transaction::{PyTransaction, duration};

/// A table of a store.
#[pyclass(frozen, name = "Table", module = "latchwork", mapping)]
pub(crate) struct PyTable {
    pub(crate) def: Arc<Def>,
    pub(crate) db: Py<Db>,
    /// The codec of the program, for copies in other processes.
    pub(crate) codec: Option<Py<PyAny>>,
}

/// A table in a transaction.
#[pyclass(frozen, name = "TransactionTable", module = "latchwork", mapping)]
pub(crate) struct PyTransactionTable {
    pub(crate) table: Py<PyTable>,
    pub(crate) tx: Py<PyTransaction>,
}

/// A table in a snapshot.
#[pyclass(frozen, name = "SnapshotTable", module = "latchwork", mapping)]
pub(crate) struct PySnapshotTable {
    pub(crate) table: Py<PyTable>,
    pub(crate) snapshot: Py<PySnapshot>,
}

/// Defines the methods of a class: the reading ones and more.
macro_rules! methods {
    ($class:ident, { $($more:tt)* }) => {
        #[pymethods]
        impl $class {
            /// The name of the table.
            #[getter]
            fn name(slf: &Bound<'_, Self>) -> String {
                slf.get().def().table.name().to_owned()
            }

            fn __getitem__<'py>(slf: &Bound<'py, Self>, key: Object<'py>) -> PyResult<Object<'py>> {
                let (py, this) = (slf.py(), slf.get());
                let def = this.def();
                let found = def.with_key(&key, |bytes| get(py, this.at(), def, bytes))?;
                found.ok_or_else(|| missing(&key))
            }

            /// The value of a key, or the default.
            #[pyo3(signature = (key, default=None, /))]
            fn get<'py>(
                slf: &Bound<'py, Self>,
                key: Object<'py>,
                default: Option<Object<'py>>,
            ) -> PyResult<Option<Object<'py>>> {
                let (py, this) = (slf.py(), slf.get());
                let def = this.def();
                Ok(def.with_key(&key, |bytes| get(py, this.at(), def, bytes))?.or(default))
            }

            fn __contains__(slf: &Bound<'_, Self>, key: Object<'_>) -> PyResult<bool> {
                let (py, this) = (slf.py(), slf.get());
                let def = this.def();
                contains(py, this.at(), def, &def.key(&key)?)
            }

            /// O(records): no number of them is kept.
            fn __len__(slf: &Bound<'_, Self>) -> PyResult<usize> {
                let (py, this) = (slf.py(), slf.get());
                let all = (End::Unbounded, End::Unbounded);
                Ok(count(py, this.at(), this.def(), &all)? as usize)
            }

            fn __bool__(slf: &Bound<'_, Self>) -> PyResult<bool> {
                let (py, this) = (slf.py(), slf.get());
                Ok(end(py, this.at(), this.def(), false)?.is_some())
            }

            fn __iter__(slf: &Bound<'_, Self>) -> PyResult<PyRows> {
                let (py, this) = (slf.py(), slf.get());
                let all = ((End::Unbounded, End::Unbounded), false, usize::MAX);
                rows(py, this.at(), &Self::table(slf), Kind::Keys, all)
            }

            /// The keys from `lo` to before `hi`, in order.
            #[pyo3(signature = (lo=None, hi=None, *, reverse=false))]
            fn keys(
                slf: &Bound<'_, Self>,
                lo: Option<Object<'_>>,
                hi: Option<Object<'_>>,
                reverse: bool,
            ) -> PyResult<PyRows> {
                let (py, this) = (slf.py(), slf.get());
                let range = this.def().range(lo.as_ref(), hi.as_ref(), false)?;
                let of = (range, reverse, usize::MAX);
                rows(py, this.at(), &Self::table(slf), Kind::Keys, of)
            }

            /// The values of the keys from `lo` to before `hi`, in the order of the keys.
            #[pyo3(signature = (lo=None, hi=None, *, reverse=false))]
            fn values(
                slf: &Bound<'_, Self>,
                lo: Option<Object<'_>>,
                hi: Option<Object<'_>>,
                reverse: bool,
            ) -> PyResult<PyRows> {
                let (py, this) = (slf.py(), slf.get());
                let range = this.def().range(lo.as_ref(), hi.as_ref(), false)?;
                let of = (range, reverse, usize::MAX);
                rows(py, this.at(), &Self::table(slf), Kind::Values, of)
            }

            /// The pairs of key and value from `lo` to before `hi`, in order.
            #[pyo3(signature = (lo=None, hi=None, *, reverse=false))]
            fn items(
                slf: &Bound<'_, Self>,
                lo: Option<Object<'_>>,
                hi: Option<Object<'_>>,
                reverse: bool,
            ) -> PyResult<PyRows> {
                let (py, this) = (slf.py(), slf.get());
                let range = this.def().range(lo.as_ref(), hi.as_ref(), false)?;
                let of = (range, reverse, usize::MAX);
                rows(py, this.at(), &Self::table(slf), Kind::Items, of)
            }

            /// The pairs from `lo` to before `hi`, in order; with `inclusive` also `hi`.
            #[pyo3(signature = (lo=None, hi=None, *, reverse=false, inclusive=false, limit=None))]
            fn range(
                slf: &Bound<'_, Self>,
                lo: Option<Object<'_>>,
                hi: Option<Object<'_>>,
                reverse: bool,
                inclusive: bool,
                limit: Option<i64>,
            ) -> PyResult<PyRows> {
                let (py, this) = (slf.py(), slf.get());
                let range = this.def().range(lo.as_ref(), hi.as_ref(), inclusive)?;
                let of = (range, reverse, self::limit(limit)?);
                rows(py, this.at(), &Self::table(slf), Kind::Items, of)
            }

            /// The pairs whose keys are tuples that begin with these parts.
            #[pyo3(signature = (*parts, reverse=false, limit=None))]
            fn prefix(
                slf: &Bound<'_, Self>,
                parts: Bound<'_, PyTuple>,
                reverse: bool,
                limit: Option<i64>,
            ) -> PyResult<PyRows> {
                let (py, this) = (slf.py(), slf.get());
                let of = (this.def().prefix(&parts)?, reverse, self::limit(limit)?);
                rows(py, this.at(), &Self::table(slf), Kind::Items, of)
            }

            /// The first key and its value, or None.
            fn first<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Pair<'py>>> {
                let (py, this) = (slf.py(), slf.get());
                end(py, this.at(), this.def(), false)
            }

            /// The last key and its value, or None.
            fn last<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Pair<'py>>> {
                let (py, this) = (slf.py(), slf.get());
                end(py, this.at(), this.def(), true)
            }

            /// How many records there are from `lo` to before `hi`. O(records).
            #[pyo3(signature = (lo=None, hi=None, *, inclusive=false))]
            fn count(
                slf: &Bound<'_, Self>,
                lo: Option<Object<'_>>,
                hi: Option<Object<'_>>,
                inclusive: bool,
            ) -> PyResult<u64> {
                let (py, this) = (slf.py(), slf.get());
                let range = this.def().range(lo.as_ref(), hi.as_ref(), inclusive)?;
                count(py, this.at(), this.def(), &range)
            }

            $($more)*
        }
    };
}

/// Defines the methods of a class that can be written.
macro_rules! writes {
    ($class:ident, { $($more:tt)* }) => {
        methods!($class, {
            fn __setitem__(
                slf: &Bound<'_, Self>,
                key: Object<'_>,
                value: Object<'_>,
            ) -> PyResult<()> {
                let (py, this) = (slf.py(), slf.get());
                put(py, this.at(), this.def(), &key, &value)
            }

            fn __delitem__(slf: &Bound<'_, Self>, key: Object<'_>) -> PyResult<()> {
                let (py, this) = (slf.py(), slf.get());
                match remove(py, this.at(), this.def(), &key)? {
                    true => Ok(()),
                    false => Err(missing(&key)),
                }
            }

            /// Writes a value, whether there is one or not.
            #[pyo3(signature = (key, value, /))]
            fn put(slf: &Bound<'_, Self>, key: Object<'_>, value: Object<'_>) -> PyResult<()> {
                let (py, this) = (slf.py(), slf.get());
                put(py, this.at(), this.def(), &key, &value)
            }

            /// Writes a value where there is none; raises `Exists` if there is one.
            #[pyo3(signature = (key, value, /))]
            fn insert(slf: &Bound<'_, Self>, key: Object<'_>, value: Object<'_>) -> PyResult<()> {
                let (py, this) = (slf.py(), slf.get());
                insert(py, this.at(), this.def(), &key, &value)
            }

            /// Removes a record; returns whether there was one.
            #[pyo3(signature = (key, /))]
            fn remove(slf: &Bound<'_, Self>, key: Object<'_>) -> PyResult<bool> {
                let (py, this) = (slf.py(), slf.get());
                remove(py, this.at(), this.def(), &key)
            }

            /// Removes a record and returns its value, or the default; raises KeyError without one.
            #[pyo3(signature = (key, /, *default))]
            fn pop<'py>(
                slf: &Bound<'py, Self>,
                key: Object<'py>,
                default: Bound<'py, PyTuple>,
            ) -> PyResult<Object<'py>> {
                let (py, this) = (slf.py(), slf.get());
                if default.len() > 1 {
                    return Err(type_error("pop takes a key and one default at most"));
                }
                pop(py, this.at(), this.def(), &key, default.get_item(0).ok())
            }

            /// Removes the last record and returns its key and value; raises KeyError if empty.
            fn popitem<'py>(slf: &Bound<'py, Self>) -> PyResult<Pair<'py>> {
                let (py, this) = (slf.py(), slf.get());
                let found = pop_end(py, this.at(), this.def(), true)?;
                found.ok_or_else(|| pyo3::exceptions::PyKeyError::new_err("the table is empty"))
            }

            /// The value of a key; writes the default if there is none.
            #[pyo3(signature = (key, default=None, /))]
            fn setdefault<'py>(
                slf: &Bound<'py, Self>,
                key: Object<'py>,
                default: Option<Object<'py>>,
            ) -> PyResult<Object<'py>> {
                let (py, this) = (slf.py(), slf.get());
                let default = default.unwrap_or_else(|| py.None().into_bound(py));
                setdefault(py, this.at(), this.def(), &key, default)
            }

            /// Writes the pairs of a mapping, or of an iterable of pairs, in one transaction.
            #[pyo3(signature = (other, /))]
            fn update(slf: &Bound<'_, Self>, other: Object<'_>) -> PyResult<()> {
                let (py, this) = (slf.py(), slf.get());
                update(py, this.at(), this.def(), &other)
            }

            /// Writes `function(value)` and returns it; `function(default)` if there is no
            /// record. The function may run several times, for `time` seconds (10) at most. In
            /// a transaction the time is that of the transaction.
            #[pyo3(signature = (key, function, default=None, /, *, time=None))]
            fn change<'py>(
                slf: &Bound<'py, Self>,
                key: Object<'py>,
                function: Object<'py>,
                default: Option<Object<'py>>,
                time: Option<f64>,
            ) -> PyResult<Object<'py>> {
                let (py, this) = (slf.py(), slf.get());
                let default = default.unwrap_or_else(|| py.None().into_bound(py));
                let time = time.map(duration).transpose()?;
                change(py, this.at(), this.def(), &key, (&function, &default), time)
            }

            /// Adds to a number and returns the sum; a missing one is zero.
            #[pyo3(signature = (key, amount=None, /), text_signature = "($self, key, amount=1, /)")]
            fn add<'py>(
                slf: &Bound<'py, Self>,
                key: Object<'py>,
                amount: Option<Object<'py>>,
            ) -> PyResult<Object<'py>> {
                let (py, this) = (slf.py(), slf.get());
                let amount = match amount {
                    Some(amount) => amount,
                    None => 1i64.into_pyobject(py)?.into_any(),
                };
                add(py, this.at(), this.def(), &key, &amount)
            }

            /// Writes a value under the integer behind the last key, and returns that.
            #[pyo3(signature = (value, /))]
            fn append<'py>(slf: &Bound<'py, Self>, value: Object<'py>) -> PyResult<Object<'py>> {
                let (py, this) = (slf.py(), slf.get());
                append(py, this.at(), this.def(), &value)
            }

            /// Removes the first record and returns its key and value, or None.
            fn pop_first<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Pair<'py>>> {
                let (py, this) = (slf.py(), slf.get());
                pop_end(py, this.at(), this.def(), false)
            }

            /// Removes the last record and returns its key and value, or None.
            fn pop_last<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Pair<'py>>> {
                let (py, this) = (slf.py(), slf.get());
                pop_end(py, this.at(), this.def(), true)
            }

            /// Removes the records from `lo` to before `hi`; returns how many there were.
            #[pyo3(signature = (lo=None, hi=None, *, inclusive=false))]
            fn remove_range(
                slf: &Bound<'_, Self>,
                lo: Option<Object<'_>>,
                hi: Option<Object<'_>>,
                inclusive: bool,
            ) -> PyResult<u64> {
                let (py, this) = (slf.py(), slf.get());
                let range = this.def().range(lo.as_ref(), hi.as_ref(), inclusive)?;
                remove_range(py, this.at(), this.def(), &range)
            }

            /// Removes all records, in one transaction.
            fn clear(slf: &Bound<'_, Self>) -> PyResult<()> {
                let (py, this) = (slf.py(), slf.get());
                let all = (End::Unbounded, End::Unbounded);
                remove_range(py, this.at(), this.def(), &all).map(drop)
            }

            $($more)*
        });
    };
}

fn rows(
    py: Python<'_>,
    at: At<'_>,
    table: &Py<PyTable>,
    kind: Kind,
    of: (Range, bool, usize),
) -> PyResult<PyRows> {
    PyRows::new(py, at, table.clone_ref(py), kind, of)
}

/// The common interface of the three classes.
trait OfTable: PyClass {
    fn def(&self) -> &Def;

    fn at(&self) -> At<'_>;

    fn table(this: &Bound<'_, Self>) -> Py<PyTable>;
}

impl OfTable for PyTable {
    #[inline]
    fn def(&self) -> &Def {
        &self.def
    }

    #[inline]
    fn at(&self) -> At<'_> {
        At::Store(&self.db)
    }

    fn table(this: &Bound<'_, Self>) -> Py<PyTable> {
        this.clone().unbind()
    }
}

impl OfTable for PyTransactionTable {
    #[inline]
    fn def(&self) -> &Def {
        &self.table.get().def
    }

    #[inline]
    fn at(&self) -> At<'_> {
        At::Transaction(&self.tx)
    }

    fn table(this: &Bound<'_, Self>) -> Py<PyTable> {
        this.get().table.clone_ref(this.py())
    }
}

impl OfTable for PySnapshotTable {
    #[inline]
    fn def(&self) -> &Def {
        &self.table.get().def
    }

    #[inline]
    fn at(&self) -> At<'_> {
        At::Snapshot(&self.snapshot)
    }

    fn table(this: &Bound<'_, Self>) -> Py<PyTable> {
        this.get().table.clone_ref(this.py())
    }
}

writes!(PyTable, {
    /// The type of the keys, as the catalog has it.
    #[getter]
    fn key_type(&self) -> &str {
        &self.def.key_type
    }

    /// The type of the values, as the catalog has it.
    #[getter]
    fn value_type(&self) -> &str {
        &self.def.value_type
    }

    /// A copy in another process opens the store there.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let values = match &self.codec {
            Some(codec) => codec.clone_ref(py),
            None => self.def.value_type.as_str().into_pyobject(py)?.into_any().unbind(),
        };
        let make = PyModule::import(py, "latchwork._store")?.getattr("_table")?;
        let (name, version) = (self.def.table.name(), self.def.table.version());
        let mode = self.def.mode.map(mode_name);
        let of = (&self.db, name, &self.def.key_type, values, version, mode);
        (make, of).into_pyobject(py).map(Bound::into_any)
    }

    fn __repr__(&self) -> String {
        format!("<latchwork.Table {:?}>", self.def.table.name())
    }
});

writes!(PyTransactionTable, {
    /// The value of a key, or the default. No other transaction reads it for update until this one
    /// ends.
    #[pyo3(signature = (key, default=None, /))]
    fn get_for_update<'py>(
        slf: &Bound<'py, Self>,
        key: Object<'py>,
        default: Option<Object<'py>>,
    ) -> PyResult<Option<Object<'py>>> {
        let (py, this) = (slf.py(), slf.get());
        let def = this.def();
        Ok(get_for_update(py, this.tx.get(), def, &def.key(&key)?)?.or(default))
    }
});

methods!(PySnapshotTable, {});

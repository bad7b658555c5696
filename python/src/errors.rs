//! Errors of the store as exceptions of Python: the classes are in `_errors.py`.

use latchwork_machine::AttachError;
use latchwork_region::Error as RegionError;
use latchwork_store::Error;
use pyo3::exceptions::{PyKeyError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict};

use crate::keys;
use crate::types::Kind;

static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// An exception of a class of `_errors.py`.
#[cold]
fn of_class(py: Python<'_>, class: &str, text: String, facts: Facts) -> PyErr {
    let made = || {
        let load = || PyModule::import(py, "latchwork._errors").map(Bound::unbind);
        let module = MODULE.get_or_try_init(py, load)?.bind(py);
        let named = PyDict::new(py);
        named.set_item("retryable", facts.retryable)?;
        named.set_item("table", facts.table)?;
        // The bytes, if they are no key that Python has written.
        let key = facts.key.map(|key| match keys::decode(py, &Kind::Parts, &key) {
            Ok(key) => key,
            Err(_) => PyBytes::new(py, &key).into_any(),
        });
        named.set_item("key", key)?;
        let made = module.getattr("_make")?.call((class, text, facts.no_space), Some(&named))?;
        Ok::<_, PyErr>(PyErr::from_value(made))
    };
    made().unwrap_or_else(|why| why)
}

/// The attributes of an exception.
#[derive(Default)]
struct Facts {
    retryable: bool,
    no_space: bool,
    table: Option<String>,
    key: Option<Vec<u8>>,
}

pub(crate) fn misuse(py: Python<'_>, text: String) -> PyErr {
    of_class(py, "Misuse", text, Facts::default())
}

pub(crate) fn closed(py: Python<'_>, what: &str) -> PyErr {
    of_class(py, "Closed", format!("the {what} is closed"), Facts::default())
}

pub(crate) fn forked(py: Python<'_>, what: &str) -> PyErr {
    let text = format!("the {what} belongs to the parent process: begin a new one after a fork");
    of_class(py, "Forked", text, Facts::default())
}

pub(crate) fn read_only(py: Python<'_>, why: &str) -> PyErr {
    let text = format!("the store is open read-only, and {why}: open it without read_only");
    of_class(py, "ReadOnly", text, Facts::default())
}

pub(crate) fn table_type(py: Python<'_>, table: &str, text: String) -> PyErr {
    let table = Some(table.to_owned());
    of_class(py, "TableType", text, Facts { table, ..Facts::default() })
}

pub(crate) fn missing(key: &Bound<'_, PyAny>) -> PyErr {
    PyKeyError::new_err((key.clone().unbind(),))
}

pub(crate) fn value_error(text: impl Into<String>) -> PyErr {
    PyValueError::new_err(text.into())
}

pub(crate) fn type_error(text: impl Into<String>) -> PyErr {
    PyTypeError::new_err(text.into())
}

pub(crate) fn overflow(text: impl Into<String>) -> PyErr {
    PyOverflowError::new_err(text.into())
}

/// Whether a part of the store says that it belongs to the parent of this process.
fn is_forked(why: &Error) -> bool {
    let mut why: Option<&(dyn std::error::Error + 'static)> = Some(why);
    while let Some(this) = why {
        if this.to_string().contains("fork") {
            return true;
        }
        why = this.source();
    }
    false
}

/// Whether an error of shared memory is the cause.
fn has_cause(why: &Error, is: impl Fn(&RegionError) -> bool) -> bool {
    let mut why: Option<&(dyn std::error::Error + 'static)> = Some(why);
    while let Some(this) = why {
        if this.downcast_ref().is_some_and(&is) {
            return true;
        }
        why = this.source();
    }
    false
}

/// The exception for an error of the store.
#[cold]
pub(crate) fn raise(py: Python<'_>, why: Error) -> PyErr {
    let (retryable, no_space) = (why.is_retryable(), why.is_no_space());
    let mut facts = Facts { retryable, no_space, ..Facts::default() };
    let mut inner = &why;
    while let Error::Aborted { why } = inner {
        inner = why;
    }
    if has_cause(inner, |why| matches!(why, RegionError::Waiters(AttachError::TooMany))) {
        let text = format!(
            "this process has too many stores open, 73 at most: close some, or use one store object \
             in all threads ({why})"
        );
        return of_class(py, "Full", text, facts);
    }
    if has_cause(inner, |why| matches!(why, RegionError::TooLarge(_))) {
        let text = format!("{why}: open the store with small=True, or with a smaller cache_max");
        return of_class(py, "OpenFailed", text, facts);
    }
    let class = match inner {
        Error::CommitUnknown { .. } => "CommitUnknown",
        Error::ReadsUnknown { .. } => "ReadsUnknown",
        _ if no_space => "NoSpace",
        _ if why.is_damage() => "Damaged",
        Error::Lock { table, key, .. } => {
            (facts.table, facts.key) = (Some(table.clone()), Some(key.clone()));
            "Conflict"
        }
        Error::OwnTransaction { table, key, .. } => {
            (facts.table, facts.key) = (Some(table.clone()), Some(key.clone()));
            "OwnTransaction"
        }
        Error::Exists { table, key } => {
            (facts.table, facts.key) = (Some(table.clone()), Some(key.clone()));
            "Exists"
        }
        Error::Migrated => "Conflict",
        Error::Deadline { .. } => "Deadline",
        Error::SnapshotTooOld { .. } | Error::TransactionTooOld => "TooOld",
        Error::KeyTooLong { .. } | Error::NameTooLong { .. } | Error::ValueTooLong { .. } => {
            "TooLong"
        }
        Error::TableType { .. } | Error::Key { .. } | Error::Value { .. } => "TableType",
        Error::Threads { .. } => "Full",
        Error::ReadOnly => "ReadOnly",
        Error::Open { .. } => "OpenFailed",
        // A refusal of this module, where there is no interpreter.
        Error::Options(_) | Error::Rejected(_) => return value_error(why.to_string()),
        Error::Savepoint | Error::Panicked => "Misuse",
        _ if retryable => "Conflict",
        inner if is_forked(inner) => "Forked",
        _ => "Error",
    };
    // The cause of the abort decides what the caller does; the text has both.
    of_class(py, class, why.to_string(), facts)
}

//! The compiled part of the Python package `latchwork`.
//!
//! ```text
//! lib            what Python imports
//! mapping        the classes of tables
//! table          what is done on a table in one call
//! rows           iterators
//! transaction    transactions by hand, and the loop that runs one again
//! snapshot       snapshots
//! store          a store that is open; forks
//! values  cbor   values, from and to bytes
//! keys           keys, from and to bytes
//! types          types that the catalog has
//! aio            transactions of tasks
//! cache          the calls of a cache that are made most
//! tools          what is going on in a store
//! turn           an object that one thread uses at a time
//! process        forks, signals, waits without the interpreter
//! errors         exceptions
//! ```

mod aio;
mod cache;
mod cbor;
mod errors;
mod keys;
mod mapping;
mod process;
mod rows;
mod snapshot;
mod store;
mod table;
mod tools;
mod transaction;
mod turn;
mod types;
mod values;

use std::ffi::OsString;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

#[pymodule(gil_used = false)]
fn _latchwork(module: &Bound<'_, PyModule>) -> PyResult<()> {
    process::watch_forks();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<store::Db>()?;
    module.add_class::<store::PySequence>()?;
    module.add_class::<mapping::PyTable>()?;
    module.add_class::<mapping::PyTransactionTable>()?;
    module.add_class::<mapping::PySnapshotTable>()?;
    module.add_class::<rows::PyRows>()?;
    module.add_class::<transaction::PyTransaction>()?;
    module.add_class::<transaction::PySavepoint>()?;
    module.add_class::<transaction::PyAttempts>()?;
    module.add_class::<snapshot::PySnapshot>()?;
    module.add_class::<aio::PyAsyncTransaction>()?;
    module.add_class::<aio::PyCall>()?;
    module.add("MAX_KEY", latchwork_store::KEY_MAX)?;
    module.add("MAX_VALUE", latchwork_store::VALUE_MAX)?;
    module.add_function(wrap_pyfunction!(dumps, module)?)?;
    module.add_function(wrap_pyfunction!(loads, module)?)?;
    module.add("_CACHE_HEAD", cache::HEAD)?;
    module.add_function(wrap_pyfunction!(cache::set, module)?)?;
    module.add_function(wrap_pyfunction!(cache::add, module)?)?;
    module.add_function(wrap_pyfunction!(cache::insert, module)?)?;
    module.add_function(wrap_pyfunction!(cache::delete, module)?)?;
    module.add_function(wrap_pyfunction!(command, module)?)?;
    module.add_function(wrap_pyfunction!(tools::look, module)?)?;
    module.add_function(wrap_pyfunction!(tools::copy, module)?)
}

/// Runs the program `latchwork` with these arguments, beginning with its name. Returns its exit
/// code.
#[pyfunction]
#[pyo3(name = "_command")]
fn command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| latchwork_cli::run(arguments))
}

/// The bytes of a value, as tables have them.
#[pyfunction]
#[pyo3(signature = (value, /))]
fn dumps<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let mut bytes = Vec::with_capacity(64);
    cbor::encode(value, &mut bytes)?;
    Ok(PyBytes::new(value.py(), &bytes))
}

/// The value that has these bytes.
#[pyfunction]
#[pyo3(signature = (value, /))]
fn loads<'py>(py: Python<'py>, value: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    cbor::decode(py, value)
}

//! The compiled part of the Python package `latchwork`.
//!
//! ```text
//! lib            what Python imports
//! table          tables: what is done in one call
//! rows           iterators
//! transaction    transactions by hand, and the loop that runs one again
//! snapshot       snapshots
//! store          a store that is open; forks
//! values  cbor   values, from and to bytes
//! keys           keys, from and to bytes
//! types          types that the catalog has
//! turn           an object that one thread uses at a time
//! process        forks, signals, waits without the interpreter
//! errors         exceptions
//! ```

mod cbor;
mod errors;
mod keys;
mod process;
mod rows;
mod snapshot;
mod store;
mod table;
mod transaction;
mod turn;
mod types;
mod values;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _latchwork(module: &Bound<'_, PyModule>) -> PyResult<()> {
    process::watch_forks();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<store::Db>()?;
    module.add_class::<store::PySequence>()?;
    module.add_class::<table::PyTable>()?;
    module.add_class::<table::PyTransactionTable>()?;
    module.add_class::<table::PySnapshotTable>()?;
    module.add_class::<rows::PyRows>()?;
    module.add_class::<transaction::PyTransaction>()?;
    module.add_class::<transaction::PySavepoint>()?;
    module.add_class::<transaction::PyAttempts>()?;
    module.add_class::<snapshot::PySnapshot>()?;
    Ok(())
}

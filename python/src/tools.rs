//! The activity of a store as lists and dicts, and copies of it.

use std::path::PathBuf;

use latchwork_store::{Store, TransactionInfo};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::process::wait;
use crate::store::Db;

type Dict<'py> = Bound<'py, PyDict>;

fn transaction<'py>(py: Python<'py>, of: &TransactionInfo) -> PyResult<Dict<'py>> {
    let dict = PyDict::new(py);
    dict.set_item("pid", of.pid)?;
    dict.set_item("state", format!("{:?}", of.state).to_lowercase())?;
    dict.set_item("label", &of.label)?;
    dict.set_item("age", of.age.as_secs_f64())?;
    dict.set_item("log_kept", of.log_kept)?;
    dict.set_item("locks", of.held)?;
    match &of.waits {
        None => dict.set_item("waits_for", py.None())?,
        Some(wait) => {
            let waits = PyDict::new(py);
            waits.set_item("table", &wait.table)?;
            waits.set_item("key", &wait.key)?;
            waits.set_item("mode", wait.mode)?;
            waits.set_item("since", wait.since.as_secs_f64())?;
            dict.set_item("waits_for", waits)?;
        }
    }
    Ok(dict)
}

fn stats<'py>(py: Python<'py>, store: &Store) -> PyResult<Dict<'py>> {
    let metrics = wait(py, || store.metrics())?;
    let all = PyDict::new(py);
    for metric in metrics.iter() {
        let name = metric.name.strip_prefix("latchwork_").unwrap_or(metric.name);
        for sample in &metric.samples {
            let name = format!("{name}{}", sample.suffix);
            match &sample.label {
                None => all.set_item(name, sample.value)?,
                Some((_, label)) => {
                    let of = match all.get_item(&name)? {
                        Some(of) => of.cast_into::<PyDict>()?,
                        None => PyDict::new(py),
                    };
                    of.set_item(label, sample.value)?;
                    all.set_item(name, of)?;
                }
            }
        }
    }
    Ok(all)
}

fn processes<'py>(py: Python<'py>, store: &Store) -> PyResult<Bound<'py, PyList>> {
    let found = wait(py, || store.view()?.processes())?;
    let all = PyList::empty(py);
    for process in &found.processes {
        let dict = PyDict::new(py);
        dict.set_item("pid", process.pid)?;
        dict.set_item("state", format!("{:?}", process.state).to_lowercase())?;
        dict.set_item("command", &process.command)?;
        dict.set_item("age", process.age.map(|age| age.as_secs_f64()))?;
        dict.set_item("threads", process.threads)?;
        let transactions = process.transactions.iter().map(|of| transaction(py, of));
        dict.set_item("transactions", transactions.collect::<PyResult<Vec<_>>>()?)?;
        dict.set_item("snapshots", process.snapshots.len())?;
        let holds = process.holds.iter().map(ToString::to_string);
        dict.set_item("holds", holds.collect::<Vec<_>>())?;
        all.append(dict)?;
    }
    Ok(all)
}

fn locks<'py>(py: Python<'py>, store: &Store) -> PyResult<Bound<'py, PyList>> {
    let found = wait(py, || store.view()?.locks())?;
    let all = PyList::empty(py);
    for lock in &found {
        let dict = PyDict::new(py);
        dict.set_item("table", &lock.table)?;
        dict.set_item("key", &lock.key)?;
        dict.set_item("mode", lock.mode)?;
        dict.set_item("held", lock.held)?;
        dict.set_item("waited", lock.waited.map(|waited| waited.as_secs_f64()))?;
        dict.set_item("transaction", transaction(py, &lock.transaction)?)?;
        all.append(dict)?;
    }
    Ok(all)
}

fn tables<'py>(py: Python<'py>, store: &Store) -> PyResult<Dict<'py>> {
    let found = wait(py, || store.table_infos())?;
    let all = PyDict::new(py);
    for table in found {
        let dict = PyDict::new(py);
        dict.set_item("keys", table.key)?;
        dict.set_item("values", table.value)?;
        dict.set_item("version", table.version)?;
        dict.set_item("migrating", table.migrating)?;
        all.set_item(table.name, dict)?;
    }
    Ok(all)
}

fn backup<'py>(py: Python<'py>, store: &Store, to: &PathBuf) -> PyResult<Dict<'py>> {
    let copied = wait(py, || store.backup(to, &mut |_| {}))?;
    let dict = PyDict::new(py);
    dict.set_item("pages", copied.pages)?;
    dict.set_item("page_bytes", copied.page_bytes)?;
    dict.set_item("log_bytes", copied.log_bytes)?;
    Ok(dict)
}

/// Information about the store: `stats`, `processes`, `locks` or `tables`.
#[pyfunction]
#[pyo3(name = "_look")]
pub(crate) fn look<'py>(py: Python<'py>, db: &Db, what: &str) -> PyResult<Bound<'py, PyAny>> {
    let store = db.store(py)?;
    Ok(match what {
        "stats" => stats(py, &store)?.into_any(),
        "processes" => processes(py, &store)?.into_any(),
        "locks" => locks(py, &store)?.into_any(),
        _ => tables(py, &store)?.into_any(),
    })
}

/// Copies the store into a folder that does not exist, while others use it.
#[pyfunction]
#[pyo3(name = "_backup")]
pub(crate) fn copy<'py>(py: Python<'py>, db: &Db, to: PathBuf) -> PyResult<Dict<'py>> {
    db.writes(py, "a backup first makes all commits durable")?;
    let store = db.store(py)?;
    backup(py, &store, &to)
}

//! Transactions by hand, and the loop that runs one again.

use std::mem::forget;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use latchwork_machine::Shared;
use latchwork_store::{Entered, Error, Level, Mode, Savepoint, Transaction, TxnOptions, WriteTxn};
use pyo3::prelude::*;

use crate::errors::{closed, forked, misuse, raise, value_error};
use crate::mapping::PyTransactionTable;
use crate::process::{self, wait, wait_raw};
use crate::store::{Db, table_of};
use crate::table::{self, At, get_for_update, is_plain};
use crate::turn::{Taken, Turn};

/// How a transaction has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// It has not.
    Open,
    Committed,
    RolledBack,
    /// It must run again.
    Again,
}

pub(crate) struct State {
    tx: Option<Transaction>,
    ended: Ended,
    /// The error of a failed call after which the transaction may run again.
    failed: Option<Error>,
    /// Set while a function or a block runs: calls of the same thread must not wait for it.
    entered: Option<Entered<Shared>>,
}

#[pyclass(frozen, name = "Transaction", module = "latchwork")]
pub(crate) struct PyTransaction {
    state: Turn<State>,
    forks: u64,
    db: Py<Db>,
    options: TxnOptions,
    /// Whether a loop runs it again.
    again: bool,
    /// The number of its run. It is odd after the end of a run.
    run: AtomicU64,
}

/// A level as Python gives it.
fn level(level: &str) -> PyResult<Level> {
    match level {
        "serializable" => Ok(Level::Serializable),
        "read-committed" => Ok(Level::ReadCommitted),
        other => Err(value_error(format!("{other:?}: a level is serializable or read-committed"))),
    }
}

/// A mode as Python gives it: a word, or seconds.
pub(crate) fn mode(mode: &Bound<'_, PyAny>) -> PyResult<Mode> {
    if let Ok(seconds) = mode.extract::<f64>() {
        return Ok(Mode::Periodic(duration(seconds)?));
    }
    let said = mode.extract::<String>()?;
    if let Ok(seconds) = said.parse::<f64>() {
        return Ok(Mode::Periodic(duration(seconds)?));
    }
    match &*said {
        "full" => Ok(Mode::Full),
        "write" => Ok(Mode::Write),
        "none" => Ok(Mode::None),
        other => Err(value_error(format!("{other:?}: a mode is full, write, none, or seconds"))),
    }
}

pub(crate) fn duration(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| value_error(format!("{seconds}: no time")))
}

/// The options of a transaction.
pub(crate) fn patience(
    time: f64,
    label: &str,
    said: &str,
    how: Option<&Bound<'_, PyAny>>,
) -> PyResult<TxnOptions> {
    let time = duration(time)?;
    let mode = how.filter(|mode| !mode.is_none()).map(self::mode).transpose()?;
    // A label is kept until the process ends, once, as the name of a table is.
    let label = match label {
        "" => "",
        label => latchwork_store::Sequence::named(label).name(),
    };
    Ok(TxnOptions { time, label, level: level(said)?, mode })
}

impl PyTransaction {
    pub(crate) fn begin(
        py: Python<'_>,
        db: &Py<Db>,
        options: &TxnOptions,
        again: bool,
    ) -> PyResult<Self> {
        let store = db.get().store(py)?;
        let tx = wait(py, || store.begin_with(options))?;
        let state = State { tx: Some(tx), ended: Ended::Open, failed: None, entered: None };
        let (forks, db, options) = (process::forks(), db.clone_ref(py), *options);
        let run = AtomicU64::new(0);
        Ok(Self { state: Turn::new(state), forks, db, options, again, run })
    }

    /// The number of its run, for iterators.
    pub(crate) fn run(&self) -> u64 {
        // Relaxed: a thread sees what it has stored, and another one may be late.
        self.run.load(Ordering::Relaxed)
    }

    /// Checks that an iterator of this run may continue.
    #[inline]
    pub(crate) fn check(&self, py: Python<'_>, run: u64) -> PyResult<()> {
        match self.run() == run {
            true => Ok(()),
            false => Err(closed(py, "transaction of the iterator")),
        }
    }

    /// A run begins or ends.
    fn note_run(&self, begins: bool) {
        let run = self.run();
        let next = if begins { (run | 1) + 1 } else { run | 1 };
        // Relaxed: as in `run`.
        self.run.store(next, Ordering::Relaxed);
    }

    fn take(&self, py: Python<'_>) -> PyResult<Taken<'_, State>> {
        // A thread that the child does not have may have it: so this comes first.
        if self.forks != process::forks() {
            return Err(forked(py, "transaction"));
        }
        self.state.take_now(py, "transaction")
    }

    /// Does something with the transaction, without the interpreter.
    pub(crate) fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut WriteTxn<'_, '_>) -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        let mut state = self.take(py)?;
        let state = &mut *state;
        let Some(tx) = &mut state.tx else { return Err(closed(py, "transaction")) };
        match wait_raw(py, || tx.with(work))? {
            Ok(done) => Ok(done),
            Err(why) => {
                if why.is_retryable() {
                    state.failed = Some(why.clone());
                }
                Err(raise(py, why))
            }
        }
    }

    fn commit_now(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let mut state = self.take(py)?;
        state.entered = None;
        let Some(tx) = state.tx.take() else { return Err(closed(py, "transaction")) };
        self.note_run(false);
        state.ended = Ended::RolledBack;
        match wait_raw(py, || tx.commit()) {
            Ok(Ok(at)) => {
                state.ended = Ended::Committed;
                Ok(at)
            }
            Ok(Err(why)) => {
                if why.is_retryable() {
                    state.failed = Some(why.clone());
                }
                if matches!(why, Error::CommitUnknown { .. }) {
                    state.ended = Ended::Committed;
                }
                Err(raise(py, why))
            }
            // A signal's handler has raised, and the commit is not told.
            Err(raised) => {
                state.ended = Ended::Committed;
                Err(raised)
            }
        }
    }

    fn roll_back_now(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = self.take(py)?;
        state.entered = None;
        let Some(tx) = state.tx.take() else { return Ok(()) };
        self.note_run(false);
        state.ended = Ended::RolledBack;
        wait(py, || tx.roll_back())
    }

    /// Restarts it.
    fn restart_now(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = self.take(py)?;
        let state = &mut *state;
        match &mut state.tx {
            Some(tx) => wait(py, || tx.restart())?,
            None => {
                let store = self.db.get().store(py)?;
                state.tx = Some(wait(py, || store.begin_with(&self.options))?);
            }
        }
        self.note_run(true);
        (state.ended, state.failed) = (Ended::Open, None);
        Ok(())
    }

    /// Marks the transaction as used by a function or a block of the calling thread.
    fn enter(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = self.take(py)?;
        state.entered = None;
        let Some(tx) = &state.tx else { return Err(closed(py, "transaction")) };
        let entered = tx.enter().map_err(|why| raise(py, why))?;
        state.entered = Some(entered);
        Ok(())
    }

    /// Ends a run, with an exception or without. Returns true if the transaction must run again:
    /// the errors that the transaction has met decide this, not the caller's exception.
    fn end(&self, py: Python<'_>, error: Option<&PyErr>) -> PyResult<bool> {
        let is_open = self.take(py)?.tx.is_some();
        let failed = match error {
            None if !is_open => return Ok(false),
            None => match self.commit_now(py) {
                Ok(_) => return Ok(false),
                Err(why) => Some(why),
            },
            Some(_) => None,
        };
        let mut state = self.take(py)?;
        state.entered = None;
        let plain = failed.as_ref().or(error).is_some_and(|why| is_plain(py, why));
        if self.again && plain && state.failed.is_some() {
            self.note_run(false);
            state.ended = Ended::Again;
            return Ok(true);
        }
        drop(state);
        self.roll_back_now(py)?;
        failed.map_or(Ok(false), Err)
    }

    /// The error after which the transaction runs again.
    fn failed(&self, py: Python<'_>) -> PyResult<Error> {
        let failed = self.take(py)?.failed.take();
        Ok(failed.unwrap_or(Error::TransactionTooOld))
    }
}

impl Drop for PyTransaction {
    fn drop(&mut self) {
        if self.forks != process::forks() {
            let state = self.state.get_mut();
            forget((state.tx.take(), state.entered.take()));
        }
    }
}

/// The end of the time of a transaction that is run again.
fn deadline(options: &TxnOptions) -> Option<Instant> {
    Instant::now().checked_add(options.time)
}

fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

/// Runs a function in a transaction until it commits.
pub(crate) fn run<R>(
    py: Python<'_>,
    db: &Py<Db>,
    options: &TxnOptions,
    mut work: impl FnMut(&Py<PyTransaction>) -> PyResult<R>,
) -> PyResult<R> {
    let (deadline, mut runs) = (deadline(options), 1);
    let tx = Py::new(py, PyTransaction::begin(py, db, options, true)?)?;
    loop {
        tx.get().enter(py)?;
        let (done, error) = match work(&tx) {
            Ok(done) => (Some(done), None),
            Err(why) => (None, Some(why)),
        };
        let again = tx.get().end(py, error.as_ref())?;
        match (again, done, error) {
            (false, _, Some(why)) => return Err(why),
            (false, Some(done), None) => return Ok(done),
            _ => {}
        }
        if is_over(deadline) {
            return Err(over(py, tx.get(), runs)?);
        }
        tx.get().restart_now(py)?;
        runs += 1;
    }
}

/// The exception at the end of the time.
fn over(py: Python<'_>, tx: &PyTransaction, runs: u32) -> PyResult<PyErr> {
    let last = Box::new(tx.failed(py)?);
    tx.roll_back_now(py)?;
    Ok(raise(py, Error::Deadline { runs, last }))
}

#[pymethods]
impl PyTransaction {
    fn __getitem__(slf: &Bound<'_, Self>, table: Bound<'_, PyAny>) -> PyResult<PyTransactionTable> {
        let table = table_of(&slf.get().db, &table)?;
        Ok(PyTransactionTable { table, tx: slf.clone().unbind() })
    }

    #[pyo3(signature = (table, key, default=None, /))]
    fn get<'py>(
        slf: &Bound<'py, Self>,
        table: Bound<'py, PyAny>,
        key: Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let table = table_of(&slf.get().db, &table)?;
        let def = &table.get().def;
        let at = At::Transaction(slf.as_unbound());
        Ok(table::get(slf.py(), at, def, &def.key(&key)?)?.or(default))
    }

    #[pyo3(signature = (table, key, default=None, /))]
    fn get_for_update<'py>(
        slf: &Bound<'py, Self>,
        table: Bound<'py, PyAny>,
        key: Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let table = table_of(&slf.get().db, &table)?;
        let def = &table.get().def;
        Ok(get_for_update(slf.py(), slf.get(), def, &def.key(&key)?)?.or(default))
    }

    #[pyo3(signature = (table, key, value, /))]
    fn put(
        slf: &Bound<'_, Self>,
        table: Bound<'_, PyAny>,
        key: Bound<'_, PyAny>,
        value: Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let table = table_of(&slf.get().db, &table)?;
        let at = At::Transaction(slf.as_unbound());
        table::put(slf.py(), at, &table.get().def, &key, &value)
    }

    #[pyo3(signature = (table, key, /))]
    fn remove(
        slf: &Bound<'_, Self>,
        table: Bound<'_, PyAny>,
        key: Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let table = table_of(&slf.get().db, &table)?;
        table::remove(slf.py(), At::Transaction(slf.as_unbound()), &table.get().def, &key)
    }

    #[pyo3(
        signature = (table, key, amount=None, /),
        text_signature = "($self, table, key, amount=1, /)"
    )]
    fn add<'py>(
        slf: &Bound<'py, Self>,
        table: Bound<'py, PyAny>,
        key: Bound<'py, PyAny>,
        amount: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let table = table_of(&slf.get().db, &table)?;
        let amount = match amount {
            Some(amount) => amount,
            None => 1i64.into_pyobject(py)?.into_any(),
        };
        table::add(py, At::Transaction(slf.as_unbound()), &table.get().def, &key, &amount)
    }

    fn savepoint(&self, py: Python<'_>) -> PyResult<PySavepoint> {
        self.with(py, |tx| tx.savepoint()).map(PySavepoint)
    }

    #[pyo3(signature = (savepoint, /))]
    fn roll_back_to(&self, py: Python<'_>, savepoint: &PySavepoint) -> PyResult<()> {
        self.with(py, |tx| tx.roll_back_to(savepoint.0))
    }

    fn commit(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.commit_now(py)
    }

    fn roll_back(&self, py: Python<'_>) -> PyResult<()> {
        self.roll_back_now(py)
    }

    fn restart(&self, py: Python<'_>) -> PyResult<()> {
        self.restart_now(py)
    }

    #[getter]
    fn is_open(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.forks == process::forks() && self.take(py)?.tx.is_some())
    }

    fn __enter__(slf: &Bound<'_, Self>) -> PyResult<Py<Self>> {
        slf.get().enter(slf.py()).map(|()| slf.clone().unbind())
    }

    #[pyo3(signature = (kind, error, traceback, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Bound<'_, PyAny>,
        error: Bound<'_, PyAny>,
        traceback: Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let _ = (kind, traceback);
        let error = (!error.is_none()).then(|| PyErr::from_value(error));
        self.end(py, error.as_ref())
    }
}

#[pyclass(frozen, name = "Savepoint", module = "latchwork")]
pub(crate) struct PySavepoint(Savepoint);

/// The attempts of one transaction.
#[pyclass(frozen, name = "Attempts", module = "latchwork")]
pub(crate) struct PyAttempts {
    db: Py<Db>,
    options: TxnOptions,
    state: Turn<Loop>,
}

struct Loop {
    tx: Option<Py<PyTransaction>>,
    deadline: Option<Instant>,
    runs: u32,
}

impl PyAttempts {
    pub(crate) fn new(py: Python<'_>, db: &Py<Db>, options: TxnOptions) -> Self {
        let state = Loop { tx: None, deadline: None, runs: 0 };
        Self { db: db.clone_ref(py), options, state: Turn::new(state) }
    }
}

#[pymethods]
impl PyAttempts {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyTransaction>>> {
        let mut state = self.state.take_now(py, "iterator")?;
        state.runs += 1;
        let Some(tx) = &state.tx else {
            state.deadline = deadline(&self.options);
            let tx = Py::new(py, PyTransaction::begin(py, &self.db, &self.options, true)?)?;
            return Ok(Some(state.tx.insert(tx).clone_ref(py)));
        };
        let ended = tx.get().take(py)?.ended;
        match ended {
            Ended::Again if is_over(state.deadline) => Err(over(py, tx.get(), state.runs - 1)?),
            Ended::Again => {
                tx.get().restart_now(py)?;
                Ok(Some(tx.clone_ref(py)))
            }
            Ended::Open => {
                let text = "an attempt was not ended: write `with attempt as tx:` in the loop";
                Err(misuse(py, text.to_owned()))
            }
            Ended::Committed | Ended::RolledBack => Ok(None),
        }
    }
}

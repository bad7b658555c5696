//! Transactions of tasks: the futures of the store, polled by the loop's thread.
//!
//! A call has the transaction while its future runs, and gives it back at its end. If the task is
//! cancelled in a call, the future is dropped, and the transaction with it, which rolls it back.

use std::mem::forget;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use latchwork_machine::Shared;
use latchwork_store::{AsyncTransaction, Error, TaskClosure, TxnOptions};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::cbor::Number;
use crate::errors::{closed, forked, misuse, raise, type_error};
use crate::mapping::PyTable;
use crate::process::{forks, wait, wait_raw};
use crate::store::{Db, table_of};
use crate::table::{Bytes, limit, slices};
use crate::transaction::patience;
use crate::turn::{Taken, Turn};
use crate::values::{self, Refusal};

/// The result of a call.
enum Found {
    Nothing,
    Value(Option<Vec<u8>>),
    Flag(bool),
    Sum(Result<Number, Refusal>),
    Key(Result<i64, Refusal>),
    Pair(Option<Bytes>),
    Pairs(Vec<Bytes>),
    At(Option<u64>),
}

type Ended = (Option<AsyncTransaction>, Result<Found, Error>);
type Work = Pin<Box<dyn Future<Output = Ended> + Send>>;

struct State {
    /// None while a call has it, and at the end.
    tx: Option<AsyncTransaction>,
    /// Whether a call failed after which the transaction may be run again.
    failed: bool,
    /// The function of the program that has the transaction.
    closure: Option<TaskClosure<Shared>>,
}

#[pyclass(frozen, name = "_AsyncTransaction", module = "latchwork")]
pub(crate) struct PyAsyncTransaction {
    state: Turn<State>,
    forks: u64,
    db: Py<Db>,
    options: TxnOptions,
}

impl Drop for PyAsyncTransaction {
    fn drop(&mut self) {
        if self.forks != forks() {
            forget(self.state.get_mut().tx.take());
        }
    }
}

/// A call that has not ended.
#[pyclass(frozen, name = "_Call", module = "latchwork")]
pub(crate) struct PyCall {
    work: Turn<Option<Work>>,
    ended: Turn<Option<Result<Found, Error>>>,
    tx: Py<PyAsyncTransaction>,
    table: Option<Py<PyTable>>,
    default: Option<Py<PyAny>>,
    forks: u64,
}

impl Drop for PyCall {
    fn drop(&mut self) {
        if self.forks != forks() {
            forget(self.work.get_mut().take());
        }
    }
}

/// Wakes the loop for a future of Python.
#[derive(Default)]
struct Waking(Mutex<Stage>);

#[derive(Default)]
enum Stage {
    #[default]
    Polled,
    Woken,
    /// The loop's `call_soon_threadsafe`, what it is to call, and the future.
    Waits(Py<PyAny>, Py<PyAny>, Py<PyAny>),
}

impl Wake for Waking {
    fn wake(self: Arc<Self>) {
        let mut stage = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let was = std::mem::replace(&mut *stage, Stage::Woken);
        drop(stage);
        if let Stage::Waits(soon, set, future) = was {
            // A loop that is closed needs no wake, nor does an interpreter that ends.
            Python::try_attach(|py| drop(soon.call1(py, (set, future))));
        }
    }
}

#[pymethods]
impl PyCall {
    /// Polls the call: returns none if it has ended, or a future of the loop to wait for.
    fn poll<'py>(
        &self,
        py: Python<'py>,
        event_loop: Bound<'py, PyAny>,
        set: Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        if self.forks != forks() {
            return Err(forked(py, "transaction"));
        }
        let mut taken = self.work.take_now(py, "call")?;
        loop {
            let Some(work) = &mut *taken else { return Ok(None) };
            let waking = Arc::new(Waking::default());
            let waker = Waker::from(Arc::clone(&waking));
            let polled = wait_raw(py, || work.as_mut().poll(&mut Context::from_waker(&waker)))?;
            if let Poll::Ready((tx, found)) = polled {
                *taken = None;
                let mut state = self.tx.get().take(py)?;
                state.tx = tx;
                state.failed |= found.as_ref().is_err_and(Error::is_retryable);
                *self.ended.take_now(py, "call")? = Some(found);
                return Ok(None);
            }
            let future = event_loop.call_method0("create_future")?;
            let soon = event_loop.getattr("call_soon_threadsafe")?.unbind();
            let mut stage = waking.0.lock().unwrap_or_else(PoisonError::into_inner);
            if matches!(*stage, Stage::Polled) {
                *stage = Stage::Waits(soon, set.unbind(), future.clone().unbind());
                return Ok(Some(future));
            }
            // It was woken in between.
        }
    }

    /// The result, when the call has ended.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let found = self.ended.take_now(py, "call")?.take();
        let found = found.ok_or_else(|| misuse(py, "the call has not ended".to_owned()))?;
        let none = || py.None().into_bound(py);
        let def = self.table.as_ref().map(|table| &table.get().def);
        let pair = |(key, value): Bytes| {
            let def = def.ok_or_else(|| type_error("a call without a table"))?;
            PyTuple::new(py, <[_; 2]>::from(def.pair(py, &key, &value)?)).map(Bound::into_any)
        };
        Ok(match found.map_err(|why| raise(py, why))? {
            Found::Nothing | Found::Pair(None) | Found::At(None) => none(),
            Found::Value(Some(bytes)) => match def {
                Some(def) => def.values.decode(py, &bytes)?,
                None => none(),
            },
            Found::Value(None) => {
                self.default.as_ref().map_or_else(none, |default| default.bind(py).clone())
            }
            Found::Flag(is) => pyo3::types::PyBool::new(py, is).to_owned().into_any(),
            Found::Sum(sum) => values::number(py, sum.map_err(Refusal::raise)?)?,
            Found::Key(key) => key.map_err(Refusal::raise)?.into_pyobject(py)?.into_any(),
            Found::At(Some(at)) => at.into_pyobject(py)?.into_any(),
            Found::Pair(Some(bytes)) => pair(bytes)?,
            Found::Pairs(all) => {
                let all = all.into_iter().map(pair).collect::<PyResult<Vec<_>>>()?;
                PyList::new(py, all)?.into_any()
            }
        })
    }

    /// Drops the call and rolls the transaction back.
    fn drop(&self, py: Python<'_>) -> PyResult<()> {
        if self.forks != forks() {
            return Ok(());
        }
        let work = self.work.take_now(py, "call")?.take();
        py.detach(|| drop(work));
        Ok(())
    }
}

impl PyAsyncTransaction {
    fn take(&self, py: Python<'_>) -> PyResult<Taken<'_, State>> {
        if self.forks != forks() {
            return Err(forked(py, "transaction"));
        }
        self.state.take_now(py, "transaction")
    }

    /// A call that has the transaction.
    fn call<F: Future<Output = Ended> + Send + 'static>(
        slf: &Bound<'_, Self>,
        table: Option<Py<PyTable>>,
        default: Option<Py<PyAny>>,
        work: impl FnOnce(AsyncTransaction) -> F,
    ) -> PyResult<PyCall> {
        let py = slf.py();
        let tx = slf.get().take(py)?.tx.take().ok_or_else(|| closed(py, "transaction"))?;
        let work: Work = Box::pin(work(tx));
        let (work, ended) = (Turn::new(Some(work)), Turn::new(None));
        let tx = slf.clone().unbind();
        Ok(PyCall { work, ended, tx, table, default, forks: forks() })
    }

    fn table(slf: &Bound<'_, Self>, table: &Bound<'_, PyAny>) -> PyResult<Py<PyTable>> {
        table_of(&slf.get().db, table)
    }
}

type Object<'py> = Bound<'py, PyAny>;

#[pymethods]
impl PyAsyncTransaction {
    #[new]
    #[pyo3(signature = (db, /, *, time=10.0, label="", level="serializable", mode=None))]
    fn new(
        db: Py<Db>,
        time: f64,
        label: &str,
        level: &str,
        mode: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let options = patience(time, label, level, mode.as_ref())?;
        let state = Turn::new(State { tx: None, failed: false, closure: None });
        Ok(Self { state, forks: forks(), db, options })
    }

    /// Begins the transaction.
    fn begin(slf: &Bound<'_, Self>) -> PyResult<PyCall> {
        let (py, this) = (slf.py(), slf.get());
        let store = this.db.get().store(py)?;
        {
            let mut state = this.take(py)?;
            (state.tx, state.failed) = (None, false);
        }
        let options = this.options;
        let work: Work = Box::pin(async move {
            match store.begin_async_with(&options).await {
                Ok(tx) => (Some(tx), Ok(Found::Nothing)),
                Err(why) => (None, Err(why)),
            }
        });
        let (work, ended) = (Turn::new(Some(work)), Turn::new(None));
        let tx = slf.clone().unbind();
        Ok(PyCall { work, ended, tx, table: None, default: None, forks: forks() })
    }

    /// Runs a part of the program's function: calls `function(argument)`. A call in it that would
    /// wait for this transaction raises `OwnTransaction`.
    fn step<'py>(
        &self,
        py: Python<'py>,
        function: &Bound<'py, PyAny>,
        argument: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let closure = {
            let mut state = self.take(py)?;
            if let Some(tx) = &state.tx {
                let closure = tx.closure().map_err(|why| raise(py, why))?;
                state.closure = Some(closure);
            }
            state.closure.clone()
        };
        match closure {
            Some(closure) => closure.run(|| function.call1((argument,))),
            None => function.call1((argument,)),
        }
    }

    #[getter]
    fn failed(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.take(py)?.failed)
    }

    #[getter]
    fn is_open(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.take(py)?.tx.is_some())
    }

    /// Restarts the transaction with its old age. Returns false if it has ended.
    fn restart(&self, py: Python<'_>) -> PyResult<bool> {
        let mut state = self.take(py)?;
        let state = &mut *state;
        state.failed = false;
        match &mut state.tx {
            Some(tx) => wait(py, || tx.restart()).map(|()| true),
            None => Ok(false),
        }
    }

    /// Rolls back at once: the records that were read may not be durable.
    fn drop(&self, py: Python<'_>) -> PyResult<()> {
        let tx = self.take(py)?.tx.take();
        py.detach(|| drop(tx));
        Ok(())
    }

    fn commit(slf: &Bound<'_, Self>) -> PyResult<PyCall> {
        let work = |tx: AsyncTransaction| async move { (None, tx.commit().await.map(Found::At)) };
        Self::call(slf, None, None, work)
    }

    fn roll_back(slf: &Bound<'_, Self>) -> PyResult<PyCall> {
        let work = |tx: AsyncTransaction| async move {
            (None, tx.roll_back().await.map(|()| Found::Nothing))
        };
        Self::call(slf, None, None, work)
    }

    fn get(
        slf: &Bound<'_, Self>,
        table: Object<'_>,
        key: Object<'_>,
        default: Option<Py<PyAny>>,
        for_update: bool,
    ) -> PyResult<PyCall> {
        let table = Self::table(slf, &table)?;
        let def = &table.get().def;
        let (of, key) = (def.table, def.key(&key)?);
        let work = move |mut tx: AsyncTransaction| async move {
            let found = match for_update {
                true => tx.get_for_update(&of, &key).await,
                false => tx.get(&of, &key).await,
            };
            (Some(tx), found.map(Found::Value))
        };
        Self::call(slf, Some(table.clone_ref(slf.py())), default, work)
    }

    fn put(
        slf: &Bound<'_, Self>,
        table: Object<'_>,
        key: Object<'_>,
        value: Object<'_>,
        insert: bool,
    ) -> PyResult<PyCall> {
        let table = Self::table(slf, &table)?;
        let def = &table.get().def;
        let (of, key) = (def.table, def.key(&key)?);
        let value = def.values.encode(&value)?.into_owned();
        let work = move |mut tx: AsyncTransaction| async move {
            let done = match insert {
                true => tx.insert(&of, &key, &value).await,
                false => tx.put(&of, &key, &value).await,
            };
            (Some(tx), done.map(|()| Found::Nothing))
        };
        Self::call(slf, None, None, work)
    }

    fn remove(slf: &Bound<'_, Self>, table: Object<'_>, key: Object<'_>) -> PyResult<PyCall> {
        let table = Self::table(slf, &table)?;
        let (of, key) = (table.get().def.table, table.get().def.key(&key)?);
        let work = move |mut tx: AsyncTransaction| async move {
            let done = tx.remove(&of, &key).await;
            (Some(tx), done.map(Found::Flag))
        };
        Self::call(slf, None, None, work)
    }

    fn add(
        slf: &Bound<'_, Self>,
        table: Object<'_>,
        key: Object<'_>,
        amount: Object<'_>,
    ) -> PyResult<PyCall> {
        let table = Self::table(slf, &table)?;
        let def = &table.get().def;
        let (of, key, amount) = (def.table, def.key(&key)?, def.values.amount(&amount)?);
        let table_of = table.clone_ref(slf.py());
        let work = move |mut tx: AsyncTransaction| async move {
            let def = &table_of.get().def;
            let sum = async {
                let old = tx.get_for_update(&of, &key).await?;
                let mut new = Vec::new();
                let sum = def.values.add(old.as_deref(), amount, &mut new);
                if sum.is_ok() {
                    tx.put(&of, &key, &new).await?;
                }
                Ok(Found::Sum(sum))
            };
            let sum = sum.await;
            (Some(tx), sum)
        };
        Self::call(slf, Some(table), None, work)
    }

    /// Removes the first record or the last.
    fn pop(slf: &Bound<'_, Self>, table: Object<'_>, back: bool) -> PyResult<PyCall> {
        let table = Self::table(slf, &table)?;
        let of = table.get().def.table;
        let work = move |mut tx: AsyncTransaction| async move {
            let found = tx.with(|tx| if back { tx.pop_last(&of) } else { tx.pop_first(&of) }).await;
            (Some(tx), found.map(Found::Pair))
        };
        Self::call(slf, Some(table), None, work)
    }

    fn append(slf: &Bound<'_, Self>, table: Object<'_>, value: Object<'_>) -> PyResult<PyCall> {
        let table = Self::table(slf, &table)?;
        let def = &table.get().def;
        def.has_integers()?;
        let value = def.values.encode(&value)?.into_owned();
        let table = table.clone_ref(slf.py());
        let work = move |mut tx: AsyncTransaction| async move {
            let def = &table.get().def;
            let key = tx.with(|tx| def.append(tx, &value, false)).await;
            (Some(tx), key.map(Found::Key))
        };
        Self::call(slf, None, None, work)
    }

    /// The records of a range, all of them.
    fn range(
        slf: &Bound<'_, Self>,
        table: Object<'_>,
        bounds: (Option<Object<'_>>, Option<Object<'_>>, bool),
        reverse: bool,
        most: Option<i64>,
    ) -> PyResult<PyCall> {
        let table = Self::table(slf, &table)?;
        let def = &table.get().def;
        let range = def.range(bounds.0.as_ref(), bounds.1.as_ref(), bounds.2)?;
        let (of, most) = (def.table, limit(most)?);
        let work = move |mut tx: AsyncTransaction| async move {
            let scan = |tx: &mut latchwork_store::WriteTxn<'_, '_>| {
                let mut all = Vec::new();
                if most == 0 {
                    return Ok(all);
                }
                let mut each = |key: &[u8], value: &[u8]| {
                    all.push((key.to_vec(), value.to_vec()));
                    Ok(all.len() < most)
                };
                match reverse {
                    true => tx.scan_back(&of, slices(&range), &mut each)?,
                    false => tx.scan(&of, slices(&range), &mut each)?,
                }
                Ok(all)
            };
            let all = tx.with(scan).await;
            (Some(tx), all.map(Found::Pairs))
        };
        Self::call(slf, Some(table), None, work)
    }

    /// Waits until all commits of this process are durable.
    fn sync(slf: &Bound<'_, Self>) -> PyResult<PyCall> {
        let py = slf.py();
        let store = slf.get().db.get().store(py)?;
        let work: Work =
            Box::pin(async move { (None, store.sync_async().await.map(|()| Found::Nothing)) });
        let (work, ended) = (Turn::new(Some(work)), Turn::new(None));
        let tx = slf.clone().unbind();
        Ok(PyCall { work, ended, tx, table: None, default: None, forks: forks() })
    }
}

//! Transactions of tasks. Many tasks share a thread, and none blocks it while it waits for a lock
//! or for the sync of the disk.

use core::fmt;
use core::future::{Future, poll_fn};
use core::ops::{Deref, DerefMut, RangeBounds};
use core::pin::pin;
use core::task::Poll;
use std::sync::{Arc, Mutex};

use latchwork_lockmgr::Wait;
use latchwork_machine::{ConstMachine, Shared as Machine};

use crate::admission::Turn;
use crate::api::by_hand::{Own, Transaction};
use crate::table::Asked;
use crate::txn::steps::{Awaited, Step};
use crate::typed::{Rows, WriteTxn, all_of, bounds};
use crate::user::TaskClosure;
use crate::wakers::locked;
use crate::{Attempts, Error, Key, Level, Savepoint, Store, Table, TxnOptions, Value};

/// A transaction of a task: see [`Store::write_async`] and [`Store::begin_async`]. If it is
/// dropped, it is rolled back.
///
/// Its calls are futures that any executor can poll, on any thread, one call at a time. A call may
/// be dropped before it completes; the transaction is then as it was before the call.
///
/// The data that it has read is durable when [`commit`](Self::commit) or
/// [`roll_back`](Self::roll_back) is ready, as with a [`Transaction`]. A drop does not wait for
/// that.
pub struct AsyncTransaction<M: ConstMachine = Machine> {
    inner: Transaction<M>,
    /// How it waits for locks.
    wait: Wait,
    /// Returned after the transaction is dropped.
    _turn: Turn,
}

/// A transaction that [`Store::write_async`] lends to its closure, and takes back when this is
/// dropped.
pub struct TransactionGuard<M: ConstMachine = Machine> {
    /// `None` only during the drop.
    tx: Option<AsyncTransaction<M>>,
    owner: Arc<Mutex<Option<AsyncTransaction<M>>>>,
}

impl<M: ConstMachine> Deref for TransactionGuard<M> {
    type Target = AsyncTransaction<M>;

    fn deref(&self) -> &AsyncTransaction<M> {
        self.tx.as_ref().expect("it is there until this is dropped")
    }
}

impl<M: ConstMachine> DerefMut for TransactionGuard<M> {
    fn deref_mut(&mut self) -> &mut AsyncTransaction<M> {
        self.tx.as_mut().expect("it is there until this is dropped")
    }
}

impl<M: ConstMachine> Drop for TransactionGuard<M> {
    fn drop(&mut self) {
        *locked(&self.owner) = self.tx.take();
    }
}

/// Lets the other tasks of the thread run.
async fn yields() {
    let mut again = true;
    let once = poll_fn(|cx| match core::mem::take(&mut again) {
        true => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
        false => Poll::Ready(()),
    });
    once.await;
}

/// Creates the error for a closure whose future ended and kept its transaction.
fn kept() -> Error {
    Error::Engine("the closure has kept its transaction".to_owned())
}

impl<M: ConstMachine> Store<M> {
    /// Runs a transaction for a task until it commits, as [`write`](Self::write) does. The
    /// transaction is serializable; when the future is ready, it is as durable as the store's mode
    /// says. During waits for a lock, the sync of the disk or admission, the thread is free for
    /// other tasks. A thousand tasks can run on one thread.
    ///
    /// A process admits as many transactions of tasks at a time as a quarter of the store's
    /// [`threads`](crate::Sizes::threads); other tasks wait for admission. A task that has a
    /// transaction must therefore not begin another one. If a call within the closure's future
    /// needs a lock that the transaction holds, it fails at once with [`Error::OwnTransaction`], as
    /// in [`write`](Self::write).
    ///
    /// The closure has the transaction while its future runs, and is called again with a new one
    /// after a deadlock. The parameter is not an `AsyncFnMut`: a future that calls an `AsyncFnMut`
    /// is not `Send` if the closure borrows something (Rust 1.95), and could not be spawned.
    ///
    /// These operations still block the thread: reading a page that is not in memory, waiting for
    /// space in the log, creating a table at its first use, rolling back transactions of dead
    /// processes whose locks it needs, and waiting for a thread slot if all are in use. Two
    /// background threads of the process sync the disk and make checkpoints; they end when they are
    /// idle.
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write); [`Error::Engine`] if the closure has kept the transaction,
    /// which is rolled back when it is dropped.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the transaction is rolled back; if the commit had begun, the
    /// transaction may be committed.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Store, Table};
    ///
    /// const FRUIT: Table<&str, u64> = Table::new("fruit");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-async-{}", std::process::id()));
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     struct Unpark(std::thread::Thread);
    /// #     impl std::task::Wake for Unpark {
    /// #         fn wake(self: std::sync::Arc<Self>) { self.0.unpark() }
    /// #     }
    /// #     let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    /// #     let mut future = std::pin::pin!(future);
    /// #     loop {
    /// #         let polled = future.as_mut().poll(&mut std::task::Context::from_waker(&waker));
    /// #         if let std::task::Poll::Ready(end) = polled { return end }
    /// #         std::thread::park();
    /// #     }
    /// # }
    /// let store = Store::open(&path)?;
    /// let left = block_on(store.write_async(|mut tx| async move {
    ///     let pears = tx.get_for_update(&FRUIT, "pear").await?.unwrap_or(3);
    ///     tx.put(&FRUIT, "pear", pears - 1).await?;
    ///     Ok(pears - 1)
    /// }))?;
    /// assert_eq!((left, store.get(&FRUIT, "pear")?), (2, Some(2)));
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub async fn write_async<R, F: Future<Output = Result<R, Error>>>(
        &self,
        body: impl FnMut(TransactionGuard<M>) -> F,
    ) -> Result<R, Error> {
        self.write_async_with(&TxnOptions::default(), body).await.map(|done| done.value)
    }

    /// Runs a transaction as [`write_async`](Self::write_async) does, with a deadline, an isolation
    /// level, a label or a durability mode. The time starts with its admission, for which a task
    /// may wait without a limit.
    ///
    /// # Errors
    ///
    /// Those of [`write_async`](Self::write_async).
    pub async fn write_async_with<R, F: Future<Output = Result<R, Error>>>(
        &self,
        options: &TxnOptions,
        body: impl FnMut(TransactionGuard<M>) -> F,
    ) -> Result<Attempts<R>, Error> {
        self.attempts_async(options, body, |returned, _| Ok(returned), Error::with_end).await
    }

    /// Runs the attempts. `why` returns why a run failed, or the caller's own error: see
    /// `retry.rs`. `both` is as in `Store::attempts`.
    pub(crate) async fn attempts_async<R, E: From<Error>, F: Future<Output = Result<R, E>>>(
        &self,
        options: &TxnOptions,
        mut body: impl FnMut(TransactionGuard<M>) -> F,
        why: impl Fn(E, Option<Error>) -> Result<Error, E>,
        both: impl Fn(E, Error) -> E,
    ) -> Result<Attempts<R>, E> {
        let mut tx = self.begin_async_with(options).await?;
        let (mut runs, wait, owner) = (0, tx.wait, Arc::default());
        let user = tx.inner.user()?;
        loop {
            runs += 1;
            let ran = {
                let lent = TransactionGuard { tx: Some(tx), owner: Arc::clone(&owner) };
                let mut ran = pin!(user.run(|| body(lent)));
                poll_fn(|cx| user.run(|| ran.as_mut().poll(cx))).await
            };
            tx = locked(&owner).take().ok_or_else(kept)?;
            let failed = match ran {
                Ok(value) => match tx.end().await {
                    Ok(at) => {
                        tx.settle(at).await?;
                        return Ok(Attempts { value, at, runs });
                    }
                    Err(error) => Ok(error),
                },
                Err(returned) => why(returned, tx.inner.txn()?.failed().cloned()),
            };
            let failed = match failed {
                Ok(failed) if failed.is_retryable() => failed,
                other => {
                    let own = other.map_or_else(|own| own, E::from);
                    return Err(tx.end_with(own, both).await);
                }
            };
            if matches!(wait, Wait::Until(deadline) if deadline.passed::<M>()) {
                let own = Error::Deadline { runs, last: Box::new(failed) };
                return Err(tx.end_with(own.into(), both).await);
            }
            tx.restart()?;
            tx.wait = wait;
            // The lock that it did not get may belong to another task of this thread, which must
            // run.
            yields().await;
        }
    }

    /// Begins a transaction that a task ends; see [`begin`](Self::begin). Waits for admission, see
    /// [`write_async`](Self::write_async). If a task has two of them and requests in one a lock
    /// that the other holds, it waits forever, because the store cannot know which task would end
    /// the other. [`begin_async_with`](Self::begin_async_with) limits the wait.
    ///
    /// # Errors
    ///
    /// Those of [`begin`](Self::begin).
    pub async fn begin_async(&self) -> Result<AsyncTransaction<M>, Error> {
        self.take_turn(&TxnOptions::default(), true).await
    }

    /// Begins a transaction as [`begin_async`](Self::begin_async) does, with a level, a label, a
    /// mode, and a time limit for waits, which starts with its admission.
    ///
    /// # Errors
    ///
    /// Those of [`begin`](Self::begin).
    pub async fn begin_async_with(
        &self,
        options: &TxnOptions,
    ) -> Result<AsyncTransaction<M>, Error> {
        self.take_turn(options, false).await
    }

    async fn take_turn(
        &self,
        options: &TxnOptions,
        patient: bool,
    ) -> Result<AsyncTransaction<M>, Error> {
        // In the child of a fork, no thread would admit it.
        self.home().manager.region().check()?;
        let turn = self.turns().take().await;
        self.writable()?;
        let session = self.lone()?;
        self.background().checkpoint_if_due(&session.get().worker)?;
        let inner = self.begin_in_steps(session, options, patient)?;
        Ok(AsyncTransaction { wait: inner.wait(), inner, _turn: turn })
    }
}

/// A call that is repeated, and the locks that it has waited for. When the call ends or is dropped,
/// the locks that it does not keep are released.
struct Waited<'t, M: ConstMachine> {
    tx: &'t mut AsyncTransaction<M>,
    locks: Vec<Awaited>,
}

impl<M: ConstMachine> Waited<'_, M> {
    async fn wait_for(&mut self, awaited: Box<Awaited>) -> Result<(), Error> {
        let wait = self.tx.wait;
        let txn = self.tx.inner.txn()?;
        // SAFETY: the session is that of the transaction, which is borrowed as long as the future
        // lives, and is sent together with what borrows it.
        let waiting = unsafe { txn.wait_for(&awaited, wait) };
        if let Err(failed) = waiting.await {
            return Err(self.tx.inner.txn()?.not_had(&awaited, failed));
        }
        match awaited.is_kept() {
            true => self.locks.push(*awaited),
            false => self.tx.inner.txn()?.waited(&awaited)?,
        }
        Ok(())
    }

    fn let_go(&mut self) -> Result<(), Error> {
        let txn = self.tx.inner.txn()?;
        self.locks.drain(..).try_for_each(|awaited| txn.waited(&awaited))
    }
}

impl<M: ConstMachine> Drop for Waited<'_, M> {
    fn drop(&mut self) {
        // Locks that remain are released at the end of the transaction.
        let _ = self.let_go();
    }
}

/// A table, and the bytes of a key in it.
type Place = Result<(Asked, Vec<u8>), Error>;

fn place<K: Key, V: Value>(table: &Table<K, V>, key: &K::Of<'_>) -> Place {
    Ok((table.asked(), table.key(key)?))
}

impl<M: ConstMachine> AsyncTransaction<M> {
    /// Returns the closure that has the transaction, for bindings of languages whose closures call
    /// it step by step on the thread of an event loop. While a part of the closure runs, a call
    /// that needs a lock of this transaction fails at once with [`Error::OwnTransaction`], as in
    /// [`Store::write_async`]. Between the parts, a call fails in that way if it would block the
    /// thread.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] if the transaction has ended.
    pub fn closure(&self) -> Result<TaskClosure<M>, Error> {
        self.inner.user().map(TaskClosure)
    }

    /// Repeats a call until it has all locks.
    async fn again<R>(
        &mut self,
        mut call: impl FnMut(&mut Own<M>) -> Result<R, Error> + Send,
    ) -> Result<R, Error> {
        self.in_steps(|inner| inner.txn()?.step(&mut call)).await
    }

    /// Returns the tree of a table. Creates the table if it does not exist.
    async fn tree(&mut self, table: Asked) -> Result<u32, Error> {
        self.in_steps(|inner| inner.step_to_tree(&table)).await
    }

    /// Repeats a step until it has all locks.
    async fn in_steps<R>(
        &mut self,
        mut step: impl FnMut(&mut Transaction<M>) -> Result<Step<R>, Error> + Send,
    ) -> Result<R, Error> {
        let mut waited = Waited { tx: self, locks: Vec::new() };
        loop {
            let awaited = match step(&mut waited.tx.inner)? {
                Step::Done(done) => return waited.let_go().map(|()| done),
                Step::Waits(awaited) => awaited,
            };
            waited.wait_for(awaited).await?;
        }
    }

    /// Repeats a call with a key until it has all locks. Creates the table if it does not exist.
    async fn at<R>(
        &mut self,
        place: Place,
        mut call: impl FnMut(&mut Own<M>, u32, &[u8]) -> Result<R, Error> + Send,
    ) -> Result<R, Error> {
        let (table, key) = place?;
        let tree = self.tree(table).await?;
        self.again(|txn| call(txn, tree, &key)).await
    }

    /// Reads a value; see [`WriteTxn::get`].
    ///
    /// # Errors
    ///
    /// Those of [`WriteTxn::get`].
    pub fn get<'a, K: Key, V: Value>(
        &'a mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> impl Future<Output = Result<Option<V::Owned>, Error>> + Send + use<'a, K, V, M> {
        let (place, table) = (place(table, &key), *table);
        async move {
            let value = self.at(place, |txn, tree, key| txn.get_raw(tree, key)).await?;
            value.map(|value| table.value_of(&value)).transpose()
        }
    }

    /// Reads a value that the transaction will write; see [`WriteTxn::get_for_update`].
    ///
    /// # Errors
    ///
    /// Those of [`WriteTxn::get_for_update`].
    pub fn get_for_update<'a, K: Key, V: Value>(
        &'a mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> impl Future<Output = Result<Option<V::Owned>, Error>> + Send + use<'a, K, V, M> {
        let (place, table) = (place(table, &key), *table);
        async move {
            let value = self.at(place, |txn, tree, key| txn.get_raw_for_update(tree, key)).await?;
            value.map(|value| table.value_of(&value)).transpose()
        }
    }

    /// Writes a value; see [`WriteTxn::put`].
    ///
    /// # Errors
    ///
    /// Those of [`WriteTxn::put`].
    pub fn put<'a, K: Key, V: Value>(
        &'a mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> impl Future<Output = Result<(), Error>> + Send + use<'a, K, V, M> {
        let (place, value) = (place(table, &key), table.value(&value));
        async move { self.at(place, |txn, tree, key| txn.write_raw(tree, key, Some(&value))).await }
    }

    /// Writes a value if the record does not exist; see [`WriteTxn::insert`].
    ///
    /// # Errors
    ///
    /// Those of [`WriteTxn::insert`].
    pub fn insert<'a, K: Key, V: Value>(
        &'a mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> impl Future<Output = Result<(), Error>> + Send + use<'a, K, V, M> {
        let (place, value) = (place(table, &key), table.value(&value));
        async move { self.at(place, |txn, tree, key| txn.insert_raw(tree, key, &value)).await }
    }

    /// Removes a record; see [`WriteTxn::remove`].
    ///
    /// # Errors
    ///
    /// Those of [`WriteTxn::remove`].
    pub fn remove<'a, K: Key, V: Value>(
        &'a mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> impl Future<Output = Result<bool, Error>> + Send + use<'a, K, V, M> {
        let place = place(table, &key);
        async move {
            self.at(place, |txn, tree, key| {
                let there = txn.get_for_update_into(tree, key, &mut Vec::new())?;
                if there {
                    txn.write_raw(tree, key, None)?;
                }
                Ok(there)
            })
            .await
        }
    }

    /// Returns the records of a range; see [`WriteTxn::range`]. Reads all of them in one step, in
    /// which no other task of the thread runs.
    ///
    /// # Errors
    ///
    /// Those of [`WriteTxn::range`].
    pub fn range<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> impl Future<Output = Result<Rows<'static, K, V>, Error>> {
        let (range, table) = (bounds(table, &range), *table);
        async move {
            let (range, tree) = (range?, self.tree(table.asked()).await?);
            let all = self.again(|txn| all_of(txn, tree, &range)).await?;
            Ok(Rows::of(table, all))
        }
    }

    /// Runs a closure with the transaction, as [`Store::write`] does, for calls that have no future
    /// of their own. If the closure meets a lock that is not free, its changes are rolled back, and
    /// it is run again when the lock is granted. It must return the error that it met.
    ///
    /// # Errors
    ///
    /// The closure's error. Within the closure, rolling back to a savepoint from before the call
    /// returns [`Error::Savepoint`], because those changes could not be repeated.
    ///
    /// # Panics
    ///
    /// Panics if the closure panics; see [`Transaction::with`].
    pub async fn with<R>(
        &mut self,
        mut work: impl FnMut(&mut WriteTxn<'_, '_, M>) -> Result<R, Error> + Send,
    ) -> Result<R, Error> {
        let before = self.again(|txn| txn.savepoint()).await?;
        let mut waited = Waited { tx: self, locks: Vec::new() };
        loop {
            let step = waited.tx.inner.step_with(before, &mut work);
            let awaited = match step? {
                Step::Done(done) => return waited.let_go().map(|()| done),
                Step::Waits(awaited) => awaited,
            };
            waited.tx.inner.roll_back_to(before)?;
            waited.wait_for(awaited).await?;
        }
    }

    /// Creates a savepoint; see [`WriteTxn::savepoint`]. It waits for a lock only after a [last
    /// write](WriteTxn::put_final), which it carries out first.
    ///
    /// # Errors
    ///
    /// Those of [`WriteTxn::savepoint`]; [`Error::Engine`] if the transaction could not be
    /// restarted.
    pub async fn savepoint(&mut self) -> Result<Savepoint, Error> {
        self.again(|txn| txn.savepoint()).await
    }

    /// Rolls back to a savepoint; see [`WriteTxn::roll_back_to`]. Blocks the thread for that time.
    ///
    /// # Errors
    ///
    /// Those of [`WriteTxn::roll_back_to`].
    pub fn roll_back_to(&mut self, savepoint: Savepoint) -> Result<(), Error> {
        self.inner.roll_back_to(savepoint)
    }

    /// Returns the isolation level.
    pub fn level(&self) -> Level {
        self.inner.level()
    }

    /// Commits. When the future is ready, the commit is as durable as the mode says. Returns the
    /// position of the commit in the log, or `None` if nothing was written.
    ///
    /// # Errors
    ///
    /// Those of [`Transaction::commit`].
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the transaction is either committed or rolled back; the caller
    /// does not learn which.
    pub async fn commit(mut self) -> Result<Option<u64>, Error> {
        match self.end().await {
            Ok(at) => self.settle(at).await.map(|()| at),
            Err(why) => Err(self.end_with(why, Error::with_end).await),
        }
    }

    /// Logs the commit, or rolls back.
    async fn end(&mut self) -> Result<Option<u64>, Error> {
        self.again(|txn| txn.end()).await
    }

    /// Waits until the commit, or the data that was read, is as durable as the mode says.
    async fn settle(mut self, at: Option<u64>) -> Result<(), Error> {
        let (store, mode) = (self.inner.store().clone(), self.inner.mode());
        let settles = store.settles(at, mode)?;
        let worker = self.inner.ended()?;
        if !worker.is_given_up() {
            worker.tidy();
        }
        let Some(newest) = settles else { return Ok(()) };
        let unsettled = |why| Error::unsettled(at, why);
        let batch = match store.background().settle(newest, mode) {
            Ok(batch) => batch,
            // No thread can be started for it, so this one waits.
            Err(_) => return worker.log.commit(newest, mode).map_err(|why| unsettled(why.into())),
        };
        // Another task is admitted while this one waits.
        drop(self);
        match batch {
            Some(batch) => batch.ended().await.map_err(unsettled),
            None => Ok(()),
        }
    }

    /// Rolls back all changes and releases the locks, and waits as [`Transaction::roll_back`] does,
    /// without blocking the thread.
    ///
    /// # Errors
    ///
    /// Those of [`Transaction::roll_back`].
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the transaction is rolled back, and the data that it has read may
    /// not be durable.
    pub async fn roll_back(mut self) -> Result<(), Error> {
        let undone = self.inner.undo();
        let settled = self.settle(None).await;
        match (undone, settled) {
            (Ok(()), settled) => settled,
            (Err(why), Ok(())) => Err(why),
            (Err(why), Err(unsettled)) => Err(Error::with_end(why, unsettled)),
        }
    }

    /// Rolls back as [`roll_back`](Self::roll_back) does, and returns the error to end with,
    /// because `own` may reveal data that the transaction has read.
    async fn end_with<E: From<Error>>(self, own: E, both: impl FnOnce(E, Error) -> E) -> E {
        match self.roll_back().await {
            Ok(()) => own,
            Err(why @ Error::ReadsUnknown { ended: None, .. }) => both(own, why),
            Err(why) => why.into(),
        }
    }

    /// Rolls the transaction back and begins it again with the same age; see
    /// [`Transaction::restart`].
    ///
    /// # Errors
    ///
    /// Those of [`Transaction::restart`].
    pub fn restart(&mut self) -> Result<(), Error> {
        self.inner.restart()?;
        self.wait = self.inner.wait();
        Ok(())
    }
}

impl<M: ConstMachine> fmt::Debug for TransactionGuard<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.tx, f)
    }
}

impl<M: ConstMachine> fmt::Debug for AsyncTransaction<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncTransaction").field("inner", &self.inner).finish()
    }
}

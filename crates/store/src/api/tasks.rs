//! Transactions of tasks: many on one thread, none of which blocks it while it waits for a lock or
//! for the disk's sync.

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

/// A transaction of a task: see [`Store::write_async`] and [`Store::begin_async`]. Dropping it
/// rolls it back.
///
/// Its calls are futures that any executor polls, on any thread, one at a time. Each may be dropped
/// before its end: the transaction is then as it was before the call.
///
/// What it has read is durable when [`commit`](Self::commit) or [`roll_back`](Self::roll_back) is
/// ready, as of a [`Transaction`]. A drop does not wait for that.
pub struct AsyncTransaction<M: ConstMachine = Machine> {
    inner: Transaction<M>,
    /// How it waits for locks.
    wait: Wait,
    /// Given back behind the transaction.
    _turn: Turn,
}

/// A transaction that [`Store::write_async`] lends to its closure, and has back when this is
/// dropped.
pub struct TransactionGuard<M: ConstMachine = Machine> {
    /// None at the end alone.
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

/// Lets the other tasks of the thread go on.
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

/// What a closure is told that still has its transaction when it has ended.
fn kept() -> Error {
    Error::Engine("the closure has kept its transaction".to_owned())
}

impl<M: ConstMachine> Store<M> {
    /// As [`write`](Self::write), for a task: it runs a transaction until it commits, serializable,
    /// and as durable as the store's mode says when the future is ready. While it waits for locks,
    /// for the disk's sync and for its turn the thread is free for other tasks: a thousand of them
    /// may be at work on one thread.
    ///
    /// Of the tasks of a process so many have a transaction at a time as a quarter of the store's
    /// [`threads`](crate::Sizes::threads); the next ones wait for their turn. So a task that has
    /// one does not begin another one inside. A call in the closure's future that wants what the
    /// transaction has locked fails at once with [`Error::OwnTransaction`], as in
    /// [`write`](Self::write).
    ///
    /// The closure has the transaction for as long as its future runs, and is called again, with a
    /// new one, after a deadlock. It is no `AsyncFnMut`: a future that calls one is not `Send` as
    /// soon as the closure borrows something (Rust 1.95), and could not be spawned.
    ///
    /// What blocks the thread still: reading a page that is not in memory, a full log, making a
    /// table at its first use, undoing what dead processes have left of transactions whose locks it
    /// waits for, and waiting for a thread slot, if all are held. Two threads of the process wait
    /// for the disk and make checkpoints; they end when there is nothing to do.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write); [`Error::Engine`] if the closure has kept the transaction, which
    /// is rolled back when that is dropped.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the transaction is rolled back; once it was committing, it may be
    /// committed.
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

    /// As [`write_async`](Self::write_async), with a deadline, a level, a label, a mode. The time
    /// counts from its turn on.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn write_async_with<R, F: Future<Output = Result<R, Error>>>(
        &self,
        patience: &TxnOptions,
        body: impl FnMut(TransactionGuard<M>) -> F,
    ) -> Result<Attempts<R>, Error> {
        self.attempts_async(patience, body, |returned, _| Ok(returned), Error::with_end).await
    }

    /// `why` tells why a run failed, or gives back what is the caller's own: see `retry.rs`. `both`
    /// is as in `Store::attempts`.
    pub(crate) async fn attempts_async<R, E: From<Error>, F: Future<Output = Result<R, E>>>(
        &self,
        patience: &TxnOptions,
        mut body: impl FnMut(TransactionGuard<M>) -> F,
        why: impl Fn(E, Option<Error>) -> Result<Error, E>,
        both: impl Fn(E, Error) -> E,
    ) -> Result<Attempts<R>, E> {
        let mut tx = self.begin_async_with(patience).await?;
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
            // What it failed of may be another task's of this thread, which is to go on.
            yields().await;
        }
    }

    /// A transaction of a task, which ends it: as [`begin`](Self::begin). Waits for its turn, see
    /// [`write_async`](Self::write_async). A task that has two of them, and asks in one for what
    /// the other has locked, waits for ever, because nothing says which task would end the other:
    /// [`begin_async_with`](Self::begin_async_with) limits the wait.
    ///
    /// # Errors
    ///
    /// As [`begin`](Self::begin).
    pub async fn begin_async(&self) -> Result<AsyncTransaction<M>, Error> {
        self.take_turn(&TxnOptions::default(), true).await
    }

    /// As [`begin_async`](Self::begin_async), with a level, a label, a mode, and a time after
    /// which it waits for no lock any more, from its turn on.
    ///
    /// # Errors
    ///
    /// As there.
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
        // In the child of a fork nobody would give it a turn.
        self.home().manager.region().check()?;
        let turn = self.turns().take().await;
        self.writable()?;
        let session = self.lone()?;
        self.background().checkpoint_if_due(&session.get().worker)?;
        let inner = self.begin_in_steps(session, options, patient)?;
        Ok(AsyncTransaction { wait: inner.wait(), inner, _turn: turn })
    }
}

/// A call that is made again and again, and the locks that it has waited for. When it ends, or is
/// dropped, those go that it does not keep.
struct Waited<'t, M: ConstMachine> {
    tx: &'t mut AsyncTransaction<M>,
    locks: Vec<Awaited>,
}

impl<M: ConstMachine> Waited<'_, M> {
    async fn wait_for(&mut self, awaited: Box<Awaited>) -> Result<(), Error> {
        let wait = self.tx.wait;
        let txn = self.tx.inner.txn()?;
        // SAFETY: the session is that of the transaction, which is borrowed for as long as the
        // future lives, and is sent with what borrows it.
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
        // What does not go here goes with the transaction.
        let _ = self.let_go();
    }
}

/// A table, and the bytes of a key of it.
type Place = Result<(Asked, Vec<u8>), Error>;

fn place<K: Key, V: Value>(table: &Table<K, V>, key: &K::Of<'_>) -> Place {
    Ok((table.asked(), table.key(key)?))
}

impl<M: ConstMachine> AsyncTransaction<M> {
    /// The closure that has the transaction, for bindings of languages whose closures call it step
    /// by step on the thread of a loop. While a part of the closure runs, a call that asks for a
    /// lock of this transaction fails at once with [`Error::OwnTransaction`], as in
    /// [`Store::write_async`]. Between the parts, a call that blocks the thread fails so.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] if the transaction is over.
    pub fn closure(&self) -> Result<TaskClosure<M>, Error> {
        self.inner.user().map(TaskClosure)
    }

    /// Makes a call until it had all locks.
    async fn again<R>(
        &mut self,
        mut call: impl FnMut(&mut Own<M>) -> Result<R, Error> + Send,
    ) -> Result<R, Error> {
        self.in_steps(|inner| inner.txn()?.step(&mut call)).await
    }

    /// The tree of a table, which is made if it is not there.
    async fn tree(&mut self, table: Asked) -> Result<u32, Error> {
        self.in_steps(|inner| inner.step_to_tree(&table)).await
    }

    /// Takes a step until it had all locks.
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

    /// The same, of a key, in a table that is made if it is not there.
    async fn at<R>(
        &mut self,
        place: Place,
        mut call: impl FnMut(&mut Own<M>, u32, &[u8]) -> Result<R, Error> + Send,
    ) -> Result<R, Error> {
        let (table, key) = place?;
        let tree = self.tree(table).await?;
        self.again(|txn| call(txn, tree, &key)).await
    }

    /// As [`WriteTxn::get`].
    ///
    /// # Errors
    ///
    /// As there.
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

    /// As [`WriteTxn::get_for_update`].
    ///
    /// # Errors
    ///
    /// As there.
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

    /// As [`WriteTxn::put`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn put<'a, K: Key, V: Value>(
        &'a mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> impl Future<Output = Result<(), Error>> + Send + use<'a, K, V, M> {
        let (place, value) = (place(table, &key), table.value(&value));
        async move { self.at(place, |txn, tree, key| txn.write_raw(tree, key, Some(&value))).await }
    }

    /// As [`WriteTxn::insert`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn insert<'a, K: Key, V: Value>(
        &'a mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> impl Future<Output = Result<(), Error>> + Send + use<'a, K, V, M> {
        let (place, value) = (place(table, &key), table.value(&value));
        async move { self.at(place, |txn, tree, key| txn.insert_raw(tree, key, &value)).await }
    }

    /// As [`WriteTxn::remove`].
    ///
    /// # Errors
    ///
    /// As there.
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

    /// As [`WriteTxn::range`].
    ///
    /// # Errors
    ///
    /// As there.
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

    /// Does something with the transaction as a closure of [`Store::write`] has it in hand: what
    /// has no future of its own. The closure is run again whenever it meets a lock that is not
    /// free, with what it had written undone; it must return the error that it met.
    ///
    /// # Errors
    ///
    /// What the closure returns. There [`Error::Savepoint`] is what it gets that rolls back to a
    /// savepoint from before: what that undoes could not be done again.
    ///
    /// # Panics
    ///
    /// If the closure does: as [`Transaction::with`].
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

    /// As [`WriteTxn::savepoint`]. It waits for a lock only behind a
    /// [last write](WriteTxn::put_final), which is written first.
    ///
    /// # Errors
    ///
    /// If it could not be begun again; those of the parts.
    pub async fn savepoint(&mut self) -> Result<Savepoint, Error> {
        self.again(|txn| txn.savepoint()).await
    }

    /// As [`WriteTxn::roll_back_to`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn roll_back_to(&mut self, savepoint: Savepoint) -> Result<(), Error> {
        self.inner.roll_back_to(savepoint)
    }

    /// The level that it runs at.
    pub fn level(&self) -> Level {
        self.inner.level()
    }

    /// Commits: as durable as the mode says when the future is ready. Returns the position of the
    /// commit in the log; none if nothing was written. As [`Transaction::commit`].
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, it is committed or rolled back: which of them is not told.
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

    /// Waits until what was committed, or read, is as durable as it is to be.
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
            // There is no thread for it: this one waits.
            Err(_) => return worker.log.commit(newest, mode).map_err(|why| unsettled(why.into())),
        };
        // Another task has its turn while this one waits.
        drop(self);
        match batch {
            Some(batch) => batch.ended().await.map_err(unsettled),
            None => Ok(()),
        }
    }

    /// Undoes all that it has written, lets go of its locks, and waits as
    /// [`Transaction::roll_back`] does, without blocking the thread.
    ///
    /// # Errors
    ///
    /// As [`Transaction::roll_back`].
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the transaction is rolled back, and what it has read may not be
    /// durable.
    pub async fn roll_back(mut self) -> Result<(), Error> {
        let undone = self.inner.undo();
        let settled = self.settle(None).await;
        match (undone, settled) {
            (Ok(()), settled) => settled,
            (Err(why), Ok(())) => Err(why),
            (Err(why), Err(unsettled)) => Err(Error::with_end(why, unsettled)),
        }
    }

    /// Rolls it back as [`roll_back`](Self::roll_back) does, and returns the error to end with: the
    /// error `own` may reveal what the transaction has read.
    async fn end_with<E: From<Error>>(self, own: E, both: impl FnOnce(E, Error) -> E) -> E {
        match self.roll_back().await {
            Ok(()) => own,
            Err(why @ Error::ReadsUnknown { ended: None, .. }) => both(own, why),
            Err(why) => why.into(),
        }
    }

    /// Rolls it back, and begins it anew, as old as it was: see [`Transaction::restart`].
    ///
    /// # Errors
    ///
    /// As there.
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

//! Transaction objects: begun, used and ended by separate calls, for servers and for other
//! languages.

use core::fmt;
use core::future::Future;
use core::ops::RangeBounds;
use core::time::Duration;
use std::sync::Arc;

use latchwork_lockmgr::{Error as LocksError, OwnerOptions, Wait};
use latchwork_log::{Lsn, Mode};
use latchwork_machine::{ConstMachine, Deadline, Shared as Machine};

use crate::files::session::StoreSession;
use crate::idle::Lone;
use crate::table::Asked;
use crate::tables::Tables;
use crate::txn::Contended;
use crate::txn::Txn;
use crate::txn::steps::Step;
use crate::typed::{Rows, TxnRef, WriteTxn};
use crate::user::{Entered, User};
use crate::{Error, Key, Level, Savepoint, Store, Table, TxnOptions, Value};

/// The transaction of a session that is owned together with it.
pub(crate) type Own<M> = Txn<'static, StoreSession<M>, M>;

/// A transaction object: see [`Store::begin`]. If it is dropped, it is rolled back.
///
/// Its reads return committed data, durable or not. In [`Mode::Full`], the calls
/// [`commit`](Self::commit), [`prepare`](Self::prepare) and [`roll_back`](Self::roll_back) wait
/// until every commit that the transaction may have read is durable. After they have returned, with
/// or without an error other than [`Error::ReadsUnknown`], a program may act on the data that it
/// has read. A drop does not wait, because it could not report a failure of the disk. After a drop,
/// [`Store::sync`] waits for the same.
///
/// The object may be moved between any two calls, also to another thread. It is not retried
/// automatically: after an error that [is retryable](Error::is_retryable), roll it back, or call
/// [`restart`](Self::restart) and repeat all of its operations. If its process is killed, the next
/// process that meets its locks rolls it back. An object that is leaked keeps its locks and its
/// thread slot until the process ends.
pub struct Transaction<M: ConstMachine = Machine> {
    /// Borrows the session, and is dropped before it. `None` if it could not be restarted.
    txn: Option<Own<M>>,
    /// `None` only during the drop.
    session: Option<Lone<M>>,
    store: Store<M>,
    options: TxnOptions,
    /// Whether it waits for locks without limit, until it gets them or is aborted by a deadlock.
    patient: bool,
    /// It belongs to a task: see `tasks.rs`.
    in_steps: bool,
}

// SAFETY: the transaction refers to the session, which may be sent and is moved together with it,
// and to data that all threads share. The object is not `Sync`.
unsafe impl<M: ConstMachine> Send for Transaction<M> {}

impl<M: ConstMachine> Store<M> {
    /// Begins a transaction that the caller ends. It is serializable, and waits for locks until it
    /// gets them or is chosen as the victim of a deadlock.
    ///
    /// The transaction occupies a thread slot of its own. A server should have one transaction for
    /// each client that is active, and use [`write`](Self::write) where a closure suffices.
    ///
    /// If a thread has two transaction objects and requests in one a lock that the other holds, the
    /// call returns [`Error::OwnTransaction`] at once. A transaction counts as belonging to the
    /// thread that called it last. If a program hands a transaction to another thread and then
    /// waits for it, use [`begin_with`](Self::begin_with): its calls wait up to their time limit,
    /// and the error then says that a transaction of this thread held the lock. Within the closure
    /// of a transaction, every call that needs a lock of that transaction fails at once.
    ///
    /// If another thread is creating the table that a call names, the call waits for at most ten
    /// seconds and then fails with [`Error::Lock`], because deadlocks are not detected there.
    ///
    /// # Errors
    ///
    /// [`Error::Threads`]; errors of the [store's parts](Error), including those of a due
    /// checkpoint, which this call makes first.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Store, Table};
    ///
    /// const ACCOUNTS: Table<u64, i64> = Table::new("accounts");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-begin-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// let mut transaction = store.begin()?;
    /// transaction.put(&ACCOUNTS, 7, 100)?;
    /// // It continues in another thread.
    /// let ended = std::thread::spawn(move || {
    ///     transaction.put(&ACCOUNTS, 8, 50)?;
    ///     transaction.commit()
    /// });
    /// assert!(ended.join().unwrap()?.is_some());
    ///
    /// let mut transaction = store.begin()?;
    /// transaction.remove(&ACCOUNTS, 7)?;
    /// drop(transaction); // rolled back
    /// assert_eq!(store.read(|tx| tx.get(&ACCOUNTS, 7))?, Some(100));
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn begin(&self) -> Result<Transaction<M>, Error> {
        self.begin_by_hand(&TxnOptions::default(), true)
    }

    /// Begins a transaction as [`begin`](Self::begin) does, with a level, a label, a mode, and a
    /// time limit for waits. After the limit, a lock that is not free is [`Error::Lock`] at once.
    /// [`Duration::MAX`] is no limit, as with `begin`.
    ///
    /// # Errors
    ///
    /// Those of [`begin`](Self::begin).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use latchwork_store::{Level, Mode, TxnOptions, Store, Table};
    ///
    /// const SEEN: Table<&str, u64> = Table::new("seen");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-with-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// let mut first = store.begin()?;
    /// first.put(&SEEN, "ann", 1)?;
    /// let options = TxnOptions {
    ///     time: Duration::ZERO,
    ///     level: Level::ReadCommitted,
    ///     mode: Some(Mode::None),
    ///     label: "import",
    /// };
    /// let mut second = store.begin_with(&options)?;
    /// assert!(second.put(&SEEN, "ann", 2).is_err_and(|why| why.is_retryable()));
    /// first.commit()?;
    /// second.restart()?;
    /// second.put(&SEEN, "ann", 2)?;
    /// second.commit()?;
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn begin_with(&self, options: &TxnOptions) -> Result<Transaction<M>, Error> {
        self.begin_by_hand(options, options.time == Duration::MAX)
    }

    fn begin_by_hand(&self, options: &TxnOptions, patient: bool) -> Result<Transaction<M>, Error> {
        self.writable()?;
        let session = self.lone()?;
        self.keep_up(&session.get().worker)?;
        self.begin_on(session, options, patient, false)
    }

    /// Begins a transaction that runs in steps.
    pub(crate) fn begin_in_steps(
        &self,
        session: Lone<M>,
        options: &TxnOptions,
        patient: bool,
    ) -> Result<Transaction<M>, Error> {
        self.begin_on(session, options, patient, true)
    }

    fn begin_on(
        &self,
        session: Lone<M>,
        options: &TxnOptions,
        patient: bool,
        in_steps: bool,
    ) -> Result<Transaction<M>, Error> {
        let (session, store) = (Some(session), self.clone());
        let txn = None;
        let mut begun = Transaction { txn, session, store, options: *options, patient, in_steps };
        begun.begin(None, Contended::default())?;
        Ok(begun)
    }
}

impl<M: ConstMachine> Transaction<M> {
    /// Begins the transaction, with the age of its earlier attempt and the keys that it could not
    /// lock for writing.
    fn begin(&mut self, age: Option<u64>, contended: Contended) -> Result<(), Error> {
        let session = self.session.as_ref().ok_or_else(over)?;
        // SAFETY: what borrows the session is dropped before the session is given away.
        let worker = &unsafe { session.forever() }.worker;
        let owner = OwnerOptions { label: self.options.label, age, ..OwnerOptions::default() };
        let owner = worker.locks()?.owner_with(&owner)?;
        worker.user.forget();
        let mut txn = Txn::new(worker, owner, worker.slot(), self.options.level);
        txn.set_wait(self.wait());
        txn.set_contended(contended);
        self.txn = Some(if self.in_steps { txn.in_steps() } else { txn });
        Ok(())
    }

    /// Returns how a transaction that begins now waits for locks.
    pub(crate) fn wait(&self) -> Wait {
        match self.patient {
            true => Wait::Detect,
            false => Wait::Until(Deadline::after::<M>(self.options.time)),
        }
    }

    /// Returns the transaction and its tables.
    fn parts(&mut self) -> Result<(&mut Own<M>, Tables<'_, M>), Error> {
        let (Some(txn), Some(session)) = (&mut self.txn, &self.session) else {
            return Err(over());
        };
        Ok((txn, Tables { catalog: self.store.catalog(), kept: session.get() }))
    }

    pub(crate) fn txn(&mut self) -> Result<&mut Own<M>, Error> {
        Ok(self.parts()?.0)
    }

    /// Returns the tree of a table, as one step. Creates the table if it does not exist.
    pub(crate) fn step_to_tree(&mut self, table: &Asked) -> Result<Step<u32>, Error> {
        let (txn, tables) = self.parts()?;
        txn.step(|txn| tables.make_asked(table, txn))
    }

    /// Returns the durability mode of the commit.
    pub(crate) fn mode(&self) -> Mode {
        self.options.mode.unwrap_or(self.store.home().sizes.mode)
    }

    /// Returns the word that names the thread that uses the transaction.
    pub(crate) fn user(&self) -> Result<Arc<User<M>>, Error> {
        Ok(self.session.as_ref().ok_or_else(over)?.get().worker.user.clone())
    }

    pub(crate) fn store(&self) -> &Store<M> {
        &self.store
    }

    /// Returns the session after the transaction has ended.
    pub(crate) fn ended(&mut self) -> Result<&StoreSession<M>, Error> {
        self.txn = None;
        Ok(&self.session.as_ref().ok_or_else(over)?.get().worker)
    }

    /// Runs a closure with the transaction, as [`Store::write`] does: all calls of [`WriteTxn`] are
    /// available.
    ///
    /// # Errors
    ///
    /// The closure's error. The transaction continues, unless the error has ended it.
    ///
    /// # Panics
    ///
    /// Panics if the closure panics. The closure's changes cannot be committed without the rest: if
    /// the caller catches the panic, later calls return [`Error::Aborted`] until the transaction is
    /// rolled back or [restarted](Self::restart).
    pub fn with<R>(
        &mut self,
        work: impl FnOnce(&mut WriteTxn<'_, '_, M>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let stays = !self.in_steps;
        let (txn, tables) = self.parts()?;
        let _in_closure = tables.kept.worker.user.enter(stays);
        txn.as_a_whole(|txn| work(&mut WriteTxn { inner: TxnRef::Txn(txn), tables }))
    }

    /// Runs a closure with the transaction as one step, which must not roll back beyond the
    /// savepoint.
    pub(crate) fn step_with<R>(
        &mut self,
        before: Savepoint,
        work: impl FnOnce(&mut WriteTxn<'_, '_, M>) -> Result<R, Error>,
    ) -> Result<Step<R>, Error> {
        let (txn, tables) = self.parts()?;
        let _in_closure = tables.kept.worker.user.enter(false);
        txn.step_behind(before, |txn| {
            txn.as_a_whole(|txn| work(&mut WriteTxn { inner: TxnRef::Txn(txn), tables }))
        })
    }

    /// Records that the calling thread runs a closure that has the transaction, until the returned
    /// guard is dropped. Bindings for languages whose closures call the transaction step by step
    /// use this: another call of the thread that needs a lock of this transaction then fails at
    /// once with [`Error::OwnTransaction`], as in the closure of [`Store::write`].
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] if the transaction has ended.
    pub fn enter(&self) -> Result<Entered<M>, Error> {
        self.user().map(Entered::new)
    }

    /// Reads a value; see [`WriteTxn::get`].
    ///
    /// # Errors
    ///
    /// Those of [`WriteTxn::get`].
    pub fn get<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        self.with(|tx| tx.get(table, key))
    }

    /// Reads a value that the transaction will write; see [`WriteTxn::get_for_update`].
    ///
    /// # Errors
    ///
    /// Those of [`WriteTxn::get_for_update`].
    pub fn get_for_update<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        self.with(|tx| tx.get_for_update(table, key))
    }

    /// Writes a value; see [`WriteTxn::put`].
    ///
    /// # Errors
    ///
    /// Those of [`WriteTxn::put`].
    pub fn put<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error> {
        self.with(|tx| tx.put(table, key, value))
    }

    /// Writes a value if the record does not exist; see [`WriteTxn::insert`].
    ///
    /// # Errors
    ///
    /// Those of [`WriteTxn::insert`].
    pub fn insert<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error> {
        self.with(|tx| tx.insert(table, key, value))
    }

    /// Removes a record; see [`WriteTxn::remove`].
    ///
    /// # Errors
    ///
    /// Those of [`WriteTxn::remove`].
    pub fn remove<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<bool, Error> {
        self.with(|tx| tx.remove(table, key))
    }

    /// Returns the records of a range; see [`WriteTxn::range`].
    ///
    /// # Errors
    ///
    /// Those of [`WriteTxn::range`].
    pub fn range<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<Rows<'static, K, V>, Error> {
        self.with(|tx| tx.range(table, range))
    }

    /// Creates a savepoint; see [`WriteTxn::savepoint`].
    ///
    /// # Errors
    ///
    /// Those of [`WriteTxn::savepoint`]; [`Error::Engine`] if the transaction could not be
    /// restarted.
    pub fn savepoint(&mut self) -> Result<Savepoint, Error> {
        self.with(|tx| tx.savepoint())
    }

    /// Rolls back to a savepoint; see [`WriteTxn::roll_back_to`].
    ///
    /// # Errors
    ///
    /// Those of [`WriteTxn::roll_back_to`].
    pub fn roll_back_to(&mut self, savepoint: Savepoint) -> Result<(), Error> {
        self.with(|tx| tx.roll_back_to(savepoint))
    }

    /// Returns the isolation level.
    pub fn level(&self) -> Level {
        self.options.level
    }

    /// Commits, and blocks until the commit is as durable as the mode says; the locks are released
    /// before. Returns the position of the commit in the log, or `None` if nothing was written.
    ///
    /// # Errors
    ///
    /// - [`Error::Aborted`] after a call that failed.
    /// - [`Error::Lock`], because a deferred last write may need a range that another transaction
    ///   holds.
    /// - [`Error::TransactionTooOld`].
    /// - [`Error::CommitUnknown`]: the transaction is committed.
    /// - [`Error::ReadsUnknown`] in [`Mode::Full`]: the data that the transaction has read could
    ///   not be made durable. It contains the other error, if any. In this mode the call waits for
    ///   that data also when it fails.
    /// - Errors of the [store's parts](Error).
    ///
    /// After any error except `CommitUnknown`, the transaction was rolled back.
    ///
    /// # Death
    ///
    /// If the thread is killed in this call, the transaction has either committed completely or is
    /// rolled back by the sweep of another thread.
    pub fn commit(mut self) -> Result<Option<u64>, Error> {
        let committed = self.txn.take().ok_or_else(over)?.commit();
        let at = committed.map_err(|why| self.fails_with(why))?;
        self.settle(at).map(|()| at)
    }

    /// Commits and waits as [`commit`](Self::commit) does, and keeps the object usable if the
    /// commit fails with an error that [is retryable](Error::is_retryable). The transaction was
    /// rolled back in that case, and [`restart`](Self::restart) begins it again with the same age.
    /// After any other result, the object can only be dropped.
    ///
    /// # Errors
    ///
    /// Those of [`commit`](Self::commit). With a retryable error, this does not wait until the data
    /// that was read is durable; the end of the transaction does.
    pub fn try_commit(&mut self) -> Result<Option<u64>, Error> {
        match self.txn()?.end() {
            Ok(at) => {
                self.txn = None;
                self.settle(at).map(|()| at)
            }
            Err(why) if why.is_retryable() => {
                self.store.background().after_failure();
                Err(why)
            }
            Err(why) => {
                self.txn = None;
                Err(self.fails_with(why))
            }
        }
    }

    /// Commits, and returns a future that is ready when the commit is as durable as the mode says:
    /// for servers and event loops. The locks are released when this call returns. The call does
    /// not wait for the disk, unless the commit fails or no thread can be started to sync the log.
    ///
    /// The future holds neither the store nor the transaction. Dropping it cancels nothing.
    ///
    /// # Errors
    ///
    /// Those of [`commit`](Self::commit); from the future [`Error::CommitUnknown`] and
    /// [`Error::ReadsUnknown`].
    pub fn commit_later(
        mut self,
    ) -> Result<impl Future<Output = Result<Option<u64>, Error>> + Send + use<M>, Error> {
        let committed = self.txn.take().ok_or_else(over)?.commit();
        let at = committed.map_err(|why| self.fails_with(why))?;
        let mode = self.mode();
        let settles = self.store.settles(at, mode)?;
        let worker = &self.session.as_ref().ok_or_else(over)?.get().worker;
        if !worker.is_given_up() {
            worker.tidy();
        }
        let unsettled = move |why| Error::unsettled(at, why);
        let batch = match settles {
            None => None,
            Some(newest) => match self.store.background().settle(newest, mode) {
                Ok(batch) => batch,
                // No thread can be started for it, so this one waits.
                Err(_) => {
                    worker.log.commit(newest, mode).map_err(|why| unsettled(why.into()))?;
                    None
                }
            },
        };
        Ok(async move {
            match batch {
                Some(batch) => batch.ended().await.map_err(unsettled).map(|()| at),
                None => Ok(at),
            }
        })
    }

    /// Returns the error after which the transaction can only be rolled back or restarted, if any.
    pub fn failure(&self) -> Option<&Error> {
        self.txn.as_ref()?.failed()
    }

    fn settle(&self, at: Option<u64>) -> Result<(), Error> {
        let session = self.session.as_ref().ok_or_else(over)?;
        self.store.settle(&session.get().worker, at, self.options.mode)
    }

    /// Waits until the data that the transaction has read is durable, because the error may reveal
    /// it. Returns the error to end with.
    #[cold]
    fn fails_with(&self, why: Error) -> Error {
        self.store.background().after_failure();
        match self.settle(None) {
            Ok(()) => why,
            Err(unsettled) => Error::with_end(why, unsettled),
        }
    }

    /// Prepares the transaction: the first phase of a two-phase commit. When this returns, the
    /// preparation is as durable as the mode says. From then on the transaction is neither
    /// committed nor rolled back, and keeps its locks, across any death and any crash of the
    /// machine, until a thread calls [`Store::commit_prepared`] or [`Store::roll_back_prepared`].
    /// Snapshots do not see its changes. The id has 1 to 128 bytes and must differ from those of
    /// other undecided transactions. A transaction without changes can be prepared as well.
    ///
    /// A prepared transaction occupies its thread slot, and the log is retained from its first
    /// record, beyond [`Sizes::history`](crate::Sizes::history). A forgotten one costs as much as a
    /// transaction that never ends. [`Store::prepared`] lists all.
    ///
    /// # Errors
    ///
    /// [`Error::Gid`]; [`Error::Prepared`] if an undecided transaction has the id;
    /// [`Error::Locks`], retryable, if a transaction that is not prepared has the id;
    /// [`Error::Aborted`]; errors of the [store's parts](Error). After any error except
    /// [`Error::PrepareUnknown`], the transaction was rolled back. As [`commit`](Self::commit), a
    /// failed call waits until the data that was read is durable.
    ///
    /// # Death
    ///
    /// If the thread is killed in this call, the transaction is prepared or is rolled back by a
    /// sweep.
    pub fn prepare(mut self, gid: &[u8]) -> Result<(), Error> {
        let prepared = self.txn.take().ok_or_else(over)?.prepare(gid);
        let at = prepared.map_err(|why| self.fails_with(self.not_prepared(why, gid)))?;
        let session = self.session.as_ref().ok_or_else(over)?;
        let settled = session.get().worker.log.commit(Lsn(at), self.mode());
        let unknown = |why: latchwork_log::Error| Error::PrepareUnknown {
            gid: gid.to_vec(),
            why: Box::new(why.into()),
        };
        // The session is dropped with this, and leaves its slot to the thread that decides.
        settled.map(drop).map_err(unknown)
    }

    /// Returns why a transaction was not prepared and was rolled back.
    #[cold]
    fn not_prepared(&self, why: Error, gid: &[u8]) -> Error {
        let is_taken = matches!(why, Error::Prepared { .. });
        // The lock of the id may belong to a thread that has not prepared yet or has decided. It is
        // released soon, or by a sweep if that thread is dead.
        if is_taken && matches!(self.store.home().slot_of(gid), Ok(None)) {
            return LocksError::TimedOut.into();
        }
        why
    }

    /// Rolls back all changes and releases the locks. In [`Mode::Full`] it then waits until every
    /// commit that the transaction may have read is durable, so that a program may act on the data.
    /// This costs one sync of the log, or none if everything is durable.
    ///
    /// # Errors
    ///
    /// [`Error::ReadsUnknown`] if the data cannot be made durable; the transaction is rolled back.
    /// After errors of the [store's parts](Error), the locks remain until a sweep has rolled it
    /// back.
    pub fn roll_back(mut self) -> Result<(), Error> {
        match self.undo() {
            Ok(()) => self.settle(None),
            Err(why) => Err(self.fails_with(why)),
        }
    }

    /// Rolls back, and keeps the session.
    pub(crate) fn undo(&mut self) -> Result<(), Error> {
        let Some(txn) = self.txn.take() else { return Ok(()) };
        let undone = txn.roll_back();
        self.store.background().after_failure();
        undone
    }

    /// Rolls the transaction back and begins it again. It keeps its age, so that it is not the
    /// victim of every deadlock, and gets its full time limit again. It does not wait for the disk:
    /// the end of the transaction also waits for data that was read before the restart.
    ///
    /// # Errors
    ///
    /// Errors of the [store's parts](Error). After an error, the object can only be dropped.
    pub fn restart(&mut self) -> Result<(), Error> {
        // The next transaction uses the same slot, which can have only one at a time.
        let old = self.txn.take().ok_or_else(over)?;
        let (age, contended) = (old.age()?, old.contended());
        old.roll_back()?;
        self.store.background().after_failure();
        self.begin(Some(age), contended)
    }

    /// Restarts the transaction as [`restart`](Self::restart) does, with this time limit for waits:
    /// for a loop with one deadline for all attempts.
    ///
    /// # Errors
    ///
    /// Errors of the [store's parts](Error). After an error, the object can only be dropped.
    pub fn restart_within(&mut self, time: Duration) -> Result<(), Error> {
        self.options.time = time;
        self.restart()
    }
}

/// Returns the error of a transaction that has ended or could not be restarted.
fn over() -> Error {
    Error::Engine("the transaction is over: it could not be begun again".to_owned())
}

impl<M: ConstMachine> Drop for Transaction<M> {
    fn drop(&mut self) {
        // Drop what borrows the session first. A failed rollback is left to a sweep.
        let _ = self.undo();
        if let Some(session) = self.session.take() {
            self.store.give_back(session);
        }
    }
}

impl<M: ConstMachine> fmt::Debug for Transaction<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction")
            .field("level", &self.options.level)
            .field("label", &self.options.label)
            .finish()
    }
}

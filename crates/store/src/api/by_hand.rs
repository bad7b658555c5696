//! Transactions that are objects: begun, used and ended by calls, for servers and for other
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
use crate::txn::steps::Step;
use crate::typed::{Rows, WriteTxn};
use crate::user::{Entered, User};
use crate::{Error, Key, Level, Savepoint, Store, Table, Txn, TxnOptions, Value};

/// The transaction of a session that goes with it.
pub(crate) type Own<M> = Txn<'static, StoreSession<M>, M>;

/// A transaction that is an object: see [`Store::begin`]. Dropping it rolls it back.
///
/// Its reads see what is committed, durable or not. In [`Mode::Full`] a program may act on what it
/// has read when [`commit`](Self::commit), [`prepare`](Self::prepare) or
/// [`roll_back`](Self::roll_back) has returned, with or without an error, unless that is
/// [`Error::ReadsUnknown`]: these calls wait until every commit that the transaction may have read
/// is durable. A drop does not wait, because it could not report that the disk has failed. After a
/// drop [`Store::sync`] waits for the same.
///
/// It may be moved, also to another thread, between any two calls. Nobody runs it again: after an
/// error that [is retryable](Error::is_retryable) its holder rolls it back, or calls
/// [`restart`](Self::restart) and does all of it again.
pub struct Transaction<M: ConstMachine = Machine> {
    /// It borrows the session, and is dropped before that. None if it could not be begun again.
    txn: Option<Own<M>>,
    /// None at the end alone.
    session: Option<Lone<M>>,
    store: Store<M>,
    options: TxnOptions,
    /// Whether it waits for locks as long as there is no deadlock.
    patient: bool,
    /// It is a task's: see `tasks.rs`.
    in_steps: bool,
}

// SAFETY: the transaction refers to the session, which may be sent and goes with it, and to what
// all threads share. The object is not `Sync`.
unsafe impl<M: ConstMachine> Send for Transaction<M> {}

impl<M: ConstMachine> Store<M> {
    /// A transaction that the caller ends: serializable, and it waits for locks until it has them
    /// or is the victim of a deadlock.
    ///
    /// It has a thread slot of its own. A server has one transaction for each client that is at
    /// work, and [`write`](Self::write) where a closure will do.
    ///
    /// A thread that has two of them, and asks in one for what the other has locked, gets
    /// [`Error::OwnTransaction`] at once: a transaction counts as that of the thread that called it
    /// last. A program that hands one to another thread, and then waits for it, uses
    /// [`begin_with`](Self::begin_with): that waits for its time, and its error says that the lock
    /// was held by a transaction of this thread. In the closure of a transaction any call that
    /// wants what the transaction has locked fails so at once. For a table that another thread is
    /// just making it waits ten seconds at most, for no deadlock is found there: then the call
    /// fails with [`Error::Lock`].
    ///
    /// # Errors
    ///
    /// [`Error::Threads`]; those of the parts, also of a checkpoint that is due and is made first.
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
    /// // It goes on in another thread.
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

    /// As [`begin`](Self::begin), with a level, a label, a mode, and a time after which it waits
    /// for no lock any more: then a lock that is not free is [`Error::Lock`] at once.
    /// [`Duration::MAX`] is no limit, as `begin` has none.
    ///
    /// # Errors
    ///
    /// As there.
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

    /// A transaction that is done in steps.
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
    /// Begins it, as old as it was, and knowing what it could not lock to write it.
    fn begin(&mut self, age: Option<u64>, contended: Contended) -> Result<(), Error> {
        let session = self.session.as_ref().ok_or_else(over)?;
        // SAFETY: what borrows the session is dropped before that is given away.
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

    /// How one that begins now waits for locks.
    pub(crate) fn wait(&self) -> Wait {
        match self.patient {
            true => Wait::Detect,
            false => Wait::Until(Deadline::after::<M>(self.options.time)),
        }
    }

    /// The transaction, and where its tables are.
    fn parts(&mut self) -> Result<(&mut Own<M>, Tables<'_, M>), Error> {
        let (Some(txn), Some(session)) = (&mut self.txn, &self.session) else {
            return Err(over());
        };
        Ok((txn, Tables { catalog: self.store.catalog(), kept: session.get() }))
    }

    pub(crate) fn txn(&mut self) -> Result<&mut Own<M>, Error> {
        Ok(self.parts()?.0)
    }

    /// Makes a table if it is not there, as one step, and says which tree it has.
    pub(crate) fn step_to_tree(&mut self, table: &Asked) -> Result<Step<u32>, Error> {
        let (txn, tables) = self.parts()?;
        txn.step(|txn| tables.make_asked(table, txn))
    }

    /// When a commit returns.
    pub(crate) fn mode(&self) -> Mode {
        self.options.mode.unwrap_or(self.store.home().sizes.mode)
    }

    /// Who uses it.
    pub(crate) fn user(&self) -> Result<Arc<User<M>>, Error> {
        Ok(self.session.as_ref().ok_or_else(over)?.get().worker.user.clone())
    }

    pub(crate) fn store(&self) -> &Store<M> {
        &self.store
    }

    /// Its session, when it has ended.
    pub(crate) fn ended(&mut self) -> Result<&StoreSession<M>, Error> {
        self.txn = None;
        Ok(&self.session.as_ref().ok_or_else(over)?.get().worker)
    }

    /// Does something with the transaction as a closure of [`Store::write`] has it in hand: all
    /// that can be done there.
    ///
    /// # Errors
    ///
    /// What the closure returns. The transaction goes on, unless the error has ended it.
    ///
    /// # Panics
    ///
    /// If the closure does. What it had written until then is not committed without the rest: who
    /// catches the panic gets [`Error::Aborted`] from then on, until the transaction is rolled
    /// back or [begun anew](Self::restart).
    pub fn with<R>(
        &mut self,
        work: impl FnOnce(&mut WriteTxn<'_, '_, M>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let stays = !self.in_steps;
        let (txn, tables) = self.parts()?;
        let _in_closure = tables.kept.worker.user.enter(stays);
        txn.as_a_whole(|txn| work(&mut WriteTxn { txn, tables }))
    }

    /// The same, as one step, which undoes nothing from before the savepoint.
    pub(crate) fn step_with<R>(
        &mut self,
        before: Savepoint,
        work: impl FnOnce(&mut WriteTxn<'_, '_, M>) -> Result<R, Error>,
    ) -> Result<Step<R>, Error> {
        let (txn, tables) = self.parts()?;
        let _in_closure = tables.kept.worker.user.enter(false);
        txn.step_behind(before, |txn| txn.as_a_whole(|txn| work(&mut WriteTxn { txn, tables })))
    }

    /// Says that the calling thread runs a closure that has the transaction, until the returned
    /// guard is dropped. For bindings of languages whose closures call the transaction step by
    /// step: another call of the thread that asks for a lock of this transaction fails at once
    /// with [`Error::OwnTransaction`], as in the closure of [`Store::write`].
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] if the transaction is over.
    pub fn enter(&self) -> Result<Entered<M>, Error> {
        self.user().map(Entered::new)
    }

    /// As [`WriteTxn::get`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn get<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        self.with(|tx| tx.get(table, key))
    }

    /// As [`WriteTxn::get_for_update`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn get_for_update<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        self.with(|tx| tx.get_for_update(table, key))
    }

    /// As [`WriteTxn::put`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn put<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error> {
        self.with(|tx| tx.put(table, key, value))
    }

    /// As [`WriteTxn::insert`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn insert<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error> {
        self.with(|tx| tx.insert(table, key, value))
    }

    /// As [`WriteTxn::remove`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn remove<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<bool, Error> {
        self.with(|tx| tx.remove(table, key))
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
    ) -> Result<Rows<'static, K, V>, Error> {
        self.with(|tx| tx.range(table, range))
    }

    /// As [`WriteTxn::savepoint`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Engine`] if the transaction could not be begun again.
    pub fn savepoint(&mut self) -> Result<Savepoint, Error> {
        self.with(|tx| tx.savepoint())
    }

    /// As [`WriteTxn::roll_back_to`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn roll_back_to(&mut self, savepoint: Savepoint) -> Result<(), Error> {
        self.with(|tx| tx.roll_back_to(savepoint))
    }

    /// The level that it runs at.
    pub fn level(&self) -> Level {
        self.options.level
    }

    /// Commits: as durable as the mode says when this returns. Returns the position of the commit
    /// in the log; none if nothing was written.
    ///
    /// # Errors
    ///
    /// [`Error::Aborted`] after a call that failed; [`Error::Lock`], for its last write may be made
    /// only now, and meet a range that another one holds; [`Error::TransactionTooOld`]; those of
    /// the parts. Then it is rolled back, but for [`Error::CommitUnknown`]. In [`Mode::Full`] it
    /// waits, also with an error, until what it has read is durable: [`Error::ReadsUnknown`] if
    /// that fails, with the other error within.
    ///
    /// # Death
    ///
    /// A thread that is killed in the call has committed all of it, or nothing: then a sweep of
    /// another thread undoes it.
    pub fn commit(mut self) -> Result<Option<u64>, Error> {
        let committed = self.txn.take().ok_or_else(over)?.commit();
        let at = committed.map_err(|why| self.fails_with(why))?;
        self.settle(at).map(|()| at)
    }

    /// Commits, and keeps the object if that fails with an error that
    /// [is retryable](Error::is_retryable): then it was rolled back, and
    /// [`restart`](Self::restart) begins it again, as old as it was. After any other end of this
    /// call the object can only be dropped.
    ///
    /// # Errors
    ///
    /// Those of [`commit`](Self::commit). With a retryable error it does not wait until what it has
    /// read is durable: the end of the transaction waits for that.
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
    /// for servers and event loops. Its locks are released when this call returns. The call waits
    /// for no disk, but if the commit fails, or if no thread can be started that syncs the log.
    ///
    /// The future holds neither the store nor the transaction. Dropping it stops nothing.
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
                // There is no thread for it: this one waits.
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

    /// Why it can only be rolled back or restarted, if a call has failed so.
    pub fn failure(&self) -> Option<&Error> {
        self.txn.as_ref()?.failed()
    }

    fn settle(&self, at: Option<u64>) -> Result<(), Error> {
        let session = self.session.as_ref().ok_or_else(over)?;
        self.store.settle(&session.get().worker, at, self.options.mode)
    }

    /// Waits until what it has read, which the error may reveal, is durable; returns the error to
    /// end with.
    #[cold]
    fn fails_with(&self, why: Error) -> Error {
        self.store.background().after_failure();
        match self.settle(None) {
            Ok(()) => why,
            Err(unsettled) => Error::with_end(why, unsettled),
        }
    }

    /// Prepares it: the first of two phases. As durable as the mode says when this returns. From
    /// then on it is neither committed nor rolled back, and holds its locks, over any death and a
    /// crash of the machine, until some thread decides by [`Store::commit_prepared`] or
    /// [`Store::roll_back_prepared`]. Snapshots do not see it. The id has 1 to 128 bytes, and no
    /// other undecided one has it. One that has written nothing is prepared as any other.
    ///
    /// It keeps its thread slot and the log from its first record on, beyond
    /// [`Sizes::history`](crate::Sizes::history): one that is forgotten costs as much as a
    /// transaction that never ends. [`Store::prepared`] lists all.
    ///
    /// # Errors
    ///
    /// [`Error::Gid`]; [`Error::Prepared`] if another has the id, and [`Error::Locks`], to be tried
    /// again, if one that is not prepared has; [`Error::Aborted`]; those of
    /// the parts. Then it is rolled back, but for [`Error::PrepareUnknown`]; and it waits as a
    /// [`commit`](Self::commit) that fails.
    ///
    /// # Death
    ///
    /// A thread that is killed in the call has prepared it, or a sweep rolls it back.
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

    /// Says why one is not prepared, and was rolled back.
    #[cold]
    fn not_prepared(&self, why: Error, gid: &[u8]) -> Error {
        let is_taken = matches!(why, Error::Prepared { .. });
        // Its lock may be a thread's that has prepared nothing yet, or that decided: it goes soon,
        // and if that one is dead as soon as it is swept.
        if is_taken && matches!(self.store.home().slot_of(gid), Ok(None)) {
            return LocksError::TimedOut.into();
        }
        why
    }

    /// Undoes all that it has written, and lets go of its locks. In [`Mode::Full`] it then waits
    /// until every commit that the transaction may have read is durable, so that a program may act
    /// on what it has read. It costs one sync of the log, and none if all is durable.
    ///
    /// # Errors
    ///
    /// [`Error::ReadsUnknown`] if what it has read cannot be made durable: it is rolled back. Those
    /// of the parts: then its locks stay until a sweep has undone it.
    pub fn roll_back(mut self) -> Result<(), Error> {
        match self.undo() {
            Ok(()) => self.settle(None),
            Err(why) => Err(self.fails_with(why)),
        }
    }

    /// The same of one whose session is needed still.
    pub(crate) fn undo(&mut self) -> Result<(), Error> {
        let Some(txn) = self.txn.take() else { return Ok(()) };
        let undone = txn.roll_back();
        self.store.background().after_failure();
        undone
    }

    /// Rolls it back, and begins it anew: as old as it was, so that it is not the victim of each
    /// deadlock, and with all its time again. It does not wait for the disk: the end of the
    /// transaction waits for what was read before the restart too.
    ///
    /// # Errors
    ///
    /// Those of the parts. Then it can only be dropped.
    pub fn restart(&mut self) -> Result<(), Error> {
        // The next one is of the same slot, and that has one at a time.
        let old = self.txn.take().ok_or_else(over)?;
        let (age, contended) = (old.age()?, old.contended());
        old.roll_back()?;
        self.store.background().after_failure();
        self.begin(Some(age), contended)
    }

    /// As [`restart`](Self::restart), with this much time to wait for locks from now on: for a loop
    /// that has one deadline for all its attempts.
    ///
    /// # Errors
    ///
    /// Those of the parts. Then it can only be dropped.
    pub fn restart_within(&mut self, time: Duration) -> Result<(), Error> {
        self.options.time = time;
        self.restart()
    }
}

/// What a transaction says that could not be begun again.
fn over() -> Error {
    Error::Engine("the transaction is over: it could not be begun again".to_owned())
}

impl<M: ConstMachine> Drop for Transaction<M> {
    fn drop(&mut self) {
        // What borrows the session goes before it. What cannot be undone now is undone by a sweep.
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

//! Running a transaction again until it commits.
//!
//! The closure may run several times: the transaction is retried when it was aborted to break a
//! deadlock, when what it had read before its first lock has changed (`txn/early.rs`), or when it
//! was open for too long. The next attempt has the age of the first, so it is not chosen as victim
//! forever, and it locks from the beginning. If an attempt could not lock a key to write it, the
//! next attempt reads that key for update: see `txn/contended.rs`.
//!
//! | the closure returns | the transaction | result |
//! |---|---|---|
//! | a value | commits | done |
//! | a value | cannot commit | retried if the error is retryable |
//! | [`Error`] | | retried if the error is retryable |
//! | the caller's own error | has failed with a retryable error | retried |
//! | the caller's own error | has not | rolled back; the error is returned |

use core::time::Duration;

use latchwork_lockmgr::{Owner, OwnerOptions, Session, Wait};
use latchwork_log::Mode;
use latchwork_machine::{Clock, ConstMachine, Deadline};

use crate::engine::Engine;
use crate::txn::early::{EarlyReads, Wanted};
use crate::txn::{Contended, Txn};
use crate::{Error, Level};

/// Options of a transaction.
#[derive(Clone, Copy, Debug)]
pub struct TxnOptions {
    /// After this time the transaction waits for no lock and is not retried: [`Error::Deadline`].
    /// Counted from the first call that locks, or from the end of the first run. Default: 10 s.
    ///
    /// The limit does not apply to other waits: a checkpoint that is made first (see
    /// [`Store::write`]), space in the log, a page, or the sync of the disk. While the thread waits
    /// for a lock of a dead process, it may also roll that process's transaction back, regardless
    /// of the limit.
    ///
    /// [`Store::write`]: crate::Store::write
    pub time: Duration,
    /// A label for error texts and reports; see [`OwnerOptions::label`].
    pub label: &'static str,
    /// The isolation level. Default: [`Level::Serializable`].
    pub level: Level,
    /// When a commit returns; `None` uses the store's mode.
    ///
    /// A transaction that may write reads committed data, durable or not. In [`Mode::Full`] it
    /// returns, with a value or an error, only after that data is durable; for transaction objects
    /// see [`Transaction`](crate::Transaction). A snapshot of a store in that mode reads durable
    /// data only. So after a transaction in another mode has read a record, a snapshot taken later
    /// may still contain an older version.
    pub mode: Option<Mode>,
}

impl Default for TxnOptions {
    fn default() -> Self {
        Self { time: Duration::from_secs(10), label: "", level: Level::default(), mode: None }
    }
}

/// The result of a transaction that was run until it committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempts<R> {
    /// The closure's result.
    pub value: R,
    /// The position of the commit record; `None` if nothing was written.
    pub at: Option<u64>,
    /// The number of runs of the closure.
    pub runs: u32,
}

/// Runs a closure in a transaction until it commits. `session` belongs to the thread that has
/// `slot`. All reads are under locks.
///
/// # Errors
///
/// The closure's error, if it is not retryable; [`Error::Deadline`]; [`Error::Locks`],
/// [`Error::Engine`]. The transaction was rolled back.
///
/// # Panics
///
/// Panics if the closure panics; the transaction is rolled back first.
pub fn run<R, E: Engine, M: ConstMachine>(
    engine: &E,
    session: &Session<M>,
    slot: u16,
    options: &TxnOptions,
    mut body: impl FnMut(&mut Txn<'_, E, M>) -> Result<R, Error>,
) -> Result<Attempts<R>, Error> {
    let mut runs = Runs::new(engine, session, slot, options);
    runs.early = None;
    Attempts::run(&mut runs, |runs| body(runs.txn(None)?))
}

impl<R> Attempts<R> {
    /// Runs a closure until its transaction commits.
    pub(crate) fn run<'t, E: Engine, M: ConstMachine>(
        runs: &mut Runs<'t, E, M>,
        body: impl FnMut(&mut Runs<'t, E, M>) -> Result<R, Error>,
    ) -> Result<Self, Error> {
        Self::run_until(runs, body, |returned, _| Ok(returned))
    }

    /// Runs a closure that returns the caller's own error type. The transaction itself decides
    /// whether it is retried.
    pub(crate) fn run_as<'t, E: Engine, M: ConstMachine, X: From<Error>>(
        runs: &mut Runs<'t, E, M>,
        body: impl FnMut(&mut Runs<'t, E, M>) -> Result<R, X>,
    ) -> Result<Self, X> {
        Self::run_until(runs, body, why_again)
    }

    /// Runs the attempts. `why` receives the closure's error and the transaction's failure, and
    /// returns the error of the run, or the caller's own error.
    fn run_until<'t, E: Engine, M: ConstMachine, X: From<Error>>(
        runs: &mut Runs<'t, E, M>,
        mut body: impl FnMut(&mut Runs<'t, E, M>) -> Result<R, X>,
        why: impl Fn(X, Option<Error>) -> Result<Error, X>,
    ) -> Result<Self, X> {
        loop {
            runs.begun += 1;
            let failed = match body(runs) {
                Ok(value) => match runs.end() {
                    Ok(at) => return Ok(Self { value, at, runs: runs.begun }),
                    Err(error) => error,
                },
                Err(returned) => why(returned, runs.roll_back()?)?,
            };
            runs.go_on(failed)?;
        }
    }
}

/// The attempts of one transaction: the part that does not depend on the closure, so that it is
/// compiled only once.
pub(crate) struct Runs<'t, E: Engine, M: ConstMachine> {
    begin: Begin<'t, E, M>,
    /// How many have begun.
    begun: u32,
    /// The reads of the first attempt before its first lock.
    early: Option<EarlyReads<'t, E>>,
    /// The transaction of this attempt, from its first lock on.
    txn: Option<Txn<'t, E, M>>,
}

/// How an attempt begins to lock.
struct Begin<'t, E: Engine, M: ConstMachine> {
    engine: &'t E,
    session: &'t Session<M>,
    slot: u16,
    options: &'t TxnOptions,
    /// When the first attempt did: see [`OwnerOptions::age`].
    since: Option<u64>,
    contended: Contended,
}

impl<'t, E: Engine, M: ConstMachine> Begin<'t, E, M> {
    /// Creates the owner of the attempt's locks.
    #[inline(always)]
    fn owner(&mut self) -> Result<Owner<'t, M>, Error> {
        let (label, age) = (self.options.label, Some(self.since()));
        let options = OwnerOptions { label, age, ..OwnerOptions::default() };
        Ok(self.session.owner_with(&options)?)
    }

    /// Creates the transaction of the owner.
    #[inline(always)]
    fn txn(&mut self, owner: Owner<'t, M>) -> Txn<'t, E, M> {
        let mut txn = Txn::new(self.engine, owner, self.slot, self.options.level);
        txn.set_wait(Wait::Until(self.deadline()));
        txn.set_contended(core::mem::take(&mut self.contended));
        txn
    }

    /// Reads the clock once for the age and the deadline; a read costs as much as a lock.
    fn since(&mut self) -> u64 {
        *self.since.get_or_insert_with(|| M::now(Clock::Monotonic))
    }

    fn deadline(&mut self) -> Deadline {
        Deadline::since(self.since(), self.options.time)
    }
}

impl<'t, E: Engine, M: ConstMachine> Runs<'t, E, M> {
    pub(crate) fn new(
        engine: &'t E,
        session: &'t Session<M>,
        slot: u16,
        options: &'t TxnOptions,
    ) -> Self {
        let early = (options.level == Level::Serializable).then(EarlyReads::new);
        let contended = Contended::default();
        let begin = Begin { engine, session, slot, options, since: None, contended };
        Self { begin, begun: 0, early, txn: None }
    }

    /// Returns the transaction, which requests the lock `first` next. It locks what it reads from
    /// now on.
    ///
    /// # Errors
    ///
    /// Those of [`Txn::settle`] and of a new owner of locks.
    #[inline]
    pub(crate) fn txn(&mut self, first: Option<Wanted<'_>>) -> Result<&mut Txn<'t, E, M>, Error> {
        let none = match &mut self.txn {
            Some(txn) => return Ok(txn),
            none => none,
        };
        let owner = self.begin.owner()?;
        let txn = none.insert(self.begin.txn(owner));
        if let Some(early) = &self.early {
            let settled = txn.settle(early, first);
            self.early = None;
            settled?;
        }
        Ok(txn)
    }

    /// Reads a record: see [`Txn::get_into`].
    ///
    /// # Errors
    ///
    /// Those of [`Txn::get_into`] and of [`txn`](Self::txn).
    #[inline]
    pub(crate) fn get_into(
        &mut self,
        tree: u32,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        if let Some(early) = &mut self.early
            && let Some(there) =
                early.get_into((self.begin.engine, self.begin.slot), tree, key, value)
        {
            return Ok(there);
        }
        self.txn(None)?.get_into(tree, key, value)
    }

    /// Returns the position of the snapshot that it reads before its first lock.
    #[cfg(feature = "internals")]
    pub(crate) fn reads_at(&self) -> Option<u64> {
        self.early.as_ref()?.at()
    }

    /// Commits. Without a lock there is nothing to commit.
    fn end(&mut self) -> Result<Option<u64>, Error> {
        self.txn.as_mut().map_or(Ok(None), Txn::end)
    }

    /// Rolls back. Returns the error after which the transaction could only be rolled back, if any.
    #[cold]
    fn roll_back(&mut self) -> Result<Option<Error>, Error> {
        let Some(txn) = self.txn.take() else {
            self.begin.engine.rolled_back(None);
            return Ok(None);
        };
        let failed = txn.failed().cloned();
        self.begin.contended = txn.contended();
        txn.roll_back().map(|()| failed)
    }

    /// Prepares the next attempt, or returns the error of the last one.
    #[cold]
    fn go_on(&mut self, failed: Error) -> Result<(), Error> {
        if let Some(txn) = self.txn.take() {
            self.begin.contended = txn.contended();
        }
        self.early = None;
        if !failed.is_retryable() {
            return Err(failed);
        }
        if self.begin.deadline().passed::<M>() {
            return Err(Error::Deadline { runs: self.begun, last: Box::new(failed) });
        }
        Ok(())
    }
}

/// Returns why a failed transaction is retried, or the closure's error if it is not. The closure
/// may have converted the transaction's error to any other.
pub(crate) fn why_again<X>(returned: X, failed: Option<Error>) -> Result<Error, X> {
    failed.filter(Error::is_retryable).ok_or(returned)
}

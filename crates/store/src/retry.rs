//! Running a transaction again until it commits.
//!
//! The closure may run several times: the transaction is retried when it was aborted to break a
//! deadlock or was open for too long. The next attempt has the age of the first, so it is not
//! chosen as victim forever. If an attempt could not lock a key to write it, the next attempt reads
//! that key for update: see `txn/contended.rs`.
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
use crate::txn::Contended;
use crate::txn::Txn;
use crate::{Error, Level};

/// Options of a transaction.
#[derive(Clone, Copy, Debug)]
pub struct TxnOptions {
    /// After this time the transaction waits for no lock and is not retried: [`Error::Deadline`].
    /// Default: 10 s.
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
/// `slot`.
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
    body: impl FnMut(&mut Txn<'_, E, M>) -> Result<R, Error>,
) -> Result<Attempts<R>, Error> {
    Attempts::run_until(engine, session, slot, options, body, |returned, _| Ok(returned))
}

impl<R> Attempts<R> {
    /// Runs a closure that returns the caller's own error type. The transaction itself decides
    /// whether it is retried.
    pub(crate) fn run_as<E: Engine, M: ConstMachine, X: From<Error>>(
        engine: &E,
        session: &Session<M>,
        slot: u16,
        options: &TxnOptions,
        body: impl FnMut(&mut Txn<'_, E, M>) -> Result<R, X>,
    ) -> Result<Self, X> {
        Self::run_until(engine, session, slot, options, body, why_again)
    }

    /// Runs the attempts. `why` receives the closure's error and the transaction's failure, and
    /// returns the error of the run, or the caller's own error.
    fn run_until<E: Engine, M: ConstMachine, X: From<Error>>(
        engine: &E,
        session: &Session<M>,
        slot: u16,
        options: &TxnOptions,
        mut body: impl FnMut(&mut Txn<'_, E, M>) -> Result<R, X>,
        why: impl Fn(X, Option<Error>) -> Result<Error, X>,
    ) -> Result<Self, X> {
        // Read the clock once for both; a read costs as much as a lock.
        let now = M::now(Clock::Monotonic);
        let deadline = Deadline::since(now, options.time);
        let mut runs = Runs { session, label: options.label, deadline, age: now, begun: 0 };
        let mut contended = Contended::default();
        loop {
            let mut txn = Txn::new(engine, runs.owner()?, slot, options.level);
            txn.set_wait(Wait::Until(runs.deadline));
            txn.set_contended(contended);
            let ended = body(&mut txn);
            let failed = match ended {
                Ok(value) => match txn.end() {
                    Ok(at) => return Ok(Self { value, at, runs: runs.begun }),
                    Err(error) => {
                        contended = txn.contended();
                        error
                    }
                },
                Err(returned) => {
                    let failed = txn.failed().cloned();
                    contended = txn.contended();
                    txn.roll_back()?;
                    why(returned, failed)?
                }
            };
            runs.go_on(failed)?;
        }
    }
}

/// The attempts of one transaction: the part that does not depend on the closure, so that it is
/// compiled only once.
struct Runs<'t, M: ConstMachine> {
    session: &'t Session<M>,
    label: &'static str,
    deadline: Deadline,
    /// When the first attempt began: see [`OwnerOptions::age`].
    age: u64,
    begun: u32,
}

impl<'t, M: ConstMachine> Runs<'t, M> {
    /// Creates the owner of the next attempt's locks.
    fn owner(&mut self) -> Result<Owner<'t, M>, Error> {
        let age = Some(self.age);
        let options = OwnerOptions { label: self.label, age, ..OwnerOptions::default() };
        let owner = self.session.owner_with(&options)?;
        self.begun += 1;
        Ok(owner)
    }

    /// Returns an error after a failed attempt, unless another attempt follows.
    #[cold]
    fn go_on(&self, failed: Error) -> Result<(), Error> {
        if !failed.is_retryable() {
            return Err(failed);
        }
        if self.deadline.passed::<M>() {
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

//! Running a transaction again until it commits.
//!
//! The closure must bear being run more than once: it is, whenever the transaction was chosen to
//! break a deadlock, or was open for too long. The next attempt is as old as the first, so it is
//! not chosen for ever. And it reads what the one before could not lock to write it as one that
//! means to write: see `txn/contended.rs`.
//!
//! | the closure returns | and the transaction | then |
//! |---|---|---|
//! | a value | commits | it is done |
//! | a value | cannot commit | run again if that is retryable |
//! | [`Error`] | | run again if that is retryable |
//! | an error of the caller's own | failed with what is retryable | run again |
//! | an error of the caller's own | has not | it is rolled back, and the error returned |

use core::time::Duration;

use latchwork_lockmgr::{Owner, OwnerOptions, Session, Wait};
use latchwork_log::Mode;
use latchwork_machine::{Clock, ConstMachine, Deadline};

use crate::txn::Contended;
use crate::{Engine, Error, Level, Txn};

/// How long a transaction is run again.
#[derive(Clone, Copy, Debug)]
pub struct TxnOptions {
    /// After which it waits for no lock any more, and is not run again: [`Error::Deadline`]. 10 s.
    ///
    /// It bounds no other wait: not the checkpoint that may come first (see [`Store::write`]), nor
    /// those for room in the log, for a page, or for the sync of the disk; nor what the thread does
    /// while it waits for a lock of a process that died: it undoes what that has left.
    ///
    /// [`Store::write`]: crate::Store::write
    pub time: Duration,
    /// For people; see [`OwnerOptions::label`].
    pub label: &'static str,
    /// The level. [`Level::Serializable`].
    pub level: Level,
    /// When a commit returns, if not as the store's mode says.
    ///
    /// A transaction that may write reads what is committed, be it durable or not, and one in
    /// [`Mode::Full`] does not return before it is, with a value or an error; of a transaction by
    /// hand see [`Transaction`](crate::Transaction). A snapshot of a store
    /// in that mode sees what is durable. So a thread that has read a record in a transaction of
    /// another mode may read an older version in a snapshot that it takes afterwards.
    pub mode: Option<Mode>,
}

impl Default for TxnOptions {
    fn default() -> Self {
        Self { time: Duration::from_secs(10), label: "", level: Level::default(), mode: None }
    }
}

/// What came of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempts<R> {
    /// What the closure returned.
    pub value: R,
    /// The position of the commit record, if anything was written.
    pub at: Option<u64>,
    /// How often the closure was run.
    pub runs: u32,
}

impl<R> Attempts<R> {
    /// Runs a closure in a transaction until it commits. `session` is of the thread that has
    /// `slot`.
    ///
    /// # Errors
    ///
    /// What the closure returns, if that is not retryable; [`Error::Deadline`]; [`Error::Locks`],
    /// [`Error::Engine`]. The transaction was rolled back then.
    ///
    /// # Panics
    ///
    /// If the closure does; the transaction was rolled back then.
    #[doc(hidden)]
    pub fn run<E: Engine, M: ConstMachine>(
        engine: &E,
        session: &Session<M>,
        slot: u16,
        patience: &TxnOptions,
        body: impl FnMut(&mut Txn<'_, E, M>) -> Result<R, Error>,
    ) -> Result<Self, Error> {
        Self::run_until(engine, session, slot, patience, body, |returned, _| Ok(returned))
    }

    /// The same, of a closure whose errors are the caller's own: the transaction itself says why
    /// it is run again.
    pub(crate) fn run_as<E: Engine, M: ConstMachine, X: From<Error>>(
        engine: &E,
        session: &Session<M>,
        slot: u16,
        patience: &TxnOptions,
        body: impl FnMut(&mut Txn<'_, E, M>) -> Result<R, X>,
    ) -> Result<Self, X> {
        Self::run_until(engine, session, slot, patience, body, why_again)
    }

    /// `why` tells from what the closure returned, and from what the transaction failed with, why
    /// the run failed; or gives back what is the caller's own.
    fn run_until<E: Engine, M: ConstMachine, X: From<Error>>(
        engine: &E,
        session: &Session<M>,
        slot: u16,
        patience: &TxnOptions,
        mut body: impl FnMut(&mut Txn<'_, E, M>) -> Result<R, X>,
        why: impl Fn(X, Option<Error>) -> Result<Error, X>,
    ) -> Result<Self, X> {
        // One look at the clock for both: it costs as much as a lock.
        let now = M::now(Clock::Monotonic);
        let deadline = Deadline::since(now, patience.time);
        let mut runs = Runs { session, label: patience.label, deadline, age: now, begun: 0 };
        let mut contended = Contended::default();
        loop {
            let mut txn = Txn::new(engine, runs.owner()?, slot, patience.level);
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

/// The runs of one transaction: what does not depend on its closure, so that it is compiled once
/// and not for each.
struct Runs<'t, M: ConstMachine> {
    session: &'t Session<M>,
    label: &'static str,
    deadline: Deadline,
    /// When the first began: see [`OwnerOptions::age`].
    age: u64,
    begun: u32,
}

impl<'t, M: ConstMachine> Runs<'t, M> {
    /// The owner of the next run's locks.
    fn owner(&mut self) -> Result<Owner<'t, M>, Error> {
        let age = Some(self.age);
        let options = OwnerOptions { label: self.label, age, ..OwnerOptions::default() };
        let owner = self.session.owner_with(&options)?;
        self.begun += 1;
        Ok(owner)
    }

    /// After a run that failed: an error if there is to be no other.
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

/// Why a transaction is run again that failed so, and whose closure returned this then; or what
/// was returned, if it is not. What can only be rolled back may have been told in any words.
pub(crate) fn why_again<X>(returned: X, failed: Option<Error>) -> Result<Error, X> {
    failed.filter(Error::is_retryable).ok_or(returned)
}

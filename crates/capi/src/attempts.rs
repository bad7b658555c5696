//! Retry loops: a transaction that runs again until it commits. Two forms, one state machine.
//!
//! | state | `next` | `end(0)` | `end(error)` |
//! |---|---|---|---|
//! | Ready | begins an attempt, or takes the attempt begun by `end`: Running | misuse | misuse |
//! | Running | misuse | commits: Over; Ready if that is retryable | Ready if retryable, else Over |
//! | Over | `LW_DONE`, or the code that it ended with | misuse | misuse |

use core::ffi::{c_int, c_void};
use core::time::Duration;
use std::time::Instant;

use latchwork_store::{Error, Store, TxnOptions};

use crate::call::{Answer, call, place};
use crate::codes::lw_code::*;
use crate::codes::lw_is_retryable;
use crate::error::lw_error;
use crate::failure::{Failure, misuse};
use crate::handle::{self, alone, kinds, used};
use crate::record::function;
use crate::store::lw_store;
use crate::txn::{Txn, lw_txn, lw_txn_options, patience};

/// The attempts of one transaction: a retry loop without a callback. One thread uses it at a time.
#[allow(non_camel_case_types, reason = "it is the name in C")]
pub struct lw_attempts(());

/// Where a retry loop is.
enum State {
    Ready,
    Running,
    /// It has ended, with this code.
    Over(c_int),
}

/// The contents of an `lw_attempts`.
pub(crate) struct Attempts {
    store: Store,
    patience: TxnOptions,
    until: Instant,
    state: State,
    /// The transaction, once it was begun.
    tx: *mut lw_txn,
    runs: u32,
}

// SAFETY: the transaction is a handle that belongs to this object.
unsafe impl Send for Attempts {}

kinds! {
    lw_attempts => Attempts, 7, false;
}

impl Drop for Attempts {
    fn drop(&mut self) {
        self.release();
    }
}

impl Attempts {
    fn new(store: &Store, patience: TxnOptions) -> Self {
        let until = Instant::now() + patience.time;
        let (store, tx) = (store.clone(), core::ptr::null_mut());
        Self { store, patience, until, state: State::Ready, tx, runs: 0 }
    }

    /// Frees the transaction, which rolls it back if it is open.
    fn release(&mut self) {
        // SAFETY: null, or the handle that this object has made.
        unsafe { handle::finish(core::mem::replace(&mut self.tx, core::ptr::null_mut())) };
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Begins the next attempt: the first one, or that which `again` has begun.
    fn begin(&mut self) -> Result<*mut lw_txn, Failure> {
        if self.tx.is_null() {
            let time = self.left();
            let begun = self.store.begin_with(&TxnOptions { time, ..self.patience });
            let tx = begun.inspect_err(|why| self.fails(why))?;
            self.tx = handle::new(Txn::new(tx, true));
        }
        self.runs += 1;
        self.state = State::Running;
        Ok(self.tx)
    }

    fn fails(&mut self, why: &Error) {
        self.state = State::Over(crate::failure::code_of(why) as c_int);
        self.release();
    }

    /// Ends an attempt whose body returned this.
    fn end(&mut self, code: c_int) -> Answer {
        // SAFETY: the handle that this object has made.
        let mut tx = unsafe { alone(self.tx)? };
        if code == 0 {
            let committed = tx.get().tx.try_commit();
            drop(tx);
            return match committed {
                Ok(_) => {
                    self.state = State::Over(LW_DONE as c_int);
                    self.release();
                    Ok(LW_OK)
                }
                Err(why) if why.is_retryable() => self.again(why),
                Err(why) => {
                    self.fails(&why);
                    Err(why.into())
                }
            };
        }
        // The transaction decides, and not the code: the body may have made another one of it.
        let failed = tx.get().tx.failure().filter(|why| why.is_retryable()).cloned();
        drop(tx);
        match failed {
            Some(why) => self.again(why),
            None if lw_is_retryable(code) != 0 => self.again(Error::TransactionTooOld),
            None => self.gives_up(code),
        }
    }

    /// The next attempt is due, unless the time is over.
    fn again(&mut self, last: Error) -> Answer {
        let time = self.left();
        if !time.is_zero() {
            // At once, and not by the next call, before which the caller may wait: it frees the
            // locks.
            // SAFETY: the handle that this object has made.
            let restarted = unsafe { alone(self.tx)? }.get().restart(Some(time));
            restarted.inspect_err(|why| self.fails(why))?;
            self.state = State::Ready;
            return Ok(LW_AGAIN);
        }
        let why = Error::Deadline { runs: self.runs, last: Box::new(last) };
        self.rolls_back()?;
        self.fails(&why);
        Err(why.into())
    }

    fn gives_up(&mut self, code: c_int) -> Answer {
        self.rolls_back()?;
        if code == LW_AGAIN as c_int || code == LW_DONE as c_int {
            self.state = State::Over(LW_MISUSE as c_int);
            return Err(misuse(
                "a body ends with 0, an error, or a number other than LW_AGAIN and LW_DONE",
            ));
        }
        self.state = State::Over(code);
        Err(Failure::Callers(code))
    }

    /// Rolls it back, and waits until what it has read is durable: the caller may act on that.
    fn rolls_back(&mut self) -> Result<(), Failure> {
        let tx = core::mem::replace(&mut self.tx, core::ptr::null_mut());
        // SAFETY: the handle that this object has made.
        let rolled_back = unsafe { handle::end(tx)? }.tx.roll_back();
        rolled_back.inspect_err(|why| self.fails(why))?;
        Ok(())
    }
}

/// Begins a retry loop. `options` may be NULL: 10 seconds for all attempts. Use:
///
/// ```c
/// lw_attempts *loop;
/// lw_txn *tx;
/// int code = lw_attempts_new(store, NULL, &loop, &error);
/// while (code == LW_OK && (code = lw_attempts_next(loop, &tx, &error)) == LW_OK) {
///     int done = transfer(tx);                      // 0, or a code of a call that failed
///     code = lw_attempts_end(loop, done, &error);   // LW_OK, LW_AGAIN, or an error
///     if (code == LW_AGAIN) code = LW_OK;
/// }
/// lw_attempts_free(loop);                           // code is LW_DONE if it has committed
/// ```
///
/// # Errors
///
/// `LW_OPTIONS`, `LW_MISUSE`.
///
/// # Safety
///
/// The store is alive; the options were initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_attempts_new(
    store: *mut lw_store,
    options: *const lw_txn_options,
    attempts: *mut *mut lw_attempts,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let attempts = place(attempts, core::ptr::null_mut(), "attempts")?;
            let (patience, _) = patience(options)?;
            *attempts = handle::new(Attempts::new(&used(store)?.store, patience));
            Ok(LW_OK)
        })
    }
}

/// Begins the next attempt: `*tx` is its transaction, which belongs to the loop and ends with
/// `lw_attempts_end`.
///
/// # Errors
///
/// `LW_DONE` if the transaction has committed; the code with which the loop has ended; those of
/// `lw_begin`; `LW_MISUSE` if an attempt runs.
///
/// # Safety
///
/// The loop is alive; `tx` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_attempts_next(
    attempts: *mut lw_attempts,
    tx: *mut *mut lw_txn,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let tx = place(tx, core::ptr::null_mut(), "transaction")?;
            let mut attempts = alone(attempts)?;
            match attempts.get().state {
                State::Ready => {
                    *tx = attempts.get().begin()?;
                    Ok(LW_OK)
                }
                State::Running => Err(misuse("an attempt runs: end it with lw_attempts_end")),
                State::Over(code) if code == LW_DONE as c_int => Ok(LW_DONE),
                State::Over(code) => Err(Failure::Callers(code)),
            }
        })
    }
}

/// Ends an attempt: commits if `code` is 0; otherwise rolls it back. If it failed in a way that
/// `lw_is_retryable`, in any of its calls, the answer is `LW_AGAIN` whatever `code` is.
///
/// # Errors
///
/// `LW_OK` if it has committed. `LW_AGAIN` if it must run again: it was rolled back, and its
/// transaction must not be used until `lw_attempts_next`. `LW_DEADLINE` if it must, and its time is
/// over. `code`, if it was rolled back for that: an error of a call or a number of the program's
/// own, which must not be `LW_AGAIN` or `LW_DONE`. Those of `lw_commit` and `lw_roll_back`.
///
/// # Safety
///
/// The loop is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_attempts_end(
    attempts: *mut lw_attempts,
    code: c_int,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let mut attempts = alone(attempts)?;
            match attempts.get().state {
                State::Running => attempts.get().end(code),
                _ => Err(misuse("no attempt runs: begin one with lw_attempts_next")),
            }
        })
    }
}

/// Ends a retry loop: an attempt that runs is rolled back. NULL is allowed.
///
/// # Errors
///
/// `LW_BUSY`, `LW_MISUSE`.
///
/// # Safety
///
/// The loop is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_attempts_free(attempts: *mut lw_attempts) -> c_int {
    // SAFETY: the caller's promise; no place for an error.
    unsafe { call(core::ptr::null_mut(), || handle::free(attempts)) }
}

/// The body of a transaction: returns 0 to commit, or a code of a call that failed, or a number of
/// the program's own (not `LW_AGAIN` or `LW_DONE`), to roll back. It may be called several times.
/// It must not throw an exception or jump (`longjmp`) out of the call that it is in, and its thread
/// must not be cancelled (`pthread_cancel`).
#[allow(non_camel_case_types, reason = "it is the name in C")]
pub type lw_body_fn = Option<unsafe extern "C" fn(tx: *mut lw_txn, context: *mut c_void) -> c_int>;

/// Runs a transaction until it commits: calls `body` with it, and again after a deadlock and
/// whatever else `lw_is_retryable`, for 10 seconds or as long as the options say. `options` may be
/// NULL. The transaction belongs to the call: `body` must not end or restart it.
///
/// # Errors
///
/// What `body` returns, if that is not 0 and the transaction has not failed in a way that is
/// retryable: it was rolled back, and `*error` is NULL. `LW_DEADLINE`, with the last attempt's
/// error as its cause. Those of `lw_begin`, `lw_commit` and `lw_roll_back`.
///
/// # Safety
///
/// The store is alive; the options were initialised; `body` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_write(
    store: *mut lw_store,
    options: *const lw_txn_options,
    body: lw_body_fn,
    context: *mut c_void,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (body, (patience, _)) = (function(body)?, patience(options)?);
            let mut attempts = Attempts::new(&used(store)?.store, patience);
            loop {
                let tx = attempts.begin()?;
                // A call that would wait for this transaction is then LW_SELF at once.
                let entered = alone(tx)?.get().tx.enter()?;
                let code = body(tx, context);
                drop(entered);
                match attempts.end(code)? {
                    LW_AGAIN => {}
                    done => return Ok(done),
                }
            }
        })
    }
}

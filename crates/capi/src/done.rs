//! Commits that are waited for without a thread: by a callback, or by a queue with a descriptor.

use core::ffi::{c_int, c_void};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

use latchwork_store::{Error, Transaction};

use crate::call::{Answer, call, place};
use crate::codes::lw_code::*;
use crate::error::{lw_error, report};
use crate::failure::Failure;
use crate::handle::{self, used};
use crate::queue::{Done, Queue};
use crate::record::function;
use crate::store::lw_store;
use crate::txn::{ended, lw_txn};

/// A function that is called when a commit is as durable as its mode says, or is known not to be:
/// `code` is what `lw_commit` would have returned, and `error` belongs to the function, which frees
/// it. It is called once, by a thread of the library, or by the thread that commits before that
/// call returns. It must be short: while it runs no other commit of the process is reported. It
/// must not close the store, throw an exception, or end its thread.
#[allow(non_camel_case_types, reason = "it is the name in C")]
pub type lw_done_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, code: c_int, error: *mut lw_error)>;

type Durable = Pin<Box<dyn Future<Output = Result<Option<u64>, Error>> + Send>>;

/// The action to take when a commit is durable.
enum Then {
    Call(unsafe extern "C" fn(*mut c_void, c_int, *mut lw_error), *mut c_void),
    Queue(Arc<Queue>, u64),
}

// SAFETY: the caller says that its function may be called on any thread.
unsafe impl Send for Then {}

/// A commit that is waited for: it is its own waker, which looks at once whether it is durable.
struct Waiting(Mutex<Option<(Durable, Then)>>);

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        let waker = Waker::from(self.clone());
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((durable, _)) = waiting.as_mut() else { return };
        let Poll::Ready(done) = durable.as_mut().poll(&mut Context::from_waker(&waker)) else {
            return;
        };
        let then = waiting.take();
        // No mutex is held while the caller's function runs.
        drop(waiting);
        if let Some((_, then)) = then {
            then.done(done.map(drop));
        }
    }
}

impl Then {
    fn done(self, done: Result<(), Error>) {
        let mut error = core::ptr::null_mut();
        let code = match done {
            Ok(()) => LW_OK as c_int,
            // SAFETY: a place for a pointer.
            Err(why) => unsafe { report(why.into(), &raw mut error) },
        };
        match self {
            // SAFETY: the caller of the C function says that it can be called.
            Self::Call(done, context) => unsafe { done(context, code, error) },
            Self::Queue(queue, token) => queue.put(Done { token, code, error }),
        }
    }
}

/// Commits, and has something done when that is durable.
fn commit(tx: Transaction, then: Then) -> Answer {
    let durable = tx.commit_later()?;
    Arc::new(Waiting(Mutex::new(Some((Box::pin(durable), then))))).wake();
    Ok(LW_OK)
}

/// Commits a transaction, frees the object, and returns without waiting for the disk: other
/// transactions see it, and its locks are released. `done` is called when it is durable. Many
/// commits share one sync, so one thread can have thousands of them under way.
///
/// # Errors
///
/// Those of `lw_commit`: then it was rolled back, and `done` is not called.
///
/// # Safety
///
/// The transaction is alive; `done` may be called on any thread, with this context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_commit_then(
    tx: *mut lw_txn,
    done: lw_done_fn,
    context: *mut c_void,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            // The transaction is consumed in any case.
            let tx = ended(tx)?.tx;
            commit(tx, Then::Call(function(done)?, context))
        })
    }
}

/// Commits a transaction as `lw_commit_then`, for an event loop: when it is durable, `token` is put
/// into the queue of the store, from which `lw_done_next` takes it, and the descriptor of
/// `lw_done_fd` becomes readable.
///
/// # Errors
///
/// Those of `lw_commit`: then it was rolled back, and the token is not queued.
///
/// # Safety
///
/// Store and transaction are alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_commit_queued(
    store: *mut lw_store,
    tx: *mut lw_txn,
    token: u64,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let tx = ended(tx)?.tx;
            let queue = used(store)?.queue.clone();
            commit(tx, Then::Queue(queue, token))
        })
    }
}

/// A descriptor that is readable while `lw_done_next` has something to return: for `poll`, `epoll`,
/// or an event loop of another language. It belongs to the store; do not read or close it.
///
/// # Errors
///
/// `LW_IO` if the process has no descriptor left.
///
/// # Safety
///
/// The store is alive; `descriptor` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_done_fd(
    store: *mut lw_store,
    descriptor: *mut c_int,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let descriptor = place(descriptor, -1, "descriptor")?;
            let event = used(store)?.queue.event();
            *descriptor =
                event.ok_or_else(|| Failure::Other(LW_IO, "no descriptor is left".to_owned()))?;
            Ok(LW_OK)
        })
    }
}

/// Takes the next commit that has come to its end: its token, and in `*code` what `lw_commit` would
/// have returned. If that is an error, `*why` receives it, unless `why` is NULL.
///
/// # Errors
///
/// `LW_DONE` if none has come to its end.
///
/// # Safety
///
/// The store is alive; `token` and `code` are places for numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_done_next(
    store: *mut lw_store,
    token: *mut u64,
    code: *mut c_int,
    why: *mut *mut lw_error,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (token, code) = (place(token, 0, "token")?, place(code, 0, "code")?);
            let Some(done) = used(store)?.queue.take() else { return Ok(LW_DONE) };
            (*token, *code) = (done.token, done.code);
            match why.is_null() {
                true => _ = handle::free(done.error),
                false => *why = done.error,
            }
            Ok(LW_OK)
        })
    }
}

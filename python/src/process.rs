//! The process: forks, and what a thread does before it waits without the interpreter.

use std::cell::{Cell, RefCell};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use latchwork_store::{Error, set_interrupt};
use pyo3::prelude::*;

use crate::errors;

/// How often this process and its ancestors were forked since the module was loaded.
static FORKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn in_child() {
    // Relaxed: the child has one thread here, and later threads are started after this store.
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Counts the forks of this process from now on.
pub(crate) fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which is safe between `fork` and `exec`.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// The number of this process: objects of another one were inherited by a fork.
#[inline]
pub(crate) fn forks() -> u64 {
    // Relaxed: it changes only in a child that has one thread.
    FORKS.load(Ordering::Relaxed)
}

thread_local! {
    /// Whether the function below is set for this thread.
    static IS_SET: Cell<bool> = const { Cell::new(false) };
    /// The exception that a signal handler raised in a wait.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    static TOKEN: u8 = const { 0 };
}

/// A number of the calling thread, never zero.
#[inline]
pub(crate) fn thread() -> usize {
    TOKEN.with(|token| std::ptr::from_ref(token).addr())
}

/// Runs the signal handlers of Python: true if one has raised.
fn interrupt() -> bool {
    if RAISED.with_borrow(Option::is_some) {
        return true;
    }
    let raised = Python::try_attach(|py| py.check_signals().err()).flatten();
    let is_raised = raised.is_some();
    RAISED.set(raised);
    is_raised
}

/// Lets signals end the waits of this thread if it is the main thread.
#[cold]
fn set() {
    IS_SET.set(true);
    // SAFETY: both calls have no precondition.
    let is_main = unsafe { libc::syscall(libc::SYS_gettid) == libc::c_long::from(libc::getpid()) };
    if is_main {
        set_interrupt(Some(interrupt));
    }
}

/// Runs work that may wait, without the interpreter's lock.
pub(crate) fn wait<R: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<R, Error> + Send,
) -> PyResult<R> {
    wait_raw(py, work)?.map_err(|why| errors::raise(py, why))
}

/// The same; the outer error is a signal handler's.
pub(crate) fn wait_raw<R: Send>(py: Python<'_>, work: impl FnOnce() -> R + Send) -> PyResult<R> {
    if !IS_SET.get() {
        set();
    }
    let done = py.detach(work);
    match RAISED.take() {
        Some(raised) => Err(raised),
        None => Ok(done),
    }
}

/// The closure of a retry loop calls this first: returns an error that ends the loop if a signal
/// handler has raised.
#[inline]
pub(crate) fn go_on() -> Result<(), Error> {
    match RAISED.with_borrow(Option::is_some) {
        true => Err(Error::Rejected("interrupted".to_owned())),
        false => Ok(()),
    }
}

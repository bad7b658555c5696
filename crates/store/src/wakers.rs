//! Tasks that wait for something of the store.
//!
//! What a waker does is its executor's: it may poll the task at once, or drop it, and with it what
//! waits for the same thing or a whole store. So none is called or dropped with a mutex held.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// Locks what no panic leaves half changed.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Those that wait, in the order in which they came.
#[derive(Default)]
pub(crate) struct Wakers {
    all: BTreeMap<u64, Waker>,
    last: u64,
}

impl Wakers {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Has a waker called for a task, which gets a number if it has none. Returns the one that is
    /// not to be called any more.
    pub(crate) fn put(&mut self, number: &mut Option<u64>, waker: Waker) -> Option<Waker> {
        let number = *number.get_or_insert_with(|| {
            self.last += 1;
            self.last
        });
        self.all.insert(number, waker)
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<Waker> {
        self.all.remove(&number)
    }

    /// Takes out the first to come.
    pub(crate) fn first(&mut self) -> Option<(u64, Waker)> {
        self.all.pop_first()
    }

    /// Takes out all.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Waker> + use<> {
        core::mem::take(&mut self.all).into_values()
    }
}

/// Calls a waker. One that panics has said so, and keeps nobody else waiting.
pub(crate) fn call(waker: Waker) {
    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
}

//! Tasks that wait for an event of the store.
//!
//! The executor decides what a waker does: it may poll the task at once, or drop it, and with it
//! other waiters or a whole store. Therefore no waker is called or dropped while a mutex is held.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// Locks a mutex whose data stays consistent if a panic poisons it.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waiting tasks, in the order of their arrival.
#[derive(Default)]
pub(crate) struct Wakers {
    all: BTreeMap<u64, Waker>,
    last: u64,
}

impl Wakers {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Registers a waker for a task; assigns the task a number if it has none. Returns the waker
    /// that this one replaces.
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

    /// Removes and returns the first one.
    pub(crate) fn first(&mut self) -> Option<(u64, Waker)> {
        self.all.pop_first()
    }

    /// Removes and returns all.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Waker> + use<> {
        core::mem::take(&mut self.all).into_values()
    }
}

/// Calls a waker. A panic of the waker is reported by the panic hook, and does not affect the other
/// tasks.
pub(crate) fn call(waker: Waker) {
    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
}

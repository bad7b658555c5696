//! An object that one thread at a time uses, and that may be sent to other threads.
//!
//! A second use by the thread that has it is an error and no deadlock: a finalizer or a codec may
//! run Python in the middle of a call.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pyo3::prelude::*;

use crate::{errors, process};

pub(crate) struct Turn<T> {
    /// The thread that has it; zero if none has.
    holder: AtomicUsize,
    of: UnsafeCell<T>,
}

// SAFETY: `of` is reached only through `Taken`, which exists at most once, and `T` may be sent.
unsafe impl<T: Send> Sync for Turn<T> {}

pub(crate) struct Taken<'t, T>(&'t Turn<T>);

// SAFETY: as for `Turn`.
unsafe impl<T: Send> Send for Taken<'_, T> {}

impl<T> Turn<T> {
    pub(crate) const fn new(of: T) -> Self {
        Self { holder: AtomicUsize::new(0), of: UnsafeCell::new(of) }
    }

    /// Takes it if it is free.
    #[inline]
    pub(crate) fn try_take(&self) -> Option<Taken<'_, T>> {
        let me = process::thread();
        // Acquire: synchronizes with the Release in `drop`: the last holder's stores are visible.
        let taken = self.holder.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed);
        // Built only if it was taken: dropping a `Taken` gives the object back.
        taken.is_ok().then(|| Taken(self))
    }

    /// Takes it, or raises `Misuse` if a thread uses it.
    #[inline]
    pub(crate) fn take_now(&self, py: Python<'_>, what: &str) -> PyResult<Taken<'_, T>> {
        self.try_take().ok_or_else(|| {
            errors::misuse(
                py,
                format!("the {what} is in use by another call: use one for each thread"),
            )
        })
    }

    /// Takes it, and waits while another thread uses it.
    #[inline]
    pub(crate) fn take(&self, py: Python<'_>, what: &str) -> PyResult<Taken<'_, T>>
    where
        T: Send,
    {
        match self.try_take() {
            Some(taken) => Ok(taken),
            None => self.take_later(py, what),
        }
    }

    #[cold]
    fn take_later(&self, py: Python<'_>, what: &str) -> PyResult<Taken<'_, T>>
    where
        T: Send,
    {
        // Relaxed: a thread that reads its own number has stored it.
        if self.holder.load(Ordering::Relaxed) == process::thread() {
            return self.take_now(py, what);
        }
        loop {
            py.check_signals()?;
            let nap = || {
                std::thread::sleep(Duration::from_micros(50));
                self.try_take()
            };
            if let Some(taken) = py.detach(nap) {
                return Ok(taken);
            }
        }
    }

    /// For the owner.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.of.get_mut()
    }
}

impl<T> Deref for Taken<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only `Taken`.
        unsafe { &*self.0.of.get() }
    }
}

impl<T> DerefMut for Taken<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only `Taken`, and it is borrowed for as long as the reference lives.
        unsafe { &mut *self.0.of.get() }
    }
}

impl<T> Drop for Taken<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: synchronizes with the Acquire in `try_take`.
        self.0.holder.store(0, Ordering::Release);
    }
}

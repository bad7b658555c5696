//! Commits that have come to their end, for an event loop to take.

use core::ffi::c_int;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::error::lw_error;
use crate::handle;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A commit of the queue that has come to its end.
pub(crate) struct Done {
    pub(crate) token: u64,
    pub(crate) code: c_int,
    pub(crate) error: *mut lw_error,
}

// SAFETY: the error is plain memory, and belongs to this.
unsafe impl Send for Done {}

/// Commits that have come to their end, and the descriptor that says so.
pub(crate) struct Queue {
    done: Mutex<VecDeque<Done>>,
    event: OnceLock<OwnedFd>,
}

impl Queue {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { done: Mutex::default(), event: OnceLock::new() })
    }

    /// The descriptor, made when it is first asked for; none if the process has no descriptor left.
    pub(crate) fn event(&self) -> Option<c_int> {
        if self.event.get().is_none() {
            // SAFETY: it takes no pointer.
            let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
            if event < 0 {
                return None;
            }
            // SAFETY: a descriptor that no other part of the program has. If another thread was
            // first, it is closed.
            let _ = self.event.set(unsafe { OwnedFd::from_raw_fd(event) });
            if !locked(&self.done).is_empty() {
                self.signal();
            }
        }
        self.event.get().map(AsRawFd::as_raw_fd)
    }

    fn signal(&self) {
        if let Some(event) = self.event.get() {
            let one = 1_u64;
            // SAFETY: eight bytes of memory. It cannot fill: that takes 2^64 - 1 commits.
            unsafe { libc::write(event.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }

    pub(crate) fn put(&self, done: Done) {
        locked(&self.done).push_back(done);
        self.signal();
    }

    pub(crate) fn take(&self) -> Option<Done> {
        let mut done = locked(&self.done);
        if done.len() <= 1
            && let Some(event) = self.event.get()
        {
            let mut count = 0_u64;
            // With the mutex held, so that a later `put` signals again.
            // SAFETY: a place for eight bytes.
            unsafe { libc::read(event.as_raw_fd(), (&raw mut count).cast(), 8) };
        }
        done.pop_front()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        for done in locked(&self.done).drain(..) {
            // SAFETY: null, or an error that nothing else refers to.
            let _ = unsafe { handle::free(done.error) };
        }
    }
}

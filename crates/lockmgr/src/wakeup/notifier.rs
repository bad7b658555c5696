//! Waking tasks that wait without a thread of their own: one notifier for each process.
//!
//! An owner that waits without a thread has its process's number in its cell. The thread that
//! decides its request notifies that process through a word of the region, in addition to waking
//! the request's own word. Other requests cost nothing more. One thread of that process, which runs
//! while it is needed, sleeps on the notifier, reads which requests are decided or due, and calls
//! their wakers. Everything else (deadlock searches, sweeps, deadlines) is done by the tasks when
//! they are polled.

use core::sync::atomic::Ordering::Acquire;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::task::Waker;

use latchwork_machine::{Clock, ConstMachine, Deadline, Word};
use latchwork_region::Offset;

use crate::Error;
use crate::memory::cells::{Request, RequestAt, cell_at};
use crate::memory::inner::Inner;
use crate::memory::wakers::{Watch, Watched};
use crate::owner::wait::NAP_MAX;

impl<M: ConstMachine> Inner<M> {
    fn watch(&self) -> MutexGuard<'_, Watch> {
        // No panic can leave it in an inconsistent state.
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn new_watch(&self) -> u64 {
        let mut watch = self.watch();
        watch.last += 1;
        watch.last
    }

    /// Registers a waker that is called when a request is decided, and at an instant at the latest.
    pub(crate) fn watch_for(
        self: &Arc<Self>,
        id: u64,
        request: RequestAt<M>,
        at: u64,
        waker: Waker,
    ) -> Result<(), Error> {
        let (process, _) = self.region.process()?;
        // Dropped after the mutex is released: its waker may be the last reference to a task that
        // also waits.
        let _before;
        let mut watch = self.watch();
        _before = watch.all.insert(id, Watched { request: request.raw(), at, waker });
        if watch.runs {
            drop(watch);
            return self.notify(process);
        }
        let inner = self.clone();
        let thread = std::thread::Builder::new().name("latchwork-wakers".into());
        let started = thread.spawn(move || {
            // If a waker panics, a new thread is started.
            let inner = Ended(inner);
            // If the region is unusable, the tasks get the error when they are polled.
            if inner.0.keep_watch(process) != Ok(true) {
                inner.0.give_up();
            }
        });
        watch.runs = started.is_ok();
        started.map(|_| ()).map_err(|_| Error::NoThread)
    }

    pub(crate) fn forget_watch(&self, id: u64) {
        let gone = self.watch().all.remove(&id);
        // Outside the mutex: see `watch_for`.
        drop(gone);
    }

    /// Calls all wakers. Another thread is started when it is needed.
    fn give_up(&self) {
        let mut watch = self.watch();
        watch.runs = false;
        let all = core::mem::take(&mut watch.all);
        drop(watch);
        all.into_values().for_each(|one| wake(one.waker));
    }

    /// Returns the wakers to call now, and when to check again; `None` if no task waits.
    fn due(&self) -> Result<Option<(Vec<Waker>, u64)>, Error> {
        let now = M::now(Clock::Monotonic);
        let mut next = now.saturating_add(NAP_MAX.as_nanos() as u64);
        let (mut due, mut watch) = (Vec::new(), self.watch());
        if watch.all.is_empty() {
            return Ok(None);
        }
        let mut ids = Vec::new();
        for (id, one) in &watch.all {
            let request = cell_at(&self.region, Offset::<Request<M>>::from_raw(one.request))?;
            // Acquire: synchronizes with the Release in `set`, so that the task finds the request
            // decided.
            let state = request.state.load(Acquire);
            // A called waiter still waits, and must take the lock.
            if !state.waits() || state.is_called() || one.at <= now {
                ids.push(*id);
            } else {
                next = next.min(one.at);
            }
        }
        due.extend(ids.iter().filter_map(|id| watch.all.remove(id)).map(|one| one.waker));
        Ok(Some((due, next)))
    }

    /// Wakes tasks, until no task has waited for the length of a nap. Returns false if there is no
    /// notifier.
    fn keep_watch(&self, process: u32) -> Result<bool, Error> {
        let mut idle = false;
        loop {
            let Some(notifier) = self.notifier(process)? else { return Ok(false) };
            // Acquire: synchronizes with the Release in `notify`: requests that were decided before
            // a notification are seen below, and a later notification ends the wait.
            let heard = notifier.load(Acquire);
            let until = match self.due()? {
                Some((due, next)) => {
                    idle = false;
                    due.into_iter().for_each(wake);
                    next
                }
                None if idle => {
                    let mut watch = self.watch();
                    if watch.all.is_empty() {
                        watch.runs = false;
                        return Ok(true);
                    }
                    continue;
                }
                None => {
                    idle = true;
                    M::now(Clock::Monotonic).saturating_add(NAP_MAX.as_nanos() as u64)
                }
            };
            M::wait(notifier, heard, Some(Deadline { clock: Clock::Monotonic, at: until }));
        }
    }
}

/// Calls a waker. If it panics, as a waker of an ended runtime may, its panic message was printed,
/// and the other tasks must still be woken.
fn wake(waker: Waker) {
    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
}

/// The end of the thread.
struct Ended<M: ConstMachine>(Arc<Inner<M>>);

impl<M: ConstMachine> Drop for Ended<M> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.give_up();
        }
    }
}

//! Common code of the sleeping locks: a list of sleepers under a short lock, and a quantum of
//! polls.
//!
//! State: `guard`, 0 or 1; `first` and `last`, numbers or zero; each thread's links, its `wants`,
//! and `awake`, the word that it sleeps on: 0 asleep, 1 called. Invariants: links and ends are read
//! and written under the guard, except that the first thread may check that it is first; a thread
//! arms (clears `awake`) before it checks whether it must sleep, so that a call between the check
//! and the sleep is not lost.

use core::cell::Cell;
use core::marker::PhantomData;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{Machine, Word};

use crate::words::words;
use crate::{Named, Row, row};

/// Polls after which a spinner's time is up: about a millisecond, a tick of the kernel's clock.
///
/// A kernel spins while the owner runs, which only a kernel knows.
const LOOKS_MAX: u32 = 20_000;

/// A quantum of polls. A machine without spinning has one.
pub(crate) struct Looks<M> {
    left: Cell<u32>,
    machine: PhantomData<M>,
}

impl<M: Machine> Looks<M> {
    pub(crate) fn new() -> Self {
        let left = if M::SPIN_NS == 0 { 1 } else { LOOKS_MAX };
        Self { left: Cell::new(left), machine: PhantomData }
    }

    /// Counts a poll. Returns whether the quantum is exceeded.
    pub(crate) fn spent(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left == 0
    }
}

/// The list's part of a lock: 12 bytes.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Ends<M: Machine> {
    guard: M::AtomicU32,
    first: M::AtomicU32,
    last: M::AtomicU32,
}

impl<M: Machine> Named for Ends<M> {
    words!(guard, first, last);
}

#[derive(Default)]
struct Sleeper<M: Machine> {
    next: M::AtomicU32,
    prev: M::AtomicU32,
    wants: M::AtomicU32,
    awake: M::AtomicU32,
}

impl<M: Machine> Named for Sleeper<M> {
    words!(next, prev, wants, awake);
}

/// The threads' part.
pub(crate) struct Sleepers<M: Machine> {
    rows: Row<Sleeper<M>>,
}

impl<M: Machine> Named for Sleepers<M> {
    words!([rows]);
}

// Links, ends and `wants` are Relaxed: the guard publishes them.
impl<M: Machine> Sleepers<M> {
    pub(crate) fn new(threads: usize) -> Self {
        Self { rows: row(threads) }
    }

    fn at(&self, number: u32) -> &Sleeper<M> {
        &self.rows[number as usize - 1]
    }

    /// Adds thread `me` at the end. Returns whether the list was empty. Under the guard.
    pub(crate) fn push(&self, ends: &Ends<M>, me: usize, wants: u32) -> bool {
        let (own, number) = (&self.rows[me], me as u32 + 1);
        let last = ends.last.load(Relaxed);
        own.next.store(0, Relaxed);
        own.prev.store(last, Relaxed);
        own.wants.store(wants, Relaxed);
        match last {
            0 => ends.first.store(number, Relaxed),
            last => self.at(last).next.store(number, Relaxed),
        }
        ends.last.store(number, Relaxed);
        last == 0
    }

    /// Removes thread `me`. Returns whether the list is now empty. Under the guard.
    pub(crate) fn remove(&self, ends: &Ends<M>, me: usize) -> bool {
        let own = &self.rows[me];
        let (prev, next) = (own.prev.load(Relaxed), own.next.load(Relaxed));
        match prev {
            0 => ends.first.store(next, Relaxed),
            prev => self.at(prev).next.store(next, Relaxed),
        }
        match next {
            0 => ends.last.store(prev, Relaxed),
            next => self.at(next).prev.store(prev, Relaxed),
        }
        prev == 0 && next == 0
    }

    /// Returns the first thread and its request. Under the guard, or for a thread to check whether
    /// it is first.
    pub(crate) fn first(&self, ends: &Ends<M>) -> Option<(usize, u32)> {
        match ends.first.load(Relaxed) {
            0 => None,
            first => Some((first as usize - 1, self.at(first).wants.load(Relaxed))),
        }
    }

    /// Returns the thread after `thread`, and its request. Under the guard.
    pub(crate) fn after(&self, thread: usize) -> Option<(usize, u32)> {
        match self.rows[thread].next.load(Relaxed) {
            0 => None,
            next => Some((next as usize - 1, self.at(next).wants.load(Relaxed))),
        }
    }

    /// Stores for a thread off the list how its wait ended.
    pub(crate) fn mark(&self, thread: usize, mark: u32) {
        // Release: synchronizes with the Acquire in `is_marked`.
        self.rows[thread].wants.store(mark, Release);
    }

    /// Returns whether thread `me` has this mark.
    pub(crate) fn is_marked(&self, me: usize, mark: u32) -> bool {
        // Acquire: synchronizes with the Release in `mark`.
        self.rows[me].wants.load(Acquire) == mark
    }

    /// Clears earlier calls.
    pub(crate) fn arm(&self, me: usize) {
        // Acquire: synchronizes with the Release in `call`, so that if a call is cleared, the
        // caller's earlier stores are seen by the following check.
        self.rows[me].awake.swap(0, Acquire);
    }

    /// Sleeps until called.
    pub(crate) fn sleep(&self, me: usize) {
        let awake = &self.rows[me].awake;
        // Acquire: synchronizes with the Release in `call`.
        while awake.load(Acquire) == 0 {
            M::wait(awake, 0, None);
        }
    }

    pub(crate) fn call(&self, thread: usize) {
        let awake = &self.rows[thread].awake;
        // Release: synchronizes with the Acquire in `sleep` and `arm`.
        awake.store(1, Release);
        M::wake(awake);
    }

    /// Bytes of a waiter.
    pub(crate) const fn bytes() -> usize {
        size_of::<Sleeper<M>>()
    }
}

impl<M: Machine> Ends<M> {
    /// Holds the guard, for a moment.
    pub(crate) fn lock(&self) {
        loop {
            // Relaxed: the exchange orders.
            M::spin_until(&self.guard, Relaxed, |held| held == 0);
            // Acquire: synchronizes with the Release in `unlock`.
            if self.guard.compare_exchange(0, 1, Acquire, Relaxed).is_ok() {
                return;
            }
        }
    }

    pub(crate) fn unlock(&self) {
        // Release: synchronizes with the Acquire in `lock`.
        self.guard.store(0, Release);
    }
}

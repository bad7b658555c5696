//! The condition variable: a list of waiters, in 4 bytes.
//!
//! Each waiter sleeps on its own slot and not on a shared sequence number, so that a signal reaches
//! one thread that waited when it was sent. Birrell, Guttag, Horning and Levin (1987,
//! "Synchronization primitives for a multiprocessor") had such queues. glibc's sequence number,
//! which needs no queue, let a later waiter steal a signal until 2016, and lost one until 2025 (bug
//! 25847).
//!
//! # State
//!
//! One word, that of `list.rs`: zero if no thread waits. `list.rs` also has the states of a waiter.
//!
//! | step of a waiter | step of a waker |
//! |---|---|
//! | enter the list as `WAITING`, while it holds the mutex | load the word; zero: no waiter |
//! | unlock the mutex | lock the list, move the first to `TAKEN`, unlock |
//! | `PARKED`, and sleep | `GRANTED`, and wake |
//! | after the deadline: `LEAVING`, unless it is `TAKEN` | |
//! | lock the list and unlink itself; or be `GRANTED` | |
//!
//! # Invariants
//!
//! 1. A wait ends in one of two ways, and one exchange decides: a waker took it, or it moved itself
//!    to `LEAVING`. So a signal is not lost to a waiter that gives up: wakers skip such a waiter.
//! 2. A waiter returns only after it was granted or its deadline passed: there are no spurious
//!    wake-ups.
//! 3. Waiters are woken in the order of their arrival.
//! 4. A waker does not touch the condition variable after it unlocked the list, nor does a waiter
//!    that was taken. So it may be freed as soon as all waiters were woken; if waiters may time out
//!    or be cancelled, after [`RawCondvar::settle`].
//!
//! # Memory order
//!
//! A waker's earlier writes are visible to the waiter that it woke, even without the mutex:
//! granting is a `Release`. Everything else is ordered by the list's lock.

use core::fmt;

use latchwork_machine::{ConstMachine, Deadline, Machine, Native, status};

use crate::list::{self, List, Taken};

const _: () = assert!(size_of::<RawCondvar>() == 4);

/// A condition variable for any mutex: 4 bytes, zero if no thread waits.
///
/// No wake-up is spurious: a wait ends because this very thread was notified, or because its
/// deadline passed.
#[derive(Default)]
#[repr(transparent)]
pub struct RawCondvar<M: Machine = Native> {
    list: List<M>,
}

/// The end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a notified thread must act on the notification or pass it on"]
pub enum Outcome {
    /// This thread was notified.
    Notified,
    /// This thread gave up; no notification was or will be meant for it.
    GaveUp,
}

/// A thread's place in the list, from [`RawCondvar::enqueue`]. The same thread must pass it to
/// [`finish`](RawCondvar::finish) or [`cancel`](RawCondvar::cancel).
#[derive(Debug)]
#[must_use = "a place in the list must be given back"]
pub struct Ticket {
    slot: u32,
}

impl RawCondvar {
    /// Creates a condition variable without waiters.
    pub const fn new() -> Self {
        Self::FREE
    }
}

impl<M: ConstMachine> RawCondvar<M> {
    /// A condition variable without waiters, on any machine whose words can be created at compile
    /// time.
    #[allow(clippy::declare_interior_mutable_const, reason = "each use is one of its own")]
    pub const FREE: Self = Self { list: List::new(M::U32) };
}

impl<M: Machine> fmt::Debug for RawCondvar<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawCondvar").field("waited_for", &!self.list.is_idle()).finish()
    }
}

impl<M: Machine> RawCondvar<M> {
    /// Waits until notified, or until `deadline`. The caller holds the mutex; `unlock` unlocks it,
    /// and the caller locks it again afterwards.
    ///
    /// A thread that locks the mutex after `unlock` and then notifies, also notifies this thread.
    ///
    /// # Panics
    ///
    /// Panics if 65,534 threads wait; the mutex is then still locked. If `unlock` panics, the
    /// thread has left the list.
    pub fn wait(&self, unlock: impl FnOnce(), deadline: Option<Deadline>) -> Outcome {
        let place = Place { condvar: self, ticket: self.enqueue() };
        unlock();
        let ticket = place.keep();
        list::wait(M::slots(self.list.address()).at(ticket.slot), deadline, 0);
        self.finish(ticket)
    }

    /// Wakes the thread that has waited longest. Returns false if no thread waits.
    ///
    /// Without waiters this is one load.
    pub fn notify_one(&self) -> bool {
        // A plain load is enough. A thread that must be woken entered the list before it unlocked
        // the mutex, and the notifier held the mutex since then, or the condition that it changed
        // could not yet be missed by that thread. So the entry happened before, and the load sees
        // it or a later state; in between, a locked list is not idle.
        if self.list.is_idle() {
            return false;
        }
        let slots = M::slots(self.list.address());
        let mut taken = Taken::default();
        let mut list = self.list.lock(slots);
        let mut next = list.first();
        while let Some(number) = next {
            next = list.after(number);
            // Waiters that are leaving are skipped.
            if list.take(number, &mut taken) {
                break;
            }
        }
        drop(list);
        taken.grant(&slots) != 0
    }

    /// Wakes all waiters and returns their number.
    ///
    /// Without waiters this is one load.
    pub fn notify_all(&self) -> usize {
        // As in `notify_one`.
        if self.list.is_idle() {
            return 0;
        }
        let slots = M::slots(self.list.address());
        let mut taken = Taken::default();
        let mut list = self.list.lock(slots);
        let mut next = list.first();
        while let Some(number) = next {
            next = list.after(number);
            list.take(number, &mut taken);
        }
        drop(list);
        taken.grant(&slots)
    }

    /// Waits until the waiters that gave up have left, so that the memory may be freed.
    ///
    /// Call it when no thread waits any more; it blocks while threads wait.
    pub fn settle(&self) {
        self.list.settle();
    }
}

/// The parts of a wait. A caller that sleeps by itself and can be cancelled uses them.
impl<M: Machine> RawCondvar<M> {
    /// Enters the list. The caller holds the mutex; it then unlocks it and sleeps on
    /// [`sleep_word`](Self::sleep_word).
    ///
    /// # Panics
    ///
    /// Panics if 65,534 threads wait.
    pub fn enqueue(&self) -> Ticket {
        let slots = M::slots(self.list.address());
        let slot = slots.mine();
        self.list.lock(slots).push(slot, false);
        Ticket { slot }
    }

    /// Returns the word to sleep on and its expected value, or `None` once notified. Call it again
    /// after each return from the sleep.
    pub fn sleep_word(&self, ticket: &Ticket) -> Option<(&M::AtomicU32, u32)> {
        let slot = M::slots(self.list.address()).at(ticket.slot);
        list::park(slot).then_some((&slot.status, status::PARKED))
    }

    /// Ends the wait, after [`sleep_word`](Self::sleep_word) returned `None`, or at the deadline.
    pub fn finish(&self, ticket: Ticket) -> Outcome {
        let slots = M::slots(self.list.address());
        let slot = slots.at(ticket.slot);
        let gave_up = list::retract(slot);
        if gave_up {
            self.list.lock(slots).unlink(ticket.slot);
        }
        list::free(slot);
        if gave_up { Outcome::GaveUp } else { Outcome::Notified }
    }

    /// Ends the wait of a thread that is being cancelled. Returns true if it had been notified; the
    /// caller must then pass that on with [`notify_one`](Self::notify_one).
    #[must_use = "pass a notification on with notify_one"]
    pub fn cancel(&self, ticket: Ticket) -> bool {
        self.finish(ticket) == Outcome::Notified
    }
}

/// A ticket that is cancelled if `unlock` panics.
struct Place<'a, M: Machine> {
    condvar: &'a RawCondvar<M>,
    ticket: Ticket,
}

impl<M: Machine> Place<'_, M> {
    fn keep(self) -> Ticket {
        let slot = self.ticket.slot;
        core::mem::forget(self);
        Ticket { slot }
    }
}

impl<M: Machine> Drop for Place<'_, M> {
    fn drop(&mut self) {
        let ticket = Ticket { slot: self.ticket.slot };
        if self.condvar.cancel(ticket) {
            self.condvar.notify_one();
        }
    }
}

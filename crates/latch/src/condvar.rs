//! The condition variable: a list of waiters, in 4 bytes.
//!
//! Each waiter sleeps on its own slot and not on a shared sequence number, so that a signal goes to
//! one thread that waited when it was sent. Birrell, Guttag, Horning and Levin (1987, "Synchroni-
//! zation primitives for a multiprocessor") had such queues; glibc's sequence number, which needs
//! none, let a later waiter steal a signal until 2016, and lost one until 2025 (bug 25847).
//!
//! # State
//!
//! One word, that of `list.rs`: zero if nobody waits. A waiter's states are there, too.
//!
//! | step of a waiter | step of a waker |
//! |---|---|
//! | enter the list as `WAITING`, while it holds the mutex | look: the word is zero: nobody to wake |
//! | unlock the mutex | lock the list, move the first to `TAKEN`, unlock |
//! | `PARKED`, and sleep | `GRANTED`, and wake |
//! | out of time: `LEAVING`, unless it is `TAKEN` | |
//! | lock the list and unlink itself; or be `GRANTED` | |
//!
//! # Invariants
//!
//! 1. A wait ends in one of two ways, and one exchange decides: it was taken by a waker, or it
//!    moved itself to `LEAVING`. So a signal is not lost to a waiter that gives up: wakers pass
//!    such a waiter over.
//! 2. A waiter returns only when it was granted or its deadline passed: there are no spurious
//!    wake-ups.
//! 3. Waiters are woken in the order in which they came.
//! 4. A waker does not touch the condition variable after it unlocked the list, nor does a waiter
//!    that was taken. So it may be freed as soon as everybody was woken; where waiters may time out
//!    or be cancelled, after [`RawCondvar::settle`].
//!
//! # Memory order
//!
//! What a waker did before is seen by the waiter that it woke, even without the mutex: granting is
//! a `Release`. Everything else is ordered by the list's lock.

use core::fmt;

use latchwork_machine::{ConstMachine, Deadline, Machine, Native, status};

use crate::list::{self, List, Taken};

const _: () = assert!(size_of::<RawCondvar>() == 4);

/// Threads wait here for a condition that a mutex guards: any mutex, 4 bytes, zero if nobody waits.
///
/// No spurious wake-ups: a wait ends because somebody notified this very thread, or because its
/// deadline passed.
#[derive(Default)]
#[repr(transparent)]
pub struct RawCondvar<M: Machine = Native> {
    list: List<M>,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "whoever was notified has to act on it or to pass it on"]
pub enum Outcome {
    /// A notification was meant for this thread.
    Notified,
    /// This thread gave up; no notification was or will be meant for it.
    GaveUp,
}

/// A thread's place in the list, from [`RawCondvar::enqueue`]. It must be given back by the same
/// thread, to [`finish`](RawCondvar::finish) or [`cancel`](RawCondvar::cancel).
#[derive(Debug)]
#[must_use = "a place in the list must be given back"]
pub struct Ticket {
    slot: u32,
}

impl RawCondvar {
    /// A condition variable that nobody waits for.
    pub const fn new() -> Self {
        Self::FREE
    }
}

impl<M: ConstMachine> RawCondvar<M> {
    /// As [`new`](RawCondvar::new), on any machine whose words can be made at compile time.
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
    /// Whoever locks the mutex after `unlock` and then notifies, notifies this thread as well.
    ///
    /// # Panics
    ///
    /// If 65,534 threads wait. The mutex is still locked then. If `unlock` panics the thread has
    /// left the list.
    pub fn wait(&self, unlock: impl FnOnce(), deadline: Option<Deadline>) -> Outcome {
        let place = Place { condvar: self, ticket: self.enqueue() };
        unlock();
        let ticket = place.keep();
        list::wait(M::slots(self.list.address()).at(ticket.slot), deadline, 0);
        self.finish(ticket)
    }

    /// Wakes the thread that has waited longest; false if nobody waits.
    ///
    /// If nobody waits this is one load.
    pub fn notify_one(&self) -> bool {
        // A plain load is enough. A thread that must be woken entered the list before it unlocked
        // the mutex, and the notifier held the mutex since then, or the condition that it changed
        // was not yet the other's to miss. So the entry happened before, and the load sees it or
        // what came later; in between, a locked list is not idle.
        if self.list.is_idle() {
            return false;
        }
        let slots = M::slots(self.list.address());
        let mut taken = Taken::default();
        let mut list = self.list.lock(slots);
        let mut next = list.first();
        while let Some(number) = next {
            next = list.after(number);
            // Those who are leaving are passed over.
            if list.take(number, &mut taken) {
                break;
            }
        }
        drop(list);
        taken.grant(&slots) != 0
    }

    /// Wakes all who wait and returns how many they were.
    ///
    /// If nobody waits this is one load.
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

    /// Waits until those who gave up have left, so that the memory may be freed.
    ///
    /// Call it when nobody waits any more, or it lasts until nobody does.
    pub fn settle(&self) {
        self.list.settle();
    }
}

/// The pieces of a wait, for a caller that sleeps by itself: one who can be cancelled.
impl<M: Machine> RawCondvar<M> {
    /// Enters the list, while holding the mutex. Unlock it then, and sleep by
    /// [`sleep_word`](Self::sleep_word).
    ///
    /// # Panics
    ///
    /// If 65,534 threads wait.
    pub fn enqueue(&self) -> Ticket {
        let slots = M::slots(self.list.address());
        let slot = slots.mine();
        self.list.lock(slots).push(slot, false);
        Ticket { slot }
    }

    /// The word to sleep on and the value to expect in it; nothing once notified. After each
    /// return from the sleep, ask again.
    pub fn sleep_word(&self, ticket: &Ticket) -> Option<(&M::AtomicU32, u32)> {
        let slot = M::slots(self.list.address()).at(ticket.slot);
        list::park(slot).then_some((&slot.status, status::PARKED))
    }

    /// Ends the wait: when [`sleep_word`](Self::sleep_word) said so, or out of time.
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

    /// Ends the wait of a thread that is being cancelled. If true it had been notified, and the
    /// caller passes that on: by [`notify_one`](Self::notify_one).
    #[must_use = "a notification is passed on by notify_one"]
    pub fn cancel(&self, ticket: Ticket) -> bool {
        self.finish(ticket) == Outcome::Notified
    }
}

/// A ticket that is given back if `unlock` panics.
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

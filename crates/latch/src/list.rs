//! A list of waiters, for latches that choose which waiters to wake.
//!
//! PostgreSQL's `proclist` (2016) is the model: links are numbers of slots and not addresses, so
//! that the list works between processes. The list is circular; its one word names the first slot,
//! and the first slot links to the last.
//!
//! # State
//!
//! ```text
//!  (31      16) 15                         0
//! ┌────────────┬────────────────────────────┐
//! │     0      │ first slot, zero or LOCKED │   two bytes in an LwLatch, four in a RawCondvar
//! └────────────┴────────────────────────────┘
//! ```
//!
//! While it is `LOCKED`, the thread that locked the list keeps the number. So locking is one
//! exchange, unlocking is one store (no other thread writes to a locked list), and a word of zero
//! means that the list is empty and idle. No thread sleeps or calls the kernel while it holds the
//! list.
//!
//! # States of a waiter
//!
//! | status | to | by |
//! |---|---|---|
//! | `FREE` | `WAITING` | its thread, under the lock: [`Locked::push`] |
//! | `WAITING` | `PARKED` | its thread, before it sleeps: [`wait`], [`park`] |
//! | `WAITING`, `PARKED` | `LEAVING` | its thread, when it gives up: [`retract`] |
//! | `WAITING`, `PARKED` | `TAKEN`, `TAKEN_PARKED` | a waker, under the lock: [`Locked::take`] |
//! | `TAKEN`, `TAKEN_PARKED` | `GRANTED` | that waker, without the lock: [`Taken::grant`] |
//! | `LEAVING` | `FREE` | its thread, which unlinked itself under the lock |
//! | `GRANTED` | `FREE` | its thread |
//!
//! Invariants: a slot is linked while it is `WAITING`, `PARKED` or `LEAVING` and the list is
//! unlocked. One exchange moves it out of `WAITING` or `PARKED` and decides how the wait ends: a
//! waiter is woken or gives up, never both. A slot that is `TAKEN` is linked by its waker's private
//! chain and belongs to the waker until it is `GRANTED`.
//!
//! A waiter that was taken does not touch the list again, so a list may be freed when its word is
//! zero: its last waiters were taken, and those giving up have left.
//!
//! # After a fork
//!
//! The child inherits lists of threads that do not exist in it. The forking thread does not wait,
//! so such a list has only ghosts: a thread that locks a list whose first slot is a ghost finds it
//! empty. A list that another thread had locked at the moment of the fork stays locked, as a mutex
//! would. To fork between two steps of a latch, hold it: `pthread_atfork` exists for that.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use core::marker::PhantomData;

use latchwork_machine::{Deadline, Machine, Slot, Slots, Spin, Waited, Word, status};

use crate::number::{NO_SLOT, Number};

const LOCKED: u32 = NO_SLOT;
const NOBODY: u32 = 0;

const _: () = assert!(size_of::<List<latchwork_machine::Native>>() == 4);

/// A list of waiters: 2 or 4 bytes, empty when zero.
#[derive(Default)]
#[repr(transparent)]
pub(crate) struct List<M: Machine, W = <M as Machine>::AtomicU32> {
    word: W,
    machine: PhantomData<M>,
}

impl<M: Machine, W> List<M, W> {
    /// Creates the list whose first slot `word` names.
    pub(crate) const fn new(word: W) -> Self {
        Self { word, machine: PhantomData }
    }

    /// Returns its address, for [`Machine::slots`].
    pub(crate) fn address(&self) -> *const M::AtomicU32 {
        core::ptr::from_ref(&self.word).cast()
    }
}

impl<M: Machine, W: Number> List<M, W> {
    /// Returns whether the list is empty and not locked.
    pub(crate) fn is_idle(&self) -> bool {
        // Relaxed: a thread that must see another thread's entry is ordered after it by other
        // means; see `RawCondvar::notify_one`.
        self.word.load(Relaxed).into() == NOBODY
    }

    /// Waits until the list is empty and not locked.
    pub(crate) fn settle(&self) {
        // Acquire: synchronizes with the Release of the last unlock, so that the list can be freed.
        M::spin_until(&self.word, Acquire, |word| word.into() == NOBODY);
    }

    /// Locks the list briefly.
    pub(crate) fn lock<'a>(&'a self, slots: Slots<'a, M>) -> Locked<'a, M, W> {
        let mut first;
        loop {
            // Relaxed: the exchange that follows orders.
            first = M::spin_until(&self.word, Relaxed, |word| word.into() != LOCKED);
            // Acquire: synchronizes with the Release in `Locked::drop`, so that the links are
            // visible.
            if self.word.compare_exchange(first, W::narrow(LOCKED), Acquire, Relaxed).is_ok() {
                break;
            }
        }
        let mut first = first.into();
        // Relaxed: ghosts were marked when only one thread existed.
        if first != NOBODY && slots.at(first).status.load(Relaxed) == status::GHOST {
            first = NOBODY;
        }
        Locked { list: self, slots, first }
    }
}

/// A list that this thread has locked. Dropping it unlocks the list.
pub(crate) struct Locked<'a, M: Machine, W: Number = <M as Machine>::AtomicU32> {
    list: &'a List<M, W>,
    slots: Slots<'a, M>,
    first: u32,
}

impl<M: Machine, W: Number> Drop for Locked<'_, M, W> {
    fn drop(&mut self) {
        // Release: synchronizes with the Acquire in `List::lock`, and in `List::settle`.
        self.list.word.store(W::narrow(self.first), Release);
    }
}

// Every access to a link is Relaxed: links are read and written under the lock, or by the waker
// that took the slot, and both publish them by the orderings named here.
impl<M: Machine, W: Number> Locked<'_, M, W> {
    pub(crate) fn is_empty(&self) -> bool {
        self.first == NOBODY
    }

    /// Returns the first waiter, if any.
    pub(crate) fn first(&self) -> Option<u32> {
        (self.first != NOBODY).then_some(self.first)
    }

    /// Returns the waiter after `number`, unless it is the last.
    pub(crate) fn after(&self, number: u32) -> Option<u32> {
        let next = self.slots.at(number).next.load(Relaxed);
        (next != self.first).then_some(next)
    }

    /// Adds a slot at the head or at the tail.
    pub(crate) fn push(&mut self, number: u32, at_head: bool) {
        let slot = self.slots.at(number);
        slot.status.store(status::WAITING, Relaxed);
        if self.first == NOBODY {
            slot.next.store(number, Relaxed);
            slot.prev.store(number, Relaxed);
            self.first = number;
            return;
        }
        let first = self.slots.at(self.first);
        let last = first.prev.load(Relaxed);
        slot.next.store(self.first, Relaxed);
        slot.prev.store(last, Relaxed);
        self.slots.at(last).next.store(number, Relaxed);
        first.prev.store(number, Relaxed);
        if at_head {
            self.first = number;
        }
    }

    /// Removes a linked slot.
    pub(crate) fn unlink(&mut self, number: u32) {
        let slot = self.slots.at(number);
        let next = slot.next.load(Relaxed);
        if next == number {
            self.first = NOBODY;
            return;
        }
        let prev = slot.prev.load(Relaxed);
        self.slots.at(prev).next.store(next, Relaxed);
        self.slots.at(next).prev.store(prev, Relaxed);
        if self.first == number {
            self.first = next;
        }
    }

    /// Moves a waiter from the list to the taken ones. Returns false if it is leaving.
    pub(crate) fn take(&mut self, number: u32, taken: &mut Taken) -> bool {
        let slot = self.slots.at(number);
        let mut seen = slot.status.load(Relaxed);
        loop {
            let to = match seen {
                status::WAITING => status::TAKEN,
                status::PARKED => status::TAKEN_PARKED,
                _ => return false,
            };
            // Relaxed: its thread waits for `grant`.
            match slot.status.compare_exchange(seen, to, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        self.unlink(number);
        slot.next.store(NOBODY, Relaxed);
        if taken.first == NOBODY {
            taken.first = number;
        } else {
            self.slots.at(taken.last).next.store(number, Relaxed);
        }
        taken.last = number;
        true
    }
}

/// Waiters that were taken off a list and must be woken.
#[derive(Default)]
#[must_use = "a taken waiter sleeps until it is granted"]
pub(crate) struct Taken {
    first: u32,
    last: u32,
}

impl Taken {
    /// Wakes them all and returns their number. The caller must not hold the lock.
    pub(crate) fn grant<M: Machine>(self, slots: &Slots<'_, M>) -> usize {
        let mut count = 0;
        let mut number = self.first;
        while number != NOBODY {
            let slot = slots.at(number);
            // Before the exchange: from then on the slot belongs to its thread, which may wait
            // again.
            number = slot.next.load(Relaxed);
            // Release: synchronizes with the Acquire in `granted`, so that everything that this
            // thread has seen and done, including its load of the link, comes before the waiter's
            // next steps.
            if slot.status.swap(status::GRANTED, Release) == status::TAKEN_PARKED {
                M::wake(&slot.status);
            }
            count += 1;
        }
        count
    }
}

/// Waits until the thread that took this slot grants it, which it is about to do.
pub(crate) fn granted<M: Machine>(slot: &Slot<M>) {
    // Acquire: synchronizes with the Release in `Taken::grant`.
    M::spin_until(&slot.status, Acquire, |now| now == status::GRANTED);
}

/// Announces that this thread is about to sleep on its slot. Returns false if it was granted.
pub(crate) fn park<M: Machine>(slot: &Slot<M>) -> bool {
    // Relaxed: the thread's own state. If it lost the race, `granted` orders.
    match slot.status.compare_exchange(status::WAITING, status::PARKED, Relaxed, Relaxed) {
        Ok(_) | Err(status::PARKED) => true,
        Err(_) => {
            granted(slot);
            false
        }
    }
}

/// Spins for `spin_ns`, then sleeps, until granted. Returns false if the deadline passed first.
pub(crate) fn wait<M: Machine>(slot: &Slot<M>, deadline: Option<Deadline>, spin_ns: u64) -> bool {
    let mut spin = Spin::<M>::new(spin_ns);
    // Relaxed: `park` loads it again, and orders.
    while slot.status.load(Relaxed) == status::WAITING && spin.again() {}
    while park(slot) {
        if M::wait(&slot.status, status::PARKED, deadline) == Waited::TimedOut {
            return false;
        }
    }
    true
}

/// Gives up. Returns false if a waker was faster: the slot is then granted.
///
/// If it returns true, the caller must unlink the slot under the lock, and free it.
pub(crate) fn retract<M: Machine>(slot: &Slot<M>) -> bool {
    // Relaxed: only this thread writes either of the two.
    let seen = slot.status.load(Relaxed);
    // Relaxed: the list's lock orders what follows; if this thread lost, `granted` does.
    if matches!(seen, status::WAITING | status::PARKED)
        && slot.status.compare_exchange(seen, status::LEAVING, Relaxed, Relaxed).is_ok()
    {
        return true;
    }
    granted(slot);
    false
}

/// Ends a wait: the slot belongs to its thread alone.
pub(crate) fn free<M: Machine>(slot: &Slot<M>) {
    // Relaxed: no other thread reads a slot that is in no list.
    slot.status.store(status::FREE, Relaxed);
}

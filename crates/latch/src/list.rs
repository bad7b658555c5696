//! A list of waiters, for latches that wake by choice and not by turn.
//!
//! PostgreSQL's `proclist` (2016) is the model: links are numbers of slots and not addresses, so
//! that the list works between processes. It is a ring, of which the list's one word names the
//! first; the first knows the last.
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
//! While it is `LOCKED`, who locked the list keeps the number. So to lock is
//! one exchange, to unlock is one store (nobody writes to a locked list), and a word of zero means a
//! list that is empty and idle. Nobody sleeps or calls the kernel while it holds the list.
//!
//! # A waiter's way
//!
//! | status | to | by |
//! |---|---|---|
//! | `FREE` | `WAITING` | its thread, under the lock: [`Locked::push`] |
//! | `WAITING` | `PARKED` | its thread, before it sleeps: [`wait`], [`park`] |
//! | `WAITING`, `PARKED` | `LEAVING` | its thread, which gives up: [`retract`] |
//! | `WAITING`, `PARKED` | `TAKEN`, `TAKEN_PARKED` | a waker, under the lock: [`Locked::take`] |
//! | `TAKEN`, `TAKEN_PARKED` | `GRANTED` | that waker, without the lock: [`Taken::grant`] |
//! | `LEAVING` | `FREE` | its thread, which unlinked itself under the lock |
//! | `GRANTED` | `FREE` | its thread |
//!
//! Invariants: a slot is linked while it is `WAITING`, `PARKED` or `LEAVING` and the list is
//! unlocked. Whoever moves it out of `WAITING` or `PARKED` decides how the wait ends, and there is
//! one exchange that does: a waiter is woken or gives up, never both. A slot that is `TAKEN` is
//! linked by its waker's private chain and belongs to the waker until it is `GRANTED`.
//!
//! A waiter that was taken does not touch the list again, so a list may be freed as soon as its
//! last waiters were taken and those who gave up have left: when its word is zero.
//!
//! # After a fork
//!
//! The child inherits lists of threads that are not there. The forking thread waits for nothing,
//! so such a list has ghosts only: who locks a list whose first slot is a ghost's finds it empty.
//! A list that was locked by another thread at the moment of the fork stays locked, as a mutex
//! would. To fork between any two steps of a latch, hold it: that is what `pthread_atfork` is for.

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
    /// The list whose first slot `word` names.
    pub(crate) const fn new(word: W) -> Self {
        Self { word, machine: PhantomData }
    }

    /// Where it lies, for [`Machine::slots`].
    pub(crate) fn address(&self) -> *const M::AtomicU32 {
        core::ptr::from_ref(&self.word).cast()
    }
}

impl<M: Machine, W: Number> List<M, W> {
    /// Whether nobody is in the list, nor at work on it.
    pub(crate) fn is_idle(&self) -> bool {
        // Relaxed: who needs to see an entry of another thread's is ordered after it by something
        // else; see `RawCondvar::notify_one`.
        self.word.load(Relaxed).into() == NOBODY
    }

    /// Waits until nobody is in the list, nor at work on it.
    pub(crate) fn settle(&self) {
        // Acquire: synchronizes with the Release of the last unlock, so that the list can be freed.
        M::spin_until(&self.word, Acquire, |word| word.into() == NOBODY);
    }

    /// Locks the list, for a moment.
    pub(crate) fn lock<'a>(&'a self, slots: Slots<'a, M>) -> Locked<'a, M, W> {
        let mut first;
        loop {
            // Relaxed: the exchange that follows is what orders.
            first = M::spin_until(&self.word, Relaxed, |word| word.into() != LOCKED);
            // Acquire: synchronizes with the Release in `Locked::drop`, so that the links are seen.
            if self.word.compare_exchange(first, W::narrow(LOCKED), Acquire, Relaxed).is_ok() {
                break;
            }
        }
        let mut first = first.into();
        // Relaxed: a ghost was made one when there was a single thread.
        if first != NOBODY && slots.at(first).status.load(Relaxed) == status::GHOST {
            first = NOBODY;
        }
        Locked { list: self, slots, first }
    }
}

/// A list that this thread has locked, until it drops this.
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
// that took the slot, and both pass them on by the orderings named here.
impl<M: Machine, W: Number> Locked<'_, M, W> {
    pub(crate) fn is_empty(&self) -> bool {
        self.first == NOBODY
    }

    /// The first waiter, if there is one.
    pub(crate) fn first(&self) -> Option<u32> {
        (self.first != NOBODY).then_some(self.first)
    }

    /// The one behind `number`, if it is not the last.
    pub(crate) fn after(&self, number: u32) -> Option<u32> {
        let next = self.slots.at(number).next.load(Relaxed);
        (next != self.first).then_some(next)
    }

    /// Adds a slot at the head, or at the tail.
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

    /// Removes a slot that is linked.
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

    /// Moves a waiter from the list to those to be woken; false if it is leaving.
    pub(crate) fn take(&mut self, number: u32, taken: &mut Taken) -> bool {
        let slot = self.slots.at(number);
        let mut seen = slot.status.load(Relaxed);
        loop {
            let to = match seen {
                status::WAITING => status::TAKEN,
                status::PARKED => status::TAKEN_PARKED,
                _ => return false,
            };
            // Relaxed: `grant` is what its thread waits for.
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

/// Waiters that were taken off a list and are still to be woken.
#[derive(Default)]
#[must_use = "whoever was taken sleeps until it is granted"]
pub(crate) struct Taken {
    first: u32,
    last: u32,
}

impl Taken {
    /// Wakes them all and returns how many they were. Call it without the lock.
    pub(crate) fn grant<M: Machine>(self, slots: &Slots<'_, M>) -> usize {
        let mut count = 0;
        let mut number = self.first;
        while number != NOBODY {
            let slot = slots.at(number);
            // Before the exchange: from then on the slot is its thread's, which may wait again.
            number = slot.next.load(Relaxed);
            // Release: synchronizes with the Acquire in `granted`, so that what this thread has
            // seen and done comes before what the waiter does, our look at the link included.
            if slot.status.swap(status::GRANTED, Release) == status::TAKEN_PARKED {
                M::wake(&slot.status);
            }
            count += 1;
        }
        count
    }
}

/// Waits for whoever took this slot to grant it, which it is about to do.
pub(crate) fn granted<M: Machine>(slot: &Slot<M>) {
    // Acquire: synchronizes with the Release in `Taken::grant`.
    M::spin_until(&slot.status, Acquire, |now| now == status::GRANTED);
}

/// Announces that this thread is about to sleep on its slot; false if it was granted meanwhile.
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

/// Looks for `spin_ns`, then sleeps, until granted; false if the deadline passed first.
pub(crate) fn wait<M: Machine>(slot: &Slot<M>, deadline: Option<Deadline>, spin_ns: u64) -> bool {
    let mut spin = Spin::<M>::new(spin_ns);
    // Relaxed: `park` looks again, and orders.
    while slot.status.load(Relaxed) == status::WAITING && spin.again() {}
    while park(slot) {
        if M::wait(&slot.status, status::PARKED, deadline) == Waited::TimedOut {
            return false;
        }
    }
    true
}

/// Gives up; false if a waker was faster: then the slot has been granted.
///
/// If true the caller unlinks the slot, under the lock, and frees it.
pub(crate) fn retract<M: Machine>(slot: &Slot<M>) -> bool {
    // Relaxed: only this thread writes either of the two.
    let seen = slot.status.load(Relaxed);
    // Relaxed: the list's lock orders what follows; if we lost, `granted` does.
    if matches!(seen, status::WAITING | status::PARKED)
        && slot.status.compare_exchange(seen, status::LEAVING, Relaxed, Relaxed).is_ok()
    {
        return true;
    }
    granted(slot);
    false
}

/// Ends a wait: the slot is its thread's own again.
pub(crate) fn free<M: Machine>(slot: &Slot<M>) {
    // Relaxed: nobody else looks at a slot that is in no list.
    slot.status.store(status::FREE, Relaxed);
}

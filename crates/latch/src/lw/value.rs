//! Waiting for a release without taking the latch, and for a value that its holder moves.
//!
//! Both come from PostgreSQL's write-ahead log. [`acquire_or_wait`](LwLatch::acquire_or_wait)
//! (2012) is for work that one thread does on behalf of all: who had to wait looks whether it was
//! done. A *value* (2014; a plain atomic since 2023) tells how far an exclusive holder has got.
//!
//! The value and the list: who moves the value locks the list afterwards, and who waits for it
//! looks at the value after it has joined the list. If the waiter's lock comes first, it is found
//! in the list. If the other's comes first, the waiter's lock synchronizes with its unlock, and
//! the waiter sees the value. The same holds for the release that resets the value.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{Machine, Word};

use super::attempt::Attempt;
use super::state::EXCLUSIVE;
use super::{LwLatch, mode};
use crate::list::{self, Taken};

impl<A: Attempt, M: Machine> LwLatch<A, M> {
    /// Takes the latch for oneself and returns true; or, if it is held or barred, waits until
    /// somebody releases it and returns false, without the latch.
    ///
    /// What the releasing holder did is seen then. Another may hold the latch already.
    ///
    /// # Panics
    ///
    /// If 65,534 threads wait for latches.
    pub fn acquire_or_wait(&self) -> bool {
        if self.enter(mode::EXCLUSIVE) {
            return true;
        }
        let slots = M::slots(&self.state);
        let me = slots.mine();
        let slot = slots.at(me);
        self.join(slots, me, mode::RELEASE, false);
        let entered = self.enter(mode::EXCLUSIVE);
        if entered {
            // Whether the release reached us as well is of no account: nobody relies on it.
            self.leave(slots, me);
        } else {
            list::wait(slot, None, 0);
        }
        list::free(slot);
        entered
    }

    /// Waits while the latch is held exclusively and `value` is `old`. Returns the value if it
    /// differs, or nothing if nobody holds the latch exclusively.
    ///
    /// What the holder did before it moved the value, or released the latch, is seen then.
    ///
    /// # Panics
    ///
    /// If 65,534 threads wait for latches.
    pub fn wait_for_value(&self, value: &M::AtomicU64, old: u64) -> Option<u64> {
        loop {
            if let Some(end) = self.look_at_value(value, old) {
                return end;
            }
            let slots = M::slots(&self.state);
            let me = slots.mine();
            let slot = slots.at(me);
            self.join(slots, me, mode::RELEASE, false);
            let end = self.look_at_value(value, old);
            if end.is_some() {
                self.leave(slots, me);
            } else {
                list::wait(slot, None, 0);
            }
            list::free(slot);
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// The result of waiting for `value`, if there is one already.
    fn look_at_value(&self, value: &M::AtomicU64, old: u64) -> Option<Option<u64>> {
        // Acquire: synchronizes with the Release of the last exclusive holder.
        if self.state.load(Acquire) & EXCLUSIVE == 0 {
            return Some(None);
        }
        // Acquire: synchronizes with the Release in `update_value`.
        let now = value.load(Acquire);
        (now != old).then_some(Some(now))
    }

    /// As the exclusive holder: moves the value and wakes all who wait for that.
    ///
    /// Those who wait for a release and not for the value are woken as well, once for each move:
    /// use one latch for one purpose.
    pub fn update_value(&self, value: &M::AtomicU64, new: u64) {
        // Release: synchronizes with the Acquire in `look_at_value`.
        value.store(new, Release);
        let slots = M::slots(&self.state);
        let mut list = self.list.lock(slots);
        let mut taken = Taken::default();
        let mut next = list.first();
        while let Some(number) = next {
            next = list.after(number);
            // Relaxed: written before the slot was put in the list.
            match slots.at(number).mode.load(Relaxed) {
                mode::RELEASE => {
                    list.take(number, &mut taken);
                }
                // Whoever waits for a release stands before those who were never called.
                other if other & mode::CALLED == 0 => break,
                _ => {}
            }
        }
        // Our own release finds the list empty, if it is.
        drop(list);
        taken.grant(&slots);
    }

    /// Resets the value to zero and gives the latch back.
    ///
    /// The value must be zero when the next holder takes the latch, or its waiters would take the
    /// old one for progress; to reset it after taking would be too late (PostgreSQL 7039760114).
    ///
    /// # Safety
    ///
    /// The latch is held exclusively, and given back by its holder's right.
    pub unsafe fn unlock_and_clear_value(&self, value: &M::AtomicU64) {
        // Relaxed: the release below orders it.
        value.store(0, Relaxed);
        // SAFETY: the caller's promise is the same.
        unsafe { self.unlock_exclusive() };
    }
}

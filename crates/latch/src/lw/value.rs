//! Waiting for a release without taking the latch, and for a value that its holder advances.
//!
//! Both come from PostgreSQL's write-ahead log. [`acquire_or_wait`](LwLatch::acquire_or_wait)
//! (2012) is for work that a thread does on behalf of all: a thread that had to wait checks whether
//! the work was done. A *value* (2014; a plain atomic since 2023) reports the progress of an
//! exclusive holder.
//!
//! The value and the list: a thread that advances the value locks the list afterwards, and a thread
//! that waits for it loads the value after it has joined the list. If the waiter's lock comes
//! first, it is found in the list. If the other's comes first, the waiter's lock synchronizes with
//! its unlock, and the waiter sees the value. The same holds for the release that resets the value.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{Machine, Word};

use super::attempt::Attempt;
use super::state::EXCLUSIVE;
use super::{LwLatch, mode};
use crate::list::{self, Taken};

impl<A: Attempt, M: Machine> LwLatch<A, M> {
    /// Takes the latch exclusively and returns true; or, if it is held or barred, waits for a
    /// release and returns false, without the latch.
    ///
    /// Writes of the releasing holder are then visible. Another thread may hold the latch already.
    ///
    /// # Panics
    ///
    /// Panics if 65,534 threads wait for latches.
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
            // Whether the release also reached this thread does not matter: no thread relies on it.
            self.leave(slots, me);
        } else {
            list::wait(slot, None, 0);
        }
        list::free(slot);
        entered
    }

    /// Waits while the latch is held exclusively and `value` is `old`. Returns the value if it
    /// differs, or `None` if no thread holds the latch exclusively.
    ///
    /// Writes of the holder before it advanced the value, or released the latch, are then visible.
    ///
    /// # Panics
    ///
    /// Panics if 65,534 threads wait for latches.
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

    /// Returns the result of waiting for `value`, if it is decided already.
    fn look_at_value(&self, value: &M::AtomicU64, old: u64) -> Option<Option<u64>> {
        // Acquire: synchronizes with the Release of the last exclusive holder.
        if self.state.load(Acquire) & EXCLUSIVE == 0 {
            return Some(None);
        }
        // Acquire: synchronizes with the Release in `update_value`.
        let now = value.load(Acquire);
        (now != old).then_some(Some(now))
    }

    /// As the exclusive holder: advances the value and wakes all threads that wait for it.
    ///
    /// Threads that wait for a release and not for the value are also woken, once for each advance:
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
                // Waiters for a release are before waiters that were never called.
                other if other & mode::CALLED == 0 => break,
                _ => {}
            }
        }
        // If the list is now empty, our own release finds that.
        drop(list);
        taken.grant(&slots);
    }

    /// Resets the value to zero and releases the latch.
    ///
    /// The value must be zero when the next holder takes the latch; otherwise its waiters would
    /// mistake the old value for progress. Resetting it after taking the latch would be too late
    /// (PostgreSQL 7039760114).
    ///
    /// # Safety
    ///
    /// The caller must hold the latch exclusively, or act for its holder.
    pub unsafe fn unlock_and_clear_value(&self, value: &M::AtomicU64) {
        // Relaxed: the release below orders it.
        value.store(0, Relaxed);
        // SAFETY: the caller's promise is the same.
        unsafe { self.unlock_exclusive() };
    }
}

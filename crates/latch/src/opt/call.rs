//! Releasing an [`OptLatch`], and calling its waiters.
//!
//! Waiters are in no list. Each waiter's slot has the latch that it waits for, its want, and the
//! time since when ([`waiter.rs`](super::waiter)). A release that sees `WAITERS` reads all slots
//! that were ever used and calls the waiter that came first. That reads one line for each thread
//! that ever waited, and there are no links that a death could leave inconsistent. The search
//! begins after the latch was freed, unless the latch is handed over.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{Integer, Machine, Slots, Word, status};

use super::waiter::{HANDED, HANDER_SHIFT, PARKED, WAITING, Waiter, Want};
use super::{CALLS, EXCLUSIVE, HOLDER, Holder, OptLatch, STARVED, WAITERS};

/// The waiters of one latch.
#[derive(Default)]
struct Line {
    /// The first waiter that wants to hold the latch.
    first: Option<Waiter>,
    /// The number of waiters, including readers.
    count: u32,
}

impl<M: Machine> OptLatch<M> {
    /// Releases a latch whose word is `held`, and stores `free`; neither includes the bits of
    /// waiters.
    #[inline]
    pub(super) fn release<H: Holder<M>>(&self, held: u64, free: u64, holder: &H) {
        let free = free & !HOLDER;
        // Release: synchronizes with the Acquire of the next holder, in `take_and_say`, and with
        // the Acquire of every reader that begins later, in `try_read`.
        if self.word.compare_exchange(held, free, Release, Relaxed).is_err() {
            self.release_slow(held, free, holder);
        }
    }

    #[cold]
    #[inline(never)]
    fn release_slow<H: Holder<M>>(&self, held: u64, free: u64, holder: &H) {
        let (slots, name) = (holder.slots(self), holder.name(self));
        // Relaxed: the exchanges decide.
        let mut seen = self.word.load(Relaxed);
        if seen & STARVED != 0 {
            // Acquire: synchronizes with the Release in `say`: a waiter that has set its bits is
            // visible in its slot, and counted, as the handed-over word requires.
            seen = self.word.fetch_and(!CALLS, Acquire) & !CALLS;
            let line = Self::line(&slots, name, false);
            if seen == held
                && let Some(first) = line.first.filter(Waiter::is_to_be_handed::<M>)
                && self.hand_over(first, (held, free), line.count > 1, holder, &slots)
            {
                return;
            }
        }
        // If the word is no longer ours, its memory was damaged, or this holder was considered
        // dead.
        while seen & !CALLS == held {
            // Release: as in `release`. Acquire: synchronizes with the Release in `say`: the slot
            // of the thread that set its bits is visible.
            match self.word.compare_exchange(seen, free, AcqRel, Relaxed) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        Self::call(&slots, name);
    }

    /// Makes `first` the holder of a latch whose word is `held`, and was `free` before. Returns
    /// false if it no longer waits, or if the latch is not held by this holder.
    fn hand_over<H: Holder<M>>(
        &self,
        first: Waiter,
        (held, free): (u64, u64),
        others: bool,
        holder: &H,
        slots: &Slots<'_, M>,
    ) -> bool {
        // A dead thread would hold the latch until the next sweep; it may have been swept already.
        let Some(number) = first.number.filter(|number| !holder.is_dead(*number)) else {
            return false;
        };
        let slot = slots.at(first.slot);
        let handed = HANDED | holder.number().get() << HANDER_SHIFT;
        let mut status = first.status;
        loop {
            // Acquire: synchronizes with the Release in `wait_once`, before the loads that follow.
            match slot.status.compare_exchange(status, handed, Acquire, Relaxed) {
                Ok(_) => break,
                Err(PARKED) if status == WAITING => status = PARKED,
                Err(_) => return false,
            }
        }
        // The thread may have left and waits for another latch now. While it is `HANDED` it stays.
        let mut done = slot.latch.load(Relaxed) == holder.name(self)
            && slot.mode.load(Relaxed) == first.mode
            && slot.next.load(Relaxed) == number.get();
        if done {
            let exclusive = if first.wants(Want::Lock) { EXCLUSIVE } else { 0 };
            let next = free | number.bits() | exclusive;
            let mut seen = self.word.load(Relaxed);
            loop {
                // A sharer may have been considered dead: then a writer may hold the latch.
                done = seen & !CALLS == held;
                if !done {
                    break;
                }
                let stay = seen & CALLS | if others { WAITERS } else { 0 };
                // Release: synchronizes with the Acquire in `handed`.
                match self.word.compare_exchange(seen, next | stay, Release, Relaxed) {
                    Ok(_) => break,
                    Err(now) => seen = now,
                }
            }
        }
        // Release: synchronizes with the Acquire in `Slots::reclaim`. The thread needs nothing from
        // it, because it loads the latch.
        let _ = slot.status.compare_exchange(handed, status::GRANTED, Release, Relaxed);
        M::wake(&slot.status);
        done
    }

    /// Calls all readers, and the first waiter that wants to hold the latch. That waiter sets
    /// `WAITERS` for the others when it has the latch.
    #[cold]
    #[inline(never)]
    fn call(slots: &Slots<'_, M>, name: u64) {
        // In each round but the last, a waiter left by itself or changed to another latch.
        for _ in 0..=slots.high_water() {
            let Some(first) = Self::line(slots, name, true).first else { return };
            if Self::grant(slots, name, &first) {
                return;
            }
        }
    }

    /// Passes on the call of a thread that no longer wants the latch.
    pub(super) fn pass_on<H: Holder<M>>(&self, holder: &H) {
        // Relaxed: the exchange decides.
        let mut seen = self.word.load(Relaxed);
        while seen & (EXCLUSIVE | HOLDER) != 0 {
            match self.say(seen, WAITERS) {
                Ok(()) => return,
                Err(now) => seen = now,
            }
        }
        Self::call(&holder.slots(self), holder.name(self));
    }

    /// Calls a waiter. Returns false if it no longer waits for the latch of this name, or for the
    /// same want.
    fn grant(slots: &Slots<'_, M>, name: u64, waiter: &Waiter) -> bool {
        let slot = slots.at(waiter.slot);
        let mut status = waiter.status;
        loop {
            // Release: synchronizes with the Acquire of `Slots::reclaim`. Acquire: synchronizes
            // with the Release in `wait_once`, before the loads that follow.
            match slot.status.compare_exchange(status, status::GRANTED, AcqRel, Relaxed) {
                Ok(_) => break,
                Err(PARKED) if status == WAITING => status = PARKED,
                Err(_) => return false,
            }
        }
        // The thread may have left and waits for another latch now: then it was called in vain, and
        // the next waiter of this latch must still be called. Relaxed, both: a value stored only
        // after the exchange causes one more call.
        let stayed = slot.latch.load(Relaxed) == name && slot.mode.load(Relaxed) == waiter.mode;
        if status == PARKED {
            M::wake(&slot.status);
        }
        stayed
    }

    /// Reads all slots, and calls the waiting readers if `calls_readers` is set.
    fn line(slots: &Slots<'_, M>, name: u64, calls_readers: bool) -> Line {
        let mut line = Line::default();
        for number in 1..=slots.high_water() {
            let Some(waiter) = Waiter::at(slots, name, number) else { continue };
            line.count += 1;
            if waiter.wants(Want::Read) {
                // A reader that no longer waits needs no call.
                let _ = calls_readers && Self::grant(slots, name, &waiter);
            } else if line.first.as_ref().is_none_or(|first| waiter.is_before(first)) {
                line.first = Some(waiter);
            }
        }
        line
    }
}

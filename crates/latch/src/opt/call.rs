//! Releasing an [`OptLatch`], and calling those who wait for it.
//!
//! Waiters are in no list. Each says in its slot which latch it waits for, for what, and since
//! when ([`waiter.rs`](super::waiter)); a release that sees `WAITERS` looks through all slots that
//! were ever used and calls the one that came first. That costs a look at one line for each thread
//! that ever waited, and there are no links that a death could leave in disorder. It looks when the
//! latch is free already, but for one that is to be handed over.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{Integer, Machine, Slots, Word, status};

use super::waiter::{HANDED, HANDER_SHIFT, PARKED, WAITING, Waiter, Want};
use super::{CALLS, EXCLUSIVE, HOLDER, Holder, OptLatch, STARVED, WAITERS};

/// Those that wait for one latch.
#[derive(Default)]
struct Line {
    /// The first that wants to hold the latch.
    first: Option<Waiter>,
    /// How many want to hold it, or to read.
    count: u32,
}

impl<M: Machine> OptLatch<M> {
    /// Releases a latch whose word was `held`, and leaves `free` there; neither says anything of
    /// waiters.
    #[inline]
    pub(super) fn release<H: Holder<M>>(&self, held: u64, free: u64, holder: &H) {
        let free = free & !HOLDER;
        // Release: synchronizes with the Acquire of the next holder, in `take_and_say`, and
        // with that of every reader that begins later, in `try_read`.
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
            // Acquire: synchronizes with the Release in `say`: a waiter that has said so is in the
            // line, and counted, for what is handed over says of it.
            seen = self.word.fetch_and(!CALLS, Acquire) & !CALLS;
            let line = Self::line(&slots, name, false);
            if seen == held
                && let Some(first) = line.first.filter(Waiter::is_to_be_handed::<M>)
                && self.hand_over(first, (held, free), line.count > 1, holder, &slots)
            {
                return;
            }
        }
        // Not ours any more: its memory was damaged, or this holder was taken for dead.
        while seen & !CALLS == held {
            // Release: as in `release`. Acquire: synchronizes with the Release in `say`: the thread
            // that said so is in the line.
            match self.word.compare_exchange(seen, free, AcqRel, Relaxed) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        Self::call(&slots, name);
    }

    /// Makes `first` the holder of a latch whose word is `held`, and was `free` before; false if it
    /// does not wait any more, or the latch is not this holder's.
    fn hand_over<H: Holder<M>>(
        &self,
        first: Waiter,
        (held, free): (u64, u64),
        others: bool,
        holder: &H,
        slots: &Slots<'_, M>,
    ) -> bool {
        // A dead one would have the latch until it is swept once more: and that may be over.
        let Some(number) = first.number.filter(|number| !holder.is_dead(*number)) else {
            return false;
        };
        let slot = slots.at(first.slot);
        let handed = HANDED | holder.number().get() << HANDER_SHIFT;
        let mut status = first.status;
        loop {
            // Acquire: synchronizes with the Release in `wait_once`, for the looks that follow.
            match slot.status.compare_exchange(status, handed, Acquire, Relaxed) {
                Ok(_) => break,
                Err(PARKED) if status == WAITING => status = PARKED,
                Err(_) => return false,
            }
        }
        // It may have left and come back, for another latch. While it is `HANDED` it stays.
        let mut done = slot.latch.load(Relaxed) == holder.name(self)
            && slot.mode.load(Relaxed) == first.mode
            && slot.next.load(Relaxed) == number.get();
        if done {
            let exclusive = if first.wants(Want::Lock) { EXCLUSIVE } else { 0 };
            let next = free | number.bits() | exclusive;
            let mut seen = self.word.load(Relaxed);
            loop {
                // A sharer may have been taken for dead: then a writer may hold it.
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
        // Release: synchronizes with the Acquire in `Slots::reclaim`. The thread needs nothing of
        // it: it looks at the latch.
        let _ = slot.status.compare_exchange(handed, status::GRANTED, Release, Relaxed);
        M::wake(&slot.status);
        done
    }

    /// Calls all readers, and the first that wants to hold the latch. That one says that others
    /// wait when it has it.
    #[cold]
    #[inline(never)]
    fn call(slots: &Slots<'_, M>, name: u64) {
        // Each round but the last sees one waiter leave by itself, or go to another latch.
        for _ in 0..=slots.high_water() {
            let Some(first) = Self::line(slots, name, true).first else { return };
            if Self::grant(slots, name, &first) {
                return;
            }
        }
    }

    /// Passes on the call of a thread that does not want the latch any more.
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

    /// Tells a waiter to try; false if it does not wait any more for the latch of this name, or not
    /// for what it waited for.
    fn grant(slots: &Slots<'_, M>, name: u64, waiter: &Waiter) -> bool {
        let slot = slots.at(waiter.slot);
        let mut status = waiter.status;
        loop {
            // Release: synchronizes with the Acquire of `Slots::reclaim`. Acquire: synchronizes
            // with the Release in `wait_once`, for the looks that follow.
            match slot.status.compare_exchange(status, status::GRANTED, AcqRel, Relaxed) {
                Ok(_) => break,
                Err(PARKED) if status == WAITING => status = PARKED,
                Err(_) => return false,
            }
        }
        // It may have left and come back, for another latch: then it is called for nothing, and the
        // next one of this latch is still to be called. Relaxed, both: what is stored only after
        // the exchange has one more called.
        let stayed = slot.latch.load(Relaxed) == name && slot.mode.load(Relaxed) == waiter.mode;
        if status == PARKED {
            M::wake(&slot.status);
        }
        stayed
    }

    /// Looks through the slots, and calls those that want to read if it is to.
    fn line(slots: &Slots<'_, M>, name: u64, calls_readers: bool) -> Line {
        let mut line = Line::default();
        for number in 1..=slots.high_water() {
            let Some(waiter) = Waiter::at(slots, name, number) else { continue };
            line.count += 1;
            if waiter.wants(Want::Read) {
                // One that does not wait any more needs no call.
                let _ = calls_readers && Self::grant(slots, name, &waiter);
            } else if line.first.as_ref().is_none_or(|first| waiter.is_before(first)) {
                line.first = Some(waiter);
            }
        }
        line
    }
}

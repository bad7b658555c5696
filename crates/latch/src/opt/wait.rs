//! The slow paths of the [`OptLatch`]: waiting, and calling those who wait.
//!
//! Waiters are in no list. Each says in its slot which latch it waits for, for what, and since
//! when; a release that sees `WAITERS` looks through all slots that were ever used and calls the
//! one that came first. That costs a look at one line for each thread that ever waited, and there
//! are no links that a death could leave in disorder.
//!
//! # A waiter's way
//!
//! ```text
//!  31   30          16 15           2   1      0
//! ┌───┬──────────────┬──────────────┬──────────┐
//! │ 1 │      0       │ who hands    │ PHASE    │
//! └───┴──────────────┴──────────────┴──────────┘
//! ```
//!
//! | status | to | by |
//! |---|---|---|
//! | `FREE` | `WAITING` | its thread |
//! | `WAITING` | `PARKED` | its thread, before it sleeps |
//! | `WAITING`, `PARKED` | `FREE` | its thread, which gives up |
//! | `WAITING`, `PARKED` | `GRANTED` | a caller |
//! | `WAITING`, `PARKED` | `HANDED` by a holder | that holder, before the latch names the waiter |
//! | `HANDED` | `GRANTED` | that holder, when the latch does, or does not after all |
//! | `HANDED` | `WAITING` | its thread, if that holder is dead |
//! | `GRANTED` | `FREE` | its thread |
//!
//! These are not the numbers that other latches write, so a caller whose waiter went away and waits
//! for a latch of another kind does nothing to it. If it waits for another latch of this kind it is
//! called for nothing, tries, and waits again.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{Clock, Deadline, Integer, Machine, Slot, Slots, Spin, Word, status};

use super::{EXCLUSIVE, HOLDER, Holder, HolderDied, HolderNumber, OptLatch, VERSION};
use super::{Version, WAITERS};

/// What part of a machine's budget is spent on looking: as in [`LwLatch`](crate::LwLatch).
const SPIN_SHARE: u64 = 8;

const OURS: u32 = 1 << 31;
const WAITING: u32 = OURS;
const PARKED: u32 = OURS | 1;
const HANDED: u32 = OURS | 2;
const HANDER_SHIFT: u32 = 2;

const _: () = assert!(status::SECOND < OURS && HolderNumber::MAX << HANDER_SHIFT < OURS);

/// Added to what a waiter wants: it lost too often.
const STARVED: u32 = 4;

/// What a thread wants of a latch.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Want {
    /// That no writer holds it.
    Read = 1,
    /// To be its sharer.
    Share = 2,
    /// To be its writer.
    Lock = 3,
}

/// One that waits, as a caller finds it.
struct Waiter {
    slot: u32,
    status: u32,
    since: u64,
    want: u32,
    number: Option<HolderNumber>,
}

/// Those that wait for one latch.
#[derive(Default)]
struct Line {
    /// The first that wants to hold the latch.
    first: Option<Waiter>,
    /// How many want to, and how many want to read.
    holders: u32,
    readers: u32,
}

impl<M: Machine> OptLatch<M> {
    /// Takes the latch if it is free, or was handed to this thread. Returns the word without
    /// waiters.
    #[inline]
    pub(super) fn take(&self, want: Want, number: HolderNumber) -> Option<u64> {
        // Relaxed: the exchange decides.
        let mut seen = self.word.load(Relaxed);
        while seen & (EXCLUSIVE | HOLDER) == 0 {
            let next = seen | number.bits() | if want == Want::Lock { EXCLUSIVE } else { 0 };
            // Acquire: synchronizes with the Release of the last holder, in `release`.
            match self.word.compare_exchange(seen, next, Acquire, Relaxed) {
                Ok(_) => return Some(next & !WAITERS),
                Err(now) => seen = now,
            }
        }
        None
    }

    /// Waits for a writer to go, and returns the version that it left.
    #[cold]
    #[inline(never)]
    pub(super) fn read_slow<H: Holder<M>>(&self, holder: &H) -> Result<Version, HolderDied> {
        let mut spin = Spin::<M>::new(M::SPIN_NS / SPIN_SHARE);
        while spin.again() {
            if let Some(version) = self.try_read() {
                return Ok(version);
            }
        }
        loop {
            match self.wait(Want::Read, holder, None)? {
                // It lost too often, and shares the latch now.
                Some(held) => {
                    self.release(held, held, holder);
                    return Ok(Version(held & VERSION));
                }
                None => {
                    if let Some(version) = self.try_read() {
                        return Ok(version);
                    }
                }
            }
        }
    }

    /// Waits until this thread holds the latch, and returns the word without waiters; none past the
    /// deadline. One that wants to read gets none as soon as it may try.
    #[cold]
    #[inline(never)]
    pub(super) fn wait<H: Holder<M>>(
        &self,
        mut want: Want,
        holder: &H,
        deadline: Option<Deadline>,
    ) -> Result<Option<u64>, HolderDied> {
        let number = holder.number();
        // Relaxed: only this thread's own calls make the latch name it before it waits.
        let mine = self.word.load(Relaxed) & HOLDER == number.bits();
        assert!(!mine, "latchwork: the thread holds this latch already");
        let mut spin = Spin::<M>::new(M::SPIN_NS / SPIN_SHARE);
        while want != Want::Read && spin.again() {
            if let Some(held) = self.take(want, number) {
                return Ok(Some(held));
            }
        }
        let slots = holder.slots(self);
        let slot = slots.at(slots.mine());
        // Relaxed, all four: `wait_once` passes them on.
        slot.latch.store(holder.name(self), Relaxed);
        slot.next.store(number.get(), Relaxed);
        slot.place.store(M::now(Clock::Monotonic), Relaxed);
        let mut losses = 0;
        loop {
            let starved = if losses >= H::LOSSES { STARVED } else { 0 };
            slot.mode.store(want as u32 | starved, Relaxed);
            let ended = self.wait_once(want, slot, holder, deadline);
            // Relaxed: nobody else writes to a slot that waits for nothing.
            slot.status.store(status::FREE, Relaxed);
            if let Some(held) = self.handed(want, holder) {
                return Ok(Some(held));
            }
            if want == Want::Read {
                // Relaxed: the caller looks again, and orders.
                if self.word.load(Relaxed) & EXCLUSIVE == 0 {
                    return Ok(None);
                }
            } else if let Some(held) = self.take(want, number) {
                return Ok(Some(held));
            }
            if !ended? {
                return Ok(None);
            }
            losses += 1;
            if want == Want::Read && losses >= H::LOSSES {
                want = Want::Share;
            }
        }
    }

    /// What this thread was handed, if it is what it wants.
    fn handed<H: Holder<M>>(&self, want: Want, holder: &H) -> Option<u64> {
        // Relaxed: only the holder that names us stores our number, and the fence follows.
        let seen = self.word.load(Relaxed);
        if seen & HOLDER != holder.number().bits() {
            return None;
        }
        // Acquire: synchronizes with the Release of the holder that named us, in `hand_over`.
        M::fence(Acquire);
        if (want == Want::Lock) == (seen & EXCLUSIVE != 0) && want != Want::Read {
            return Some(seen & !WAITERS);
        }
        self.release(seen & !WAITERS, seen & VERSION, holder);
        None
    }

    /// Whether a thread that wants this must wait for the state `seen`.
    fn stops(want: Want, seen: u64) -> bool {
        seen & if want == Want::Read { EXCLUSIVE } else { EXCLUSIVE | HOLDER } != 0
    }

    /// Sleeps until called; false past the deadline. Either way the slot waits for nothing then.
    fn wait_once<H: Holder<M>>(
        &self,
        want: Want,
        slot: &Slot<M>,
        holder: &H,
        deadline: Option<Deadline>,
    ) -> Result<bool, HolderDied> {
        // Release: synchronizes with the Acquire in `line`, so that a caller sees what we want.
        slot.status.store(WAITING, Release);
        // Relaxed: the exchange decides.
        let mut seen = self.word.load(Relaxed);
        loop {
            if !Self::stops(want, seen) || seen & HOLDER == holder.number().bits() {
                self.leave(slot, holder);
                return Ok(true);
            }
            // Release: synchronizes with the Acquire in `release_slow`: it sees that we wait.
            match self.word.compare_exchange(seen, seen | WAITERS, Release, Relaxed) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        loop {
            // Relaxed: only we write `PARKED`, and what a caller says is looked at below.
            match slot.status.compare_exchange(WAITING, PARKED, Relaxed, Relaxed) {
                Ok(_) | Err(PARKED) => {}
                Err(_) => {
                    self.leave(slot, holder);
                    return Ok(true);
                }
            }
            let nap = holder.nap().map(Deadline::after::<M>);
            let until = match (nap, deadline) {
                (Some(nap), Some(end)) if end.clock == nap.clock && end.at < nap.at => Some(end),
                (Some(nap), _) => Some(nap),
                (None, end) => end,
            };
            M::wait(&slot.status, PARKED, until);
            // Relaxed: as above.
            if slot.status.load(Relaxed) != PARKED {
                continue;
            }
            let seen = self.word.load(Relaxed);
            let passed = deadline.is_some_and(|deadline| deadline.passed::<M>());
            if passed || !Self::stops(want, seen) || seen & HOLDER == holder.number().bits() {
                let called = self.leave(slot, holder);
                return Ok(called || !passed);
            }
            if nap.is_some()
                && let Err(died) = self.look_for_death(seen, holder)
            {
                self.leave(slot, holder);
                return Err(died);
            }
        }
    }

    /// Asks whether the holder in `seen` is dead. A dead sharer is forgotten.
    fn look_for_death<H: Holder<M>>(&self, seen: u64, holder: &H) -> Result<(), HolderDied> {
        let Some(number) = HolderNumber::of(seen) else { return Ok(()) };
        if !holder.is_dead(number) {
            return Ok(());
        }
        if seen & EXCLUSIVE == 0 {
            // Relaxed: a sharer stored nothing. If it fails, somebody else was faster.
            let _ = self.word.compare_exchange(seen, seen & !HOLDER, Relaxed, Relaxed);
            return Ok(());
        }
        // Relaxed: the exchange in `take_over` decides.
        let still = self.word.load(Relaxed) & (EXCLUSIVE | HOLDER) == seen & (EXCLUSIVE | HOLDER);
        if still { Err(HolderDied(number)) } else { Ok(()) }
    }

    /// Stops waiting; true if this thread was called, or handed the latch, before it could.
    fn leave<H: Holder<M>>(&self, slot: &Slot<M>, holder: &H) -> bool {
        // Relaxed: the exchange decides, and a holder that hands over is waited for below.
        let mut seen = slot.status.load(Relaxed);
        loop {
            if seen == WAITING || seen == PARKED {
                match slot.status.compare_exchange(seen, status::FREE, Relaxed, Relaxed) {
                    Ok(_) => return false,
                    Err(now) => seen = now,
                }
                continue;
            }
            if seen & !(HolderNumber::MAX << HANDER_SHIFT) != HANDED {
                // Acquire: synchronizes with the Release in `grant`.
                M::fence(Acquire);
                return true;
            }
            let until = holder.nap().map(Deadline::after::<M>);
            M::wait(&slot.status, seen, until);
            let hander = HolderNumber::new((seen & !HANDED) >> HANDER_SHIFT);
            let now = slot.status.load(Relaxed);
            if now == seen && until.is_some() && hander.is_none_or(|hander| holder.is_dead(hander))
            {
                // Relaxed: as above. The latch names us, or the dead one still.
                let _ = slot.status.compare_exchange(seen, WAITING, Relaxed, Relaxed);
            }
            seen = slot.status.load(Relaxed);
        }
    }

    /// Releases a latch whose word was `held`, and leaves `free` there; neither says `WAITERS`.
    #[inline]
    pub(super) fn release<H: Holder<M>>(&self, held: u64, free: u64, holder: &H) {
        let free = free & !HOLDER;
        // Release: synchronizes with the Acquire of the next holder, in `take`, and with that of
        // every reader that begins later, in `try_read`.
        if self.word.compare_exchange(held, free, Release, Relaxed).is_err() {
            self.release_slow(held, free, holder);
        }
    }

    #[cold]
    #[inline(never)]
    fn release_slow<H: Holder<M>>(&self, held: u64, free: u64, holder: &H) {
        let (slots, name) = (holder.slots(self), holder.name(self));
        // Acquire: synchronizes with the Release in `wait_once`: who said `WAITERS` is in `line`.
        let seen = self.word.fetch_and(!WAITERS, Acquire);
        if seen & !WAITERS != held {
            // Not ours any more: its memory was damaged, or this holder was taken for dead.
            self.call(&slots, name);
            return;
        }
        let line = self.line(&slots, name);
        let others = line.holders > 1;
        if let Some(first) = line.first.filter(|first| first.want & STARVED != 0)
            && self.hand_over(first, free, others || line.readers > 0, holder, &slots)
        {
            return;
        }
        let mut seen = held;
        loop {
            // Those that said so since.
            let stay = seen & WAITERS;
            // Release: as in `release`.
            match self.word.compare_exchange(seen, free | stay, Release, Relaxed) {
                Ok(_) => break,
                Err(now) if now & !WAITERS == held => seen = now,
                Err(_) => break,
            }
        }
        self.call(&slots, name);
    }

    /// Makes `first` the holder; false if it does not wait any more.
    fn hand_over<H: Holder<M>>(
        &self,
        first: Waiter,
        free: u64,
        others: bool,
        holder: &H,
        slots: &Slots<'_, M>,
    ) -> bool {
        let Some(number) = first.number else { return false };
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
        let same = slot.latch.load(Relaxed) == holder.name(self)
            && slot.mode.load(Relaxed) == first.want
            && slot.next.load(Relaxed) == number.get();
        if same {
            let exclusive = if first.want == Want::Lock as u32 | STARVED { EXCLUSIVE } else { 0 };
            let next = free | number.bits() | exclusive;
            let mut seen = self.word.load(Relaxed);
            loop {
                let stay = if others { WAITERS } else { seen & WAITERS };
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
        same
    }

    /// Calls all readers, and the first that wants to hold the latch.
    #[cold]
    #[inline(never)]
    fn call(&self, slots: &Slots<'_, M>, name: u64) {
        for number in 1..=slots.high_water() {
            if let Some(reader) = Self::waiter(slots, name, number)
                && reader.want & !STARVED == Want::Read as u32
            {
                Self::grant(slots, &reader);
            }
        }
        // Each round but the last sees one waiter leave by itself.
        for _ in 0..=slots.high_water() {
            let line = self.line(slots, name);
            let Some(first) = line.first else { return };
            if line.holders > 1 {
                // Before the call: so the release of the one that is called sees it. That one need
                // not have said `WAITERS` itself, if it is about to find the latch free.
                // Relaxed: `grant` passes it on.
                self.word.fetch_or(WAITERS, Relaxed);
            }
            if Self::grant(slots, &first) {
                return;
            }
        }
    }

    /// Tells a waiter to try; false if it does not wait any more.
    fn grant(slots: &Slots<'_, M>, waiter: &Waiter) -> bool {
        let slot = slots.at(waiter.slot);
        let mut status = waiter.status;
        loop {
            // Release: synchronizes with the Acquire in `leave`, so that the release of the one
            // that is called comes after the `WAITERS` of `call`; and with that of
            // `Slots::reclaim`.
            match slot.status.compare_exchange(status, status::GRANTED, Release, Relaxed) {
                Ok(_) => break,
                Err(PARKED) if status == WAITING => status = PARKED,
                Err(_) => return false,
            }
        }
        if status == PARKED {
            M::wake(&slot.status);
        }
        true
    }

    /// The slot with this number, if a thread waits there for the latch of this name.
    fn waiter(slots: &Slots<'_, M>, name: u64, number: u32) -> Option<Waiter> {
        let slot = slots.at(number);
        // Acquire: synchronizes with the Release in `wait_once`, for what follows.
        let status = slot.status.load(Acquire);
        if (status != WAITING && status != PARKED) || slot.latch.load(Relaxed) != name {
            return None;
        }
        Some(Waiter {
            slot: number,
            status,
            since: slot.place.load(Relaxed),
            want: slot.mode.load(Relaxed),
            number: HolderNumber::new(slot.next.load(Relaxed)),
        })
    }

    /// Looks through the slots.
    fn line(&self, slots: &Slots<'_, M>, name: u64) -> Line {
        let mut line = Line::default();
        for number in 1..=slots.high_water() {
            let Some(waiter) = Self::waiter(slots, name, number) else { continue };
            if waiter.want & !STARVED == Want::Read as u32 {
                line.readers += 1;
                continue;
            }
            line.holders += 1;
            if line.first.as_ref().is_none_or(|first| waiter.since < first.since) {
                line.first = Some(waiter);
            }
        }
        line
    }
}

//! The slow paths of the [`OptLatch`]: waiting, and calling those who wait.
//!
//! Waiters are in no list. Each says in its slot which latch it waits for, for what, and since
//! when; a release that sees `WAITERS` looks through all slots that were ever used and calls the
//! one that came first. That costs a look at one line for each thread that ever waited, and there
//! are no links that a death could leave in disorder. It looks when the latch is free already, but
//! for one that is to be handed over.
//!
//! To wake a thread takes longer than most latches are held. So the thread that is called tries for
//! a while before it sleeps again; nobody else is called meanwhile, and threads that are awake go
//! on taking the latch. With the latch handed to threads that slept, and one try for the others, 24
//! simulated threads came to 0.6 M puts a second and 192 to 0.1 M; it is 1.2 M and 0.6 M.
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

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{Clock, Deadline, Integer, Machine, Slot, Slots, Spin, Word, status};

use super::{CALLS, EXCLUSIVE, HOLDER, Holder, HolderDied, HolderNumber, OptLatch, STARVED};
use super::{VERSION, Version, WAITERS};

/// What part of a machine's budget a thread spends on looking before it sleeps the first time.
/// Transfers of 48 simulated threads, M a second: 0.20 with a 40th, 0.23 with an 8th, 0.26 with
/// half of it.
const SPIN_SHARE: u64 = 2;

const OURS: u32 = 1 << 31;
const WAITING: u32 = OURS;
const PARKED: u32 = OURS | 1;
const HANDED: u32 = OURS | 2;
const HANDER_SHIFT: u32 = 2;

const _: () = assert!(status::SECOND < OURS && HolderNumber::MAX << HANDER_SHIFT < OURS);

/// Added to what a waiter wants: it lost too often ...
const LOST: u32 = 4;
/// ... and again as often when it was called: it is handed the latch even if it sleeps.
const OVERDUE: u32 = 8;
const WANT: u32 = 3;

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

impl Waiter {
    fn reads(&self) -> bool {
        self.want & WANT == Want::Read as u32
    }

    /// Whether it lost too often, and can be given the latch at once: a latch that is handed to a
    /// thread that sleeps is held by nobody until that is awake.
    fn is_to_be_handed<M: Machine>(&self) -> bool {
        let awake = self.status == WAITING || M::SPIN_NS == 0;
        self.want & LOST != 0 && (awake || self.want & OVERDUE != 0)
    }

    /// Those that lost too often come first, then those that came first.
    fn is_before(&self, other: &Self) -> bool {
        (self.want & LOST == 0, self.since) < (other.want & LOST == 0, other.since)
    }
}

/// Those that wait for one latch.
#[derive(Default)]
struct Line {
    /// The first that wants to hold the latch.
    first: Option<Waiter>,
    /// How many want to hold it, or to read.
    count: u32,
}

impl<M: Machine> OptLatch<M> {
    /// Takes the latch if it is free, or was handed to this thread. Returns the word without
    /// waiters.
    #[inline]
    pub(super) fn take(&self, want: Want, number: HolderNumber) -> Option<u64> {
        self.take_and_say(want, number, 0)
    }

    /// The same, and the word says this of other waiters then.
    #[inline]
    fn take_and_say(&self, want: Want, number: HolderNumber, calls: u64) -> Option<u64> {
        // Relaxed: the exchange decides.
        let mut seen = self.word.load(Relaxed);
        while seen & (EXCLUSIVE | HOLDER) == 0 {
            let exclusive = if want == Want::Lock { EXCLUSIVE } else { 0 };
            let next = seen | calls | number.bits() | exclusive;
            // Acquire: synchronizes with the Release of the last holder, in `release`.
            match self.word.compare_exchange(seen, next, Acquire, Relaxed) {
                Ok(_) => return Some(next & !CALLS),
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
            let lost = if losses >= H::LOSSES { LOST } else { 0 };
            let overdue = if losses >= 2 * H::LOSSES { OVERDUE } else { 0 };
            slot.mode.store(want as u32 | lost | overdue, Relaxed);
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
            } else if let Some(held) = self.take_called(want, number) {
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

    /// Takes the latch as a thread that has waited and is awake now. Nobody else is called while it
    /// tries, so it says that others wait.
    fn take_called(&self, want: Want, number: HolderNumber) -> Option<u64> {
        let mut spin = Spin::<M>::new(M::SPIN_NS);
        loop {
            let held = self.take_and_say(want, number, WAITERS);
            if held.is_some() || !spin.again() {
                return held;
            }
        }
    }

    /// Passes on the call of a thread that does not want the latch any more.
    fn pass_on<H: Holder<M>>(&self, holder: &H) {
        // Relaxed: the exchange decides.
        let mut seen = self.word.load(Relaxed);
        while seen & (EXCLUSIVE | HOLDER) != 0 {
            match self.say(seen, WAITERS) {
                Ok(()) => return,
                Err(now) => seen = now,
            }
        }
        self.call(&holder.slots(self), holder.name(self));
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
            return Some(seen & !CALLS);
        }
        self.release(seen & !CALLS, seen & VERSION, holder);
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
        // Relaxed: this thread's own.
        let lost = slot.mode.load(Relaxed) & LOST != 0;
        let calls = if lost { CALLS } else { WAITERS };
        // Release: synchronizes with the Acquire in `line`, so that a caller sees what we want.
        slot.status.store(WAITING, Release);
        // Relaxed: the exchange decides.
        let mut seen = self.word.load(Relaxed);
        loop {
            if !Self::stops(want, seen) || seen & HOLDER == holder.number().bits() {
                self.leave(slot, holder);
                return Ok(true);
            }
            match self.say(seen, calls) {
                Ok(()) => break,
                Err(now) => seen = now,
            }
        }
        // To be handed the latch awake.
        let mut spin = Spin::<M>::new(if lost { M::SPIN_NS } else { 0 });
        // Relaxed, both: looked at again below.
        while slot.status.load(Relaxed) == WAITING
            && Self::stops(want, self.word.load(Relaxed))
            && spin.again()
        {}
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
                if self.leave(slot, holder) {
                    self.pass_on(holder);
                }
                return Err(died);
            }
            // The thread that was called last, and was to say this, may be dead.
            let _ = self.say(seen, calls);
        }
    }

    /// Says of waiters what a release of the word `seen` is to know; or returns the word.
    fn say(&self, seen: u64, calls: u64) -> Result<(), u64> {
        // Release: synchronizes with the Acquire in `release_slow`, which sees the waiter then.
        self.word.compare_exchange(seen, seen | calls, Release, Relaxed).map(drop)
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
                // Acquire: synchronizes with the Release in `hand_over`: if this thread was handed
                // the latch, the latch names it.
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

    /// Releases a latch whose word was `held`, and leaves `free` there; neither says anything of
    /// waiters.
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
        // Relaxed: the exchanges decide.
        let mut seen = self.word.load(Relaxed);
        if seen & STARVED != 0 {
            // Relaxed: a waiter that is not seen yet is called below.
            seen = self.word.fetch_and(!CALLS, Relaxed) & !CALLS;
            let line = self.line(&slots, name);
            if seen == held
                && let Some(first) = line.first.filter(Waiter::is_to_be_handed::<M>)
                && self.hand_over(first, free, line.count > 1, holder, &slots)
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
            let exclusive = if first.want & WANT == Want::Lock as u32 { EXCLUSIVE } else { 0 };
            let next = free | number.bits() | exclusive;
            let mut seen = self.word.load(Relaxed);
            loop {
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
        same
    }

    /// Calls all readers, and the first that wants to hold the latch. That one says that others
    /// wait when it has it.
    #[cold]
    #[inline(never)]
    fn call(&self, slots: &Slots<'_, M>, name: u64) {
        // Each round but the last sees one waiter leave by itself.
        for _ in 0..=slots.high_water() {
            let line = self.line_without_readers(slots, name);
            let Some(first) = line.first else { return };
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
            // Release: synchronizes with the Acquire of `Slots::reclaim`.
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
        self.line_but(slots, name, |_| false)
    }

    /// The same, and calls those that want to read.
    fn line_without_readers(&self, slots: &Slots<'_, M>, name: u64) -> Line {
        self.line_but(slots, name, |waiter| waiter.reads() && Self::grant(slots, waiter))
    }

    fn line_but(&self, slots: &Slots<'_, M>, name: u64, gone: impl Fn(&Waiter) -> bool) -> Line {
        let mut line = Line::default();
        for number in 1..=slots.high_water() {
            let waiter = Self::waiter(slots, name, number).filter(|waiter| !gone(waiter));
            let Some(waiter) = waiter else { continue };
            line.count += 1;
            if !waiter.reads() && line.first.as_ref().is_none_or(|first| waiter.is_before(first)) {
                line.first = Some(waiter);
            }
        }
        line
    }
}

//! Waiting for an [`OptLatch`].
//!
//! A thread spins on the latch for a while. Then it stores in its slot what it waits for
//! ([`waiter.rs`](super::waiter)), sets `WAITERS` in the word, and sleeps. A release calls it
//! ([`call.rs`](super::call)).
//!
//! Waking a thread takes longer than most latches are held. So a called thread tries for a while
//! before it sleeps again. During that time no other thread is called, and threads that are awake
//! continue to take the latch. When the latch was handed to sleeping threads, and awake threads
//! tried once, 24 simulated threads reached 0.6 M puts a second and 192 reached 0.1 M; now they
//! reach 1.2 M and 0.6 M.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;

use latchwork_machine::{
    Clock, Deadline, Level, Machine, Slot, Spin, Word, finds_crowd, pause_for, status,
};

use super::waiter::{HANDED, HANDER_SHIFT, LOST, OVERDUE, PARKED, WAITING, Want};
use super::{CALLS, EXCLUSIVE, HOLDER, Holder, HolderDied, HolderNumber, OptLatch};
use super::{VERSION, Version, WAITERS};

/// A thread spins for the machine's budget divided by this before it sleeps the first time.
/// Transfers of 48 simulated threads, M a second: 0.20 with a 40th, 0.23 with an 8th, 0.26 with
/// half of it.
const SPIN_SHARE: u64 = 2;
/// How often a thread looks again before it sleeps, on a machine with several caches, if no other
/// thread wants its processor: for about 200 microseconds. The holder is usually in an append to
/// the log, which takes less than a wake-up. See `docs/waiting.md`.
const ROUNDS: u32 = 32;
/// The time before the first of these looks; four looks later it is doubled, three times. A look
/// takes the line from the holder, which changes other words of it.
const LOOK_NS: u64 = 1_000;
/// How long a thread without a slot, which cannot be called, sleeps between two checks.
const UNCALLED: Duration = Duration::from_millis(1);

/// The result of spinning for longer.
enum Lingered {
    /// The thread has the latch, whose word this is, without the bits of waiters.
    In(u64),
    /// No writer has the latch.
    Readable,
    InVain,
}

impl<M: Machine> OptLatch<M> {
    /// Takes the latch if it is free or was handed to this thread. Returns the word without the
    /// bits of waiters.
    #[inline]
    pub(super) fn take(&self, want: Want, number: HolderNumber) -> Option<u64> {
        self.take_and_say(want, number, 0)
    }

    /// Takes the latch, and sets these bits of waiters in the word.
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

    /// Waits until no writer holds the latch, and returns the version.
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

    /// Waits until this thread holds the latch, and returns the word without the bits of waiters;
    /// `None` after the deadline. A reader gets `None` as soon as it may try again.
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
        let Some(slot) = slots.try_mine() else {
            return self.wait_uncalled(want, holder, deadline);
        };
        let slot = slots.at(slot);
        match self.linger(want, slot, number, deadline) {
            Lingered::In(held) => return Ok(Some(held)),
            Lingered::Readable => return Ok(None),
            Lingered::InVain => {}
        }
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
            // Relaxed: no other thread writes to a slot that does not wait.
            slot.status.store(status::FREE, Relaxed);
            if let Some(held) = self.handed(want, holder) {
                return Ok(Some(held));
            }
            if want == Want::Read {
                // Relaxed: the caller loads the word again, and orders.
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

    /// Continues to spin if no other thread wants this processor.
    fn linger(
        &self,
        want: Want,
        slot: &Slot<M>,
        number: HolderNumber,
        deadline: Option<Deadline>,
    ) -> Lingered {
        if !M::spread(Level::Cache) {
            return Lingered::InVain;
        }
        for round in 0..ROUNDS {
            if finds_crowd(slot, || ()) || deadline.is_some_and(|deadline| deadline.passed::<M>()) {
                break;
            }
            pause_for::<M>(LOOK_NS << (round / 4).min(3));
            // Relaxed: the caller loads the word again, and orders.
            if want == Want::Read && self.word.load(Relaxed) & EXCLUSIVE == 0 {
                return Lingered::Readable;
            }
            if want != Want::Read
                && let Some(held) = self.take(want, number)
            {
                return Lingered::In(held);
            }
        }
        Lingered::InVain
    }

    /// Waits without a slot, because other threads have all of them. This thread cannot be called,
    /// so it checks the latch periodically.
    #[cold]
    fn wait_uncalled<H: Holder<M>>(
        &self,
        mut want: Want,
        holder: &H,
        deadline: Option<Deadline>,
    ) -> Result<Option<u64>, HolderDied> {
        let never = M::AtomicU32::default();
        let mut losses = 0;
        loop {
            let nap = Deadline::after::<M>(UNCALLED);
            M::wait(&never, 0, Some(nap));
            // Relaxed, both: the caller loads the word again, and the exchange in `take` decides.
            let seen = self.word.load(Relaxed);
            if want == Want::Read {
                if seen & EXCLUSIVE == 0 {
                    return Ok(None);
                }
            } else if let Some(held) = self.take(want, holder.number()) {
                return Ok(Some(held));
            }
            if deadline.is_some_and(|deadline| deadline.passed::<M>()) {
                return Ok(None);
            }
            if holder.nap().is_some() {
                self.look_for_death(seen, holder)?;
            }
            losses += 1;
            if want == Want::Read && losses >= H::LOSSES {
                want = Want::Share;
            }
        }
    }

    /// Takes the latch as a waiter that is awake now. No other thread is called while it tries, so
    /// it sets `WAITERS`.
    fn take_called(&self, want: Want, number: HolderNumber) -> Option<u64> {
        let mut spin = Spin::<M>::new(M::SPIN_NS);
        loop {
            let held = self.take_and_say(want, number, WAITERS);
            if held.is_some() || !spin.again() {
                return held;
            }
        }
    }

    /// Returns the word if this thread was handed the latch as it wants it.
    fn handed<H: Holder<M>>(&self, want: Want, holder: &H) -> Option<u64> {
        // Relaxed: only the holder that names this thread stores its number, and the fence follows.
        let seen = self.word.load(Relaxed);
        if seen & HOLDER != holder.number().bits() {
            return None;
        }
        // Acquire: synchronizes with the Release of the holder that named this thread, in
        // `hand_over`.
        M::fence(Acquire);
        if (want == Want::Lock) == (seen & EXCLUSIVE != 0) && want != Want::Read {
            return Some(seen & !CALLS);
        }
        self.release(seen & !CALLS, seen & VERSION, holder);
        None
    }

    /// Returns whether a thread with this want must wait in the state `seen`.
    fn stops(want: Want, seen: u64) -> bool {
        seen & if want == Want::Read { EXCLUSIVE } else { EXCLUSIVE | HOLDER } != 0
    }

    /// Sleeps until called. Returns false after the deadline. In both cases the slot no longer
    /// waits.
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
        // Release: synchronizes with the Acquire in `Waiter::at`: a caller sees the want.
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
        // Stays awake for a handover.
        let mut spin = Spin::<M>::new(if lost { M::SPIN_NS } else { 0 });
        // Relaxed, both: loaded again below.
        while slot.status.load(Relaxed) == WAITING
            && Self::stops(want, self.word.load(Relaxed))
            && spin.again()
        {}
        loop {
            // Relaxed: only this thread writes `PARKED`, and a caller's status is checked below.
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
            // The thread that was called last should have set this, but may be dead.
            let _ = self.say(seen, calls);
        }
    }

    /// Sets bits of waiters in the word `seen`, which its release reads; returns the current word
    /// if it differs.
    pub(super) fn say(&self, seen: u64, calls: u64) -> Result<(), u64> {
        // Release: synchronizes with the Acquire in `release_slow`, which then sees the waiter.
        self.word.compare_exchange(seen, seen | calls, Release, Relaxed).map(drop)
    }

    /// Checks whether the holder in `seen` is dead. The name of a dead sharer is cleared.
    fn look_for_death<H: Holder<M>>(&self, seen: u64, holder: &H) -> Result<(), HolderDied> {
        let Some(number) = HolderNumber::of(seen) else { return Ok(()) };
        if !holder.is_dead(number) {
            return Ok(());
        }
        if seen & EXCLUSIVE == 0 {
            // Relaxed: a sharer stored nothing. If it fails, another thread was faster.
            let _ = self.word.compare_exchange(seen, seen & !HOLDER, Relaxed, Relaxed);
            return Ok(());
        }
        // Relaxed: the exchange in `take_over` decides.
        let still = self.word.load(Relaxed) & (EXCLUSIVE | HOLDER) == seen & (EXCLUSIVE | HOLDER);
        if still { Err(HolderDied(number)) } else { Ok(()) }
    }

    /// Stops waiting. Returns true if this thread was called or handed the latch before.
    fn leave<H: Holder<M>>(&self, slot: &Slot<M>, holder: &H) -> bool {
        // Relaxed: the exchange decides, and a handover in progress is waited for below.
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
                // Relaxed: as above. The latch names this thread, or still the dead holder.
                let _ = slot.status.compare_exchange(seen, WAITING, Relaxed, Relaxed);
            }
            seen = slot.status.load(Relaxed);
        }
    }
}

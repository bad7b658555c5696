//! A mutex like Linux's: one word contains the owner; threads spin while they may, the rest sleep
//! in turn.
//!
//! I. Molnar, 2006; spinning on the owner P. Zijlstra, 2009; the spinners' queue J. Low, 2013; the
//! hand-off P. Zijlstra, 2016.
//!
//! ```text
//!  31            3    2       1       0
//! ┌───────────────┬───────┬───────┬───────┐
//! │ owner or zero │PICKUP │HANDOFF│WAITERS│
//! └───────────────┴───────┴───────┴───────┘
//! ```
//!
//! | bit | meaning | set by | cleared by |
//! |---|---|---|---|
//! | `WAITERS` | a thread sleeps: release must wake the first | the first sleeper | the last |
//! | `HANDOFF` | release must not free it, but give it to the first | the first, woken in vain | the releaser |
//! | `PICKUP` | the named owner has not taken it yet | the releaser | that owner |
//!
//! Fairness: spinners take turns, and the first sleeper, woken in vain, gets the mutex at the next
//! release. But any thread that finds it free takes it, and the spinner learns of a release one
//! cache miss later. So an owner that returns at once overtakes the spinner every time, until a
//! quantum ends, in Linux as here; an owner that is away for a microsecond does not.
//!
//! Invariants: the owner field changes from zero to a thread's number by that thread's exchange,
//! and to zero or another number by the owner's; the first sleeper is called after each release
//! that saw `WAITERS`. All fields are on one line, as in the kernel; the list's guard is a plain
//! spin lock.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{Integer, Machine, Padded, Word};

use crate::osq::Osq;
use crate::waiters::{Ends, Looks, Sleepers};
use crate::words::words;
use crate::{Bytes, Lock, Named};

const WAITERS: u32 = 1;
const HANDOFF: u32 = 2;
const PICKUP: u32 = 4;
const FLAGS: u32 = 7;
const OWNER_SHIFT: u32 = 3;

#[derive(Default)]
#[repr(C)]
struct State<M: Machine> {
    owner: M::AtomicU32,
    spinners: M::AtomicU32,
    list: Ends<M>,
}

impl<M: Machine> Named for State<M> {
    words!(owner, spinners, list);
}

/// A mutex like Linux's: 20 bytes.
pub struct StockMutex<M: Machine> {
    state: Padded<State<M>>,
    osq: Osq<M>,
    sleepers: Sleepers<M>,
}

impl<M: Machine> Named for StockMutex<M> {
    words!(state, osq, sleepers);
}

const fn named(me: usize) -> u32 {
    (me as u32 + 1) << OWNER_SHIFT
}

impl<M: Machine> Lock for StockMutex<M> {
    fn new(threads: usize) -> Self {
        let (osq, sleepers) = (Osq::new(threads), Sleepers::new(threads));
        Self { state: Padded::default(), osq, sleepers }
    }

    fn lock(&self, me: usize) {
        // Acquire: synchronizes with the Release in `unlock`.
        if self.state.owner.compare_exchange(0, named(me), Acquire, Relaxed).is_err()
            && !self.spin(me, false)
        {
            self.lock_slow(me);
        }
    }

    fn unlock(&self, me: usize) {
        let owner = &self.state.owner;
        // Release: synchronizes with the Acquire of the next owner.
        let Err(mut seen) = owner.compare_exchange(named(me), 0, Release, Relaxed) else { return };
        while seen & HANDOFF == 0 {
            // Release: as above.
            match owner.compare_exchange(seen, seen & FLAGS, Release, Relaxed) {
                Ok(_) if seen & WAITERS == 0 => return,
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        self.unlock_slow(seen & HANDOFF != 0);
    }

    fn bytes(&self, _: usize) -> Bytes {
        let waiter = Osq::<M>::bytes().max(Sleepers::<M>::bytes());
        Bytes { lock: size_of::<State<M>>(), waiter, holder: 0 }
    }
}

impl<M: Machine> StockMutex<M> {
    /// Takes it if it is free or reserved for us, otherwise returns the owner. With `ask`, it will
    /// then be handed over at the next release.
    fn take(&self, me: usize, ask: bool) -> Result<(), u32> {
        let mut seen = self.state.owner.load(Relaxed);
        loop {
            let owner = seen & !FLAGS;
            let next = if owner == 0 {
                named(me) | seen
            } else if seen & PICKUP != 0 && owner == named(me) {
                seen & !PICKUP
            } else if seen & (PICKUP | HANDOFF) == 0 && ask {
                seen | HANDOFF
            } else {
                return Err(owner);
            };
            // Acquire: synchronizes with the Release in `unlock` and `unlock_slow`.
            match self.state.owner.compare_exchange(seen, next, Acquire, Relaxed) {
                Ok(_) if next & !FLAGS == named(me) => return Ok(()),
                Ok(_) => return Err(owner),
                Err(now) => seen = now,
            }
        }
    }

    /// Polls the owner for a while, alone except for the first sleeper. Returns whether it is ours.
    fn spin(&self, me: usize, is_sleeper: bool) -> bool {
        let looks = Looks::<M>::new();
        let queued = !is_sleeper;
        if queued && !self.osq.lock(&self.state.spinners, me, &looks) {
            return false;
        }
        let taken = loop {
            let Err(owner) = self.take(me, false) else { break true };
            // Relaxed: `take` orders.
            let now = M::spin_until(&self.state.owner, Relaxed, |now| {
                now & !FLAGS != owner || looks.spent()
            });
            if now & !FLAGS == owner {
                break false;
            }
        };
        if queued {
            self.osq.unlock(&self.state.spinners, me);
        }
        taken
    }

    #[cold]
    fn lock_slow(&self, me: usize) {
        let State { owner, list, .. } = &*self.state;
        list.lock();
        if self.take(me, false).is_ok() {
            list.unlock();
            return;
        }
        if self.sleepers.push(list, me, 0) {
            // Relaxed: the owner's release and this are on one word, so one sees the other.
            owner.fetch_or(WAITERS, Relaxed);
        }
        self.sleepers.arm(me);
        // The guard is held at the beginning of each iteration, and after the loop.
        while self.take(me, false).is_err() {
            list.unlock();
            self.sleepers.sleep(me);
            self.sleepers.arm(me);
            let first = self.sleepers.first(list).is_some_and(|(first, _)| first == me);
            let taken = self.take(me, first).is_ok() || first && self.spin(me, true);
            list.lock();
            if taken {
                break;
            }
        }
        if self.sleepers.remove(list, me) {
            // Relaxed: private to the owner.
            owner.fetch_and(!FLAGS, Relaxed);
        }
        list.unlock();
    }

    #[cold]
    fn unlock_slow(&self, hand_over: bool) {
        let State { owner, list, .. } = &*self.state;
        list.lock();
        let first = self.sleepers.first(list);
        if hand_over {
            // While it is ours and HANDOFF is set, other threads only set WAITERS, under the guard
            // that we hold.
            let flags = owner.load(Relaxed) & WAITERS;
            let next = first.map_or(flags, |(first, _)| named(first) | PICKUP | flags);
            // Release: synchronizes with the Acquire in `take`.
            owner.store(next, Release);
        }
        list.unlock();
        if let Some((first, _)) = first {
            self.sleepers.call(first);
        }
    }
}

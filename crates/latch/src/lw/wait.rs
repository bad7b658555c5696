//! The slow paths of the [`LwLatch`](super::LwLatch): the four phases, and calling.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use latchwork_machine::{Deadline, Integer, Machine, Slots, Spin, Word};

use super::attempt::Attempt;
use super::state::*;
use super::{LwLatch, mode};
use crate::list::{self, Taken};
use crate::policy::InTurns;
use crate::policy::linger;
use crate::queue::Head;
use crate::turn::{LEVEL, Look};

/// The fraction of a machine's budget that is spent on spinning: 1.25 us. Sections are short; a
/// holder that takes longer has lost its processor. With the whole budget, or with yields, both
/// throughput and the longest waits were worse by half with four threads per core.
const SPIN_SHARE: u64 = 8;

impl<A: Attempt, M: Machine> LwLatch<A, M> {
    /// Tries to enter as a newcomer, and checks the state first.
    #[inline]
    pub(super) fn enter(&self, mode: u32) -> bool {
        if mode == mode::SHARED {
            return match A::share::<M>(&self.state, true, Self::LIMIT) {
                Ok(()) => true,
                Err(left) => {
                    self.refused(left);
                    false
                }
            };
        }
        // Relaxed: the exchange decides.
        let mut seen = self.state.load(Relaxed);
        while is_free(seen) {
            let next = bypass(seen, Self::LIMIT) | EXCLUSIVE;
            // Acquire: as in `lock_exclusive`.
            match self.state.compare_exchange(seen, next, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Tries to enter as a called waiter: only a holder stops it.
    fn enter_called(&self, mode: u32) -> bool {
        let (bar, hold) = if mode == mode::SHARED { (EXCLUSIVE, 1) } else { (HELD, EXCLUSIVE) };
        // Acquire: as in `lock_exclusive`, and for a share as in `Attempt::share`.
        let seen = update(&self.state, Acquire, |s| match s & bar {
            0 => admitted(s) + hold,
            _ => s,
        });
        if seen & bar != 0 {
            return false;
        }
        self.admit(mode, seen);
        true
    }

    /// Does what a waiter of the queue must do for others after it entered in the state `seen`.
    fn admit(&self, mode: u32, seen: u32) {
        // Sharers that queued because of the bar, or because of a holder whose release called no
        // waiter since this one was called, may follow immediately.
        if mode == mode::SHARED && seen & WAITERS != 0 {
            self.wake(false);
        }
    }

    /// Does what a newcomer must do for others after it was refused a share.
    #[inline]
    pub(super) fn refused(&self, left: u32) {
        if must_wake(left) {
            self.wake(false);
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn lock_slow(&self, mode: u32, deadline: Option<Deadline>) -> bool {
        if !A::SORTED || M::slots(&self.state).is_shared() {
            return self.spin(|| self.enter(mode)) || self.lock_listed(mode, deadline);
        }
        // Relaxed: a hint, and `enter` acquires.
        let seen = self.state.load(Relaxed);
        if mode == mode::EXCLUSIVE && is_free(seen) && has_turn::<M>(seen) && self.enter(mode) {
            return true;
        }
        if linger::<InTurns, M>(|| self.queue.is_empty(), || self.enter(mode)) {
            return true;
        }
        let Ok(mut head) = self.queue.join::<InTurns>(mode, deadline) else { return false };
        let look = self.arrive(&head);
        let mut spin = Spin::<M>::new(M::SPIN_NS);
        let entered = loop {
            // Relaxed: a hint when to stop.
            head.shuffle::<InTurns>(|| self.state.load(Relaxed) & HELD == 0);
            if self.enter(mode) {
                break true;
            }
            if !spin.again() {
                break self.lock_listed(mode, deadline);
            }
        };
        if entered && let Some(short) = look.is_short::<M>() {
            self.give_turn(if short && head.stood_behind() { turn::<M>() } else { 0 });
        }
        // A sleeping successor was not woken ahead of its turn, so it is woken now.
        head.leave(|_| {}, |_| true);
        entered
    }

    /// As a new head of the queue: takes the turn, if turns are given.
    fn arrive(&self, head: &Head<'_, M, M::AtomicU16>) -> Look {
        if !M::spread(LEVEL) {
            return Look::new::<M>(false);
        }
        // Relaxed: a hint.
        let seen = self.state.load(Relaxed);
        if seen & TURN != 0 {
            self.give_turn(if head.stood_behind() { turn::<M>() } else { 0 });
        }
        head.call_ahead::<InTurns>();
        Look::new::<M>(seen & EXCLUSIVE != 0)
    }

    /// As the head of the queue: stores the current turn.
    fn give_turn(&self, turn: u32) {
        // Relaxed: the head alone changes it, and it orders nothing.
        let was = self.state.load(Relaxed) & TURN;
        if was != turn {
            self.state.fetch_add(turn.wrapping_sub(was), Relaxed);
        }
    }

    /// Waits in the list: phases 2 to 4.
    fn lock_listed(&self, mode: u32, deadline: Option<Deadline>) -> bool {
        let slots = M::slots(&self.state);
        let me = slots.mine();
        let slot = slots.at(me);
        let mut called = 0;
        let mut losses = 0;
        loop {
            self.join(slots, me, mode | called, losses >= A::LOSSES);
            let entered = match called {
                0 if A::READERS_QUEUE && mode == mode::SHARED => {
                    // A waiter before this one is called first; if there is none, this calls this
                    // thread.
                    self.wake(false);
                    false
                }
                0 => self.enter(mode),
                _ => self.enter_called(mode),
            };
            if entered {
                if !self.leave(slots, me) {
                    // Called, but already entered.
                    let seen = update(&self.state, Relaxed, admitted);
                    self.admit(mode, seen);
                }
                list::free(slot);
                return true;
            }
            let in_time = list::wait(slot, deadline, 0);
            if !in_time && self.leave(slots, me) {
                list::free(slot);
                // If this was the first waiter, waiters behind it may be compatible with the
                // holders.
                self.wake(false);
                return false;
            }
            list::free(slot);
            called = mode::CALLED;
            if self.spin(|| self.enter_called(mode)) {
                return true;
            }
            if !in_time {
                self.decline(slots);
                return false;
            }
            losses += 1;
        }
    }

    /// Tries once, and then repeatedly for the budget.
    #[inline]
    fn spin(&self, mut enter: impl FnMut() -> bool) -> bool {
        let mut spin = Spin::<M>::new(M::SPIN_NS / SPIN_SHARE);
        loop {
            if enter() {
                return true;
            }
            if !spin.again() {
                return false;
            }
        }
    }

    /// Joins the list: phase 2.
    pub(super) fn join(&self, slots: Slots<'_, M>, me: u32, mode: u32, starved: bool) {
        // Relaxed: read under the list's lock.
        slots.at(me).mode.store(mode, Relaxed);
        let ahead = mode & (mode::CALLED | mode::RELEASE) != 0;
        let mut list = self.list.lock(slots);
        let orphaned = list.is_empty() && slots.has_ghosts();
        list.push(me, ahead);
        // Relaxed: see the module on memory order.
        update(&self.state, Relaxed, |s| {
            let s = if orphaned { admitted(s) } else { s };
            let s = if starved { s | STARVED } else { s };
            // A called waiter has tried. A waiter for a release must not miss one because of an
            // earlier call.
            if ahead { s & !CALLING | WAITERS } else { s | WAITERS }
        });
    }

    /// Leaves the list. Returns false if this thread was called before.
    pub(super) fn leave(&self, slots: Slots<'_, M>, me: u32) -> bool {
        if !list::retract(slots.at(me)) {
            return false;
        }
        let mut list = self.list.lock(slots);
        list.unlink(me);
        let empty = list.is_empty();
        // Relaxed: see the module on memory order.
        update(&self.state, Relaxed, |s| listed(s, empty));
        true
    }

    /// Passes on the call of a thread that no longer wants the latch.
    fn decline(&self, slots: Slots<'_, M>) {
        let list = self.list.lock(slots);
        let empty = list.is_empty();
        // Relaxed: see the module on memory order.
        update(&self.state, Relaxed, |s| listed(s & !CALLING, empty));
        drop(list);
        self.wake(false);
    }

    /// Calls the waiters at the head of the list that could enter and, if the latch was `released`,
    /// the waiters for a release.
    ///
    /// Loads the state under the list's lock. If the latch is held again, or a waiter is called
    /// already, then that thread's next step comes after `WAITERS` was set, and will call.
    #[cold]
    #[inline(never)]
    pub(super) fn wake(&self, released: bool) {
        let slots = M::slots(&self.state);
        let mut list = self.list.lock(slots);
        // Acquire: synchronizes with the Release of the last holder, because a reader that backed
        // out may call in its stead. Waiters for the release see everything that came before it.
        let seen = self.state.load(Acquire);
        let released = released || seen & HELD == 0;
        let mut taken = Taken::default();
        let mut called = false;
        let mut full = seen & CALLING != 0;
        let mut next = list.first();
        while let Some(number) = next {
            next = list.after(number);
            // Relaxed: written under the lock, or before it was taken.
            let mode = slots.at(number).mode.load(Relaxed);
            if mode == mode::RELEASE {
                if released {
                    list.take(number, &mut taken);
                }
                continue;
            }
            let shared = mode & mode::SHARED != 0;
            let fits = if shared { seen & EXCLUSIVE == 0 } else { seen & HELD == 0 && !called };
            if fits && (!full || shared && A::READERS_PASS) {
                if list.take(number, &mut taken) {
                    called = true;
                    full |= !shared;
                }
                continue;
            }
            full = true;
            // Waiters for a release are before waiters that were never called.
            if mode & mode::CALLED == 0 && !A::READERS_PASS {
                break;
            }
        }
        let empty = list.is_empty();
        // Relaxed: see the module on memory order.
        update(&self.state, Relaxed, |s| listed(if called { s | CALLING } else { s }, empty));
        drop(list);
        taken.grant(&slots);
    }
}

//! The word of an [`LwLatch`](super::LwLatch): its fields, and predicates on them.

use core::fmt;
use core::sync::atomic::Ordering::{self, Relaxed};

use latchwork_machine::{Machine, Word};

use crate::turn::group;

/// The number of share holders, including readers about to back out.
pub(super) const SHARERS: u32 = TOO_MANY | (TOO_MANY - 1);
/// The highest bit of that number: no thread may add to it, so that it never overflows.
pub(super) const TOO_MANY: u32 = 1 << 18;
/// One exclusive holder.
pub(super) const EXCLUSIVE: u32 = 1 << 19;
/// One unit in the number of newcomers that entered while a thread waited and was not called.
pub(super) const BYPASS: u32 = 1 << 20;
/// The field of that number.
pub(super) const BYPASSED: u32 = (1 << TURN_SHIFT) - BYPASS;
const TURN_SHIFT: u32 = 24;
/// The group whose newcomers may enter while others queue; zero for all. Changed by the queue's
/// head.
pub(super) const TURN: u32 = STARVED - (1 << TURN_SHIFT);
/// Newcomers are stopped until a waiter of the queue has entered. Implies a bit of `QUEUED`.
pub(super) const STARVED: u32 = 1 << 29;
/// A waiter was called and has not yet tried: no other waiter may be called.
pub(super) const CALLING: u32 = 1 << 30;
/// The list is not empty. Changed only under the list's lock.
pub(super) const WAITERS: u32 = 1 << 31;

/// Held, or counting a reader about to back out.
pub(super) const HELD: u32 = EXCLUSIVE | SHARERS;
/// A thread waits, in the list or called from it.
pub(super) const QUEUED: u32 = WAITERS | CALLING;

const _: () = assert!(SHARERS.count_ones() == SHARERS.trailing_ones());
const _: () = assert!(SHARERS + 1 == EXCLUSIVE);
const _: () =
    assert!(SHARERS ^ EXCLUSIVE ^ BYPASSED ^ TURN ^ STARVED ^ CALLING ^ WAITERS == u32::MAX);
// Each waiting thread has a slot and adds at most one share before it backs out.
const _: () = assert!(latchwork_machine::MAX_SLOTS < TOO_MANY);

/// The largest number of bypasses that can be counted.
pub(super) const BYPASSES_MAX: u32 = BYPASSED / BYPASS;

/// Returns the turn of this thread's group; zero on a machine without groups.
pub(super) fn turn<M: Machine>() -> u32 {
    group::<M>(TURN >> TURN_SHIFT) << TURN_SHIFT
}

/// Returns whether newcomers of this thread's group may enter, as far as turns are concerned.
pub(super) fn has_turn<M: Machine>(state: u32) -> bool {
    state & TURN == 0 || state & TURN == turn::<M>()
}

/// Returns whether a newcomer may take a share.
#[inline]
pub(super) const fn is_open(state: u32) -> bool {
    state & (EXCLUSIVE | STARVED) == 0
}

/// Returns whether a newcomer may take the latch exclusively.
#[inline]
pub(super) const fn is_free(state: u32) -> bool {
    state & (HELD | STARVED) == 0
}

/// Returns whether the thread that left this state must call waiters.
#[inline]
pub(super) const fn must_wake(state: u32) -> bool {
    state & (HELD | QUEUED) == WAITERS
}

/// Returns the state after one more newcomer entered, with `limit` as the maximum.
#[inline]
pub(super) const fn bypass(state: u32, limit: u32) -> u32 {
    if state & (QUEUED | STARVED) != WAITERS {
        state
    } else if (state & BYPASSED) / BYPASS + 1 >= limit {
        state | STARVED
    } else {
        state + BYPASS
    }
}

/// Returns the state after a waiter of the queue entered: the count restarts.
#[inline]
pub(super) const fn admitted(state: u32) -> u32 {
    state & !(CALLING | STARVED | BYPASSED)
}

/// Returns the state after the list was found `empty`, or not.
#[inline]
pub(super) const fn listed(state: u32, empty: bool) -> u32 {
    match (empty, state & CALLING != 0) {
        (false, _) => state,
        (true, true) => state & !WAITERS,
        (true, false) => state & !(WAITERS | STARVED | BYPASSED),
    }
}

/// Replaces the state by a function of it and returns the old state.
///
/// `order` is for the replacement; an unchanged state is not written.
#[inline]
pub(super) fn update<W: Word<Value = u32>>(
    word: &W,
    order: Ordering,
    to: impl Fn(u32) -> u32,
) -> u32 {
    // Relaxed: the exchange decides.
    let mut seen = word.load(Relaxed);
    loop {
        let next = to(seen);
        if next == seen {
            return seen;
        }
        match word.compare_exchange(seen, next, order, Relaxed) {
            Ok(_) => return seen,
            Err(now) => seen = now,
        }
    }
}

/// Formats the fields of `state`.
pub(super) fn decode(state: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.debug_struct("LwLatch")
        .field("exclusive", &(state & EXCLUSIVE != 0))
        .field("sharers", &(state & SHARERS))
        .field("waiters", &(state & WAITERS != 0))
        .field("calling", &(state & CALLING != 0))
        .field("turn", &((state & TURN) >> TURN_SHIFT))
        .field("bypassed", &((state & BYPASSED) / BYPASS))
        .field("starved", &(state & STARVED != 0))
        .finish()
}

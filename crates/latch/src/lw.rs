//! The shared-exclusive latch of PostgreSQL, in 8 bytes.
//!
//! Andres Freund's LWLock: shares are counted in one atomic word and taken without waiting for
//! other readers (mail of 2013-09-26; committed in 2014 as ab5194e6f6). Waiters queue in a list
//! next to it. Four things differ: shares can be taken by addition, as in the mail, instead of by
//! exchange; newcomers pass waiters a bounded number of times; waits can time out; and the queue of
//! `queue.rs`, which a thread enters by one exchange and which sorts itself, is in front of the
//! list.
//!
//! # State
//!
//! ```text
//!  31      30      29      28  24 23      20  19        18       17                    0
//! ┌───────┬───────┬───────┬──────┬──────────┬─────────┬────────┬───────────────────────┐
//! │WAITERS│CALLING│STARVED│ TURN │ BYPASSED │EXCLUSIVE│TOO_MANY│ SHARERS, with TOO_MANY│
//! └───────┴───────┴───────┴──────┴──────────┴─────────┴────────┴───────────────────────┘
//!
//!  31                  16 15                  0
//! ┌──────────────────────┬──────────────────────┐
//! │ last of the queue    │ first of the list    │   two words of 16 bits
//! └──────────────────────┴──────────────────────┘
//! ```
//!
//! | from | to | by |
//! |---|---|---|
//! | no `EXCLUSIVE`, no `STARVED` | sharers + 1 | a newcomer for a share |
//! | anything | sharers + 1, then - 1 | a newcomer for a share that backs out ([`FetchAdd`]) |
//! | no `EXCLUSIVE`, no sharers, no `STARVED` | `EXCLUSIVE` | a newcomer |
//! | the same, with `WAITERS` without `CALLING` | bypassed + 1, or `STARVED` | that newcomer |
//! | no `EXCLUSIVE` | sharers + 1, no `CALLING STARVED BYPASSED` | a called waiter |
//! | not held | `EXCLUSIVE`, no `CALLING STARVED BYPASSED` | a called waiter |
//! | anything | `WAITERS`; no `CALLING`, perhaps `STARVED` if called | a thread that queues |
//! | anything | `CALLING`; no `WAITERS` if the list is empty now | a caller |
//! | held | sharers - 1, or no `EXCLUSIVE` | a holder, which then calls if it must |
//! | `EXCLUSIVE` | sharers = 1 | `downgrade` |
//! | anything | `TURN` | the head of the queue |
//!
//! # The queue
//!
//! A thread that cannot enter immediately joins the queue, and only the head of the queue executes
//! the phases below. So the lock of the list, for which 192 threads spent 80 of 100 cycles, usually
//! has two contenders: the head, and a holder that calls it. The head checks the state for a while
//! before it joins the list, wakes waiters behind it ahead of their turn, and leaves the queue when
//! it has entered. On a machine with several caches, groups of neighbours take turns (`turn.rs`):
//! newcomers of the current group may enter, and all others queue.
//!
//! Not all waiters are sorted ([`Attempt::SORTED`]): where readers pass writers or never pass any
//! waiter, and between processes, all waiters are in the list. So are threads that wait for a
//! release.
//!
//! # Four phases
//!
//! 1. Try to enter; on failure
//! 2. join the list and set `WAITERS`;
//! 3. try again: the holder may have left before it could see this waiter;
//! 4. sleep until called, and begin again, at the head of the list.
//!
//! A called waiter tries to enter; it does not hold the latch yet: a handover would cost a thread
//! switch for each section. A call goes to one exclusive waiter, or to all sharers up to the next
//! exclusive one. Until one of them has tried (`CALLING`), no other waiter is called.
//!
//! # Invariants
//!
//! 1. `EXCLUSIVE` excludes sharers, except for readers about to back out.
//! 2. A thread that makes the latch free (not `EXCLUSIVE`, no sharers) while `WAITERS` is set and
//!    `CALLING` is not, calls. That includes readers that back out: they may have hidden the
//!    release, and may have caused an exclusive attempt to fail that the release could not know of.
//! 3. A called waiter tries; if it fails it queues again or calls in turn. So `CALLING` guarantees
//!    that a thread will check the latch.
//! 4. `STARVED` implies `WAITERS` or `CALLING`: the exchange that clears the last of them clears
//!    it, and it is set by an exchange that sees one of them.
//!
//! No waiter sleeps forever at a free latch: its phase 3 came after its phase 2 on one word, so its
//! attempt failed because of a holder, whose release comes after `WAITERS` was set and calls by 2;
//! or because of `STARVED`, which by 4 means that another thread waits: by induction on the queue
//! that thread was called, and 3 applies.
//!
//! # Fairness
//!
//! The queue is sorted by group, within the bound of `Policy::BATCH`. Waiters of the list are
//! called in the order of arrival, and a waiter that loses the race for the latch returns to the
//! head. Newcomers, shared and exclusive alike, are stopped (`STARVED`)
//!
//! - when [`Attempt::BYPASSES`] of them entered while a thread waited and no waiter was called.
//!   These are overlapping readers, so that no release makes the latch free and no waiter is ever
//!   called;
//! - when a waiter has lost [`Attempt::LOSSES`] races: it was called, and newcomers were faster.
//!   Newcomers that entered while it woke up are not counted, because the latch would have been
//!   idle;
//!
//! until a waiter of the queue has entered. Then the count restarts, but losses are kept. So at
//! most n x `BYPASSES` newcomers pass the last of n waiters while no waiter is called, and one more
//! for each thread that was past the check; and it loses at most `LOSSES` races, and then one more
//! for each waiter that was called together with it and came first. PostgreSQL has no bound, and
//! its writers starve under overlapping readers.
//!
//! A waiting writer may stop a reader, so **a thread must not take a second share while it holds
//! one**, except of a latch with [`ReadersFirst`]. There a share waits only for an exclusive
//! holder, and each release of that holder calls all sharers, regardless of their position in the
//! list and of other called waiters: a thread that waits for a share was called, or will be called
//! by the holder that it saw after it had joined the list. With [`WritersFirst`], a newcomer for a
//! share that finds any waiter joins the list, and instead of its third phase it calls the first
//! waiter, in case the latch was released in the meantime; so no reader passes a waiting writer.
//!
//! # Freeing a latch
//!
//! A release touches the latch after its one exchange only if the list had waiters. So the next
//! holder may free a latch if it knows that no other thread waits or tries; otherwise it may be
//! freed once every call of a method has returned. A waiter that gives up touches it last when it
//! leaves the list, before its method returns.
//!
//! # Memory order
//!
//! Each release is `Release`, each acquisition `Acquire`; every other change of the state is also
//! an atomic read-modify-write, and extends the release sequence. Flags need no order: one word
//! holds both whether the latch is free and whether threads wait, and its changes have one order.
//!
//! # After a fork
//!
//! In the child, a list of ghosts is empty (see `list.rs`). A ghost may have been called, and will
//! never try: so in a child of a fork, a thread that joins an empty list clears `CALLING`, and
//! `STARVED` with it. At worst a waiter is called too early, and the count of bypasses restarts.

mod api;
mod attempt;
mod state;
mod value;
mod wait;

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{ConstMachine, Deadline, Integer, Machine, Native, Word};

pub use self::attempt::{Attempt, CompareExchange, FetchAdd, ReadersFirst, WritersFirst};
use self::state::*;
use crate::list::List;
use crate::queue::Queue;

const _: () = assert!(size_of::<LwLatch>() == 8);

/// The want of a waiter, in `Slot::mode`.
mod mode {
    /// Exclusive possession.
    pub(super) const EXCLUSIVE: u32 = 0;
    /// A share.
    pub(super) const SHARED: u32 = 1;
    /// A notification when the latch is released.
    pub(super) const RELEASE: u32 = 2;
    /// Added to the first two: the waiter was called before, and lost.
    pub(super) const CALLED: u32 = 4;
}

/// A shared-exclusive latch: 8 bytes, free when zero.
///
/// Newcomers pass waiters a bounded number of times: see [`Attempt`]. There is no poisoning; a
/// thread that ends while it holds the latch leaves it held.
#[repr(C)]
pub struct LwLatch<A: Attempt = FetchAdd, M: Machine = Native> {
    state: M::AtomicU32,
    list: List<M, M::AtomicU16>,
    queue: Queue<M, M::AtomicU16>,
    attempt: PhantomData<A>,
}

impl LwLatch {
    /// Creates a free latch.
    pub const fn new() -> Self {
        Self::FREE
    }
}

impl<A: Attempt, M: ConstMachine> LwLatch<A, M> {
    /// A free latch, on any machine whose words can be created at compile time.
    #[allow(clippy::declare_interior_mutable_const, reason = "each use is a latch of its own")]
    pub const FREE: Self = Self {
        state: M::U32,
        list: List::new(M::U16),
        queue: Queue::new(M::U16),
        attempt: PhantomData,
    };
}

impl<A: Attempt, M: Machine> Default for LwLatch<A, M> {
    fn default() -> Self {
        let (list, queue) = Default::default();
        Self { state: Default::default(), list, queue, attempt: PhantomData }
    }
}

impl<A: Attempt, M: Machine> fmt::Debug for LwLatch<A, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed: a snapshot.
        decode(self.state.load(Relaxed), f)
    }
}

/// The fast paths.
impl<A: Attempt, M: Machine> LwLatch<A, M> {
    const LIMIT: u32 = {
        assert!(A::BYPASSES >= 1 && A::BYPASSES <= BYPASSES_MAX, "BYPASSES is 1 to 15");
        assert!(A::LOSSES >= 1, "LOSSES is at least 1");
        A::BYPASSES
    };

    /// Takes a share. Blocks while an exclusive holder has the latch, or while starved waiters
    /// queue.
    ///
    /// # Panics
    ///
    /// Panics if 2^18 shares are held, or 65,534 threads wait for latches.
    #[inline]
    pub fn lock_shared(&self) {
        if let Err(left) = A::share::<M>(&self.state, false, Self::LIMIT) {
            self.refused(left);
            self.lock_slow(mode::SHARED, None);
        }
    }

    /// Takes a share if that is possible without waiting.
    ///
    /// # Panics
    ///
    /// Panics if 2^18 shares are held.
    #[inline]
    pub fn try_lock_shared(&self) -> bool {
        self.enter(mode::SHARED)
    }

    /// Takes a share, or returns false when the deadline passes.
    ///
    /// # Panics
    ///
    /// Panics if 2^18 shares are held, or 65,534 threads wait for latches.
    #[inline]
    pub fn lock_shared_until(&self, deadline: Deadline) -> bool {
        self.enter(mode::SHARED) || self.lock_slow(mode::SHARED, Some(deadline))
    }

    /// Takes the latch exclusively. Blocks while it is held.
    ///
    /// # Panics
    ///
    /// Panics if 65,534 threads wait for latches.
    #[inline]
    pub fn lock_exclusive(&self) {
        // Acquire: synchronizes with the Release of every holder before us, in either `unlock`.
        if self.state.compare_exchange(0, EXCLUSIVE, Acquire, Relaxed).is_err() {
            self.lock_slow(mode::EXCLUSIVE, None);
        }
    }

    /// Takes the latch exclusively if that is possible without waiting.
    ///
    /// With [`FetchAdd`] it may also fail because of a reader that is about to back out, after it
    /// arrived while the latch was held or barred. Each such reader causes this at most once.
    #[inline]
    pub fn try_lock_exclusive(&self) -> bool {
        self.enter(mode::EXCLUSIVE)
    }

    /// Takes the latch exclusively, or returns false when the deadline passes.
    ///
    /// # Panics
    ///
    /// Panics if 65,534 threads wait for latches.
    #[inline]
    pub fn lock_exclusive_until(&self, deadline: Deadline) -> bool {
        self.enter(mode::EXCLUSIVE) || self.lock_slow(mode::EXCLUSIVE, Some(deadline))
    }

    /// Releases a share.
    ///
    /// # Safety
    ///
    /// The caller must hold a share, or act for its holder.
    #[inline]
    pub unsafe fn unlock_shared(&self) {
        // Release: synchronizes with the Acquire of the next exclusive holder.
        let left = self.state.fetch_sub(1, Release).wrapping_sub(1);
        if must_wake(left) {
            self.wake(true);
        }
    }

    /// Releases the exclusive latch.
    ///
    /// # Safety
    ///
    /// The caller must hold the latch exclusively, or act for its holder.
    #[inline]
    pub unsafe fn unlock_exclusive(&self) {
        // Release: synchronizes with the Acquire of every later holder.
        let left = self.state.fetch_sub(EXCLUSIVE, Release).wrapping_sub(EXCLUSIVE);
        if must_wake(left) || A::READERS_PASS && left & WAITERS != 0 {
            self.wake(true);
        }
    }

    /// Downgrades exclusive possession to a share, which waiting sharers may join.
    ///
    /// # Safety
    ///
    /// The caller must hold the latch exclusively, or act for its holder.
    pub unsafe fn downgrade(&self) {
        // Release: synchronizes with the Acquire of the sharers that follow.
        let left = self.state.fetch_sub(EXCLUSIVE - 1, Release);
        if left & QUEUED == WAITERS || A::READERS_PASS && left & WAITERS != 0 {
            self.wake(true);
        }
    }

    /// Returns whether the latch is held at this moment, or a reader tries to enter.
    pub fn is_locked(&self) -> bool {
        // Relaxed: a snapshot.
        self.state.load(Relaxed) & HELD != 0
    }

    /// Returns whether the latch is held exclusively at this moment.
    pub fn is_locked_exclusive(&self) -> bool {
        // Relaxed: a snapshot.
        self.state.load(Relaxed) & EXCLUSIVE != 0
    }
}

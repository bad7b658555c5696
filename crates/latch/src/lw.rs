//! The shared-exclusive latch of PostgreSQL, in 8 bytes.
//!
//! Andres Freund's LWLock: shares are counted in one atomic word and taken without waiting for
//! other readers (mail of 2013-09-26; committed in 2014 as ab5194e6f6). Waiters queue in a list
//! next to it. Four things differ: shares may be taken by addition, as the mail had it, and not by
//! exchange; newcomers pass waiters a bounded number of times; waits may time out; and in front of
//! the list stands the queue of `queue.rs`, which is entered by one exchange and sorts itself.
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
//! | as the two above, `WAITERS` without `CALLING` | bypassed + 1, or `STARVED` | that newcomer |
//! | no `EXCLUSIVE` | sharers + 1, no `CALLING STARVED BYPASSED` | a called waiter |
//! | not held | `EXCLUSIVE`, no `CALLING STARVED BYPASSED` | a called waiter |
//! | anything | `WAITERS`; no `CALLING`, perhaps `STARVED` if it was called | who queues |
//! | anything | `CALLING`; no `WAITERS` if the list is empty now | who calls |
//! | held | sharers - 1, or no `EXCLUSIVE` | a holder; then it calls, if it must |
//! | `EXCLUSIVE` | sharers = 1 | `downgrade` |
//!
//! | anything | `TURN` | the head of the queue |
//!
//! # The queue
//!
//! Who cannot get in at once joins the queue, and its head alone goes through the phases below. So
//! the lock of the list, for which 192 threads spent 80 of 100 cycles, has two contenders as a
//! rule: the head and a holder that calls it. The head looks at the state for a while before it
//! joins the list, wakes those behind it ahead of their time, and leaves the queue when it is in.
//! On a machine with several caches groups of neighbours take turns (`turn.rs`): the newcomers of
//! one group may enter meanwhile, and all others queue.
//!
//! Not everybody is sorted ([`Attempt::SORTED`]): where readers pass writers, or never pass
//! anybody, and between processes, all waiters are in the list. So are those that wait for a
//! release.
//!
//! # Four phases
//!
//! 1. Try; on failure
//! 2. join the list and set `WAITERS`;
//! 3. try again: the holder may have left before it could know of us;
//! 4. sleep until called, and begin again, at the head of the list.
//!
//! To be called is to be told to try, not to hold the latch: handing it over would cost a switch
//! of threads for each section. One exclusive waiter is called, or all sharers up to the next
//! exclusive one; until one of them has tried (`CALLING`) nobody else is.
//!
//! # Invariants
//!
//! 1. `EXCLUSIVE` excludes sharers, but for readers about to back out.
//! 2. Whoever makes the latch free (not `EXCLUSIVE`, no sharers) while `WAITERS` stands and
//!    `CALLING` does not, calls. That includes readers that back out: they may have covered up the
//!    release, and have made an exclusive attempt fail that the release could not know of.
//! 3. Who was called tries; whoever fails then queues again or calls in its turn. So `CALLING` is
//!    a promise that somebody will look.
//! 4. `STARVED` implies `WAITERS` or `CALLING`: the exchange that clears the last of them clears
//!    it, and it is set by an exchange that sees one of them.
//!
//! No waiter sleeps for ever at a free latch: its phase 3 came after its phase 2 on one word, so
//! what made that attempt fail is either a holder, whose release comes after `WAITERS` was set and
//! calls by 2; or `STARVED`, which by 4 means that somebody else waits: by induction on the queue
//! it was called, and 3 applies.
//!
//! # Fairness
//!
//! The queue is sorted by group, within the bound of `Policy::BATCH`. From the list waiters are
//! called in the order of arrival, and one that loses the race for the latch goes back to the head.
//! Newcomers, shared and exclusive alike, are stopped (`STARVED`)
//!
//! - after [`Attempt::BYPASSES`] of them got in while somebody waited and nobody was called: these
//!   are readers that overlap, so that no release makes the latch free, and nobody is ever called;
//! - when a waiter has lost [`Attempt::LOSSES`] races: it was called, and found that newcomers had
//!   been faster. How many got in while it woke up is not counted: the latch would have lain idle;
//!
//! until somebody from the queue got in. Then the count begins anew, but losses are remembered. So
//! of n waiters the last is passed by at most n x `BYPASSES` newcomers while nobody is called, and
//! one for each thread that was past the check; and it loses at most `LOSSES` races, and then one
//! more for each waiter that was called together with it and came first. PostgreSQL has no bound,
//! and its writers starve under overlapping readers.
//!
//! A reader may be stopped by a writer that waits, so **a thread must not take a second share while
//! it holds one**, but of a latch of [`ReadersFirst`]. There a share waits for an exclusive holder
//! alone, and each release of that holder calls all sharers, wherever they stand in the list and
//! whether somebody else was called already: whoever waits for a share was called, or is going to
//! be by the holder that it saw after it had joined the list. With [`WritersFirst`] a newcomer for
//! a share that finds anybody waiting joins the list, and instead of its third phase it calls
//! whoever is first in line, in case that the latch was released meanwhile; so no reader passes a
//! waiting writer.
//!
//! # Freeing a latch
//!
//! A release touches the latch after its one exchange only if somebody was in the list. So a
//! latch may be freed by the next holder if it can know that nobody else waits or tries, and
//! otherwise once every call of a method has returned. The waiter that gives up touches it last
//! when it leaves the list, before its method returns.
//!
//! # Memory order
//!
//! Each release is `Release`, each acquisition `Acquire`; all else that changes the state is an
//! atomic read-modify-write too, and prolongs the release sequence. Flags need no order: whether
//! the latch is free and whether somebody waits is in one word, and changes of it have one order.
//!
//! # After a fork
//!
//! In the child, a list of ghosts is empty (see `list.rs`). A ghost may have been called, and will
//! never try: so in a child of a fork whoever joins an empty list clears `CALLING`, and `STARVED`
//! with it. At worst somebody is called too early, and the count of bypasses begins anew.

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

/// What a waiter wants, in `Slot::mode`.
mod mode {
    /// The latch for itself.
    pub(super) const EXCLUSIVE: u32 = 0;
    /// A share.
    pub(super) const SHARED: u32 = 1;
    /// To be told when the latch is released.
    pub(super) const RELEASE: u32 = 2;
    /// Added to the first two: it was called before, and lost.
    pub(super) const CALLED: u32 = 4;
}

/// Many may share it, or one may hold it: 8 bytes, free when zero.
///
/// Newcomers pass waiters a bounded number of times: see [`Attempt`]. No poisoning; a thread that
/// ends while it holds the latch leaves it held.
#[repr(C)]
pub struct LwLatch<A: Attempt = FetchAdd, M: Machine = Native> {
    state: M::AtomicU32,
    list: List<M, M::AtomicU16>,
    queue: Queue<M, M::AtomicU16>,
    attempt: PhantomData<A>,
}

impl LwLatch {
    /// A free latch.
    pub const fn new() -> Self {
        Self::FREE
    }
}

impl<A: Attempt, M: ConstMachine> LwLatch<A, M> {
    /// A free latch, on any machine whose words can be made at compile time.
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

    /// Takes a share. Waits for an exclusive holder, and for starved waiters.
    ///
    /// # Panics
    ///
    /// If 2^18 shares are held, or 65,534 threads wait for latches.
    #[inline]
    pub fn lock_shared(&self) {
        if let Err(left) = A::share::<M>(&self.state, false, Self::LIMIT) {
            self.refused(left);
            self.lock_slow(mode::SHARED, None);
        }
    }

    /// Takes a share if that needs no waiting.
    ///
    /// # Panics
    ///
    /// If 2^18 shares are held.
    #[inline]
    pub fn try_lock_shared(&self) -> bool {
        self.enter(mode::SHARED)
    }

    /// Takes a share, or gives up at `deadline` and returns false.
    ///
    /// # Panics
    ///
    /// As for [`lock_shared`](Self::lock_shared).
    #[inline]
    pub fn lock_shared_until(&self, deadline: Deadline) -> bool {
        self.enter(mode::SHARED) || self.lock_slow(mode::SHARED, Some(deadline))
    }

    /// Takes the latch for oneself.
    ///
    /// # Panics
    ///
    /// If 65,534 threads wait for latches.
    #[inline]
    pub fn lock_exclusive(&self) {
        // Acquire: synchronizes with the Release of every holder before us, in either `unlock`.
        if self.state.compare_exchange(0, EXCLUSIVE, Acquire, Relaxed).is_err() {
            self.lock_slow(mode::EXCLUSIVE, None);
        }
    }

    /// Takes the latch for oneself if that needs no waiting.
    ///
    /// With [`FetchAdd`] it may also fail because of a reader that is about to back out: one that
    /// came while the latch was held or barred. Each such reader does so once.
    #[inline]
    pub fn try_lock_exclusive(&self) -> bool {
        self.enter(mode::EXCLUSIVE)
    }

    /// Takes the latch for oneself, or gives up at `deadline` and returns false.
    ///
    /// # Panics
    ///
    /// As for [`lock_exclusive`](Self::lock_exclusive).
    #[inline]
    pub fn lock_exclusive_until(&self, deadline: Deadline) -> bool {
        self.enter(mode::EXCLUSIVE) || self.lock_slow(mode::EXCLUSIVE, Some(deadline))
    }

    /// Gives a share back.
    ///
    /// # Safety
    ///
    /// A share is held, and given back by its holder's right.
    #[inline]
    pub unsafe fn unlock_shared(&self) {
        // Release: synchronizes with the Acquire of the next exclusive holder.
        let left = self.state.fetch_sub(1, Release).wrapping_sub(1);
        if must_wake(left) {
            self.wake(true);
        }
    }

    /// Gives the latch back.
    ///
    /// # Safety
    ///
    /// The latch is held exclusively, and given back by its holder's right.
    #[inline]
    pub unsafe fn unlock_exclusive(&self) {
        // Release: synchronizes with the Acquire of every later holder.
        let left = self.state.fetch_sub(EXCLUSIVE, Release).wrapping_sub(EXCLUSIVE);
        if must_wake(left) || A::READERS_PASS && left & WAITERS != 0 {
            self.wake(true);
        }
    }

    /// Turns exclusive possession into a share, which waiting sharers may join.
    ///
    /// # Safety
    ///
    /// The latch is held exclusively, and given back by its holder's right.
    pub unsafe fn downgrade(&self) {
        // Release: synchronizes with the Acquire of the sharers that follow.
        let left = self.state.fetch_sub(EXCLUSIVE - 1, Release);
        if left & QUEUED == WAITERS || A::READERS_PASS && left & WAITERS != 0 {
            self.wake(true);
        }
    }

    /// Whether the latch is held at this moment, or a reader is trying to.
    pub fn is_locked(&self) -> bool {
        // Relaxed: a snapshot.
        self.state.load(Relaxed) & HELD != 0
    }

    /// Whether the latch is held exclusively at this moment.
    pub fn is_locked_exclusive(&self) -> bool {
        // Relaxed: a snapshot.
        self.state.load(Relaxed) & EXCLUSIVE != 0
    }
}

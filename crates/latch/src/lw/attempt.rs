//! The ways of taking a share.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use latchwork_machine::{Integer, Machine, Word};

use super::state::{EXCLUSIVE, QUEUED, TOO_MANY, TURN, bypass, has_turn, is_open, update};

/// How a newcomer takes a share, and how often newcomers may pass waiters.
pub trait Attempt: Send + Sync + 'static {
    /// How many newcomers may enter while a thread waits and no waiter is called; 1 to 15.
    ///
    /// These are overlapping readers, so that the latch is never free and the waiter never called.
    /// With 32, readers were no faster, and the longest wait of a writer was half as long again.
    const BYPASSES: u32 = 4;

    /// How many races for the latch a waiter may lose after it was called; at least 1. Each costs
    /// two thread switches; more made writers wait longer and readers no faster.
    const LOSSES: u32 = 1;

    /// Whether a share waits only for an exclusive holder, so that a thread may take a second share
    /// while it holds one, or wait for another thread that takes one. Writers then starve under
    /// overlapping readers.
    const READERS_PASS: bool = false;

    /// Whether a newcomer for a share stays behind all waiters.
    const READERS_QUEUE: bool = false;

    /// Whether waiters are in a queue that sorts itself; only its head is in the list.
    ///
    /// Never between processes: a killed waiter at the head would block the queue, whereas the list
    /// continues without it. Not if a share waits only for an exclusive holder, because in the
    /// queue it may be behind a waiter; and not if a newcomer must see all waiters, because the
    /// word knows only the list.
    const SORTED: bool = !(Self::READERS_PASS || Self::READERS_QUEUE);

    /// Takes a share of the latch with this state, or fails and returns the state that it saw last.
    ///
    /// If `look` is set, the caller expects a failure and must not disturb other threads by trying;
    /// otherwise it is a newcomer, which enters only in its group's turn. `bypasses` is the limit
    /// of the policy.
    ///
    /// # Panics
    ///
    /// Panics if 2^18 shares are held; the caller then holds none.
    fn share<M: Machine>(state: &M::AtomicU32, look: bool, bypasses: u32) -> Result<(), u32>;
}

/// Adds first and checks then: wait-free while no thread waits. The default.
///
/// As in Andres Freund's mail of 2013-09-26. A reader that finds the latch held backs out. Until
/// then it may make an exclusive attempt fail, so it takes over the duty of the release that it
/// hid, and it checks the state before it tries again.
#[derive(Clone, Copy, Debug, Default)]
pub struct FetchAdd;

impl Attempt for FetchAdd {
    #[inline]
    fn share<M: Machine>(state: &M::AtomicU32, look: bool, bypasses: u32) -> Result<(), u32> {
        if look {
            // Relaxed: a failing reader has nothing to see, and the addition follows otherwise.
            let seen = state.load(Relaxed);
            if !is_open(seen) {
                return Err(seen);
            }
        }
        // Acquire: synchronizes with the Release of the last exclusive holder, in
        // `unlock_exclusive` or `downgrade`.
        let seen = state.fetch_add(1, Acquire);
        if is_open(seen) && seen & (QUEUED | TURN | TOO_MANY) == 0 {
            return Ok(());
        }
        added::<M>(state, seen, look, bypasses)
    }
}

/// Handles a share that was added to `seen` when more must be done.
#[cold]
#[inline(never)]
fn added<M: Machine>(state: &M::AtomicU32, seen: u32, any: bool, bypasses: u32) -> Result<(), u32> {
    if is_open(seen) && seen & TOO_MANY == 0 && (any || has_turn::<M>(seen)) {
        if seen & QUEUED != 0 {
            // Relaxed: a count, which orders nothing.
            update(state, Relaxed, |s| bypass(s, bypasses));
        }
        return Ok(());
    }
    // Relaxed: nothing was read under this share.
    let left = state.fetch_sub(1, Relaxed) - 1;
    refuse_if_too_many(seen);
    Err(left)
}

/// Checks first and exchanges then, as committed to PostgreSQL in 2014 (ab5194e6f6).
///
/// It never disturbs other threads, but concurrent readers make each other retry.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompareExchange;

impl Attempt for CompareExchange {
    #[inline]
    fn share<M: Machine>(state: &M::AtomicU32, look: bool, bypasses: u32) -> Result<(), u32> {
        // Relaxed: the exchange decides.
        let mut seen = state.load(Relaxed);
        while is_open(seen) && (look || has_turn::<M>(seen)) {
            refuse_if_too_many(seen);
            // Acquire: as in `FetchAdd`.
            let next = bypass(seen, bypasses) + 1;
            match state.compare_exchange(seen, next, Acquire, Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => seen = now,
            }
        }
        Err(seen)
    }
}

/// Readers pass waiting writers, as with a `pthread_rwlock_t` of the default kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadersFirst;

impl Attempt for ReadersFirst {
    const READERS_PASS: bool = true;

    #[inline]
    fn share<M: Machine>(state: &M::AtomicU32, look: bool, _: u32) -> Result<(), u32> {
        if look {
            // Relaxed: as in `FetchAdd`.
            let seen = state.load(Relaxed);
            if seen & EXCLUSIVE != 0 {
                return Err(seen);
            }
        }
        // Acquire: as in `FetchAdd`.
        let seen = state.fetch_add(1, Acquire);
        if seen & (EXCLUSIVE | TOO_MANY) == 0 {
            return Ok(());
        }
        // Relaxed: nothing was read under this share.
        let left = state.fetch_sub(1, Relaxed) - 1;
        refuse_if_too_many(seen);
        Err(left)
    }
}

/// No reader passes a waiter, as with a `pthread_rwlock_t` of the kind
/// `PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP`.
#[derive(Clone, Copy, Debug, Default)]
pub struct WritersFirst;

impl Attempt for WritersFirst {
    const READERS_QUEUE: bool = true;

    #[inline]
    fn share<M: Machine>(state: &M::AtomicU32, _: bool, _: u32) -> Result<(), u32> {
        // Relaxed: the exchange decides.
        let mut seen = state.load(Relaxed);
        while is_open(seen) && seen & QUEUED == 0 {
            refuse_if_too_many(seen);
            // Acquire: as in `FetchAdd`.
            match state.compare_exchange(seen, seen + 1, Acquire, Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => seen = now,
            }
        }
        Err(seen)
    }
}

#[inline]
fn refuse_if_too_many(seen: u32) {
    assert!(seen & TOO_MANY == 0, "latchwork: 2^18 shares of one latch are held");
}

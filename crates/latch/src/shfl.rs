//! The exclusive latch: a byte for the holder, and a queue that sorts itself.
//!
//! ShflLock (Kashyap, Calciu, Cheng, Min and Kim, "Scalable and Practical Locking with Shuffling",
//! SOSP 2019). Lock and queue are separate: the holder is in no queue, so releasing the latch is
//! one store, a holder costs no memory, and an uncontended latch is a byte that is set and cleared.
//! Waiters queue in `queue.rs`, whose head competes for the byte.
//!
//! # State
//!
//! ```text
//!  byte 0     1         2   3          4       7
//! ┌─────────┬─────────┬──────────────┬──────────────┐
//! │ HELD    │ reserve │ parked: u16  │ tail: u32    │
//! │ PARKED  │ RESERVED│ slot of a    │ last slot of │
//! │         │         │ sleeping head│ the queue    │
//! └─────────┴─────────┴──────────────┴──────────────┘
//! ```
//!
//! | held byte | to | by |
//! |---|---|---|
//! | `0` | `HELD` | any thread |
//! | `HELD` | `HELD+PARKED` | if detached: a head, or a holder with a sleeping successor |
//! | `HELD`, `HELD+PARKED` | `0` | the holder |
//!
//! A thread that takes the byte without queuing, and finds it reserved, releases it and queues. A
//! release reads nothing: a load would wait for a line that waiters read.
//!
//! Invariants: `reserve` is a hint, set by the head or a holder, and cleared by a head that saw it
//! and by a thread that finds no queue; a superfluous reservation costs a newcomer a pass through
//! the queue. `parked` names a slot only if that slot is the head, or was.
//!
//! # Waking a sleeping head without losing a wake-up
//!
//! The head announces that it sleeps (`parked`), then loads the byte once more. A holder clears the
//! byte, then loads `parked`. At least one of the two sees the other's store if both have a full
//! fence between store and load. The holder's fence would be most of the cost of an unlock, so the
//! pair is asymmetric: the head, which is about to make a system call, pays for both.
//!
//! A [`DETACHED`](Policy::DETACHED) release cannot load anything afterwards, because the latch may
//! then belong to another thread, or be unmapped. There the head marks the byte `PARKED`, and the
//! holder's exchange fails while it still holds the latch.
//!
//! `parked` is only ever exchanged, never stored, so that all threads agree on the order of a
//! holder that takes a number and a head that stores the next one.
//!
//! # Fairness
//!
//! Threads that do not queue may take a free latch before the queue. Its head notices, and after
//! [`PATIENCE`](Policy::PATIENCE) losses has the latch reserved for it; see [`Policy`]. A head
//! reserves only while it runs: if it has lost its processor other threads may pass, because
//! otherwise all would wait for it.

use core::marker::PhantomData;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;

use latchwork_machine::{ConstMachine, Deadline, Machine, Native, Spin, Waited, Word};

use crate::policy::{Park, Policy, SpinOnly, linger};
use crate::queue::{Head, Queue, wake};

const HELD: u8 = 1;
const PARKED: u8 = 2;
const RESERVED: u8 = 1;

/// How long a head sleeps at a time on a system without `membarrier`, where a wake-up can be lost.
const UNSURE: Duration = Duration::from_millis(1);

/// The exclusive latch, with a policy. Use it as [`ShflMutex`] or [`ShflSpin`].
#[derive(Default)]
#[repr(C)]
pub struct Shfl<P: Policy, M: Machine = Native> {
    held: M::AtomicU8,
    reserve: M::AtomicU8,
    parked: M::AtomicU16,
    queue: Queue<M>,
    policy: PhantomData<P>,
}

/// The default exclusive latch: 8 bytes, NUMA-aware, sleeps if the wait is long.
///
/// A holder costs no memory, each waiting thread a 64-byte slot. Uncontended: one atomic exchange
/// to lock, a store to unlock. Not reentrant. A panic poisons nothing. If a thread ends while it
/// holds the latch, the latch stays held.
pub type ShflMutex<M = Native> = Shfl<Park, M>;

/// The exclusive latch that never sleeps: 8 bytes, NUMA-aware; first come, first served, except for
/// neighbours.
pub type ShflSpin<M = Native> = Shfl<SpinOnly, M>;

const _: () = assert!(size_of::<ShflMutex>() == 8 && size_of::<ShflSpin>() == 8);

impl<P: Policy> Shfl<P> {
    /// Creates a free latch.
    pub const fn new() -> Self {
        Self::FREE
    }
}

impl<P: Policy, M: ConstMachine> Shfl<P, M> {
    /// A free latch, on any machine whose words can be created at compile time.
    #[allow(clippy::declare_interior_mutable_const, reason = "each use is a latch of its own")]
    pub const FREE: Self = Self {
        held: M::U8,
        reserve: M::U8,
        parked: M::U16,
        queue: Queue::new(M::U32),
        policy: PhantomData,
    };
}

impl<P: Policy, M: Machine> Shfl<P, M> {
    /// Takes the latch. Blocks while it is held.
    ///
    /// # Panics
    ///
    /// Panics if 65,534 threads wait for latches.
    #[inline]
    pub fn lock(&self) {
        if !self.enter() {
            self.lock_slow(None);
        }
    }

    /// Takes the latch if it is free and not reserved for a waiter.
    #[inline]
    fn enter(&self) -> bool {
        if P::PATIENCE == 0 {
            // Relaxed: a hint. It is read first, because with this policy it is usually set while
            // threads wait.
            return self.reserve.load(Relaxed) == 0
                // Acquire: synchronizes with the Release of the last holder, in `unlock`.
                && self.held.compare_exchange(0, HELD, Acquire, Relaxed).is_ok();
        }
        // Acquire: as above.
        self.held.compare_exchange(0, HELD, Acquire, Relaxed).is_ok()
            // Relaxed: a hint. It is read last, because its line has then been fetched.
            && (self.reserve.load(Relaxed) == 0 || self.defer())
    }

    /// Releases a latch that was reserved for a waiter. Returns false if there was a waiter, true
    /// if the latch is kept.
    #[cold]
    #[inline(never)]
    fn defer(&self) -> bool {
        if self.queue.is_empty() {
            // The waiter that it was reserved for has left: any thread may have it.
            self.reserve.store(0, Relaxed);
            return true;
        }
        // SAFETY: the latch is held, by `enter`.
        unsafe { self.unlock() };
        false
    }

    /// Takes the latch unless it is held, or reserved for a waiter.
    #[inline]
    pub fn try_lock(&self) -> bool {
        // Relaxed: a hint. It is read first, so that repeated attempts do not disturb the head.
        (self.reserve.load(Relaxed) == 0 || self.queue.is_empty())
            // Acquire: as in `enter`.
            && self.held.compare_exchange(0, HELD, Acquire, Relaxed).is_ok()
    }

    /// Takes the latch, or returns false when the deadline passes.
    #[inline]
    pub fn lock_until(&self, deadline: Deadline) -> bool {
        self.enter() || self.lock_slow(Some(deadline))
    }

    /// Releases the latch: a store if no head of a queue sleeps; an exchange if the policy is
    /// [`DETACHED`](Policy::DETACHED).
    ///
    /// # Safety
    ///
    /// The caller must hold the latch, or act for its holder.
    #[inline]
    pub unsafe fn unlock(&self) {
        if P::DETACHED {
            // SAFETY: as the caller promises.
            return unsafe { Self::release_detached(self) };
        }
        // Release: synchronizes with the Acquire in `lock` of the next holder.
        self.held.store(0, Release);
        if !P::PARKS {
            return;
        }
        // If our store comes before the head's second load, the head sees the latch free and does
        // not sleep. If the head's heavy barrier comes first, we see `parked`.
        M::light_barrier();
        if self.parked.load(Relaxed) != 0 {
            self.wake_head();
        }
    }

    /// Releases a latch whose memory the next holder may free or unmap: one atomic exchange, after
    /// which the latch is not touched. For policies that are [`DETACHED`](Policy::DETACHED).
    ///
    /// # Safety
    ///
    /// The caller must hold the latch, or act for its holder.
    #[inline]
    pub unsafe fn unlock_detached(this: *const Self) {
        const { assert!(P::DETACHED, "the policy is not DETACHED: take Shfl<ParkDetached>") };
        // SAFETY: as the caller promises.
        unsafe { Self::release_detached(this) };
    }

    /// # Safety
    ///
    /// The caller must hold the latch, or act for its holder.
    #[inline]
    unsafe fn release_detached(this: *const Self) {
        // SAFETY: a held latch exists, and stays until the exchange below succeeds.
        let latch = unsafe { &*this };
        // Release: synchronizes with the Acquire in `lock` of the next holder.
        if latch.held.compare_exchange(HELD, 0, Release, Relaxed).is_err() {
            latch.unlock_parked();
        }
    }

    /// Releases the latch in favour of the longest waiter, if any.
    ///
    /// # Safety
    ///
    /// The caller must hold the latch, or act for its holder.
    pub unsafe fn unlock_fair(&self) {
        if !self.queue.is_empty() {
            // Relaxed: a hint to newcomers, which the release below publishes.
            self.reserve.store(RESERVED, Relaxed);
        }
        // SAFETY: as the caller promises.
        unsafe { self.unlock() };
    }

    /// Takes the latch as [`try_lock`](Self::try_lock) does, with a load and a store. Use it if no
    /// other thread exists.
    ///
    /// # Safety
    ///
    /// No other thread can reach the latch, in this process or another, until this returns.
    #[inline]
    pub unsafe fn try_lock_alone(&self) -> bool {
        // Relaxed: all earlier holders were this thread, or threads that it joined.
        let free = self.held.load(Relaxed) == 0;
        if free {
            self.held.store(HELD, Relaxed);
        }
        free
    }

    /// Releases the latch with a store. Use it if no other thread exists. Returns false, without
    /// effect, if threads that did not survive a fork have left more to do: then use another
    /// release.
    ///
    /// # Safety
    ///
    /// No other thread can reach the latch, in this process or another, until this returns; and the
    /// caller holds the latch.
    #[inline]
    pub unsafe fn unlock_alone(&self) -> bool {
        // Relaxed: as in `try_lock_alone`.
        let plain = self.held.load(Relaxed) == HELD;
        if plain {
            self.held.store(0, Relaxed);
        }
        plain
    }

    /// Returns whether the latch is held at this moment.
    #[inline]
    pub fn is_locked(&self) -> bool {
        self.held.load(Relaxed) & HELD != 0
    }

    /// Releases a detached latch whose head sleeps.
    #[cold]
    #[inline(never)]
    fn unlock_parked(&self) {
        let slots = M::slots(&self.queue.tail);
        let mut sleeper = 0;
        loop {
            // Acquire: synchronizes with the Release of the mark, so that our exchange of `parked`
            // comes after the head's, and `wake` sees the sleeper's status.
            self.held.swap(HELD, Acquire);
            let parked = self.parked.swap(0, Relaxed);
            if parked != 0 {
                if sleeper != 0 {
                    wake(&slots, sleeper);
                }
                sleeper = u32::from(parked);
            }
            // Release: synchronizes with the Acquire in `lock` of the next holder.
            if self.held.compare_exchange(HELD, 0, Release, Relaxed).is_ok() {
                break;
            }
        }
        if sleeper != 0 {
            wake(&slots, sleeper);
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_head(&self) {
        // Acquire: synchronizes with the Release of the thread that registered the sleeper, so that
        // `wake` sees its status. The thread that takes the number wakes.
        let parked = self.parked.swap(0, Acquire);
        if parked != 0 {
            wake(&M::slots(&self.queue.tail), u32::from(parked));
        }
    }

    #[cold]
    #[inline(never)]
    fn lock_slow(&self, deadline: Option<Deadline>) -> bool {
        // Relaxed: a hint, and `try_lock` acquires.
        let free = || self.held.load(Relaxed) == 0 && self.try_lock();
        if linger::<P, M>(|| self.queue.is_empty(), free) {
            return true;
        }
        let Ok(mut head) = self.queue.join::<P>(0, deadline) else { return false };
        let apart = M::spread(P::LEVEL);
        let patience = if apart { P::PATIENCE_APART } else { P::PATIENCE };
        let look = if apart { Spin::<M>::near } else { Spin::<M>::new };
        let (mut losses, mut budgets, mut late, mut tired) = (0, 0, false, false);
        let mut spin = look(M::SPIN_NS);
        loop {
            // After it slept or yielded, the head need not be fast, and its successor may sleep or
            // give up.
            head.shuffle::<P>(|| !self.is_locked());
            if !tired {
                head.hold_next();
            }
            let seen = self.held.load(Relaxed);
            let reserved = self.reserve.load(Relaxed) != 0;
            if seen & HELD == 0 {
                // Acquire: as in `enter`.
                if self.held.compare_exchange(0, HELD, Acquire, Relaxed).is_ok() {
                    self.pass_on(head, reserved);
                    return true;
                }
                losses += 1;
            }
            if losses >= patience && !reserved {
                // Relaxed: a hint to newcomers. It is set each time, because the last head may
                // clear its own reservation after ours.
                self.reserve.store(RESERVED, Relaxed);
            }
            if spin.again() {
                continue;
            }
            losses += 1;
            tired = true;
            head.let_next_go();
            if late || deadline.is_some_and(|d| d.passed::<M>()) {
                self.give_up(head);
                return false;
            }
            if !P::PARKS {
                M::yield_now();
            } else if apart && budgets + 1 < P::BUDGETS && !self.is_crowded(&head) {
                (tired, budgets) = (false, budgets + 1);
            } else if self.park(&mut head, deadline) == Waited::TimedOut {
                // No more waiting, except for one more attempt.
                late = true;
            }
            spin = look(M::SPIN_NS);
        }
    }

    /// Returns whether another thread wants the head's processor. Other threads may pass during the
    /// check.
    fn is_crowded(&self, head: &Head<'_, M>) -> bool {
        // Relaxed: a hint to newcomers, which would otherwise wait for a thread that does not run.
        head.is_crowded(|| self.reserve.store(0, Relaxed))
    }

    /// Sleeps at the head of the queue until a holder wakes this thread.
    fn park(&self, head: &mut Head<'_, M>, deadline: Option<Deadline>) -> Waited {
        let mut waited = Waited::Woken;
        head.drowse();
        // Release: synchronizes with the Acquire in `wake_head`.
        self.parked.swap(head.number() as u16, Release);
        let mut nap = None;
        let held = if P::DETACHED {
            // Release: synchronizes with the Acquire in `unlock_parked`.
            let marked = self.held.compare_exchange(HELD, HELD | PARKED, Release, Relaxed);
            marked.unwrap_or_else(|seen| seen) & HELD != 0
        } else {
            // The heavy half of the light barrier in `unlock`, which has the argument for both
            // cases.
            if !M::heavy_barrier() {
                nap = Some(Deadline::after::<M>(UNSURE));
            }
            self.is_locked()
        };
        if held {
            waited = head.sleep(nap.or(deadline));
        }
        head.rouse();
        // Relaxed: an exchange, to come after that of a holder that took the number.
        self.parked.swap(0, Relaxed);
        if nap.is_some() { Waited::Woken } else { waited }
    }

    /// Leaves the queue as the holder. Our release wakes a sleeping successor.
    fn pass_on(&self, head: Head<'_, M>, reserved: bool) {
        // Relaxed: the reservation was ours, and so was the registration. The latch's line may
        // already be in another cache, so it is not read for known facts: a thread that never slept
        // registered nothing.
        if reserved {
            self.reserve.store(0, Relaxed);
        }
        if head.slept() && self.parked.load(Relaxed) != 0 {
            self.parked.swap(0, Relaxed);
        }
        let register = |successor: u32| {
            // Release: synchronizes with the Acquire in `wake_head`, of an earlier holder that is
            // late to load it.
            self.parked.swap(successor as u16, Release);
            if P::DETACHED {
                // Relaxed: read by our own release, or after it.
                self.held.store(HELD | PARKED, Relaxed);
            }
        };
        head.leave(register, |_| false);
    }

    /// Leaves the queue without the latch.
    fn give_up(&self, head: Head<'_, M>) {
        self.reserve.store(0, Relaxed);
        self.parked.swap(0, Relaxed);
        head.leave(|_| (), |_| true);
    }
}

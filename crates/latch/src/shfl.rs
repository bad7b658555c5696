//! The exclusive latch: a byte that says whether it is held, and a queue that sorts itself.
//!
//! ShflLock (Kashyap, Calciu, Cheng, Min and Kim, "Scalable and Practical Locking with Shuffling",
//! SOSP 2019). Lock and queue are apart: who holds the latch is in no queue, so releasing it is
//! one store, a holder costs no memory, and an uncontended latch is a byte that is set and
//! cleared. Waiters queue in `queue.rs`, whose head competes for the byte.
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
//! | `0` | `HELD` | anybody |
//! | `HELD` | `HELD+PARKED` | if detached: the head, before it sleeps; a holder whose successor sleeps |
//! | `HELD`, `HELD+PARKED` | `0` | the holder |
//!
//! Whoever takes the byte in passing and finds it reserved gives it back and queues. A release
//! reads nothing: a load there would wait for a line that waiters look at.
//!
//! Invariants: `reserve` is a hint, set by the head or a holder, cleared by a head that saw it and
//! by who finds no queue; one too many costs a newcomer a turn in the queue. `parked` names a slot only if that slot is the head, or was.
//!
//! # How a sleeping head is woken, and no wake-up lost
//!
//! The head says that it sleeps (`parked`), then looks at the byte once more. A holder clears the
//! byte, then looks whether somebody sleeps. One of the two sees the other if both have a full
//! fence between store and load. The holder's would be most of the cost of an unlock, so the pair
//! is asymmetric: the head, who is about to pay for a system call anyway, pays for both.
//!
//! A [`DETACHED`](Policy::DETACHED) release cannot look afterwards, for by then the latch may be
//! another's, or unmapped. There the head marks the byte `PARKED`, and the holder's exchange fails
//! while the latch is still its own.
//!
//! `parked` is only ever exchanged, never stored, so that a holder that takes a number and the head
//! that names the next one are in one order for everybody.
//!
//! # Fairness
//!
//! Threads that do not queue may take a free latch in passing. Its head notices, and after
//! [`PATIENCE`](Policy::PATIENCE) losses has the latch reserved for it; see [`Policy`]. A head
//! reserves only while it runs: if it lost its processor others may pass, or all would wait for it.

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

/// The exclusive latch. Use it as [`ShflMutex`] or [`ShflSpin`].
#[derive(Default)]
#[repr(C)]
pub struct Shfl<P: Policy, M: Machine = Native> {
    held: M::AtomicU8,
    reserve: M::AtomicU8,
    parked: M::AtomicU16,
    queue: Queue<M>,
    policy: PhantomData<P>,
}

/// The default exclusive latch: 8 bytes, NUMA-aware, sleeps when waiting takes long.
///
/// 0 bytes more for a holder, a 64-byte slot for each waiting thread. Uncontended: one atomic
/// exchange to lock, a store to unlock. Not reentrant, and nobody is poisoned by a panic. If a
/// thread ends while it holds the latch, the latch stays held.
pub type ShflMutex<M = Native> = Shfl<Park, M>;

/// The exclusive latch that never sleeps: 8 bytes, NUMA-aware, first come first served but for
/// neighbours.
pub type ShflSpin<M = Native> = Shfl<SpinOnly, M>;

const _: () = assert!(size_of::<ShflMutex>() == 8 && size_of::<ShflSpin>() == 8);

impl<P: Policy> Shfl<P> {
    /// A free latch.
    pub const fn new() -> Self {
        Self::FREE
    }
}

impl<P: Policy, M: ConstMachine> Shfl<P, M> {
    /// A free latch, on any machine whose words can be made at compile time.
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
    /// Takes the latch.
    ///
    /// # Panics
    ///
    /// If 65,534 threads wait for latches already.
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
            // Relaxed: a hint. It is read first, for here it is the rule where threads wait.
            return self.reserve.load(Relaxed) == 0
                // Acquire: synchronizes with the Release of the last holder, in `unlock`.
                && self.held.compare_exchange(0, HELD, Acquire, Relaxed).is_ok();
        }
        // Acquire: as above.
        self.held.compare_exchange(0, HELD, Acquire, Relaxed).is_ok()
            // Relaxed: a hint. It is read last, for by then its line is here.
            && (self.reserve.load(Relaxed) == 0 || self.defer())
    }

    /// Gives the latch back that was reserved for a waiter. False if there was one.
    #[cold]
    #[inline(never)]
    fn defer(&self) -> bool {
        if self.queue.is_empty() {
            // Reserved for somebody who has gone away since: it is anybody's.
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
        // Relaxed: a hint. It is read first, or who tries again and again would disturb the head.
        (self.reserve.load(Relaxed) == 0 || self.queue.is_empty())
            // Acquire: as in `enter`.
            && self.held.compare_exchange(0, HELD, Acquire, Relaxed).is_ok()
    }

    /// Takes the latch, or gives up at `deadline` and returns false.
    #[inline]
    pub fn lock_until(&self, deadline: Deadline) -> bool {
        self.enter() || self.lock_slow(Some(deadline))
    }

    /// Releases the latch: a store, if no head of a queue sleeps; an exchange, if the policy is
    /// [`DETACHED`](Policy::DETACHED).
    ///
    /// # Safety
    ///
    /// The latch is held, and by the caller's right.
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
        // If our store comes before the head's second look, it sees the latch free and does not
        // sleep. If the head's heavy barrier comes first, we see `parked`.
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
    /// The latch is held, and by the caller's right.
    #[inline]
    pub unsafe fn unlock_detached(this: *const Self) {
        const { assert!(P::DETACHED, "the policy is not DETACHED: take Shfl<ParkDetached>") };
        // SAFETY: as the caller promises.
        unsafe { Self::release_detached(this) };
    }

    /// # Safety
    ///
    /// As for [`unlock_detached`](Self::unlock_detached).
    #[inline]
    unsafe fn release_detached(this: *const Self) {
        // SAFETY: a held latch is there, and stays until the exchange below succeeds.
        let latch = unsafe { &*this };
        // Release: synchronizes with the Acquire in `lock` of the next holder.
        if latch.held.compare_exchange(HELD, 0, Release, Relaxed).is_err() {
            latch.unlock_parked();
        }
    }

    /// Releases the latch in favour of the longest waiter, if there is one.
    ///
    /// # Safety
    ///
    /// As for [`unlock`](Self::unlock).
    pub unsafe fn unlock_fair(&self) {
        if !self.queue.is_empty() {
            // Relaxed: a hint to newcomers, which the release below publishes.
            self.reserve.store(RESERVED, Relaxed);
        }
        // SAFETY: as the caller promises.
        unsafe { self.unlock() };
    }

    /// As [`try_lock`](Self::try_lock), with a load and a store, where no other thread exists.
    ///
    /// # Safety
    ///
    /// No other thread can reach the latch, in this process or another, until this returns.
    #[inline]
    pub unsafe fn try_lock_alone(&self) -> bool {
        // Relaxed: what was done under the latch was done by this thread, or by one it joined.
        let free = self.held.load(Relaxed) == 0;
        if free {
            self.held.store(HELD, Relaxed);
        }
        free
    }

    /// Releases the latch with a store, where no other thread exists. False, and nothing done, if
    /// threads that are not here after a fork have left more to do: then use another release.
    ///
    /// # Safety
    ///
    /// As for [`try_lock_alone`](Self::try_lock_alone), and the latch is held.
    #[inline]
    pub unsafe fn unlock_alone(&self) -> bool {
        // Relaxed: as in `try_lock_alone`.
        let plain = self.held.load(Relaxed) == HELD;
        if plain {
            self.held.store(0, Relaxed);
        }
        plain
    }

    /// Whether somebody holds the latch at this moment.
    #[inline]
    pub fn is_locked(&self) -> bool {
        self.held.load(Relaxed) & HELD != 0
    }

    /// The detached release of a latch whose head sleeps.
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
        // Acquire: synchronizes with the Release of who registered the sleeper, so that `wake` sees
        // its status. Whoever takes the number wakes.
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
            // Once it slept or yielded the head is in no hurry, and its successor is left free to
            // sleep or give up.
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
                // Relaxed: a hint to newcomers. It is set anew each time, for the last head may
                // clear its own reservation after ours is made.
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
                // Nothing more to wait for, but one more look.
                late = true;
            }
            spin = look(M::SPIN_NS);
        }
    }

    /// Whether another thread wants the head's processor. Others may pass while it finds out.
    fn is_crowded(&self, head: &Head<'_, M>) -> bool {
        // Relaxed: a hint to newcomers, who would wait for a thread that does not run.
        head.is_crowded(|| self.reserve.store(0, Relaxed))
    }

    /// Sleeps at the head of the queue until a holder wakes us.
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
            // The other half of the light barrier in `unlock`, where both cases are argued.
            if !M::heavy_barrier() {
                nap = Some(Deadline::after::<M>(UNSURE));
            }
            self.is_locked()
        };
        if held {
            waited = head.sleep(nap.or(deadline));
        }
        head.rouse();
        // Relaxed: an exchange, so as to come after that of a holder who took the number.
        self.parked.swap(0, Relaxed);
        if nap.is_some() { Waited::Woken } else { waited }
    }

    /// Leaves the queue as the holder. A successor that sleeps is woken by our release.
    fn pass_on(&self, head: Head<'_, M>, reserved: bool) {
        // Relaxed: the reservation was ours, and so was the registration. The latch's line may be
        // another's already, so it is not read for what we know: nobody registers who never slept.
        if reserved {
            self.reserve.store(0, Relaxed);
        }
        if head.slept() && self.parked.load(Relaxed) != 0 {
            self.parked.swap(0, Relaxed);
        }
        let register = |successor: u32| {
            // Release: synchronizes with the Acquire in `wake_head`, of a holder before us that is
            // late to look.
            self.parked.swap(successor as u16, Release);
            if P::DETACHED {
                // Relaxed: read by our own release, or after it.
                self.held.store(HELD | PARKED, Relaxed);
            }
        };
        head.leave(register, |_| false);
    }

    /// Leaves the queue empty-handed.
    fn give_up(&self, head: Head<'_, M>) {
        self.reserve.store(0, Relaxed);
        self.parked.swap(0, Relaxed);
        head.leave(|_| (), |_| true);
    }
}

//! The reader-writer latch: a count of readers, and a queue that sorts itself.
//!
//! After ShflLock_RW (SOSP 2019, section 4.2.3), with two differences. Its released code lost the
//! writer-waiting bit, so that readers could starve a writer; here the bit works. And the queue has
//! no lock: its head competes for the word itself, which saves four bytes, an exchange per wait,
//! and a holder that a fork would leave behind.
//!
//! # State
//!
//! ```text
//!  63        48 47       32  31  30            3   2     1       0
//! ┌────────────┬───────────┬────┬───────────────┬────┬───────┬──────┐
//! │ group      │ parked    │ !! │ readers       │TURN│WAITING│WRITER│
//! └────────────┴───────────┴────┴───────────────┴────┴───────┴──────┘
//!  parked: slot of a sleeping head   !!: too many readers
//! ```
//!
//! | from | to | by |
//! |---|---|---|
//! | no `WRITER`, no `WAITING`, no `TURN` of another group | readers + 1 | a reader |
//! | anything | readers + 1, then - 1 | a reader that must queue |
//! | no `WRITER` | readers + 1 | a reader at the head of the queue |
//! | nothing but `parked`, or `TURN` of its group | `WRITER` | a writer |
//! | no `WRITER`, no readers | `WRITER`, without `WAITING` | a writer at the head |
//! | anything | `TURN` of its group, or none | the head |
//! | anything | `WAITING`: newcomers must queue | the head, after its patience |
//! | anything | `parked` | the head, before it sleeps; a holder whose successor sleeps |
//! | readers, `WRITER` | readers - 1, no `WRITER` | a holder; the last one wakes `parked` |
//!
//! Invariants: `WRITER` excludes readers, except for those about to back out. `WAITING` is set only
//! by the head and is cleared when it leaves. `TURN` and `group` are changed only by the head. One
//! word holds everything that decides whether a sleeper must be woken, so each release either sees
//! the sleeper or is seen by it.
//!
//! A release does not touch the latch after its one exchange, so the next holder may free it.
//!
//! # Turns of groups
//!
//! Each reader moves the word's line twice, and a move across sockets takes longer: 192 readers
//! that only share the word are slower than 24. So on a machine with several caches, if sections
//! are short, a queue gives turns (`turn.rs`): `TURN` names the group of the last head, and
//! newcomers of other groups queue. The queue is sorted by group, so the turn passes to the next
//! group when the waiters of this one have entered. A head that waited while one writer held the
//! latch decides by the duration of that wait; a head that found no queue ends the turns. `TURN`
//! may outlive the queue if the last waiter had been behind another one: then the next thread of
//! another group immediately becomes a head, and ends it.
//!
//! `TURN` decides which threads queue, never which may enter: a wrong group, for example of a
//! thread that has moved since, costs only time.
//!
//! # Fairness
//!
//! Readers and writers that queue are in one queue. Newcomers pass the head until it has lost
//! [`PATIENCE`](Policy::PATIENCE) times; readers pass only until a writer at the head has spun for
//! its first budget in vain. A reader that arrives while a writer waits, waits for it, so **a
//! thread must not take a second share while it holds one**, except by
//! [`lock_shared_recursive`](ShflRwLock::lock_shared_recursive), which lets writers starve. Such a
//! reader joins the queue while a writer holds the latch. If other readers of its kind enter later,
//! before a writer that is in front of it, no thread wakes it: it checks by itself after 1 ms, and
//! then at intervals that grow to 16 ms, and keeps its place.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{
    Clock, ConstMachine, Deadline, Integer, Machine, Native, Spin, Waited, Word,
};

use crate::policy::{InTurns, Policy, linger};
use crate::queue::{Head, Queue, wake};
use crate::turn::{LEVEL, Look, group};

const WRITER: u64 = 1;
const WAITING: u64 = 1 << 1;
/// While other threads queue, only newcomers of `GROUP` may enter.
const TURN: u64 = 1 << 2;
const READER: u64 = 1 << 3;
const READERS: u64 = (1 << 31) - READER;
const TOO_MANY: u64 = 1 << 31;
const PARKED_SHIFT: u32 = 32;
const PARKED: u64 = 0xffff << PARKED_SHIFT;
const GROUP_SHIFT: u32 = 48;
const GROUP: u64 = 0xffff << GROUP_SHIFT;
/// The bits that stop a reader that did not queue.
const BARS: u64 = WRITER | WAITING | TURN;

const _: () = assert!(BARS | READERS | TOO_MANY == u32::MAX as u64);
const _: () = assert!(PARKED | GROUP == !(u32::MAX as u64));
const _: () = assert!(size_of::<ShflRwLock>() == 16);

/// How long a reader that may pass writers sleeps behind one before it checks whether readers hold
/// the latch: the first and the longest time. A writer wakes only waiters that it lets in, so no
/// other thread would wake it.
const LOOK_NS: u64 = 1_000_000;
const LOOK_MAX_NS: u64 = 16_000_000;

/// The want of a waiter, in its slot.
const READ: u32 = 1;
const WRITE: u32 = 2;

/// The reader-writer latch: 16 bytes, NUMA-aware, sleeps if the wait is long.
///
/// A holder costs no memory, each waiting thread a 64-byte slot. Uncontended: one atomic exchange
/// to lock and one to unlock, for readers and writers alike. A panic poisons nothing. If a thread
/// ends while it holds the latch, the latch stays held.
#[derive(Default)]
#[repr(C)]
pub struct ShflRwLock<M: Machine = Native> {
    state: M::AtomicU64,
    queue: Queue<M>,
}

impl ShflRwLock {
    /// Creates a free latch.
    pub const fn new() -> Self {
        Self::FREE
    }
}

impl<M: ConstMachine> ShflRwLock<M> {
    /// A free latch, on any machine whose words can be created at compile time.
    #[allow(clippy::declare_interior_mutable_const, reason = "each use is a latch of its own")]
    pub const FREE: Self = Self { state: M::U64, queue: Queue::new(M::U32) };
}

impl<M: Machine> ShflRwLock<M> {
    /// Takes a share, after any writer that waits already. Blocks while a writer holds the latch.
    ///
    /// # Panics
    ///
    /// Panics if 2^28 shares are held, or 65,534 threads wait for latches.
    #[inline]
    pub fn lock_shared(&self) {
        if !self.try_enter(BARS) {
            self.lock_shared_slow(false, None);
        }
    }

    /// Takes a share before any waiting writer: for threads that may already hold one.
    ///
    /// # Panics
    ///
    /// Panics if 2^28 shares are held, or 65,534 threads wait for latches.
    #[inline]
    pub fn lock_shared_recursive(&self) {
        if !self.try_enter(WRITER) {
            self.lock_shared_slow(true, None);
        }
    }

    /// Takes a share unless a writer holds the latch or waits for it.
    #[inline]
    pub fn try_lock_shared(&self) -> bool {
        // Relaxed: a failing reader need not write or see anything.
        self.state.load(Relaxed) & (WRITER | WAITING) == 0 && self.try_enter(WRITER | WAITING)
    }

    /// Takes a share unless a writer holds the latch.
    #[inline]
    pub fn try_lock_shared_recursive(&self) -> bool {
        // Relaxed: as in `try_lock_shared`.
        self.state.load(Relaxed) & WRITER == 0 && self.try_enter(WRITER)
    }

    /// Takes a share, or returns false when the deadline passes.
    #[inline]
    pub fn lock_shared_until(&self, deadline: Deadline) -> bool {
        self.try_enter(BARS) || self.lock_shared_slow(false, Some(deadline))
    }

    /// Takes a share as [`lock_shared_recursive`](Self::lock_shared_recursive) does, or returns
    /// false when the deadline passes.
    #[inline]
    pub fn lock_shared_recursive_until(&self, deadline: Deadline) -> bool {
        self.try_enter(WRITER) || self.lock_shared_slow(true, Some(deadline))
    }

    /// Takes the latch exclusively. Blocks while it is held.
    ///
    /// # Panics
    ///
    /// Panics if 65,534 threads wait for latches.
    #[inline]
    pub fn lock_exclusive(&self) {
        if !self.try_take(false) {
            self.lock_exclusive_slow(None);
        }
    }

    /// Takes the latch exclusively unless it is held, or reserved for a waiting writer.
    #[inline]
    pub fn try_lock_exclusive(&self) -> bool {
        self.try_take(true)
    }

    /// Takes the latch exclusively, or returns false when the deadline passes.
    #[inline]
    pub fn lock_exclusive_until(&self, deadline: Deadline) -> bool {
        self.try_take(false) || self.lock_exclusive_slow(Some(deadline))
    }

    /// Releases a share.
    ///
    /// # Safety
    ///
    /// The caller must hold a share, or act for its holder.
    #[inline]
    pub unsafe fn unlock_shared(&self) {
        // SAFETY: as the caller promises.
        unsafe { Self::unlock_shared_detached(self) };
    }

    /// Releases the exclusive latch.
    ///
    /// # Safety
    ///
    /// The caller must hold the latch exclusively, or act for its holder.
    #[inline]
    pub unsafe fn unlock_exclusive(&self) {
        // SAFETY: as the caller promises.
        unsafe { Self::unlock_exclusive_detached(self) };
    }

    /// Releases a share, even if the next holder frees or unmaps the latch immediately.
    ///
    /// # Safety
    ///
    /// The caller must hold a share, or act for its holder.
    #[inline]
    pub unsafe fn unlock_shared_detached(this: *const Self) {
        // SAFETY: a held latch exists, and stays until the exchange.
        let state = unsafe { &(*this).state };
        // Release: synchronizes with the Acquire of the next writer.
        let seen = state.fetch_sub(READER, Release);
        Self::wake_after_share(this, seen);
    }

    /// Releases the exclusive latch, even if the next holder frees or unmaps it immediately.
    ///
    /// # Safety
    ///
    /// The caller must hold the latch exclusively, or act for its holder.
    #[inline]
    pub unsafe fn unlock_exclusive_detached(this: *const Self) {
        // SAFETY: a held latch exists, and stays until the exchange.
        let state = unsafe { &(*this).state };
        // Release: synchronizes with the Acquire of every later holder.
        let seen = state.fetch_sub(WRITER, Release);
        if seen & PARKED != 0 {
            Self::wake_parked(this, seen);
        }
    }

    /// Downgrades exclusive possession to a share.
    ///
    /// # Safety
    ///
    /// The caller must hold the latch exclusively, or act for its holder.
    pub unsafe fn downgrade(&self) {
        // Release: synchronizes with the Acquire of the readers that may enter now.
        let seen = self.state.fetch_add(READER.wrapping_sub(WRITER), Release);
        if seen & PARKED != 0 {
            Self::wake_parked(self, seen);
        }
    }

    /// Returns whether the latch is held exclusively at this moment.
    pub fn is_locked_exclusive(&self) -> bool {
        self.state.load(Relaxed) & WRITER != 0
    }

    /// Returns whether the latch is held at this moment, or a reader tries to enter.
    pub fn is_locked(&self) -> bool {
        self.state.load(Relaxed) & (WRITER | READERS) != 0
    }

    /// Takes the free latch for a writer that did not queue; in another group's turn only if `any`
    /// is set.
    #[inline]
    fn try_take(&self, any: bool) -> bool {
        // Acquire: synchronizes with the Release of every holder before us, in either `unlock`.
        match self.state.compare_exchange(0, WRITER, Acquire, Relaxed) {
            Ok(_) => true,
            // Free, but its head sleeps or others wait. Passing keeps the latch busy in the
            // meantime.
            Err(seen) if seen & !(PARKED | TURN | GROUP) == 0 && (any || Self::has_turn(seen)) => {
                self.state.compare_exchange(seen, seen | WRITER, Acquire, Relaxed).is_ok()
            }
            Err(_) => false,
        }
    }

    /// Returns whether newcomers of this thread's group may enter, as far as turns are concerned.
    fn has_turn(seen: u64) -> bool {
        seen & TURN == 0 || seen & (TURN | GROUP) == mine::<M>()
    }

    /// Adds a reader, and removes it again if any of `bars` is set.
    #[inline]
    fn try_enter(&self, bars: u64) -> bool {
        // Acquire: synchronizes with the Release of the last writer, in `unlock_exclusive`.
        let seen = self.state.fetch_add(READER, Acquire);
        seen & (bars | TOO_MANY) == 0 || self.stay_or_back_out(seen, bars)
    }

    /// Handles a reader that was added to `seen` with a bar set: it stays if the bar is only its
    /// group's turn.
    #[cold]
    #[inline(never)]
    fn stay_or_back_out(&self, seen: u64, bars: u64) -> bool {
        if seen & (bars | TOO_MANY) == TURN && Self::has_turn(seen) {
            return true;
        }
        self.back_out(seen);
        false
    }

    #[cold]
    #[inline(never)]
    fn back_out(&self, seen: u64) {
        // Relaxed: nothing was read under this share.
        Self::wake_after_share(self, self.state.fetch_sub(READER, Relaxed));
        assert!(seen & TOO_MANY == 0, "latchwork: a latch has more than 2^28 readers");
    }

    /// Wakes a sleeping head if the reader that left the state `seen` was the last one.
    #[inline]
    fn wake_after_share(this: *const Self, seen: u64) {
        if seen & PARKED != 0 && seen & (READERS | WRITER) == READER {
            Self::wake_parked(this, seen);
        }
    }

    /// Wakes the head that slept in the state `seen`. The latch may no longer exist: only its
    /// address is used, to find the slots.
    #[cold]
    #[inline(never)]
    fn wake_parked(this: *const Self, seen: u64) {
        // Acquire: synchronizes with the Release of the thread that registered the sleeper in
        // `seen`, so that `wake` sees its status.
        M::fence(Acquire);
        wake(&M::slots(this.cast()), parked(seen));
    }

    #[cold]
    #[inline(never)]
    fn lock_shared_slow(&self, passes: bool, deadline: Option<Deadline>) -> bool {
        if linger::<InTurns, M>(|| self.queue.is_empty(), || self.try_lock_shared()) {
            return true;
        }
        let mut look_ns = LOOK_NS;
        let mut head = loop {
            let until = if passes { Some(sooner::<M>(deadline, look_ns)) } else { deadline };
            if let Ok(head) = self.queue.join::<InTurns>(READ, until) {
                break head;
            }
            if passes && self.try_lock_shared_recursive() {
                return true;
            }
            if !passes || deadline.is_some_and(|d| d.passed::<M>()) {
                return false;
            }
            M::yield_now();
            // Its place in the queue still exists, and `join` takes it again.
            look_ns = (look_ns * 2).min(LOOK_MAX_NS);
        };
        let entered = self.compete(&mut head, READERS, deadline, || {
            self.state.load(Relaxed) & WRITER == 0 && self.try_enter(WRITER)
        });
        // A sleeping reader next in the queue enters right behind us. A sleeping writer stays
        // asleep, and would stay so forever if readers kept coming.
        self.leave(head, WAITING, |mode| !entered || mode == READ);
        entered
    }

    #[cold]
    #[inline(never)]
    fn lock_exclusive_slow(&self, deadline: Option<Deadline>) -> bool {
        // Relaxed: a hint, and `try_lock_exclusive` acquires.
        let free = || self.state.load(Relaxed) & !PARKED == 0;
        if linger::<InTurns, M>(|| self.queue.is_empty(), || free() && self.try_lock_exclusive()) {
            return true;
        }
        let Ok(mut head) = self.queue.join::<InTurns>(WRITE, deadline) else { return false };
        let entered = self.compete(&mut head, 0, deadline, || {
            let seen = self.state.load(Relaxed);
            seen & (WRITER | READERS) == 0
                // Acquire: as in `try_take`.
                && self.state.compare_exchange(seen, seen | WRITER, Acquire, Relaxed).is_ok()
        });
        self.leave(head, 0, |_| !entered);
        entered
    }

    /// As the head: tries to enter until that succeeds or the deadline passes.
    ///
    /// `compatible` is the part of the state that may be held while this waiter enters.
    fn compete(
        &self,
        head: &mut Head<'_, M>,
        compatible: u64,
        deadline: Option<Deadline>,
        enter: impl Fn() -> bool,
    ) -> bool {
        let mut spin = Spin::<M>::new(M::SPIN_NS);
        let (mut losses, mut late) = (0, false);
        let look = self.arrive(head);
        loop {
            head.shuffle::<InTurns>(|| !self.is_locked());
            if enter() {
                if let Some(short) = look.is_short::<M>() {
                    self.give_turn(if short { turn::<M>(head) } else { 0 });
                }
                return true;
            }
            if spin.again() {
                continue;
            }
            losses += 1;
            if losses > InTurns::PATIENCE {
                // Relaxed: a bar to newcomers, which orders nothing.
                self.state.fetch_or(WAITING, Relaxed);
            }
            if late || deadline.is_some_and(|d| d.passed::<M>()) {
                return false;
            }
            late = self.park(head, compatible, deadline) == Waited::TimedOut;
            spin = Spin::new(M::SPIN_NS);
        }
    }

    /// As a new head: takes the turn, if turns are given.
    fn arrive(&self, head: &Head<'_, M>) -> Look {
        if !M::spread(LEVEL) {
            return Look::new::<M>(false);
        }
        // Relaxed: a hint.
        let seen = self.state.load(Relaxed);
        if seen & TURN != 0 {
            self.give_turn(turn::<M>(head));
        }
        head.call_ahead::<InTurns>();
        Look::new::<M>(seen & WRITER != 0)
    }

    /// As the head: stores the current turn.
    fn give_turn(&self, turn: u64) {
        // Relaxed: the head alone changes it, and it orders nothing.
        let was = self.state.load(Relaxed) & (TURN | GROUP);
        if was != turn {
            self.state.fetch_add(turn.wrapping_sub(was), Relaxed);
        }
    }

    /// Sleeps at the head of the queue until a holder leaves the latch free.
    fn park(&self, head: &mut Head<'_, M>, compatible: u64, deadline: Option<Deadline>) -> Waited {
        head.drowse();
        let mut waited = Waited::Woken;
        let mut seen = self.state.load(Relaxed);
        // A thread that makes the latch free after this exchange finds this waiter in the word.
        while seen & (WRITER | READERS) & !compatible != 0 {
            // Overlapping readers might never leave the latch free, so newcomers are stopped.
            let bar = if seen & WRITER == 0 { WAITING } else { 0 };
            let named = seen & !PARKED | bar | u64::from(head.number()) << PARKED_SHIFT;
            // Release: synchronizes with the Acquire in `wake_parked`, which sees that we sleep.
            match self.state.compare_exchange(seen, named, Release, Relaxed) {
                Ok(_) => {
                    waited = head.sleep(deadline);
                    break;
                }
                Err(now) => seen = now,
            }
        }
        head.rouse();
        waited
    }

    /// Leaves the queue, with or without the latch. A sleeping successor is woken immediately if it
    /// is `eager`; otherwise it is registered, and `bar` is set for it.
    fn leave(&self, head: Head<'_, M>, bar: u64, eager: impl Fn(u32) -> bool) {
        // Relaxed: the cleared bits were ours, and neither stopped nor named another thread.
        if self.state.load(Relaxed) & (PARKED | WAITING) != 0 {
            self.state.fetch_and(!(PARKED | WAITING), Relaxed);
        }
        let register = |successor: u32| {
            // Relaxed: our own release, or a later one, wakes the registered waiter.
            self.state.fetch_and(!(PARKED | WAITING), Relaxed);
            if successor != 0 {
                self.state.fetch_or(bar | u64::from(successor) << PARKED_SHIFT, Relaxed);
            }
        };
        head.leave(register, eager);
    }
}

/// Returns the turn of the head's group, or no turn if it found no queue.
fn turn<M: Machine>(head: &Head<'_, M>) -> u64 {
    if head.stood_behind() { mine::<M>() } else { 0 }
}

/// Returns the turn of this thread's group.
fn mine<M: Machine>() -> u64 {
    TURN | u64::from(group::<M>(0xffff)) << GROUP_SHIFT
}

/// Returns the instant this far from now, or the deadline if that is sooner.
fn sooner<M: Machine>(deadline: Option<Deadline>, ns: u64) -> Deadline {
    let clock = deadline.map_or(Clock::Monotonic, |deadline| deadline.clock);
    let at = M::now(clock).saturating_add(ns);
    Deadline { clock, at: deadline.map_or(at, |deadline| deadline.at.min(at)) }
}

/// Returns the number in a state's `parked`.
fn parked(state: u64) -> u32 {
    (state >> PARKED_SHIFT) as u32 & 0xffff
}

impl<M: Machine> core::fmt::Debug for ShflRwLock<M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let state = self.state.load(Relaxed);
        f.debug_struct("ShflRwLock")
            .field("writer", &(state & WRITER != 0))
            .field("writer_waiting", &(state & WAITING != 0))
            .field("readers", &((state & READERS) / READER))
            .field("parked", &parked(state))
            .field("queued", &!self.queue.is_empty())
            .field("turn", &((state & TURN != 0).then_some(state >> GROUP_SHIFT)))
            .finish()
    }
}

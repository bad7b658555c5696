//! A queue of waiters that sorts itself by NUMA group: four bytes in a latch.
//!
//! An MCS queue (Mellor-Crummey and Scott, 1991) of *waiters*: its head competes for the latch and
//! leaves the queue when it has acquired it, so a holder is in no queue. One waiter at a time, the
//! *shuffler*, moves waiters of its own group forward (Kashyap, Calciu, Cheng, Min and Kim,
//! "Scalable and Practical Locking with Shuffling", SOSP 2019, section 4).
//!
//! ```text
//!   latch                 head                 shuffler             tail
//!  ┌──────┐             ┌────────┐  next     ┌────────┐  next     ┌────────┐
//!  │ tail ├──────┐      │ HEAD   ├─────────► │ WAITING├─────────► │ PARKED │
//!  └──────┘      │      └────────┘           └────────┘           └────────┘
//!                └─────────────────────────────────────────────────────▲
//! ```
//!
//! A waiter is a [`Slot`](latchwork_machine::Slot); its states are drawn there.
//!
//! # Invariants
//!
//! 1. The head never moves, and only the head leaves. A waiter that gives up elsewhere leaves its
//!    slot in the queue as `ABANDONED`; a leaving head removes abandoned slots that follow it.
//! 2. There is one shuffler at a time. The role is a flag in a slot, and only its owner passes it
//!    on, to a waiter behind itself. A head that leaves reports to the next head whether a waiter
//!    behind has the role (`batch`); if none has, the next head takes it: a new turn, of its own
//!    group. The role of an abandoned slot ends when the slot is removed.
//! 3. The shuffler writes only to slots behind itself, and never to the last slot, whose `next`
//!    belongs to the thread that joins. So a `next`, once set, is written by the shuffler alone,
//!    and no slot leaves the queue while the shuffler uses it.
//! 4. A waiter that its predecessor made `SECOND` neither sleeps nor gives up, and only the
//!    predecessor stores its status, until it is the head or released from that state. Only a head
//!    that spins makes a waiter `SECOND`, and it releases the waiter before it sleeps, yields or
//!    changes its `next`.
//! 5. A queue whose last slot is a `GHOST` belonged to the parent before a fork: it is empty.
//!
//! # Work kept off the path between a release and the next section
//!
//! The head loads its own link and its successor's slot while it waits. So when it has the latch,
//! it makes the successor the head by plain stores that it does not wait for. The shuffler writes
//! to other waiters' slots only to move them or to pass the role on. Whether a turn continues is
//! stored in a line that is written anyway.
//!
//! # Memory order
//!
//! A joiner publishes its slot by the exchange of the tail (to the next joiner) and by its store to
//! its predecessor's `next` (to the shuffler and to the predecessor). A leaving head publishes what
//! it knows by the store of `HEAD`. Passing the role publishes the list edits of one shuffler to
//! the next. The queue does not order the data that the latch guards: the latch's own word does.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use core::marker::PhantomData;

use latchwork_machine::{
    Clock, Deadline, Machine, Place, Slots, Spin, Waited, Word, finds_crowd, status,
};

use crate::number::Number;
use crate::{Policy, Shuffling};

/// The waiters of one latch. All zero is empty.
#[derive(Default)]
#[repr(transparent)]
pub(crate) struct Queue<M: Machine, W = <M as Machine>::AtomicU32> {
    /// The number of the last slot, or zero.
    pub(crate) tail: W,
    machine: PhantomData<M>,
}

impl<M: Machine, W> Queue<M, W> {
    /// Creates the queue whose last slot `tail` names.
    pub(crate) const fn new(tail: W) -> Self {
        Self { tail, machine: PhantomData }
    }
}

/// Neighbours at the end of the queue that the shuffler leaves in place until there are this many.
///
/// Moving them writes to the slot before them, which belongs to another group; that cost must be
/// shared by several moves.
const RUN: u32 = 8;

/// The fraction of its budget for which a waiter that yields spins between two yields.
///
/// A yield after each look delays the waiter if every thread has a processor of its own; spinning
/// for a whole budget delays all threads if several share one.
const BETWEEN_YIELDS: u64 = 16;

/// If this waiter of the group sleeps, waiters are woken ahead of their turn, at most `CALL` of
/// them.
///
/// On 24 simulated cores with 10 % writes, 3 and 8 give 1.4 times the throughput of waking each
/// waiter in its turn. Waking all 24 gives 1.1 times, because the head does it.
const CALL_WHEN: usize = 3;
const CALL: usize = 8;

/// Returns whether a waiter continues to spin after its first budget.
fn keeps_looking<P: Policy, M: Machine>() -> bool {
    P::BUDGETS > 1 && M::spread(P::LEVEL)
}

/// The head of the queue: it may compete for the latch, and must pass that right on.
pub(crate) struct Head<'a, M: Machine, W = <M as Machine>::AtomicU32> {
    queue: &'a Queue<M, W>,
    slots: Slots<'a, M>,
    me: u32,
    /// The next waiter if it was made `SECOND`, else zero.
    second: u32,
    /// Whether a waiter of this group, behind this one, is the shuffler.
    led: bool,
    /// Whether this waiter slept or was about to.
    slept: bool,
    /// Whether this waiter found others in the queue.
    behind: bool,
}

/// The error of a waiter whose deadline passed before it was the head.
#[derive(Debug)]
pub(crate) struct GaveUp;

impl<M: Machine, W: Number> Queue<M, W> {
    /// Returns whether the queue has no waiters.
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: a hint; a thread that acts on it verifies it by an exchange.
        let last = self.tail.load(Relaxed).into();
        last == 0 || self.slots().at(last).status.load(Relaxed) == status::GHOST
    }

    /// Joins the queue, and returns when this thread is its head.
    pub(crate) fn join<P: Policy>(
        &self,
        mode: u32,
        deadline: Option<Deadline>,
    ) -> Result<Head<'_, M, W>, GaveUp> {
        let slots = self.slots();
        if let Some(me) = slots.readopt(self.address()) {
            slots.at(me).mode.store(mode, Relaxed);
            return Head::new(self, slots, me).wait::<P>(0, deadline);
        }
        let me = slots.mine();
        let slot = slots.at(me);
        // Relaxed: published below.
        slot.next.store(0, Relaxed);
        slot.prev.store(0, Relaxed);
        slot.batch.store(0, Relaxed);
        slot.shuffler.store(0, Relaxed);
        slot.mode.store(mode, Relaxed);
        slot.status.store(status::WAITING, Relaxed);
        if M::spread(P::LEVEL) {
            slot.place.store(M::place().0, Relaxed);
        }
        // Release: synchronizes with the Acquire of the next joiner's exchange, so that its store
        // to our `next` comes after our zero. Acquire: the same, with this thread as the next
        // joiner.
        let before = self.tail.swap(W::narrow(me), AcqRel).into();
        let mut head = Head::new(self, slots, me);
        // Relaxed: a predecessor of this process is not a ghost, and was none when it joined.
        let status = || slots.at(before).status.load(Relaxed);
        if before == 0 || slots.has_ghosts() && status() == status::GHOST {
            slot.status.store(status::HEAD, Relaxed);
            head.arrive();
            return Ok(head);
        }
        // Release: synchronizes with the Acquire loads of `next`, in `shuffle` and `after`.
        slots.at(before).next.store(me, Release);
        // Behind a sleeping waiter the wait is long. Spinning does not pay off if another thread
        // wants this processor.
        let asleep = P::PARKS && matches!(status(), status::PARKED | status::HEAD_PARKED);
        let sleeps =
            asleep && (!keeps_looking::<P, M>() || slot.is_crowded(M::now(Clock::Monotonic)));
        head.wait::<P>(if sleeps { 0 } else { M::SPIN_NS }, deadline)
    }

    fn slots(&self) -> Slots<'_, M> {
        M::slots(core::ptr::from_ref(&self.tail).cast())
    }

    fn address(&self) -> u64 {
        self as *const Self as usize as u64
    }

    /// Returns the slot after `number`, which the caller owns, or zero if `number` was the last
    /// slot and the queue is now empty.
    fn after(&self, slots: &Slots<'_, M>, number: u32) -> u32 {
        let slot = slots.at(number);
        // Acquire: synchronizes with the Release of the joiner, so that its slot is visible.
        let next = slot.next.load(Acquire);
        if next != 0 {
            return next;
        }
        // Release: synchronizes with the Acquire of the next joiner's exchange, which may be the
        // head immediately: its writes to the latch's word come after ours.
        let (from, to) = (W::narrow(number), W::narrow(0));
        if self.tail.compare_exchange(from, to, Release, Relaxed).is_ok() {
            return 0;
        }
        // Acquire: as above. The joiner is between its exchange and its store.
        M::spin_until(&slot.next, Acquire, |next| next != 0)
    }
}

impl<'a, M: Machine, W: Number> Head<'a, M, W> {
    fn new(queue: &'a Queue<M, W>, slots: Slots<'a, M>, me: u32) -> Self {
        Self { queue, slots, me, second: 0, led: false, slept: false, behind: false }
    }

    /// Waits in the queue until the predecessor leaves.
    fn wait<P: Policy>(mut self, spin_ns: u64, deadline: Option<Deadline>) -> Result<Self, GaveUp> {
        self.behind = true;
        let slot = self.slots.at(self.me);
        let mut spin = Spin::<M>::new(spin_ns);
        let (mut was, mut budgets) = (status::WAITING, 0);
        loop {
            // Acquire: synchronizes with the Release in `leave`.
            let seen = slot.status.load(Acquire);
            if seen == status::HEAD || seen == status::HEAD_PARKED {
                self.arrive();
                return Ok(self);
            }
            if seen != was {
                was = seen;
                spin = Spin::new(M::SPIN_NS);
            }
            // Acquire: synchronizes with the Release of the previous shuffler: its edits are
            // visible.
            if P::SHUFFLING.by_waiters() && slot.shuffler.load(Acquire) != 0 {
                self.forward::<P>(seen == status::SECOND, || {
                    // Relaxed: loaded again above.
                    matches!(slot.status.load(Relaxed), status::HEAD | status::HEAD_PARKED)
                });
            }
            // Relaxed: as above.
            let idle = || !P::SHUFFLING.by_waiters() || slot.shuffler.load(Relaxed) == 0;
            let quiet = || slot.status.load(Relaxed) == seen && idle();
            if spin.again_while(quiet) {
                continue;
            }
            if seen == status::SECOND || !P::PARKS {
                // The head releases a `SECOND` before it sleeps itself.
                if deadline.is_some_and(|d| d.passed::<M>()) {
                    self.abandon(status::WAITING)?;
                }
                M::yield_now();
                spin = Spin::new(M::SPIN_NS / BETWEEN_YIELDS);
                continue;
            }
            budgets += 1;
            if deadline.is_some_and(|d| d.passed::<M>()) {
                self.abandon(status::WAITING)?;
            } else if keeps_looking::<P, M>() && budgets < P::BUDGETS && !self.is_crowded(|| ()) {
                spin = Spin::new(M::SPIN_NS);
                continue;
            }
            // Relaxed: after a failed exchange the status is loaded again above.
            let (from, to) = (status::WAITING, status::PARKED);
            let _ = slot.status.compare_exchange(from, to, Relaxed, Relaxed);
            self.slept = true;
            while slot.status.load(Relaxed) == status::PARKED {
                if M::wait(&slot.status, status::PARKED, deadline) == Waited::TimedOut {
                    self.abandon(status::PARKED)?;
                }
            }
            spin = Spin::new(M::SPIN_NS);
        }
    }

    /// Returns whether another thread wants this processor; see [`finds_crowd`].
    pub(crate) fn is_crowded(&self, prepare: impl FnOnce()) -> bool {
        finds_crowd(self.slots.at(self.me), prepare)
    }

    /// Becomes the head, and the shuffler if no waiter behind is.
    fn arrive(&mut self) {
        let slot = self.slots.at(self.me);
        // Relaxed: both were written before this waiter was made the head, by earlier heads.
        let shuffles = slot.shuffler.load(Relaxed) != 0;
        self.led = !shuffles && slot.batch.load(Relaxed) != 0;
        if !shuffles && !self.led {
            // A new turn, of this waiter's group.
            slot.shuffler.store(1, Relaxed);
        }
    }

    /// Makes the next waiter `SECOND`: it stays awake and in the queue, so that a plain store makes
    /// it the head.
    pub(crate) fn hold_next(&mut self) {
        // Acquire: synchronizes with the Release of the joiner, so that our exchange comes after
        // its store of `WAITING`.
        let next = self.slots.at(self.me).next.load(Acquire);
        if next == self.second {
            return;
        }
        self.let_next_go();
        let status = &self.slots.at(next).status;
        // Relaxed: the status publishes nothing else.
        if status.compare_exchange(status::WAITING, status::SECOND, Relaxed, Relaxed).is_ok() {
            self.second = next;
        }
    }

    /// Allows the next waiter to sleep or give up.
    pub(crate) fn let_next_go(&mut self) {
        if self.second != 0 {
            // Relaxed: while it is `SECOND`, only this thread stores its status.
            self.slots.at(self.second).status.store(status::WAITING, Relaxed);
            self.second = 0;
        }
    }

    /// Returns whether this waiter joined behind another one.
    pub(crate) fn stood_behind(&self) -> bool {
        self.behind
    }

    /// Wakes waiters of this group ahead of their turn, if the third of them sleeps: a wake-up
    /// takes longer than a handover.
    ///
    /// A shuffler may move waiters concurrently, so some may be missed or visited twice.
    pub(crate) fn call_ahead<P: Policy>(&self) {
        let at = |number: u32| self.slots.at(number);
        // Relaxed: places were written before their slots were linked; `wake` loads the status
        // again.
        let mine = Place(at(self.me).place.load(Relaxed));
        let near = |number: u32| Place(at(number).place.load(Relaxed)).near(mine, P::LEVEL);
        let sleeps = |number: u32| at(number).status.load(Relaxed) == status::PARKED;
        // Acquire: synchronizes with the Release of the joiner, so that its slot is visible.
        let next =
            |number: u32| Some(at(number).next.load(Acquire)).filter(|n| *n != 0 && near(*n));
        let group = || core::iter::successors(next(self.me), |number| next(*number));
        if group().nth(CALL_WHEN - 1).is_some_and(sleeps) {
            group()
                .take(CALL)
                .filter(|number| sleeps(*number))
                .for_each(|number| wake(&self.slots, number));
        }
    }

    /// Returns whether this waiter may be registered as asleep.
    pub(crate) fn slept(&self) -> bool {
        self.slept
    }

    /// Leaves the slot in the queue as abandoned, unless the predecessor was faster.
    fn abandon(&self, from: u32) -> Result<(), GaveUp> {
        let slot = self.slots.at(self.me);
        // Relaxed: only this thread reads it.
        slot.latch.store(self.queue.address(), Relaxed);
        // Release: synchronizes with the Acquire in `remove`, which gives the slot away.
        match slot.status.compare_exchange(from, status::ABANDONED, Release, Relaxed) {
            Ok(_) => Err(GaveUp),
            Err(_) => Ok(()),
        }
    }

    /// Returns the number of this waiter's slot.
    pub(crate) fn number(&self) -> u32 {
        self.me
    }

    /// Sleeps at the head of the queue, unless woken since [`drowse`](Self::drowse).
    pub(crate) fn sleep(&self, deadline: Option<Deadline>) -> Waited {
        M::wait(&self.slots.at(self.me).status, status::HEAD_PARKED, deadline)
    }

    /// Announces that the head is about to sleep. The caller must next store this in the latch's
    /// word, and then load again what the head waits for.
    pub(crate) fn drowse(&mut self) {
        self.slept = true;
        // Relaxed: a waker reads it after the latch's word, which the caller publishes.
        self.slots.at(self.me).status.store(status::HEAD_PARKED, Relaxed);
    }

    /// Announces that the head is awake.
    pub(crate) fn rouse(&self) {
        // Relaxed: a late waker wakes a thread that is awake.
        self.slots.at(self.me).status.store(status::HEAD, Relaxed);
    }

    /// Leaves the queue; the next waiter is then its head.
    ///
    /// If the next waiter sleeps it is left asleep. `register` is first called with its number, so
    /// that the thread that releases the latch wakes it, off the critical path; it is called with
    /// zero if the registration must be undone. `eager` takes a waiter's mode and returns whether
    /// the waiter must be woken now.
    pub(crate) fn leave(mut self, register: impl Fn(u32), eager: impl Fn(u32) -> bool) {
        if self.second != 0 {
            let next = self.slots.at(self.second);
            if self.led {
                next.batch.store(1, Relaxed);
            }
            // Release: synchronizes with the Acquire in `wait`: the next waiter must see everything
            // that we read, because it is the head from now on.
            next.status.store(status::HEAD, Release);
            self.slots.at(self.me).status.store(status::FREE, Relaxed);
            return;
        }
        let mut next = self.queue.after(&self.slots, self.me);
        // Relaxed: no other thread reads a slot that is in no queue.
        self.slots.at(self.me).status.store(status::FREE, Relaxed);
        while next != 0 {
            let slot = self.slots.at(next);
            if self.led {
                slot.batch.store(1, Relaxed);
            }
            // Release: as below. Without a load first, which would transfer the line twice.
            let (from, to) = (status::WAITING, status::HEAD);
            let seen = match slot.status.compare_exchange(from, to, Release, Relaxed) {
                Ok(_) => return,
                Err(seen) => seen,
            };
            let to = match seen {
                status::PARKED if eager(slot.mode.load(Relaxed)) => status::HEAD,
                status::PARKED => status::HEAD_PARKED,
                status::ABANDONED | status::ORPHANED => {
                    let role;
                    (next, role) = self.remove(next, seen);
                    self.led &= !role;
                    continue;
                }
                _ => status::HEAD,
            };
            if to == status::HEAD_PARKED {
                register(next);
            }
            // Release: synchronizes with the Acquire in `wait`: the next waiter must see everything
            // that we read and registered, because it is the head from now on.
            if slot.status.compare_exchange(seen, to, Release, Relaxed).is_ok() {
                if seen == status::PARKED && to == status::HEAD {
                    M::wake(&slot.status);
                }
                return;
            }
            if to == status::HEAD_PARKED {
                register(0);
            }
        }
    }

    /// Removes an abandoned slot from the queue. Returns the slot after it, and whether the removed
    /// one had the role of shuffler.
    fn remove(&self, number: u32, seen: u32) -> (u32, bool) {
        let slot = self.slots.at(number);
        // Acquire: synchronizes with the Release in `abandon`. It fails if the waiter has returned.
        if slot.status.compare_exchange(seen, status::REMOVED, Acquire, Relaxed).is_err() {
            return (number, false);
        }
        // Relaxed: the waiter that passed it the role was before it in the queue, and has left.
        let role = slot.shuffler.load(Relaxed) != 0;
        let next = self.queue.after(&self.slots, number);
        self.slots.discard(number, seen);
        (next, role)
    }

    /// As the head: moves neighbours forward until `stop`, unless a waiter behind is the shuffler.
    pub(crate) fn shuffle<P: Policy>(&mut self, stop: impl Fn() -> bool) {
        if P::SHUFFLING != Shuffling::Never && !self.led && M::spread(P::LEVEL) {
            self.led = self.forward::<P>(true, stop);
        }
    }

    /// As the shuffler: moves neighbours forward, right behind this waiter, until `stop`. Returns
    /// true if the role was passed on, to the last of them.
    ///
    /// Reads each waiter that was not yet read on behalf of this group. Neighbours at the end of
    /// the queue stay there until they are [`RUN`], unless it is `urgent`.
    fn forward<P: Policy>(&self, urgent: bool, stop: impl Fn() -> bool) -> bool {
        let at = |number: u32| self.slots.at(number);
        let mine = at(self.me);
        let near = |number: u32| {
            let other = at(number);
            Place(other.place.load(Relaxed)).near(Place(mine.place.load(Relaxed)), P::LEVEL)
                && other.mode.load(Relaxed) == mine.mode.load(Relaxed)
        };
        // Relaxed, here and below: only the shuffler uses these, and passing the role orders
        // shufflers.
        let mut batch = mine.shuffler.load(Relaxed);
        let first = match mine.prev.load(Relaxed) {
            resume if resume != 0 && P::SHUFFLING == Shuffling::Resumed => resume,
            _ => self.me,
        };
        // No neighbour is between `last` and `seen`.
        let (mut last, mut seen) = (self.me, first);
        while batch < P::BATCH {
            // The run of neighbours after `seen` is `from` to `to`, and `next` comes after it.
            // Acquire: synchronizes with the Release of the joiner, so that its slot is visible.
            let from = at(seen).next.load(Acquire);
            let (mut next, mut to, mut run, mut end) = (from, seen, 0, from == 0);
            while !end && batch + run < P::BATCH && near(next) {
                // Acquire: as above. Zero belongs to the last slot: only its joiner writes that
                // word.
                let beyond = at(next).next.load(Acquire);
                if beyond == 0 {
                    end = true;
                } else {
                    (to, next) = (next, beyond);
                    run += 1;
                }
            }
            if run == 0 {
                if end {
                    break;
                }
                seen = next;
                continue;
            }
            if seen == last {
                seen = to;
            } else if end && run < RUN && !urgent {
                break;
            } else {
                at(seen).next.store(next, Relaxed);
                at(to).next.store(at(last).next.load(Relaxed), Relaxed);
                at(last).next.store(from, Relaxed);
            }
            batch += run;
            last = to;
            if stop() {
                break;
            }
        }
        if last == self.me {
            if seen != first {
                mine.prev.store(seen, Relaxed);
            }
            return false;
        }
        mine.shuffler.store(0, Relaxed);
        at(last).prev.store(if seen == last { 0 } else { seen }, Relaxed);
        // Release: synchronizes with the Acquire in `wait`: the next shuffler sees our edits.
        at(last).shuffler.store(batch, Release);
        true
    }
}

/// Wakes a waiter that was registered as asleep at the head of its queue, or next to it.
///
/// The latch itself may no longer exist. The caller has acquired the registration, so the status
/// loaded here is no older. A waiter that is not the head yet is woken early and spins for a while:
/// its predecessor is between registering it and making it the head, and must then find it awake,
/// because no other thread will wake it. If the slot has another use by now, its thread wakes
/// needlessly or is awake.
pub(crate) fn wake<M: Machine>(slots: &Slots<'_, M>, number: u32) {
    let slot = slots.at(number);
    let mut seen = slot.status.load(Relaxed);
    loop {
        let to = match seen {
            status::HEAD_PARKED => status::HEAD,
            status::PARKED => status::WAITING,
            _ => return,
        };
        // Relaxed: the latch's word holds what the waiter waits for.
        match slot.status.compare_exchange(seen, to, Relaxed, Relaxed) {
            Ok(_) => return M::wake(&slot.status),
            Err(now) => seen = now,
        }
    }
}

//! The queue of waiters that sorts itself: four bytes in a latch.
//!
//! An MCS queue (Mellor-Crummey and Scott, 1991) of those who *wait*: its head competes for the
//! latch and leaves the queue when it has it, so a holder is in no queue. While they wait, one of
//! them at a time, the *shuffler*, brings its neighbours forward (Kashyap, Calciu, Cheng, Min and
//! Kim, "Scalable and Practical Locking with Shuffling", SOSP 2019, section 4).
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
//! 1. The head never moves, and only the head leaves. Who gives up elsewhere leaves its slot
//!    behind as `ABANDONED`; a leaving head removes those that follow it.
//! 2. One shuffler at a time: the role is a flag in a slot, and only its owner passes it on, to a
//!    waiter behind itself. The head takes it up if nobody in its group had it.
//! 3. The shuffler writes only to slots behind itself, and never to the last one, whose `next`
//!    belongs to the thread that joins. So a `next`, once set, is written by the shuffler alone,
//!    and no slot leaves the queue under the shuffler's hands.
//! 4. A queue whose last slot is a `GHOST` was the parent's, before a fork: it is empty.
//!
//! # Memory order
//!
//! A joiner publishes its slot by the exchange of the tail (to the next joiner) and by its store
//! to its predecessor's `next` (to the shuffler and to the predecessor). A leaving head publishes
//! what it knows by the store of `HEAD`. The role publishes the list edits of one shuffler to the
//! next. Nothing here orders what the latch guards: that is the latch's own word's affair.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{Deadline, Machine, Place, Slots, Spin, Waited, Word, status};

use crate::Policy;

/// The waiters of one latch. All zero is empty.
#[derive(Default)]
#[repr(transparent)]
pub(crate) struct Queue<M: Machine> {
    /// The number of the last slot, or zero.
    pub(crate) tail: M::AtomicU32,
}

/// The right to compete for the latch, and the duty to pass that right on.
pub(crate) struct Head<'a, M: Machine> {
    queue: &'a Queue<M>,
    slots: Slots<'a, M>,
    me: u32,
}

/// The deadline passed before this waiter was at the head.
#[derive(Debug)]
pub(crate) struct GaveUp;

impl<M: Machine> Queue<M> {
    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: a hint; whoever acts on it finds out by an exchange.
        let last = self.tail.load(Relaxed);
        last == 0 || M::slots(&self.tail).at(last).status.load(Relaxed) == status::GHOST
    }

    /// Joins, and returns at the head of the queue.
    pub(crate) fn join<P: Policy>(
        &self,
        mode: u32,
        deadline: Option<Deadline>,
    ) -> Result<Head<'_, M>, GaveUp> {
        let slots = M::slots(&self.tail);
        if let Some(me) = slots.readopt(self.address()) {
            slots.at(me).mode.store(mode, Relaxed);
            return Head { queue: self, slots, me }.wait::<P>(0, deadline);
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
        // to our `next` comes after our zero. Acquire: the same, as the next joiner.
        let before = self.tail.swap(me, AcqRel);
        let head = Head { queue: self, slots, me };
        // Relaxed: a predecessor in this very process is no ghost, and was none when it joined.
        let ahead = if before == 0 { status::GHOST } else { slots.at(before).status.load(Relaxed) };
        if ahead == status::GHOST {
            slot.status.store(status::HEAD, Relaxed);
            return Ok(head);
        }
        // Release: synchronizes with the Acquire loads of `next`, in `shuffle` and `after`.
        slots.at(before).next.store(me, Release);
        // Behind a sleeper the wait is long: it is not worth a look.
        let asleep = ahead == status::PARKED || ahead == status::HEAD_PARKED;
        head.wait::<P>(if asleep { 0 } else { M::SPIN_NS }, deadline)
    }

    fn address(&self) -> u64 {
        self as *const Self as usize as u64
    }

    /// The slot after `number`, which the caller owns; zero if `number` was the last one and the
    /// queue is empty now.
    fn after(&self, slots: &Slots<'_, M>, number: u32) -> u32 {
        let slot = slots.at(number);
        // Acquire: synchronizes with the Release of the joiner, so that we see its slot.
        let next = slot.next.load(Acquire);
        if next != 0 {
            return next;
        }
        // Release: synchronizes with the Acquire of the next joiner's exchange, which may be the
        // head at once: what it writes to the latch's word comes after what we wrote.
        if self.tail.compare_exchange(number, 0, Release, Relaxed).is_ok() {
            return 0;
        }
        // Acquire: as above. The joiner is between its exchange and its store.
        M::spin_until(&slot.next, Acquire, |next| next != 0)
    }
}

impl<'a, M: Machine> Head<'a, M> {
    /// Waits, in the middle of the queue, for the predecessor to leave.
    fn wait<P: Policy>(self, spin_ns: u64, deadline: Option<Deadline>) -> Result<Self, GaveUp> {
        let slot = self.slots.at(self.me);
        let mut spin = Spin::<M>::new(spin_ns);
        loop {
            if self.arrived() {
                return Ok(self);
            }
            // Acquire: synchronizes with the Release of the shuffler before us: we see its edits.
            if slot.shuffler.load(Acquire) != 0 {
                self.shuffle::<P>(|| self.arrived());
            }
            if spin.again() {
                continue;
            }
            if !P::PARKS {
                if deadline.is_some_and(|d| d.passed::<M>()) {
                    self.abandon(status::WAITING)?;
                }
                M::yield_now();
                continue;
            }
            // Relaxed: a failed exchange is looked at again by `arrived`.
            let (from, to) = (status::WAITING, status::PARKED);
            let _ = slot.status.compare_exchange(from, to, Relaxed, Relaxed);
            while slot.status.load(Relaxed) == status::PARKED {
                if M::wait(&slot.status, status::PARKED, deadline) == Waited::TimedOut {
                    self.abandon(status::PARKED)?;
                }
            }
            spin = Spin::new(M::SPIN_NS);
        }
    }

    /// Whether the predecessor has made us the head.
    fn arrived(&self) -> bool {
        // Acquire: synchronizes with the Release in `leave`.
        let seen = self.slots.at(self.me).status.load(Acquire);
        seen == status::HEAD || seen == status::HEAD_PARKED
    }

    /// Leaves the slot behind in the queue, unless the predecessor was quicker.
    fn abandon(&self, from: u32) -> Result<(), GaveUp> {
        let slot = self.slots.at(self.me);
        // Relaxed: only this thread reads it.
        slot.latch.store(self.queue.address(), Relaxed);
        // Release: synchronizes with the Acquire in `remove`, so that the slot is ours no more.
        match slot.status.compare_exchange(from, status::ABANDONED, Release, Relaxed) {
            Ok(_) => Err(GaveUp),
            Err(_) => Ok(()),
        }
    }

    /// This waiter's slot, by number.
    pub(crate) fn number(&self) -> u32 {
        self.me
    }

    /// Sleeps at the head of the queue, unless woken since [`drowse`](Self::drowse).
    pub(crate) fn sleep(&self, deadline: Option<Deadline>) -> Waited {
        M::wait(&self.slots.at(self.me).status, status::HEAD_PARKED, deadline)
    }

    /// Says that the head is about to sleep. The latch's word must say so next, and then the head
    /// must look once more at what it waits for.
    pub(crate) fn drowse(&self) {
        // Relaxed: who wakes us reads it after the latch's word, which the caller publishes.
        self.slots.at(self.me).status.store(status::HEAD_PARKED, Relaxed);
    }

    /// The head is awake again.
    pub(crate) fn rouse(&self) {
        // Relaxed: a waker that is late wakes somebody who is awake.
        self.slots.at(self.me).status.store(status::HEAD, Relaxed);
    }

    /// Leaves the queue; the next waiter is at its head from here on.
    ///
    /// If the next waiter sleeps it is left asleep: `register` is told its number first, so that
    /// whoever releases the latch wakes it, off the critical path. It is told zero if that came to
    /// nothing. `eager` says of a waiter's mode that it is to be woken now.
    pub(crate) fn leave(self, register: impl Fn(u32), eager: impl Fn(u32) -> bool) {
        let mut next = self.queue.after(&self.slots, self.me);
        // Relaxed: nobody but this thread looks at a slot that is in no queue.
        self.slots.at(self.me).status.store(status::FREE, Relaxed);
        while next != 0 {
            let slot = self.slots.at(next);
            let seen = slot.status.load(Relaxed);
            let to = match seen {
                status::PARKED if eager(slot.mode.load(Relaxed)) => status::HEAD,
                status::PARKED => status::HEAD_PARKED,
                status::ABANDONED | status::ORPHANED => {
                    next = self.remove(next, seen);
                    continue;
                }
                _ => status::HEAD,
            };
            if to == status::HEAD_PARKED {
                register(next);
            }
            // Release: synchronizes with the Acquire in `arrived`: it must see what we read and
            // registered, for it is the head from now on.
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

    /// Takes an abandoned slot out of the queue and returns the one after it.
    fn remove(&self, number: u32, seen: u32) -> u32 {
        let slot = self.slots.at(number);
        // Acquire: synchronizes with the Release in `abandon`. It fails if the waiter came back.
        if slot.status.compare_exchange(seen, status::REMOVED, Acquire, Relaxed).is_err() {
            return number;
        }
        let next = self.queue.after(&self.slots, number);
        self.slots.discard(number, seen);
        next
    }

    /// Brings neighbours forward, right behind this waiter, until `stop`.
    ///
    /// Called by the head, or by who was given the role. Costs a look at each waiter that has not
    /// been looked at on this group's behalf; returns at once if nobody can be moved.
    pub(crate) fn shuffle<P: Policy>(&self, stop: impl Fn() -> bool) {
        if !M::spread(P::LEVEL) {
            return;
        }
        let at = |number: u32| self.slots.at(number);
        let mine = at(self.me);
        // Relaxed, here and below: only the shuffler touches these, and the role orders shufflers.
        let mut batch = mine.batch.load(Relaxed);
        if batch != 0 && mine.shuffler.load(Relaxed) == 0 {
            // Somebody behind us in our group has the role.
            return;
        }
        if batch == 0 {
            batch = 1;
            mine.batch.store(batch, Relaxed);
        }
        mine.shuffler.store(0, Relaxed);
        if batch >= P::BATCH {
            // The turn is over. The role ends here, and the next group's head takes it up.
            return;
        }
        let near = |number: u32| {
            let other = at(number);
            Place(other.place.load(Relaxed)).near(Place(mine.place.load(Relaxed)), P::LEVEL)
                && other.mode.load(Relaxed) == mine.mode.load(Relaxed)
        };
        // Between `last` and `seen` there is no neighbour left.
        let mut last = self.me;
        let mut seen = match mine.prev.load(Relaxed) {
            0 => self.me,
            resume => resume,
        };
        while batch < P::BATCH {
            // Acquire: synchronizes with the Release of the joiner, so that we see its slot.
            let next = at(seen).next.load(Acquire);
            if next == 0 {
                break;
            }
            if !near(next) {
                seen = next;
                continue;
            }
            // Acquire: as above. Zero is the last one's: that word is its joiner's to write.
            let beyond = at(next).next.load(Acquire);
            if beyond == 0 {
                break;
            }
            batch += 1;
            at(next).batch.store(batch, Relaxed);
            if seen == last {
                seen = next;
            } else {
                at(seen).next.store(beyond, Relaxed);
                at(next).next.store(at(last).next.load(Relaxed), Relaxed);
                at(last).next.store(next, Relaxed);
            }
            last = next;
            if stop() {
                break;
            }
        }
        at(last).prev.store(if seen == last { 0 } else { seen }, Relaxed);
        // Release: synchronizes with the Acquire in `wait`: the next shuffler sees our edits.
        at(last).shuffler.store(1, Release);
    }
}

/// Wakes a waiter that was registered as asleep at, or next to, the head of its queue.
///
/// The latch itself may be gone. The caller has acquired the registration, so what it finds here
/// is no older. A waiter that is not the head yet is woken too early and looks for a while: its
/// predecessor is between registering it and making it the head, and must find it awake then,
/// for nobody else will wake it. If the slot has another use by now, its thread wakes for no
/// reason, or is awake.
pub(crate) fn wake<M: Machine>(slots: &Slots<'_, M>, number: u32) {
    let slot = slots.at(number);
    let mut seen = slot.status.load(Relaxed);
    loop {
        let to = match seen {
            status::HEAD_PARKED => status::HEAD,
            status::PARKED => status::WAITING,
            _ => return,
        };
        // Relaxed: what the waiter waits for is in the latch's word.
        match slot.status.compare_exchange(seen, to, Relaxed, Relaxed) {
            Ok(_) => return M::wake(&slot.status),
            Err(now) => seen = now,
        }
    }
}

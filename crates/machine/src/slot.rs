//! Waiter slots: one cache line for each thread that waits.
//!
//! A thread waits for one latch at a time, so it needs one slot, found by a small number, on a word
//! of which it spins and sleeps. A holder needs none. Because latches know waiters by number,
//! latches have 8 bytes, work at different addresses in different processes, and never wake an
//! address inside a latch that may no longer exist.
//!
//! A slot is taken at a thread's first wait and returned at its exit. A waiter that times out in
//! the middle of a queue cannot unlink itself and leaves its slot behind as *abandoned*. The thread
//! keeps that slot on its chain. It takes the same place in the queue again if it returns to the
//! latch in time, and the thread that removes the slot from the queue makes it *free* again. So a
//! thread has at most one slot more than it has abandoned waits.
//!
//! | status | meaning | set by |
//! |---|---|---|
//! | `FREE` | on its thread's chain, in no queue | the thread; the remover from a queue |
//! | `WAITING` | in a queue, spinning | its thread |
//! | `SECOND` | in a queue behind the head, spinning until notified | its predecessor |
//! | `PARKED` | in a queue, asleep | its thread |
//! | `HEAD` | at the head of its queue, spinning | its predecessor; the thread that wakes it |
//! | `HEAD_PARKED` | at the head of its queue, asleep | its predecessor, if it slept; its thread |
//! | `TAKEN` | off a list, about to be woken | the remover |
//! | `TAKEN_PARKED` | off a list, about to be woken from sleep | the remover |
//! | `GRANTED` | woken off a list | the remover |
//! | `LEAVING` | in a list, no longer to be woken | its thread, which gives up |
//! | `ABANDONED` | in a queue, its thread has left | its thread |
//! | `ORPHANED` | in a queue, its thread has ended | its thread, at exit |
//! | `REMOVED` | about to be free | the remover |
//! | `GHOST` | its thread lives in another process | the child, after a fork |
//! | `READING` | marks a share of the latch in `latch`; in no queue | its thread |
//! | [`ALONE`](status::ALONE) and more | in no queue: the caller searches all slots | its thread |
//!
//! Where several processes share a table, a slot also names its process, and any process can take
//! back the slots of dead ones: see [`Slots::reclaim`].

use core::mem::offset_of;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::{Integer, Machine, Word};

/// The most slots of one table: 65,534. A number has 16 bits, and neither 0 nor 65,535 is a slot.
pub const MAX_SLOTS: u32 = u16::MAX as u32 - 1;

/// Values of a slot's status word; see the table of this module.
pub mod status {
    #![allow(missing_docs)]
    pub const FREE: u32 = 0;
    pub const WAITING: u32 = 1;
    pub const PARKED: u32 = 2;
    pub const HEAD: u32 = 3;
    pub const HEAD_PARKED: u32 = 4;
    pub const TAKEN: u32 = 5;
    pub const GRANTED: u32 = 6;
    pub const ABANDONED: u32 = 7;
    pub const ORPHANED: u32 = 8;
    pub const REMOVED: u32 = 9;
    pub const GHOST: u32 = 10;
    pub const TAKEN_PARKED: u32 = 11;
    pub const LEAVING: u32 = 12;
    pub const SECOND: u32 = 13;
    pub const READING: u32 = 14;
    /// Only during [`Slots::forked`](super::Slots::forked).
    pub(super) const KEPT: u32 = 15;

    /// A bit set in the status of every slot that waits in no queue.
    /// [`Slots::forget`](super::Slots::forget) interprets the other bits:
    ///
    /// ```text
    ///  31   30          16 15           2   1      0
    /// ┌───┬──────────────┬──────────────┬──────────┐
    /// │ 1 │      0       │ by           │ PHASE    │  PHASE: awake, asleep, HANDED
    /// └───┴──────────────┴──────────────┴──────────┘
    /// ```
    ///
    /// `by` is the thread that hands over to this one, and `next` is this one. Both are the numbers
    /// by which latches name their holders, which are never zero.
    pub const ALONE: u32 = 1 << 31;
    pub const ALONE_PARKED: u32 = ALONE | 1;
    pub const HANDED: u32 = ALONE | 2;
    pub const BY_SHIFT: u32 = 2;
    /// The highest number of a thread.
    pub const BY_MAX: u32 = (1 << 14) - 1;
}

/// The cache line in which one thread waits.
#[derive(Default)]
#[repr(C, align(64))]
pub struct Slot<M: Machine> {
    /// The state, and the word that its thread sleeps on.
    pub status: M::AtomicU32,
    /// The number of the next slot in the queue or list.
    pub next: M::AtomicU32,
    /// The previous slot, in a list; where shuffling resumes, in a queue.
    pub prev: M::AtomicU32,
    /// Not zero if a later waiter of this waiter's group is the shuffler.
    pub batch: M::AtomicU32,
    /// Not zero if this waiter must shuffle those behind it: how often its group has had the latch.
    pub shuffler: M::AtomicU32,
    /// The requested mode, defined by each latch.
    pub mode: M::AtomicU32,
    /// The place of the waiter: a [`Place`](crate::Place).
    pub place: M::AtomicU64,
    /// The latch at which an abandoned slot is queued, or whose share the slot marks.
    pub latch: M::AtomicU64,
    /// The next slot of the same thread.
    chain: M::AtomicU32,
    /// The next free slot of the table.
    free: M::AtomicU32,
    /// The owner of the thread, where several owners share a table. Otherwise, and while the slot
    /// is free, zero.
    owner: M::AtomicU64,
    /// Until when its thread assumes that others need its processor: monotonic nanoseconds.
    crowded_until: M::AtomicU64,
}

const _: () = assert!(size_of::<Slot<crate::Native>>() == 64);

impl<M: Machine> Slot<M> {
    /// Returns whether its thread found, shortly before `now`, that others need its processor.
    #[inline]
    pub fn is_crowded(&self, now: u64) -> bool {
        // Relaxed: only its own thread uses it.
        self.crowded_until.load(Relaxed) > now
    }

    /// Records that others need its thread's processor, valid until `until`.
    pub fn crowd(&self, until: u64) {
        // Relaxed: as above.
        self.crowded_until.store(until, Relaxed);
    }

    /// The offset and name of each word of a slot, for reports.
    pub const WORDS: [(usize, &'static str); 11] = [
        (offset_of!(Self, status), "status"),
        (offset_of!(Self, next), "next"),
        (offset_of!(Self, prev), "prev"),
        (offset_of!(Self, batch), "batch"),
        (offset_of!(Self, shuffler), "shuffler"),
        (offset_of!(Self, mode), "mode"),
        (offset_of!(Self, place), "place"),
        (offset_of!(Self, latch), "latch"),
        (offset_of!(Self, chain), "chain"),
        (offset_of!(Self, free), "free"),
        (offset_of!(Self, crowded_until), "crowded_until"),
    ];
}

/// The number of a thread's first slot, which leads to all others; zero for none.
pub type Chain = u32;

/// Allocates the slots of one table: 16 bytes, all zero at first.
#[derive(Default)]
#[repr(C)]
pub struct SlotTable<M: Machine> {
    /// Returned slots: a tag in the high half against ABA, the first slot's number in the low half.
    returned: M::AtomicU64,
    /// How many slots were ever allocated.
    fresh: M::AtomicU32,
    /// Not zero in a child of a fork: some slots are ghosts.
    ghosts: M::AtomicU32,
}

/// A table and its slots.
pub struct Slots<'a, M: Machine> {
    table: &'a SlotTable<M>,
    slots: &'a [Slot<M>],
    /// Which of several tables this is, for [`Machine::chain`].
    pub(crate) mapping: u32,
    /// The name recorded in allocated slots.
    pub(crate) owner: u64,
}

impl<M: Machine> Clone for Slots<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Machine> Copy for Slots<'_, M> {}

impl<'a, M: Machine> Slots<'a, M> {
    /// Creates a handle to `slots`, of which `table` allocates all but the first.
    pub fn new(table: &'a SlotTable<M>, slots: &'a [Slot<M>]) -> Self {
        Self { table, slots, mapping: 0, owner: 0 }
    }

    /// Records `owner`, which is not zero, in allocated slots: see [`reclaim`](Self::reclaim).
    #[must_use]
    pub fn in_the_name_of(self, owner: u64) -> Self {
        Self { owner, ..self }
    }

    /// Returns whether several processes, which may be killed, can have slots of this table.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.owner != 0
    }

    /// Returns the slot with this number.
    ///
    /// # Panics
    ///
    /// If there is none: the memory of the latch is damaged.
    #[inline]
    pub fn at(&self, number: u32) -> &'a Slot<M> {
        &self.slots[number as usize]
    }

    /// The slot that a link leads to. None at the end of a list and where the memory is damaged; a
    /// thread that needs a slot then gets another.
    fn linked(&self, number: u32) -> Option<&'a Slot<M>> {
        self.slots.get(number as usize).filter(|_| number != 0)
    }

    /// A thread's slots and their numbers. Ends even if damage made the list a cycle.
    fn chained(&self, chain: Chain) -> impl Iterator<Item = (u32, &'a Slot<M>)> {
        let slots = *self;
        let slot = move |number: u32| Some((number, slots.linked(number)?));
        // Relaxed: only its own thread reads a chain.
        let next = move |(_, seen): &(u32, &Slot<M>)| slot(seen.chain.load(Relaxed));
        core::iter::successors(slot(chain), next).take(self.slots.len())
    }

    /// Returns how many slots were ever allocated. Only these may be in use.
    pub fn high_water(&self) -> u32 {
        // Relaxed: a count, which orders nothing.
        self.table.fresh.load(Relaxed).min(self.slots.len() as u32 - 1)
    }

    /// Returns a free slot of this thread, allocated from the table if it has none.
    ///
    /// # Panics
    ///
    /// If the table is exhausted: more than 65,534 threads wait.
    #[inline]
    pub fn mine(&self) -> u32 {
        self.try_mine().unwrap_or_else(|| {
            panic!("latchwork: more than {} threads wait at once", self.slots.len() - 1)
        })
    }

    /// Returns a free slot of this thread, or none if the table is exhausted. For threads that can
    /// wait without being called.
    #[inline]
    pub fn try_mine(&self) -> Option<u32> {
        let first = M::chain(self);
        // Acquire: synchronizes with the Release of `discard`, so that its last reads of the slot
        // come before our writes to it.
        if first != 0 && self.at(first).status.load(Acquire) == status::FREE {
            return Some(first);
        }
        self.mine_slow(first)
    }

    #[cold]
    #[inline(never)]
    fn mine_slow(&self, first: Chain) -> Option<u32> {
        // Acquire: as in `try_mine`.
        let mut free =
            self.chained(first).filter(|(_, slot)| slot.status.load(Acquire) == status::FREE);
        if let Some((number, _)) = free.next() {
            return Some(number);
        }
        let number = self.take()?;
        // Release: synchronizes with the Acquire in `reclaim`. A process that is killed before this
        // store leaves a slot that is never used again.
        if self.owner != 0 {
            self.at(number).owner.store(self.owner, Release);
        }
        // Relaxed: only its own thread reads a chain.
        self.at(number).chain.store(first, Relaxed);
        M::set_chain(self, number);
        Some(number)
    }

    /// Takes this thread's abandoned slot in the queue of the latch at `latch` back, in its old
    /// place.
    pub fn readopt(&self, latch: u64) -> Option<u32> {
        for (number, slot) in self.chained(M::chain(self)) {
            // Relaxed: only its own thread writes `latch`, and it wrote ABANDONED. The exchange
            // races with a remover's, and the winner gets the slot; nothing of the remover's needs
            // to be seen.
            if slot.status.load(Relaxed) == status::ABANDONED && slot.latch.load(Relaxed) == latch {
                let (from, to) = (status::ABANDONED, status::WAITING);
                if slot.status.compare_exchange(from, to, Relaxed, Relaxed).is_ok() {
                    return Some(number);
                }
            }
        }
        None
    }

    /// Frees a slot that the caller removed from a queue and whose thread had left.
    ///
    /// `was` is the status that the caller replaced by `REMOVED`.
    pub fn discard(&self, number: u32, was: u32) {
        if was == status::ORPHANED && self.owner != 0 {
            // Relaxed: the next store publishes it. It comes first because a free slot with a dead
            // owner is taken back by the first process that sees it, and would be allocated twice.
            self.at(number).owner.store(self.owner, Relaxed);
        }
        // Release: synchronizes with the Acquire of `try_mine`, and of `reclaim`.
        self.at(number).status.store(status::FREE, Release);
        if was == status::ORPHANED {
            self.give(number);
        }
    }

    /// Returns a thread's slots when it ends.
    pub fn retire(&self, chain: Chain) {
        // The next slot is loaded before this one can belong to another thread.
        let mut slots = self.chained(chain);
        let mut first = slots.next();
        while let Some((number, slot)) = first {
            first = slots.next();
            // Relaxed: the remover of an orphan reads nothing of ours.
            let orphaned =
                slot.status.compare_exchange(status::ABANDONED, status::ORPHANED, Relaxed, Relaxed);
            if orphaned.is_err() {
                // REMOVED becomes FREE at once. Acquire: as in `try_mine`.
                let seen = M::spin_until(&slot.status, Acquire, |s| s != status::REMOVED);
                // A latch that a thread held when it ended stays held.
                if seen != status::READING {
                    self.give(number);
                }
            }
        }
    }

    /// After a fork, in the child: turns every slot into a ghost except this thread's. Queues that
    /// name a ghost are empty, and a joiner treats them so. Of this thread's slots, one free slot
    /// and those that mark a share stay.
    pub fn forked(&self) {
        let mine = self.mine();
        // Relaxed, here and below: there is one thread.
        let mut last = mine;
        for (number, slot) in self.chained(M::chain(self)) {
            if slot.status.load(Relaxed) == status::READING {
                slot.status.store(status::KEPT, Relaxed);
                self.at(last).chain.store(number, Relaxed);
                last = number;
            }
        }
        self.at(last).chain.store(0, Relaxed);
        for number in (1..=self.high_water()).filter(|n| *n != mine) {
            let status = &self.at(number).status;
            let kept = status.load(Relaxed) == status::KEPT;
            status.store(if kept { status::READING } else { status::GHOST }, Relaxed);
        }
        self.table.ghosts.store(1, Relaxed);
        // Free slots are now ghosts as well. The list is cleared so that none is allocated.
        self.table.returned.store(0, Relaxed);
        M::set_chain(self, mine);
    }

    /// Returns whether this process is a child of a fork that inherited slots of other threads.
    pub fn has_ghosts(&self) -> bool {
        // Relaxed: written when there was one thread, from which all others descend.
        self.table.ghosts.load(Relaxed) != 0
    }

    /// Removes dead threads from hand-overs to waiters in no queue. Nothing is handed any more to
    /// the threads that `leaves` names, whose numbers may soon be reused. A waiter that a thread
    /// named by `is_dead` was handing something looks for it itself. Returns false if a living
    /// thread is handing something to a thread that leaves; call it again then.
    ///
    /// Reads all slots that were ever used.
    pub fn forget(&self, leaves: impl Fn(u32) -> bool, is_dead: impl Fn(u32) -> bool) -> bool {
        let mut all = true;
        for number in 1..=self.high_water() {
            let slot = self.at(number);
            // Acquire: synchronizes with the Release of the waiter for its thread number.
            let mut seen = slot.status.load(Acquire);
            while seen & status::ALONE != 0 {
                let is_handed = seen & status::HANDED == status::HANDED;
                let waiter = leaves(slot.next.load(Relaxed));
                let over = match is_handed {
                    true => is_dead(seen >> status::BY_SHIFT & status::BY_MAX),
                    false => waiter,
                };
                if !over {
                    all &= !(is_handed && waiter);
                    break;
                }
                // Release: synchronizes with the Acquire of the waiter, if it lives. The waiter
                // sees what the killed thread stored, which this thread knows to be dead.
                match slot.status.compare_exchange(seen, status::GRANTED, Release, Acquire) {
                    Ok(_) => {
                        M::wake(&slot.status);
                        break;
                    }
                    Err(now) => seen = now,
                }
            }
        }
        all
    }

    /// The tag of the list's head has 32 bits, 72 minutes of a million changes per second. A slot
    /// gets two owners only if a thread stops between its load of the head and its exchange, and
    /// continues after exactly 2^32 changes with the same first slot.
    fn take(&self) -> Option<u32> {
        // Acquire: synchronizes with the Release of `give`, so that its link is seen.
        let mut seen = self.table.returned.load(Acquire);
        // Slots after a damaged link are lost.
        while let Some(slot) = self.linked(seen as u32) {
            let next = slot.free.load(Relaxed);
            let tagged = ((seen >> 32).wrapping_add(1) << 32) | u64::from(next);
            // Acquire: as above.
            match self.table.returned.compare_exchange(seen, tagged, Acquire, Acquire) {
                Ok(_) => return Some(seen as u32),
                Err(now) => seen = now,
            }
        }
        // Relaxed: only the number matters; fresh slots are zero.
        let number = self.table.fresh.fetch_add(1, Relaxed).wrapping_add(1);
        if number as usize >= self.slots.len() {
            self.table.fresh.fetch_sub(1, Relaxed);
            return None;
        }
        Some(number)
    }

    /// Takes back slots whose owners `dead` names, if no queue leads to them. Returns their number.
    ///
    /// | status | meaning for a dead thread's slot | action |
    /// |---|---|---|
    /// | `FREE` | in no queue | taken back |
    /// | `GRANTED` | in no list; its remover does not access it any more | taken back |
    /// | `READING` | marks a share, in no queue | taken back, and the share with it |
    /// | `ABANDONED` | in a queue, its thread has left | `ORPHANED`: its remover takes it back |
    /// | all others | in a queue, or in the hands of its remover | none for now |
    ///
    /// A slot has a status other than the first two before a queue leads to it, and one of them
    /// only after no queue does. So it is never allocated while a queue leads to it. The owner is
    /// first exchanged for ours, so of two concurrent callers one takes the slot back. If that one
    /// is killed first, the slot again belongs to a dead process. A slot whose owner was erased and
    /// that is not on the list yet is lost to the table.
    pub fn reclaim(&self, dead: impl Fn(u64) -> bool) -> u32 {
        let mut count = 0;
        for number in 1..=self.high_water() {
            let slot = self.at(number);
            // Acquire: synchronizes with the Release in `mine_slow`.
            let owner = slot.owner.load(Acquire);
            if owner == 0 || owner == self.owner || !dead(owner) {
                continue;
            }
            // Acquire: synchronizes with the Release in `discard` and in a list's grant, so that
            // its last reads of the slot come before the next owner's writes to it.
            match slot.status.load(Acquire) {
                // AcqRel: one of two succeeds.
                status::FREE | status::GRANTED | status::READING
                    if slot.owner.compare_exchange(owner, self.owner, AcqRel, Relaxed).is_ok() =>
                {
                    // Relaxed: `give` publishes it.
                    slot.status.store(status::FREE, Relaxed);
                    self.give(number);
                    count += 1;
                }
                status::ABANDONED => {
                    // Relaxed: as in `retire`.
                    let (from, to) = (status::ABANDONED, status::ORPHANED);
                    let _ = slot.status.compare_exchange(from, to, Relaxed, Relaxed);
                }
                _ => {}
            }
        }
        count
    }

    /// Returns how many slots are allocated, to living or dead threads.
    pub fn taken(&self) -> u32 {
        // Relaxed: a count, which orders nothing.
        let lent = |number: &u32| self.at(*number).owner.load(Relaxed) != 0;
        (1..=self.high_water()).filter(lent).count() as u32
    }

    fn give(&self, number: u32) {
        // Release: before it is on the list, so that the next owner's name is not overwritten, and
        // so that no slot on the list has a dead owner's name, which would be taken back a second
        // time.
        if self.owner != 0 {
            self.at(number).owner.store(0, Release);
        }
        let mut seen = self.table.returned.load(Relaxed);
        loop {
            self.at(number).free.store(seen as u32, Relaxed);
            let tagged = ((seen >> 32).wrapping_add(1) << 32) | u64::from(number);
            // Release: synchronizes with the Acquire of `take`.
            match self.table.returned.compare_exchange(seen, tagged, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

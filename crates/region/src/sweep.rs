//! Finds dead threads and repairs what they left.
//!
//! A sweeper first claims a thread slot in its own name, so a slot has one sweeper. If the sweeper
//! is killed, its name marks the slot as dead, and the next sweeper continues. All work is done in
//! the dead slot itself, by the steps that its owner took, each of which may be repeated.

use core::cell::Cell;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{ConstMachine, Native, Word};

use crate::header::CLASSES;
use crate::slab::{BLOCK_UNITS, FIRST, USED, corrupt, end_of, give, is_cell};
use crate::slots::{
    FREE, HELD, INTENT_WORDS, RETAINED, SWEPT, ThreadSlot, owned, owner, pack, unpack,
};
use crate::{Error, Offset, Region};

/// A cell that the killed thread had allocated and not yet published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InHand {
    /// The cell.
    pub offset: Offset<()>,
    /// Its generation.
    pub generation: u32,
    /// The number of its size class: cells of 48, 64, 128 .. 4,096 bytes, and of a whole block.
    pub class: u32,
}

/// The decision about a cell in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The region's structures lead to it: it stays in use.
    Keep,
    /// No structure leads to it: it is freed.
    Free,
}

/// How often a sweep checks whether a living thread has completed a hand-over to a dead one before
/// it leaves the killed thread to the next sweep. The living thread may be stopped.
const HANDING: u32 = 100;

/// The slot of a dead thread, claimed by this process.
///
/// If it is dropped before [`finish`](Self::finish), it can be swept again.
#[derive(Debug)]
pub struct Dead<'r, M: ConstMachine = Native> {
    region: &'r Region<M>,
    number: u32,
    mine: u64,
    /// The result of repairing the lists.
    repaired: Result<(), Error>,
}

impl<M: ConstMachine> Region<M> {
    /// Claims the slots of threads whose process died for the caller to sweep. Where layers live
    /// ([`register`](Self::register)), only a [`sweep`](Self::sweep) can free them.
    ///
    /// Their operations on lists of free cells are completed or undone first, so the upper layer
    /// may free cells that it finds through their intent words: those that [`Region::lent`] still
    /// shows in the recorded generation.
    ///
    /// Each slot goes to one sweeper at a time. It costs a look at each slot that was ever used,
    /// and a system call for each process found in them.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`], [`Error::View`].
    pub fn dead_threads(&self) -> Result<impl Iterator<Item = Dead<'_, M>>, Error> {
        self.process()?;
        self.reclaim_waiters();
        Ok(self.of_the_dead().filter_map(|(number, seen)| self.claim_dead(number, seen).ok()?))
    }

    /// Returns whether a [`sweep`](Self::sweep) has work to do. Costs as much as
    /// [`dead_threads`](Self::dead_threads), and stores nothing.
    pub fn has_dead(&self) -> bool {
        self.of_the_dead().next().is_some()
    }

    /// The slots of threads whose process died, and their owner words.
    fn of_the_dead(&self) -> impl Iterator<Item = (u32, u64)> {
        // Neighbouring slots often belong to one process, which is then queried once.
        let mut asked = None;
        self.used_slots().filter_map(move |number| {
            let slot = self.thread_slot(number);
            // Acquire: synchronizes with the exchanges that wrote it.
            let seen = slot.owner.load(Acquire);
            let (generation, process, state) = owned(seen);
            if matches!(state, FREE | RETAINED) {
                return None;
            }
            let lives = match asked {
                Some((of, lives)) if of == (generation, process) => lives,
                _ => self.alive(process, generation),
            };
            asked = Some(((generation, process), lives));
            (!lives).then_some((number, seen))
        })
    }

    /// Claims a dead thread's slot, if its owner is still `seen`.
    fn claim_dead(&self, number: u32, seen: u64) -> Result<Option<Dead<'_, M>>, Error> {
        let (process, generation) = self.process()?;
        let (slot, mine) = (self.thread_slot(number), owner(generation, process, SWEPT));
        // AcqRel: the killed thread's stores are visible here, and to the next sweeper.
        let claimed = slot.owner.compare_exchange(seen, mine, AcqRel, Relaxed);
        Ok(claimed.is_ok().then(|| {
            let repaired = self.repair_lists(number, slot).and(self.repair_moves(slot));
            Dead { region: self, number, mine, repaired }
        }))
    }

    /// Claims the slot of this thread for repair, if its process died: none if it is alive, free,
    /// or claimed by another. See [`dead_threads`](Self::dead_threads).
    ///
    /// # Errors
    ///
    /// [`Error::Forked`], [`Error::View`].
    pub fn dead_thread(&self, number: u32) -> Result<Option<Dead<'_, M>>, Error> {
        if !self.is_slot(number) {
            return Ok(None);
        }
        // Acquire: as in `dead_threads`.
        let seen = self.thread_slot(number).owner.load(Acquire);
        let (generation, process, state) = owned(seen);
        if matches!(state, FREE | RETAINED) || self.alive(process, generation) {
            return Ok(None);
        }
        self.claim_dead(number, seen)
    }

    /// Runs `act` while this thread slot is free and stays free: none if it has an owner, alive or
    /// dead. For state that a thread left behind when it released its slot. A slot number outside
    /// the region, which damaged memory may contain, counts as free.
    ///
    /// `act` must be short, because no thread can claim the slot during it. If the caller is killed
    /// in it, the slot belongs to a dead thread with nothing begun.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`], [`Error::View`].
    pub fn while_free<R>(&self, thread: u32, act: impl FnOnce() -> R) -> Result<Option<R>, Error> {
        let (process, generation) = self.process()?;
        if !self.is_slot(thread) {
            return Ok(Some(act()));
        }
        let (slot, mine) = (self.thread_slot(thread), owner(generation, process, SWEPT));
        // AcqRel: synchronizes with the Release of the last owner, and with the next one's.
        if slot.owner.compare_exchange(FREE, mine, AcqRel, Relaxed).is_err() {
            return Ok(None);
        }
        let withheld = Withheld { region: self, number: thread, mine };
        let done = act();
        drop(withheld);
        Ok(Some(done))
    }

    /// Ensures that no latch is handed to these dead threads any more, and that waiters look
    /// themselves for what these threads were handing over. Must run before their numbers are
    /// reused.
    ///
    /// # Errors
    ///
    /// [`Error::Handed`] for a dead thread to which a living thread is handing a latch.
    pub(crate) fn forget_waiters(&self, dead: &[Dead<'_, M>]) -> Result<(), Error> {
        // Without a file, waiters are in one table of the process, whose threads do not die alone.
        let Some(attached) = &self.inner.attached else { return Ok(()) };
        // A latch names a thread by its slot's number plus one.
        let is_one = |number: u32| dead.iter().any(|dead| dead.number() + 1 == number);
        // The thread that hands over may itself be dead and swept by another. Zero is damage.
        let is_over = |number: u32| {
            is_one(number) || number.checked_sub(1).is_none_or(|slot| self.is_dead(slot))
        };
        for _ in 0..HANDING {
            if attached.slots().forget(is_one, is_over) {
                return Ok(());
            }
            M::yield_now();
        }
        Err(Error::Handed(dead.first().map_or(0, Dead::number)))
    }

    /// Takes back the waiter slots of dead processes, except those that a queue still leads to; a
    /// later call takes those. Part of each sweep. Returns their number.
    pub fn reclaim_waiters(&self) -> u32 {
        if self.check().is_err() || self.inner.process.is_none() {
            return 0;
        }
        let Some(attached) = &self.inner.attached else { return 0 };
        let asked = Cell::new((0, true));
        attached.reclaim(|owner| {
            if asked.get().0 != owner {
                let (generation, process) = unpack(owner);
                asked.set((owner, self.alive(process, generation)));
            }
            !asked.get().1
        })
    }

    /// Returns how many waiter slots are in use: one for each thread that ever waited for a latch
    /// here, as long as it lives or its process is not swept.
    pub fn waiters(&self) -> u32 {
        match (&self.inner.attached, self.check()) {
            (Some(attached), Ok(())) => attached.slots().taken(),
            _ => 0,
        }
    }

    /// Returns whether no living thread uses a thread slot: its owner died, or it has none, or it
    /// does not exist. A thread that finds such a slot named in a latch sweeps and looks at the
    /// latch again. A retained slot is not dead: no sweep changes it.
    ///
    /// Costs a system call if the region has a file.
    pub fn is_dead(&self, thread: u32) -> bool {
        if !self.is_slot(thread) {
            return true;
        }
        // Acquire: as in `dead_threads`.
        let (generation, process, state) = owned(self.thread_slot(thread).owner.load(Acquire));
        state != RETAINED && (state != HELD || !self.alive(process, generation))
    }
}

/// A free slot that is withheld from all threads until this is dropped.
struct Withheld<'r, M: ConstMachine> {
    region: &'r Region<M>,
    number: u32,
    mine: u64,
}

impl<M: ConstMachine> Drop for Withheld<'_, M> {
    fn drop(&mut self) {
        // Release: synchronizes with the AcqRel of the next owner.
        let slot = self.region.thread_slot(self.number);
        let _ = slot.owner.compare_exchange(self.mine, FREE, Release, Relaxed);
        self.region.freed(self.number);
    }
}

impl<'r, M: ConstMachine> Dead<'r, M> {
    /// Returns the slot's number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns which of the slot's owners it was.
    pub fn generation(&self) -> u32 {
        self.slot().generation.load(Relaxed)
    }

    /// Returns the words in which the lock manager recorded its intents. They are zeroed when the
    /// slot is freed, not before.
    pub fn intent(&self) -> &[M::AtomicU64; INTENT_WORDS] {
        &self.slot().intent
    }

    pub(crate) fn slot(&self) -> &ThreadSlot<M> {
        self.region.thread_slot(self.number)
    }

    pub(crate) fn region(&self) -> &'r Region<M> {
        self.region
    }

    /// Returns the cells that the killed thread had allocated and not yet published.
    pub fn in_hand(&self) -> Vec<InHand> {
        let mut cells = Vec::new();
        for note in &self.slot().taking {
            let (generation, unit) = unpack(note.load(Relaxed));
            // `repair_cells` reports an impossible record.
            if unit != 0
                && let Ok(class) = self.region.class_at(unit)
            {
                let class = class as u32;
                cells.push(InHand { offset: Offset::from_raw(unit), generation, class });
            }
        }
        cells
    }

    /// Asks for a decision about each cell that was in hand, and frees the slot: for a region in
    /// which no layer lives. The caller has already done its own repair, by
    /// [`intent`](Self::intent).
    ///
    /// `fate` is called at most 7 times. It must decide under the protection of the structures that
    /// may lead to the cell, so that it never answers [`Fate::Free`] for a cell that another thread
    /// has freed in the meantime.
    ///
    /// # Errors
    ///
    /// [`Error::NoRepair`] if a layer lives in the region: then nothing is done. [`Error::Corrupt`]
    /// and similar if the killed thread's records are impossible. They are then dropped, some cells
    /// are lost, and the slot is still freed.
    pub fn finish(self, fate: impl FnMut(InHand) -> Fate) -> Result<(), Error> {
        match self.region.layers()?.next() {
            Some(layer) => Err(Error::NoRepair(layer)),
            None => self.release(fate),
        }
    }

    /// Leaves the slot as it is for a thread that claims it.
    pub(crate) fn retain(self) {
        // Release: synchronizes with the AcqRel in `claim_one`.
        let to = owner(0, 0, RETAINED);
        let _ = self.slot().owner.compare_exchange(self.mine, to, Release, Relaxed);
        self.leave();
    }

    /// The slot may already belong to the next owner. The drop must not touch it: other threads of
    /// this process sweep under the same name, and that owner may also be dead.
    fn leave(self) {
        core::mem::forget(self);
    }

    pub(crate) fn release(self, mut fate: impl FnMut(InHand) -> Fate) -> Result<(), Error> {
        let slot = self.slot();
        let cells = self.region.repair_cells(slot, &mut fate);
        for word in slot.intents().chain(&slot.taking).chain([&slot.giving, &slot.block]) {
            // Release: a record is erased before the details about it for the next sweeper.
            word.store(0, Release);
        }
        // Release: synchronizes with the Acquire of the next owner. It fails if the word was
        // overwritten.
        let _ = slot.owner.compare_exchange(self.mine, FREE, Release, Relaxed);
        self.region.freed(self.number);
        let ended = self.repaired.and(cells);
        self.leave();
        ended
    }
}

impl<M: ConstMachine> Drop for Dead<'_, M> {
    fn drop(&mut self) {
        // Release: as in `release`. Generation 0 never lives, so the slot will be found again.
        let nobody = owner(0, 0, HELD);
        let _ = self.slot().owner.compare_exchange(self.mine, nobody, Release, Relaxed);
    }
}

impl<M: ConstMachine> Region<M> {
    /// Completes or undoes the moves of batches, so that each is in one place.
    fn repair_lists(&self, number: u32, slot: &ThreadSlot<M>) -> Result<(), Error> {
        for (class, list) in slot.lists.iter().enumerate() {
            for depot in self.depots(class) {
                // Acquire: as in `dead_threads`.
                let (owner, top) = unpack(depot.word.load(Acquire));
                if owner != number + 1 {
                    continue;
                }
                // Release, all: in the order of the owner's steps for the next sweeper.
                if top != 0 && list.spare.load(Relaxed) == top {
                    list.spare.store(0, Release);
                } else if top != 0 && list.head.load(Relaxed) == top {
                    list.head.store(0, Release);
                }
                depot.word.store(u64::from(top), Release);
            }
            let (head, spare) = (list.head.load(Relaxed), list.spare.load(Relaxed));
            if head != 0 && head == spare {
                list.head.store(0, Release);
            }
        }
        let block = slot.block.load(Relaxed);
        if block != 0 {
            self.repair_block(number, slot, block - 1)?;
        }
        for (list, carve) in slot.lists.iter().zip(&slot.carve) {
            let (end, at) = unpack(carve.load(Relaxed));
            if at < end && list.head.load(Relaxed) == at {
                // Release: as above.
                list.head.store(0, Release);
            }
            // A guess until the list is next filled: too low, so that the list is not moved to a
            // depot early.
            list.count.store(0, Relaxed);
        }
        Ok(())
    }

    fn repair_block(&self, number: u32, slot: &ThreadSlot<M>, block: u64) -> Result<(), Error> {
        let state = self.block(block)?;
        // Acquire: as in `dead_threads`.
        let (owner, size) = unpack(state.load(Acquire));
        if owner == number + 1 {
            let class = (size as usize).wrapping_sub(1);
            let first = (block as u32).wrapping_mul(BLOCK_UNITS);
            let Some(carve) = slot.carve.get(class) else {
                return Err(corrupt("size of a block", self.at(first)));
            };
            // Release, all: in the order of the owner's steps. Nothing was carved from it yet.
            carve.store(pack(first + end_of(class), first + FIRST), Release);
            state.store(u64::from(size), Release);
        }
        slot.block.store(0, Release);
        Ok(())
    }

    /// The size class of the block around a cell.
    fn class_at(&self, unit: u32) -> Result<usize, Error> {
        let (_, size) = unpack(self.block(u64::from(unit / BLOCK_UNITS))?.load(Relaxed));
        let class = (size as usize).wrapping_sub(1);
        let fits = class < CLASSES && is_cell(unit, class);
        if fits { Ok(class) } else { Err(corrupt("cell in hand", self.at(unit))) }
    }

    /// Completes the free that was in progress and undoes the allocation.
    fn repair_moves(&self, slot: &ThreadSlot<M>) -> Result<(), Error> {
        let (generation, unit) = unpack(slot.giving.load(Relaxed));
        if unit != 0 {
            let class = self.class_at(unit)?;
            let (now, _) = unpack(self.link(unit)?.load(Relaxed));
            if now == generation && slot.lists[class].head.load(Relaxed) != unit {
                give::<M>(slot, class, self.link(unit)?, unit, generation);
            }
            // Release: in this order for the next sweeper.
            slot.giving.store(0, Release);
        }
        for note in &slot.taking {
            let (generation, unit) = unpack(note.load(Relaxed));
            if unit == 0 {
                continue;
            }
            let class = self.class_at(unit)?;
            let (now, next) = unpack(self.link(unit)?.load(Relaxed));
            let before = generation.wrapping_sub(1);
            if now == before && next != USED {
                // On the list, or off it and not yet marked.
                if slot.lists[class].head.load(Relaxed) != unit {
                    give::<M>(slot, class, self.link(unit)?, unit, before);
                }
                // Release: in this order for the next sweeper.
                note.store(0, Release);
            }
        }
        Ok(())
    }

    /// Decides about the cells in hand.
    fn repair_cells(
        &self,
        slot: &ThreadSlot<M>,
        fate: &mut impl FnMut(InHand) -> Fate,
    ) -> Result<(), Error> {
        for note in &slot.taking {
            let (generation, unit) = unpack(note.load(Relaxed));
            if unit == 0 {
                continue;
            }
            let class = self.class_at(unit)?;
            if unpack(self.link(unit)?.load(Relaxed)) == (generation, USED) {
                let offset = Offset::from_raw(unit);
                let in_hand = InHand { offset, generation, class: class as u32 };
                if fate(in_hand) == Fate::Free {
                    give::<M>(slot, class, self.link(unit)?, unit, generation);
                }
            }
            // Release: in this order for the next sweeper.
            note.store(0, Release);
        }
        Ok(())
    }
}

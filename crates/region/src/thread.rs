//! A claimed thread slot.
//!
//! # Where a free one is
//!
//! Thousands of slots may be held, so a thread that claims one does not look at all of them. A word
//! of the region says from where on to look:
//!
//! ```text
//! next:  31       16 15                0
//!        |  frees   | lowest to look at |
//! ```
//!
//! The slots below are held. A thread that claims one stores the next number, if no slot was freed
//! since it read the word: so says the count. A thread that frees a slot counts, and stores its
//! slot's number if that is lower. Then claims and frees of one slot cost the same beside any
//! number of others.
//!
//! The word is a hint. A thread that is killed after it freed a slot and before it said so leaves a
//! free slot below the number. That is found when all from there on are held: then the rest is
//! looked at, too. So is it if the word is rubbish.

use core::cell::Cell as LocalCell;
use core::fmt;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{ConstMachine, Integer, Native, Word};

use core::ops::Range;

use crate::header::{CLASSES, SWEEPERS, THREADS_MAX};
use crate::slots::{FREE, HELD, INTENT_WORDS, RETAINED, ThreadSlot, owned, owner};
use crate::{Error, Region};

/// A thread at work in a region: a claimed slot, given back when this is dropped.
///
/// It may be handed from thread to thread, but is used by one at a time. If its process dies, the
/// slot stays as it is until somebody sweeps it ([`Region::dead_threads`]).
pub struct Thread<M: ConstMachine = Native> {
    pub(crate) region: Region<M>,
    pub(crate) number: u32,
    slot: *const ThreadSlot<M>,
    /// The slot was [given up](Self::abandon), or is [retained](Self::retain): it may be another
    /// thread's of this process by now.
    abandoned: LocalCell<bool>,
    /// Which entries for cells in hand are unused.
    pub(crate) entries: LocalCell<u8>,
    /// By size of cells, a block that has this size; or one that there is not.
    pub(crate) freed_in: [LocalCell<u32>; CLASSES],
}

// SAFETY: the slot lies in the region, which goes along; the rest is numbers.
unsafe impl<M: ConstMachine> Send for Thread<M> {}

impl<M: ConstMachine> Region<M> {
    /// Claims a thread slot of this process: the lowest that is free, as a rule.
    ///
    /// Costs the same beside any number of slots that are held, unless many were claimed above one
    /// that was freed last: then those are looked at once.
    ///
    /// It inherits the free cells that the slot's last owner had ready.
    ///
    /// # Errors
    ///
    /// [`Error::Threads`] if all are held, by the living or by the dead that nobody swept;
    /// [`Error::Forked`], [`Error::View`].
    pub fn thread(&self) -> Result<Thread<M>, Error> {
        // In the child of a fork nothing of it is there.
        self.process()?;
        let (threads, next) = (self.header().threads, &self.live().next);
        // Acquire: synchronizes with the Release in `freed`: the slots that were freed before are
        // seen to be free.
        let seen = next.load(Acquire);
        let from = lowest(seen).min(threads);
        let found = match self.claim_slot(from..threads)? {
            None => self.claim_slot(0..from)?,
            found => found,
        };
        let thread = found.ok_or(Error::Threads(threads))?;
        let number = thread.number;
        raise_high::<M>(&self.live().high, number + 1);
        // Relaxed: it publishes nothing. It fails if a slot was freed meanwhile.
        let _ = next.compare_exchange(seen, seen & FREES | (number + 1), Relaxed, Relaxed);
        Ok(thread)
    }

    /// Says that a thread slot is free, after it became so.
    pub(crate) fn freed(&self, number: u32) {
        if number >= self.header().threads {
            return;
        }
        let next = &self.live().next;
        let mut seen = next.load(Relaxed);
        loop {
            let to = (seen & FREES).wrapping_add(1 << 16) | lowest(seen).min(number);
            // Release: synchronizes with the Acquire in `thread`.
            match next.compare_exchange(seen, to, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Claims a thread slot to sweep with: one of 16 that are set aside for this, so that a region
    /// can be swept whose slots are all held by the dead; or any that is free.
    ///
    /// # Errors
    ///
    /// As [`thread`](Self::thread): if 16 sweepers died one after the other before one of them came
    /// to its end, while the dead held all other slots.
    pub fn sweeper(&self) -> Result<Thread<M>, Error> {
        let threads = self.header().threads;
        match self.claim_slot(threads..threads + SWEEPERS)? {
            Some(thread) => {
                raise_high::<M>(&self.live().sweepers, thread.number - threads + 1);
                Ok(thread)
            }
            None => self.thread(),
        }
    }

    /// Claims the lowest free slot of a range.
    fn claim_slot(&self, range: Range<u32>) -> Result<Option<Thread<M>>, Error> {
        self.process()?;
        for number in range {
            if self.thread_slot(number).owner.load(Relaxed) == FREE
                && let Some(thread) = self.claim_one(number, FREE)?
            {
                return Ok(Some(thread));
            }
        }
        Ok(None)
    }

    /// Claims this slot, if its owner is `from`.
    fn claim_one(&self, number: u32, from: u64) -> Result<Option<Thread<M>>, Error> {
        let (process, generation) = self.process()?;
        let (slot, mine) = (self.thread_slot(number), owner(generation, process, HELD));
        // AcqRel: synchronizes with the Release of the last owner, so that its lists are seen as
        // it left them; and with the Acquire in `dead_threads`: who sees our name there sees
        // that our process lives, and does not take it for the last one in its slot.
        if slot.owner.compare_exchange(from, mine, AcqRel, Relaxed).is_err() {
            return Ok(None);
        }
        slot.generation.fetch_add(1, Relaxed);
        let entries = LocalCell::new(0x7f);
        let freed_in = [const { LocalCell::new(u32::MAX) }; CLASSES];
        let (region, abandoned) = (self.clone(), LocalCell::new(false));
        Ok(Some(Thread { region, number, slot, abandoned, entries, freed_in }))
    }

    /// Claims the thread slot of this number; none if it is not free. For a layer that makes again
    /// what a slot had in another region.
    ///
    /// # Errors
    ///
    /// [`Error::Threads`] if no thread may have a slot of this number; [`Error::Forked`],
    /// [`Error::View`].
    pub fn thread_at(&self, number: u32) -> Result<Option<Thread<M>>, Error> {
        let threads = self.header().threads;
        if number >= threads {
            return Err(Error::Threads(threads));
        }
        let thread = self.claim_one(number, FREE)?;
        if thread.is_some() {
            raise_high::<M>(&self.live().high, number + 1);
        }
        Ok(thread)
    }

    /// Claims a [retained](Thread::retain) slot, with all that its last owner had; none if it is
    /// not retained. Dropping what is returned frees the slot as any other.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`], [`Error::View`].
    pub fn claim_retained(&self, number: u32) -> Result<Option<Thread<M>>, Error> {
        match self.is_slot(number) {
            true => self.claim_one(number, owner(0, 0, RETAINED)),
            false => Ok(None),
        }
    }

    /// Whether a slot is [retained](Thread::retain).
    pub fn is_retained(&self, number: u32) -> bool {
        // Acquire: synchronizes with the Release in `leave`: what its last owner did is seen.
        let state = || owned(self.thread_slot(number).owner.load(Acquire)).2;
        self.is_slot(number) && state() == RETAINED
    }
}

/// The part of `next` that counts frees.
///
/// The count wraps after 2^16 slots that were freed, 65 ms of a million a second. It is a hint
/// alone: where it came back to the same value while a thread claimed a slot, `next` may lie above
/// a free slot, which the search from the beginning finds.
const FREES: u32 = !0xffff;

/// The lowest slot to look at.
fn lowest(next: u32) -> u32 {
    next & !FREES
}

// A number, and one more than the last, fit below the count.
const _: () = assert!(THREADS_MAX < 1 << 16);

/// Makes the count of slots to look at cover `count` of them.
///
/// Whoever dies before this left nothing in its slot but its name; the next to claim a slot passes
/// it by and raises the count over it. If it is the last of all, [`Region::used_slots`] has it.
fn raise_high<M: ConstMachine>(high: &M::AtomicU32, count: u32) {
    let mut seen = high.load(Relaxed);
    while seen < count {
        // AcqRel: a sweeper that sees the count sees what was claimed below it.
        match high.compare_exchange(seen, count, AcqRel, Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

impl<M: ConstMachine> Thread<M> {
    /// The region that it works in.
    #[inline(always)]
    pub fn region(&self) -> &Region<M> {
        &self.region
    }

    /// The slot's number, below 32,768: the same for everybody.
    #[inline(always)]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// How many owners the slot has had, this one counted.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`].
    pub fn generation(&self) -> Result<u32, Error> {
        Ok(self.slot()?.generation.load(Relaxed))
    }

    /// 16 words in which the lock manager says what it has begun, before it does: they are zero at
    /// first, they outlive the process, and whoever sweeps the slot reads them
    /// ([`Dead::intent`](crate::Dead::intent)). Other layers have their own:
    /// [`intent_of`](Self::intent_of).
    ///
    /// Store with Release what must be found in the order of the stores: a process that is killed
    /// leaves what its instructions stored, and the compiler keeps only such stores in order.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`].
    #[inline(always)]
    pub fn intent(&self) -> Result<&[M::AtomicU64; INTENT_WORDS], Error> {
        Ok(&self.slot()?.intent)
    }

    /// Gives the slot up as if the thread had died: what it holds in any layer is put right by the
    /// next sweep, of any process, and the slot is free when all of it is. For a thread that
    /// cannot undo what it has begun. It does nothing more with the slot; dropping it leaves it so.
    pub fn abandon(&self) {
        // Generation 0 never lives.
        self.leave(owner(0, 0, HELD));
    }

    /// Leaves the slot as it is, for a thread that claims it by its number
    /// ([`Region::claim_retained`]): no sweep touches it, and what it holds in any layer it holds
    /// until then. For a thread at rest, which has begun nothing in any layer that is not finished.
    /// It does nothing more with the slot.
    pub fn retain(&self) {
        self.leave(owner(0, 0, RETAINED));
    }

    fn leave(&self, to: u64) {
        let Ok((process, generation)) = self.region.process() else { return };
        let Ok(slot) = self.slot() else { return };
        if self.abandoned.replace(true) {
            return;
        }
        let mine = owner(generation, process, HELD);
        // Release: synchronizes with the Acquire in `dead_threads` and the AcqRel in `claim_one`:
        // who sweeps, or has the slot next, sees what this thread has done.
        let _ = slot.owner.compare_exchange(mine, to, Release, Relaxed);
    }

    /// Whether the slot is this process's: not [given up](Self::abandon), nor of a fork's parent.
    pub fn has_slot(&self) -> bool {
        let Ok((process, generation)) = self.region.process() else { return false };
        let mine = owner(generation, process, HELD);
        // Relaxed: this thread stores it, and a process that this one was forked from.
        let is_mine = |slot: &ThreadSlot<M>| slot.owner.load(Relaxed) == mine;
        !self.abandoned.get() && self.slot().is_ok_and(is_mine)
    }

    /// The slot, unless this is the child of a fork, which has no slot.
    #[inline(always)]
    pub(crate) fn slot(&self) -> Result<&ThreadSlot<M>, Error> {
        self.region.check()?;
        // SAFETY: it points into the region, which is mapped here and kept by `self.region`.
        Ok(unsafe { &*self.slot })
    }
}

impl<M: ConstMachine> Drop for Thread<M> {
    fn drop(&mut self) {
        // In the child of a fork the slot is the parent's. A region that `die`d keeps it, too.
        let Ok(slot) = self.slot() else { return };
        let Ok((process, generation)) = self.region.process() else { return };
        if !self.region.alive(process, generation) || !self.has_slot() {
            return;
        }
        for word in slot.intents().filter(|word| word.load(Relaxed) != 0) {
            // Release: a note goes before what says more of it, for a sweeper.
            word.store(0, Release);
        }
        // Release: synchronizes with the Acquire of the next owner. If the word is another, a
        // peer has scribbled over it; then it is not ours to free.
        let mine = owner(generation, process, HELD);
        if slot.owner.compare_exchange(mine, FREE, Release, Relaxed).is_ok() {
            self.region.freed(self.number);
        }
    }
}

impl<M: ConstMachine> fmt::Debug for Thread<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Thread({})", self.number)
    }
}

//! A claimed thread slot.
//!
//! # Finding a free slot
//!
//! Thousands of slots may be held, so a thread that claims one does not search all of them. A word
//! of the region contains the position to start from:
//!
//! ```text
//! next:  31       16 15                0
//!        |  frees   | lowest to look at |
//! ```
//!
//! The slots below it are held. A thread that claims a slot stores the next number, if no slot was
//! freed since it read the word, which the count shows. A thread that frees a slot increments the
//! count, and stores its slot's number if that is lower. So claiming and releasing a slot costs the
//! same with any number of other slots in use.
//!
//! The word is a hint. A thread that is killed after it freed a slot and before it updated the word
//! leaves a free slot below the number. If all slots from there on are held, the rest is searched
//! as well, which also handles an invalid word.

use core::cell::Cell as LocalCell;
use core::fmt;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{ConstMachine, Integer, Native, Word};

use core::ops::Range;

use crate::header::{CLASSES, SWEEPERS, THREADS_MAX};
use crate::slots::{FREE, HELD, INTENT_WORDS, RETAINED, ThreadSlot, owned, owner};
use crate::{Error, Region};

/// A thread that uses a region: a claimed slot, released on drop.
///
/// It may be moved between threads but is used by one at a time. If its process dies, the slot
/// stays as it is until it is swept ([`Region::dead_threads`]).
pub struct Thread<M: ConstMachine = Native> {
    pub(crate) region: Region<M>,
    pub(crate) number: u32,
    slot: *const ThreadSlot<M>,
    /// The slot was [abandoned](Self::abandon) or is [retained](Self::retain): another thread of
    /// this process may have it.
    abandoned: LocalCell<bool>,
    /// Which records for cells in hand are unused.
    pub(crate) entries: LocalCell<u8>,
    /// By size of cells, a block with cells of this size, or one that does not exist.
    pub(crate) freed_in: [LocalCell<u32>; CLASSES],
}

// SAFETY: it keeps the region, which contains the slot; the rest is numbers.
unsafe impl<M: ConstMachine> Send for Thread<M> {}

impl<M: ConstMachine> Region<M> {
    /// Claims a thread slot for this process, usually the lowest free one.
    ///
    /// The cost does not depend on the number of slots in use, unless many were claimed above the
    /// slot that was freed last: then those are searched once.
    ///
    /// The thread inherits the free cells of the slot's last owner.
    ///
    /// # Errors
    ///
    /// [`Error::Threads`] if all are in use, by living threads or by dead ones that were not swept;
    /// [`Error::Forked`], [`Error::View`].
    pub fn thread(&self) -> Result<Thread<M>, Error> {
        // Fails in the child of a fork, which has none of the memory.
        self.process()?;
        let (threads, next) = (self.header().threads, &self.live().next);
        // Acquire: synchronizes with the Release in `freed`, so that slots freed before are seen as
        // free.
        let seen = next.load(Acquire);
        let from = lowest(seen).min(threads);
        let found = match self.claim_slot(from..threads)? {
            None => self.claim_slot(0..from)?,
            found => found,
        };
        let thread = found.ok_or(Error::Threads(threads))?;
        let number = thread.number;
        raise_high::<M>(&self.live().high, number + 1);
        // Relaxed: it publishes nothing. It fails if a slot was freed in the meantime.
        let _ = next.compare_exchange(seen, seen & FREES | (number + 1), Relaxed, Relaxed);
        Ok(thread)
    }

    /// Records that a thread slot is free, after it became so.
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

    /// Claims a thread slot for sweeping: one of 16 that are reserved for this, so that a region
    /// can be swept whose slots all belong to dead threads, or any free slot.
    ///
    /// # Errors
    ///
    /// The errors of [`thread`](Self::thread). All 16 are in use only if 16 sweepers were killed
    /// one after the other while dead threads held all other slots.
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
        // AcqRel: synchronizes with the Release of the last owner, so that its lists are seen as it
        // left them; and with the Acquire in `dead_threads`: a thread that sees our name there sees
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

    /// Claims the thread slot of this number; none if it is not free. For a layer that restores a
    /// slot's state from another region.
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

    /// Claims a [retained](Thread::retain) slot with all that its last owner had; none if it is not
    /// retained. Dropping the result frees the slot like any other.
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

    /// Returns whether a slot is [retained](Thread::retain).
    pub fn is_retained(&self, number: u32) -> bool {
        // Acquire: synchronizes with the Release in `leave`, so that the last owner's stores are
        // seen.
        let state = || owned(self.thread_slot(number).owner.load(Acquire)).2;
        self.is_slot(number) && state() == RETAINED
    }
}

/// The part of `next` that counts frees.
///
/// The count wraps after 2^16 freed slots, 65 ms at a million per second. It is only a hint: if it
/// returns to the same value while a thread claims a slot, `next` may lie above a free slot, which
/// the search from the beginning finds.
const FREES: u32 = !0xffff;

/// The lowest slot to search.
fn lowest(next: u32) -> u32 {
    next & !FREES
}

// A number, and the last one plus one, fit below the count.
const _: () = assert!(THREADS_MAX < 1 << 16);

/// Raises the count of slots to search to at least `count`.
///
/// A thread that is killed before this left nothing in its slot but its name. The next thread to
/// claim a slot skips it and raises the count over it. If it is the last of all,
/// [`Region::used_slots`] includes it.
fn raise_high<M: ConstMachine>(high: &M::AtomicU32, count: u32) {
    let mut seen = high.load(Relaxed);
    while seen < count {
        // AcqRel: a sweeper that sees the count sees the claims below it.
        match high.compare_exchange(seen, count, AcqRel, Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

impl<M: ConstMachine> Thread<M> {
    /// Returns the region.
    #[inline(always)]
    pub fn region(&self) -> &Region<M> {
        &self.region
    }

    /// Returns the slot's number, below 32,768, which is the same in every process.
    #[inline(always)]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns how many owners the slot has had, including this one.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`].
    pub fn generation(&self) -> Result<u32, Error> {
        Ok(self.slot()?.generation.load(Relaxed))
    }

    /// Returns 16 words in which the lock manager records its intents before it acts. They are zero
    /// at first and outlive the process; a sweeper of the slot reads them
    /// ([`Dead::intent`](crate::Dead::intent)). Other layers have their own:
    /// [`intent_of`](Self::intent_of).
    ///
    /// Store with Release where the order of stores matters: a killed process leaves what its
    /// instructions stored, and the compiler keeps only such stores in order.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`].
    #[inline(always)]
    pub fn intent(&self) -> Result<&[M::AtomicU64; INTENT_WORDS], Error> {
        Ok(&self.slot()?.intent)
    }

    /// Abandons the slot as if the thread had died: the next sweep, in any process, repairs what it
    /// holds in all layers and then frees the slot. For a thread that cannot undo an operation it
    /// began. The thread must not use the slot any more; dropping it changes nothing.
    pub fn abandon(&self) {
        // Generation 0 never lives.
        self.leave(owner(0, 0, HELD));
    }

    /// Leaves the slot as it is for a thread that claims it by its number
    /// ([`Region::claim_retained`]). No sweep touches it, and it keeps what it holds in any layer.
    /// For a thread at rest, without an unfinished operation in any layer. The thread must not use
    /// the slot any more.
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
        // Release: synchronizes with the Acquire in `dead_threads` and the AcqRel in `claim_one`: a
        // sweeper, or the next owner, sees what this thread has done.
        let _ = slot.owner.compare_exchange(mine, to, Release, Relaxed);
    }

    /// Returns whether the slot belongs to this process: not [abandoned](Self::abandon), nor that
    /// of a fork's parent.
    pub fn has_slot(&self) -> bool {
        let Ok((process, generation)) = self.region.process() else { return false };
        let mine = owner(generation, process, HELD);
        // Relaxed: this thread stores it, or the process that this one was forked from.
        let is_mine = |slot: &ThreadSlot<M>| slot.owner.load(Relaxed) == mine;
        !self.abandoned.get() && self.slot().is_ok_and(is_mine)
    }

    /// The slot, except in the child of a fork, which has none.
    #[inline(always)]
    pub(crate) fn slot(&self) -> Result<&ThreadSlot<M>, Error> {
        self.region.check()?;
        // SAFETY: it points into the region, which is mapped here and kept by `self.region`.
        Ok(unsafe { &*self.slot })
    }
}

impl<M: ConstMachine> Drop for Thread<M> {
    fn drop(&mut self) {
        // In the child of a fork the slot is the parent's. A region that `die`d also keeps it.
        let Ok(slot) = self.slot() else { return };
        let Ok((process, generation)) = self.region.process() else { return };
        if !self.region.alive(process, generation) || !self.has_slot() {
            return;
        }
        for word in slot.intents().filter(|word| word.load(Relaxed) != 0) {
            // Release: a record is erased before the details about it for a sweeper.
            word.store(0, Release);
        }
        // Release: synchronizes with the Acquire of the next owner. If the word differs it was
        // overwritten, and the slot is not ours to free.
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

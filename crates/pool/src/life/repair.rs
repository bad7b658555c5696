//! Repair of what a dead thread left, by the thread that finds it.
//!
//! A frame's latch names the thread slot of its holder. A thread that waits for it, or sweeps, and
//! finds that holder dead first claims the slot, so that no new thread can get it. It has the log
//! repaired, whose records define the content of the page. Then it takes the latch over and
//! examines the state:
//!
//! | state | the killed thread | repair |
//! |---|---|---|
//! | `FREE`, `CLAIMED` | was reading, making or evicting it | the entry is cleared, then the tag |
//! | `VALID` | was before or after a change | the latch is released, with a new version |
//! | `MODIFYING` | was changing the page | poisoned, and rebuilt by the callback |
//! | `POISONED` | was about to release or rebuild it | the latch is released |
//!
//! The repairing thread may itself be killed. Its name is then in the latch, and the state is
//! unchanged until the last store. But a page that must be rebuilt is poisoned before that name is
//! stored, and until it is complete: the next thread that requests the page rebuilds it, and does
//! not mistake the repairer for the author of the change.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_disk::Buffer;
use latchwork_latch::{Exclusive, HolderDied, HolderNumber};
use latchwork_machine::{ConstMachine, Word};

use crate::layout::{
    DIRTY, Desc, HASH_LATCHES_AT, MODIFYING, REMOVAL_LATCH, RESIZE_LATCH, TABLE_LATCH,
    TAG_POISONED, kind, tag, untag,
};
use crate::life::fault::verify;
use crate::point::point;
use crate::translate::HASH_LATCHES;
use crate::{Error, FileId, Handle, Lost};

/// Marks a page as unusable until it is rebuilt; it stays dirty if it was. Its latch is held by
/// this thread, or by a dead thread whose slot is claimed.
fn poison<M: ConstMachine>(desc: &Desc<M>) {
    // Relaxed, both: only the latch's holder stores them.
    let (state, tag) = (desc.state.load(Relaxed), desc.tag.load(Relaxed));
    if untag(tag).is_some() {
        // Release, both: in this order for the death of this thread.
        desc.tag.store(tag | TAG_POISONED, Release);
        desc.state.store(kind::POISONED | state & DIRTY, Release);
    }
}

impl<'t, M: ConstMachine> Handle<'t, M> {
    /// Repairs everything that dead thread slots left in the pool, before they become free. A sweep
    /// of the region calls it ([`Region::sweep`](latchwork_region::Region::sweep)). Returns the
    /// number of frames. Costs a look at each frame.
    ///
    /// # Errors
    ///
    /// [`Error::View`], [`Error::Region`]. A page that cannot be rebuilt is no error here.
    pub fn repair(&self, dead_slots: &[u32]) -> Result<u32, Error> {
        self.writes()?;
        let dead = |holder: HolderNumber| dead_slots.contains(&(holder.get() - 1));
        dead_slots.iter().for_each(|slot| self.unpin(*slot));
        let buckets = (0..HASH_LATCHES).map(|latch| HASH_LATCHES_AT + latch * 8);
        let latches = [TABLE_LATCH, RESIZE_LATCH, REMOVAL_LATCH];
        for latch in latches.into_iter().chain(buckets) {
            let latch = self.pool().head_latch(latch)?;
            if let Some((holder, true)) = latch.holder().filter(|held| dead(held.0)) {
                drop(latch.take_over(holder, self));
            }
        }
        let mut repaired = 0;
        for frame in 0..self.pool().inner.config.frames_max {
            let Some(desc) = self.pool().reached(frame)? else { break };
            let writer = desc.writer.load(Relaxed);
            if u32::try_from(writer).ok().and_then(HolderNumber::new).is_some_and(dead) {
                // Release: as in `Claimed`; the write of the killed thread has ended.
                let _ = desc.writer.compare_exchange(writer, 0, Release, Relaxed);
            }
            let Some((holder, exclusive)) = desc.latch.holder().filter(|held| dead(held.0)) else {
                continue;
            };
            let done = match exclusive {
                true => self.repair_frame(frame, HolderDied(holder)),
                // Without waiting: the repairing thread may hold latches for which others wait.
                false => {
                    desc.latch.forget_sharer(holder, self);
                    Ok(())
                }
            };
            match done {
                Ok(()) | Err(Error::Rebuild { .. }) => repaired += 1,
                Err(other) => return Err(other),
            }
        }
        Ok(repaired)
    }

    /// Called when the holder of a latch is dead: has the log and then the pool repair everything
    /// that the holder left, under a claim on its slot. So no new thread gets that slot, and with
    /// it the name, before the repair.
    ///
    /// A free slot has no dead thread: its thread released it and left a forgotten guard. `alone`
    /// then runs while no thread can get the slot, and its result is returned. Otherwise none is
    /// returned, and the caller looks at the latch again.
    pub(crate) fn meet<R>(
        &self,
        holder: HolderNumber,
        alone: impl FnOnce() -> R,
    ) -> Result<Option<R>, Error> {
        self.writes()?;
        point("repair.met");
        let (inner, slot) = (&self.pool().inner, holder.get() - 1);
        if inner.region.repair_upto(&inner.repair, slot)? {
            return Ok(None);
        }
        Ok(inner.region.while_free(slot, alone)?)
    }

    /// [`meet`](Self::meet) for the latch of a frame.
    #[cold]
    pub(crate) fn meet_frame(&self, frame: u32, died: HolderDied) -> Result<(), Error> {
        let desc = self.pool().desc(frame)?;
        match self.meet(died.0, || self.take_over(desc, died))? {
            Some((begun, Some(guard))) => self.repair_taken(frame, desc, guard, begun, None),
            _ => Ok(()),
        }
    }

    /// Repairs a frame of a dead holder whose slot is claimed by this process.
    #[cold]
    fn repair_frame(&self, frame: u32, died: HolderDied) -> Result<(), Error> {
        let desc = self.pool().desc(frame)?;
        let (begun, Some(guard)) = self.take_over(desc, died) else { return Ok(()) };
        self.repair_taken(frame, desc, guard, begun, begun.then_some(died.0.get() - 1))
    }

    /// Takes over the latch of a dead holder whose slot is claimed by this process. Returns whether
    /// it had begun a change: then the page is poisoned. Has no effect if the latch is no longer
    /// that holder's: another thread has repaired the frame, and a living one may be changing it.
    fn take_over<'d>(
        &'d self,
        desc: &'d Desc<M>,
        died: HolderDied,
    ) -> (bool, Option<Exclusive<'d, Self, M>>) {
        if desc.latch.holder() != Some((died.0, true)) {
            return (false, None);
        }
        // Acquire: synchronizes with the Release of a holder that completed its change and handed
        // the latch to the killed thread: its mark is seen as cleared.
        M::fence(Acquire);
        // Relaxed: no thread stores it while the latch is the killed holder's and its slot claimed.
        let begun = desc.state.load(Relaxed) & MODIFYING != 0;
        if begun {
            poison(desc);
            // Release: before this thread's name for its death: its name is then in the latch of a
            // poisoned page, not of a change that another thread began.
            M::fence(Release);
        }
        (begun, desc.latch.take_over(died.0, self))
    }

    /// Repairs a frame after its latch was taken over, and rebuilds the page if a change was begun:
    /// by the thread of slot `author`, if known.
    fn repair_taken(
        &self,
        frame: u32,
        desc: &Desc<M>,
        guard: Exclusive<'_, Handle<'t, M>, M>,
        begun: bool,
        author: Option<u32>,
    ) -> Result<(), Error> {
        self.count(|counts| &counts.repaired);
        point("repair.taken");
        if begun {
            return self.rebuild(frame, desc, guard, author);
        }
        match desc.state.load(Relaxed) & kind::MASK {
            kind::FREE | kind::CLAIMED => self.pool().undo(desc, frame),
            // The page before or after the change. Words may have changed, so the version rises, as
            // it does when the guard is dropped.
            _ => {}
        }
        drop(guard);
        Ok(())
    }

    /// Rebuilds a poisoned page if this process can; otherwise returns its error.
    pub(crate) fn revive(&self, frame: u32, file: FileId, page: u64) -> Result<(), Error> {
        self.writes()?;
        let poisoned = Error::Poisoned { file: file.number, page };
        if self.pool().inner.options.rebuild.is_none() {
            return Err(poisoned);
        }
        let desc = self.pool().desc(frame)?;
        let guard = match desc.latch.lock(self) {
            Ok(guard) => guard,
            Err(died) => return self.meet_frame(frame, died),
        };
        if desc.tag.load(Relaxed) != tag(file.number, page) | TAG_POISONED {
            guard.unchanged();
            return Ok(());
        }
        // Relaxed: the latch is held.
        if desc.state.load(Relaxed) & !DIRTY == kind::VALID {
            // The thread that rebuilt it died before it recorded that. Release: as in
            // `put_rebuilt`.
            desc.tag.store(tag(file.number, page), Release);
            return Ok(());
        }
        self.rebuild(frame, desc, guard, None)
    }

    /// Rebuilds a half-changed page, or poisons it. Its latch is held.
    fn rebuild(
        &self,
        frame: u32,
        desc: &Desc<M>,
        guard: Exclusive<'_, Handle<'t, M>, M>,
        dead_slot: Option<u32>,
    ) -> Result<(), Error> {
        let pool = self.pool();
        let Some((number, page)) = untag(desc.tag.load(Relaxed)) else {
            pool.undo(desc, frame);
            return Ok(());
        };
        // It stays poisoned until it is rebuilt, also after an error, a panic or a death.
        poison(desc);
        let poisoned = || self.count(|counts| &counts.poisoned);
        let file = match pool.file_here(number) {
            Ok((file, false)) => file,
            // The file is removed or in removal: its pages are not needed.
            Ok((_, true)) | Err(Error::NoFile(_)) => {
                // Release: after the tag; undone again if this thread dies here.
                desc.state.store(kind::CLAIMED, Release);
                pool.undo(desc, frame);
                return Ok(());
            }
            Err(damaged) => {
                poisoned();
                return Err(damaged);
            }
        };
        let Some(rebuild) = &pool.inner.options.rebuild else {
            poisoned();
            return Ok(());
        };
        // Relaxed: the latch is held.
        let (lsn_before, lsn) = (desc.lsn.load(Relaxed), desc.next_lsn.load(Relaxed));
        let lost = Lost { file: number, page, lsn_before, lsn, dead_slot };
        let base = self.image(file, page);
        let mut made = vec![0; file.words as usize];
        let lsn = match rebuild.rebuild(&lost, base.as_deref(), &mut made) {
            Ok(lsn) => lsn,
            Err(why) => {
                poisoned();
                return Err(Error::Rebuild { file: number, page, why });
            }
        };
        point("repair.made");
        if desc.state.load(Relaxed) & DIRTY == 0 {
            // The disk has all but the last change: a page that was clean had every earlier one.
            desc.rec_lsn.store(lsn, Relaxed);
        }
        self.put_rebuilt(frame, desc, (file, page), lsn, &made)?;
        drop(guard);
        Ok(())
    }

    /// Stores a rebuilt page in its frame, whose latch is held.
    fn put_rebuilt(
        &self,
        frame: u32,
        desc: &Desc<M>,
        (file, page): (FileId, u64),
        lsn: u64,
        made: &[u64],
    ) -> Result<(), Error> {
        let words = self.pool().words(frame, file.words)?;
        // Release: the page is poisoned before its words are stored for the death of this thread.
        M::fence(Release);
        for (word, value) in words.iter().zip(made).skip(2) {
            word.store(*value, Relaxed);
        }
        words[1].store(lsn, Relaxed);
        point("repair.copied");
        // Release, all: in this order after the words for the death of this thread. A page whose
        // tag is still poisoned is already complete: it may be written, or rebuilt once more.
        desc.lsn.store(lsn, Release);
        desc.state.store(kind::VALID | DIRTY, Release);
        desc.tag.store(tag(file.number, page), Release);
        self.count(|counts| &counts.rebuilt);
        Ok(())
    }

    /// Returns the page on disk, if it is intact there.
    fn image(&self, file: FileId, page: u64) -> Option<Vec<u64>> {
        let mut bytes = Buffer::new(file.page_bytes() as usize);
        let at = page * u64::from(file.page_bytes());
        self.pool().opened(file.number).ok()?.file.read(at, &mut bytes).ok()?;
        verify(file.number, page, &bytes).ok()?;
        let word =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        Some(bytes.chunks_exact(8).map(word).collect())
    }
}

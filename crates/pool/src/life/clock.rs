//! The clock: which frame is used next for another page.
//!
//! There is no list of free frames, so none that a death could leave in disorder. A hand passes
//! over all frames, a stride at a time, each thread its own stride. In its stride a thread takes
//! the first frame that is free, or whose page is *cold*: clean, without a reference mark, and with
//! a latch that can be had at once. Only if there is none does it take the marks of the stride
//! away, and write dirty pages of it out. So pages that a scan brings in, which have no marks, are
//! evicted before pages that are used again and again (2Q's idea, Johnson and Shasha, VLDB 1994,
//! without its queues).
//!
//! A thread never waits for a latch here: it may hold pages itself.
//!
//! | step of an eviction | stored | a thread that dies after it left |
//! |---|---|---|
//! | 1 | the latch | a page; the latch is let go |
//! | 2 | state `CLAIMED` | the eviction to be finished: step 3 |
//! | 3 | the page's entry: zero | step 4 |
//! | 4 | tag: zero | a frame without a page: freed |

use core::sync::atomic::Ordering::{Relaxed, Release};

use latchwork_latch::{Exclusive, HolderDied};
use latchwork_machine::{ConstMachine, Integer, Word};

use crate::layout::{DIRTY, HAND, kind};
use crate::life::write::Wrote;
use crate::point::point;
use crate::{Error, Handle};

/// How many frames a thread has of the clock at a time.
const STRIDE: u32 = 64;
/// How many dirty pages of a stride are written before the clock goes on.
const BATCH: usize = 16;
/// For so many frames taken one mark is taken away.
const AGE: u32 = 16;
/// How often the clock may go round before the pool counts as full.
const ROUNDS: u64 = 4;
/// How often it goes round once more because a page comes in, or goes, in some frame.
const PATIENCE: u32 = 1000;

type Claimed<'h, 't, M> = (u32, Exclusive<'h, Handle<'t, M>, M>);

impl<'t, M: ConstMachine> Handle<'t, M> {
    /// A frame for another page: its latch is held, its state is `CLAIMED`, its tag zero.
    pub(crate) fn claim<'h>(&'h self) -> Result<Claimed<'h, 't, M>, Error> {
        let mut active = self.pool().target()?;
        let (mut passed, mut trouble, mut waits) = (0, None, 0);
        loop {
            let (mut at, mut end) = self.stride.get();
            if at >= end {
                // Relaxed: a hint where to look.
                let hand = self.pool().inner.head.word(HAND)?.fetch_add(u64::from(STRIDE), Relaxed);
                at = (hand % u64::from(active.max(1))) as u32;
                if hand >= u64::from(active)
                    && let Some(more) = self.grow(active)?
                {
                    (at, active) = (active, more);
                }
                end = at.saturating_add(STRIDE).min(active);
                passed += u64::from(end - at);
            }
            for frame in at..end {
                if let Some(guard) = self.take_cold(frame)? {
                    self.stride.set((frame + 1, end));
                    self.age(frame, active)?;
                    return Ok((frame, guard));
                }
            }
            self.stride.set((0, 0));
            if let Some(found) = self.cool(at, end, &mut trouble)? {
                return Ok(found);
            }
            if passed > u64::from(active) * ROUNDS + 4 * u64::from(STRIDE) {
                if waits == PATIENCE || !self.is_busy(active)? {
                    return Err(self.full(active, trouble));
                }
                waits += 1;
                passed = u64::from(active) * ROUNDS;
                M::yield_now();
            }
            if passed > u64::from(active) {
                self.rescue(at, end, &mut trouble);
            }
        }
    }

    /// Takes the mark of some frame away, once in so many frames taken: else a page that was used
    /// much would stay for as long as there are cold ones around it.
    fn age(&self, taken: u32, active: u32) -> Result<(), Error> {
        let turn = self.turns.get().wrapping_add(1);
        self.turns.set(turn);
        if turn.is_multiple_of(AGE * 16) {
            self.store_counts();
        }
        if turn.is_multiple_of(AGE) {
            let frame = taken.wrapping_add(turn / AGE * 7) % active.max(1);
            // Relaxed: a hint.
            self.pool().mark(frame)?.store(0, Relaxed);
        }
        Ok(())
    }

    /// The frame, if it is free or its page cold.
    fn take_cold<'h>(
        &'h self,
        frame: u32,
    ) -> Result<Option<Exclusive<'h, Handle<'t, M>, M>>, Error> {
        let pool = self.pool();
        let desc = pool.desc(frame)?;
        // Relaxed, all: looked at again under the latch.
        let state = desc.state.load(Relaxed);
        if state != kind::FREE && state != kind::VALID {
            return Ok(None);
        }
        if state == kind::VALID && pool.mark(frame)?.load(Relaxed) != 0 {
            return Ok(None);
        }
        let Some(guard) = desc.latch.try_lock(self) else { return Ok(None) };
        if frame >= pool.target()? {
            // The pool has become smaller: see `resize`.
            guard.unchanged();
            return Ok(None);
        }
        match desc.state.load(Relaxed) {
            kind::FREE => {}
            kind::VALID if desc.writer.load(Relaxed) == 0 && !pool.is_pinned(desc, frame) => {
                // Relaxed: the latch is held, and its Release is before the next page's pins.
                desc.pinned.store(0, Relaxed);
                self.count_evicted(desc);
            }
            _ => {
                guard.unchanged();
                return Ok(None);
            }
        }
        point("evict.locked");
        // Release: for a thread that dies: from here on what is in the frame is to be undone.
        desc.state.store(kind::CLAIMED, Release);
        point("evict.claimed");
        pool.undo(desc, frame);
        // Release: as above.
        desc.state.store(kind::CLAIMED, Release);
        Ok(Some(guard))
    }

    /// Takes the marks of a stride away, and writes its dirty pages out. A frame that is cold then
    /// is taken.
    fn cool<'h>(
        &'h self,
        at: u32,
        end: u32,
        trouble: &mut Option<Error>,
    ) -> Result<Option<Claimed<'h, 't, M>>, Error> {
        let pool = self.pool();
        let mut written = 0;
        for frame in at..end {
            let desc = pool.desc(frame)?;
            let state = desc.state.load(Relaxed);
            if state & kind::MASK != kind::VALID {
                continue;
            }
            let mark = pool.mark(frame)?;
            if mark.load(Relaxed) != 0 {
                // Relaxed: a hint.
                mark.store(0, Relaxed);
                continue;
            }
            if state & DIRTY == 0 || written >= BATCH {
                continue;
            }
            match self.write_back(frame) {
                Ok(Wrote::Clean) => written += 1,
                Ok(Wrote::Busy) => {}
                // Other pages may go out where this one cannot: the pool is not full yet.
                Err(error) => *trouble = Some(error),
            }
        }
        for frame in at..end {
            if written == 0 {
                break;
            }
            if let Some(guard) = self.take_cold(frame)? {
                self.count(|counts| &counts.evicted_dirty);
                self.stride.set((frame + 1, end));
                return Ok(Some((frame, guard)));
            }
        }
        Ok(None)
    }

    /// Repairs what the dead hold among these frames: asked when the clock has gone round.
    fn rescue(&self, at: u32, end: u32, trouble: &mut Option<Error>) {
        for frame in at..end {
            let Ok(desc) = self.pool().desc(frame) else { return };
            if let Some((holder, true)) = desc.latch.holder()
                && Some(holder.get() - 1) != self.slot()
                && self.pool().is_dead(holder.get() - 1)
            {
                // Other frames may be had where this one cannot: the pool is not full yet.
                *trouble = self.meet_frame(frame, HolderDied(holder)).err().or(trouble.take());
            }
            *trouble = self.writer_ended(desc).err().or(trouble.take());
        }
    }

    /// Whether a page comes into some frame, or goes out of one: then that frame may be had soon.
    /// More threads may bring pages in than there are frames.
    fn is_busy(&self, frames: u32) -> Result<bool, Error> {
        for frame in 0..frames {
            let desc = self.pool().desc(frame)?;
            // Relaxed, both: a hint.
            if desc.state.load(Relaxed) == kind::CLAIMED || desc.writer.load(Relaxed) != 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The error of a pool none of whose frames can be had: the disk's, if pages could not go out.
    pub(crate) fn full(&self, frames: u32, trouble: Option<Error>) -> Error {
        let (mut holders, mut dirty) = (Vec::new(), 0);
        for desc in (0..frames).filter_map(|frame| self.pool().desc(frame).ok()) {
            dirty += u32::from(desc.state.load(Relaxed) & DIRTY != 0);
            if let Some((holder, _)) = desc.latch.holder() {
                let slot = holder.get() - 1;
                if !holders.contains(&slot) && holders.len() < 16 {
                    holders.push(slot);
                }
            }
        }
        for (slot, _) in self.pool().pins() {
            if !holders.contains(&slot) && holders.len() < 16 {
                holders.push(slot);
            }
        }
        match trouble {
            Some(error) if dirty > frames / 2 => error,
            _ => Error::Full { frames, dirty, holders },
        }
    }
}

//! The clock: chooses the frame for another page.
//!
//! There is no list of free frames that a death could corrupt. A hand passes over all frames, a
//! stride at a time, and each thread has its own stride. In its stride a thread takes the first
//! frame that is free or whose page is *cold*: clean, without a reference mark, and with a free
//! latch. Only if none exists does it clear the marks of the stride and write its dirty pages. So
//! pages of a scan, which have no marks, are evicted before pages that are used repeatedly (the
//! idea of 2Q, Johnson and Shasha, VLDB 1994, without its queues).
//!
//! A thread never waits for a latch here, because it may hold pages itself.
//!
//! | step of an eviction | stored | a thread that dies after it left |
//! |---|---|---|
//! | 1 | the latch | a page; the latch is released |
//! | 2 | state `CLAIMED` | an incomplete eviction: step 3 |
//! | 3 | the page's entry: zero | step 4 |
//! | 4 | tag: zero | a frame without a page: freed |

use core::sync::atomic::Ordering::{Relaxed, Release};

use latchwork_latch::{Exclusive, HolderDied};
use latchwork_machine::{ConstMachine, Integer, Word};

use crate::layout::{DIRTY, HAND, kind};
use crate::life::write::Wrote;
use crate::point::point;
use crate::{Error, Handle};

/// How many frames a thread gets from the clock at a time.
const STRIDE: u32 = 64;
/// How many dirty pages of a stride are written before the clock continues.
const BATCH: usize = 16;
/// One mark is cleared per so many frames taken.
const AGE: u32 = 16;
/// How often the clock may complete a round before the pool counts as full.
const ROUNDS: u64 = 4;
/// How many extra rounds it makes while pages come into or leave some frame.
const PATIENCE: u32 = 1000;

type Claimed<'h, 't, M> = (u32, Exclusive<'h, Handle<'t, M>, M>);

impl<'t, M: ConstMachine> Handle<'t, M> {
    /// Claims a frame for another page: its latch is held, its state is `CLAIMED`, its tag zero.
    pub(crate) fn claim<'h>(&'h self) -> Result<Claimed<'h, 't, M>, Error> {
        let mut active = self.pool().target()?;
        let (mut passed, mut trouble, mut waits) = (0, None, 0);
        loop {
            let (mut at, mut end) = self.stride.get();
            if at >= end {
                // Relaxed: a hint where to search.
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

    /// Clears the mark of some frame, once per so many frames taken. Otherwise a page that was used
    /// often would stay as long as cold pages surround it.
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

    /// Returns the frame, if it is free or its page cold.
    fn take_cold<'h>(
        &'h self,
        frame: u32,
    ) -> Result<Option<Exclusive<'h, Handle<'t, M>, M>>, Error> {
        let pool = self.pool();
        let desc = pool.desc(frame)?;
        // Relaxed, all: checked again under the latch.
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
                // Relaxed: the latch is held, and its Release precedes the next page's pins.
                desc.pinned.store(0, Relaxed);
                self.count_evicted(desc);
            }
            _ => {
                guard.unchanged();
                return Ok(None);
            }
        }
        point("evict.locked");
        // Release: for the death of this thread: from here on the frame's content is undone.
        desc.state.store(kind::CLAIMED, Release);
        point("evict.claimed");
        pool.undo(desc, frame);
        // Release: as above.
        desc.state.store(kind::CLAIMED, Release);
        Ok(Some(guard))
    }

    /// Clears the marks of a stride and writes its dirty pages. Returns a frame that is cold then.
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
                // Other pages may be writable even if this one is not: the pool is not full yet.
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

    /// Repairs frames in this range whose holders are dead. Called when the clock has completed a
    /// round.
    fn rescue(&self, at: u32, end: u32, trouble: &mut Option<Error>) {
        for frame in at..end {
            let Ok(desc) = self.pool().desc(frame) else { return };
            if let Some((holder, true)) = desc.latch.holder()
                && Some(holder.get() - 1) != self.slot()
                && self.pool().is_dead(holder.get() - 1)
            {
                // Other frames may be available even if this one is not: the pool is not full yet.
                *trouble = self.meet_frame(frame, HolderDied(holder)).err().or(trouble.take());
            }
            *trouble = self.writer_ended(desc).err().or(trouble.take());
        }
    }

    /// Returns whether a page comes into or leaves some frame, which may then become available.
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

    /// Returns the error for a pool without an available frame: the disk's, if pages could not be
    /// written.
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

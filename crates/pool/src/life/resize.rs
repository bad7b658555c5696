//! Resizing a pool while it is in use.
//!
//! Two counts: `active` frames exist, and syncs and checkpoints examine them; the clock may use
//! `target` frames. They differ only while a pool becomes smaller.
//!
//! | step, larger | stored | | step, smaller | stored |
//! |---|---|---|---|---|
//! | 1 | memory for the new frames | | 1 | `target` |
//! | 2 | `active` | | 2 | each frame beyond it: written, evicted |
//! | 3 | `target` | | 3 | `active`; the frames' memory is returned |
//!
//! A pool that may [grow by itself](crate::Options::frames_wanted) grows in steps when a thread
//! that needs a frame finds that all were used. That thread may hold pages, so it does not wait for
//! the latch.
//!
//! A thread that has read the old `target` may still take a frame beyond the new one. It reads
//! `target` again under the frame's latch. If the resizing thread has already had that latch, it
//! sees the new value; if not, the resizing thread comes to the frame later and evicts it.
//!
//! Death: the latch is released; `target` may be below `active`. The next resize completes that,
//! and so does growth in a pool of which as many frames were requested. Frames are not unmapped: a
//! reader that is stopped in a removed frame reads zeros and fails to validate.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_latch::Exclusive;
use latchwork_machine::{ConstMachine, Word};

use crate::layout::{ACTIVE, FRAMES_MIN, HAND, RESIZE_LATCH, TARGET, kind, untag};
use crate::life::write::Wrote;
use crate::point::point;
use crate::{Error, Handle, Pool};

/// Bytes of frames by which a pool grows at most at a time: about a millisecond of work.
const GROWS: u32 = 8 << 20;

impl<M: ConstMachine> Pool<M> {
    /// Enlarges the pool from `active` to `frames` frames; has no effect for fewer. The latch for
    /// resizing is held.
    fn enlarge(&self, active: u32, frames: u32) -> Result<(), Error> {
        let (head, size) = (&self.inner.head, self.inner.config.frame_words());
        self.reach(frames)?;
        if frames > active {
            let (from, count) = (u64::from(active) * size, u64::from(frames - active) * size);
            self.inner.frames.reclaim(from, count)?;
        }
        // Release, both: in this order for the death of this thread; and with the Acquires that
        // read.
        head.word(ACTIVE)?.store(u64::from(frames), Release);
        point("resize.active");
        head.word(TARGET)?.store(u64::from(frames), Release);
        Ok(())
    }

    /// Returns how many frames the clock may use.
    pub(crate) fn target(&self) -> Result<u32, Error> {
        // Acquire: synchronizes with the Release in `resize`: the memory was allocated before.
        let target = self.inner.head.word(TARGET)?.load(Acquire);
        if !(u64::from(FRAMES_MIN)..=u64::from(self.inner.config.frames_max)).contains(&target) {
            return Err(Error::Corrupt("number of frames"));
        }
        Ok(target as u32)
    }
}

impl<M: ConstMachine> Handle<'_, M> {
    /// Sets the number of frames, from 16 to the pool's `frames_max`.
    ///
    /// Shrinking writes and evicts the pages in the removed frames. It waits for threads that
    /// change pages there, so the caller must hold none. Other threads read and write at the same
    /// time.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] out of range; [`Error::Region`] without memory for more. When shrinking:
    /// [`Error::Full`] names the threads that have pinned pages; the error of a page that cannot be
    /// written or rebuilt. The pool then keeps its frames. [`Error::View`].
    pub fn resize(&self, frames: u32) -> Result<(), Error> {
        self.writes()?;
        let pool = self.pool();
        let (head, config) = (&pool.inner.head, pool.inner.config);
        if !(FRAMES_MIN..=config.frames_max).contains(&frames) {
            return Err(Error::Options("frames"));
        }
        let _alone = self.resizing()?;
        let (active, size) = (pool.active()?, config.frame_words());
        let (low, high) = (active.min(frames), active.max(frames));
        let (from, count) = (u64::from(low) * size, u64::from(high - low) * size);
        // Release, all: in this order for the death of this thread; and with the Acquires that
        // read.
        if frames >= active {
            return pool.enlarge(active, frames);
        }
        // Release: as said.
        head.word(TARGET)?.store(u64::from(frames), Release);
        point("resize.target");
        for frame in frames..active {
            if let Err(error) = self.empty(frame) {
                // Release: as said.
                head.word(TARGET)?.store(u64::from(active), Release);
                return Err(error);
            }
        }
        // Release: as said; no page is beyond it any more.
        head.word(ACTIVE)?.store(u64::from(frames), Release);
        point("resize.active");
        pool.inner.frames.release(from, count)?;
        Ok(())
    }

    /// Adds frames to a pool that may grow by itself and has fewer than it may. Returns the new
    /// number; none if it does not grow, possibly because another thread is resizing it.
    #[cold]
    pub(crate) fn grow(&self, active: u32) -> Result<Option<u32>, Error> {
        let pool = self.pool();
        let most = (GROWS / pool.frame_bytes()).max(1);
        // Relaxed: a hint.
        if active >= pool.wanted()? || pool.inner.stopped.load(Relaxed) != 0 {
            return Ok(None);
        }
        let Some(_alone) = pool.head_latch(RESIZE_LATCH)?.try_lock(self) else { return Ok(None) };
        let (now, target) = (pool.active()?, pool.target()?);
        if target != active {
            return Ok(None);
        }
        // The resizing thread was killed in between: all frames below `now` have their memory.
        if now > target && u64::from(now) <= pool.asked()? {
            // Release: synchronizes with the Acquire in `target`, as in `enlarge`.
            pool.inner.head.word(TARGET)?.store(u64::from(now), Release);
            return Ok(Some(now));
        }
        let wanted = pool.wanted()?;
        if now != active || active >= wanted {
            return Ok(None);
        }
        let frames = wanted.min(active.saturating_add(active.min(most)));
        if pool.enlarge(active, frames).is_err() {
            // Without memory for more frames, the existing ones are used.
            pool.inner.stopped.store(1, Relaxed);
            return Ok(None);
        }
        // Relaxed: a hint. The hand continues at the new frames, and is beyond them when all were
        // used.
        pool.inner.head.word(HAND)?.store(u64::from(active), Relaxed);
        Ok(Some(frames))
    }

    /// Takes the latch for resizing.
    fn resizing(&self) -> Result<Exclusive<'_, Self, M>, Error> {
        self.head_latch(RESIZE_LATCH)
    }

    /// Evicts the content of a frame.
    fn empty(&self, frame: u32) -> Result<(), Error> {
        let (pool, mut tried, mut tries) = (self.pool(), (None, 0), 0);
        let desc = pool.desc(frame)?;
        loop {
            if self.write_down(frame, &mut tries)? == Wrote::Busy {
                self.writer_ended(desc)?;
            }
            let guard = match desc.latch.lock(self) {
                Ok(guard) => guard,
                Err(died) => {
                    self.meet_frame(frame, died)?;
                    continue;
                }
            };
            // Relaxed, all: the latch is held.
            let page = untag(desc.tag.load(Relaxed));
            match (desc.state.load(Relaxed), page) {
                (kind::FREE, _) => {
                    guard.unchanged();
                    return Ok(());
                }
                (kind::VALID, _) if desc.writer.load(Relaxed) == 0 => {
                    if pool.is_pinned(desc, frame) {
                        guard.unchanged();
                        return Err(self.full(pool.active()?, None));
                    }
                    // Release: for a thread that dies, as in an eviction.
                    desc.state.store(kind::CLAIMED, Release);
                    point("resize.claimed");
                    self.count_evicted(desc);
                    pool.undo(desc, frame);
                    return Ok(());
                }
                (state, Some((file, page))) if state & kind::MASK == kind::POISONED => {
                    guard.unchanged();
                    match pool.file_here(file) {
                        Ok((file, false)) => self.revive(frame, file, page)?,
                        Ok((file, true)) => self.drop_page(file, page)?,
                        // The file is gone, and so is the page.
                        Err(Error::NoFile(_)) => self.try_later(frame, &mut tried)?,
                        Err(other) => return Err(other),
                    }
                }
                _ => {
                    // It is dirty, or another thread is writing it.
                    guard.unchanged();
                    self.try_later(frame, &mut tried)?;
                }
            }
        }
    }
}

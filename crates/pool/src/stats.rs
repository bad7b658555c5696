//! What a pool has done, and what its frames hold: for people and for tests.
//!
//! A handle counts in its own memory, and stores its counts in words of its thread slot when it is
//! dropped or asked to: so a read counts without a store that others notice.

use core::sync::atomic::Ordering::Relaxed;

use latchwork_machine::{ConstMachine, Word};

use crate::counts::Stats;
use crate::layout::{DIRTY, THREADS, kind, thread_at, untag};
use crate::{Error, Handle, Pool};

/// What a frame holds, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FrameInfo {
    /// Its number.
    pub frame: u32,
    /// File and page.
    pub page: (u16, u64),
    /// `valid`, `claimed` or `poisoned`.
    pub state: &'static str,
    /// Whether the page is not on disk as it is.
    pub dirty: bool,
    /// The page's LSN.
    pub lsn: u64,
    /// While dirty, the LSN of the first change that the disk does not have.
    pub rec_lsn: u64,
    /// Whether it was used since the clock passed.
    pub marked: bool,
    /// The thread slot that holds its latch.
    pub holder: Option<u32>,
}

impl<M: ConstMachine> Handle<'_, M> {
    /// Adds this handle's counts to those of its thread slot, where [`Pool::stats`] finds them.
    pub fn store_counts(&self) {
        let Some(slot) = self.slot() else { return };
        self.stored.set(self.counted());
        self.store_meter();
        for (word, count) in (0..).zip(self.counts.take()) {
            if let Ok(place) = self.pool().inner.head.word(thread_at(slot, word)) {
                // Relaxed: counts; the slot is this thread's.
                place.store(place.load(Relaxed).wrapping_add(count), Relaxed);
            }
        }
    }

    /// What this handle has done since it was made, stored or not.
    pub fn counted(&self) -> Stats {
        let mut counted = self.stored.get();
        let counts = self.counts.look();
        counted.add(|word| counts.get(word as usize).copied().unwrap_or(0));
        counted
    }
}

impl<M: ConstMachine> Pool<M> {
    /// What all handles have done that stored their counts.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] in the child of a fork.
    pub fn stats(&self) -> Result<Stats, Error> {
        let head = &self.inner.head;
        let mut stats = Stats::default();
        for slot in 0..THREADS as u32 {
            if head.words()? < thread_at(slot + 1, 0) {
                break;
            }
            // Relaxed: counts.
            stats.add(|word| head.word(thread_at(slot, word)).map_or(0, |word| word.load(Relaxed)));
        }
        Ok(stats)
    }

    /// What the frame holds: none if it is free, or there is no such frame.
    pub fn frame(&self, frame: u32) -> Option<FrameInfo> {
        let desc = self.desc(frame).ok()?;
        // Relaxed, all: a snapshot, which may be of two states.
        let state = desc.state.load(Relaxed);
        Some(FrameInfo {
            frame,
            page: untag(desc.tag.load(Relaxed))?,
            state: match state & kind::MASK {
                kind::VALID => "valid",
                kind::POISONED => "poisoned",
                _ => "claimed",
            },
            dirty: state & DIRTY != 0,
            lsn: desc.lsn.load(Relaxed),
            rec_lsn: desc.rec_lsn.load(Relaxed),
            marked: self.mark(frame).is_ok_and(|mark| mark.load(Relaxed) != 0),
            holder: desc.latch.holder().map(|(holder, _)| holder.get() - 1),
        })
    }

    /// What the frames hold that are not free.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] in the child of a fork.
    pub fn list(&self) -> Result<impl Iterator<Item = FrameInfo> + '_, Error> {
        Ok((0..self.active()?).filter_map(|frame| self.frame(frame)))
    }
}

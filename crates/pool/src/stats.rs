//! Statistics of a pool and the contents of its frames, for display and tests.
//!
//! A handle counts in its own memory and stores its counts in words of its thread slot when it is
//! dropped or asked to. So a read counts without a store that others notice.

use core::sync::atomic::Ordering::Relaxed;

use latchwork_machine::{ConstMachine, Word};

use crate::counts::Stats;
use crate::layout::{DIRTY, THREADS, kind, thread_at, untag};
use crate::{Error, Handle, Pool};

/// The content of a frame at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FrameInfo {
    /// Its number.
    pub frame: u32,
    /// File and page.
    pub page: (u16, u64),
    /// `valid`, `claimed` or `poisoned`.
    pub state: &'static str,
    /// Whether the disk lacks the page's current state.
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

    /// Returns this handle's counts since it was created, stored or not.
    pub fn counted(&self) -> Stats {
        let mut counted = self.stored.get();
        let counts = self.counts.look();
        counted.add(|word| counts.get(word as usize).copied().unwrap_or(0));
        counted
    }
}

impl<M: ConstMachine> Pool<M> {
    /// Returns the sum of the counts that all handles have stored.
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

    /// Returns the content of a frame: none if it is free or does not exist.
    pub fn frame(&self, frame: u32) -> Option<FrameInfo> {
        let desc = self.desc(frame).ok()?;
        // Relaxed, all: a snapshot, possibly of two states.
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

    /// Returns the contents of the frames that are not free.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] in the child of a fork.
    pub fn list(&self) -> Result<impl Iterator<Item = FrameInfo> + '_, Error> {
        Ok((0..self.active()?).filter_map(|frame| self.frame(frame)))
    }
}

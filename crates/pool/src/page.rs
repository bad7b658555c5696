//! A page that one thread holds and may change.
//!
//! | step | stored | if the thread dies after it |
//! |---|---|---|
//! | `write` | the latch names the thread | the page is unchanged; the latch is taken over |
//! | `intend` | `MODIFYING`, without an LSN | the page is rebuilt from the log, or poisoned |
//! | `begin` | both LSNs; then `MODIFYING` and `DIRTY` | the page is rebuilt, or poisoned |
//! | `set` | words of the page | the same |
//! | `commit` | page LSN; then `MODIFYING` is cleared | the change is complete |
//! | | the latch: version + 1 | |
//!
//! The log record comes before `begin` and after `intend`. So a page whose newest record is in the
//! log and not applied is `MODIFYING`.

use core::fmt;
use core::sync::atomic::Ordering::{Relaxed, Release};

use latchwork_latch::{Exclusive, Version};
use latchwork_machine::{ConstMachine, Native, Word};

use crate::layout::{DIRTY, Desc, MODIFYING, TAG_POISONED, kind, tag};
use crate::point::point;
use crate::view::PageView;
use crate::{FileId, Handle};

/// A page that only this thread may change: it holds the latch.
///
/// Dropped before [`begin`](Self::begin), it leaves the page unchanged, and earlier readers do not
/// notice. Dropped between `begin` and [`commit`](Self::commit), as by a panic, it leaves the page
/// poisoned: half changed, to be rebuilt by a thread that can.
pub struct PageMut<'h, 't, M: ConstMachine = Native> {
    pub(crate) handle: &'h Handle<'t, M>,
    pub(crate) guard: Option<Exclusive<'h, Handle<'t, M>, M>>,
    pub(crate) desc: &'h Desc<M>,
    pub(crate) words: &'h [M::AtomicU64],
    pub(crate) file: FileId,
    pub(crate) page: u64,
    pub(crate) frame: u32,
    /// Whether the page is being created: until `begin` it does not exist.
    pub(crate) fresh: bool,
    /// Whether its words become zero when it is begun.
    pub(crate) wipe: bool,
    pub(crate) begun: Option<u64>,
    pub(crate) intended: bool,
    /// Whether earlier readers must notice although no change is begun any more.
    pub(crate) changed: bool,
}

impl<M: ConstMachine> PageMut<'_, '_, M> {
    /// Returns the file.
    pub fn file(&self) -> FileId {
        self.file
    }

    /// Returns the page's number.
    pub fn page(&self) -> u64 {
        self.page
    }

    /// Returns the page's LSN: that of the last committed change.
    pub fn lsn(&self) -> u64 {
        // Relaxed: this thread holds the latch.
        self.desc.lsn.load(Relaxed)
    }

    /// Returns the frame that has the page.
    pub fn frame(&self) -> u32 {
        self.frame
    }

    /// Returns the version that readers had before, and have again if nothing is begun.
    pub fn version(&self) -> Option<Version> {
        self.guard.as_ref().map(Exclusive::version)
    }

    /// Returns how many words the page has.
    #[allow(clippy::len_without_is_empty, reason = "a page is never empty")]
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Returns a word; none beyond the end.
    #[inline(always)]
    pub fn word(&self, index: usize) -> Option<u64> {
        self.view().word(index)
    }

    /// Returns the page's words, which no other thread changes.
    #[inline(always)]
    pub fn view(&self) -> PageView<'_, M> {
        PageView { words: self.words }
    }

    /// Announces that a record of a change to this page is about to be in the log. If the thread
    /// dies after this, the page is rebuilt from the log, with that record or without.
    ///
    /// Not needed where no log exists.
    pub fn intend(&mut self) {
        let desc = self.desc;
        // Relaxed: this thread holds the latch.
        let state = desc.state.load(Relaxed);
        self.intended = true;
        if self.fresh {
            return;
        }
        desc.next_lsn.store(0, Relaxed);
        // Release: for the death of this thread: after the LSN, and before stores to the log.
        desc.state.store(state | MODIFYING, Release);
        // Release: as in `begin`.
        M::fence(Release);
        point("change.intended");
    }

    /// Begins to change the page. The record of the change, `lsn`, is already in the log; zero
    /// where no log exists. A second call raises the LSN.
    pub fn begin(&mut self, lsn: u64) {
        let desc = self.desc;
        // Relaxed: this thread holds the latch.
        let state = desc.state.load(Relaxed);
        if state & DIRTY == 0 {
            desc.rec_lsn.store(lsn, Relaxed);
        }
        desc.next_lsn.store(lsn, Relaxed);
        // Release: for the death of this thread: a thread that finds the mark finds the LSNs.
        desc.state.store(kind::VALID | DIRTY | MODIFYING, Release);
        // Release: has no partner: a thread that dies after one of the following stores has stored
        // the mark.
        M::fence(Release);
        self.begun = Some(lsn);
        point("change.begun");
        if core::mem::take(&mut self.wipe) {
            // Relaxed: as in `set`.
            self.words.iter().skip(2).for_each(|word| word.store(0, Relaxed));
        }
    }

    /// Stores a word of the page. Returns false beyond the end, and for words 0 and 1, which belong
    /// to the pool.
    ///
    /// # Panics
    ///
    /// If nothing was [begun](Self::begin): readers would not notice the change.
    #[inline]
    #[must_use = "false says that nothing was stored"]
    pub fn set(&mut self, index: usize, word: u64) -> bool {
        assert!(self.begun.is_some(), "latchwork: `set` before `begin`");
        match self.words.get(index) {
            Some(place) if index >= 2 => {
                // Relaxed: the latch orders, and its Release fence for readers that race.
                place.store(word, Relaxed);
                true
            }
            _ => false,
        }
    }

    /// Stores little-endian words of the page from `at` on: all of them, or none. Returns false
    /// like [`set`](Self::set).
    ///
    /// # Panics
    ///
    /// If nothing was [begun](Self::begin).
    #[inline]
    #[must_use = "false says that nothing was stored"]
    pub fn set_run(&mut self, at: usize, words: &[[u8; 8]]) -> bool {
        assert!(self.begun.is_some(), "latchwork: `set_run` before `begin`");
        let places = self.words.get(at..).and_then(|rest| rest.get(..words.len()));
        match places {
            Some(places) if at >= 2 => {
                M::store_words(words, places);
                true
            }
            _ => false,
        }
    }

    /// Returns whether the page is being created: it is empty, and its LSN is not its own.
    pub fn is_new(&self) -> bool {
        self.wipe
    }

    /// Makes earlier readers start again, as a change does. For a page to which no other page leads
    /// any more.
    pub fn touch(&mut self) {
        self.changed = true;
    }

    /// Completes the change and releases the page, with the LSN that was begun.
    pub fn commit(mut self) {
        self.commit_and_keep();
    }

    /// Completes the change and keeps the page for another one. Readers wait until it is dropped.
    pub fn commit_and_keep(&mut self) {
        if let Some(lsn) = self.begun.take() {
            point("change.done");
            if let Some(word) = self.words.get(1) {
                word.store(lsn, Relaxed);
            }
            // Release, both: in this order after the page's words for the death of this thread.
            self.desc.lsn.store(lsn, Release);
            self.desc.state.store(kind::VALID | DIRTY, Release);
            self.fresh = false;
            self.intended = false;
            self.changed = true;
            point("change.unmarked");
        }
    }
}

impl<M: ConstMachine> Drop for PageMut<'_, '_, M> {
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else { return };
        if !self.handle.pool().inner.descs.is_mapped() {
            // The child of a fork: the page belongs to its parent.
            core::mem::forget(guard);
            return;
        }
        if self.begun.is_some() {
            // Release: as in `commit`. The mark is cleared last for the death of this thread.
            self.desc.tag.store(tag(self.file.number, self.page) | TAG_POISONED, Release);
            self.desc.state.store(kind::POISONED | DIRTY, Release);
            self.handle.count(|counts| &counts.poisoned);
            drop(guard);
        } else if self.fresh {
            self.handle.pool().undo(self.desc, self.frame);
            drop(guard);
        } else {
            if self.intended {
                // Release: the mark is cleared while the latch is held.
                self.desc.state.store(self.desc.state.load(Relaxed) & !MODIFYING, Release);
            }
            match self.changed {
                // Counts a change.
                true => drop(guard),
                false => guard.unchanged(),
            }
        }
    }
}

impl<M: ConstMachine> fmt::Debug for PageMut<'_, '_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageMut")
            .field("file", &self.file.number)
            .field("page", &self.page)
            .field("frame", &self.frame)
            .field("begun", &self.begun)
            .finish()
    }
}

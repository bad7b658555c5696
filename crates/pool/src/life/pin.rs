//! Long pins: pages that stay in the pool.
//!
//! A read needs no pin. A thread that returns to a page for minutes and must not read it from disk
//! again records that in a word of its own thread slot (hazard pointers: Michael, 2004). The first
//! pin since the page came in marks the frame; later pins store nothing that readers load. An
//! evicting thread checks the mark, and only for a marked frame the words of all threads that have
//! ever pinned. So the cost of an eviction does not grow with their number.
//!
//! | thread that pins | thread that evicts |
//! |---|---|
//! | 1 the frame's mark; its word: the frame | 1 the frame's latch |
//! | 2 full fence | 2 full fence |
//! | 3 does the frame still have its version? else again | 3 marked, and in a word? then release |
//! | | 4 no mark; the page leaves, with a new version |
//!
//! If 1 on the left comes first, the evictor sees the pin; if 1 on the right comes first, the
//! version has changed. A pin that saw a mark before 4 cleared it has a version that also changes.
//! Death: a sweep clears the words of dead threads; a superfluous mark costs one look at the words.

use core::fmt;
use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

use latchwork_machine::{ConstMachine, Native, Word};

use crate::layout::{Desc, PINNED_HIGH, PINS, THREAD_PINS, thread_at};
use crate::point::point;
use crate::view::PageView;
use crate::{Error, FileId, Handle, Pool};

/// A page that stays in the pool until this is dropped. Other threads may change it.
pub struct Pin<'h, 't, M: ConstMachine = Native> {
    handle: &'h Handle<'t, M>,
    file: FileId,
    page: u64,
    frame: u32,
    word: &'h M::AtomicU64,
}

impl<'t, M: ConstMachine> Handle<'t, M> {
    /// Brings a page into the pool and keeps it there.
    ///
    /// A handle has at most 8 pins, so that pins cannot fill a pool unnoticed. A page that is
    /// discarded or freed leaves the pool in any case.
    ///
    /// # Errors
    ///
    /// [`Error::Pins`]; the errors of [`optimistic`](Self::optimistic).
    pub fn pin(&self, file: FileId, page: u64) -> Result<Pin<'_, 't, M>, Error> {
        let slot = self.slot().ok_or(Error::View)?;
        let head = &self.pool().inner.head;
        let mut free = None;
        for index in 0..PINS {
            let word = head.word(thread_at(slot, THREAD_PINS + index))?;
            // Relaxed: its own words.
            if word.load(Relaxed) == 0 {
                free = Some(word);
                break;
            }
        }
        let word = free.ok_or(Error::Pins(PINS as u32))?;
        // Relaxed: the fence below orders.
        let (high, mine) = (head.word(PINNED_HIGH)?, u64::from(slot) + 1);
        let mut seen = high.load(Relaxed);
        while seen < mine {
            match high.compare_exchange(seen, mine, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        loop {
            let snapshot = self.optimistic(file, page)?;
            // Relaxed, all: the fence below orders.
            if snapshot.desc.pinned.load(Relaxed) == 0 {
                snapshot.desc.pinned.store(1, Relaxed);
            }
            word.store(u64::from(snapshot.frame) + 1, Relaxed);
            // SeqCst: with the fence in `is_pinned`; see the table above.
            M::fence(SeqCst);
            if snapshot.validate() {
                let frame = snapshot.frame;
                return Ok(Pin { handle: self, file, page, frame, word });
            }
            word.store(0, Relaxed);
        }
    }

    /// Clears the pins of a slot whose owner is dead, begins, or ends.
    pub(crate) fn unpin(&self, slot: u32) {
        for index in 0..PINS {
            if let Ok(word) = self.pool().inner.head.word(thread_at(slot, THREAD_PINS + index)) {
                // Relaxed: a thread that sees it late keeps a page longer.
                word.store(0, Relaxed);
            }
        }
    }
}

impl<M: ConstMachine> Pool<M> {
    /// Returns whether a frame is pinned. The caller has just taken its latch.
    pub(crate) fn is_pinned(&self, desc: &Desc<M>, frame: u32) -> bool {
        // SeqCst: with the fence in `pin`.
        M::fence(SeqCst);
        // Relaxed: the fence orders.
        if desc.pinned.load(Relaxed) == 0 {
            return false;
        }
        point("pin.looked");
        self.pins().any(|(_, pinned)| pinned == frame)
    }

    /// Returns thread slots and the frames that they have pinned.
    pub fn pins(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let head = &self.inner.head;
        // Relaxed, both: a fence came before, or it is for display.
        let high = head.word(PINNED_HIGH).map_or(0, |high| high.load(Relaxed)).min(1 << 14);
        (0..high as u32).flat_map(move |slot| {
            (0..PINS).filter_map(move |index| {
                let word = head.word(thread_at(slot, THREAD_PINS + index)).ok()?;
                u32::try_from(word.load(Relaxed)).ok()?.checked_sub(1).map(|frame| (slot, frame))
            })
        })
    }
}

impl<M: ConstMachine> Pin<'_, '_, M> {
    /// Returns the file.
    pub fn file(&self) -> FileId {
        self.file
    }

    /// Returns the page.
    pub fn page(&self) -> u64 {
        self.page
    }

    /// Returns the frame that has the page as long as it is pinned.
    pub fn frame(&self) -> u32 {
        self.frame
    }

    /// Reads the page like [`Handle::read`].
    ///
    /// # Errors
    ///
    /// The errors of [`Handle::read`].
    pub fn read<R>(&self, read: impl FnMut(&PageView<'_, M>) -> Option<R>) -> Result<R, Error> {
        self.handle.read(self.file, self.page, read)
    }
}

impl<M: ConstMachine> Drop for Pin<'_, '_, M> {
    fn drop(&mut self) {
        // The child of a fork does not have the word, and the pin is the parent's.
        if self.handle.pool().inner.head.is_mapped() {
            // Release: an evictor that sees it comes after this thread's reads.
            self.word.store(0, Release);
        }
    }
}

impl<M: ConstMachine> fmt::Debug for Pin<'_, '_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pin")
            .field("file", &self.file.number)
            .field("page", &self.page)
            .field("frame", &self.frame)
            .finish()
    }
}

//! The frames in which a thread last found pages, in its own memory, so that reading a page again
//! skips the translation.
//!
//! A hint may be outdated: the page may now be in another frame or in none. The frame's tag shows
//! that, under the version with which the reader validates its read. So hints need no memory order
//! and are never invalidated.

use core::cell::Cell;
use core::ptr::NonNull;

use latchwork_machine::ConstMachine;

use crate::layout::{Desc, place_of, tag};

/// How many hints of 32 bytes a thread keeps. A page has one place among them.
const HINTS: usize = 128;

/// A frame as this process maps it.
pub(crate) struct Spot<'p, M: ConstMachine> {
    pub(crate) desc: &'p Desc<M>,
    /// All words of the frame.
    pub(crate) words: &'p [M::AtomicU64],
    pub(crate) frame: u32,
}

/// A page's tag, and its place; no page has the tag zero.
struct Hint<M: ConstMachine> {
    tag: u64,
    desc: NonNull<Desc<M>>,
    words: NonNull<M::AtomicU64>,
    /// How many words the frame has.
    count: u32,
    frame: u32,
}

impl<M: ConstMachine> Clone for Hint<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: ConstMachine> Copy for Hint<M> {}

/// The hints of one handle.
pub(crate) struct Hints<M: ConstMachine>([Cell<Hint<M>>; HINTS]);

impl<M: ConstMachine> Default for Hints<M> {
    fn default() -> Self {
        let (desc, words) = (NonNull::dangling(), NonNull::dangling());
        Self(core::array::from_fn(|_| Cell::new(Hint { tag: 0, desc, words, count: 0, frame: 0 })))
    }
}

impl<M: ConstMachine> Hints<M> {
    #[inline(always)]
    fn place(&self, file: u16, page: u64) -> &Cell<Hint<M>> {
        // The file's number is included, because the first pages of all files are read often.
        &self.0[(page as usize).wrapping_add(usize::from(place_of(file)) * 16) % HINTS]
    }

    /// Returns the page's last known place; none if unknown.
    ///
    /// # Safety
    ///
    /// The areas whose frames were [put](Self::put) here stay mapped during `'p`.
    #[inline(always)]
    pub(crate) unsafe fn get<'p>(&self, file: u16, page: u64) -> Option<Spot<'p, M>> {
        let hint = self.place(file, page).get();
        if hint.tag != tag(file, page) {
            return None;
        }
        let (words, count) = (hint.words.as_ptr(), hint.count as usize);
        // SAFETY: a hint with a tag was made from a `Spot`, whose references these are; the caller
        // promises that the memory still exists.
        let words = unsafe { core::slice::from_raw_parts(words, count) };
        // SAFETY: as above.
        let desc = unsafe { hint.desc.as_ref() };
        Some(Spot { desc, words, frame: hint.frame })
    }

    #[inline(always)]
    pub(crate) fn put(&self, file: u16, page: u64, spot: &Spot<'_, M>) {
        let words = NonNull::from(spot.words);
        self.place(file, page).set(Hint {
            tag: tag(file, page),
            desc: NonNull::from(spot.desc),
            words: words.cast(),
            count: words.len() as u32,
            frame: spot.frame,
        });
    }
}

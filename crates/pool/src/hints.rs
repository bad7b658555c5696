//! In which frames a thread last found pages: in its own memory, so that a page that it reads again
//! costs no walk through the translation.
//!
//! A hint may be old: the page may lie in another frame since, or in none. The frame's tag says so,
//! under the version with which the reader validates what it read; so a hint needs no order, and
//! nobody needs to take it back.

use core::cell::Cell;
use core::ptr::NonNull;

use latchwork_machine::ConstMachine;

use crate::layout::{Desc, place_of, tag};

/// How many hints a thread keeps, of 32 bytes: a page has one place among them.
const HINTS: usize = 128;

/// A frame, as one process has it in its memory.
pub(crate) struct Spot<'p, M: ConstMachine> {
    pub(crate) desc: &'p Desc<M>,
    /// All words of the frame.
    pub(crate) words: &'p [M::AtomicU64],
    pub(crate) frame: u32,
}

/// A page's tag, and where it was; no page has the tag zero.
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
        // The file's number counts: the first pages of all files are read often.
        &self.0[(page as usize).wrapping_add(usize::from(place_of(file)) * 16) % HINTS]
    }

    /// Where the page was; none if that is not known.
    ///
    /// # Safety
    ///
    /// For as long as `'p`, the areas stay mapped whose frames were [put](Self::put) here.
    #[inline(always)]
    pub(crate) unsafe fn get<'p>(&self, file: u16, page: u64) -> Option<Spot<'p, M>> {
        let hint = self.place(file, page).get();
        if hint.tag != tag(file, page) {
            return None;
        }
        let (words, count) = (hint.words.as_ptr(), hint.count as usize);
        // SAFETY: a hint with a tag was made of a `Spot`, of which these are the references; what
        // they refer to is there, says the caller.
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

//! Translation: from a page's number to the frame that holds it, by loads alone.
//!
//! A table of three levels for each file: 64 words in the file's entry name chunks, whose 2,048
//! words name chunks, whose 2,048 words say which frame has the page: its number plus one, or zero.
//! So 8 bytes for each page of a part of the file that was ever touched, and 2^28 pages a file. As
//! in Calico (Zhou et al., arXiv 2604.00423), an array replaces the hash table of other pools.
//!
//! Invariants: a chunk is named at one place, its words are zero before it is named, and it stays
//! there for good. So a reader needs no order: whatever it finds is bounds-checked, and validated
//! by the frame's tag.
//!
//! An entry goes from zero to a frame by an exchange: of several threads that fault a page, one
//! reads it. It goes back to zero by the holder of that frame's latch. So entries need no latch.
//!
//! Death: a thread that dies while it makes a chunk leaves that chunk unused: 16 KiB.

use core::sync::atomic::Ordering::{Relaxed, Release};

use latchwork_machine::{ConstMachine, Word};

use crate::layout::{CHUNKS, FILE_TOP, PAGES_MAX, file_at};
use crate::point::point;
use crate::{Error, Pool};

const CHUNK: u64 = 2048;
const SHIFT: u32 = CHUNK.trailing_zeros();

const _: () = assert!(PAGES_MAX == 64 * CHUNK * CHUNK);

/// Where a chunk has the word of a page. No chunk, zero, is far beyond the end.
#[inline(always)]
const fn at_of(chunk: u64, page: u64) -> u64 {
    (chunk.wrapping_sub(1) & ((1 << 40) - 1)) * CHUNK + page % CHUNK
}

impl<M: ConstMachine> Pool<M> {
    /// The word that says which frame has the page; none if no page near it was ever used.
    #[inline(always)]
    pub(crate) fn find(&self, file: u16, page: u64) -> Result<Option<&M::AtomicU64>, Error> {
        if page >= PAGES_MAX {
            return Ok(None);
        }
        let top = file_at(file, FILE_TOP + (page >> (2 * SHIFT)));
        // Relaxed, both: see the invariants above.
        let chunk = self.inner.head.word(top)?.load(Relaxed);
        if chunk == 0 {
            return Ok(None);
        }
        let chunk = self.in_chunk(chunk, page >> SHIFT)?.load(Relaxed);
        if chunk == 0 { Ok(None) } else { self.in_chunk(chunk, page).map(Some) }
    }

    /// The entry of a page: as [`find`](Self::find), for a read that goes the slow way for whatever
    /// reason.
    #[inline(always)]
    pub(crate) fn entry(&self, file: u16, page: u64) -> Option<u64> {
        if page >= PAGES_MAX {
            return None;
        }
        let top = file_at(file, FILE_TOP + (page >> (2 * SHIFT)));
        // Relaxed, all: as in `find`.
        let chunk = self.inner.head.word(top).ok()?.load(Relaxed);
        let chunk = self.inner.xlat.word(at_of(chunk, page >> SHIFT)).ok()?.load(Relaxed);
        Some(self.inner.xlat.word(at_of(chunk, page)).ok()?.load(Relaxed))
    }

    #[inline(always)]
    fn in_chunk(&self, chunk: u64, page: u64) -> Result<&M::AtomicU64, Error> {
        Ok(self.inner.xlat.word(at_of(chunk, page))?)
    }

    /// The same, made if need be. The table's latch is held.
    pub(crate) fn make(&self, file: u16, page: u64) -> Result<&M::AtomicU64, Error> {
        if page >= PAGES_MAX {
            return Err(Error::OutOfRange { file, page, pages: PAGES_MAX });
        }
        let top = self.inner.head.word(file_at(file, FILE_TOP + (page >> (2 * SHIFT))))?;
        let middle = self.chunk_of(top)?;
        let bottom = self.chunk_of(self.in_chunk(middle, page >> SHIFT)?)?;
        self.in_chunk(bottom, page)
    }

    /// The chunk that `word` names, made if it names none. The table's latch is held.
    fn chunk_of(&self, word: &M::AtomicU64) -> Result<u64, Error> {
        let named = word.load(Relaxed);
        if named != 0 {
            return Ok(named);
        }
        let taken = self.inner.head.word(CHUNKS)?;
        let chunk = taken.load(Relaxed).saturating_add(1).min(1 << 40);
        self.inner.xlat.grow(chunk * CHUNK)?;
        point("table.chunk");
        // Release, both: in this order, for a thread that dies between them. A chunk that is
        // counted and not named is lost; one that is named and not counted would be named twice.
        taken.store(chunk, Release);
        word.store(chunk, Release);
        Ok(chunk)
    }
}

//! A table of three levels for each file: 64 words in the file's entry name chunks, whose 2,048
//! words name chunks, whose 2,048 words are the entries. So it takes 8 bytes for each page of used
//! parts of a file, with 2^28 pages per file. As in Calico (Zhou et al., arXiv 2604.00423), an
//! array replaces the hash table of other pools.
//!
//! Invariants: a chunk is named in one place, its words are zero before it is named, and it stays
//! there for good. An entry changes from zero to a frame by an exchange: one of several threads
//! that fault a page reads it. The holder of that frame's latch changes it back to zero. So entries
//! need no latch.
//!
//! A word that names a chunk is loaded with Acquire and stored with Release: the area was
//! lengthened before, perhaps by another process, and a thread that follows the word finds the new
//! length. [`Translation::glimpse`] does without: a thread that finds nothing by it calls
//! [`Translation::entry`].
//!
//! Death: a thread that dies while it creates a chunk leaves that chunk unused: 16 KiB.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{ConstMachine, Word};

use super::Translation;
use crate::layout::{CHUNK, CHUNKS, FILE_TOP, PAGES_MAX, file_at};
use crate::point::point;
use crate::{Error, FileId, Handle, Pool};

const SHIFT: u32 = CHUNK.trailing_zeros();

const _: () = assert!(PAGES_MAX == 64 * CHUNK * CHUNK);

/// The table of one file.
pub(crate) struct Array<'p, M: ConstMachine> {
    pool: &'p Pool<M>,
    file: u16,
}

/// The position of a page's word in a chunk. Chunk zero, which means none, is far beyond the end.
#[inline(always)]
const fn at_of(chunk: u64, page: u64) -> u64 {
    (chunk.wrapping_sub(1) & ((1 << 40) - 1)) * CHUNK + page % CHUNK
}

impl<'p, M: ConstMachine> Array<'p, M> {
    #[inline(always)]
    pub(crate) fn of(pool: &'p Pool<M>, file: FileId) -> Self {
        Self { pool, file: file.number }
    }

    /// Returns the word of a page's entry; none if no page near it was ever used.
    pub(crate) fn find(&self, page: u64) -> Result<Option<&'p M::AtomicU64>, Error> {
        if page >= PAGES_MAX {
            return Ok(None);
        }
        // Acquire, both: synchronizes with the Release in `chunk_of`: the chunk is within the area.
        let chunk = self.top(page)?.load(Acquire);
        if chunk == 0 {
            return Ok(None);
        }
        let chunk = self.in_chunk(chunk, page >> SHIFT)?.load(Acquire);
        if chunk == 0 { Ok(None) } else { self.in_chunk(chunk, page).map(Some) }
    }

    /// Returns the word of a page's entry, created if necessary.
    pub(crate) fn found_or_made(
        &self,
        handle: &Handle<'_, M>,
        page: u64,
    ) -> Result<&'p M::AtomicU64, Error> {
        if let Some(entry) = self.find(page)? {
            return Ok(entry);
        }
        let _alone = handle.table()?;
        self.make(page)
    }

    /// Creates the word of a page's entry. The table's latch is held.
    fn make(&self, page: u64) -> Result<&'p M::AtomicU64, Error> {
        if page >= PAGES_MAX {
            return Err(Error::OutOfRange { file: self.file, page, pages: PAGES_MAX });
        }
        let middle = self.chunk_of(self.top(page)?)?;
        let bottom = self.chunk_of(self.in_chunk(middle, page >> SHIFT)?)?;
        self.in_chunk(bottom, page)
    }

    /// Calls `with` for each page in a used part of the file, and its entry.
    pub(crate) fn each(
        &self,
        mut with: impl FnMut(u64, &M::AtomicU64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for top in 0..PAGES_MAX >> (2 * SHIFT) {
            let first = top << (2 * SHIFT);
            // Acquire, here and below: as in `find`.
            let middle = self.top(first)?.load(Acquire);
            for at in 0..if middle == 0 { 0 } else { CHUNK } {
                let first = first + (at << SHIFT);
                let bottom = self.in_chunk(middle, at)?.load(Acquire);
                for page in first..first + if bottom == 0 { 0 } else { CHUNK } {
                    with(page, self.in_chunk(bottom, page)?)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the chunk that `word` names, created if it names none. The table's latch is held.
    fn chunk_of(&self, word: &M::AtomicU64) -> Result<u64, Error> {
        let named = word.load(Relaxed);
        if named != 0 {
            return Ok(named);
        }
        let chunk = self.pool.take_chunks(1)?;
        // Release: synchronizes with the Acquire in `find`. It also comes after the count for the
        // death of this thread between them.
        word.store(chunk, Release);
        Ok(chunk)
    }

    #[inline(always)]
    fn top(&self, page: u64) -> Result<&'p M::AtomicU64, Error> {
        Ok(self.pool.inner.head.word(file_at(self.file, FILE_TOP + (page >> (2 * SHIFT))))?)
    }

    #[inline(always)]
    fn in_chunk(&self, chunk: u64, page: u64) -> Result<&'p M::AtomicU64, Error> {
        Ok(self.pool.inner.xlat.word(at_of(chunk, page))?)
    }
}

impl<M: ConstMachine> Translation<M> for Array<'_, M> {
    #[inline(always)]
    fn glimpse(&self, page: u64) -> Option<u64> {
        if page >= PAGES_MAX {
            return None;
        }
        // Relaxed, all: a value that is seen too early leads beyond a length seen before, or to a
        // frame with another page's tag.
        let chunk = self.top(page).ok()?.load(Relaxed);
        let chunk = self.in_chunk(chunk, page >> SHIFT).ok()?.load(Relaxed);
        Some(self.in_chunk(chunk, page).ok()?.load(Relaxed))
    }

    fn entry(&self, page: u64) -> Result<u64, Error> {
        // Acquire: synchronizes with the AcqRel in `put`: the frame is within the areas. Its tag
        // decides which page it has.
        Ok(self.find(page)?.map_or(0, |entry| entry.load(Acquire)))
    }

    fn put(&self, handle: &Handle<'_, M>, page: u64, frame: u32) -> Result<bool, Error> {
        let entry = self.found_or_made(handle, page)?;
        // AcqRel: synchronizes with the Release in `take`: the previous owner of the page has
        // released it, and its writes are on disk; and with the Acquire in `entry`.
        Ok(entry.compare_exchange(0, u64::from(frame) + 1, AcqRel, Relaxed).is_ok())
    }

    fn take(&self, page: u64, frame: u32) {
        if let Ok(Some(entry)) = self.find(page) {
            // Release: synchronizes with the AcqRel in `put`.
            let _ = entry.compare_exchange(u64::from(frame) + 1, 0, Release, Relaxed);
        }
    }
}

impl<M: ConstMachine> Pool<M> {
    /// Allocates consecutive unused chunks of the translation, whose words are zero, and returns
    /// the first. The table's latch is held.
    pub(crate) fn take_chunks(&self, count: u64) -> Result<u64, Error> {
        let taken = self.inner.head.word(CHUNKS)?;
        let before = taken.load(Relaxed).min(1 << 40);
        let after = before.saturating_add(count).min(1 << 40);
        self.inner.xlat.grow(after * CHUNK)?;
        point("table.chunk");
        // Release: before the chunk is named for the death of this thread between them. A chunk
        // that is counted and not named is lost; a chunk named without being counted would be
        // allocated twice.
        taken.store(after, Release);
        Ok(before + 1)
    }
}

//! A table of three levels for each file: 64 words in the file's entry name chunks, whose 2,048
//! words name chunks, whose 2,048 words are the entries. So 8 bytes for each page of a part of the
//! file that was ever touched, and 2^28 pages a file. As in Calico (Zhou et al., arXiv 2604.00423),
//! an array replaces the hash table of other pools.
//!
//! Invariants: a chunk is named at one place, its words are zero before it is named, and it stays
//! there for good. An entry goes from zero to a frame by an exchange: of several threads that fault
//! a page, one reads it. It goes back to zero by the holder of that frame's latch. So entries need
//! no latch.
//!
//! A word that leads somewhere is loaded with Acquire, and stored with Release: the area that it
//! leads into was made longer before, perhaps by another process, and a thread that follows it
//! finds the new length. [`Translation::glimpse`] does without: a thread that finds nothing by it
//! asks [`Translation::entry`].
//!
//! Death: a thread that dies while it makes a chunk leaves that chunk unused: 16 KiB.

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

/// Where a chunk has the word of a page. No chunk, zero, is far beyond the end.
#[inline(always)]
const fn at_of(chunk: u64, page: u64) -> u64 {
    (chunk.wrapping_sub(1) & ((1 << 40) - 1)) * CHUNK + page % CHUNK
}

impl<'p, M: ConstMachine> Array<'p, M> {
    #[inline(always)]
    pub(crate) fn of(pool: &'p Pool<M>, file: FileId) -> Self {
        Self { pool, file: file.number }
    }

    /// The word of a page's entry; none if no page near it was ever used.
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

    /// The same, made if need be.
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

    /// The same, with the table's latch held.
    fn make(&self, page: u64) -> Result<&'p M::AtomicU64, Error> {
        if page >= PAGES_MAX {
            return Err(Error::OutOfRange { file: self.file, page, pages: PAGES_MAX });
        }
        let middle = self.chunk_of(self.top(page)?)?;
        let bottom = self.chunk_of(self.in_chunk(middle, page >> SHIFT)?)?;
        self.in_chunk(bottom, page)
    }

    /// Calls `with` for each page whose part of the file was ever used, and its entry.
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

    /// The chunk that `word` names, made if it names none. The table's latch is held.
    fn chunk_of(&self, word: &M::AtomicU64) -> Result<u64, Error> {
        let named = word.load(Relaxed);
        if named != 0 {
            return Ok(named);
        }
        let chunk = self.pool.take_chunks(1)?;
        // Release: synchronizes with the Acquire in `find`. It is also behind the count, for a
        // thread that dies between them.
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
        // Relaxed, all: what is seen too early leads beyond a length that was seen before, or to a
        // frame whose tag is another's.
        let chunk = self.top(page).ok()?.load(Relaxed);
        let chunk = self.in_chunk(chunk, page >> SHIFT).ok()?.load(Relaxed);
        Some(self.in_chunk(chunk, page).ok()?.load(Relaxed))
    }

    fn entry(&self, page: u64) -> Result<u64, Error> {
        // Acquire: synchronizes with the AcqRel in `put`: the frame is within the areas. What page
        // it has is for its tag to say.
        Ok(self.find(page)?.map_or(0, |entry| entry.load(Acquire)))
    }

    fn put(&self, handle: &Handle<'_, M>, page: u64, frame: u32) -> Result<bool, Error> {
        let entry = self.found_or_made(handle, page)?;
        // AcqRel: synchronizes with the Release in `take`: the thread that had the page before has
        // let it go, and what it wrote to disk is there; and with the Acquire in `entry`.
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
    /// The first of so many chunks of the translation, which nobody has: their words are zero. The
    /// table's latch is held.
    pub(crate) fn take_chunks(&self, count: u64) -> Result<u64, Error> {
        let taken = self.inner.head.word(CHUNKS)?;
        let before = taken.load(Relaxed).min(1 << 40);
        let after = before.saturating_add(count).min(1 << 40);
        self.inner.xlat.grow(after * CHUNK)?;
        point("table.chunk");
        // Release: before the chunk is named, for a thread that dies between them. A chunk that is
        // counted and not named is lost; one that is named and not counted would be named twice.
        taken.store(after, Release);
        Ok(before + 1)
    }
}

//! Free pages: a list for each file, from which [`Handle::new_page`] takes a page for any process.
//!
//! The list is part of the translation. A page on it has no frame, so its entry is used: a mark,
//! and the next page. The file's word contains the first page and a count that each push raises, so
//! that an exchange fails if the first page left and returned in between (Treiber 1986). The count
//! has 28 bits, which wrap after 268 s of a million pushes per second. One page goes to two threads
//! only if a thread stops between its load of the word and its exchange, about ten instructions,
//! and continues after exactly a multiple of 2^28 pushes to the file, with the same first page.
//!
//! ```text
//!  63     62     61 39 38       32 31  29 28        0
//! ┌──────┬──────┬─────┬───────────┬──────┬───────────┐
//! │ FREE │ HOLE │  0  │ generation│  0   │ next, or 0│  entry
//! └──────┴──────┴─────┴───────────┴──────┴───────────┘
//!  63        57 56                   29 28        0
//! ┌────────────┬───────────────────────┬───────────┐
//! │ generation │ COUNT, one a push more│first, or 0│  file
//! └────────────┴───────────────────────┴───────────┘
//! ```
//!
//! Pages have their number plus one here. The list lives as long as the region. The upper layer
//! knows from its own log and pages which pages of a file are free on disk.
//!
//! | step | stored | a thread that dies after it left |
//! |---|---|---|
//! | free 1 | the page leaves its frame | a page in the file, as on disk |
//! | free 2 | its entry: `FREE` | a free page in no list: lost until the region ends |
//! | free 3 | the file's word | a free page |
//! | take 1 | the file's word | as after free 2 |
//! | take 2 | its entry: zero | a page in the file, as on disk |
//!
//! # Holes
//!
//! [`Handle::punch`] returns the room of free pages to the file system. A page with `HOLE` may have
//! no room on the disk; the thread that takes it first allocates room. Both hold the latch of the
//! table of files, so a page is not taken while it is punched, and a taken page is not punched.
//!
//! | step | stored | a thread that dies after it left |
//! |---|---|---|
//! | punch 1 | the latch; entries: `FREE` to `FREE`, `HOLE` | free pages that have their room |
//! | punch 2 | the upper layer makes durable that they are free | the same |
//! | punch 3 | the file's hole | free pages, of which some have no room |
//! | take 1 | the file's word, as above | a free page in no list |
//! | take 2 | the latch; room in the file | the same |
//! | take 3 | its entry: zero | a page in the file, as on disk |

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use latchwork_disk::Error as DiskError;
use latchwork_machine::{ConstMachine, Word};

use crate::layout::{FILE_FREE, FILE_ROOM, FILES, PAGES_MAX, VALUE, owned};
use crate::point::point;
use crate::translate::Array;
use crate::{Error, FileId, Handle, Pool};

/// The mark in the entry of a free page: no frame has such a number.
const FREE: u64 = 1 << 63;
/// The mark in the entry of a free page that may have no room on the disk.
const HOLE: u64 = 1 << 62;
const LINK: u64 = (PAGES_MAX << 1) - 1;
const COUNT: u64 = LINK + 1;

/// Returns the entry of a free page that precedes the page `next`.
const fn mark(file: FileId, next: u64) -> u64 {
    FREE | ((file.number / FILES as u16) as u64) << 32 | next
}

/// Returns whether an entry is the mark of a free page of this file.
const fn is_mark(entry: u64, file: FileId) -> bool {
    entry & !(LINK | HOLE) == mark(file, 0)
}

/// Pages that are punched under one latch: the most for which another thread waits.
const TOGETHER: usize = 64;

/// A page that was taken from the list.
pub(crate) enum Popped {
    /// Its entry is zero.
    Page(u64),
    /// Its entry says that it may have no room.
    Hole(u64),
}

/// Returns whether an entry marks its page as free.
pub(crate) const fn is_free(entry: u64) -> bool {
    entry & FREE != 0
}

impl<M: ConstMachine> Handle<'_, M> {
    /// Frees a page: removes it from the pool like [`discard`](Self::discard), so that a later
    /// [`new_page`](Self::new_page) of any process may use its number. Until then, accesses to the
    /// page fail with [`Error::Freed`].
    ///
    /// The pool forgets this when its region ends and writes nothing about it to disk; the caller
    /// must log what recovery needs. The caller must know that no thread uses the page.
    ///
    /// # Errors
    ///
    /// [`Error::NoFile`], [`Error::OutOfRange`], [`Error::Sparse`]; [`Error::Freed`] if it is
    /// already free; [`Error::View`], [`Error::Region`].
    pub fn free_page(&self, file: FileId, page: u64) -> Result<(), Error> {
        self.free_as(file, page, 0)
    }

    /// [`free_page`](Self::free_page) for a page that may have no room on the disk, because it was
    /// [punched](Self::punch) or lies behind the end of the file. The thread that takes it
    /// allocates room.
    ///
    /// # Errors
    ///
    /// The errors of [`free_page`](Self::free_page); [`Error::OutOfRange`] beyond
    /// [`FileId::pages_max`].
    pub fn free_hole(&self, file: FileId, page: u64) -> Result<(), Error> {
        let pool = self.pool();
        pool.extend(file, page + 1)?;
        // Its room is allocated when it is taken, not together with that of the following pages.
        pool.raise(file, FILE_ROOM, page + 1)?;
        let hole = if pool.is_ahead(file.number)? { HOLE } else { 0 };
        self.free_as(file, page, hole)
    }

    fn free_as(&self, file: FileId, page: u64, hole: u64) -> Result<(), Error> {
        self.writes()?;
        let pool = self.pool();
        let pages = pool.pages(file)?;
        if page >= pages {
            return Err(file.out_of_range(page, pages));
        }
        if file.is_sparse() {
            return Err(Error::Sparse { file: file.number });
        }
        point("free.wanted");
        let entry = loop {
            self.drop_page(file, page)?;
            let entry = Array::of(pool, file).found_or_made(self, page)?;
            // AcqRel: as in `put` for the next owner of the page.
            match entry.compare_exchange(0, mark(file, 0) | hole, AcqRel, Relaxed) {
                Ok(_) => break entry,
                Err(seen) if is_free(seen) => {
                    return Err(Error::Freed { file: file.number, page });
                }
                // A reader brought it in again.
                Err(_) => {}
            }
        };
        point("free.marked");
        // SeqCst: as in `publish`: either the removal of the file finds the mark, or this thread
        // finds that the file is being removed.
        M::fence(SeqCst);
        let pushed = pool.kind(file.number).and_then(|_| pool.push_free(file, page));
        if let Err(gone) = pushed {
            let mut seen = entry.load(Relaxed);
            while is_mark(seen, file) {
                // Release: for the next owner of the page.
                match entry.compare_exchange(seen, 0, Release, Relaxed) {
                    Ok(_) => break,
                    Err(now) => seen = now,
                }
            }
            return Err(gone);
        }
        self.count(|counts| &counts.freed);
        Ok(())
    }

    /// Takes a [freed](Self::free_page) page, if any, and returns its number. Only the caller may
    /// [create](Self::create) it or free it again. The disk has room for it.
    ///
    /// # Errors
    ///
    /// [`Error::Disk`] if the page was [punched](Self::punch) and the disk has no room; the page
    /// stays free. [`Error::Corrupt`], [`Error::View`].
    pub fn take_freed(&self, file: FileId) -> Result<Option<u64>, Error> {
        self.writes()?;
        self.pool().kind(file.number)?;
        let freed = match self.pool().pop_free(file)? {
            Some(Popped::Hole(page)) => Some(self.take_hole(file, page)?),
            Some(Popped::Page(page)) => Some(page),
            None => None,
        };
        if freed.is_some() {
            self.count(|counts| &counts.reused);
        }
        Ok(freed)
    }

    /// Allocates room for a page that was taken from the list.
    #[cold]
    fn take_hole(&self, file: FileId, page: u64) -> Result<u64, Error> {
        let (pool, size) = (self.pool(), u64::from(file.page_bytes()));
        let made = self.table().and_then(|_alone| {
            let opened = pool.opened(file.number)?;
            match opened.file.allocate(page * size, size) {
                // This file system cannot allocate in advance, so nothing was punched.
                Ok(()) | Err(DiskError::Unsupported(_)) => {}
                Err(full) => return Err(full.into()),
            }
            let entry = Array::of(pool, file).find(page)?;
            let entry = entry.ok_or(Error::Corrupt("list of free pages"))?;
            let seen = entry.load(Relaxed);
            point("free.roomy");
            // Not a store: the file may be gone and the entry another file's. Release: after the
            // exchange of the list for the death of this thread.
            match is_mark(seen, file) && entry.compare_exchange(seen, 0, Release, Relaxed).is_ok() {
                true => Ok(page),
                false => Err(Error::NoFile(file.number)),
            }
        });
        if made.is_err() {
            // The error explains why there is no page; a page in no list returns with the next
            // region.
            let _ = pool.push_free(file, page);
        }
        made
    }

    /// Returns the room of these free pages to the file system; other pages are skipped. Returns
    /// how many bytes were returned: none if the file system does not support it, or if the file
    /// has no preallocated room ([`FileSpec::ahead`](crate::FileSpec)). Ascending pages are punched
    /// together.
    ///
    /// The content of a punched page is lost, so it must be free after a crash as well: `durable`
    /// makes durable that all pages that are free now are free after a crash. If it returns false,
    /// no more pages are punched. A thread that takes one of these pages waits for that, and for 64
    /// pages to be punched.
    ///
    /// # Errors
    ///
    /// [`Error::Disk`] if the device fails; [`Error::NoFile`], [`Error::View`], [`Error::Region`].
    pub fn punch(
        &self,
        file: FileId,
        pages: &[u64],
        durable: &mut dyn FnMut() -> bool,
    ) -> Result<u64, Error> {
        self.writes()?;
        let (pool, size) = (self.pool(), u64::from(file.page_bytes()));
        let (opened, mut bytes) = (pool.opened(file.number)?, 0);
        if !pool.is_ahead(file.number)? {
            return Ok(0);
        }
        for some in pages.chunks(TOGETHER) {
            let _alone = self.table()?;
            let mut holes = Vec::new();
            for page in some {
                if pool.mark_hole(file, *page)? {
                    holes.push(*page);
                }
            }
            point("punch.marked");
            if holes.is_empty() {
                continue;
            }
            if !durable() {
                break;
            }
            for run in holes.chunk_by(|one, next| one + 1 == *next) {
                let (from, end) = (run[0] * size, (run[0] + run.len() as u64) * size);
                let Some(from) = opened.file.next_data(from)?.filter(|at| *at < end) else {
                    continue;
                };
                let from = from / size * size;
                match opened.file.punch(from, end - from) {
                    Err(DiskError::Unsupported(_)) => return Ok(bytes),
                    punched => punched?,
                }
                bytes += end - from;
            }
            point("punch.punched");
        }
        Ok(bytes)
    }
}

impl<M: ConstMachine> Pool<M> {
    /// Puts a page whose entry is marked on its file's list.
    pub(crate) fn push_free(&self, file: FileId, page: u64) -> Result<(), Error> {
        let (first, mut seen) = self.owned(file, FILE_FREE)?;
        let entry =
            Array::of(self, file).find(page)?.ok_or(Error::Corrupt("list of free pages"))?;
        let owned = owned(file.number);
        let mut here = entry.load(Relaxed);
        loop {
            point("free.linked");
            // Not a store: the file may be gone and the entry another file's. Relaxed: the exchange
            // below publishes it.
            let link = mark(file, seen & LINK) | here & HOLE;
            let is_ours = is_mark(here, file);
            if !is_ours || entry.compare_exchange(here, link, Relaxed, Relaxed).is_err() {
                let now = entry.load(Relaxed);
                if is_ours && here & HOLE == 0 && now == here | HOLE {
                    // Another thread is punching it.
                    here = now;
                    continue;
                }
                return Err(Error::NoFile(file.number));
            }
            here = link;
            let next = (seen & !LINK).wrapping_add(COUNT) & VALUE | (page + 1);
            // Release: synchronizes with the Acquire in `pop_free`: a thread that finds the page
            // finds its link.
            match first.compare_exchange(owned | seen, owned | next, Release, Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => seen = self.value(file, now)?,
            }
        }
    }

    /// Marks a page as one that may have no room, if it is free.
    fn mark_hole(&self, file: FileId, page: u64) -> Result<bool, Error> {
        let Some(entry) = Array::of(self, file).find(page)? else { return Ok(false) };
        // Acquire: synchronizes with the AcqRel in `free_as`: the log records about the page are
        // visible.
        let mut seen = entry.load(Acquire);
        // Acquire as well: the value may be another thread's mark.
        loop {
            if !is_mark(seen, file) {
                return Ok(false);
            }
            match entry.compare_exchange(seen, seen | HOLE, Acquire, Acquire) {
                Ok(_) => return Ok(true),
                Err(now) => seen = now,
            }
        }
    }

    /// Returns the listed pages that have room, in ascending order, without the first `keep`, which
    /// are taken next. Concurrent frees and takes may make it incomplete or outdated.
    ///
    /// # Errors
    ///
    /// [`Error::NoFile`]; [`Error::Corrupt`].
    pub fn punchable(&self, file: FileId, keep: u64) -> Result<Vec<u64>, Error> {
        let (mut found, mut left, mut kept) = (Vec::new(), self.pages(file)?, 0);
        let (_, first) = self.owned(file, FILE_FREE)?;
        let mut link = first & LINK;
        while link != 0 && left > 0 {
            left -= 1;
            let entry = self.entry(file, link - 1)?;
            if !is_free(entry) {
                break;
            }
            kept += 1;
            if kept > keep && entry & HOLE == 0 {
                found.push(link - 1);
            }
            link = entry & LINK;
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// Takes a page from the list of its file, if any: its entry is zero, or says that it may have
    /// no room.
    pub(crate) fn pop_free(&self, file: FileId) -> Result<Option<Popped>, Error> {
        let corrupt = Error::Corrupt("list of free pages");
        // Its Acquire synchronizes with the Release in `push_free`.
        let (first, mut seen) = self.owned(file, FILE_FREE)?;
        let owned = owned(file.number);
        while seen & LINK != 0 {
            let page = (seen & LINK) - 1;
            let Some(entry) = Array::of(self, file).find(page)? else { return Err(corrupt) };
            // Relaxed: the exchange decides whether it was the link of the first page.
            let link = entry.load(Relaxed);
            let next = seen & !LINK | link & LINK;
            point("free.seen");
            // Acquire: as above, if it fails.
            match first.compare_exchange(owned | seen, owned | next, AcqRel, Acquire) {
                Ok(_) if is_free(link) => {
                    point("free.had");
                    if link & HOLE != 0 {
                        return Ok(Some(Popped::Hole(page)));
                    }
                    // Not a store, as above. Release: after the exchange for the death of this
                    // thread.
                    return match entry.compare_exchange(link, 0, Release, Relaxed) {
                        Ok(_) => Ok(Some(Popped::Page(page))),
                        // Another thread is punching it.
                        Err(now) if now == link | HOLE => Ok(Some(Popped::Hole(page))),
                        Err(_) => Err(Error::NoFile(file.number)),
                    };
                }
                // Shared memory is not trusted: the rest of the list is lost.
                Ok(_) => return Err(corrupt),
                Err(now) => seen = self.value(file, now)?,
            }
        }
        Ok(None)
    }

    /// Counts the free pages of the file one by one. Call it while no thread frees or takes any.
    ///
    /// # Errors
    ///
    /// [`Error::NoFile`]; [`Error::Corrupt`] if the list does not end, or leads to a page that is
    /// not free.
    pub fn free_pages(&self, file: FileId) -> Result<u64, Error> {
        let (mut count, pages) = (0, self.pages(file)?);
        let (_, first) = self.owned(file, FILE_FREE)?;
        let mut link = first & LINK;
        while link != 0 {
            let entry = self.entry(file, link - 1)?;
            count += 1;
            if !is_free(entry) || count > pages {
                return Err(Error::Corrupt("list of free pages"));
            }
            link = entry & LINK;
        }
        Ok(count)
    }
}

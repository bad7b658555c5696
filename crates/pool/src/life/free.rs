//! Pages that are nobody's: a list for each file, from which [`Handle::new_page`] takes any
//! process's.
//!
//! The list lies in the translation. A page on it has no frame, so its entry is used: a mark, and
//! the next page. The file's word has the first page and a count that each push raises, so that an
//! exchange fails if the first page went and came back meanwhile (Treiber 1986). The count has 28
//! bits, which wrap after 268 s of a million pushes a second. That gives one page to two threads
//! only if a thread stops between its load of the word and its exchange, which are some ten
//! instructions, and continues when the file had exactly a multiple of 2^28 pushes, with the same
//! first page.
//!
//! ```text
//!  63     62  39 38       32 31  29 28        0
//! ┌──────┬──────┬───────────┬──────┬───────────┐
//! │ FREE │  0   │ generation│  0   │ next, or 0│  entry
//! └──────┴──────┴───────────┴──────┴───────────┘
//!  63        57 56                   29 28        0
//! ┌────────────┬───────────────────────┬───────────┐
//! │ generation │ COUNT, one a push more│first, or 0│  file
//! └────────────┴───────────────────────┴───────────┘
//! ```
//!
//! Pages have their number plus one here. The list is as long-lived as the region, and no longer:
//! which pages of a file are free on disk is known by the layer above, from its own log and pages.
//!
//! | step | stored | a thread that dies after it left |
//! |---|---|---|
//! | free 1 | the page leaves its frame | a page in the file, as on disk |
//! | free 2 | its entry: `FREE` | a page that is free and in no list: lost until the region is |
//! | free 3 | the file's word | a free page |
//! | have 1 | the file's word | as after free 2 |
//! | have 2 | its entry: zero | a page in the file, as on disk |

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use latchwork_machine::{ConstMachine, Word};

use crate::layout::{FILE_FREE, FILES, PAGES_MAX, VALUE, owned};
use crate::point::point;
use crate::translate::Array;
use crate::{Error, FileId, Handle, Pool};

/// The mark in the entry of a free page: no frame has such a number.
const FREE: u64 = 1 << 63;
const LINK: u64 = (PAGES_MAX << 1) - 1;
const COUNT: u64 = LINK + 1;

/// The entry of a free page, before the page `next`.
const fn mark(file: FileId, next: u64) -> u64 {
    FREE | ((file.number / FILES as u16) as u64) << 32 | next
}

/// Whether an entry says that its page is free.
pub(crate) const fn is_free(entry: u64) -> bool {
    entry & FREE != 0
}

impl<M: ConstMachine> Handle<'_, M> {
    /// Frees a page: it is taken out of the pool as by [`discard`](Self::discard), and a later
    /// [`new_page`](Self::new_page) of any process may have its number. Until then the page is
    /// [`Error::Freed`] to all.
    ///
    /// The pool forgets this when its region ends, and writes nothing to disk about it: what must
    /// be known after a crash is for the caller to log. The caller knows that nobody uses the page.
    ///
    /// # Errors
    ///
    /// [`Error::NoFile`], [`Error::OutOfRange`], [`Error::Sparse`]; [`Error::Freed`] if it is free;
    /// [`Error::View`], [`Error::Region`].
    pub fn free_page(&self, file: FileId, page: u64) -> Result<(), Error> {
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
            // AcqRel: as in `put`, for the thread that has the page next.
            match entry.compare_exchange(0, mark(file, 0), AcqRel, Relaxed) {
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
            let seen = entry.load(Relaxed);
            if seen & !LINK == mark(file, 0) {
                // Release: for the thread that has the page next.
                let _ = entry.compare_exchange(seen, 0, Release, Relaxed);
            }
            return Err(gone);
        }
        self.count(|counts| &counts.freed);
        Ok(())
    }
}

impl<M: ConstMachine> Pool<M> {
    /// Puts a page whose entry is marked in its file's list.
    pub(crate) fn push_free(&self, file: FileId, page: u64) -> Result<(), Error> {
        let (first, mut seen) = self.owned(file, FILE_FREE)?;
        let entry =
            Array::of(self, file).find(page)?.ok_or(Error::Corrupt("list of free pages"))?;
        let owned = owned(file.number);
        let mut here = entry.load(Relaxed);
        loop {
            point("free.linked");
            // Not a store: the file may be gone, and the entry another file's.
            // Relaxed: the exchange below passes it on.
            let link = mark(file, seen & LINK);
            let is_ours = here & !LINK == mark(file, 0);
            if !is_ours || entry.compare_exchange(here, link, Relaxed, Relaxed).is_err() {
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

    /// Takes a page out of the list of its file, if there is one: its entry is zero.
    pub(crate) fn pop_free(&self, file: FileId) -> Result<Option<u64>, Error> {
        let corrupt = Error::Corrupt("list of free pages");
        // Its Acquire synchronizes with the Release in `push_free`.
        let (first, mut seen) = self.owned(file, FILE_FREE)?;
        let owned = owned(file.number);
        while seen & LINK != 0 {
            let page = (seen & LINK) - 1;
            let Some(entry) = Array::of(self, file).find(page)? else { return Err(corrupt) };
            // Relaxed: the exchange says whether it was the link of the first page.
            let link = entry.load(Relaxed);
            let next = seen & !LINK | link & LINK;
            point("free.seen");
            // Acquire: as above, if it fails.
            match first.compare_exchange(owned | seen, owned | next, AcqRel, Acquire) {
                Ok(_) if is_free(link) => {
                    point("free.had");
                    // Not a store, as above. Release: behind the exchange, for a thread that dies.
                    return match entry.compare_exchange(link, 0, Release, Relaxed) {
                        Ok(_) => Ok(Some(page)),
                        Err(_) => Err(Error::NoFile(file.number)),
                    };
                }
                // Bytes in shared memory are not believed: the rest of the list is lost.
                Ok(_) => return Err(corrupt),
                Err(now) => seen = self.value(file, now)?,
            }
        }
        Ok(None)
    }

    /// How many pages of the file are free: counted one by one, while nobody frees or has any.
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

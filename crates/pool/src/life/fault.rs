//! Bringing a page into the pool, from disk or newly created.
//!
//! # A frame's life
//!
//! ```text
//!            claim                 publish               copied in
//!   FREE ─────────────▶ CLAIMED ─────────────▶ CLAIMED ────────────▶ VALID ──begin─▶ MODIFYING
//!    ▲      (latch)      tag 0     entry       tag set   (unlatch)   │  ▲ ▲            │    │
//!    │                                                               │  │ └──commit────┘    │
//!    │  tag 0, entry gone                      CLAIMED ◀───evict─────┘  │       death, panic│
//!    └─────────────────────────────────────────(latch)               rebuild ◀─ POISONED ◀──┘
//! ```
//!
//! | step | stored | a thread that dies after it left |
//! |---|---|---|
//! | 1 claim | latch; state `CLAIMED` | a frame without a page: freed |
//! | 2 tag | the page's name | the same: its entry does not lead here |
//! | 3 publish | entry: zero to this frame, by exchange | entry back to zero, then freed |
//! | 4 read | nothing: into the thread's own buffer, verified there | the same |
//! | 5 copy | the page's words, LSN | the same |
//! | 6 | state `VALID`; latch: version + 1 | a page; the latch is released |
//!
//! Other threads that request the page find the entry and wait for the latch. If the read fails,
//! the entry returns to zero, and each of them reads for itself and gets its own error. If the data
//! are damaged, the upper layer may know the page ([`Rebuild::rebuild_damaged`]); it is then
//! written to disk before any thread sees it.
//!
//! [`Rebuild::rebuild_damaged`]: crate::Rebuild::rebuild_damaged
//!
//! An old image never replaces a newer page: a page leaves the pool only when it is clean, and it
//! is clean only when the write of its current content has completed.

use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

use latchwork_disk::{Error as DiskError, crc32c, crc32c_append};
use latchwork_latch::Exclusive;
use latchwork_machine::{ConstMachine, Word};

use crate::layout::{DIRTY, Desc, FILE_PAGES, FILE_ROOM, kind, owned, tag, untag};
use crate::life::free::is_free;
use crate::meter::{FileCount, Timed, now};
use crate::page::PageMut;
use crate::point::point;
use crate::{Error, FileId, Handle, Pool};

/// Room allocated beyond a new page: this part of the file, within these numbers of pages.
const ROOM_SHARE: u64 = 64;
const ROOM_LEAST: u64 = 8;
const ROOM_MOST: u64 = 1024;

/// Returns word 0 of a page on disk: a CRC32C over the page's number and all following words, below
/// the low half of the page's number.
pub(crate) fn seal(page: u64, bytes: &[u8]) -> u64 {
    let sum = crc32c_append(crc32c(&page.to_le_bytes()), bytes.get(8..).unwrap_or_default());
    page << 32 | u64::from(sum)
}

/// Checks that a page's bytes are those written for it.
pub(crate) fn verify(file: u16, page: u64, bytes: &[u8]) -> Result<(), Error> {
    let mut first = [0; 8];
    first.copy_from_slice(bytes.get(..8).ok_or(Error::Checksum { file, page })?);
    let first = u64::from_le_bytes(first);
    if first == seal(page, bytes) {
        return Ok(());
    }
    if first == seal(first >> 32, bytes) {
        return Err(Error::Misdirected { file, page, found: (first >> 32) as u32 });
    }
    Err(Error::Checksum { file, page })
}

/// Checks that bytes are page `page` as a pool has written it, for tools that read a file directly.
///
/// # Errors
///
/// [`Error::Checksum`], [`Error::Misdirected`]; the number of the file is zero.
pub fn sound(page: u64, bytes: &[u8]) -> Result<(), Error> {
    verify(0, page, bytes)
}

/// The words of a page on disk.
pub(crate) fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word))
}

impl<M: ConstMachine> Pool<M> {
    /// Rejects a page from the disk that is damaged, misdirected, or newer than the log.
    pub(crate) fn believe(&self, file: FileId, page: u64, bytes: &[u8]) -> Result<(), Error> {
        verify(file.number, page, bytes)?;
        match (&self.inner.options.write_ahead, words_of(bytes).nth(1)) {
            (Some(log), Some(lsn)) if !log.reaches(lsn) => {
                Err(Error::Newer { file: file.number, page, lsn })
            }
            _ => Ok(()),
        }
    }
}

/// A frame that is about to contain a page: latched, and the page's entry leads to it. If it is
/// dropped before, also by a panic of the reader or rebuilder, it becomes free again, so that no
/// reader uses its content.
pub(crate) struct Published<'h, 't, M: ConstMachine> {
    pool: &'h Pool<M>,
    pub(crate) frame: u32,
    pub(crate) desc: &'h Desc<M>,
    /// None once the page belongs to its creator.
    guard: Option<Exclusive<'h, Handle<'t, M>, M>>,
}

impl<M: ConstMachine> Published<'_, '_, M> {
    /// Records that the page is complete.
    pub(crate) fn is_filled(&self, dirty: u64) {
        // Release: the words before the state for the death of this thread.
        self.desc.state.store(kind::VALID | dirty, Release);
    }
}

impl<M: ConstMachine> Drop for Published<'_, '_, M> {
    fn drop(&mut self) {
        // Relaxed: the latch is held.
        if self.guard.is_some() && self.desc.state.load(Relaxed) & kind::MASK == kind::CLAIMED {
            self.pool.undo(self.desc, self.frame);
        }
    }
}

impl<'t, M: ConstMachine> Handle<'t, M> {
    /// Reads a page into the pool, unless another thread does so first.
    #[cold]
    pub(crate) fn fault(&self, file: FileId, page: u64) -> Result<(), Error> {
        let pool = self.pool();
        let pages = pool.pages(file)?;
        if page >= pages {
            return Err(file.out_of_range(page, pages));
        }
        let from = now::<M>();
        let Some(published) = self.publish(file, page)? else { return Ok(()) };
        let done = self.bring_in(file, page, published.frame, published.desc);
        match done {
            Ok(dirty) => {
                published.is_filled(dirty);
                point("fault.valid");
                self.count(|counts| &counts.faults);
                self.took(Timed::Fault, from);
                pool.count_of(file.number, FileCount::Faults, 1);
            }
            Err(_) => {
                self.count(|counts| &counts.failed);
                pool.count_of(file.number, FileCount::Failed, 1);
            }
        }
        drop(published);
        done.map(drop)
    }

    /// Fills a page's frame, from disk or rebuilt; returns `DIRTY` if the disk does not have the
    /// page.
    ///
    /// A rebuilt page is durable on disk before any thread sees it. A checkpoint may already have
    /// passed this frame. It assumes that no dirty page has an older last change than its mark, and
    /// discards the log of that change.
    fn bring_in(&self, file: FileId, page: u64, frame: u32, desc: &Desc<M>) -> Result<u64, Error> {
        let pool = self.pool();
        let Err(why) = self.read_in(file, page, frame, desc) else { return Ok(0) };
        let Some(rebuild) = &pool.inner.options.rebuild else { return Err(why) };
        let is_zero = || {
            let buffer = self.buffer.borrow();
            buffer[..file.page_bytes() as usize].iter().all(|byte| *byte == 0)
        };
        if !why.is_of_damage() || why.is_unwritten() && is_zero() {
            return Err(why);
        }
        let mut made = vec![0; file.words as usize];
        let lsn = rebuild.rebuild_damaged(file.number, page, &mut made).ok_or(why)?;
        made[1] = lsn;
        self.fill(file, frame, desc, made.iter().copied())?;
        self.count(|counts| &counts.repaired);
        point("fault.rebuilt");
        if self.write_made(file, page, &made).is_ok() {
            return Ok(0);
        }
        // The page is valid as long as it is in the pool. Relaxed: the latch is held.
        desc.rec_lsn.store(lsn, Relaxed);
        Ok(DIRTY)
    }

    /// Makes a rebuilt page durable.
    fn write_made(&self, file: FileId, page: u64, made: &[u64]) -> Result<(), Error> {
        let mut buffer = self.buffer.borrow_mut();
        let bytes = &mut buffer[..file.page_bytes() as usize];
        for (word, place) in made.iter().zip(bytes.chunks_exact_mut(8)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        self.write_copy(file, page, bytes)?;
        self.pool().sync_file(file.number)
    }

    /// Claims a frame for a page: its latch is held and the page's entry leads to it. None if the
    /// page already has a frame.
    pub(crate) fn publish<'h>(
        &'h self,
        file: FileId,
        page: u64,
    ) -> Result<Option<Published<'h, 't, M>>, Error> {
        let pool = self.pool();
        if pool.entry(file, page)? != 0 {
            return Ok(None);
        }
        let (frame, guard) = self.claim()?;
        let desc = pool.desc(frame)?;
        let published = Published { pool, frame, desc, guard: Some(guard) };
        // Release: after the state for the death of this thread.
        desc.tag.store(tag(file.number, page), Release);
        point("fault.tagged");
        if !pool.translated(file, |table| table.put(self, page, frame))? {
            return Ok(None);
        }
        // SeqCst: with the fence in `finish_removal`: either the remover finds this page, or this
        // thread finds that the file is being removed.
        M::fence(SeqCst);
        pool.kind(file.number)?;
        point("fault.published");
        Ok(Some(published))
    }

    fn read_in(&self, file: FileId, page: u64, frame: u32, desc: &Desc<M>) -> Result<(), Error> {
        let pool = self.pool();
        let mut buffer = self.buffer.borrow_mut();
        let bytes = &mut buffer[..file.page_bytes() as usize];
        let at = page * u64::from(file.page_bytes());
        let opened = pool.opened(file.number)?;
        if let Err(error) = opened.file.read(at, bytes) {
            let ends = matches!(error, DiskError::ShortRead { .. })
                && opened.file.length().is_ok_and(|length| length < at + bytes.len() as u64);
            let shrank = Error::Shrank { file: file.number, page, pages: pool.pages(file)? };
            return Err(if ends { shrank } else { error.into() });
        }
        point("fault.read");
        // The written data may be lost: the system may have dropped them. Checked after the read,
        // to serve as little as possible that was read before the failure was known.
        if pool.has_failed(file)? {
            return Err(Error::SyncFailed { file: file.number });
        }
        pool.believe(file, page, bytes)?;
        self.fill(file, frame, desc, words_of(bytes))
    }

    /// Copies a page's words into its frame.
    pub(crate) fn fill(
        &self,
        file: FileId,
        frame: u32,
        desc: &Desc<M>,
        values: impl Iterator<Item = u64>,
    ) -> Result<(), Error> {
        let pool = self.pool();
        let words = pool.words(frame, file.words)?;
        for (index, (word, value)) in words.iter().zip(values).enumerate() {
            // Relaxed: the latch is held, and its Release fence is for readers that race.
            word.store(value, Relaxed);
            if index == 1 {
                desc.lsn.store(value, Relaxed);
            }
        }
        point("fault.copied");
        desc.rec_lsn.store(0, Relaxed);
        Ok(())
    }

    /// Latches a page to fill it from nothing; its old content is not read. Its words are zero from
    /// [`PageMut::begin`] on. If it is dropped before that, a page that was not cached is not
    /// created.
    ///
    /// The caller must know that no other thread uses the page.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] beyond [`FileId::pages_max`]; [`Error::Full`]; [`Error::View`].
    pub fn create(&self, file: FileId, page: u64) -> Result<PageMut<'_, 't, M>, Error> {
        self.writes()?;
        let pool = self.pool();
        if page >= file.pages_max() {
            return Err(file.out_of_range(page, file.pages_max()));
        }
        pool.extend(file, page + 1)?;
        let mut published = loop {
            if let Some(published) = self.publish(file, page)? {
                break published;
            }
            match self.write(file, page) {
                Ok(mut found) => {
                    found.wipe = true;
                    return Ok(found);
                }
                // A reader that followed an outdated link, or a prefetch, was reading the disk's
                // content. Its result does not matter.
                Err(error) if error.is_of_disk() => M::yield_now(),
                Err(error) => return Err(error),
            }
        };
        let (frame, desc) = (published.frame, published.desc);
        // Relaxed, both: the latch is held.
        desc.lsn.store(0, Relaxed);
        desc.rec_lsn.store(0, Relaxed);
        let words = pool.words(frame, file.words)?;
        Ok(PageMut {
            handle: self,
            guard: published.guard.take(),
            desc,
            words,
            file,
            page,
            frame,
            fresh: true,
            wipe: true,
            begun: None,
            intended: false,
            changed: false,
        })
    }

    /// Creates a page: one that was [freed](Self::free_page), or the one after the last.
    /// [`PageMut::page`] returns its number.
    ///
    /// # Errors
    ///
    /// The errors of [`create`](Self::create); [`Error::Corrupt`].
    pub fn new_page(&self, file: FileId) -> Result<PageMut<'_, 't, M>, Error> {
        let page = match self.take_freed(file)? {
            Some(page) => page,
            None => self.take_next(file)?,
        };
        let made = self.create(file, page);
        if made.is_err() {
            // No thread uses it, so it is free. An error of that is dropped in favour of the reason
            // why there is no page. A sparse file has no free pages and enough numbers.
            let _ = self.free_page(file, page);
        }
        made
    }

    /// Reserves the number of the page after the last for which the disk has room. Only the caller
    /// may [create](Self::create) it. A thread that dies before that leaves a page that was never
    /// written.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] beyond [`FileId::pages_max`]; [`Error::Disk`] if the disk has no room;
    /// [`Error::View`].
    pub fn take_next(&self, file: FileId) -> Result<u64, Error> {
        self.writes()?;
        let pool = self.pool();
        pool.kind(file.number)?;
        let (pages, mut page) = pool.owned(file, FILE_PAGES)?;
        let owned = owned(file.number);
        loop {
            if page >= file.pages_max() {
                return Err(file.out_of_range(page, file.pages_max()));
            }
            pool.make_room(file, page + 1)?;
            // Relaxed: only one thread gets a number; the page's latch orders.
            match pages.compare_exchange(owned | page, owned | (page + 1), Relaxed, Relaxed) {
                Ok(_) => return Ok(page),
                Err(now) => page = pool.value(file, now)?,
            }
        }
    }

    /// Removes a page from the pool without writing it, poisoned or not; the caller may use its
    /// number again. Has no effect if the page is not cached. A [`Pin`](crate::Pin) of it keeps its
    /// frame in the pool, whatever page that has next.
    ///
    /// # Errors
    ///
    /// [`Error::NoFile`], [`Error::View`], [`Error::Region`].
    pub fn discard(&self, file: FileId, page: u64) -> Result<(), Error> {
        self.writes()?;
        self.pool().kind(file.number)?;
        self.drop_page(file, page)
    }

    /// [`discard`](Self::discard) for a file that may be in removal.
    pub(crate) fn drop_page(&self, file: FileId, page: u64) -> Result<(), Error> {
        let (pool, mut strange) = (self.pool(), 0);
        loop {
            let entry = pool.entry(file, page)?;
            if entry == 0 || is_free(entry) {
                return Ok(());
            }
            let frame = pool.frame_of(entry)?;
            let desc = pool.desc(frame)?;
            // Relaxed: checked again under the latch. Another page's latch may be held for long, by
            // a thread that waits for this one.
            if untag(desc.tag.load(Relaxed)) != Some((file.number, page)) {
                self.wonder(&mut strange, "entry of the translation")?;
                continue;
            }
            let guard = match desc.latch.lock(self) {
                Ok(guard) => guard,
                Err(died) => match self.meet_frame(frame, died) {
                    // Whether the page can be rebuilt no longer matters.
                    Ok(()) | Err(Error::Rebuild { .. }) => continue,
                    Err(other) => return Err(other),
                },
            };
            if untag(desc.tag.load(Relaxed)) != Some((file.number, page)) {
                guard.unchanged();
                continue;
            }
            // SeqCst: the latch before the writer; its partner is in `write_out`.
            M::fence(SeqCst);
            if desc.writer.load(Relaxed) != 0 && !self.writer_ended(desc)? {
                // Its write must complete before another page of this number can be written.
                guard.unchanged();
                <M as latchwork_machine::Machine>::yield_now();
                continue;
            }
            // Release: for the death of this thread: from here on the page is undone.
            desc.state.store(kind::CLAIMED, Release);
            pool.undo(desc, frame);
            drop(guard);
            return Ok(());
        }
    }
}

impl<M: ConstMachine> Pool<M> {
    /// Makes the file count as at least `pages` pages long. The caller must create the pages in
    /// between before they are read.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] beyond [`FileId::pages_max`]; [`Error::NoFile`].
    pub fn extend(&self, file: FileId, pages: u64) -> Result<(), Error> {
        if pages > file.pages_max() {
            return Err(file.out_of_range(pages, file.pages_max()));
        }
        self.kind(file.number)?;
        self.raise(file, FILE_PAGES, pages)
    }

    /// Allocates disk space for the first `pages` pages of a file and some more, so that a created
    /// page can be written even on a full disk.
    pub(crate) fn make_room(&self, file: FileId, pages: u64) -> Result<(), Error> {
        let (_, room) = self.owned(file, FILE_ROOM)?;
        if pages <= room || pages > file.pages_max() || !self.is_ahead(file.number)? {
            return Ok(());
        }
        let (opened, size) = (self.opened(file.number)?, u64::from(file.page_bytes()));
        let from = room.min(pages - 1);
        let more = (pages / ROOM_SHARE).clamp(ROOM_LEAST, ROOM_MOST);
        let made = match opened.file.allocate(from * size, (pages - from + more) * size) {
            Err(DiskError::NoSpace(_)) => {
                opened.file.allocate(from * size, (pages - from) * size)?;
                pages
            }
            // This file system cannot allocate in advance; a lack of room is reported when the page
            // is written.
            Err(DiskError::Unsupported(_)) => pages + more,
            made => made.map(|()| pages + more)?,
        };
        // A thread that sees less allocates again what already exists.
        self.raise(file, FILE_ROOM, made)
    }

    /// Returns the frame in an entry.
    pub(crate) fn frame_of(&self, entry: u64) -> Result<u32, Error> {
        if entry == 0 || entry > u64::from(self.inner.config.frames_max) {
            return Err(Error::Corrupt("entry of the translation"));
        }
        Ok(entry as u32 - 1)
    }

    /// Removes a frame's page from the pool: its latch is held, and its state is `CLAIMED` or free.
    /// Another thread may repeat it if this one dies.
    pub(crate) fn undo(&self, desc: &Desc<M>, frame: u32) {
        if let Some((file, page)) = untag(desc.tag.load(Relaxed)) {
            match self.file_here(file) {
                Ok((file, _)) => self.translated(file, |table| table.take(page, frame)),
                // A late thread for a removed file died and may have put the page into either
                // table. No other page's entry leads to this frame.
                Err(_) => [0, 1].into_iter().for_each(|sparse| {
                    let gone = FileId { number: file, words: 0, sparse };
                    self.translated(gone, |table| table.take(page, frame));
                }),
            }
        }
        point("evict.unlinked");
        // Release, both: in this order for the death of this thread.
        desc.tag.store(0, Release);
        desc.state.store(kind::FREE, Release);
    }
}

//! Writing pages: one page, all pages up to an LSN, or those that the clock will reach next.
//!
//! No reader and no writer waits for a write. The page is copied like a reader reads it, under a
//! version, and the copy is written. If the page has the same version when the write has ended, it
//! is clean; otherwise it stays dirty. Only a page that [`Handle::sync`] found changed after
//! [`CHANGES`] consecutive writes is latched in shared mode during one more; otherwise a page that
//! changes continuously would be written for ever.
//!
//! | step | stored | a thread that dies after it left |
//! |---|---|---|
//! | 1 | `writer`: this thread, by exchange | a mark that the next writer takes over |
//! | 2 | nothing: the copy | the same |
//! | 3 | nothing: the log is made durable up to the copy's LSN | the same |
//! | 4 | the page on disk, sealed | the same; the page is still dirty and is written again |
//! | 5 | the latch, if the version is the same; `DIRTY` clear; version as before | latch released |
//! | 6 | `writer`: none | |
//!
//! `writer` separates two writes of one page: a stopped write must not complete after a newer one.
//! A page that has a writer is not evicted. All system calls of a killed process have ended when
//! the kernel reports it dead, because its locks are dropped after its last call.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use latchwork_latch::{HolderNumber, Version};
use latchwork_machine::{ConstMachine, Word};

use crate::layout::{DIRTY, Desc, LOGGED, MODIFYING, kind, untag};
use crate::life::fault::seal;
use crate::meter::{FileCount, Timed, now};
use crate::point::point;
use crate::{Error, FileId, Handle};

/// How often a page may be found changed or being written before the next write excludes writers.
const CHANGES: u32 = 8;

/// The result of writing a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrote {
    /// The page is clean.
    Clean,
    /// Another thread changes or writes it, or changed it in the meantime: it may be dirty.
    Busy,
}

/// The progress of a [`Handle::sync`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Frames examined.
    pub done: u32,
    /// Frames in all.
    pub of: u32,
    /// Pages written so far.
    pub written: u64,
}

/// A page that the disk does not have in its current state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirtyPage {
    /// The file.
    pub file: FileId,
    /// The page.
    pub page: u64,
    /// The LSN of the first change that the disk does not have.
    pub rec_lsn: u64,
}

/// A page that this thread writes, until this is dropped. A panic of the write-ahead callback drops
/// it as well; otherwise no thread could write or evict the page as long as this thread lives.
struct Claimed<'h, M: ConstMachine> {
    desc: &'h Desc<M>,
    me: u64,
}

impl<M: ConstMachine> Drop for Claimed<'_, M> {
    fn drop(&mut self) {
        // Release: synchronizes with the Acquire in `write_out`.
        let _ = self.desc.writer.compare_exchange(self.me, 0, Release, Relaxed);
    }
}

impl<M: ConstMachine> Handle<'_, M> {
    /// Writes a frame's page, if it is dirty. Does not wait for a latch.
    pub(crate) fn write_back(&self, frame: u32) -> Result<Wrote, Error> {
        self.write_out(frame, false)
    }

    /// Writes a frame's page, which must be clean before the caller continues. `tries` counts the
    /// attempts and is kept by the caller. May wait for a thread that changes the page.
    pub(crate) fn write_down(&self, frame: u32, tries: &mut u32) -> Result<Wrote, Error> {
        *tries += 1;
        self.write_out(frame, *tries > CHANGES)
    }

    fn write_out(&self, frame: u32, shared: bool) -> Result<Wrote, Error> {
        let desc = self.pool().desc(frame)?;
        let me = u64::from(latchwork_latch::Holder::<M>::number(self).get());
        // Acquire: synchronizes with the Release of `Claimed`: the last write has ended.
        let claim = || desc.writer.compare_exchange(0, me, Acquire, Relaxed).is_ok();
        if !claim() {
            point("write.busy");
            if !self.writer_ended(desc)? {
                return Ok(Wrote::Busy);
            }
            point("write.free");
            // Another thread may have written it first.
            if !claim() {
                return Ok(Wrote::Busy);
            }
        }
        let claimed = Claimed { desc, me };
        // SeqCst: with the fence in `drop_page`: either that finds the claim, or this thread finds
        // the page latched.
        M::fence(SeqCst);
        point("write.claimed");
        let done = self.write_claimed(desc, frame, shared);
        drop(claimed);
        if done == Ok(Wrote::Clean) {
            self.count(|counts| &counts.written);
        }
        done
    }

    /// Clears a dead writer's mark; returns true if the page has no writer any more.
    pub(crate) fn writer_ended(&self, desc: &Desc<M>) -> Result<bool, Error> {
        let writer = desc.writer.load(Relaxed);
        // AcqRel: as in `Claimed` for the killed writer and for the next.
        let clear = || desc.writer.compare_exchange(writer, 0, AcqRel, Relaxed);
        match u32::try_from(writer).ok().and_then(HolderNumber::new) {
            Some(number) if !self.pool().is_dead(number.get() - 1) => return Ok(false),
            Some(number) => {
                self.meet(number, clear)?;
            }
            // No thread has this number.
            None => {
                let _ = clear();
            }
        }
        Ok(desc.writer.load(Relaxed) == 0)
    }

    fn write_claimed(&self, desc: &Desc<M>, frame: u32, shared: bool) -> Result<Wrote, Error> {
        let pool = self.pool();
        let share = match shared.then(|| desc.latch.share(self)).transpose() {
            Ok(share) => share,
            Err(died) => return self.meet_frame(frame, died).map(|()| Wrote::Busy),
        };
        let mut buffer = self.buffer.borrow_mut();
        let Some((version, file, page)) = self.copy_out(desc, frame, &mut buffer)? else {
            return Ok(Wrote::Busy);
        };
        let bytes = &mut buffer[..file.page_bytes() as usize];
        point("write.copied");
        match self.write_copy(file, page, bytes) {
            // Pages of a file in removal need no writing.
            Err(_) if pool.kind(file.number) == Err(Error::NoFile(file.number)) => {}
            written => written?,
        }
        let guard = match share {
            Some(share) => share.upgrade(),
            None => desc.latch.try_upgrade(version, self),
        };
        let Some(guard) = guard else { return Ok(Wrote::Busy) };
        // Relaxed, both: the latch is held; any state that a dying thread leaves is correct.
        desc.rec_lsn.store(0, Relaxed);
        desc.state.store(kind::VALID, Relaxed);
        point("write.clean");
        guard.unchanged();
        Ok(Wrote::Clean)
    }

    /// Writes a copy of a page, after its log.
    pub(crate) fn write_copy(
        &self,
        file: FileId,
        page: u64,
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        let pool = self.pool();
        pool.kind(file.number)?;
        let mut lsn = [0; 8];
        lsn.copy_from_slice(&bytes[8..16]);
        let from = now::<M>();
        self.write_ahead(u64::from_le_bytes(lsn))?;
        point("write.ahead");
        let sealed = seal(page, bytes);
        bytes[..8].copy_from_slice(&sealed.to_le_bytes());
        pool.write_bytes(file.number, page * u64::from(file.page_bytes()), bytes)?;
        self.took(Timed::Write, from);
        pool.count_of(file.number, FileCount::Written, 1);
        point("write.written");
        Ok(())
    }

    /// Copies a dirty page in one state. None if it is not dirty, or another thread changes it.
    fn copy_out(
        &self,
        desc: &Desc<M>,
        frame: u32,
        buffer: &mut [u8],
    ) -> Result<Option<(Version, FileId, u64)>, Error> {
        let pool = self.pool();
        for _ in 0..crate::ATTEMPTS {
            let Some(version) = desc.latch.try_read() else { return Ok(None) };
            // Relaxed, all: validated below.
            let (tag, state) = (desc.tag.load(Relaxed), desc.state.load(Relaxed));
            let Some((number, page)) = untag(tag) else { return Ok(None) };
            if state != kind::VALID | DIRTY {
                return Ok(None);
            }
            let Ok((file, _)) = pool.file_here(number) else { return Ok(None) };
            let words = pool.words(frame, file.words)?;
            for (word, place) in words.iter().zip(buffer.chunks_exact_mut(8)) {
                place.copy_from_slice(&word.load(Relaxed).to_le_bytes());
            }
            if desc.latch.validate(version) {
                return Ok(Some((version, file, page)));
            }
        }
        Ok(None)
    }

    /// Makes the log durable up to a page's LSN.
    fn write_ahead(&self, lsn: u64) -> Result<(), Error> {
        let inner = &self.pool().inner;
        match &inner.options.write_ahead {
            _ if lsn == 0 => Ok(()),
            Some(log) => log.flush(lsn).map_err(Error::WriteAhead),
            // Relaxed: it was stored before any page had an LSN.
            None if inner.head.word(LOGGED)?.load(Relaxed) == 0 => Ok(()),
            None => Err(Error::NoWriteAhead),
        }
    }

    /// Writes every page whose first change that the disk does not have is at `upto` or before, and
    /// makes all writes to files durable. `u64::MAX` writes all pages.
    ///
    /// It waits for threads that change such a page, so the caller must hold none. It also
    /// completes removals of files that dead threads began. `progress` is called periodically.
    ///
    /// # Errors
    ///
    /// [`Error::SyncFailed`] and [`Error::Disk`]: a failed sync is final, and every process gets
    /// the error from then on. [`Error::WriteAhead`]; [`Error::View`].
    pub fn sync(&self, upto: u64, progress: &mut dyn FnMut(Progress)) -> Result<(), Error> {
        self.writes()?;
        let pool = self.pool();
        self.finish_removals()?;
        pool.close_removed();
        let (of, mut written) = (pool.active()?, 0);
        for frame in 0..of {
            if frame % 256 == 0 {
                progress(Progress { done: frame, of, written });
            }
            let (mut tried, mut tries) = ((None, 0), 0);
            while let Some(dirty) = self.dirty_in(frame)? {
                if dirty.rec_lsn > upto {
                    break;
                }
                match self.write_down(frame, &mut tries)? {
                    Wrote::Clean => written += 1,
                    Wrote::Busy => self.try_later(frame, &mut tried)?,
                }
            }
        }
        for number in pool.numbers() {
            match pool.file_id(number?).and_then(|file| pool.sync_file(file.number)) {
                // No file, or it was just removed.
                Ok(()) | Err(Error::NoFile(_)) => {}
                Err(other) => return Err(other),
            }
        }
        progress(Progress { done: of, of, written });
        Ok(())
    }

    /// Yields before another attempt at a page that could not be written: another thread writes it
    /// or has changed it. If that does not change after many attempts, the memory is damaged.
    pub(crate) fn try_later(
        &self,
        frame: u32,
        (seen, times): &mut (Option<Version>, u32),
    ) -> Result<(), Error> {
        let desc = self.pool().desc(frame)?;
        let now = desc.latch.try_read();
        if now.is_none() || now != *seen || !self.writer_ended(desc)? {
            (*seen, *times) = (now, 0);
            M::yield_now();
            return Ok(());
        }
        self.wonder(times, "state of a frame")
    }

    /// Returns the page in the frame, if it is dirty. Waits for a thread that changes it.
    fn dirty_in(&self, frame: u32) -> Result<Option<DirtyPage>, Error> {
        let desc = self.pool().desc(frame)?;
        loop {
            let version = match desc.latch.read(self) {
                Ok(version) => version,
                Err(died) => {
                    self.meet_frame(frame, died)?;
                    continue;
                }
            };
            // Relaxed, all: validated below.
            let (state, tag) = (desc.state.load(Relaxed), desc.tag.load(Relaxed));
            let rec_lsn = desc.rec_lsn.load(Relaxed);
            if !desc.latch.validate(version) {
                continue;
            }
            let Some((file, page)) = untag(tag) else { return Ok(None) };
            if state & kind::MASK == kind::POISONED && self.pool().inner.options.rebuild.is_some() {
                // A logged change of it is on no page yet, so it must not count as written.
                let file = self.pool().file_id(file);
                match file.and_then(|file| self.revive(frame, file, page)) {
                    Err(Error::NoFile(_)) => return Ok(None),
                    revived => revived?,
                }
                continue;
            }
            if state & (DIRTY | MODIFYING | kind::MASK) != DIRTY | kind::VALID {
                return Ok(None);
            }
            return match self.pool().file_id(file) {
                Ok(file) => Ok(Some(DirtyPage { file, page, rec_lsn })),
                // The file is removed or in removal: the page needs no writing.
                Err(Error::NoFile(_)) => Ok(None),
                Err(other) => Err(other),
            };
        }
    }

    /// Returns the dirty pages: every page whose change was in the log at the time of the call and
    /// that is not on disk. Waits for threads that change pages, so the caller must hold none.
    ///
    /// # Errors
    ///
    /// [`Error::View`], [`Error::Region`].
    pub fn dirty(&self) -> Result<Vec<DirtyPage>, Error> {
        self.writes()?;
        let mut found = Vec::new();
        for frame in 0..self.pool().active()? {
            found.extend(self.dirty_in(frame)?);
        }
        Ok(found)
    }

    /// Writes up to `most` dirty pages that the clock reaches next, so that faults find clean
    /// frames. This is the page cleaner, which any thread may run and none must. Returns how many
    /// were written.
    ///
    /// # Errors
    ///
    /// The error of the first page that cannot be written.
    pub fn clean(&self, most: u32) -> Result<u32, Error> {
        self.writes()?;
        let pool = self.pool();
        let active = pool.active()?;
        let hand = pool.inner.head.word(crate::layout::HAND)?.load(Relaxed);
        let (start, mut written) = ((hand % u64::from(active.max(1))) as u32, 0);
        for step in 0..active {
            if written >= most {
                break;
            }
            let frame = (start + step) % active;
            // Relaxed: checked again.
            if pool.desc(frame)?.state.load(Relaxed) == kind::VALID | DIRTY
                && self.write_back(frame)? == Wrote::Clean
            {
                written += 1;
            }
        }
        Ok(written)
    }
}

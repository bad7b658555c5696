//! Files that go: their pages leave the pool, the disk's file is deleted, and another file may have
//! the place in the table.
//!
//! | step | stored | a thread that dies after it left |
//! |---|---|---|
//! | 1 | a mark in the file's entry | a file that is being removed |
//! | 2 | its pages: discarded; marks of its free pages: zero | the same |
//! | 3 | the disk's file: deleted | the same |
//! | 4 | the entry: free, with another generation | a free place |
//!
//! 1, 3 and 4 are done under the table's latch, and 2 to 4 under one of their own: so no thread is
//! late, and takes the next file's pages for those of the one that went. From 1 on no page of the
//! file comes in.
//!
//! What a dead thread left to do is done by the next one that syncs the pool, removes a file, or
//! opens one of this path. These hold no page: for a removal waits for threads that do.
//!
//! The generation is a part of the file's number, and so of its pages' tags: what still names the
//! file by its old number finds no file, and none of the next one's pages. It has 7 bits: the 128th
//! file after one in the same place has its number again, so a caller forgets a file's number
//! before it has made so many others. A store has one file, which it does not remove.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use latchwork_disk::Error as DiskError;
use latchwork_machine::{ConstMachine, Word};

use crate::layout::{FILE_KIND, KIND_LEAVING, REMOVAL_LATCH, kind_after, untag};
use crate::life::free::is_free;
use crate::point::point;
use crate::translate::Array;
use crate::{Error, FileId, Handle};

impl<M: ConstMachine> Handle<'_, M> {
    /// Removes a file: its pages leave the pool without being written, and it is deleted from the
    /// disk. Its place is another file's to have. What a temporary file ends with.
    ///
    /// The caller holds no page, and knows that nobody uses the file: another thread that does has
    /// [`Error::NoFile`] from then on; one that holds a page of it is waited for. Costs a look at
    /// each frame, and at 8 bytes for each page of the file's parts that were used. That the file
    /// is gone is not made durable: after a crash of the system it may be there again.
    ///
    /// If the thread dies meanwhile, the removal is ended by the next thread that
    /// [syncs](Self::sync) the pool, removes a file, or opens one of this path.
    ///
    /// # Errors
    ///
    /// [`Error::NoFile`] if it was removed; [`Error::Disk`] if it cannot be deleted: then it is
    /// still being removed, as if the thread had died. [`Error::View`].
    pub fn remove_file(&self, file: FileId) -> Result<(), Error> {
        self.writes()?;
        {
            let _alone = self.table()?;
            self.pool().file_id(file.number)?;
            let kind = self.pool().file_word(file.number, FILE_KIND)?;
            // Release: behind what was stored in the entry, for a thread that dies.
            kind.store(kind.load(Relaxed) | KIND_LEAVING, Release);
        }
        point("remove.marked");
        self.finish_removal(file)?;
        self.finish_removals()
    }

    /// Ends the removals that others began. That the disk refuses to delete a file is no matter
    /// here. The caller holds no page.
    pub(crate) fn finish_removals(&self) -> Result<(), Error> {
        for number in self.pool().numbers() {
            if let Ok((file, true)) = self.pool().file_here(number?) {
                match self.finish_removal(file) {
                    Ok(()) | Err(Error::Disk(_)) => {}
                    Err(other) => return Err(other),
                }
            }
        }
        Ok(())
    }

    /// Steps 2 to 4. One thread at a time: a later one could take the next file's pages for those
    /// of the one that it removes.
    pub(crate) fn finish_removal(&self, file: FileId) -> Result<(), Error> {
        let _only = self.head_latch(REMOVAL_LATCH)?;
        if !matches!(self.pool().file_here(file.number), Ok((_, true))) {
            // Another thread was faster.
            return Ok(());
        }
        // SeqCst: with the fence in `publish`: a page that comes in without seeing the mark is seen
        // here, by its tag.
        M::fence(SeqCst);
        self.empty_file(file)?;
        point("remove.emptied");
        let pool = self.pool();
        pool.close_removed();
        let _alone = self.table()?;
        match pool.inner.disk.remove(&pool.path_of(file.number)?) {
            Ok(()) | Err(DiskError::NotFound(_)) => {}
            Err(other) => return Err(other.into()),
        }
        point("remove.deleted");
        let kind = pool.file_word(file.number, FILE_KIND)?;
        // Release: last, for a thread that dies before.
        kind.store(kind_after(kind.load(Relaxed)), Release);
        Ok(())
    }

    /// Takes all pages of a file out of the pool, which is being removed.
    fn empty_file(&self, file: FileId) -> Result<(), Error> {
        let pool = self.pool();
        for frame in 0..pool.inner.config.frames_max {
            let Some(desc) = pool.reached(frame)? else { break };
            // Acquire: a page that has come in since has a thread that sees the mark.
            if let Some((number, page)) = untag(desc.tag.load(Acquire))
                && number == file.number
            {
                self.drop_page(file, page)?;
            }
        }
        if file.is_sparse() {
            return Ok(());
        }
        Array::of(pool, file).each(|page, entry| {
            loop {
                match entry.load(Relaxed) {
                    0 => return Ok(()),
                    // Relaxed: the next file's thread gets the entry through the table's latch.
                    free if is_free(free) => entry.store(0, Relaxed),
                    _ => self.drop_page(file, page)?,
                }
            }
        })
    }
}

//! Removing files: their pages leave the pool, the file is deleted from disk, and another file may
//! take the place in the table.
//!
//! | step | stored | a thread that dies after it left |
//! |---|---|---|
//! | 1 | a mark in the file's entry | a file in removal |
//! | 2 | its pages: discarded; marks of its free pages: zero | the same |
//! | 3 | the file on disk: deleted | the same |
//! | 4 | the entry: free, with another generation | a free place |
//!
//! Steps 1, 3 and 4 run under the table's latch, and 2 to 4 under a latch of their own, so that no
//! late thread removes the next file's pages. From step 1 on no page of the file comes in.
//!
//! A removal that a dead thread left is completed by the next thread that syncs the pool, removes a
//! file, or opens one of this path. These threads hold no page, because a removal waits for threads
//! that do.
//!
//! The generation is a part of the file's number and so of its pages' tags: the old number leads to
//! no file and to none of the next file's pages. It has 7 bits, so the 128th later file in the same
//! place has the same number again, and a caller must drop a file's number before it has created
//! that many others. A store has one file, which it does not remove.

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
    /// disk. Another file may take its place. Intended for temporary files.
    ///
    /// The caller must hold no page and know that no thread uses the file. Other threads get
    /// [`Error::NoFile`] from then on; the call waits for a thread that holds a page of the file.
    /// It costs a look at each frame, and at 8 bytes for each page of the used parts of the file.
    /// The deletion is not made durable: after a system crash the file may exist again.
    ///
    /// If the thread dies, the next thread that [syncs](Self::sync) the pool, removes a file, or
    /// opens one of this path completes the removal.
    ///
    /// # Errors
    ///
    /// [`Error::NoFile`] if it was removed; [`Error::Disk`] if it cannot be deleted: the file then
    /// stays in removal, as if the thread had died. [`Error::View`].
    pub fn remove_file(&self, file: FileId) -> Result<(), Error> {
        self.writes()?;
        {
            let _alone = self.table()?;
            self.pool().file_id(file.number)?;
            let kind = self.pool().file_word(file.number, FILE_KIND)?;
            // Release: after the stores to the entry for the death of this thread.
            kind.store(kind.load(Relaxed) | KIND_LEAVING, Release);
        }
        point("remove.marked");
        self.finish_removal(file)?;
        self.finish_removals()
    }

    /// Completes the removals that dead threads began. Errors of deleting from disk are ignored.
    /// The caller holds no page.
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

    /// Steps 2 to 4. One thread at a time: a later one could remove the next file's pages.
    pub(crate) fn finish_removal(&self, file: FileId) -> Result<(), Error> {
        let _only = self.head_latch(REMOVAL_LATCH)?;
        if !matches!(self.pool().file_here(file.number), Ok((_, true))) {
            // Another thread completed it.
            return Ok(());
        }
        // SeqCst: with the fence in `publish`: a page that comes in without seeing the mark is
        // found here, by its tag.
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

    /// Removes all pages of a file in removal from the pool.
    fn empty_file(&self, file: FileId) -> Result<(), Error> {
        let pool = self.pool();
        for frame in 0..pool.inner.config.frames_max {
            let Some(desc) = pool.reached(frame)? else { break };
            // Acquire: a page that came in since belongs to a thread that sees the mark.
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
                    // Relaxed: the next file's creator gets the entry through the table's latch.
                    free if is_free(free) => entry.store(0, Relaxed),
                    _ => self.drop_page(file, page)?,
                }
            }
        })
    }
}

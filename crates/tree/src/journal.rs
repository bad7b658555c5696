//! The log's interface to a tree.

use latchwork_pool::Cause;

use crate::Error;
use crate::change::Change;

/// The log to which a tree appends its changes.
pub trait Journal {
    /// Appends a change of `page`, which had the LSN `page_prev`, and returns the LSN of its
    /// record: a multiple of 16, greater than that of every earlier record. Returns none, without
    /// appending, if [`since`](Self::since) is no longer `since`. The caller holds the page, so
    /// this must not wait for anything that waits for a page.
    ///
    /// # Errors
    ///
    /// The reason of the failure. The page is then unchanged.
    fn append(
        &self,
        page: u64,
        page_prev: u64,
        change: &Change<'_>,
        since: u64,
    ) -> Result<Option<u64>, Cause>;

    /// Returns the thread slot that the headers of records name.
    fn slot(&self) -> u16;

    /// Returns the LSN below which a page is logged whole before it changes, because the next write
    /// may tear its image on disk. Zero if that is impossible.
    fn since(&self) -> u64 {
        0
    }

    /// Returns whether a replaced value is logged whole, before and after, for readers of the log
    /// that do not have the page. Otherwise only the part that differs is logged.
    fn logs_whole(&self) -> bool {
        false
    }

    /// Reserves room for records of `bytes` bytes. The caller holds no page, so this may wait.
    ///
    /// # Errors
    ///
    /// The reason of the failure.
    fn reserve(&self, bytes: u64) -> Result<(), Cause> {
        let _ = bytes;
        Ok(())
    }

    /// Releases all but the room that an idle thread may keep. Called between the changes of a long
    /// operation.
    fn keep_little(&self) {}

    /// Returns whether records of `bytes` bytes can be appended now.
    fn has(&self, bytes: u64) -> bool {
        let _ = bytes;
        true
    }

    /// Ensures that [`page`](Self::page) can return `count` pages. The caller holds no page, so
    /// this may wait and change other trees.
    ///
    /// # Errors
    ///
    /// The reason of the failure.
    fn reserve_pages(&self, count: usize) -> Result<(), Error> {
        let _ = count;
        Ok(())
    }

    /// Returns whether [`page`](Self::page) can return `count` pages now.
    fn has_pages(&self, count: usize) -> bool {
        let _ = count;
        true
    }

    /// Returns the number of an unused page, which belongs to this thread until it is
    /// [linked](Self::linked). None if the tree must ask the pool for one.
    fn page(&self) -> Option<u64> {
        None
    }

    /// Reports that a page now leads to this one.
    fn linked(&self, page: u64) {
        let _ = page;
    }

    /// Asks whether a held page may be unlinked: false if another thread works with its number.
    ///
    /// # Errors
    ///
    /// The reason why this is unknown.
    fn unlink(&self, page: u64) -> Result<bool, Cause> {
        let _ = page;
        Ok(true)
    }

    /// Reports that the thread is done with a page that it asked for: no page leads to it any more,
    /// or it was not changed. The caller holds no page. Returns false if the tree must return it to
    /// the pool.
    ///
    /// # Errors
    ///
    /// The reason why it is not returned.
    fn unlinked(&self, page: u64) -> Result<bool, Error> {
        let _ = page;
        Ok(false)
    }

    /// Returns the LSN before which ghosts are no longer needed: no transaction undoes the change
    /// that made them ghosts, and no snapshot sees their earlier state. Nor is a change of other
    /// records from before it undone. The caller holds the leaf.
    fn forgotten(&self) -> u64 {
        0
    }

    /// Returns whether records may be inserted, changed or deleted now. The caller holds the leaf.
    /// Undoing changes do not ask.
    ///
    /// # Errors
    ///
    /// The reason why this is unknown.
    fn may_write(&self) -> Result<bool, Cause> {
        Ok(true)
    }

    /// Returns whether a record that has this value may be changed or deleted now. Called like
    /// [`may_write`](Self::may_write), after it.
    fn may_replace(&self, key: &[u8], before: &[u8]) -> bool {
        let _ = (key, before);
        true
    }
}

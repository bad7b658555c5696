//! The log, as a tree sees it.

use latchwork_pool::Cause;

use crate::Error;
use crate::change::Change;

/// Where changes are put in order.
pub trait Journal {
    /// Appends a change of `page`, which had the LSN `page_prev`, and returns the LSN of its
    /// record: a multiple of 16, greater than that of every record before it. None if
    /// [`since`](Self::since) is not `since` any more: then nothing was appended. Called with the
    /// page in hand, so it must not wait for anything that waits for a page.
    ///
    /// # Errors
    ///
    /// Why it could not. Then the page is as it was.
    fn append(
        &self,
        page: u64,
        page_prev: u64,
        change: &Change<'_>,
        since: u64,
    ) -> Result<Option<u64>, Cause>;

    /// The thread slot that the headers of records name.
    fn slot(&self) -> u16;

    /// A page whose LSN is lower is logged whole before it changes: what the disk has of it may be
    /// torn by the next write. Zero where that cannot be.
    fn since(&self) -> u64 {
        0
    }

    /// Makes sure that records of so many bytes can be appended. Called with no page in hand, so
    /// it may wait.
    ///
    /// # Errors
    ///
    /// Why they cannot.
    fn reserve(&self, bytes: u64) -> Result<(), Cause> {
        let _ = bytes;
        Ok(())
    }

    /// Keeps no more room than a thread may that turns to something else: called between the
    /// changes of what may take long.
    fn keep_little(&self) {}

    /// Whether records of so many bytes can be appended now.
    fn has(&self, bytes: u64) -> bool {
        let _ = bytes;
        true
    }

    /// Makes sure that [`page`](Self::page) has so many. Called with no page in hand, so it may
    /// wait and change other trees.
    ///
    /// # Errors
    ///
    /// Why there is none.
    fn reserve_pages(&self, count: usize) -> Result<(), Error> {
        let _ = count;
        Ok(())
    }

    /// Whether [`page`](Self::page) has so many now.
    fn has_pages(&self, count: usize) -> bool {
        let _ = count;
        true
    }

    /// The number of a page that nobody uses: this thread's until it is [linked](Self::linked).
    /// None if the tree is to ask the pool for one.
    fn page(&self) -> Option<u64> {
        None
    }

    /// Says that a page leads to this one now.
    fn linked(&self, page: u64) {
        let _ = page;
    }

    /// Asks for a page that is about to be unlinked: false if it must not be, for another thread is
    /// at work with its number. Called with it in hand.
    ///
    /// # Errors
    ///
    /// Why it can not be said whether.
    fn unlink(&self, page: u64) -> Result<bool, Cause> {
        let _ = page;
        Ok(true)
    }

    /// Says that the thread is done with a page that it asked for: no page leads to it any more, or
    /// nothing has become of it. Called with no page in hand. False if the tree is to give it back
    /// to the pool.
    ///
    /// # Errors
    ///
    /// Why it is not given back.
    fn unlinked(&self, page: u64) -> Result<bool, Error> {
        let _ = page;
        Ok(false)
    }

    /// Ghosts that were written before this LSN nobody asks for any more: no transaction undoes
    /// what made them ghosts, and no snapshot sees what they were. Nor does one undo what made
    /// other records what they are since before it. Asked with the leaf in hand.
    fn forgotten(&self) -> u64 {
        0
    }

    /// Whether records may be inserted, changed or deleted now. Asked with the leaf in hand;
    /// what undoes is not asked for.
    ///
    /// # Errors
    ///
    /// Why that cannot be said.
    fn may_write(&self) -> Result<bool, Cause> {
        Ok(true)
    }

    /// Whether a record that has this value may be changed or deleted now. Asked as
    /// [`may_write`](Self::may_write) is, and behind it.
    fn may_replace(&self, key: &[u8], before: &[u8]) -> bool {
        let _ = (key, before);
        true
    }
}

//! The log, as a tree sees it.

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
    ) -> Result<Option<u64>, String>;

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
    fn reserve(&self, bytes: u64) -> Result<(), String> {
        let _ = bytes;
        Ok(())
    }

    /// Whether records of so many bytes can be appended now.
    fn has(&self, bytes: u64) -> bool {
        let _ = bytes;
        true
    }

    /// Whether records may be inserted, changed or deleted now. Asked with the leaf in hand;
    /// what undoes is not asked for.
    ///
    /// # Errors
    ///
    /// Why that cannot be said.
    fn may_write(&self) -> Result<bool, String> {
        Ok(true)
    }
}

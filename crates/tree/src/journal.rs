//! The log, as a tree sees it.

use crate::change::Change;

/// Where changes are put in order.
pub trait Journal {
    /// Appends a change of `page`, which had the LSN `page_prev`, and returns the LSN of its
    /// record: a multiple of 16, greater than that of every record before it. Called with the page
    /// in hand, so it must not wait for anything that waits for a page.
    ///
    /// # Errors
    ///
    /// Why it could not. Then the page is as it was.
    fn append(&self, page: u64, page_prev: u64, change: &Change<'_>) -> Result<u64, String>;

    /// The thread slot that the headers of records name.
    fn slot(&self) -> u16;
}

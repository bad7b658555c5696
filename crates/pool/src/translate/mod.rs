//! Translation: from a page's number to its entry, by loads alone.
//!
//! An entry contains the page's frame: the frame's number plus one, or zero. Two tables implement
//! [`Translation`]:
//!
//! | table | of | a read loads | memory |
//! |---|---|---|---|
//! | [`Array`] | each file | three words, one after the other | 8 bytes per page of used parts |
//! | [`Hash`] | all sparse files | one line | 16 to 32 bytes per possible frame |
//!
//! Neither is trusted: an entry may be outdated as soon as it is loaded, so the frame's tag
//! decides, under a version. So a reader needs no order, and no table needs its reader to write.

mod array;
mod hash;

use latchwork_machine::ConstMachine;

pub(crate) use array::Array;
pub(crate) use hash::{HASH_LATCHES, Hash};

use crate::{Error, FileId, Handle, Pool};

/// A table from the numbers of a file's pages to their entries.
pub(crate) trait Translation<M: ConstMachine> {
    /// Returns the page's entry for a reader that checks the frame's tag. May miss an entry or
    /// return another page's.
    fn glimpse(&self, page: u64) -> Option<u64>;

    /// Returns the page's entry; zero if it has none.
    fn entry(&self, page: u64) -> Result<u64, Error>;

    /// Makes the page's entry lead to a frame, whose latch is held and whose tag is the page's.
    /// Returns false if the entry already leads to a frame.
    ///
    /// One of several threads succeeds for a page. Everything that the thread did that cleared the
    /// page's last entry happened before.
    fn put(&self, handle: &Handle<'_, M>, page: u64, frame: u32) -> Result<bool, Error>;

    /// Clears the page's entry, if it leads to this frame, whose latch is held. Another thread may
    /// repeat it if this one dies.
    fn take(&self, page: u64, frame: u32);
}

impl<M: ConstMachine> Pool<M> {
    /// Queries the table of a file.
    #[inline(always)]
    pub(crate) fn translated<R>(
        &self,
        file: FileId,
        ask: impl FnOnce(&dyn Translation<M>) -> R,
    ) -> R {
        if file.is_sparse() { ask(&Hash::of(self, file)) } else { ask(&Array::of(self, file)) }
    }

    /// Returns the page's entry; zero if it is in no frame.
    pub(crate) fn entry(&self, file: FileId, page: u64) -> Result<u64, Error> {
        self.translated(file, |table| table.entry(page))
    }
}

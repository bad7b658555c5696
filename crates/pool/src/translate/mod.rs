//! Translation: from a page's number to its entry, by loads alone.
//!
//! An entry says which frame has the page: the frame's number plus one, or zero. Two tables have
//! one face, [`Translation`]:
//!
//! | table | of | a read loads | memory |
//! |---|---|---|---|
//! | [`Array`] | each file | three words, one by one | 8 bytes a page of the parts in use |
//! | [`Hash`] | all sparse files | one line | 16 to 32 bytes for each frame that there may be |
//!
//! Neither is believed: an entry may be old as soon as it is loaded, so the frame's tag decides,
//! under a version. So a reader needs no order, and no table needs its reader to write.

mod array;
mod hash;

use latchwork_machine::ConstMachine;

pub(crate) use array::Array;
pub(crate) use hash::{HASH_LATCHES, Hash};

use crate::{Error, FileId, Handle, Pool};

/// A table from the numbers of a file's pages to their entries.
pub(crate) trait Translation<M: ConstMachine> {
    /// The page's entry, for a reader who looks at the frame's tag: none, or another page's, now
    /// and then even if there is one.
    fn glimpse(&self, page: u64) -> Option<u64>;

    /// The page's entry; zero if it has none.
    fn entry(&self, page: u64) -> Result<u64, Error>;

    /// Has the page's entry lead to a frame, whose latch is held and whose tag is the page's;
    /// false if it leads somewhere already.
    ///
    /// Of several threads that do so with one page, one succeeds. What the thread did that took the
    /// page's last entry away, before it did, happened before.
    fn put(&self, handle: &Handle<'_, M>, page: u64, frame: u32) -> Result<bool, Error>;

    /// Takes the page's entry away, if it leads to this frame, whose latch is held. May be done
    /// again by another thread if this one dies.
    fn take(&self, page: u64, frame: u32);
}

impl<M: ConstMachine> Pool<M> {
    /// What the table of a file says.
    #[inline(always)]
    pub(crate) fn translated<R>(
        &self,
        file: FileId,
        ask: impl FnOnce(&dyn Translation<M>) -> R,
    ) -> R {
        if file.is_sparse() { ask(&Hash::of(self, file)) } else { ask(&Array::of(self, file)) }
    }

    /// The page's entry; zero if it is in no frame.
    pub(crate) fn entry(&self, file: FileId, page: u64) -> Result<u64, Error> {
        self.translated(file, |table| table.entry(page))
    }
}

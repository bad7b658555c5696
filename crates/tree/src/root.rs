//! A tree and its root, which keeps its page as long as the tree exists.

use core::cell::Cell;
use core::fmt;

use latchwork_machine::{ConstMachine, Native};
use latchwork_pool::{FileId, Handle, PageMut};

use crate::change::Change;
use crate::edit;
use crate::held::{image_bytes, log_and_do};
use crate::journal::Journal;
use crate::node::Fences;
use crate::{Error, Kind};

/// How often a split is completed, or a page met again, before it counts as damage.
pub(crate) const ROUNDS: u32 = 1 << 16;

/// A thread's handle to a tree.
pub struct Tree<'h, 't, J: Journal, M: ConstMachine = Native> {
    pub(crate) handle: &'h Handle<'t, M>,
    pub(crate) file: FileId,
    pub(crate) root: u64,
    pub(crate) journal: &'h J,
    /// Whether pages on the way are pinned: see `walk`.
    pub(crate) careful: Cell<bool>,
}

impl<'h, 't, J: Journal, M: ConstMachine> Tree<'h, 't, J, M> {
    /// Creates an empty tree in `file`; [`root`](Self::root) finds it again.
    ///
    /// # Errors
    ///
    /// [`Error::Pool`], [`Error::Journal`].
    pub fn create(handle: &'h Handle<'t, M>, file: FileId, journal: &'h J) -> Result<Self, Error> {
        let root = empty_leaf(handle, file, journal)?;
        Ok(Self::open(handle, file, root, journal))
    }

    /// Opens the tree with this root page.
    pub fn open(handle: &'h Handle<'t, M>, file: FileId, root: u64, journal: &'h J) -> Self {
        Self { handle, file, root, journal, careful: Cell::new(false) }
    }

    /// Returns the page number of the root, which does not change.
    pub fn root(&self) -> u64 {
        self.root
    }
}

/// Creates an empty leaf to which no page leads, and returns its number.
pub(crate) fn empty_leaf<J: Journal, M: ConstMachine>(
    handle: &Handle<'_, M>,
    file: FileId,
    journal: &J,
) -> Result<u64, Error> {
    // Before the log's room, which a journal may use up to get pages.
    journal.reserve_pages(1)?;
    journal.reserve(image_bytes(file.page_bytes() as usize / 8)).map_err(Error::Journal)?;
    let page = new_page(handle, file, journal)?;
    let number = page.page();
    let mut leaf = vec![0; page.len()];
    edit::format(&mut leaf, Kind::Leaf, 0, Fences::ALL, 0)?;
    let image = Change::image(&leaf).ok_or_else(edit::malformed)?;
    log_and_do(journal, &Change::Image { image: &image }, page, None)?;
    Ok(number)
}

/// Creates a page to which no page leads.
pub(crate) fn new_page<'h, 't, J: Journal, M: ConstMachine>(
    handle: &'h Handle<'t, M>,
    file: FileId,
    journal: &J,
) -> Result<PageMut<'h, 't, M>, Error> {
    Ok(match journal.page() {
        Some(page) => handle.create(file, page)?,
        None => handle.new_page(file)?,
    })
}

impl<J: Journal, M: ConstMachine> fmt::Debug for Tree<'_, '_, J, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree").field("file", &self.file).field("root", &self.root).finish()
    }
}

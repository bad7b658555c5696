//! Returns the pages of a tree that no other thread knows, because its [loading](Tree::load) failed
//! or was killed.
//!
//! Each level of such a tree is a chain: the page above leads to its first page, and that to the
//! right. So pages are removed from left to right, the leaves first, and then level by level
//! upwards:
//!
//! | step | action | state if it is the last |
//! |---|---|---|
//! | 1 | the journal is asked for the page | it is still the [first](Tree::is_first) one |
//! | 2 | the page above is logged, with the right sibling as its only child | no page leads to it |
//! | 3 | the journal is notified | other threads may use it |
//!
//! A page can be reused only after the tree has removed it, so a thread that continues for a killed
//! one reads no page of another tree. For the same reason only the first page of a level is asked
//! for its children: those of the others were removed before.

use latchwork_machine::ConstMachine;
use latchwork_pool::Error as PoolError;

use crate::change::Change;
use crate::edit::{self, make};
use crate::held::{image_bytes, log_and_do};
use crate::journal::Journal;
use crate::node::{Fences, Node};
use crate::root::Tree;
use crate::{Error, Kind};

/// The links of a page.
struct Links {
    kind: Kind,
    level: u8,
    /// Whether it is the first page of its level.
    first: bool,
    child: Option<u64>,
    right: Option<u64>,
}

/// The page that is removed next.
struct Next {
    page: u64,
    right: Option<u64>,
    above: u64,
}

impl<J: Journal, M: ConstMachine> Tree<'_, '_, J, M> {
    /// Returns all pages except the root, which then is an empty leaf. Returns their number. No
    /// other thread may know the tree. O(pages), and for each page the one above is logged without
    /// its records.
    ///
    /// If the journal refuses a page because another thread uses it, the tree removes the page
    /// without returning it.
    ///
    /// # Errors
    ///
    /// [`Error::Pool`], [`Error::Journal`], [`Error::Level`]. A repeated call continues with the
    /// remaining pages.
    pub fn dismantle(&self) -> Result<u64, Error> {
        let mut gone = 0;
        while let Some(next) = self.next_to_go()? {
            // Damaged links may form a cycle over pages that the journal refuses.
            if gone > self.handle.pool().pages(self.file)? {
                return Err(Error::Level { page: next.page });
            }
            let whole = image_bytes(self.file.page_bytes() as usize / 8);
            self.journal.reserve(2 * whole).map_err(Error::Journal)?;
            let asked = self.journal.unlink(next.page).map_err(Error::Journal)?;
            self.forget_first(&next)?;
            if asked && !self.journal.unlinked(next.page)? {
                self.handle.free_page(self.file, next.page)?;
            }
            gone += 1;
        }
        Ok(gone)
    }

    /// Returns whether this page is the next that [`dismantle`](Self::dismantle) would return.
    ///
    /// # Errors
    ///
    /// [`Error::Pool`].
    pub fn is_first(&self, page: u64) -> Result<bool, Error> {
        Ok(self.next_to_go()?.is_some_and(|next| next.page == page))
    }

    fn next_to_go(&self) -> Result<Option<Next>, Error> {
        let mut above = self.root;
        // The root's number may come from shared memory that any process can write. A page with
        // siblings is no root.
        let root = self.links(above)?.filter(|root| root.first && root.right.is_none());
        let Some(mut links) = root else { return Ok(None) };
        loop {
            let Some(page) = links.child.filter(|_| links.kind == Kind::Inner) else {
                return Ok(None);
            };
            // A page that was taken for this tree and is not written yet is a leaf.
            let below = self.links(page)?.filter(|it| it.level.checked_add(1) == Some(links.level));
            match below {
                Some(below) if below.first && below.child.is_some() => {
                    (above, links) = (page, below);
                }
                below => {
                    let right = below.and_then(|below| below.right);
                    return Ok(Some(Next { page, right, above }));
                }
            }
        }
    }

    /// The links of a page; none if it is no page of a tree, or no longer.
    fn links(&self, page: u64) -> Result<Option<Links>, Error> {
        let read = self.handle.read(self.file, page, |view| {
            let links = Node::of(view).and_then(|node| {
                let (kind, level) = (node.kind(), node.level());
                // A page that leads to itself would never end.
                let right = node.right()?.filter(|right| *right != page);
                let first = node.low()?.is_empty();
                let child = node.first_child().filter(|child| *child != 0);
                Some(Links { kind, level, first, child, right })
            });
            Some(links)
        });
        match read {
            Ok(links) => Ok(links),
            Err(PoolError::Freed { .. } | PoolError::OutOfRange { .. }) => Ok(None),
            Err(error) if error.is_unwritten() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Logs the page above without the removed one.
    fn forget_first(&self, next: &Next) -> Result<(), Error> {
        let page = self.handle.write(self.file, next.above)?;
        let view = page.view();
        let node = Node::of(&view).ok_or_else(edit::no_page)?;
        if node.first_child() != Some(next.page) {
            return Err(Error::Level { page: next.above });
        }
        let mut words = vec![0; page.len()];
        match next.right {
            None if next.above == self.root => {
                edit::format(&mut words, Kind::Leaf, 0, Fences::ALL, 0)?;
            }
            right => {
                let high = node.high().ok_or_else(edit::malformed)?;
                let beside = node.right().ok_or_else(edit::malformed)?.unwrap_or(0);
                let fences = Fences { low: &[], high: high.as_deref() };
                let parts = (Kind::Inner, node.level(), 0);
                make(&mut words, parts, fences, beside, right.unwrap_or(0), &[])?;
            }
        }
        let image = Change::image(&words).ok_or_else(edit::malformed)?;
        log_and_do(self.journal, &Change::Image { image: &image }, page, None).map(drop)
    }
}

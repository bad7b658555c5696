//! Unlinks empty leaves so that their pages can be used again: a split in reverse.
//!
//! | step | record | state if it is the last |
//! |---|---|---|
//! | 1 | `Incomplete` of the left sibling | the sibling says that the parent may lack the page |
//! | 2 | `Purge` of its key in the parent | as after step 2 of a split: the left one leads to it |
//! | 3 | `Absorb` by the left sibling | as after step 1 of a split: no page leads to it |
//! | 4 | the journal is notified | the page can be reused |
//!
//! So a death leaves only states that a death may leave of a split, which are repaired in the same
//! way: the next thread that writes there adds the page to the parent again, and the journal, which
//! was asked before, returns a page to which no page leads.
//!
//! The left sibling takes over the range and nothing else: the removed page has only ghosts that
//! are no longer needed. An inner page is removed when it has one child left, which the left
//! sibling also takes over. The first child of its parent has no left sibling there and stays until
//! its parent is removed. The last page of a level stays, because ascending keys are added to it.
//!
//! In a queue, whose leaves become empty from the left, the first leaf stays and takes over one
//! range after the other. The second inner page loses all children but the first, and is then
//! merged into the first inner page, whose second child is then the remaining leaf.
//!
//! A thread that unlinks holds the parent, the left sibling and the page, in this order. No thread
//! that holds a page waits for one above it or to its left, so no deadlock arises.
//!
//! Undoing finds the right page: it searches its key again and reaches the left sibling. It puts no
//! record back into an unlinked range: a ghost is removed only when the transaction that made it
//! one has ended, and the record to which an insert is undone is also a ghost, or removed.

use latchwork_machine::ConstMachine;
use latchwork_pool::PageMut as PoolPage;

use crate::change::Change;
use crate::edit;
use crate::held::{check, image_bytes, log_and_keep};
use crate::journal::Journal;
use crate::node::Node;
use crate::root::{ROUNDS, Tree};
use crate::walk::To;
use crate::{Error, Kind};

/// The result for a page.
enum Outcome {
    Unlinked,
    /// It is empty, and the first child of its parent.
    First,
    /// It is not empty, or must not be unlinked.
    Stays,
}

/// The three pages, and the start of the removed page's range.
struct Trio<'h, 't, M: ConstMachine> {
    parent: PoolPage<'h, 't, M>,
    left: PoolPage<'h, 't, M>,
    gone: PoolPage<'h, 't, M>,
    low: Vec<u8>,
}

/// The remaining content of a removed page.
struct Rest {
    right: u64,
    high: Vec<u8>,
    child: u64,
}

/// The children of an inner page on both sides of a key.
fn pair<P: crate::Page + ?Sized>(node: &Node<'_, P>, index: usize) -> Option<(u64, u64)> {
    Some((node.child_at(Err(index))?, node.child(index)?))
}

impl<'h, 't, J: Journal, M: ConstMachine> Tree<'h, 't, J, M> {
    /// Unlinks the leaf to which `key` belongs, if it is empty, the pages above it that become
    /// empty with it, and the empty leaves to its left: at most `most` pages. Returns their number;
    /// if it is `most`, more may exist. O(log n) for each, with four pages changed.
    ///
    /// # Errors
    ///
    /// [`Error::Pool`], [`Error::Journal`], [`Error::Level`], [`Error::Room`]. The tree is then
    /// intact and has the same content.
    pub fn unlink(&self, key: &[u8], most: u64) -> Result<u64, Error> {
        let (mut level, mut unlinked) = (0, 0);
        while unlinked < most {
            match self.unlink_at(key, level)? {
                Outcome::Unlinked => (level, unlinked) = (0, unlinked + 1),
                Outcome::First => level += 1,
                Outcome::Stays => break,
            }
        }
        Ok(unlinked)
    }

    fn unlink_at(&self, key: &[u8], level: u8) -> Result<Outcome, Error> {
        let mut rounds = 0;
        loop {
            let (met, low) = self.walk(To::Key(key), level, |node, _| {
                Some(if self.is_empty(node)? { node.low()? } else { Vec::new() })
            })?;
            if let Some(missing) = &met.missing {
                self.finish_some(missing, &mut rounds)?;
                continue;
            }
            // The first page of a level has no page to its left.
            if met.page == self.root || low.is_empty() {
                return Ok(Outcome::Stays);
            }
            // Nothing for a leaf that stays. Otherwise three records, whose three keys have at most
            // a quarter of a page, and before each of them the whole page; if the journal is marked
            // in between, one of these twice.
            let whole = image_bytes(self.file.page_bytes() as usize / 8);
            self.journal.reserve(6 * whole).map_err(Error::Journal)?;
            let above = level.checked_add(1).ok_or_else(edit::malformed)?;
            let (met, known) = self.walk(To::Key(&low), above, |node, place| {
                Some(place.ok().map(|index| pair(node, index)))
            })?;
            if let Some(missing) = &met.missing {
                self.finish_some(missing, &mut rounds)?;
                continue;
            }
            let known = known.flatten();
            let meet = known.map(|known| self.meet(known, level, &low));
            let Some((parent, _)) = self.take(&met)? else { continue };
            let view = parent.view();
            let node = Node::of(&view).ok_or_else(edit::no_page)?;
            let place = node.search(&low).ok_or_else(edit::malformed)?;
            let now = place.ok().and_then(|index| pair(&node, index));
            // It may have been split, replaced, or got other children since it was met.
            let moved = node.is_beyond(&low).ok_or_else(edit::malformed)? || now != known;
            if node.kind() != Kind::Inner || node.level() != above || moved {
                rounds += 1;
                // Damaged memory may say so for ever.
                if rounds > ROUNDS {
                    return Err(Error::Level { page: met.page });
                }
                continue;
            }
            if place.is_err() {
                let first = node.low().ok_or_else(edit::malformed)? == low;
                return Ok(if first { Outcome::First } else { Outcome::Stays });
            }
            let (left, gone) = now.ok_or_else(edit::malformed)?;
            // Damaged links can lead to these pages, and the thread would wait for itself for ever.
            if left == gone || [left, gone].contains(&parent.page()) {
                return Err(Error::Level { page: gone });
            }
            if !meet.unwrap_or(Ok(false))? {
                return Ok(Outcome::Stays);
            }
            let left = self.handle.write(self.file, left)?;
            let gone = self.handle.write(self.file, gone)?;
            return self.unlink_one(Trio { parent, left, gone, low });
        }
    }

    /// Whether two children are of a level and meet at a key, as the parent says. They are read
    /// before the parent is latched: damaged memory may name pages whose holders wait for it, or
    /// for each other.
    fn meet(&self, (left, gone): (u64, u64), level: u8, low: &[u8]) -> Result<bool, Error> {
        let fence = |page: u64, is_high: bool| {
            let (found, fence) = self.handle.read(self.file, page, |view| {
                let node = Node::of(view)?;
                let fence = if is_high { node.high()? } else { Some(node.low()?) };
                Some((node.level(), fence))
            })?;
            if found == level { Ok(fence) } else { Err(Error::Level { page }) }
        };
        Ok(fence(left, true)?.as_deref() == Some(low)
            && fence(gone, false)?.as_deref() == Some(low))
    }

    /// Unlinks the page, if possible.
    fn unlink_one(&self, trio: Trio<'h, 't, M>) -> Result<Outcome, Error> {
        let (page, low) = (trio.gone.page(), trio.low.clone());
        let Some(rest) = self.rest(&trio)? else { return Ok(Outcome::Stays) };
        let Rest { right, high, child } = &rest;
        let (right, child) = (*right, *child);
        let absorb = Change::Absorb { gone: page, right, high, key: &low, child };
        match check(&absorb, &trio.left, None) {
            // Keys become longer where fences have less in common.
            Err(Error::Full | Error::RecordTooLong { .. }) => return Ok(Outcome::Stays),
            checked => checked?,
        }
        if !self.journal.unlink(page).map_err(Error::Journal)? {
            return Ok(Outcome::Stays);
        }
        let done = self.log_unlink(trio, &absorb);
        let returned = self.journal.unlinked(page)?;
        done?;
        if !returned {
            self.handle.free_page(self.file, page)?;
        }
        Ok(Outcome::Unlinked)
    }

    /// The content that the left sibling takes over; none if the page is not empty, or one of the
    /// two does not match the parent.
    fn rest(&self, trio: &Trio<'h, 't, M>) -> Result<Option<Rest>, Error> {
        let (left, gone) = (trio.left.view(), trio.gone.view());
        let (left, gone) = (Node::of(&left), Node::of(&gone));
        let (left, gone) = (left.ok_or_else(edit::no_page)?, gone.ok_or_else(edit::no_page)?);
        let rest = |gone: &Node<'_, _>| {
            let (right, high) = (gone.right()??, gone.high()??);
            let child = if gone.kind() == Kind::Inner { gone.first_child()? } else { 0 };
            Some(Rest { right, high, child })
        };
        let meet = left.right() == Some(Some(trio.gone.page()))
            && left.high().flatten().as_ref() == Some(&trio.low)
            && gone.low().as_ref() == Some(&trio.low)
            && left.level() == gone.level();
        let may = meet && !left.is_incomplete() && self.is_empty(&gone) == Some(true);
        Ok(if may { rest(&gone) } else { None })
    }

    /// Whether a page may be removed: a leaf without records or needed ghosts, or an inner page
    /// with one child; not the last page of its level.
    pub(crate) fn is_empty<P: crate::Page + ?Sized>(&self, node: &Node<'_, P>) -> Option<bool> {
        if node.is_incomplete() || node.right()?.is_none() {
            return Some(false);
        }
        if node.kind() == Kind::Inner {
            return Some(node.count() == 0);
        }
        let mut before = None;
        for index in 0..node.count() {
            let before = *before.get_or_insert_with(|| self.journal.forgotten());
            if !node.is_ghost(index)? || node.header(index)?.lsn() >= before {
                return Some(false);
            }
        }
        Some(true)
    }

    /// Logs the three records, each with the resulting state of its page.
    fn log_unlink(&self, trio: Trio<'h, 't, M>, absorb: &Change<'_>) -> Result<(), Error> {
        let Trio { mut parent, mut left, mut gone, low } = trio;
        log_and_keep(self.journal, &Change::Incomplete, &mut left, None)?;
        log_and_keep(self.journal, &Change::Purge { key: &low }, &mut parent, None)?;
        log_and_keep(self.journal, absorb, &mut left, None)?;
        // A reader that took its version before must not validate it.
        gone.touch();
        Ok(())
    }
}

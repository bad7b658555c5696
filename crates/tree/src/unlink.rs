//! Leaves that are empty are unlinked, and their pages used again: a split, backwards.
//!
//! | step | record | if it is the last that was done |
//! |---|---|---|
//! | 1 | `Incomplete` of the left sibling | the sibling says that the parent may lack the page |
//! | 2 | `Purge` of its key in the parent | as after step 2 of a split: the left one leads to it |
//! | 3 | `Absorb` by the left sibling | as after step 1 of a split: nothing leads to it |
//! | 4 | the journal is told | the page is anybody's |
//!
//! So whatever a death leaves of it is what a death may leave of a split, and is put right as that
//! is: by the next thread that writes there, which puts the page back into the parent; and a page
//! that nothing leads to by the journal, which was told of it before.
//!
//! The left sibling takes the range, and nothing else: what goes has no record but ghosts that
//! nobody asks for. An inner page goes when it has one child left, which the left sibling takes,
//! too. The first child of its parent has no left sibling there: it stays until its parent goes.
//! The last page of a level stays: to it go the keys that ascend.
//!
//! Of a queue, whose leaves become empty from the left, the first leaf stays and takes one range
//! after the other; the second inner page loses its children but the first, and then goes to the
//! first inner page, whose second child the remaining leaf is then.
//!
//! A thread that unlinks holds the parent, the left sibling and the page, in this order. No thread
//! that holds a page waits for one above it or to its left, so nobody waits in a circle.
//!
//! Undoing does not miss the page: it looks for its key anew, and finds the left sibling. It puts
//! no record back into a range that was unlinked: a ghost goes only when the transaction that made
//! it one is over, and the record that an insert is undone to is a ghost as well, or gone.

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

/// What became of a page.
enum Outcome {
    Unlinked,
    /// It is empty, and the first child of its parent.
    First,
    /// It is not empty, or may not be unlinked.
    Stays,
}

/// The three pages, and where the one that goes begins.
struct Trio<'h, 't, M: ConstMachine> {
    parent: PoolPage<'h, 't, M>,
    left: PoolPage<'h, 't, M>,
    gone: PoolPage<'h, 't, M>,
    low: Vec<u8>,
}

/// What is left of a page that goes.
struct Rest {
    right: u64,
    high: Vec<u8>,
    child: u64,
}

/// The children of an inner page on either side of a key.
fn pair<P: crate::Page + ?Sized>(node: &Node<'_, P>, index: usize) -> Option<(u64, u64)> {
    Some((node.child_at(Err(index))?, node.child(index)?))
}

impl<'h, 't, J: Journal, M: ConstMachine> Tree<'h, 't, J, M> {
    /// Unlinks the leaf to which `key` belongs, if it is empty, and what of the pages above it has
    /// become empty with that, and the empty leaves to its left: `most` pages at most. Returns how
    /// many there were; if as many as `most`, there may be more. O(log n) for each, and four pages
    /// are changed.
    ///
    /// # Errors
    ///
    /// [`Error::Pool`], [`Error::Journal`], [`Error::Level`], [`Error::Room`]. The tree is whole
    /// then, and has what it had.
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
            // Nothing for a leaf that stays. Three records, whose three keys are of a quarter of a
            // page at most, and before each of them the page whole; if the journal is marked
            // meanwhile, one of these twice.
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
            // It may have been split, be another page or have other children, since it was met.
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
            // What damaged links lead to: to wait for itself would be for ever.
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

    /// Whether two children are of a level and meet at a key, as the page above has it. They are
    /// read before that is in hand: damaged memory may name pages whose holders wait for it, or for
    /// each other.
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

    /// Unlinks the page, if it can be.
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

    /// What the left sibling takes; none if the page is not empty, or one of the two is not as the
    /// parent has it.
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

    /// Whether a page may go: a leaf without records that anybody asks for, an inner page with one
    /// child; not the last page of its level.
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

    /// The three records, each with the pages as they are to be then.
    fn log_unlink(&self, trio: Trio<'h, 't, M>, absorb: &Change<'_>) -> Result<(), Error> {
        let Trio { mut parent, mut left, mut gone, low } = trio;
        log_and_keep(self.journal, &Change::Incomplete, &mut left, None)?;
        log_and_keep(self.journal, &Change::Purge { key: &low }, &mut parent, None)?;
        log_and_keep(self.journal, absorb, &mut left, None)?;
        // A reader that took its version before must not find it the same.
        gone.touch();
        Ok(())
    }
}

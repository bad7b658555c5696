//! From the root to a page, and along the leaves in both directions.
//!
//! A reader stores nothing, so a page that is unlinked (`unlink`) may be reused while a reader is
//! on its way to it. Each step is therefore tied to the one before (optimistic lock coupling: Cha
//! and others, VLDB 2001; Leis and others, 2016): the page that leads on is read and validated, the
//! version of the next page is taken, then the page before is validated once more. If it is
//! unchanged, it led to the next page when that had this version. Unlinking a page first changes
//! the pages that lead to it. So a reader either finds one of those changed and starts again at the
//! root, or has the version of a page of the tree, against which it validates what it reads there.
//! The root is never unlinked.
//!
//! An evicted page counts as changed. In a pool that is small for its threads, the next page may
//! repeatedly take the frame of the page before. So a thread that had to start again pins the page
//! before until it has the next.
//!
//! A writer latches the page and then validates the page that led to it (`take`): a held page is
//! not unlinked, because that needs its latch.
//!
//! The upper fence leads to the right where the parent does not know of a page yet (Lehman and Yao,
//! 1981).
//!
//! There are no links to the left. On the way down, the page before a key is the one below the
//! greatest separator that is less than the key.

use core::cmp::Ordering;

use latchwork_machine::ConstMachine;
use latchwork_pool::{PageMut as PoolPage, PageView, Pin, Snapshot};

use crate::Error;
use crate::batch::Batch;
use crate::edit;
use crate::journal::Journal;
use crate::layout::LINE_WORDS;
use crate::node::Node;
use crate::root::Tree;

/// The target of a walk.
#[derive(Clone, Copy)]
pub(crate) enum To<'k> {
    /// The page to which this key belongs.
    Key(&'k [u8]),
    /// The page at which the keys below this one end.
    Before(&'k [u8]),
    /// The last page.
    Last,
}

/// How many cache lines of a leaf are prefetched before the leaf is searched. A leaf is rarely in
/// the processor's cache, and a binary search would wait for one line after the other.
const FIRST_LINES: usize = 8;

/// The result of reading a page on a walk.
enum Step {
    Right(u64),
    Down(u64),
    Here,
    Lost,
    /// The page before does not lead here any more.
    Stale,
}

/// A page that was missing in the parent when its left sibling was read.
#[derive(Clone, Debug)]
pub(crate) struct Missing {
    /// The lowest key that belongs to it.
    pub(crate) separator: Vec<u8>,
    /// Its number.
    pub(crate) right: u64,
    /// Its level.
    pub(crate) level: u8,
}

/// A page that was met, and a page that was missing in a parent on the way.
pub(crate) struct Met<'h, 't, M: ConstMachine> {
    pub(crate) page: u64,
    /// The page as it was read.
    pub(crate) seen: Snapshot<'h, M>,
    /// The page that led to it; none for the root.
    via: Option<Snapshot<'h, M>>,
    /// Keeps that page from being evicted.
    _pin: Option<Pin<'h, 't, M>>,
    pub(crate) missing: Option<Missing>,
}

fn is_stale<M: ConstMachine>(via: &Option<Snapshot<'_, M>>) -> bool {
    via.as_ref().is_some_and(|via| !via.validate())
}

/// Its place on a page; for [`To::Before`] and [`To::Last`], behind which child the walk continues.
type Place = Result<usize, usize>;

fn missing_of<P: crate::Page + ?Sized>(node: &Node<'_, P>) -> Option<Missing> {
    Some(Missing { separator: node.high()??, right: node.right()??, level: node.level() })
}

#[inline(always)]
fn search<P: crate::Page + ?Sized>(node: &Node<'_, P>, to: To<'_>) -> Option<Place> {
    match to {
        To::Key(key) => node.search(key),
        To::Before(key) => Some(Err(node.search(key)?.unwrap_or_else(|index| index))),
        To::Last => Some(Err(node.count())),
    }
}

/// Whether the target lies to the right of the page. It does not if the page has a greater record.
#[inline(always)]
fn is_beyond<P: crate::Page + ?Sized>(
    node: &Node<'_, P>,
    to: To<'_>,
    place: Place,
) -> Option<bool> {
    if place != Err(node.count()) {
        return Some(false);
    }
    match to {
        To::Key(key) => node.is_beyond(key),
        To::Before(key) => Some(node.high_to(key)?.is_some_and(Ordering::is_lt)),
        To::Last => Some(node.right()?.is_some()),
    }
}

impl<'t, J: Journal, M: ConstMachine> Tree<'_, 't, J, M> {
    /// Walks to the page of `level` that `to` means. Returns what `at` computes from it and the
    /// place there, with its number and a page that was missing in a parent on the way.
    #[inline]
    pub(crate) fn walk<R>(
        &self,
        to: To<'_>,
        level: u8,
        mut at: impl FnMut(&Node<'_, PageView<'_, M>>, Place) -> Option<R>,
    ) -> Result<(Met<'_, 't, M>, R), Error> {
        if let To::Key(key) = to
            && !self.careful.get()
            && let Some(found) = self.descend(key, level, &mut at)
        {
            return Ok(found);
        }
        let mut made = None;
        let met = self.walk_by_steps(to, level, &mut |node, place| {
            made = at(node, place);
            made.is_some()
        })?;
        // `at` set it at the page that was met, which was the last.
        made.map(|made| (met, made)).ok_or_else(edit::malformed)
    }

    /// [`walk`](Self::walk) for all cases. `at` returns whether it computed a result.
    #[inline(never)]
    fn walk_by_steps(
        &self,
        to: To<'_>,
        level: u8,
        at: &mut dyn FnMut(&Node<'_, PageView<'_, M>>, Place) -> bool,
    ) -> Result<Met<'_, 't, M>, Error> {
        let (mut page, mut expected, mut via) = (self.root, None, None);
        let (mut missing, mut says, mut steps) = (None, None, 0);
        let mut pin = None;
        loop {
            // An error is found again by the read.
            let pinned = self.careful.get().then(|| self.handle.pin(self.file, page).ok());
            let read = self.handle.read_known(self.file, page, |view| {
                // The version of this page was taken before.
                if is_stale(&via) {
                    return Some((Step::Stale, 0));
                }
                // The result of a torn read is discarded.
                says = None;
                let node = Node::of(view)?;
                let lost = expected.is_some_and(|expected| node.level() != expected);
                let place = search(&node, to)?;
                if node.is_incomplete() {
                    says = Some(missing_of(&node)?);
                }
                let step = if lost || node.level() < level {
                    Step::Lost
                } else if is_beyond(&node, to, place)? {
                    Step::Right(node.right()??)
                } else if node.level() == level {
                    at(&node, place).then_some(Step::Here)?
                } else {
                    Step::Down(node.child_at(place)?)
                };
                Some((step, node.level()))
            });
            if says.is_some() {
                missing = says.take();
            }
            let (step, found) = match read {
                Ok(((Step::Here, _), seen)) => {
                    return Ok(Met { page, seen, via, _pin: pin, missing });
                }
                Ok(((step, found), snapshot)) if !matches!(step, Step::Stale) => {
                    (via, pin) = (Some(snapshot), pinned.flatten());
                    (step, found)
                }
                Err(error) if !is_stale(&via) => return Err(error.into()),
                _ => {
                    (page, expected, via, pin) = (self.root, None, None, None);
                    (missing, steps) = (None, 0);
                    self.careful.set(true);
                    continue;
                }
            };
            (page, expected) = match step {
                Step::Right(right) => {
                    // Damaged links could form a cycle; the number of pages bounds the steps.
                    steps += 1;
                    if steps > self.handle.pool().pages(self.file)? {
                        return Err(Error::Level { page });
                    }
                    (right, Some(found))
                }
                Step::Down(down) => (down, found.checked_sub(1)),
                _ => return Err(Error::Level { page }),
            };
        }
    }

    /// Descends directly to the page of `level` to which `key` belongs. None for the cases that
    /// need [`walk_by_steps`](Self::walk_by_steps): a page that is not cached or is being changed,
    /// or an incomplete split.
    ///
    /// Without an incomplete split, the page that leads to another one determines its range and has
    /// just been validated, so the key is not compared with the page's fences.
    #[inline(always)]
    fn descend<R>(
        &self,
        key: &[u8],
        level: u8,
        at: impl FnOnce(&Node<'_, PageView<'_, M>>, Place) -> Option<R>,
    ) -> Option<(Met<'_, 't, M>, R)> {
        let (mut page, mut expected, mut via) = (self.root, None, None);
        loop {
            let seen = self.handle.try_optimistic(self.file, page)?;
            if is_stale(&via) {
                return None;
            }
            let view = seen.view();
            if expected == Some(level) {
                for line in 0..FIRST_LINES {
                    view.prefetch(line * LINE_WORDS);
                }
            }
            let node = Node::of(&view)?;
            let found = node.level();
            if node.is_incomplete() || expected.is_some_and(|expected| found != expected) {
                return None;
            }
            let place = node.search_inside(key)?;
            if found <= level {
                let result = at(&node, place).filter(|_| found == level && seen.validate())?;
                return Some((Met { page, seen, via, _pin: None, missing: None }, result));
            }
            // What was read here is validated when the version of the next page is taken.
            page = node.child_at(place)?;
            (expected, via) = (Some(found - 1), Some(seen));
        }
    }

    /// Latches a page that was met, unless it was reused. Returns whether it is unchanged since it
    /// was read, which is the usual case and saves another search.
    pub(crate) fn take<'a>(
        &'a self,
        met: &Met<'a, 't, M>,
    ) -> Result<Option<(PoolPage<'a, 't, M>, bool)>, Error> {
        let as_read = self.handle.upgrade(&met.seen)?;
        let taken = match as_read {
            Some(page) => Ok((page, true)),
            None => self.handle.write(self.file, met.page).map(|page| (page, false)),
        };
        if is_stale(&met.via) {
            self.careful.set(true);
            return Ok(None);
        }
        Ok(Some(taken?))
    }

    /// Reads the records from `from` on in the leaf of `from`, at most `limit`, including ghosts.
    /// O(log n) and a copy of the leaf.
    ///
    /// # Errors
    ///
    /// [`Error::Pool`], [`Error::Level`]; [`Error::Malformed`].
    pub fn scan(&self, from: &[u8], limit: usize, batch: &mut Batch) -> Result<(), Error> {
        let first = self.copy_leaf(To::Key(from), (limit, false), batch)?;
        batch.forwards(first, limit).ok_or_else(edit::malformed)
    }

    /// Reads the records below `before` in one leaf, the greatest first; at most `limit`, and from
    /// the end of the tree if `before` is none.
    ///
    /// # Errors
    ///
    /// The errors of [`scan`](Self::scan).
    pub fn scan_back(
        &self,
        before: Option<&[u8]>,
        limit: usize,
        batch: &mut Batch,
    ) -> Result<(), Error> {
        let end = self.copy_leaf(before.map_or(To::Last, To::Before), (limit, true), batch)?;
        batch.backwards(end, limit).ok_or_else(edit::malformed)
    }

    /// Copies the leaf that `to` means, or the wanted records in a direction, and returns the place
    /// there.
    fn copy_leaf(
        &self,
        to: To<'_>,
        (limit, back): (usize, bool),
        batch: &mut Batch,
    ) -> Result<usize, Error> {
        let (_, place) = self.walk(to, 0, |node, place| {
            // A damaged page could lead a scan back to its start.
            let goes_on = match to {
                To::Key(key) => !node.is_beyond(key)?,
                To::Before(key) => node.is_above(key)?,
                To::Last => true,
            };
            goes_on.then_some(())?;
            let place = place.unwrap_or_else(|index| index);
            batch.copy(node.page, place, limit, back)?;
            Some(place)
        })?;
        Ok(place)
    }
}

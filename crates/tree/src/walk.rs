//! From the root to a page, and along the leaves in either direction.
//!
//! Each page is read by itself, validated, and let go before the next one. That is enough because
//! of two rules (Lehman and Yao, 1981): what is on a page only ever moves to the right, where its
//! upper fence and its sibling lead; and no page is given to anything else while the tree lives.
//! The root alone becomes another page, in place.
//!
//! There are no links to the left. Going down, the page before a key is the one below which lies
//! the greatest separator that is less than the key.

use latchwork_machine::ConstMachine;
use latchwork_pool::PageView;

use crate::journal::Journal;
use crate::node::Node;
use crate::root::Tree;
use crate::{Error, Header, Kind};

/// A record as it was at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// Who wrote it.
    pub header: Header,
    /// Whether it is deleted.
    pub ghost: bool,
}

/// Some records of one leaf, of one state of it. A cursor is what it takes to ask for the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// In the order of the scan, ghosts included.
    pub rows: Vec<Row>,
    /// Where to go on: the first key forwards, the key before which to look backwards. None at the
    /// end of the tree.
    pub next: Option<Vec<u8>>,
}

/// Where a walk goes.
#[derive(Clone, Copy)]
pub(crate) enum To<'k> {
    /// To where this key belongs.
    Key(&'k [u8]),
    /// To where the keys below this one end.
    Before(&'k [u8]),
    /// To the last page.
    Last,
}

/// What a page says to one that walks.
enum Step<R> {
    Right(u64),
    Down(u64),
    Here(R),
    Lost,
}

/// A page that was met, and whether its right sibling is missing in the parent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Met {
    pub(crate) page: u64,
    pub(crate) incomplete: Option<u64>,
}

fn is_beyond<P: crate::Page + ?Sized>(node: &Node<'_, P>, to: To<'_>) -> Option<bool> {
    match to {
        To::Key(key) => node.is_beyond(key),
        To::Before(key) => Some(node.high()?.is_some_and(|high| high.as_slice() < key)),
        To::Last => Some(node.right()?.is_some()),
    }
}

fn child<P: crate::Page + ?Sized>(node: &Node<'_, P>, to: To<'_>) -> Option<u64> {
    let index = match to {
        To::Key(key) => return node.child_of(key),
        To::Before(key) => node.search(key)?.unwrap_or_else(|index| index),
        To::Last => node.count(),
    };
    if index == 0 { node.first_child() } else { node.child(index - 1) }
}

impl<J: Journal, M: ConstMachine> Tree<'_, '_, J, M> {
    /// Goes to the page of `level` that `to` means, and returns what `at` makes of it, with its
    /// number and the last page on the way that is incomplete.
    pub(crate) fn walk<R>(
        &self,
        to: To<'_>,
        level: u8,
        mut at: impl FnMut(&Node<'_, PageView<'_, M>>) -> Option<R>,
    ) -> Result<(Met, R), Error> {
        let (mut page, mut expected) = (self.root, None);
        let mut met = Met::default();
        let mut left = self.handle.pool().pages(self.file)?;
        loop {
            let (step, incomplete, found) = self.handle.read(self.file, page, |view| {
                let node = Node::of(view)?;
                let lost = expected.is_some_and(|expected| node.level() != expected);
                let step = if lost || node.level() < level {
                    Step::Lost
                } else if is_beyond(&node, to)? {
                    Step::Right(node.right()??)
                } else if node.level() == level {
                    Step::Here(at(&node)?)
                } else {
                    Step::Down(child(&node, to)?)
                };
                Some((step, node.is_incomplete(), node.level()))
            })?;
            if incomplete {
                met.incomplete = Some(page);
            }
            match step {
                Step::Here(result) => return Ok((Met { page, ..met }, result)),
                // Damaged links could lead in a circle; there are so many pages.
                Step::Lost => return Err(Error::Level { page }),
                Step::Right(_) if left == 0 => return Err(Error::Level { page }),
                Step::Right(right) => {
                    left -= 1;
                    expected = Some(found);
                    page = right;
                }
                Step::Down(down) => {
                    expected = found.checked_sub(1);
                    page = down;
                }
            }
        }
    }

    /// The records from `from` on that the leaf of `from` has, at most `limit` of them.
    ///
    /// # Errors
    ///
    /// [`Error::Pool`], [`Error::Level`].
    pub fn scan(&self, from: &[u8], limit: usize) -> Result<Batch, Error> {
        let (_, batch) = self.walk(To::Key(from), 0, |node| {
            let first = node.search(from)?.unwrap_or_else(|index| index);
            let last = node.count().min(first.saturating_add(limit));
            let rows = (first..last).map(|index| row(node, index)).collect::<Option<_>>()?;
            let next = if last < node.count() { Some(node.key(last)?) } else { node.high()? };
            Some(Batch { rows, next })
        })?;
        Ok(batch)
    }

    /// The records below `before`, the greatest first, that one leaf has; at most `limit` of them,
    /// and from the end of the tree if `before` is none.
    ///
    /// # Errors
    ///
    /// As [`scan`](Self::scan).
    pub fn scan_back(&self, before: Option<&[u8]>, limit: usize) -> Result<Batch, Error> {
        let to = before.map_or(To::Last, To::Before);
        let (_, batch) = self.walk(to, 0, |node| {
            let end = match before {
                Some(key) => node.search(key)?.unwrap_or_else(|index| index),
                None => node.count(),
            };
            let begin = end.saturating_sub(limit);
            let rows = (begin..end).rev().map(|index| row(node, index)).collect::<Option<_>>()?;
            let next = if begin > 0 { node.key(begin)? } else { node.low()? };
            Some(Batch { rows, next: (!next.is_empty()).then_some(next) })
        })?;
        Ok(batch)
    }

    /// Looks at every page that the tree leads to, and returns how many there are.
    ///
    /// While nobody changes the tree: each level is one chain of pages whose fences meet, each
    /// child has the fences that its parent says, and what is missing in a parent is said to be.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] with what is wrong; [`Error::Pool`], [`Error::Level`].
    pub fn verify(&self) -> Result<u64, Error> {
        let (mut first, mut pages) = (Some(self.root), 0);
        while let Some(begin) = first {
            let (mut next, mut low, mut missing) = (Some(begin), Vec::new(), false);
            first = None;
            while let Some(page) = next {
                let seen = self.handle.read(self.file, page, |view| Some(self.look(view)))??;
                pages += 1;
                if pages > self.handle.pool().pages(self.file)? {
                    return Err(Error::Malformed("the pages of a level lead in a circle"));
                }
                if seen.low != low {
                    return Err(Error::Malformed("the fences of two siblings do not meet"));
                }
                if seen.high.is_some() != seen.right.is_some() {
                    return Err(Error::Malformed(
                        "an upper fence without a sibling, or none with one",
                    ));
                }
                // Where the one before was incomplete nobody need know of this page.
                let known = self.walk(To::Key(&low), seen.level, |_| Some(()))?.0.page;
                if known != page && !missing {
                    return Err(Error::Malformed("a page that its parent does not lead to"));
                }
                missing = seen.incomplete;
                first = first.or(seen.first_child);
                low = seen.high.unwrap_or_default();
                next = seen.right;
            }
        }
        Ok(pages)
    }

    fn look(&self, view: &PageView<'_, M>) -> Result<Seen, Error> {
        let wrong = || Error::Malformed("a page whose fences cannot be read");
        let node = Node::of(view).ok_or(Error::Malformed("not a page of a tree"))?;
        node.verify()?;
        Ok(Seen {
            level: node.level(),
            incomplete: node.is_incomplete(),
            low: node.low().ok_or_else(wrong)?,
            high: node.high().ok_or_else(wrong)?,
            right: node.right().ok_or_else(wrong)?,
            first_child: match node.kind() {
                Kind::Inner => Some(node.first_child().ok_or_else(wrong)?),
                Kind::Leaf => None,
            },
        })
    }
}

/// What `verify` keeps of a page.
struct Seen {
    level: u8,
    incomplete: bool,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    right: Option<u64>,
    first_child: Option<u64>,
}

fn row<P: crate::Page + ?Sized>(node: &Node<'_, P>, index: usize) -> Option<Row> {
    Some(Row {
        key: node.key(index)?,
        value: node.value(index)?,
        header: node.header(index)?,
        ghost: node.is_ghost(index)?,
    })
}

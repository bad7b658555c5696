//! Operations on a key: get, insert, replace, delete, undo.
//!
//! Readers hold no latch. A writer goes to the leaf like a reader and latches only that leaf. A
//! full leaf is split (`structure`), and the writer starts again. A change contains the record's
//! previous state, so that any thread can undo it in place.

use latchwork_machine::ConstMachine;
use latchwork_pool::PageMut as PoolPage;

use crate::change::Change;
use crate::difference::Difference;
use crate::edit;
use crate::held::{check, image_bytes, is_logged_whole, log_and_do};
use crate::journal::Journal;
use crate::layout::RECORD_BYTES;
use crate::node::Node;
use crate::root::{ROUNDS, Tree};
use crate::split::SplitAt;
use crate::structure::pages_to_split;
use crate::walk::{Missing, To};
use crate::{Error, Header, Kind, Page};

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The LSN of its record.
    pub lsn: u64,
    /// The previous value of the key, if it had one.
    pub before: Option<Vec<u8>>,
    /// The previous header of its record, ghost or not.
    pub was: Header,
    /// Whether the leaf now has only ghosts.
    pub emptied: bool,
}

impl Written {
    fn nothing(before: Option<Vec<u8>>, was: Header) -> Self {
        Self { lsn: 0, before, was, emptied: false }
    }
}

/// The current state of a record, without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newest {
    /// The last writer.
    pub header: Header,
    /// Whether it is deleted.
    pub ghost: bool,
}

/// The share of a full page that ghosts and unused room must have for the page to be cleared of
/// them instead of split.
const CLEARED_SHARE: usize = 16;

/// A full leaf with no more records than this has large ones.
const LARGE: usize = 8;

/// An operation on a key.
#[derive(Clone, Copy)]
enum Operation<'v> {
    Insert(&'v [u8]),
    Replace(&'v [u8]),
    Put(&'v [u8]),
    Delete,
    Alter(Made<'v>),
    /// An undoing change, and the header that the change to be undone gave the record.
    Undo(Change<'v>, Header),
}

/// Computes a value from the existing one; none keeps it.
type Made<'m> = &'m dyn Fn(Option<&[u8]>) -> Option<Vec<u8>>;

/// The most bytes of a computed value.
const MADE_BYTES: usize = 256;

impl<J: Journal, M: ConstMachine> Tree<'_, '_, J, M> {
    /// Appends the value of `key` to `value` and returns its header; none if the key does not exist
    /// or is a ghost. Stores nothing that other threads load.
    ///
    /// # Errors
    ///
    /// [`Error::Pool`], [`Error::Level`].
    pub fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<Header>, Error> {
        let begun = value.len();
        Ok(match self.newest(key, value)? {
            Some(Newest { header, ghost: false }) => Some(header),
            _ => {
                value.truncate(begun);
                None
            }
        })
    }

    /// Returns the record of `key`, ghost or not, and appends its value to `value`. Stores nothing
    /// that other threads load.
    ///
    /// # Errors
    ///
    /// [`Error::Pool`], [`Error::Level`].
    #[inline]
    pub fn newest(&self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<Newest>, Error> {
        let begun = value.len();
        let (_, found) = self.walk(To::Key(key), 0, |node, place| {
            value.truncate(begun);
            let Ok(index) = place else { return Some(None) };
            let (header, ghost) = node.record_into(index, value)?;
            Some(Some(Newest { header, ghost }))
        })?;
        if found.is_none() {
            value.truncate(begun);
        }
        Ok(found)
    }

    /// Inserts a record.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]; [`Error::KeyTooLong`], [`Error::RecordTooLong`]; [`Error::Refused`],
    /// [`Error::Kept`]; [`Error::Pool`], [`Error::Journal`], [`Error::Level`].
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<Written, Error> {
        self.write(key, Operation::Insert(value))
    }

    /// Replaces the value of a key.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`]; the others of [`insert`](Self::insert).
    pub fn replace(&self, key: &[u8], value: &[u8]) -> Result<Written, Error> {
        self.write(key, Operation::Replace(value))
    }

    /// Inserts a record, or replaces its value.
    ///
    /// # Errors
    ///
    /// The errors of [`insert`](Self::insert) except [`Error::Exists`].
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<Written, Error> {
        self.write(key, Operation::Put(value))
    }

    /// Turns the record of a key into a ghost.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`]; [`Error::Pool`], [`Error::Journal`], [`Error::Level`].
    pub fn delete(&self, key: &[u8]) -> Result<Written, Error> {
        self.write(key, Operation::Delete)
    }

    /// Replaces the value of a key by the one that `make` computes from it, atomically. Returns
    /// false, without a change, if `make` returns none. For values of at most 256 bytes.
    ///
    /// # Errors
    ///
    /// The errors of [`put`](Self::put).
    pub fn alter(&self, key: &[u8], make: Made<'_>) -> Result<bool, Error> {
        Ok(self.write(key, Operation::Alter(make))?.lsn != 0)
    }

    /// Undoes a change of this tree, wherever its key is now, in place, so that no page becomes
    /// full. `made` is the header that the change gave the record. The caller ensures that no other
    /// transaction changes the record, and undoes later changes of it first. Undoing a change twice
    /// is harmless.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if the change cannot be undone, the key does not exist any more, or
    /// another change of the record is the last one; [`Error::Pool`], [`Error::Journal`],
    /// [`Error::Level`].
    pub fn undo(&self, change: &Change<'_>, made: Header) -> Result<Written, Error> {
        let undo = change.undo();
        let undo = undo.and_then(|undo| undo.record_key().map(|key| (key, undo)));
        let (key, undo) = undo.ok_or(Error::Malformed("nothing undoes this change"))?;
        self.write(key, Operation::Undo(undo, made))
    }

    /// Takes away the ghosts of the leaf of `key` that nobody asks for, if they are a part of it
    /// that is worth a record of the log. Returns whether it did. A leaf that has nothing else
    /// stays as it is, for [`unlink`](Self::unlink), unless it is the first one.
    ///
    /// # Errors
    ///
    /// [`Error::Pool`], [`Error::Journal`], [`Error::Level`].
    pub fn clear(&self, key: &[u8]) -> Result<bool, Error> {
        let whole = image_bytes(self.file.page_bytes() as usize / 8);
        self.journal.reserve(4 * whole).map_err(Error::Journal)?;
        let (met, worth) = self.walk(To::Key(key), 0, |node, _| Some(self.clears(node)))?;
        if worth.is_none() {
            return Ok(false);
        }
        let Some((page, _)) = self.take(&met)? else { return Ok(false) };
        let view = page.view();
        let node = Node::of(&view).ok_or_else(edit::no_page)?;
        let is_leaf_of_key = node.kind() == Kind::Leaf
            && !node.is_incomplete()
            && !node.is_beyond(key).ok_or_else(edit::malformed)?;
        let is_first = node.low().ok_or_else(edit::malformed)?.is_empty();
        if !is_leaf_of_key || !is_first && self.is_empty(&node).ok_or_else(edit::malformed)? {
            return Ok(false);
        }
        let Some(clear) = self.clears(&node) else { return Ok(false) };
        log_and_do(self.journal, &clear, page, None).map(|_| true)
    }

    fn write(&self, key: &[u8], operation: Operation<'_>) -> Result<Written, Error> {
        let undoes = matches!(operation, Operation::Undo(..));
        let needs = operation.bytes(key);
        let (mut more, mut pages, mut rounds) = (0, 0, 0);
        loop {
            self.journal.reserve(needs + more).map_err(Error::Journal)?;
            if pages != 0 {
                self.journal.reserve_pages(core::mem::take(&mut pages))?;
            }
            let (met, place) = self.walk(To::Key(key), 0, |_, place| Some(place))?;
            // An undoing change does not restructure pages: there may be no room for it.
            if let Some(missing) = met.missing.as_ref().filter(|_| !undoes) {
                self.finish_some(missing, &mut rounds)?;
            }
            let Some((page, as_read)) = self.take(&met)? else { continue };
            let view = page.view();
            let node = Node::of(&view).ok_or_else(edit::no_page)?;
            let place = as_read.then_some(place);
            let Some(found) = found_on(&node, key, place)? else { continue };
            if node.is_incomplete() && !undoes {
                continue;
            }
            let (before, was) = there(&node, found).ok_or_else(edit::malformed)?;
            if !undoes {
                self.ask(key, before.as_deref())?;
            }
            if operation.is_undone(found.is_ok().then_some(was)) {
                return Ok(Written::nothing(before, was));
            }
            let made = operation.made(before.as_deref());
            let operation = match (operation, &made) {
                (Operation::Alter(_), None) => return Ok(Written::nothing(before, was)),
                (_, Some(made)) => Operation::Put(made),
                _ => operation,
            };
            let (there, in_full) = ((before.as_deref(), was), self.journal.logs_whole());
            let change = change(key, operation, there, found.is_ok(), in_full)?;
            // The value is logged, and once more if the change is undone.
            let old = if undoes { 0 } else { 2 * before.as_ref().map_or(0, Vec::len) as u64 };
            let whole = image_bytes(page.len());
            match check(&change, &page, Some(found)) {
                Ok(()) => {
                    let first = is_logged_whole(&page, self.journal.since(), undoes);
                    let most = if first { old + whole } else { old };
                    if !self.journal.has(needs + most) {
                        more = most;
                        continue;
                    }
                    let emptied = empties(&change, &node, found);
                    match log_and_do(self.journal, &change, page, Some(found)) {
                        Err(Error::Room) => more = old + whole,
                        other => return Ok(Written { lsn: other?, before, was, emptied }),
                    }
                }
                Err(Error::Full) if !self.journal.has(needs + 4 * whole) => more = 4 * whole,
                Err(Error::Full) if let Some(clear) = self.clears(&node) => {
                    log_and_do(self.journal, &clear, page, None)?;
                }
                Err(Error::Full) if let Some(missing) = self.lacks_pages(&page) => pages = missing,
                Err(Error::Full) => {
                    let at = split_at(&node, key, found);
                    self.split(page, at)?;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// The place at which a full leaf is divided. Keys seem to arrive in ascending order if this one is
/// greater than all keys of the leaf: at the end of the tree, or where records are so large that
/// one more matters.
fn split_at<'k, P: Page + ?Sized>(
    node: &Node<'_, P>,
    key: &'k [u8],
    found: Result<usize, usize>,
) -> SplitAt<'k> {
    let ends = node.count() <= LARGE || node.right() == Some(None);
    if ends && found == Err(node.count()) { SplitAt::Before(key) } else { SplitAt::Middle }
}

impl<J: Journal, M: ConstMachine> Tree<'_, '_, J, M> {
    /// Completes a split, a bounded number of times.
    pub(crate) fn finish_some(&self, missing: &Missing, rounds: &mut u32) -> Result<(), Error> {
        *rounds += 1;
        match *rounds > ROUNDS {
            true => Err(Error::Level { page: missing.right }),
            false => self.finish(missing),
        }
    }

    /// Checks that a record with this value may be changed.
    fn ask(&self, key: &[u8], before: Option<&[u8]>) -> Result<(), Error> {
        if !self.journal.may_write().map_err(Error::Journal)? {
            return Err(Error::Refused);
        }
        match before.is_none_or(|before| self.journal.may_replace(key, before)) {
            true => Ok(()),
            false => Err(Error::Kept),
        }
    }

    /// How many pages are needed to split this one and are not available.
    fn lacks_pages(&self, page: &PoolPage<'_, '_, M>) -> Option<usize> {
        let pages = pages_to_split(self.root, page);
        (!self.journal.has_pages(pages)).then_some(pages)
    }

    /// The change that makes room in a full leaf without a split, by removing unneeded ghosts and
    /// unused room, if that frees enough.
    fn clears<P: crate::Page + ?Sized>(&self, node: &Node<'_, P>) -> Option<Change<'static>> {
        let before = self.journal.forgotten();
        let words = edit::cleared(node, before)?;
        (words >= node.page.len() / CLEARED_SHARE).then_some(Change::Clear { before, trims: true })
    }
}

/// The place of a key on a held page: the known one if the page is unchanged since it was read.
/// None if the page was split since, or is the root and has grown.
fn found_on<P: crate::Page + ?Sized>(
    node: &Node<'_, P>,
    key: &[u8],
    place: Option<Result<usize, usize>>,
) -> Result<Option<Result<usize, usize>>, Error> {
    if let Some(place) = place {
        return Ok(Some(place));
    }
    if node.kind() != Kind::Leaf || node.is_beyond(key).ok_or_else(edit::malformed)? {
        return Ok(None);
    }
    node.search(key).ok_or_else(edit::malformed).map(Some)
}

/// The value and the header of the record that was searched; no value for a ghost.
fn there<P: crate::Page + ?Sized>(
    node: &Node<'_, P>,
    found: Result<usize, usize>,
) -> Option<(Option<Vec<u8>>, Header)> {
    let Ok(index) = found else { return Some((None, Header::NONE)) };
    let value = if node.is_ghost(index)? { None } else { Some(node.value(index)?) };
    Some((value, node.header(index)?))
}

/// Whether a change leaves only ghosts in a leaf.
fn empties<P: crate::Page + ?Sized>(
    change: &Change<'_>,
    node: &Node<'_, P>,
    found: Result<usize, usize>,
) -> bool {
    matches!((change, found), (Change::Delete { .. } | Change::Ghost { .. }, Ok(index))
        if is_last(node, index) == Some(true))
}

/// Whether the record at `index` is the only one of a leaf that is no ghost.
fn is_last<P: crate::Page + ?Sized>(node: &Node<'_, P>, index: usize) -> Option<bool> {
    // Neighbours first: records are removed from an end of the leaf, or from anywhere.
    for near in [index.wrapping_sub(1), index + 1] {
        if near < node.count() && !node.is_ghost(near)? {
            return Some(false);
        }
    }
    for other in (0..node.count()).filter(|other| *other != index) {
        if !node.is_ghost(other)? {
            return Some(false);
        }
    }
    Some(true)
}

impl Operation<'_> {
    /// The value that an alteration computes.
    fn made(&self, before: Option<&[u8]>) -> Option<Vec<u8>> {
        match self {
            Self::Alter(make) => make(before),
            _ => None,
        }
    }

    /// Whether it undoes what was undone before. `now` is the header of the record, if it exists:
    /// an inserted record was a ghost and was removed; a part of a value has its earlier header.
    fn is_undone(&self, now: Option<Header>) -> bool {
        match self {
            Self::Undo(Change::Ghost { .. }, _) => now.is_none(),
            Self::Undo(Change::Revert { was, .. }, made) => now == Some(*was) && was != made,
            _ => false,
        }
    }

    /// Log bytes of the operation, without the existing value, and as many to undo it; for an
    /// undoing change, those that were reserved for it.
    fn bytes(&self, key: &[u8]) -> u64 {
        let value = match self {
            Self::Insert(value) | Self::Replace(value) | Self::Put(value) => value.len(),
            Self::Alter(_) => MADE_BYTES,
            Self::Delete => 0,
            Self::Undo(undo, _) => return undo.bytes(),
        };
        2 * ((key.len() + value) as u64 + RECORD_BYTES)
    }
}

/// The change that implements an operation on a record with this value and header. `known`: the
/// record exists, possibly as a ghost. `in_full`: values are logged whole.
fn change<'c>(
    key: &'c [u8],
    operation: Operation<'c>,
    (before, was): (Option<&'c [u8]>, Header),
    known: bool,
    in_full: bool,
) -> Result<Change<'c>, Error> {
    Ok(match (operation, before) {
        (Operation::Insert(_), Some(_)) => return Err(Error::Exists),
        (Operation::Insert(value) | Operation::Put(value), None) => {
            Change::Insert { key, value, was }
        }
        (Operation::Replace(value) | Operation::Put(value), Some(before)) if in_full => {
            Change::Replace { key, before, value, was }
        }
        (Operation::Replace(value) | Operation::Put(value), Some(before)) => {
            Change::Update { key, difference: Difference::of(before, value), was }
        }
        (Operation::Delete, Some(before)) => Change::Delete { key, before, was },
        (Operation::Replace(_) | Operation::Delete, None) => return Err(Error::Missing),
        (Operation::Alter(_), _) => return Err(Error::Malformed("what is altered is not made")),
        (Operation::Undo(..), _) if !known => {
            return Err(Error::Malformed("what is to be undone is gone"));
        }
        (Operation::Undo(Change::Revert { .. }, made), _) if was != made => {
            return Err(Error::Malformed("another change of the record came after it"));
        }
        (Operation::Undo(undo, _), _) => undo,
    })
}

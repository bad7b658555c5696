//! A change as it is recorded in the log, and its repetition.
//!
//! A record of the log names one page. A change may affect further pages, which it names itself,
//! each in a [`Role`]. Changes of records are logical within their page (physiological, in ARIES:
//! Mohan and others, 1992): the key is searched again, so the page may have been compacted since.
//!
//! | change | pages | undone by |
//! |---|---|---|
//! | `Insert` | one leaf | `Ghost` |
//! | `Update` | one leaf | `Revert` |
//! | `Replace`, `Delete` | one leaf | `Restore` |
//! | `Ghost`, `Revert`, `Restore` | one leaf: they undo | never |
//! | `Purge` | one page: a ghost, or a child, is removed | never |
//! | `Clear` | one leaf: its old ghosts are removed, and unused room of old values | never |
//! | `Image` | one page, whole | never |
//! | `Split` | left: its upper part is on the right page | never |
//! | `Attach` | parent | never |
//! | `Complete` | left: its sibling is in the parent | never |
//! | `Grow` | root: it leads to the left and the right page | never |
//! | `Incomplete` | left: its sibling is about to leave the parent | never |
//! | `Absorb` | left: it has its sibling's range | never |
//!
//! A `Split`, an `Attach` and a `Grow` can contain their other pages, as images or as complete.
//! Writers no longer use that: each page has a record of its own (`structure`).
//!
//! A change that contains a page whole needs nothing earlier: a rebuild begins there.
//!
//! An `Update` and a `Revert` contain only the part of the value that differs, so they are applied
//! to one certain value:
//!
//! - Redo and rebuilds apply a record to a page only if the page has the LSN that it had when the
//!   record was written (`page_prev`), and so the same values.
//! - An undo applies it to the record on the page only if the header of that names the change. A
//!   header changes together with the value. If it is the earlier header, the change was undone.
//! - A reader of an older version begins with a value and the header that was read with it, which
//!   names the change that wrote this value, and so on.
//!
//! Beyond that, each of them compares the bytes that the part replaces. A `Replace` contains both
//! values, for journals that [need](crate::Journal::logs_whole) them. The bytes of a log record are
//! described in `encode`.

use crate::Error;
use crate::difference::Difference;
use crate::edit;
use crate::layout::{Header, KIND, RECORD_BYTES, SLOTS, changes};
use crate::node::Node;
use crate::split::{absorb, cut, make_root};
use crate::words::{Page, PageMut};

/// The page of a change that is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The page that the log record names.
    Own,
    /// The left one of two siblings.
    Left,
    /// The right one of two siblings.
    Right,
}

/// A change of one page, or of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change<'b> {
    /// Inserts a record.
    Insert {
        /// Its key.
        key: &'b [u8],
        /// Its value.
        value: &'b [u8],
        /// The header that the record had before; none if it did not exist.
        was: Header,
    },
    /// Replaces a part of a value.
    Update {
        /// The key.
        key: &'b [u8],
        /// The part.
        difference: Difference<'b>,
        /// The previous header.
        was: Header,
    },
    /// Replaces a value.
    Replace {
        /// The key.
        key: &'b [u8],
        /// The previous value.
        before: &'b [u8],
        /// The new value.
        value: &'b [u8],
        /// The previous header.
        was: Header,
    },
    /// Turns a record into a ghost.
    Delete {
        /// Its key.
        key: &'b [u8],
        /// The previous value.
        before: &'b [u8],
        /// The previous header.
        was: Header,
    },
    /// Undoes an `Insert`.
    Ghost {
        /// The key.
        key: &'b [u8],
        /// The header that the record had before; none if it did not exist.
        was: Header,
    },
    /// Undoes an `Update`.
    Revert {
        /// The key.
        key: &'b [u8],
        /// The part, from the value to the earlier one.
        difference: Difference<'b>,
        /// The header that the record had before.
        was: Header,
    },
    /// Undoes a `Replace` or a `Delete`.
    Restore {
        /// The key.
        key: &'b [u8],
        /// The value that it had before.
        value: &'b [u8],
        /// The header that it had before.
        was: Header,
    },
    /// Removes a ghost, or a child of an inner page.
    Purge {
        /// Its key.
        key: &'b [u8],
    },
    /// Removes all ghosts that were written before an LSN, and unused room of other records.
    Clear {
        /// The LSN.
        before: u64,
        /// Whether it removes that room. Logs of earlier builds do not have it.
        trims: bool,
    },
    /// The whole page.
    Image {
        /// The image that [`image`](Self::image) created.
        image: &'b [u8],
    },
    /// Moves the upper part of the own page to a new page.
    Split {
        /// The new page.
        right: u64,
        /// The lowest key that belongs there.
        separator: &'b [u8],
        /// The new page, as an image; empty if another record has it.
        image: &'b [u8],
    },
    /// Adds a child to the own page, and marks the child's left sibling as complete.
    Attach {
        /// The lowest key that belongs to the child.
        key: &'b [u8],
        /// The child.
        child: u64,
        /// The left sibling; 0 if another record marks it.
        left: u64,
        /// The LSN that the left sibling had.
        left_prev: u64,
    },
    /// The page's right sibling is in the parent.
    Complete,
    /// Gives the root two new children with its content.
    Grow {
        /// The new level of the root.
        level: u8,
        /// The left child.
        left: u64,
        /// The right child.
        right: u64,
        /// The lowest key that belongs to the right child.
        separator: &'b [u8],
        /// The left child, as an image; empty if another record has it.
        left_image: &'b [u8],
        /// The right child, as an image; empty if another record has it.
        right_image: &'b [u8],
    },
    /// Marks that the page's right sibling may be missing in the parent.
    Incomplete,
    /// Gives the page the range of its empty right sibling, and the link to the next one.
    Absorb {
        /// The sibling that is removed.
        gone: u64,
        /// The new right sibling.
        right: u64,
        /// The lowest key that belongs to it.
        high: &'b [u8],
        /// The lowest key of the removed sibling.
        key: &'b [u8],
        /// The only child of the removed sibling; 0 if it is a leaf.
        child: u64,
    },
}

impl<'b> Change<'b> {
    /// Returns an upper bound of the log bytes that the change of a record takes; zero for other
    /// changes.
    pub fn bytes(&self) -> u64 {
        let strings = match self {
            Self::Insert { key, value, .. } | Self::Restore { key, value, .. } => {
                key.len() + value.len()
            }
            Self::Replace { key, before, value, .. } => key.len() + before.len() + value.len(),
            Self::Update { key, difference, .. } | Self::Revert { key, difference, .. } => {
                key.len() + difference.before.len() + difference.after.len()
            }
            Self::Delete { key, before, .. } => key.len() + before.len(),
            Self::Ghost { key, .. } => key.len(),
            _ => 0,
        };
        strings as u64 + RECORD_BYTES
    }

    /// Returns the role in which the change affects `page`, where the log record names `own`.
    pub fn role(&self, own: u64, page: u64) -> Option<Role> {
        let (left, right) = match *self {
            Self::Split { right, image, .. } => (None, (!image.is_empty()).then_some(right)),
            Self::Attach { left, .. } => ((left != 0).then_some(left), None),
            Self::Grow { left, right, left_image, right_image, .. } => (
                (!left_image.is_empty()).then_some(left),
                (!right_image.is_empty()).then_some(right),
            ),
            _ => (None, None),
        };
        match page {
            _ if page == own => Some(Role::Own),
            _ if Some(page) == left => Some(Role::Left),
            _ if Some(page) == right => Some(Role::Right),
            _ => None,
        }
    }

    /// Returns the LSN that the page in this role had before, where the log record has `own` for
    /// its own page. None if the change contains the page whole.
    pub fn before(&self, role: Role, own: u64) -> Option<u64> {
        match (*self, role) {
            (Self::Image { .. } | Self::Grow { .. }, _) | (Self::Split { .. }, Role::Right) => None,
            (Self::Attach { left_prev, .. }, Role::Left) => Some(left_prev),
            _ => Some(own),
        }
    }

    /// Returns the change that undoes this one in place; none if it cannot be undone.
    pub fn undo(&self) -> Option<Change<'b>> {
        match *self {
            Self::Insert { key, was, .. } => Some(Change::Ghost { key, was }),
            Self::Update { key, difference, was } => {
                Some(Change::Revert { key, difference: difference.reversed(), was })
            }
            Self::Replace { key, before, was, .. } | Self::Delete { key, before, was } => {
                Some(Change::Restore { key, value: before, was })
            }
            _ => None,
        }
    }

    /// Turns the value that this change wrote to a record into the value before. Returns the
    /// record's earlier header, and whether it had a value. None if it is no such change, or wrote
    /// another value.
    pub fn earlier(&self, value: &mut Vec<u8>) -> Option<(Header, bool)> {
        match *self {
            Self::Insert { was, .. } => {
                value.clear();
                Some((was, false))
            }
            Self::Update { difference, was, .. } => {
                difference.reversed().apply(value)?;
                Some((was, true))
            }
            Self::Replace { before, was, .. } | Self::Delete { before, was, .. } => {
                value.clear();
                value.extend_from_slice(before);
                Some((was, true))
            }
            _ => None,
        }
    }

    /// Returns the key of the record that it changes; none if it changes no record's value.
    pub fn record_key(&self) -> Option<&'b [u8]> {
        match *self {
            Self::Insert { key, .. }
            | Self::Update { key, .. }
            | Self::Replace { key, .. }
            | Self::Delete { key, .. }
            | Self::Ghost { key, .. }
            | Self::Revert { key, .. }
            | Self::Restore { key, .. } => Some(key),
            _ => None,
        }
    }

    /// Returns an upper bound of the log bytes for undoing it, without whole pages.
    pub fn undo_bytes(&self) -> u64 {
        self.undo().map_or(0, |undo| undo.bytes())
    }

    /// Whether it undoes another change.
    pub(crate) fn undoes(&self) -> bool {
        matches!(self, Self::Ghost { .. } | Self::Revert { .. } | Self::Restore { .. })
    }

    /// Applies the change to the page that has this role, and counts it there. `header` names the
    /// log record. An undoing change restores the record's earlier header.
    ///
    /// # Errors
    ///
    /// Those of the corresponding function of [`edit`]; [`Error::Malformed`] for an invalid image.
    pub fn apply<P: PageMut + ?Sized>(
        &self,
        role: Role,
        page: &mut P,
        header: Header,
    ) -> Result<(), Error> {
        let changes = match self.before(role, 1) {
            Some(_) => changes(page) + 1,
            None => 0,
        };
        self.apply_uncounted(role, page, header)?;
        edit::set_changes(page, changes);
        Ok(())
    }

    /// [`apply`](Self::apply) for the change of a record to its own page, at the place where its
    /// key was searched.
    pub(crate) fn apply_at<P: PageMut + ?Sized>(
        &self,
        place: Result<usize, usize>,
        page: &mut P,
        header: Header,
    ) -> Result<(), Error> {
        let changes = changes(page) + 1;
        match (*self, place) {
            (Self::Insert { key, value, .. }, _) => {
                edit::insert_at(page, place, key, value, header)?
            }
            (Self::Replace { value, .. }, Ok(index)) => {
                edit::replace_at(page, index, value, header)?
            }
            (Self::Restore { value, was, .. }, Ok(index)) => {
                edit::replace_at(page, index, value, was)?
            }
            (Self::Update { difference, .. }, Ok(index)) => {
                edit::update_at(page, index, difference, header)?
            }
            (Self::Revert { difference, was, .. }, Ok(index)) => {
                edit::update_at(page, index, difference, was)?
            }
            (Self::Delete { .. }, Ok(index)) => edit::set_ghost_at(page, index, true, header)?,
            (Self::Ghost { was, .. }, Ok(index)) => edit::set_ghost_at(page, index, true, was)?,
            _ => return self.apply(Role::Own, page, header),
        }
        edit::set_changes(page, changes);
        Ok(())
    }

    /// Whether the change of a record, searched at `place`, moves nothing but slots.
    pub(crate) fn is_easy<P: PageMut + ?Sized>(
        &self,
        place: Result<usize, usize>,
        page: &P,
    ) -> Option<bool> {
        match *self {
            Self::Insert { key, value, .. } => edit::fits(page, place, key, value),
            Self::Replace { key, value, .. } | Self::Restore { key, value, .. } => {
                Some(place.is_ok() && edit::fits(page, place, key, value)?)
            }
            Self::Update { difference, .. } | Self::Revert { difference, .. } => {
                Some(edit::fits_updated(page, place.ok()?, difference) == Some(true))
            }
            Self::Delete { .. } | Self::Ghost { .. } => Some(place.is_ok()),
            _ => Some(false),
        }
    }

    fn apply_uncounted<P: PageMut + ?Sized>(
        &self,
        role: Role,
        page: &mut P,
        header: Header,
    ) -> Result<(), Error> {
        match (*self, role) {
            (Self::Insert { key, value, .. }, Role::Own) => edit::insert(page, key, value, header),
            (Self::Replace { key, value, .. }, Role::Own) => {
                edit::replace(page, key, value, header)
            }
            (Self::Restore { key, value, was }, Role::Own) => edit::replace(page, key, value, was),
            (Self::Update { key, difference, .. }, Role::Own) => {
                edit::update(page, key, difference, header)
            }
            (Self::Revert { key, difference, was }, Role::Own) => {
                edit::update(page, key, difference, was)
            }
            (Self::Delete { key, .. }, Role::Own) => edit::set_ghost(page, key, true, header),
            (Self::Ghost { key, was }, Role::Own) => edit::set_ghost(page, key, true, was),
            (Self::Purge { key }, Role::Own) => edit::remove(page, key),
            (Self::Clear { before, trims }, Role::Own) => edit::clear(page, before, trims),
            (Self::Image { image }, Role::Own)
            | (Self::Split { image, .. }, Role::Right)
            | (Self::Grow { left_image: image, .. }, Role::Left)
            | (Self::Grow { right_image: image, .. }, Role::Right) => unfold(image, page),
            (Self::Split { right, separator, .. }, Role::Own) => cut(page, separator, right),
            (Self::Attach { key, child, .. }, Role::Own) => edit::insert_child(page, key, child),
            (Self::Attach { .. }, Role::Left) | (Self::Complete, Role::Own) => {
                edit::set_incomplete(page, false)
            }
            (Self::Incomplete, Role::Own) => edit::set_incomplete(page, true),
            (Self::Absorb { right, high, key, child, .. }, Role::Own) => {
                absorb(page, high, right, (key, child))
            }
            (Self::Grow { level, left, right, separator, .. }, Role::Own) => {
                make_root(page, level, left, separator, right)
            }
            _ => Err(Error::Malformed("the change does not touch this page")),
        }
    }

    /// Encodes a page as bytes, without its first two words and its free space.
    ///
    /// None if the page is malformed.
    pub fn image<P: Page + ?Sized>(page: &P) -> Option<Vec<u8>> {
        let view = Node::of(page)?;
        let (slots, heap) = (SLOTS + view.count(), view.heap()?);
        let mut image = Vec::with_capacity((slots + page.len().checked_sub(heap)?) * 8);
        for number in [page.len(), slots, heap] {
            image.extend_from_slice(&(number as u16).to_le_bytes());
        }
        page.append(KIND, slots - KIND, &mut image)?;
        page.append(heap, page.len() - heap, &mut image)?;
        Some(image)
    }
}

/// Decodes an image into a page.
fn unfold<P: PageMut + ?Sized>(image: &[u8], page: &mut P) -> Result<(), Error> {
    let wrong = Error::Malformed("an image of another size");
    let Some((numbers, content)) = image.split_at_checked(6) else { return Err(wrong) };
    let mut numbers = numbers.as_chunks().0.iter().map(|two| u16::from_le_bytes(*two).into());
    let mut number = || numbers.next().unwrap_or(0_usize);
    let (words, slots, heap) = (number(), number(), number());
    // A page of 64 KiB has 8,192 words: all numbers fit 16 bits.
    if words != page.len() || slots < SLOTS || slots > heap || heap > words {
        return Err(wrong);
    }
    if content.len() != (slots - KIND + words - heap) * 8 {
        return Err(wrong);
    }
    let mut content = content.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    for index in KIND..words {
        let used = index < slots || index >= heap;
        page.set(index, if used { content.next().unwrap_or(0) } else { 0 });
    }
    Ok(())
}

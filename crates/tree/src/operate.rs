//! What is done to a key: get, insert, replace, delete, undo.
//!
//! Readers hold nothing. A writer goes to the leaf as a reader does and takes that leaf alone; a
//! leaf that is full is split (`structure`), and the writer begins again. What a record was is part
//! of its change, so that any thread can undo it, in place.

use latchwork_machine::ConstMachine;

use crate::change::Change;
use crate::edit;
use crate::held::{check, image_bytes, is_logged_whole, log_and_do};
use crate::journal::Journal;
use crate::layout::RECORD_BYTES;
use crate::node::Node;
use crate::root::Tree;
use crate::split::SplitAt;
use crate::walk::To;
use crate::{Error, Header, Kind};

/// What a change did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The LSN of its record.
    pub lsn: u64,
    /// The value that the key had, if it had one.
    pub before: Option<Vec<u8>>,
    /// The header that its record had, ghost or not.
    pub was: Header,
}

/// A record as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newest {
    /// Who wrote it.
    pub header: Header,
    /// Its value; none if it is a ghost.
    pub value: Option<Vec<u8>>,
}

/// What is to be done to a key.
#[derive(Clone, Copy)]
enum Operation<'v> {
    Insert(&'v [u8]),
    Replace(&'v [u8]),
    Put(&'v [u8]),
    Delete,
    Undo(Change<'v>),
}

impl<J: Journal, M: ConstMachine> Tree<'_, '_, J, M> {
    /// Adds the value of `key` to `value`, and returns its header; none if the key is not there. A
    /// ghost counts as not there. Stores nothing that other threads load.
    ///
    /// # Errors
    ///
    /// [`Error::Pool`], [`Error::Level`].
    pub fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<Header>, Error> {
        let begun = value.len();
        let (_, found) = self.walk(To::Key(key), 0, |node| {
            value.truncate(begun);
            match node.search(key)? {
                Ok(index) if !node.is_ghost(index)? => {
                    node.value_into(index, value)?;
                    Some(Some(node.header(index)?))
                }
                _ => Some(None),
            }
        })?;
        if found.is_none() {
            value.truncate(begun);
        }
        Ok(found)
    }

    /// The record of `key`, ghost or not: its header, and its value if it is no ghost. Stores
    /// nothing that other threads load.
    ///
    /// # Errors
    ///
    /// [`Error::Pool`], [`Error::Level`].
    pub fn newest(&self, key: &[u8]) -> Result<Option<Newest>, Error> {
        let (_, found) = self.walk(To::Key(key), 0, |node| {
            let Ok(index) = node.search(key)? else { return Some(None) };
            let value = match node.is_ghost(index)? {
                true => None,
                false => Some(node.value(index)?),
            };
            Some(Some(Newest { header: node.header(index)?, value }))
        })?;
        Ok(found)
    }

    /// Inserts a record.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]; [`Error::KeyTooLong`], [`Error::RecordTooLong`]; [`Error::Refused`];
    /// [`Error::Pool`], [`Error::Journal`], [`Error::Level`].
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
    /// As [`insert`](Self::insert), but for [`Error::Exists`].
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<Written, Error> {
        self.write(key, Operation::Put(value))
    }

    /// Makes the record of a key a ghost.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`]; [`Error::Pool`], [`Error::Journal`], [`Error::Level`].
    pub fn delete(&self, key: &[u8]) -> Result<Written, Error> {
        self.write(key, Operation::Delete)
    }

    /// Undoes a change of this tree, wherever its key is now: in place, so no page becomes full.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if nothing undoes the change, or the key is gone; [`Error::Pool`],
    /// [`Error::Journal`], [`Error::Level`].
    pub fn undo(&self, change: &Change<'_>) -> Result<Written, Error> {
        let undo = change.undo().ok_or(Error::Malformed("nothing undoes this change"))?;
        match undo {
            Change::Ghost { key, .. } | Change::Restore { key, .. } => {
                self.write(key, Operation::Undo(undo))
            }
            _ => Err(Error::Malformed("nothing undoes this change")),
        }
    }

    fn write(&self, key: &[u8], operation: Operation<'_>) -> Result<Written, Error> {
        let undoes = matches!(operation, Operation::Undo(_));
        let (needs, mut more) = (operation.bytes(key), 0);
        loop {
            self.journal.reserve(needs + more).map_err(Error::Journal)?;
            let (met, ()) = self.walk(To::Key(key), 0, |_| Some(()))?;
            if let Some(incomplete) = met.incomplete {
                self.finish(incomplete)?;
            }
            let page = self.handle.write(self.file, met.page)?;
            let view = page.view();
            let node = Node::of(&view).ok_or(Error::Malformed("not a page of a tree"))?;
            // It was split, or it is the root and has grown, since it was read.
            let here = node.kind() == Kind::Leaf && !node.is_beyond(key).ok_or(edit::MALFORMED)?;
            if !here || node.is_incomplete() {
                continue;
            }
            if !undoes && !self.journal.may_write().map_err(Error::Journal)? {
                return Err(Error::Refused);
            }
            let found = node.search(key).ok_or(edit::MALFORMED)?;
            let (mut before, mut was) = (None, Header::NONE);
            if let Ok(index) = found {
                was = node.header(index).ok_or(edit::MALFORMED)?;
                if !node.is_ghost(index).ok_or(edit::MALFORMED)? {
                    before = Some(node.value(index).ok_or(edit::MALFORMED)?);
                }
            }
            let change = change(key, operation, before.as_deref(), was, found.is_ok())?;
            let last = found == Err(node.count()) && node.right() == Some(None);
            let (old, whole) =
                (before.as_ref().map_or(0, Vec::len) as u64, image_bytes(page.len()));
            match check(&change, &page) {
                Ok(()) => {
                    let first = is_logged_whole(&page, self.journal.since());
                    let image = if first { whole } else { 0 };
                    if !self.journal.has(needs + old + image) {
                        more = old + image;
                        continue;
                    }
                    match log_and_do(self.journal, &change, page) {
                        Err(Error::Room) => more = old + whole,
                        other => return Ok(Written { lsn: other?, before, was }),
                    }
                }
                Err(Error::Full) if !self.journal.has(needs + 4 * whole) => more = 4 * whole,
                Err(Error::Full) => {
                    let at = if last { SplitAt::End } else { SplitAt::Middle };
                    self.split(page, at)?;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Operation<'_> {
    /// Bytes of log that it takes, but for the value that is there, and as many to undo it.
    fn bytes(&self, key: &[u8]) -> u64 {
        let value = match self {
            Self::Insert(value) | Self::Replace(value) | Self::Put(value) => value.len(),
            Self::Undo(Change::Restore { value, .. }) => value.len(),
            Self::Delete | Self::Undo(_) => 0,
        };
        2 * ((key.len() + value) as u64 + RECORD_BYTES)
    }
}

/// The change that fulfils an operation.
fn change<'c>(
    key: &'c [u8],
    operation: Operation<'c>,
    before: Option<&'c [u8]>,
    was: Header,
    known: bool,
) -> Result<Change<'c>, Error> {
    Ok(match (operation, before) {
        (Operation::Insert(_), Some(_)) => return Err(Error::Exists),
        (Operation::Insert(value) | Operation::Put(value), None) => {
            Change::Insert { key, value, was }
        }
        (Operation::Replace(value) | Operation::Put(value), Some(before)) => {
            Change::Replace { key, before, value, was }
        }
        (Operation::Delete, Some(before)) => Change::Delete { key, before, was },
        (Operation::Replace(_) | Operation::Delete, None) => return Err(Error::Missing),
        (Operation::Undo(undo), _) if known => undo,
        (Operation::Undo(_), _) => return Err(Error::Malformed("what is to be undone is gone")),
    })
}

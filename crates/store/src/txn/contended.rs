//! Keys that a transaction could not lock for writing; its next attempt uses them.
//!
//! If many transactions have read a record or a range and then write it, all but one are aborted.
//! If they read it again in the same mode, each of them is a victim in turn: n transactions with n
//! attempts each. So the next attempt reads for update: it takes an update lock on the record, or
//! an update claim on the range, which only one transaction can hold at a time.

use core::ops::Bound;

use latchwork_lockmgr::granular::{S, U};
use latchwork_lockmgr::{Error as LocksError, Mode, RangeKind};
use latchwork_machine::ConstMachine;

use super::{Level, Txn};
use crate::engine::{Engine, READER, READER_TO_WRITE};

/// How many keys of either kind a transaction remembers.
const MOST: usize = 16;

/// Keys with their trees.
type Keys = Vec<(u32, Vec<u8>)>;

/// Keys that could not be locked for writing.
#[derive(Debug, Default)]
pub(crate) struct Contended {
    /// Records.
    records: Keys,
    /// Keys in ranges that others had read.
    places: Keys,
}

fn note(keys: &mut Keys, tree: u32, key: &[u8]) {
    let known = keys.iter().any(|it| it.0 == tree && it.1 == key);
    if !known && keys.len() < MOST {
        keys.push((tree, key.to_vec()));
    }
}

impl<E: Engine, M: ConstMachine> Txn<'_, E, M> {
    /// Takes the keys that it could not lock for writing.
    pub(crate) fn contended(&self) -> Contended {
        self.contended.take()
    }

    /// Sets the keys that an earlier attempt could not lock for writing.
    pub(crate) fn set_contended(&mut self, contended: Contended) {
        self.contended = contended.into();
    }

    /// Records that this transaction changes a record which others change at the same time.
    #[cold]
    pub(super) fn contend(&self, tree: u32, key: &[u8]) {
        note(&mut self.contended.borrow_mut().records, tree, key);
    }

    /// Returns the mode in which a record is locked for reading.
    #[inline]
    pub(super) fn to_read(&self, tree: u32, key: &[u8]) -> Mode {
        let records = &self.contended.borrow().records;
        let is_it = |it: &(u32, Vec<u8>)| it.0 == tree && it.1 == key;
        let means_to_write =
            self.level == Level::Serializable && !records.is_empty() && records.iter().any(is_it);
        if means_to_write { U } else { S }
    }

    /// Returns the kind in which a range is locked for reading.
    pub(super) fn to_claim(
        &self,
        tree: u32,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
    ) -> RangeKind {
        use core::ops::RangeBounds;

        let places = &self.contended.borrow().places;
        let is_in = |it: &(u32, Vec<u8>)| it.0 == tree && (from, to).contains(&it.1[..]);
        if places.iter().any(is_in) { READER_TO_WRITE } else { READER }
    }

    /// Records a key that could not be locked for writing.
    #[cold]
    pub(super) fn note_contended(&self, why: &LocksError, tree: u32, key: &[u8]) {
        if is_victim(why) {
            note(&mut self.contended.borrow_mut().records, tree, key);
        }
    }

    /// Records a key in a range of another transaction, where this one could not write.
    #[cold]
    pub(super) fn note_contended_place(&self, why: &LocksError, tree: u32, key: &[u8]) {
        if is_victim(why) {
            note(&mut self.contended.borrow_mut().places, tree, key);
        }
    }
}

fn is_victim(why: &LocksError) -> bool {
    matches!(why, LocksError::Aborted(_) | LocksError::Deadlock(_))
}

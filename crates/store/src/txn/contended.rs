//! What a transaction could not lock to write it, for its next attempt.
//!
//! Where many have read a record, or a range, and each is to write there, all but one have to be
//! run again; and those would read first again, and each of them be a victim in turn: n
//! transactions, n attempts each. So the next attempt reads as one that means to write: the
//! record with a lock, and the range with a claim, that one transaction may have at a time.

use core::ops::Bound;

use latchwork_lockmgr::granular::{S, U};
use latchwork_lockmgr::{Error as LocksError, Mode, RangeKind};
use latchwork_machine::ConstMachine;

use super::{Level, Txn};
use crate::engine::{Engine, READER, READER_TO_WRITE};

/// How many of either kind a transaction remembers.
const MOST: usize = 16;

/// Keys, with their trees.
type Keys = Vec<(u32, Vec<u8>)>;

/// What could not be locked to write it.
#[derive(Debug, Default)]
pub(crate) struct Contended {
    /// Records.
    records: Keys,
    /// Places in ranges that others had read.
    places: Keys,
}

fn note(keys: &mut Keys, tree: u32, key: &[u8]) {
    let known = keys.iter().any(|it| it.0 == tree && it.1 == key);
    if !known && keys.len() < MOST {
        keys.push((tree, key.to_vec()));
    }
}

impl<E: Engine, M: ConstMachine> Txn<'_, E, M> {
    /// What it could not lock to write it.
    pub(crate) fn contended(&self) -> Contended {
        self.contended.take()
    }

    /// Says what an attempt before it could not lock to write it.
    pub(crate) fn set_contended(&mut self, contended: Contended) {
        self.contended = contended.into();
    }

    /// The mode in which a record is locked to read it.
    #[inline]
    pub(super) fn to_read(&self, tree: u32, key: &[u8]) -> Mode {
        let records = &self.contended.borrow().records;
        let is_it = |it: &(u32, Vec<u8>)| it.0 == tree && it.1 == key;
        let means_to_write =
            self.level == Level::Serializable && !records.is_empty() && records.iter().any(is_it);
        if means_to_write { U } else { S }
    }

    /// The kind in which a range is held to read it.
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

    /// Notes a record that could not be locked to write it.
    #[cold]
    pub(super) fn note_contended(&self, why: &LocksError, tree: u32, key: &[u8]) {
        if is_victim(why) {
            note(&mut self.contended.borrow_mut().records, tree, key);
        }
    }

    /// Notes a place in a range of others, where it could not write.
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

//! The locks that a transaction takes, and what it remembers of those that it did not get.

use core::ops::Bound;

use latchwork_lockmgr::granular::{S, U, X};
use latchwork_lockmgr::{Error as LocksError, KeyRange, Mode, RangeKind};
use latchwork_machine::ConstMachine;

use super::{Level, Txn};
use crate::Error;
use crate::engine::{Engine, WRITER};
use crate::lock_name::{LOCK_NAME, lock_name};

/// How many contended records a transaction remembers.
const CONTENDED: usize = 16;

/// The key at which a range begins.
pub(super) fn first_of(range: &KeyRange<'_>) -> Vec<u8> {
    match range.from {
        Bound::Included(key) | Bound::Excluded(key) => key.to_vec(),
        Bound::Unbounded => Vec::new(),
    }
}

impl<E: Engine, M: ConstMachine> Txn<'_, E, M> {
    /// Takes a record's lock.
    pub(super) fn lock(&self, tree: u32, key: &[u8], mode: Mode) -> Result<(), Error> {
        let mut bytes = [0; LOCK_NAME];
        let length = lock_name(tree, key, &mut bytes);
        let name = &bytes[..length];
        let locked = match self.owner.lock_with(name, mode, self.wait) {
            Err(LocksError::Count) => self.lock_once_more(name, mode),
            locked => locked,
        };
        locked.map_err(|why| {
            self.note_key(&why, tree, key, mode);
            if mode == X {
                self.note_contended(&why, tree, key);
            }
            Error::Lock { table: self.engine.table(tree), key: key.to_vec(), why }
        })
    }

    /// Asks for a lock that the transaction has asked for as often as the lock manager counts. All
    /// of them go at its end, together: so one of them may go now, with which the lock stays.
    #[cold]
    fn lock_once_more(&self, name: &[u8], mode: Mode) -> Result<(), LocksError> {
        self.owner.unlock(name)?;
        self.owner.lock_with(name, mode, self.wait)
    }

    /// Takes a range's lock.
    pub(super) fn lock_range(
        &self,
        tree: u32,
        range: KeyRange<'_>,
        kind: RangeKind,
    ) -> Result<(), Error> {
        let space = self.engine.keyspace(tree);
        self.owner.lock_range(&space, range, kind, self.wait).map_err(|why| {
            self.note_range(&why, tree, range, kind);
            Error::Lock { table: self.engine.table(tree), key: first_of(&range), why }
        })
    }

    /// Gives a record's lock back once.
    pub(super) fn unlock(&self, tree: u32, key: &[u8]) -> Result<(), Error> {
        let mut bytes = [0; LOCK_NAME];
        let length = lock_name(tree, key, &mut bytes);
        Ok(self.owner.unlock(&bytes[..length])?)
    }

    /// Takes a writer's place among the ranges that others hold.
    pub(super) fn take_place(&self, tree: u32, key: &[u8]) -> Result<(), Error> {
        self.lock_range(tree, KeyRange::key(key), WRITER)
    }

    /// The records that it could not lock to write them, for its next attempt.
    pub(crate) fn contended(&self) -> Vec<(u32, Vec<u8>)> {
        self.contended.take()
    }

    /// Says which records an attempt before it could not lock to write them. Where two have read a
    /// record, and both are to write it, one has to be run again: so each of many that read first
    /// would be a victim in turn, again and again. This one reads such a record as one that it
    /// means to write, which one transaction may do at a time.
    pub(crate) fn set_contended(&mut self, contended: Vec<(u32, Vec<u8>)>) {
        self.contended = contended.into();
    }

    /// The mode in which a record is locked to read it.
    #[inline]
    pub(super) fn to_read(&self, tree: u32, key: &[u8]) -> Mode {
        let contended = self.contended.borrow();
        let is_it = |it: &(u32, Vec<u8>)| it.0 == tree && it.1 == key;
        let means_to_write = self.level == Level::Serializable
            && !contended.is_empty()
            && contended.iter().any(is_it);
        if means_to_write { U } else { S }
    }

    /// Notes a record that could not be locked to write it.
    #[cold]
    pub(super) fn note_contended(&self, why: &LocksError, tree: u32, key: &[u8]) {
        use LocksError::{Aborted, Deadlock};
        let mut contended = self.contended.borrow_mut();
        let known = contended.iter().any(|it| it.0 == tree && it.1 == key);
        if matches!(why, Aborted(_) | Deadlock(_)) && !known && contended.len() < CONTENDED {
            contended.push((tree, key.to_vec()));
        }
    }
}

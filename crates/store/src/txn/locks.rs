//! The locks that a transaction takes.

use core::ops::Bound;

use latchwork_lockmgr::granular::X;
use latchwork_lockmgr::{Error as LocksError, KeyRange, Mode, RangeKind};
use latchwork_machine::ConstMachine;

use super::Txn;
use crate::Error;
use crate::engine::{Engine, WRITER};
use crate::events::Begun;
use crate::lock_error::Holder;
use crate::lock_name::{LOCK_NAME, lock_name};

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
        let begun = Begun::now::<M>();
        let locked = match self.owner.lock_with(name, mode, self.wait) {
            Err(LocksError::Count) => self.lock_once_more(name, mode),
            locked => locked,
        };
        begun.lock::<M>(locked.is_ok(), || (self.engine.table(tree), key.to_vec()));
        locked.map_err(|why| {
            self.note_key(&why, tree, key, mode);
            if mode == X {
                self.note_contended(&why, tree, key);
            }
            self.lock_error(tree, key, None, why)
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
        let begun = Begun::now::<M>();
        let locked = self.owner.lock_range(&space, range, kind, self.wait);
        begun.lock::<M>(locked.is_ok(), || (self.engine.table(tree), first_of(&range)));
        locked.map_err(|why| {
            self.note_range(&why, tree, range, kind);
            let key = first_of(&range);
            if kind == WRITER {
                self.note_contended_place(&why, tree, &key);
            }
            let is_place = kind == WRITER && range == KeyRange::key(&key);
            self.lock_error(tree, &key, (!is_place).then_some(range), why)
        })
    }

    /// The error of a lock that was not granted: it names the transactions in the way.
    #[cold]
    pub(super) fn lock_error(
        &self,
        tree: u32,
        key: &[u8],
        range: Option<KeyRange<'_>>,
        why: LocksError,
    ) -> Error {
        let blockers = match &why {
            LocksError::TimedOut => self.owner.blockers(),
            LocksError::Deadlock(cycle) => {
                cycle.get(1).map(|next| self.owner.describe(next.owner)).into_iter().collect()
            }
            _ => Ok(Vec::new()),
        };
        // Where they cannot be looked at, none is named.
        let blockers = blockers.unwrap_or_default().into_iter();
        Error::Lock {
            table: self.engine.table(tree),
            key: key.to_vec(),
            range: range.map(|range| {
                Box::new((range.from.map(<[u8]>::to_vec), range.to.map(<[u8]>::to_vec)))
            }),
            why,
            holders: blockers.map(|blocker| Holder::of(blocker, false)).collect(),
        }
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
}

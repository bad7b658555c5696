//! Reads of a transaction before its first lock.
//!
//! A closure often reads a few records and then writes, or does not write at all. A lock for each
//! read, and an owner for the locks, would cost more than the reads. So in the first run of a
//! closure, the records that it reads first come from a snapshot, and their keys are recorded here.
//! The first other call *settles* the reads: it locks the keys, and checks under the locks that the
//! newest version of each record is the one that the snapshot sees. From then on, the transaction
//! locks what it reads.
//!
//! | the transaction | is serialized |
//! |---|---|
//! | ends before it settles | at the snapshot |
//! | settles | at its commit: all that it has read is locked and unchanged |
//! | finds that a record has changed | not at all: it runs again, and locks from the beginning |
//!
//! The check is not made at the commit, without locks for reading: between the check and the commit
//! record another transaction could overwrite what was read, and commit at a lower position. A
//! snapshot between the two would be no state of a serial order.

use latchwork_lockmgr::Mode;
use latchwork_lockmgr::granular::S;
use latchwork_machine::ConstMachine;

use super::Txn;
use crate::Error;
use crate::engine::Engine;
use crate::snapshot::Snapshot;

/// Bytes for the keys. A read for which there is no room settles first.
const ROOM: usize = 224;
/// Bytes before a key: its tree and its length.
const HEAD: usize = 6;

/// The reads of a transaction that holds no lock.
pub(crate) struct EarlyReads<'t, E: Engine> {
    /// Taken by the first read.
    snapshot: Option<Snapshot<'t, E>>,
    keys: [u8; ROOM],
    used: usize,
}

/// A key that the transaction is about to lock, and the mode.
pub(crate) type Wanted<'k> = (u32, &'k [u8], Mode);

impl<'t, E: Engine> EarlyReads<'t, E> {
    pub(crate) fn new() -> Self {
        Self { snapshot: None, keys: [0; ROOM], used: 0 }
    }

    /// Reads a record into `value` and records its key. Returns whether the record exists; `None`
    /// if it must be read under a lock, for any reason.
    #[inline]
    pub(crate) fn get_into(
        &mut self,
        (engine, slot): (&'t E, u16),
        tree: u32,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Option<bool> {
        let (head, to) = self.keys.get_mut(self.used..)?.split_first_chunk_mut::<HEAD>()?;
        let to = to.get_mut(..key.len())?;
        let snapshot = match &self.snapshot {
            Some(snapshot) => snapshot,
            None => self.snapshot.insert(Snapshot::newest(engine, slot).ok()??),
        };
        // After an error the read under the lock reports it, or finds a version that the log still
        // contains.
        let there = snapshot.get_into(tree, key, value).ok()?;
        engine.same_tables().ok()?;
        head[..4].copy_from_slice(&tree.to_le_bytes());
        head[4..].copy_from_slice(&(key.len() as u16).to_le_bytes());
        to.copy_from_slice(key);
        self.used += HEAD + key.len();
        Some(there)
    }

    /// Returns the position of the snapshot.
    #[cfg(feature = "internals")]
    pub(crate) fn at(&self) -> Option<u64> {
        self.snapshot.as_ref().map(Snapshot::at)
    }

    /// Returns the trees and keys of the reads, in order.
    fn keys(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let mut rest = &self.keys[..self.used];
        core::iter::from_fn(move || {
            let ([a, b, c, d, low, high], behind) = rest.split_first_chunk::<HEAD>()?;
            let (key, next) = behind.split_at_checked(u16::from_le_bytes([*low, *high]).into())?;
            rest = next;
            Some((u32::from_le_bytes([*a, *b, *c, *d]), key))
        })
    }
}

impl<E: Engine, M: ConstMachine> Txn<'_, E, M> {
    /// Locks the records that were read before the first lock, and checks that they have not
    /// changed. `first` is what the transaction locks next: if it was read, it is locked in that
    /// mode at once, because two transactions that hold S and want more would be a deadlock.
    ///
    /// # Errors
    ///
    /// [`Error::ReadChanged`], [`Error::Lock`], [`Error::Engine`]. After any error, the transaction
    /// can only be rolled back.
    #[inline]
    pub(crate) fn settle(
        &mut self,
        early: &EarlyReads<'_, E>,
        first: Option<Wanted<'_>>,
    ) -> Result<(), Error> {
        let Some(snapshot) = &early.snapshot else { return Ok(()) };
        let settled = self.settle_on(snapshot, early, first);
        if let Err(why) = &settled {
            self.failed = Some(why.clone());
        }
        settled
    }

    #[inline(never)]
    fn settle_on(
        &mut self,
        snapshot: &Snapshot<'_, E>,
        early: &EarlyReads<'_, E>,
        first: Option<Wanted<'_>>,
    ) -> Result<(), Error> {
        let mode_of = |of: (u32, &[u8])| match first {
            Some((tree, key, mode)) if of == (tree, key) => mode,
            _ => S,
        };
        early.keys().try_for_each(|of| self.lock(of.0, of.1, mode_of(of)))?;
        if self.engine.position() == snapshot.at() + 1 {
            // Nothing was logged since the snapshot.
            return self.engine.same_tables();
        }
        let mut value = Vec::new();
        for (tree, key) in early.keys() {
            if !snapshot.is_newest(tree, key, &mut value)? {
                if let Some((tree, key, _)) = first {
                    self.contend(tree, key);
                }
                return Err(Error::ReadChanged {
                    table: self.engine.table(tree),
                    key: key.to_vec(),
                });
            }
        }
        self.engine.same_tables()
    }
}

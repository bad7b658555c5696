//! The trait that transactions need: trees and a log.
//!
//! A tree contains records: a key, a stamp and a value. A removed record has no value; it stays
//! while a snapshot may still read it. Every change of a record appends one log record, which
//! contains the previous value and stamp and points to the previous log record of the same
//! transaction. The engine holds no lock beyond a call.

use core::ops::Bound;

use latchwork_lockmgr::{Held, KeyRange, RangeKind};
use latchwork_tree::Batch;

use crate::Error;
use crate::error::of_tree;
use crate::seen::Commits;
use crate::stamp::Stamp;
use crate::user::Used;

/// A version of a record. Its value is in the buffer that the caller passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// The transaction that wrote it.
    pub stamp: Stamp,
    /// Whether it has a value. It has none if the record was removed or never existed.
    pub there: bool,
}

/// The log records of a transaction, linked from the last to the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UndoChain {
    /// The transaction's thread slot.
    pub slot: u16,
    /// Position of its last record; 0 if there is none.
    pub last: u64,
    /// Position of the commit, if the last write committed the transaction; otherwise 0.
    pub committed: u64,
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The record is changed in the log and in the tree.
    Done,
    /// Nothing was changed. Transactions hold ranges of this tree, so the writer must request its
    /// own range first.
    Claimed,
    /// Nothing was changed. The record has a long value, and its pieces must be removed first.
    Long,
}

/// Trees and a log.
///
/// Any number of threads may call these functions at the same time. The calls with an [`UndoChain`]
/// of one slot are made by one thread at a time.
///
/// # Errors
///
/// All calls return [`Error::Engine`] if a tree or the log fails.
pub trait Engine: Commits {
    /// Reads the newest version of a record, committed or not. Replaces the contents of `value`.
    ///
    /// # Errors
    ///
    /// See the trait.
    fn newest(&self, tree: u32, key: &[u8], value: &mut Vec<u8>) -> Result<Version, Error>;

    /// Reads up to `limit` records after a bound, or before it if `back`, each in its newest
    /// version. Removed records count towards the limit.
    ///
    /// # Errors
    ///
    /// See the trait.
    fn scan(
        &self,
        tree: u32,
        bound: Bound<&[u8]>,
        back: bool,
        limit: usize,
        batch: &mut Batch,
    ) -> Result<(), Error>;

    /// Returns an empty buffer for a scan, which the caller [returns](Self::keep) for reuse.
    fn spare(&self) -> Batch {
        Batch::default()
    }

    /// Takes back the buffer of a scan.
    fn keep(&self, batch: Batch) {
        let _ = batch;
    }

    /// Reads the version before the one with this stamp. `value` contains that version's value, if
    /// it has one, from which the earlier value is computed; it replaces the contents.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotTooOld`] if the log no longer contains it; see the trait.
    fn before(
        &self,
        tree: u32,
        key: &[u8],
        stamp: Stamp,
        value: &mut Vec<u8>,
    ) -> Result<Version, Error>;

    /// Changes a record and logs the change; `last` commits the transaction with it. Once no other
    /// thread can change the record, it checks whether transactions hold ranges of the tree, unless
    /// `cleared`, and whether the record has a long value, unless `over`. Removing an absent record
    /// logs nothing.
    ///
    /// # Errors
    ///
    /// See the trait. The change may be in the log after an error; `chain` then ends with it,
    /// because it must be rolled back with the others. If the call panics, the transaction may have
    /// committed; `chain` reports whether it did.
    fn write(
        &self,
        chain: &mut UndoChain,
        tree: u32,
        key: &[u8],
        value: Option<&[u8]>,
        options: WriteOptions,
    ) -> Result<WriteOutcome, Error>;

    /// Rolls back the change that the log record at `at` describes. Restores the record's old value
    /// and stamp, and logs that. Returns the position of the next log record to roll back, or 0 at
    /// the end.
    ///
    /// # Errors
    ///
    /// See the trait.
    fn undo(&self, chain: &mut UndoChain, at: u64) -> Result<u64, Error>;

    /// Logs the commit of the transaction. Returns its position.
    ///
    /// # Errors
    ///
    /// See the trait. After an error the transaction is not committed.
    fn commit(&self, chain: &mut UndoChain) -> Result<u64, Error>;

    /// Logs that the transaction is prepared under this id, with the locks that it holds. From then
    /// on it survives any death and is neither committed nor rolled back until a thread decides.
    /// Returns the position. The slot cannot begin another transaction.
    ///
    /// # Errors
    ///
    /// See the trait. After an error the transaction is not prepared.
    fn prepare(&self, chain: &mut UndoChain, gid: &[u8], held: &Held) -> Result<u64, Error> {
        let _ = (chain, gid, held);
        Err(Error::Engine("this engine prepares no transactions".to_owned()))
    }

    /// Logs that the rollback of the transaction is complete. Its slot may begin another
    /// transaction.
    ///
    /// # Errors
    ///
    /// See the trait.
    fn ended(&self, chain: &mut UndoChain) -> Result<(), Error>;

    /// Checks that the changes of the slot's transaction still exist. Another thread may have
    /// rolled them back because the transaction was open for too long.
    ///
    /// # Errors
    ///
    /// [`Error::TransactionTooOld`]; see the trait.
    fn still_open(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Checks that the tables of the transaction have not moved since it looked them up. The
    /// transaction calls this after it has locked what it reads.
    ///
    /// # Errors
    ///
    /// [`Error::Migrated`]; see the trait.
    fn same_tables(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Records that a transaction of the slot could not be rolled back. The slot begins no other
    /// transaction, and its locks stay until a sweep has rolled the transaction back.
    fn given_up(&self) {}

    /// Records that a transaction of the slot was rolled back, and the error that aborted it;
    /// `None` if the caller ended it.
    fn rolled_back(&self, _why: Option<&Error>) {}

    /// Takes a snapshot for the slot. Returns its position, and the position before which all
    /// transactions have ended at that moment. The history that the snapshot needs is kept until
    /// [`forget`](Self::forget).
    ///
    /// # Errors
    ///
    /// See the trait.
    fn remember(&self, slot: u16) -> Result<(u64, u64), Error>;

    /// Takes a snapshot as [`remember`](Self::remember) does, with all commits, durable or not: its
    /// position is the one before the current [`position`](Self::position). Returns `None` if the
    /// slot has a snapshot, if the thread is in the closure of another transaction, or if the
    /// engine has no such snapshots.
    ///
    /// # Errors
    ///
    /// See the trait.
    fn remember_newest(&self, slot: u16) -> Result<Option<(u64, u64)>, Error> {
        let _ = slot;
        Ok(None)
    }

    /// Ends the slot's snapshot.
    fn forget(&self, slot: u16);

    /// Announces that a transaction will hold a range of the tree (`more`), or has released one.
    /// Engines that do not ask the lock manager count these calls.
    fn claims(&self, tree: u32, more: bool) {
        let _ = (tree, more);
    }

    /// Returns the maximum length of key and value of a record together, in bytes. A record of
    /// exactly this length is the beginning of a long value.
    fn record_max(&self) -> usize {
        usize::MAX
    }

    /// Returns approximately the end of the log, not before the last write of this thread.
    fn position(&self) -> u64 {
        0
    }

    /// Returns the table of a tree, for error texts.
    fn table(&self, tree: u32) -> String {
        of_tree(tree)
    }

    /// Returns which thread uses the transaction of a thread slot.
    fn used(&self, slot: u32) -> Used {
        let _ = slot;
        Used::ByAnother
    }

    /// Returns whether the calling thread is in the closure of another transaction than this
    /// engine's.
    fn is_nested(&self) -> bool {
        false
    }

    /// Returns the lock manager's keyspace of a tree.
    fn keyspace(&self, tree: u32) -> [u8; 4] {
        tree.to_be_bytes()
    }
}

/// Options of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// The write is the last one of the transaction, and commits it.
    pub last: bool,
    /// The writer already holds its range among the ranges of other transactions.
    pub cleared: bool,
    /// The writer has removed the pieces of the record's previous long value.
    pub over: bool,
}

impl WriteOptions {
    /// A piece of a long value: no other transaction writes its key.
    pub(crate) const PIECE: Self = Self { last: false, cleared: true, over: true };
}

/// Returns the range that a scan locks.
pub(crate) fn scanned<'k>(from: Bound<&'k [u8]>, to: Bound<&'k [u8]>) -> KeyRange<'k> {
    KeyRange { from, to }
}

/// The range that a writer requests. It is that of an insert, because a removed record may be
/// written again.
pub(crate) const WRITER: RangeKind = RangeKind::Insert;
/// The range that a reader locks: its records and the gaps between them.
pub(crate) const READER: RangeKind = RangeKind::ReadNext;
/// The range that a reader locks if it will write there: it excludes other readers.
pub(crate) const READER_TO_WRITE: RangeKind = RangeKind::WriteNext;

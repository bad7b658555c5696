//! What transactions need of trees and of a log.
//!
//! A tree has records: a key, a stamp and a value, or none where a record was removed and a
//! snapshot may still ask for it. Every change of a record is one record of the log, which has its
//! value and stamp from before, and leads to the previous one of the same transaction. The engine
//! holds no lock that outlives a call.

use core::ops::Bound;

use latchwork_lockmgr::{Held, KeyRange, RangeKind};
use latchwork_tree::Batch;

use crate::error::of_tree;
use crate::user::Used;
use crate::{Commits, Error, Stamp};

/// A version of a record, whose value is where the caller said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// Who wrote it.
    pub stamp: Stamp,
    /// Whether it has a value: it has none if it was removed, or never was.
    pub there: bool,
}

/// The log records of a transaction, which lead from the last to the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// The transaction's thread slot.
    pub slot: u16,
    /// Its last record; 0 if there is none.
    pub last: u64,
    /// Where it committed with its last write; 0 if it did not.
    pub committed: u64,
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrote {
    /// It is in the log and in the tree.
    Done,
    /// Nothing was changed: transactions hold ranges of this tree, and the writer's must be asked
    /// for before it writes.
    Claimed,
    /// Nothing was changed: the record has a long value, whose pieces must go first.
    Long,
}

/// Trees and a log.
///
/// All calls may be made by many threads at a time, but those with a [`Chain`] by one thread for
/// each slot.
///
/// # Errors
///
/// All calls return [`Error::Engine`] where a tree or the log fails.
pub trait Engine: Commits {
    /// The newest version of a record, committed or not. Its value replaces what `value` has.
    ///
    /// # Errors
    ///
    /// See the trait.
    fn newest(&self, tree: u32, key: &[u8], value: &mut Vec<u8>) -> Result<Version, Error>;

    /// Some records behind a bound, or before it if `back`, at most `limit`, each with its newest
    /// version. Removed records count.
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

    /// Memory for a scan, with no records, which is [kept](Self::keep) for the next one.
    fn spare(&self) -> Batch {
        Batch::default()
    }

    /// Takes it back.
    fn keep(&self, batch: Batch) {
        let _ = batch;
    }

    /// The version before the one with this stamp. Its value replaces what `value` has.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotTooOld`] if the log has it no more; see the trait.
    fn before(
        &self,
        tree: u32,
        key: &[u8],
        stamp: Stamp,
        value: &mut Vec<u8>,
    ) -> Result<Version, Error>;

    /// Changes a record, and logs it; `last` commits the transaction with it. Once the record can
    /// be changed by nobody else it looks whether transactions hold ranges of the tree, unless
    /// `cleared`, and whether the record has a long value, unless `over`. Removing a record that is
    /// not there logs nothing.
    ///
    /// # Errors
    ///
    /// See the trait. The record may be in the log nevertheless: then `chain` ends with it, for it
    /// is to be undone with the others. If the call panics, the transaction may be committed with
    /// it, as `chain` says.
    fn write(
        &self,
        chain: &mut Chain,
        tree: u32,
        key: &[u8],
        value: Option<&[u8]>,
        how: How,
    ) -> Result<Wrote, Error>;

    /// Undoes the change that the transaction's record at `at` made: the record gets its old value
    /// and stamp, and the log a record that says so. Returns what is to be undone next, 0 at the
    /// end.
    ///
    /// # Errors
    ///
    /// See the trait.
    fn undo(&self, chain: &mut Chain, at: u64) -> Result<u64, Error>;

    /// Logs that the transaction is committed; returns where.
    ///
    /// # Errors
    ///
    /// See the trait. Then it is not committed.
    fn commit(&self, chain: &mut Chain) -> Result<u64, Error>;

    /// Logs that the transaction is prepared under this id, and what it holds: from then on it is
    /// neither committed nor undone, over any death, until some thread decides. Returns where. The
    /// slot begins no other transaction.
    ///
    /// # Errors
    ///
    /// See the trait. Then it is not prepared.
    fn prepare(&self, chain: &mut Chain, gid: &[u8], held: &Held) -> Result<u64, Error> {
        let _ = (chain, gid, held);
        Err(Error::Engine("this engine prepares no transactions".to_owned()))
    }

    /// Logs that all of the transaction is undone. Its slot may begin another one.
    ///
    /// # Errors
    ///
    /// See the trait.
    fn ended(&self, chain: &mut Chain) -> Result<(), Error>;

    /// Looks whether what the slot's transaction has written is there still: it is not when another
    /// thread has undone it, for it was open for too long.
    ///
    /// # Errors
    ///
    /// [`Error::TransactionTooOld`]; see the trait.
    fn still_open(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Looks whether the tables that the transaction uses are where they were when it looked them
    /// up: after it has locked what it reads.
    ///
    /// # Errors
    ///
    /// [`Error::Migrated`]; see the trait.
    fn same_tables(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Says that a transaction of the slot could not be undone: the slot begins no other one, and
    /// what it holds stays until the transaction is undone by a sweep.
    fn given_up(&self) {}

    /// Says that a transaction of the slot was rolled back, and which error aborted it; none if the
    /// caller ended it.
    fn rolled_back(&self, _why: Option<&Error>) {}

    /// The position at which a snapshot is taken now, and the one before which all transactions are
    /// finished there. The history that it needs is kept until [`forget`](Self::forget).
    ///
    /// # Errors
    ///
    /// See the trait.
    fn remember(&self, slot: u16) -> Result<(u64, u64), Error>;

    /// Ends the slot's snapshot.
    fn forget(&self, slot: u16);

    /// Says that a transaction is about to hold a range of the tree, or has let go of it: for an
    /// engine that does not ask the lock manager.
    fn claims(&self, tree: u32, more: bool) {
        let _ = (tree, more);
    }

    /// How many bytes key and value of a record may have together. A record that has as many has a
    /// long value, of which it is the beginning.
    fn record_max(&self) -> usize {
        usize::MAX
    }

    /// Where the log ends, about: not before what this thread has written.
    fn position(&self) -> u64 {
        0
    }

    /// The table that has the tree, as errors name it.
    fn table(&self, tree: u32) -> String {
        of_tree(tree)
    }

    /// Who uses the transaction of a thread slot.
    fn used(&self, slot: u32) -> Used {
        let _ = slot;
        Used::ByAnother
    }

    /// Whether the calling thread is in a closure of another transaction than the one of this
    /// engine.
    fn is_nested(&self) -> bool {
        false
    }

    /// The lock manager's keyspace of a tree.
    fn keyspace(&self, tree: u32) -> [u8; 4] {
        tree.to_be_bytes()
    }
}

/// How a record is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// The write is the transaction's last, and commits it.
    pub last: bool,
    /// The writer has asked for its place among ranges that others hold.
    pub cleared: bool,
    /// The writer has removed the pieces of the value that the record has.
    pub over: bool,
}

impl How {
    /// A piece of a long value: nobody else names its key.
    pub(crate) const PIECE: Self = Self { last: false, cleared: true, over: true };
}

/// The range that a scan holds.
pub(crate) fn scanned<'k>(from: Bound<&'k [u8]>, to: Bound<&'k [u8]>) -> KeyRange<'k> {
    KeyRange { from, to }
}

/// What a writer asks for among ranges: as one who inserts, for a removed record may come again.
pub(crate) const WRITER: RangeKind = RangeKind::Insert;
/// What a reader of a range holds: its records, and the gaps between them.
pub(crate) const READER: RangeKind = RangeKind::ReadNext;
/// What one holds that means to write there: no other reader holds the range beside it.
pub(crate) const READER_TO_WRITE: RangeKind = RangeKind::WriteNext;

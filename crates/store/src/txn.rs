//! A transaction that may write: it holds locks to its end, logs its changes, and can be rolled
//! back.
//!
//! | step | what it does |
//! |---|---|
//! | read | takes S on the key's name, then reads the newest version |
//! | read before the first lock | none: in the first run of a closure, see `early.rs` |
//! | read a range | locks the range; takes S on records of unfinished transactions |
//! | write | takes X on the name, and an insert lock if the tree has range locks; then writes |
//! | last write | takes X on the name; the next call carries it out, usually the commit |
//! | commit | logs the commit record, or the last write as one; releases the locks |
//! | prepare | logs the locks and the id; nothing changes until a thread decides |
//! | roll back | rolls back its changes in place, last to first; then releases the locks |
//!
//! Invariants: if the stamp of a record names an unfinished transaction, that transaction holds X
//! on the record. Locks are released after the commit record is in the log. A transaction that
//! waited for them therefore commits at a later position, and the order of the log is the order of
//! conflicts. Rollback takes no locks, because the transaction already holds them.

mod contended;
pub(crate) mod early;
mod held_ends;
mod locks;
mod prepare;
mod reads;
pub(crate) mod steps;

use core::cell::{Cell, RefCell};
use core::ops::Bound;

use latchwork_lockmgr::granular::X;
use latchwork_lockmgr::{Error as LocksError, Owner, Reason, Wait};
use latchwork_machine::{ConstMachine, Native};

use crate::Error;
use crate::engine::{Engine, UndoChain, WriteOptions, WriteOutcome};
use crate::long::{Long, PIECES, is_long};
pub(crate) use crate::txn::contended::Contended;
use crate::txn::held_ends::HeldEnds;
pub(crate) use crate::txn::prepare::IDS;
use crate::txn::steps::Awaited;

/// The isolation level of a transaction that may write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Level {
    /// The transaction is serializable.
    #[default]
    Serializable,
    /// Reads return committed data and keep no lock. Data that was read may change, and ranges may
    /// get new records, before the transaction ends.
    ReadCommitted,
}

/// A point to which a transaction can be rolled back.
#[derive(Clone, Copy, Debug)]
pub struct Savepoint {
    owner: latchwork_lockmgr::OwnerId,
    last: u64,
    /// The number of savepoints that the transaction had made before.
    number: u64,
}

/// A write that is deferred to the commit. Its lock is held.
struct Pending {
    tree: u32,
    key: Vec<u8>,
    value: Option<Vec<u8>>,
}

/// A transaction. If it is dropped, it is rolled back.
pub struct Txn<'t, E: Engine, M: ConstMachine = Native> {
    engine: &'t E,
    owner: Owner<'t, M>,
    chain: UndoChain,
    level: Level,
    wait: Wait,
    /// Keys that this attempt, or an earlier one, could not lock for writing.
    contended: RefCell<Contended>,
    /// Trees with ranges that it holds, in order. Dropping an empty vector costs less than dropping
    /// an empty map.
    claims: Vec<u32>,
    /// Ends of trees that it holds.
    ends: HeldEnds,
    /// The last write, which the commit carries out.
    pending: Option<Pending>,
    /// The number of savepoints made.
    savepoints: u64,
    /// Savepoints that were rolled back over: exclusive ranges of numbers, in order.
    gone: Vec<(u64, u64)>,
    /// The error after which it can only be rolled back.
    failed: Option<Error>,
    /// It has ended: nothing is left to roll back.
    over: bool,
    /// It runs in steps, and its caller waits for locks: see `steps.rs`.
    in_steps: bool,
    /// The first savepoint to which the current step may roll back.
    floor: u64,
    /// The lock that the last step could not get.
    awaited: Cell<Option<Box<Awaited>>>,
}

impl<'t, E: Engine, M: ConstMachine> Txn<'t, E, M> {
    /// Creates a transaction of the thread that has this slot, which must have no other. Its locks
    /// belong to `owner`, of a manager with the modes [`granular`](latchwork_lockmgr::granular).
    #[inline]
    pub fn new(engine: &'t E, owner: Owner<'t, M>, slot: u16, level: Level) -> Self {
        let chain = UndoChain { slot, ..UndoChain::default() };
        Self {
            engine,
            owner,
            chain,
            level,
            wait: Wait::Detect,
            contended: RefCell::default(),
            claims: Vec::new(),
            ends: HeldEnds::new(),
            pending: None,
            savepoints: 0,
            gone: Vec::new(),
            failed: None,
            over: false,
            in_steps: false,
            floor: 0,
            awaited: Cell::new(None),
        }
    }

    /// Sets how its later requests for locks wait.
    pub fn set_wait(&mut self, wait: Wait) {
        self.wait = wait;
    }

    /// Returns when it began; the owner of its next attempt gets this age.
    ///
    /// # Errors
    ///
    /// [`Error::Locks`] in the child of a fork.
    pub fn age(&self) -> Result<u64, Error> {
        Ok(self.owner.age()?)
    }

    /// Returns whether it locks the ranges that it reads.
    pub(crate) fn locks_ranges(&self) -> bool {
        self.level == Level::Serializable
    }

    /// Returns the error after which it can only be rolled back, if any.
    pub(crate) fn failed(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// Runs a closure that may panic between two writes. After a panic the transaction can only be
    /// rolled back, so that it cannot commit a part of the writes.
    pub(crate) fn as_a_whole<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        // No record has this position, so any panic counts.
        self.all_since(u64::MAX, work)
    }

    /// Runs a closure. If it panics, the transaction can only be rolled back, unless its last log
    /// record is still `last`, so that nothing was written.
    fn all_since<R>(&mut self, last: u64, work: impl FnOnce(&mut Self) -> R) -> R {
        struct Half<'x, 't, E: Engine, M: ConstMachine>(&'x mut Txn<'t, E, M>, u64);
        impl<E: Engine, M: ConstMachine> Drop for Half<'_, '_, E, M> {
            fn drop(&mut self) {
                if self.0.chain.last != self.1 {
                    self.0.failed.get_or_insert(Error::Panicked);
                }
            }
        }
        let half = Half(self, last);
        let done = work(half.0);
        core::mem::forget(half);
        done
    }

    /// Refuses calls after a failure, and records a new one.
    fn guard<R>(
        &mut self,
        operation: impl FnOnce(&mut Self) -> Result<R, Error>,
    ) -> Result<R, Error> {
        if let Some(why) = &self.failed {
            return Err(Error::Aborted { why: Box::new(why.clone()) });
        }
        let result = self.all_since(self.chain.last, operation);
        if let Err(error) = &result
            && error.ends_transaction()
        {
            // A nested call may have recorded it already.
            self.failed.get_or_insert_with(|| error.clone());
        }
        result
    }

    /// Checks that the transaction is still open. Called after a read, because another thread may
    /// have rolled back the earlier writes.
    #[inline]
    fn still_open(&self) -> Result<(), Error> {
        if self.chain.last == 0 { Ok(()) } else { self.engine.still_open() }
    }

    /// Writes or removes a record. O(log n).
    ///
    /// # Errors
    ///
    /// [`Error::Lock`], [`Error::Engine`]; [`Error::Aborted`] after a failure that ended the
    /// transaction.
    pub fn write_raw(&mut self, tree: u32, key: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
        self.guard(|txn| {
            txn.catch_up()?;
            txn.lock(tree, key, X)?;
            txn.change(tree, key, value, false)
        })
    }

    /// Removes all records of a range. Returns their number. O(records), with memory for their
    /// keys.
    ///
    /// # Errors
    ///
    /// Those of [`scan_raw`](Self::scan_raw) and [`write_raw`](Self::write_raw).
    pub fn remove_range_raw(
        &mut self,
        tree: u32,
        range: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> Result<u64, Error> {
        let mut keys = Vec::new();
        self.scan_raw(tree, range, false, &mut |key, _| {
            keys.push(key.to_vec());
            Ok(true)
        })?;
        let (before, mut count) = (self.chain.last, 0);
        let read_committed = self.level == Level::ReadCommitted;
        let mut remove = |txn: &mut Self, key: &[u8]| {
            // At that level, another transaction may have removed the record since the scan.
            if read_committed && txn.get_raw_for_update(tree, key)?.is_none() {
                return Ok(());
            }
            count += 1;
            txn.write_raw(tree, key, None)
        };
        let removed =
            self.all_since(before, |txn| keys.iter().try_for_each(|key| remove(txn, key)));
        if removed.is_err() && self.failed.is_none() {
            // A transaction must not commit only a part of the removals.
            self.guard(|txn| txn.undo_after(before))?;
        }
        removed.map(|()| count)
    }

    /// Writes or removes a record as the last operation before the commit: write and commit are one
    /// log record. If another call follows instead, it carries out the write first.
    ///
    /// # Errors
    ///
    /// Those of [`write_raw`](Self::write_raw). Some of them are returned by the commit, or by the
    /// call that follows instead; the transaction can then only be rolled back.
    pub fn write_last(&mut self, tree: u32, key: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
        self.guard(|txn| {
            txn.catch_up()?;
            txn.lock(tree, key, X)?;
            let value = value.map(<[u8]>::to_vec);
            txn.pending = Some(Pending { tree, key: key.to_vec(), value });
            Ok(())
        })
    }

    /// Writes or removes a record, and commits in the same log record. Only
    /// [`commit`](Self::commit) may follow.
    ///
    /// # Errors
    ///
    /// Those of [`write_raw`](Self::write_raw).
    pub(crate) fn write_and_commit(
        &mut self,
        tree: u32,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(), Error> {
        self.guard(|txn| {
            txn.catch_up()?;
            txn.lock(tree, key, X)?;
            txn.change(tree, key, value, true)
        })
    }

    /// Carries out the deferred write.
    fn catch_up(&mut self) -> Result<(), Error> {
        self.write_pending(false).map(drop)
    }

    /// Carries out the deferred write, as the commit if it is the `last`. Returns whether one
    /// existed.
    fn write_pending(&mut self, last: bool) -> Result<bool, Error> {
        let Some(write) = self.pending.take() else { return Ok(false) };
        let changed = self.change(write.tree, &write.key, write.value.as_deref(), last);
        match &changed {
            Err(why) if self.awaits(why) => self.pending = Some(write),
            // The caller of the write got no error, so the transaction must fail.
            Err(why) => self.failed = Some(why.clone()),
            Ok(()) => {}
        }
        changed.map(|()| true)
    }

    /// Writes a record that must not exist. O(log n).
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]; those of [`write_raw`](Self::write_raw).
    pub fn insert_raw(&mut self, tree: u32, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.guard(|txn| {
            txn.catch_up()?;
            txn.lock(tree, key, X)?;
            let there = txn.engine.newest(tree, key, &mut Vec::new())?.there;
            txn.engine.same_tables()?;
            txn.still_open()?;
            if there {
                return Err(Error::Exists { table: txn.engine.table(tree), key: key.to_vec() });
            }
            txn.change(tree, key, Some(value), false)
        })
    }

    /// Changes a record. Its lock is held.
    fn change(
        &mut self,
        tree: u32,
        key: &[u8],
        value: Option<&[u8]>,
        last: bool,
    ) -> Result<(), Error> {
        let before = self.chain.last;
        if !self.ends.is_empty() && value.is_some() {
            self.fills(tree, key);
        }
        let changed = match value.filter(|value| is_long(self.engine.record_max(), key, value)) {
            Some(value) => {
                let record = self.write_pieces(key, value);
                record.and_then(|record| self.change_record(tree, key, Some(&record), last))
            }
            None => self.change_record(tree, key, value, last),
        };
        let Err(why) = changed else { return Ok(()) };
        if self.chain.last != before {
            // A transaction must not commit a part of a long value.
            self.undo_after(before)?;
        }
        Err(why.of_table(|| self.engine.table(tree)))
    }

    fn change_record(
        &mut self,
        tree: u32,
        key: &[u8],
        value: Option<&[u8]>,
        last: bool,
    ) -> Result<(), Error> {
        let mut options = WriteOptions { last, ..WriteOptions::default() };
        loop {
            match self.engine.write(&mut self.chain, tree, key, value, options)? {
                WriteOutcome::Done => return Ok(()),
                WriteOutcome::Claimed => self.take_place(tree, key)?,
                WriteOutcome::Long => {
                    // A reader that holds the range may read the long value until the record is
                    // changed.
                    if !options.cleared {
                        self.take_place(tree, key)?;
                    }
                    self.remove_pieces(tree, key)?;
                    options.over = true;
                }
            }
            options.cleared = true;
        }
    }

    /// Writes the pieces of a long value. Returns the contents of its record.
    #[cold]
    fn write_pieces(&mut self, key: &[u8], value: &[u8]) -> Result<Vec<u8>, Error> {
        let (max, at) = (self.engine.record_max(), self.engine.position());
        let long = Long::new(max, key, value, self.chain.slot, at)?;
        for (piece, bytes) in long.pieces(max, value) {
            self.engine.write(&mut self.chain, PIECES, &piece, Some(bytes), WriteOptions::PIECE)?;
        }
        Ok(long.record(value))
    }

    /// Removes the pieces of a record's long value.
    #[cold]
    fn remove_pieces(&mut self, tree: u32, key: &[u8]) -> Result<(), Error> {
        let (max, mut record) = (self.engine.record_max(), Vec::new());
        self.engine.newest(tree, key, &mut record)?;
        let Some(long) = Long::of(max, tree, key, &record)? else { return Ok(()) };
        for piece in long.keys(max) {
            self.engine.write(&mut self.chain, PIECES, &piece, None, WriteOptions::PIECE)?;
        }
        Ok(())
    }

    /// Creates a savepoint.
    ///
    /// # Errors
    ///
    /// Those of [`write_raw`](Self::write_raw).
    pub fn savepoint(&mut self) -> Result<Savepoint, Error> {
        self.guard(|txn| {
            txn.catch_up()?;
            txn.still_open()?;
            let number = txn.savepoints;
            txn.savepoints += 1;
            Ok(Savepoint { owner: txn.owner.id(), last: txn.chain.last, number })
        })
    }

    /// Rolls back to a savepoint. Keeps the locks, because the caller may remember what was read
    /// since. O(records rolled back).
    ///
    /// # Errors
    ///
    /// [`Error::Aborted`], [`Error::Savepoint`], [`Error::Engine`].
    pub fn roll_back_to(&mut self, savepoint: Savepoint) -> Result<(), Error> {
        let Savepoint { owner, last, number } = savepoint;
        let behind = self.gone.partition_point(|(from, _)| *from < number);
        let is_gone = behind > 0 && number < self.gone[behind - 1].1;
        let is_gone = is_gone || number < self.floor;
        self.guard(|txn| {
            if owner != txn.owner.id() || last > txn.chain.last || is_gone {
                return Err(Error::Savepoint);
            }
            txn.gone.truncate(behind);
            if number + 1 < txn.savepoints {
                txn.gone.push((number, txn.savepoints));
            }
            txn.pending = None;
            txn.still_open()?;
            txn.undo_after(last)
        })
    }

    fn undo_after(&mut self, kept: u64) -> Result<(), Error> {
        let mut at = self.chain.last;
        self.none_is_empty();
        // A panic may come after the first log record of the rollback and before `chain` contains
        // it.
        self.as_a_whole(|txn| {
            while at > kept {
                at = txn.engine.undo(&mut txn.chain, at)?;
            }
            Ok(())
        })
    }

    /// Commits. Returns the position of the commit record, or `None` if nothing was written. The
    /// locks are released when the record is in the log; the caller waits for the disk.
    ///
    /// # Errors
    ///
    /// [`Error::Aborted`], [`Error::Engine`]. The transaction was rolled back.
    pub fn commit(mut self) -> Result<Option<u64>, Error> {
        self.end()
    }

    /// Commits. In steps, the transaction continues if a lock was not free.
    pub(crate) fn end(&mut self) -> Result<Option<u64>, Error> {
        match self.guard(Self::commit_now) {
            Ok(at) => {
                self.over = true;
                // The transaction is committed, whatever the result of this.
                let _ = self.release(false);
                Ok(at)
            }
            Err(why) if self.awaits(&why) => Err(why),
            Err(why) => {
                // Report a failed rollback: a transaction that keeps its locks must not be retried.
                self.undo_all()?;
                Err(why)
            }
        }
    }

    /// Logs the commit record, or the last write as one.
    fn commit_now(&mut self) -> Result<Option<u64>, Error> {
        if self.owner.is_killed() {
            return Err(LocksError::Aborted(Reason::Killed).into());
        }
        if !self.write_pending(true)? && self.chain.last != 0 {
            return self.engine.commit(&mut self.chain).map(Some);
        }
        // The last write was the commit, or nothing was written.
        Ok((self.chain.committed != 0).then_some(self.chain.committed))
    }

    /// Rolls back and releases the locks. O(records written).
    ///
    /// # Errors
    ///
    /// [`Error::Engine`]: the locks are kept until the owner is swept.
    pub fn roll_back(mut self) -> Result<(), Error> {
        self.undo_all()
    }

    fn undo_all(&mut self) -> Result<(), Error> {
        if self.over {
            return Ok(());
        }
        (self.over, self.pending) = (true, None);
        if self.chain.last != 0 {
            let undoing = Undoing(self);
            match undoing.0.undo_after(0) {
                // Another thread has rolled it back, or begun to.
                Ok(()) | Err(Error::TransactionTooOld) => {}
                Err(why) => return Err(why),
            }
            undoing.0.engine.ended(&mut undoing.0.chain)?;
            core::mem::forget(undoing);
        }
        self.engine.rolled_back(self.failed.as_ref());
        self.release(true)
    }

    fn release(&mut self, rolled_back: bool) -> Result<(), Error> {
        self.forget_call();
        let released = match rolled_back {
            false => self.owner.release_all(),
            // It may be retried, and would then request first what others wait for.
            true => self.owner.release_all_in_turn(),
        };
        if released.is_err() {
            // Otherwise they would belong to no transaction; a sweep releases them.
            self.owner.keep();
            self.engine.given_up();
        }
        for tree in self.claims.drain(..) {
            self.engine.claims(tree, false);
        }
        Ok(released?)
    }
}

/// A transaction during its rollback. If this is dropped, the rollback failed or panicked: the
/// changes stay locked until a sweep has rolled them back.
struct Undoing<'a, 'e, E: Engine, M: ConstMachine>(&'a mut Txn<'e, E, M>);

impl<E: Engine, M: ConstMachine> Drop for Undoing<'_, '_, E, M> {
    fn drop(&mut self) {
        self.0.owner.keep();
        self.0.claims.clear();
        self.0.engine.given_up();
    }
}

impl<E: Engine, M: ConstMachine> Drop for Txn<'_, E, M> {
    fn drop(&mut self) {
        // If the engine cannot roll it back now, the sweep of the owner does.
        let _ = self.undo_all();
    }
}

//! A transaction that may write: locks to its end, records in the log, and rolling back.
//!
//! | step | what it does |
//! |---|---|
//! | read | takes S on the key's name, then reads the newest version |
//! | read a range | claims the range; takes S on records that others have not finished |
//! | write | takes X on the name, and a place among ranges if the tree has claims; then writes |
//! | last write | takes X on the name, and is done by what comes next, as a rule the commit |
//! | commit | logs the commit record, which is the last write's if there is one; the locks go |
//! | prepare | logs the locks and the id; all stays as it is until somebody decides |
//! | roll back | undoes the log's records in place, the last one first; then the locks go |
//!
//! Invariants: a record whose stamp names a transaction that is not finished is locked in X by it.
//! The locks go after the commit record is in the log, so a transaction that waited for them
//! commits later in the log, and the log's order is the order of conflicts. Undoing takes no lock:
//! the transaction holds them.

mod contended;
mod held_ends;
mod locks;
mod prepare;
mod reads;
pub(crate) mod steps;

use core::cell::{Cell, RefCell};
use core::ops::Bound;
use std::collections::BTreeSet;

use latchwork_lockmgr::granular::X;
use latchwork_lockmgr::{Error as LocksError, Owner, Reason, Wait};
use latchwork_machine::{ConstMachine, Native};

use crate::Error;
use crate::engine::{Chain, Engine, How, Wrote};
use crate::long::{Long, PIECES, is_long};
pub(crate) use crate::txn::contended::Contended;
use crate::txn::held_ends::HeldEnds;
pub(crate) use crate::txn::prepare::IDS;
use crate::txn::steps::Awaited;

/// Which histories a transaction that may write allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Level {
    /// Only those that some serial order has too.
    #[default]
    Serializable,
    /// Reads see what is committed, and hold no lock afterwards: what was read may change, and
    /// ranges may get new records, before the transaction ends.
    ReadCommitted,
}

/// Where a transaction can be rolled back to.
#[derive(Clone, Copy, Debug)]
pub struct Savepoint {
    owner: latchwork_lockmgr::OwnerId,
    last: u64,
    /// How many the transaction had made before it.
    number: u64,
}

/// A write whose lock is held.
struct Pending {
    tree: u32,
    key: Vec<u8>,
    value: Option<Vec<u8>>,
}

/// A transaction. Dropping it rolls it back.
pub struct Txn<'t, E: Engine, M: ConstMachine = Native> {
    engine: &'t E,
    owner: Owner<'t, M>,
    chain: Chain,
    level: Level,
    wait: Wait,
    /// What this attempt, or one before it, could not lock to write it.
    contended: RefCell<Contended>,
    /// Trees of which it holds ranges.
    claims: BTreeSet<u32>,
    /// Ends of trees that it holds.
    ends: HeldEnds,
    /// The last write, which the commit does.
    pending: Option<Pending>,
    /// How many savepoints were made.
    savepoints: u64,
    /// Those that were rolled back over: between one's number and another's, in order.
    gone: Vec<(u64, u64)>,
    /// Why it can only be rolled back.
    failed: Option<Error>,
    /// Nothing is left to undo.
    over: bool,
    /// It is done in steps: its caller waits for locks, see `steps.rs`.
    in_steps: bool,
    /// The first savepoint that the step may roll back to.
    floor: u64,
    /// The lock that the last step did not get.
    awaited: Cell<Option<Box<Awaited>>>,
}

impl<'t, E: Engine, M: ConstMachine> Txn<'t, E, M> {
    /// A transaction of the thread that has this slot, which has no other. Its locks are `owner`'s,
    /// of a manager with the modes [`granular`](latchwork_lockmgr::granular).
    pub fn new(engine: &'t E, owner: Owner<'t, M>, slot: u16, level: Level) -> Self {
        let chain = Chain { slot, ..Chain::default() };
        Self {
            engine,
            owner,
            chain,
            level,
            wait: Wait::Detect,
            contended: RefCell::default(),
            claims: BTreeSet::new(),
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

    /// How its requests for locks wait from now on.
    pub fn set_wait(&mut self, wait: Wait) {
        self.wait = wait;
    }

    /// When it began, for the owner of its next attempt.
    ///
    /// # Errors
    ///
    /// [`Error::Locks`] in the child of a fork.
    pub fn age(&self) -> Result<u64, Error> {
        Ok(self.owner.age()?)
    }

    /// Why it can only be rolled back, if it can.
    pub(crate) fn failed(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// Runs what may panic between two writes. If it does, the transaction can only be rolled back:
    /// half of the writes are no change that it may commit.
    pub(crate) fn as_a_whole<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        // No record's position: it is not looked at what was written.
        self.all_since(u64::MAX, work)
    }

    /// The same, unless the last that it wrote is still this record: then there is no half.
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

    /// Refuses what comes after a failure, and remembers a new one.
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
            // A call within this one may have noted it already.
            self.failed.get_or_insert_with(|| error.clone());
        }
        result
    }

    /// Comes after a read: what was written before may have been undone by another thread.
    #[inline]
    fn still_open(&self) -> Result<(), Error> {
        if self.chain.last == 0 { Ok(()) } else { self.engine.still_open() }
    }

    /// Writes a record, or removes it. O(log n).
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

    /// Removes all records of a range, and says how many there were. O(records), and memory of
    /// their keys.
    ///
    /// # Errors
    ///
    /// As [`scan_raw`](Self::scan_raw) and [`write_raw`](Self::write_raw).
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
            // Nothing kept another one from removing it meanwhile, at that level.
            if read_committed && txn.get_raw_for_update(tree, key)?.is_none() {
                return Ok(());
            }
            count += 1;
            txn.write_raw(tree, key, None)
        };
        let removed =
            self.all_since(before, |txn| keys.iter().try_for_each(|key| remove(txn, key)));
        if removed.is_err() && self.failed.is_none() {
            // A part of them is no change that a transaction may commit.
            self.guard(|txn| txn.undo_after(before))?;
        }
        removed.map(|()| count)
    }

    /// Writes a record, or removes it, as the last thing before the commit: they are one record of
    /// the log. What is called instead of the commit does the write first. As
    /// [`write_raw`](Self::write_raw).
    ///
    /// # Errors
    ///
    /// As there, some of them from the commit, or from what is called instead of it: then the
    /// transaction can only be rolled back.
    pub fn write_last(&mut self, tree: u32, key: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
        self.guard(|txn| {
            txn.catch_up()?;
            txn.lock(tree, key, X)?;
            let value = value.map(<[u8]>::to_vec);
            txn.pending = Some(Pending { tree, key: key.to_vec(), value });
            Ok(())
        })
    }

    /// Writes a record, or removes it, and commits at once: nothing but [`commit`](Self::commit)
    /// comes behind it.
    ///
    /// # Errors
    ///
    /// As [`write_raw`](Self::write_raw).
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

    /// Does the write that was put off to the commit.
    fn catch_up(&mut self) -> Result<(), Error> {
        self.write_pending(false).map(drop)
    }

    /// The same, as the commit if it is the `last`; says whether there was one.
    fn write_pending(&mut self, last: bool) -> Result<bool, Error> {
        let Some(write) = self.pending.take() else { return Ok(false) };
        let changed = self.change(write.tree, &write.key, write.value.as_deref(), last);
        match &changed {
            Err(why) if self.awaits(why) => self.pending = Some(write),
            // The caller was told that it is written.
            Err(why) => self.failed = Some(why.clone()),
            Ok(()) => {}
        }
        changed.map(|()| true)
    }

    /// Writes a record that must not be there. O(log n).
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]; others as [`write_raw`](Self::write_raw).
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

    /// Changes a record whose lock is held.
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
            // A part of a long value is no change that a transaction may commit.
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
        let mut how = How { last, ..How::default() };
        loop {
            match self.engine.write(&mut self.chain, tree, key, value, how)? {
                Wrote::Done => return Ok(()),
                Wrote::Claimed => self.take_place(tree, key)?,
                Wrote::Long => {
                    // A reader that holds a range may read the value until the record is changed.
                    if !how.cleared {
                        self.take_place(tree, key)?;
                    }
                    self.remove_pieces(tree, key)?;
                    how.over = true;
                }
            }
            how.cleared = true;
        }
    }

    /// Writes the pieces of a long value; returns what its record is to have.
    #[cold]
    fn write_pieces(&mut self, key: &[u8], value: &[u8]) -> Result<Vec<u8>, Error> {
        let (max, at) = (self.engine.record_max(), self.engine.position());
        let long = Long::new(max, key, value, self.chain.slot, at)?;
        for (piece, bytes) in long.pieces(max, value) {
            self.engine.write(&mut self.chain, PIECES, &piece, Some(bytes), How::PIECE)?;
        }
        Ok(long.record(value))
    }

    /// Removes the pieces of the long value that a record has.
    #[cold]
    fn remove_pieces(&mut self, tree: u32, key: &[u8]) -> Result<(), Error> {
        let (max, mut record) = (self.engine.record_max(), Vec::new());
        self.engine.newest(tree, key, &mut record)?;
        let Some(long) = Long::of(max, tree, key, &record)? else { return Ok(()) };
        for piece in long.keys(max) {
            self.engine.write(&mut self.chain, PIECES, &piece, None, How::PIECE)?;
        }
        Ok(())
    }

    /// Notes where the transaction is.
    ///
    /// # Errors
    ///
    /// As [`write_raw`](Self::write_raw).
    pub fn savepoint(&mut self) -> Result<Savepoint, Error> {
        self.guard(|txn| {
            txn.catch_up()?;
            txn.still_open()?;
            let number = txn.savepoints;
            txn.savepoints += 1;
            Ok(Savepoint { owner: txn.owner.id(), last: txn.chain.last, number })
        })
    }

    /// Undoes what was written since a savepoint. Locks stay, for what was read since then may be
    /// remembered. O(records undone).
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
        // A panic may come behind the first record that undoes, and before the chain has it.
        self.as_a_whole(|txn| {
            while at > kept {
                at = txn.engine.undo(&mut txn.chain, at)?;
            }
            Ok(())
        })
    }

    /// Commits: returns the position of the commit record, or none if nothing was written. The
    /// locks go when the record is in the log; whether it is on the disk is the caller's to wait
    /// for.
    ///
    /// # Errors
    ///
    /// [`Error::Aborted`], [`Error::Engine`]. Then it was rolled back.
    pub fn commit(mut self) -> Result<Option<u64>, Error> {
        self.end()
    }

    /// The same. One that is done in steps goes on if a lock was not free.
    pub(crate) fn end(&mut self) -> Result<Option<u64>, Error> {
        match self.guard(Self::commit_now) {
            Ok(at) => {
                self.over = true;
                // It is committed, whatever comes of this.
                let _ = self.release(false);
                Ok(at)
            }
            Err(why) if self.awaits(&why) => Err(why),
            Err(why) => {
                // What cannot be undone says so: a transaction that is kept must not be run again.
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
        // Its last write has committed it, or there was none.
        Ok((self.chain.committed != 0).then_some(self.chain.committed))
    }

    /// Undoes everything, and lets go of the locks. O(records written).
    ///
    /// # Errors
    ///
    /// [`Error::Engine`]: then the locks are kept until the owner is swept.
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
                // Another thread has undone it, or begun to.
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
            // It may be run again, and would be first to ask for what others wait for.
            true => self.owner.release_all_in_turn(),
        };
        if released.is_err() {
            // They would be no transaction's: a sweep has them to release.
            self.owner.keep();
            self.engine.given_up();
        }
        for tree in core::mem::take(&mut self.claims) {
            self.engine.claims(tree, false);
        }
        Ok(released?)
    }
}

/// A transaction that is being undone. If this is dropped, it could not be, or something has
/// panicked: then what it has written stays locked until a sweep has undone it.
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
        // What the engine cannot undo now is undone when the owner is swept.
        let _ = self.undo_all();
    }
}

//! The locks that a transaction takes.

use core::ops::Bound;

use latchwork_lockmgr::granular::X;
use latchwork_lockmgr::{Blocker, Error as LocksError, KeyRange, Mode, RangeKind, Step, Wait};
use latchwork_machine::ConstMachine;

use super::Txn;
use crate::Error;
use crate::engine::{Engine, WRITER};
use crate::events::Begun;
use crate::lock_error::{Holder, KeyBounds};
use crate::lock_name::{LOCK_NAME, lock_name};
use crate::user::{Used, runs_loop};

/// Why a lock was not granted.
pub(crate) enum Failed {
    Locks(LocksError),
    /// The thread would wait for itself: it holds the lock in this transaction.
    Own(Box<Holder>),
}

impl From<LocksError> for Failed {
    fn from(why: LocksError) -> Self {
        Self::Locks(why)
    }
}

/// Returns the bounds of a range, for an error.
fn owned(range: KeyRange<'_>) -> Box<KeyBounds> {
    Box::new((range.from.map(<[u8]>::to_vec), range.to.map(<[u8]>::to_vec)))
}

/// Returns the key at which a range begins.
pub(super) fn first_of(range: &KeyRange<'_>) -> Vec<u8> {
    match range.from {
        Bound::Included(key) | Bound::Excluded(key) => key.to_vec(),
        Bound::Unbounded => Vec::new(),
    }
}

impl<E: Engine, M: ConstMachine> Txn<'_, E, M> {
    /// Takes the lock of a record.
    pub(super) fn lock(&self, tree: u32, key: &[u8], mode: Mode) -> Result<(), Error> {
        let mut bytes = [0; LOCK_NAME];
        let length = lock_name(tree, key, &mut bytes);
        let name = &bytes[..length];
        let begun = Begun::now::<M>();
        let locked = match self.take(name, mode) {
            Err(Failed::Locks(LocksError::Count)) => self.lock_once_more(name, mode),
            locked => locked,
        };
        begun.lock::<M>(locked.is_ok(), || (self.engine.table(tree), key.to_vec()));
        locked.map_err(|failed| {
            let why = match failed {
                Failed::Locks(why) => why,
                Failed::Own(holder) => return self.own_error(tree, key, None, holder),
            };
            self.note_key(&why, tree, key, mode);
            if mode == X {
                self.note_contended(&why, tree, key);
            }
            self.lock_error(tree, key, None, why)
        })
    }

    /// Takes the lock of a record for writing, if that is possible without waiting. Returns whether
    /// it did.
    pub(crate) fn try_lock(&mut self, tree: u32, key: &[u8]) -> Result<bool, Error> {
        self.guard(|txn| {
            txn.catch_up()?;
            let mut bytes = [0; LOCK_NAME];
            let length = lock_name(tree, key, &mut bytes);
            match txn.owner.try_lock(&bytes[..length], X) {
                Ok(()) => Ok(true),
                Err(LocksError::NotGranted) => Ok(false),
                Err(why) => Err(why.into()),
            }
        })
    }

    /// Requests a lock for which the transaction's request count is at its maximum. All counts are
    /// released together at the end of the transaction, so one of them may be released now; the
    /// lock stays held.
    #[cold]
    fn lock_once_more(&self, name: &[u8], mode: Mode) -> Result<(), Failed> {
        self.owner.unlock(name)?;
        self.take(name, mode)
    }

    #[inline]
    fn take(&self, name: &[u8], mode: Mode) -> Result<(), Failed> {
        match self.owner.request(name, mode, self.wait)? {
            Step::Granted => Ok(()),
            Step::Waiting => self.wait_for_lock(),
        }
    }

    /// Waits for a requested lock, unless the thread would wait for itself.
    #[cold]
    fn wait_for_lock(&self) -> Result<(), Failed> {
        if let Some(holder) = self.own_holder()
            && self.owner.cancel()?
        {
            return Err(Failed::Own(holder));
        }
        let deadline = if let Wait::Until(deadline) = self.wait { Some(deadline) } else { None };
        Ok(self.owner.finish(deadline)?)
    }

    /// Returns the transaction of the calling thread that holds what this one waits for, if the
    /// thread cannot continue that transaction before this call returns: it is in a closure of that
    /// transaction, it blocks the loop of that transaction's task, or it would wait without limit
    /// for a transaction that it used last.
    #[cold]
    pub(super) fn own_holder(&self) -> Option<Box<Holder>> {
        let blocks = !self.in_steps;
        let patient = blocks && matches!(self.wait, Wait::Detect);
        let may_wait_for_itself = patient || self.engine.is_nested() || blocks && runs_loop();
        if !may_wait_for_itself {
            return None;
        }
        let is_own = |used| match used {
            Used::InClosure => true,
            Used::OfLoop => blocks,
            Used::Last => patient,
            Used::ByAnother => false,
        };
        // If the holders cannot be read, wait.
        let holders = self.owner.holders().ok()?;
        let (owner, _) = holders.into_iter().find(|(_, slot)| is_own(self.engine.used(*slot)))?;
        Some(Box::new(Holder::of(self.owner.describe(owner).ok()?, true)))
    }

    /// Creates the error of a thread that would wait for itself.
    #[cold]
    pub(super) fn own_error(
        &self,
        tree: u32,
        key: &[u8],
        range: Option<KeyRange<'_>>,
        holder: Box<Holder>,
    ) -> Error {
        let (table, range) = (self.engine.table(tree), range.map(owned));
        Error::OwnTransaction { table, key: key.to_vec(), range, holder }
    }

    /// Takes the lock of a range.
    pub(super) fn lock_range(
        &self,
        tree: u32,
        range: KeyRange<'_>,
        kind: RangeKind,
    ) -> Result<(), Error> {
        let space = self.engine.keyspace(tree);
        let begun = Begun::now::<M>();
        let locked = self.take_range(&space, range, kind);
        begun.lock::<M>(locked.is_ok(), || (self.engine.table(tree), first_of(&range)));
        locked.map_err(|failed| {
            let key = first_of(&range);
            let why = match failed {
                Failed::Locks(why) => why,
                Failed::Own(holder) => {
                    let range = (kind != WRITER).then_some(range);
                    return self.own_error(tree, &key, range, holder);
                }
            };
            self.note_range(&why, tree, range, kind);
            if kind == WRITER {
                self.note_contended_place(&why, tree, &key);
            }
            // A writer's range is its key.
            self.lock_error(tree, &key, (kind != WRITER).then_some(range), why)
        })
    }

    fn take_range(&self, space: &[u8], range: KeyRange<'_>, kind: RangeKind) -> Result<(), Failed> {
        let request = self.owner.request_range(space, range, kind, self.wait)?;
        if request.step() == Step::Waiting
            && let Some(holder) = self.own_holder()
        {
            // Dropping the request withdraws it.
            return Err(Failed::Own(holder));
        }
        Ok(request.finish()?)
    }

    /// Creates the error of a lock that was not granted. It names the transactions in the way.
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
        // If they cannot be read, none is named.
        let blockers = blockers.unwrap_or_default().into_iter();
        Error::Lock {
            table: self.engine.table(tree),
            key: key.to_vec(),
            range: range.map(owned),
            why,
            holders: blockers.map(|blocker| self.holder(blocker)).collect(),
        }
    }

    fn holder(&self, blocker: Blocker) -> Holder {
        let used = blocker.thread.map(|slot| self.engine.used(slot));
        Holder::of(blocker, used.is_some_and(|used| used != Used::ByAnother))
    }

    /// Releases a record's lock once.
    pub(super) fn unlock(&self, tree: u32, key: &[u8]) -> Result<(), Error> {
        let mut bytes = [0; LOCK_NAME];
        let length = lock_name(tree, key, &mut bytes);
        Ok(self.owner.unlock(&bytes[..length])?)
    }

    /// Takes the insert lock of a writer among the ranges of other transactions.
    pub(super) fn take_place(&self, tree: u32, key: &[u8]) -> Result<(), Error> {
        self.lock_range(tree, KeyRange::key(key), WRITER)
    }
}

//! A transaction of a task: waits for locks do not block the thread.
//!
//! Each call of such a transaction is a step. If a lock is not free, the step ends without having
//! changed anything and returns that lock. The caller waits for the lock and repeats the call,
//! which then finds the lock held. A call that takes several locks is repeated once for each lock
//! that was not free.

use core::future::Future;
use core::ops::Bound;
use core::pin::Pin;
use core::task::{Context, Poll};

use latchwork_lockmgr::granular::{S, X};
use latchwork_lockmgr::{
    Error as LocksError, KeyRange, LockFuture, Mode, RangeFuture, RangeKind, Wait,
};
use latchwork_machine::ConstMachine;

use super::{Level, Savepoint, Txn};
use crate::Error;
use crate::engine::{Engine, WRITER};
use crate::lock_name::{LOCK_NAME, lock_name};
use crate::txn::locks::Failed;

/// A lock that was not free.
#[derive(Debug)]
pub(crate) struct Awaited {
    tree: u32,
    key: Vec<u8>,
    wanted: AwaitedLock,
}

#[derive(Debug)]
enum AwaitedLock {
    Record(Vec<u8>, Mode),
    Range(Vec<u8>, (Bound<Vec<u8>>, Bound<Vec<u8>>), RangeKind),
    /// A record that must only become free for a moment, so that another transaction can continue.
    /// Only one waiter gets it at a time; later ones wait until it has continued.
    Free(Vec<u8>),
}

impl Awaited {
    /// Returns the range, if the caller requested a range.
    fn range(&self) -> Option<KeyRange<'_>> {
        let AwaitedLock::Range(_, (from, to), kind) = &self.wanted else { return None };
        let (from, to) = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
        (*kind != WRITER).then_some(KeyRange { from, to })
    }

    /// Returns whether the repeated call finds the lock held.
    pub(crate) fn is_kept(&self) -> bool {
        !matches!(self.wanted, AwaitedLock::Free(_))
    }
}

/// The result of a step.
#[derive(Debug)]
pub(crate) enum Step<R> {
    Done(R),
    /// The call must be repeated when the transaction has this lock.
    Waits(Box<Awaited>),
}

/// A lock of a transaction, as a future.
pub(crate) struct Waiting<'w, 't, E: Engine, M: ConstMachine> {
    txn: &'w Txn<'t, E, M>,
    lock: Lock<'w, M>,
    /// Whether it has checked which transaction holds the lock.
    looked: bool,
}

enum Lock<'w, M: ConstMachine> {
    Record(LockFuture<'w, 'w, 'w, M>),
    Range(RangeFuture<'w, 'w, 'w, M>),
}

// SAFETY: the only part that is not `Send` is the borrow of the transaction, which is made for one
// thread at a time. The future is only available together with the session that the transaction
// belongs to, which may be sent (`idle.rs`), to a caller that has both exclusively:
// `Txn::wait_for`.
unsafe impl<E: Engine, M: ConstMachine> Send for Waiting<'_, '_, E, M> {}

impl<E: Engine, M: ConstMachine> Future for Waiting<'_, '_, E, M> {
    type Output = Result<(), Failed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { txn, lock, looked } = self.get_mut();
        let polled = match lock {
            Lock::Record(future) => Pin::new(future).poll(cx),
            Lock::Range(future) => Pin::new(future).poll(cx),
        };
        if polled.is_pending()
            && !core::mem::replace(looked, true)
            && let Some(holder) = txn.own_holder()
        {
            // Dropping the future withdraws the request.
            return Poll::Ready(Err(Failed::Own(holder)));
        }
        polled.map_err(Failed::Locks)
    }
}

impl<'t, E: Engine, M: ConstMachine> Txn<'t, E, M> {
    /// Makes the transaction run in steps.
    pub(crate) fn in_steps(mut self) -> Self {
        (self.in_steps, self.wait) = (true, Wait::Never);
        self
    }

    /// Calls `make` to create a table of this name in a transaction of its own. That transaction
    /// waits for the table's name as this one waits for locks. If this one runs in steps, its
    /// caller waits until the name is free.
    ///
    /// # Errors
    ///
    /// The error of `make`, which may end this transaction.
    pub(crate) fn make_table(
        &mut self,
        (catalog, name): (u32, &str),
        make: impl FnOnce(Wait) -> Result<u32, Error>,
    ) -> Result<u32, Error> {
        self.guard(|txn| match make(txn.wait) {
            Err(Error::Lock { key, why: LocksError::TimedOut, .. })
                if txn.in_steps && key == name.as_bytes() =>
            {
                let mut bytes = [0; LOCK_NAME];
                let length = lock_name(catalog, &key, &mut bytes);
                let wanted = AwaitedLock::Free(bytes[..length].to_vec());
                let why = txn.lock_error(catalog, &key, None, LocksError::NotGranted);
                let awaited = Awaited { tree: catalog, key, wanted };
                txn.awaited.set(Some(Box::new(awaited)));
                Err(why)
            }
            made => made,
        })
    }

    /// Withdraws the request of a call whose future neither completed nor was dropped.
    pub(super) fn forget_call(&mut self) {
        if self.in_steps {
            // The next request reports an error of this.
            let _ = self.owner.cancel();
        }
    }

    /// Runs a call of this transaction as a step.
    ///
    /// # Errors
    ///
    /// Those of the call.
    pub(crate) fn step<R>(
        &mut self,
        call: impl FnOnce(&mut Self) -> Result<R, Error>,
    ) -> Result<Step<R>, Error> {
        self.awaited.set(None);
        self.forget_call();
        let done = call(self);
        match (&done, self.awaited.take()) {
            (Err(why), Some(awaited)) if is_not_granted(why) => Ok(Step::Waits(awaited)),
            _ => done.map(Step::Done),
        }
    }

    /// Runs a call as a step that must not roll back beyond a savepoint, so that it can be
    /// repeated.
    ///
    /// # Errors
    ///
    /// Those of the call.
    pub(crate) fn step_behind<R>(
        &mut self,
        before: Savepoint,
        call: impl FnOnce(&mut Self) -> Result<R, Error>,
    ) -> Result<Step<R>, Error> {
        self.floor = before.number;
        let done = self.step(call);
        self.floor = 0;
        done
    }

    /// Waits for a lock. If the future is dropped early, the transaction is unchanged.
    ///
    /// # Safety
    ///
    /// If it is sent to another thread, the session that the transaction belongs to must be sent
    /// with it.
    pub(crate) unsafe fn wait_for<'w>(
        &'w self,
        awaited: &'w Awaited,
        wait: Wait,
    ) -> Waiting<'w, 't, E, M> {
        let lock = match &awaited.wanted {
            AwaitedLock::Record(name, mode) => {
                Lock::Record(self.owner.lock_async_with(name, *mode, wait))
            }
            AwaitedLock::Free(name) => Lock::Record(self.owner.lock_async_with(name, X, wait)),
            AwaitedLock::Range(space, (from, to), kind) => {
                let (from, to) = (from.as_ref(), to.as_ref());
                let range = KeyRange { from: from.map(Vec::as_slice), to: to.map(Vec::as_slice) };
                Lock::Range(self.owner.lock_range_async(space, range, *kind, wait))
            }
        };
        Waiting { txn: self, lock, looked: false }
    }

    /// Releases the lock of a call that has ended, if such a call does not keep the lock: it was
    /// taken twice.
    ///
    /// # Errors
    ///
    /// Those of the lock manager.
    pub(crate) fn waited(&mut self, awaited: &Awaited) -> Result<(), Error> {
        match &awaited.wanted {
            AwaitedLock::Record(name, mode) if self.level == Level::ReadCommitted && *mode == S => {
                Ok(self.owner.unlock(name)?)
            }
            AwaitedLock::Free(name) => Ok(self.owner.unlock(name)?),
            _ => Ok(()),
        }
    }

    /// Returns the error of a lock that was not granted, and fails the transaction if it can only
    /// be rolled back.
    pub(crate) fn not_had(&mut self, awaited: &Awaited, failed: Failed) -> Error {
        let why = match failed {
            Failed::Locks(why) => why,
            Failed::Own(holder) => {
                return self.own_error(awaited.tree, &awaited.key, awaited.range(), holder);
            }
        };
        match &awaited.wanted {
            AwaitedLock::Record(_, X) => self.note_contended(&why, awaited.tree, &awaited.key),
            AwaitedLock::Range(_, _, WRITER) => {
                self.note_contended_place(&why, awaited.tree, &awaited.key);
            }
            _ => {}
        }
        let error = self.lock_error(awaited.tree, &awaited.key, awaited.range(), why);
        match self.guard(|_| Err::<(), _>(error.clone())) {
            Ok(()) => error,
            Err(error) => error,
        }
    }

    /// Returns whether a call ended because a lock was not free, and must be repeated.
    pub(super) fn awaits(&mut self, why: &Error) -> bool {
        self.awaited.get_mut().is_some() && is_not_granted(why)
    }

    #[cold]
    pub(super) fn note_key(&self, why: &LocksError, tree: u32, key: &[u8], mode: Mode) {
        if self.in_steps && *why == LocksError::NotGranted {
            let mut bytes = [0; LOCK_NAME];
            let length = lock_name(tree, key, &mut bytes);
            let wanted = AwaitedLock::Record(bytes[..length].to_vec(), mode);
            self.awaited.set(Some(Box::new(Awaited { tree, key: key.to_vec(), wanted })));
        }
    }

    #[cold]
    pub(super) fn note_range(
        &self,
        why: &LocksError,
        tree: u32,
        range: KeyRange<'_>,
        kind: RangeKind,
    ) {
        if self.in_steps && *why == LocksError::NotGranted {
            let ends = (range.from.map(<[u8]>::to_vec), range.to.map(<[u8]>::to_vec));
            let space = self.engine.keyspace(tree).to_vec();
            let (key, wanted) =
                (super::locks::first_of(&range), AwaitedLock::Range(space, ends, kind));
            self.awaited.set(Some(Box::new(Awaited { tree, key, wanted })));
        }
    }
}

fn is_not_granted(why: &Error) -> bool {
    matches!(why, Error::Lock { why: LocksError::NotGranted, .. })
}

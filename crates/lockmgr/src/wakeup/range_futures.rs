//! Futures of locks on ranges, which correspond to those of `wakeup/futures.rs`. `range/claims.rs`
//! has the rules.
//!
//! A request for a range waits for the ticket of one claim after another. Each of these waits is
//! watched; between two of them the task searches again, as a thread does.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use latchwork_machine::{ConstMachine, Native};

use crate::Error;
use crate::memory::cells::{get, put};
use crate::memory::handle::Owner;
use crate::options::{Step, Wait};
use crate::owner::range_request::RangeRequest;
use crate::range::kinds::{KeyRange, RangeKind};
use crate::wakeup::futures::Looks;

/// The future of a lock on a range: see [`Owner::lock_range_async`].
#[must_use = "a future does nothing until it is polled"]
pub struct RangeFuture<'o, 's, 'k, M: ConstMachine = Native> {
    owner: &'o Owner<'s, M>,
    keyspace: &'k [u8],
    range: KeyRange<'k>,
    kind: RangeKind,
    wait: Wait,
    state: Stage<'o, 's, M>,
}

impl<M: ConstMachine> fmt::Debug for RangeFuture<'_, '_, '_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.state {
            Stage::New => "new",
            Stage::Waiting(..) => "waiting",
            Stage::Done => "done",
        };
        let (owner, keyspace) = (self.owner.id(), self.keyspace.escape_ascii());
        write!(f, "RangeFuture({owner} of {keyspace} {:?}, {stage})", self.range)
    }
}

enum Stage<'o, 's, M: ConstMachine> {
    New,
    /// The request, and the number under which it is watched.
    Waiting(RangeRequest<'o, 's, M>, u64, Looks),
    Done,
}

impl<'s, M: ConstMachine> Owner<'s, M> {
    /// Locks a range as [`lock_range`](Self::lock_range) does, without blocking the thread; see
    /// [`lock_async`](Self::lock_async) for executors, threads and deadlocks. Dropping the future
    /// withdraws the request.
    ///
    /// # Errors
    ///
    /// The errors of [`lock_range`](Self::lock_range), and [`Error::NoThread`].
    pub fn lock_range_async<'o, 'k>(
        &'o self,
        keyspace: &'k [u8],
        range: KeyRange<'k>,
        kind: RangeKind,
        wait: Wait,
    ) -> RangeFuture<'o, 's, 'k, M> {
        RangeFuture { owner: self, keyspace, range, kind, wait, state: Stage::New }
    }
}

impl<M: ConstMachine> RangeFuture<'_, '_, '_, M> {
    /// Requests the range. Returns true if the request waits.
    fn begin(&mut self) -> Result<bool, Error> {
        let owner = self.owner;
        let memory = owner.memory;
        owner.ready()?;
        // Before it is in a queue: the thread that finds it there reads this under the latch.
        put(&owner.cell.notifier, memory.have_notifier()?);
        let asked = owner.request_range(self.keyspace, self.range, self.kind, self.wait);
        let request = asked.inspect_err(|_| put(&owner.cell.notifier, 0))?;
        if request.step() == Step::Granted {
            put(&owner.cell.notifier, 0);
            return Ok(false);
        }
        let id = memory.inner().new_watch();
        self.state = Stage::Waiting(request, id, Looks::new(owner));
        Ok(true)
    }

    /// Returns the outcome, or `None` if it still waits and the waker will be called.
    fn advance(&mut self, waker: &Waker) -> Result<Option<Result<(), Error>>, Error> {
        self.owner.memory.region().check()?;
        if matches!(self.state, Stage::New) && !self.begin()? {
            return Ok(Some(Ok(())));
        }
        let owner = self.owner;
        let memory = owner.memory;
        let Stage::Waiting(request, id, looks) = &mut self.state else {
            panic!("latchwork: a future was polled after its end")
        };
        // The current wait of the owner. It waits for the ticket of one claim after another, and in
        // each wait it must search for a deadlock as soon as in a new one.
        let mut ticket = get(&owner.cell.ticket);
        if let Some(end) = request.poll()? {
            return Ok(Some(end));
        }
        if matches!(self.wait, Wait::Until(deadline) if deadline.passed::<M>()) {
            // If this fails, the error names no owner.
            let _ = owner.note_blockers();
            // It is withdrawn when the request is dropped, even if its ticket was granted in the
            // meantime.
            return Ok(Some(Err(Error::TimedOut)));
        }
        loop {
            if ticket != get(&owner.cell.ticket) {
                ticket = get(&owner.cell.ticket);
                *looks = Looks::new(owner);
            }
            looks.look(owner, self.wait)?;
            let at = looks.until(owner, self.wait);
            memory.inner.watch_for(*id, owner.pending.get(), at, waker.clone())?;
            // A decision before this was watched caused no notification.
            if let Some(end) = request.poll()? {
                return Ok(Some(end));
            }
            if ticket == get(&owner.cell.ticket) {
                return Ok(None);
            }
        }
    }

    /// Ends the wait, and withdraws the request if it was not granted.
    fn end(&mut self) {
        if let Stage::Waiting(request, id, _) = core::mem::replace(&mut self.state, Stage::Done) {
            // In the child of a fork there is nothing to end: see `LockFuture::undo`.
            if self.owner.memory.region().check().is_ok() {
                self.owner.memory.inner().forget_watch(id);
                put(&self.owner.cell.notifier, 0);
            }
            drop(request);
        }
    }
}

impl<M: ConstMachine> Future for RangeFuture<'_, '_, '_, M> {
    type Output = Result<(), Error>;

    /// # Panics
    ///
    /// Panics if it is polled after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let end = match this.advance(cx.waker()) {
            Ok(None) => return Poll::Pending,
            Ok(Some(end)) => end,
            Err(error) => Err(error),
        };
        this.end();
        this.state = Stage::Done;
        Poll::Ready(end)
    }
}

impl<M: ConstMachine> Drop for RangeFuture<'_, '_, '_, M> {
    fn drop(&mut self) {
        self.end();
    }
}

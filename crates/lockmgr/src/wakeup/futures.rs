//! Waiting without a thread: a lock as a future, in the same queues as other requests.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use latchwork_machine::{ConstMachine, Native};

use crate::Error;
use crate::memory::cells::{RequestAt, get, put};
use crate::memory::handle::Owner;
use crate::mode::Mode;
use crate::options::{Step, Wait};
use crate::owner::wait::{DETECT_EVERY, NAP_DEATHS, NAP_MAX, first_nap};

/// The future of a lock: see [`Owner::lock_async`].
#[must_use = "a future does nothing until it is polled"]
pub struct LockFuture<'o, 's, 'n, M: ConstMachine = Native> {
    owner: &'o Owner<'s, M>,
    name: &'n [u8],
    mode: Mode,
    wait: Wait,
    state: Stage<M>,
}

impl<M: ConstMachine> fmt::Debug for LockFuture<'_, '_, '_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.state {
            Stage::New => "new",
            Stage::Waiting(_) => "waiting",
            Stage::Done => "done",
        };
        let name = self.name.escape_ascii();
        write!(f, "LockFuture({} of {name} in {}, {stage})", self.owner.id(), self.mode)
    }
}

enum Stage<M: ConstMachine> {
    New,
    Waiting(Waiting<M>),
    Done,
}

/// A wait that has begun.
struct Waiting<M: ConstMachine> {
    id: u64,
    /// The request and the ticket of the wait.
    request: RequestAt<M>,
    ticket: u32,
    /// The mode that was held before a conversion.
    old: Option<Mode>,
    looks: Looks,
}

/// The schedule of a wait's deadlock searches and sweeps.
pub(crate) struct Looks {
    nap: Duration,
    /// Naps before the first search for deadlocks, and the number of naps since.
    ahead: u32,
    naps: u32,
    /// When to search for deadlocks and dead threads again.
    next: u64,
    /// When it began to wait, or last searched for deadlocks.
    since: u64,
    /// Whether that search must be repeated soon.
    again: bool,
}

impl Looks {
    pub(crate) fn new<M: ConstMachine>(owner: &Owner<'_, M>) -> Self {
        let (nap, ahead) = first_nap(owner.memory.inner().options.detect_after);
        let since = get(&owner.cell.since);
        // As a waiting thread does. If this fails, the search itself reports the error.
        let hasty = owner.may_be_awaited().is_ok_and(|may| may)
            && owner.waits_for_a_waiter().is_ok_and(|waits| waits);
        let first = if hasty { Duration::ZERO } else { nap };
        let ahead = if hasty { 0 } else { ahead };
        Self { nap, ahead, naps: 0, next: owner.memory.after(first).at, since, again: false }
    }

    /// Searches for deadlocks and dead threads if that is due, and no longer than until the end of
    /// the wait.
    pub(crate) fn look<M: ConstMachine>(
        &mut self,
        owner: &Owner<'_, M>,
        wait: Wait,
    ) -> Result<(), Error> {
        let memory = owner.memory;
        if memory.now() < self.next {
            return Ok(());
        }
        if self.nap >= NAP_DEATHS {
            memory.sweep_sometimes(wait.deadline())?;
        }
        self.nap = (self.nap * 2).min(NAP_MAX);
        self.next = memory.after(self.nap).at;
        if self.ahead > 0 {
            self.ahead -= 1;
            return Ok(());
        }
        let due = self.again || self.naps < 2 || self.naps.is_multiple_of(DETECT_EVERY);
        if due && owner.may_be_awaited()? {
            let looked = memory.now();
            self.again = memory.detect_from(owner.index, self.since, wait.deadline())?;
            self.since = if self.again { self.since } else { looked };
        }
        self.naps += 1;
        self.next = memory.after(self.nap).at;
        Ok(())
    }

    /// Returns when the waker must be called in any case.
    pub(crate) fn until<M: ConstMachine>(&self, owner: &Owner<'_, M>, wait: Wait) -> u64 {
        match wait {
            Wait::Until(end) if end.clock == owner.memory.after(Duration::ZERO).clock => {
                self.next.min(end.at)
            }
            _ => self.next,
        }
    }
}

impl<'s, M: ConstMachine> Owner<'s, M> {
    /// Takes a lock as [`lock`](Self::lock) does, without blocking the thread. The request is made
    /// at the first poll. While it waits, the owner can perform no other operation.
    ///
    /// Works in any executor that keeps the task on this thread. Dropping the future withdraws the
    /// request, and releases the lock if it was granted in the meantime: the owner then holds the
    /// same locks as before.
    ///
    /// The first such wait in a process starts a thread, which ends after 50 ms without waiting
    /// tasks. It keeps the region mapped while it runs. Deadlocks are searched for when the task is
    /// polled; the task is woken for that as often as a waiting thread would search. A process that
    /// never waits this way incurs no cost.
    ///
    /// # Errors
    ///
    /// The errors of [`lock`](Self::lock), and [`Error::NoThread`].
    pub fn lock_async<'o, 'n>(&'o self, name: &'n [u8], mode: Mode) -> LockFuture<'o, 's, 'n, M> {
        self.lock_async_with(name, mode, Wait::Detect)
    }

    /// Takes a lock as [`lock_async`](Self::lock_async) does, waiting as `wait` says.
    pub fn lock_async_with<'o, 'n>(
        &'o self,
        name: &'n [u8],
        mode: Mode,
        wait: Wait,
    ) -> LockFuture<'o, 's, 'n, M> {
        LockFuture { owner: self, name, mode, wait, state: Stage::New }
    }
}

impl<M: ConstMachine> LockFuture<'_, '_, '_, M> {
    /// Requests the lock. Returns true if the request waits.
    fn begin(&mut self) -> Result<bool, Error> {
        let owner = self.owner;
        let memory = owner.memory;
        owner.ready()?;
        // Before it is in a queue: the thread that finds it there reads this under the latch.
        put(&owner.cell.notifier, memory.have_notifier()?);
        let asked = owner.request(self.name, self.mode, self.wait);
        if asked != Ok(Step::Waiting) {
            put(&owner.cell.notifier, 0);
            return asked.map(|_| false);
        }
        let request = owner.pending.get();
        let old = if owner.converting.get() {
            Some(get(&memory.request(request)?.state).mode)
        } else {
            None
        };
        self.state = Stage::Waiting(Waiting {
            id: memory.inner().new_watch(),
            request,
            ticket: get(&owner.cell.ticket),
            old,
            looks: Looks::new(owner),
        });
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
        let Stage::Waiting(waiting) = &mut self.state else {
            panic!("latchwork: a future was polled after its end")
        };
        if !waiting.is_of(owner) {
            // The wait was ended by other means; the owner's current wait may belong to another
            // future.
            memory.inner().forget_watch(waiting.id);
            self.state = Stage::Done;
            return Ok(Some(Err(Error::NotHeld)));
        }
        if let Some(end) = owner.poll()? {
            return Ok(Some(end));
        }
        if self.wait.deadline().is_some_and(|deadline| deadline.passed::<M>()) {
            // If this fails, the error names no owner.
            let _ = owner.note_blockers();
            return Ok(Some(if owner.cancel()? { Err(Error::TimedOut) } else { Ok(()) }));
        }
        waiting.looks.look(owner, self.wait)?;
        let at = waiting.looks.until(owner, self.wait);
        memory.inner.watch_for(waiting.id, waiting.request, at, waker.clone())?;
        // A decision before this was watched caused no notification.
        owner.poll()
    }

    /// Ends the wait, and releases a lock whose grant was not reported.
    fn undo(&mut self) -> Result<(), Error> {
        let owner = self.owner;
        let memory = owner.memory;
        let stage = core::mem::replace(&mut self.state, Stage::Done);
        let Stage::Waiting(waiting) = stage else { return Ok(()) };
        // In the child of a fork there is nothing to withdraw: neither the owner's cell nor the
        // thread that calls wakers exists, and that thread may have held the mutex.
        memory.region().check()?;
        memory.inner().forget_watch(waiting.id);
        if !waiting.is_of(owner) {
            // The owner's current wait may belong to another future.
            return Ok(());
        }
        put(&owner.cell.notifier, 0);
        if owner.cancel()? {
            return Ok(());
        }
        owner.unlock(self.name)?;
        waiting.old.map_or(Ok(()), |old| owner.downgrade(self.name, old))
    }
}

impl<M: ConstMachine> Waiting<M> {
    /// Returns whether the owner is still in this wait.
    fn is_of(&self, owner: &Owner<'_, M>) -> bool {
        owner.pending.get() == self.request && get(&owner.cell.ticket) == self.ticket
    }
}

impl<M: ConstMachine> Future for LockFuture<'_, '_, '_, M> {
    type Output = Result<(), Error>;

    /// # Panics
    ///
    /// Panics if it is polled after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let end = match this.advance(cx.waker()) {
            Ok(None) => return Poll::Pending,
            Ok(Some(end)) => {
                if let Stage::Waiting(waiting) = &this.state {
                    this.owner.memory.inner().forget_watch(waiting.id);
                    put(&this.owner.cell.notifier, 0);
                }
                end
            }
            Err(error) => {
                // The wait cannot continue. A request that cannot be withdrawn here is removed when
                // its owner ends.
                let _ = this.undo();
                Err(error)
            }
        };
        this.state = Stage::Done;
        Poll::Ready(end)
    }
}

impl<M: ConstMachine> Drop for LockFuture<'_, '_, '_, M> {
    fn drop(&mut self) {
        // A request that cannot be withdrawn here is removed when its owner ends.
        let _ = self.undo();
    }
}

#[cfg(test)]
mod tests {
    use latchwork_machine::Deadline;

    use super::*;
    use crate::{Manager, shared};

    /// 3,000 owners wait for one name, and one of them, a future's, holds another name. Returns
    /// whether its search, which covers all waiters, ended before its deadline; or, with `later`,
    /// whether a second search that was not yet due did.
    fn looks_at_all(wait: Wait, later: Option<Wait>) -> bool {
        let manager = Manager::private(shared::modes()).unwrap();
        let session = manager.session().unwrap();
        let owner = || session.owner().unwrap();
        let holder = owner();
        holder.lock(b"x", shared::X).unwrap();
        let waiters: Vec<_> = (0..3000).map(|_| owner()).collect();
        for waiter in &waiters {
            assert_eq!(waiter.request(b"x", shared::X, Wait::Detect), Ok(Step::Waiting));
        }
        let last = waiters.last().unwrap();
        last.cancel().unwrap();
        last.lock(b"y", shared::X).unwrap();
        assert_eq!(last.request(b"x", shared::X, Wait::Detect), Ok(Step::Waiting));
        let mut looks = Looks { next: 0, ..Looks::new(last) };
        looks.look(last, wait).unwrap();
        if let Some(later) = later {
            assert_eq!(get(&manager.inner.looked), 0);
            put(&manager.inner.rests, 0);
            (looks.next, looks.naps) = (0, DETECT_EVERY + 1);
            looks.look(last, later).unwrap();
        }
        get(&manager.inner.looked) != 0
    }

    /// A future whose wait was ended by other means ends when it is polled, even if the owner waits
    /// for another future.
    #[test]
    fn an_outdated_future_does_not_clear_the_notifier_of_the_next_one() {
        let manager = Manager::private(shared::modes()).unwrap();
        let session = manager.session().unwrap();
        let (holder, owner) = (session.owner().unwrap(), session.owner().unwrap());
        holder.lock(b"x", shared::X).unwrap();
        let context = &mut Context::from_waker(Waker::noop());
        for polled in [false, true] {
            let mut old = Box::pin(owner.lock_async(b"x", shared::X));
            assert!(old.as_mut().poll(context).is_pending());
            owner.cancel().unwrap();
            let mut next = Box::pin(owner.lock_async(b"x", shared::X));
            assert!(next.as_mut().poll(context).is_pending());
            if polled {
                assert_eq!(old.as_mut().poll(context), Poll::Ready(Err(Error::NotHeld)));
            }
            drop(old);
            assert_ne!(get(&owner.cell.notifier), 0, "its grant would notify no process");
        }
    }

    #[test]
    fn a_deadline_ends_the_search_of_a_future() {
        let until = |time| Wait::Until(Deadline::after::<Native>(time));
        assert!(looks_at_all(Wait::Detect, None), "the check cannot fail");
        assert!(looks_at_all(until(Duration::from_secs(3600)), None));
        assert!(!looks_at_all(until(Duration::ZERO), None));
    }

    #[test]
    fn an_interrupted_search_of_a_future_is_repeated_soon() {
        let none = Wait::Until(Deadline::after::<Native>(Duration::ZERO));
        assert!(looks_at_all(none, Some(Wait::Detect)));
    }
}

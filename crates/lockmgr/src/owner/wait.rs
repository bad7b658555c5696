//! Waiting: how a request ends that was not granted immediately.
//!
//! A waiter spins briefly, then sleeps on its request's own word. On machines with several caches
//! the next waiter of a queue spins for longer, unless another thread wants its processor, and the
//! thread that grants or calls wakes the waiter behind it ahead of its turn.
//!
//! The thread that grants or refuses the request updates everything else first and stores that word
//! last. So a waiter that gives up takes the latch and finds its request either undecided, and
//! withdraws it, or decided, and accepts the decision.
//!
//! No sleep is longer than 50 ms: a granter may be killed before it wakes this thread, and locks of
//! dead holders are released only by a thread that sweeps.

use core::cell::Cell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

use latchwork_machine::{ConstMachine, Deadline, Spin, Waited, Word};
use latchwork_region::Offset;

use crate::error::{reason, reason_number};
use crate::ids::OwnerId;
use crate::memory::Memory;
use crate::memory::cells::{OwnerCell, Request, RequestAt, get, put};
use crate::memory::handle::Owner;
use crate::memory::numbers::{OwnerNumber, PartitionNumber};
use crate::memory::state::{State, status};
use crate::memory::typed::Stored;
use crate::meter::outcome::Outcome;
use crate::{Error, Reason};

/// The longest sleep.
pub(crate) const NAP_MAX: Duration = Duration::from_millis(50);
/// Number of naps between two searches for a deadlock, after the first two searches.
pub(crate) const DETECT_EVERY: u32 = 20;
/// The length of nap from which a waiter also sweeps dead threads.
pub(crate) const NAP_DEATHS: Duration = Duration::from_millis(3);

/// For how many budgets of `Machine::SPIN_NS` the next waiter of a queue spins before it sleeps, on
/// a machine with several caches, if no other thread wants its processor. A wake-up takes longer
/// than many transactions.
const BUDGETS: u32 = 64;

thread_local! {
    static INTERRUPT: Cell<Option<fn() -> bool>> = const { Cell::new(None) };
}

/// Sets a function that the calling thread calls after each sleep of a wait for a lock: at least
/// every 50 ms, and when a signal interrupts the sleep. If it returns true, the wait ends with
/// [`Error::TimedOut`]. For bindings of languages whose signal handlers run in the waiting thread.
/// Futures do not call it.
pub fn set_interrupt(interrupt: Option<fn() -> bool>) {
    INTERRUPT.set(interrupt);
}

fn is_interrupted() -> bool {
    INTERRUPT.get().is_some_and(|interrupt| interrupt())
}

impl<M: ConstMachine> Owner<'_, M> {
    /// Blocks until the request is decided, or until a deadline. Succeeds immediately if no request
    /// waits.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`], [`Error::Deadlock`], [`Error::Aborted`], [`Error::Region`]. At an error
    /// the request is withdrawn; locks that were held before stay held.
    pub fn finish(&self, deadline: Option<Deadline>) -> Result<(), Error> {
        if self.pending.get().is_null() {
            return Ok(self.memory.region().check()?);
        }
        self.until_decided(deadline).unwrap_or_else(|error| self.give_up(error))
    }

    /// Withdraws a request that cannot be waited for, and returns the error. Succeeds if it was
    /// granted in the meantime.
    pub(crate) fn give_up(&self, error: Error) -> Result<(), Error> {
        if self.pending.get().is_null() {
            // The request has already ended with this error.
            return Err(error);
        }
        match self.withdraw(Outcome::Withdrawn) {
            Ok(false) => Ok(()),
            // A request that was refused in the meantime has also ended.
            Ok(true) | Err(_) => Err(error),
        }
    }

    /// Waits. The outer error means that the wait cannot continue.
    fn until_decided(&self, deadline: Option<Deadline>) -> Result<Result<(), Error>, Error> {
        if let Some(end) = self.poll_for_a_while()? {
            return Ok(end);
        }
        let word = &self.memory.request(self.pending.get())?.state;
        let (mut nap, mut ahead) = first_nap(self.memory.inner().options.detect_after);
        if !self.may_be_awaited()? {
            // No cycle contains this owner, so its naps only look for deaths.
            nap = nap.max(NAP_DEATHS);
        }
        let (mut naps, mut again) = (0u32, false);
        let mut since = get(&self.cell.since);
        // Most waits end soon, and a search takes latches: so it usually begins only after a nap.
        if self.may_be_awaited()? && self.waits_for_a_waiter()? {
            let looked = self.memory.now();
            again = self.memory.detect_from(self.index, since, deadline)?;
            since = if again { since } else { looked };
        }
        let mut woken = true;
        loop {
            if woken && let Some(end) = self.poll_while_next(deadline)? {
                return Ok(end);
            }
            // Acquire: as in `poll`.
            let state = word.load(Acquire);
            if state.waits() && !state.is_called() {
                let until = self.memory.nap_until(nap, deadline);
                woken = M::wait(&word.word, state.word(), Some(until)) == Waited::Woken;
            }
            // Acquire: as in `poll`.
            let end = match woken || word.load(Acquire).is_called() {
                // Running threads may take the lock first: compete with them before the next nap.
                true => self.poll_for_a_while()?,
                false => self.poll()?,
            };
            if let Some(end) = end {
                return Ok(end);
            }
            if deadline.is_some_and(|deadline| deadline.passed::<M>()) || is_interrupted() {
                // If this fails, the error names no owner.
                let _ = self.note_blockers();
                let gone = self.withdraw(Outcome::TimedOut)?;
                return Ok(if gone { Err(Error::TimedOut) } else { Ok(()) });
            }
            if nap >= NAP_DEATHS {
                self.memory.sweep_sometimes(deadline)?;
            }
            nap = (nap * 2).min(NAP_MAX);
            if ahead > 0 {
                ahead -= 1;
                continue;
            }
            if (again || naps < 2 || naps.is_multiple_of(DETECT_EVERY)) && self.may_be_awaited()? {
                let looked = self.memory.now();
                again = self.memory.detect_from(self.index, since, deadline)?;
                since = if again { since } else { looked };
            }
            naps += 1;
        }
    }

    /// Spins for longer while the request is the next one of its queue and no other thread wants
    /// this processor. Returns the outcome, or `None` if it still waits.
    fn poll_while_next(
        &self,
        deadline: Option<Deadline>,
    ) -> Result<Option<Result<(), Error>>, Error> {
        for _ in 0..BUDGETS {
            // A hint, without the latch: the request may be decided at this moment.
            let request = self.memory.request(self.pending.get())?;
            let object = self.memory.object(get(&request.object))?;
            if get(&object.first) != self.pending.get()
                || self.memory.is_crowded()
                || deadline.is_some_and(|deadline| deadline.passed::<M>())
            {
                break;
            }
            let end = self.poll_for_a_while()?;
            if end.is_some() {
                return Ok(end);
            }
        }
        Ok(None)
    }

    /// Spins until the request is decided. Returns the outcome, or `None` if it still waits.
    fn poll_for_a_while(&self) -> Result<Option<Result<(), Error>>, Error> {
        let mut spin = Spin::<M>::new(M::SPIN_NS);
        loop {
            let end = self.poll()?;
            if end.is_some() || !spin.again() {
                return Ok(end);
            }
        }
    }

    /// Checks whether the request is decided. Returns the outcome, or `None` if it still waits.
    /// Succeeds if no request waits. Does not block for the lock.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] if the request cannot be read. The outcome has the errors of
    /// [`finish`](Self::finish).
    pub fn poll(&self) -> Result<Option<Result<(), Error>>, Error> {
        self.memory.region().check()?;
        let at = self.pending.get();
        if at.is_null() {
            return Ok(Some(Ok(())));
        }
        self.wait_seen();
        let request = self.memory.request(at)?;
        // Acquire: synchronizes with the Release in `set`: the last holder's writes are visible.
        let mut state = request.state.load(Acquire);
        let why = self.told();
        if state.is_called() && why == 0 {
            self.come(at, request)?;
            // Acquire: as above.
            state = request.state.load(Acquire);
        }
        if state.waits() {
            if why == 0 {
                return Ok(None);
            }
            // If it is granted at this instant, the lock is held and the next request fails.
            let gone = self.withdraw(Outcome::Refused(why_not(why)))?;
            return Ok(Some(if gone { Err(reason(why)) } else { Ok(()) }));
        }
        if state.status == status::HELD && state.why == 0 {
            self.pending.set(Offset::NULL);
            if self.converting.get() {
                put(&request.count, get(&request.count).wrapping_add(1));
            }
            self.memory.counters.granted();
            self.wait_ended(Outcome::Granted);
            return Ok(Some(Ok(())));
        }
        // An unreadable report also ends the wait: the request is removed in any case.
        let end = self.refusal(state.why).unwrap_or_else(|error| error);
        if state.status == status::HELD {
            let latched = self.memory.latch(get(&request.partition))?;
            let object = self.memory.object(get(&request.object))?;
            latched.set(object, request, State::held(state.mode));
        } else {
            // The thread that refused it stored this state before it unlinked the request. Once
            // this thread has had the latch, the request is unlinked.
            drop(self.memory.latch(get(&request.partition))?);
            put(&self.cell.waiting, Offset::NULL);
            self.discard(at, request)?;
        }
        // Not before: if taking the latch fails, the request is still in the owner's list, and this
        // function must be called again.
        self.pending.set(Offset::NULL);
        self.wait_ended(Outcome::Refused(why_not(state.why)));
        Ok(Some(Err(end)))
    }

    /// Takes the lock for which this waiter was called, if it is still free.
    #[cold]
    fn come(&self, at: RequestAt<M>, request: &Request<M>) -> Result<(), Error> {
        let latched = self.memory.latch(get(&request.partition))?;
        if get(&request.state).is_called() {
            latched.come(self.memory.object(get(&request.object))?, at, request)?;
        }
        drop(latched);
        self.memory.wake_all()
    }

    /// Withdraws the request. Returns false if it was granted in the meantime, or if no request
    /// waits: the lock is then held, once more than before the request.
    ///
    /// # Errors
    ///
    /// The outcome of the request, if it was refused in the meantime; [`Error::Region`].
    pub fn cancel(&self) -> Result<bool, Error> {
        self.withdraw(Outcome::Withdrawn)
    }

    fn withdraw(&self, outcome: Outcome) -> Result<bool, Error> {
        self.memory.region().check()?;
        let at = self.pending.get();
        if at.is_null() {
            return Ok(false);
        }
        let request = self.memory.request(at)?;
        self.memory.point("about to withdraw");
        let latched = self.memory.latch(get(&request.partition))?;
        let state = get(&request.state);
        if !state.waits() {
            drop(latched);
            return self.poll()?.unwrap_or(Ok(())).map(|()| false);
        }
        put(&self.cell.waiting, Offset::NULL);
        if state.status == status::CONVERTING {
            let object = self.memory.object(get(&request.object))?;
            latched.set(object, request, State::held(state.mode));
            latched.advance(object)?;
            drop(latched);
        } else {
            latched.release(at, request)?;
            drop(latched);
            self.discard(at, request)?;
        }
        self.pending.set(Offset::NULL);
        self.memory.wake_all()?;
        self.wait_ended(outcome);
        Ok(true)
    }
}

/// Number of low bits of `abort` that hold the reason. The bits above hold the low 30 bits of the
/// owner's generation, so that an abort does not affect the next owner of the cell. They wrap after
/// 18 minutes at a million owners a second: a thread that stops between its load and its store for
/// exactly 2^30 owners of the cell aborts another one, with a retryable error.
const REASON_BITS: u32 = 2;

impl<M: ConstMachine> OwnerCell<M> {
    /// Returns why the owner of this generation must fail, as a number, or zero.
    #[inline]
    pub(crate) fn told(&self, generation: u32) -> u32 {
        let word = get(&self.abort);
        let is_its = word >> REASON_BITS == generation << REASON_BITS >> REASON_BITS;
        if is_its { word & ((1 << REASON_BITS) - 1) } else { 0 }
    }
}

impl<M: ConstMachine> Owner<'_, M> {
    /// Returns why this owner must fail, as a number, or zero.
    #[inline]
    pub(crate) fn told(&self) -> u32 {
        self.cell.told(self.generation)
    }

    /// Returns whether a thread has called [`Session::kill`](crate::Session::kill) on this owner.
    /// An owner that requests no more locks can find out only by this. Reads one word of the
    /// owner's own cell. Returns false in the child of a fork.
    #[inline]
    pub fn is_killed(&self) -> bool {
        self.memory.region().check().is_ok() && self.told() == reason_number(Reason::Killed)
    }
}

/// Returns the length of a wait's first nap, and the number of naps before it searches for
/// deadlocks; the search begins up to one nap later than `detect_after`. No nap is longer than 50
/// ms, because the thread that would wake this one may be dead, or the lock's holder. None is zero,
/// because doubling would leave it zero.
pub(crate) fn first_nap(detect_after: Duration) -> (Duration, u32) {
    let detect_after = detect_after.max(Duration::from_micros(1));
    let ahead = detect_after.as_nanos().saturating_sub(1) / NAP_MAX.as_nanos();
    (detect_after.min(NAP_MAX), u32::try_from(ahead).unwrap_or(u32::MAX))
}

/// Returns the reason of a refusal.
fn why_not(why: u32) -> Reason {
    if let Error::Aborted(reason) = reason(why) { reason } else { Reason::Killed }
}

impl<M: ConstMachine> Memory<M> {
    /// Aborts an owner: its waiting request and all later ones fail. It keeps its locks until it
    /// releases them.
    pub(crate) fn kill(&self, owner: OwnerId) -> Result<(), Error> {
        let cell = self.owner_cell(owner.number())?.ok_or(Error::NoOwner(owner))?;
        if !get(&cell.state).is_live() || get(&cell.generation) != owner.generation {
            return Err(Error::NoOwner(owner));
        }
        self.abort(owner, Reason::Killed)
    }

    /// Returns the end of a nap: no later than a deadline, by the deadline's clock.
    ///
    /// The wall clock may be set back while a thread sleeps. So a deadline of that clock shortens a
    /// nap, and never lengthens one.
    pub(crate) fn nap_until(&self, nap: Duration, deadline: Option<Deadline>) -> Deadline {
        let until = self.after(nap);
        match deadline {
            Some(deadline) if deadline.clock == until.clock => {
                Deadline { at: until.at.min(deadline.at), ..until }
            }
            Some(deadline) => {
                let left = deadline.at.saturating_sub(M::now(deadline.clock));
                self.after(nap.min(Duration::from_nanos(left)))
            }
            None => until,
        }
    }

    /// Clears the abort and the report of an owner.
    pub(crate) fn clear_abort(&self, cell: &OwnerCell<M>) -> Result<(), Error> {
        put(&cell.abort, 0);
        self.drop_report(cell)
    }

    /// Aborts an owner if it still exists; never the next owner of its cell.
    pub(crate) fn abort(&self, owner: OwnerId, why: Reason) -> Result<(), Error> {
        let (index, generation) = (owner.number(), owner.generation);
        let Some(cell) = self.owner_cell(index)? else { return Ok(()) };
        let told = generation << REASON_BITS | reason_number(why);
        loop {
            // Acquire: an abort of the next owner is stored after the cell is that owner's.
            let seen = cell.abort.load(Acquire);
            if get(&cell.generation) != generation {
                return Ok(());
            }
            // Release: as in `put`.
            if cell.abort.compare_exchange(seen, told, Release, Relaxed).is_ok() {
                break;
            }
        }
        // SeqCst: see `begin_wait`.
        M::fence(SeqCst);
        let (at, partition, ticket) = cell.wait();
        if !at.is_null() && get(&cell.generation) == generation {
            self.refuse_waiting(index, at, partition, ticket, why)?;
        }
        Ok(())
    }

    /// Refuses an owner's request, if the owner is still in the same wait.
    pub(crate) fn refuse_waiting(
        &self,
        index: OwnerNumber,
        at: RequestAt<M>,
        partition: PartitionNumber,
        ticket: u32,
        why: Reason,
    ) -> Result<bool, Error> {
        let Some(cell) = self.owner_cell(index)? else { return Ok(false) };
        let latched = self.latch(partition.within(self.partitions()))?;
        // While this thread has the latch, no wait in this partition begins or ends.
        let mut refused = false;
        if cell.wait() == (at, partition, ticket) {
            let request = self.request(at)?;
            // The cell may still name a wait that a death ended, and the request's cell may hold
            // another lock.
            if get(&request.owner) == index && get(&request.state).waits() {
                latched.refuse(at, request, reason_number(why))?;
                refused = true;
            }
        }
        drop(latched);
        self.wake_all()?;
        Ok(refused)
    }
}

//! Waiting: how a request that was not granted at once ends.
//!
//! A waiter looks for a moment, then sleeps on its request's own word. The thread that grants or
//! refuses it does all book-keeping first and writes that word last, so a waiter that gives up
//! either finds its request undecided, under the latch, and withdraws it, or finds it decided and
//! accepts that.
//!
//! No sleep is longer than 50 ms: a granter may be killed before it wakes us, and the dead whose
//! locks we wait for release them only if somebody looks.

use core::cell::Cell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

use latchwork_machine::{ConstMachine, Deadline, Spin, Word};
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
/// How many naps between two searches for a deadlock, but for the first two.
pub(crate) const DETECT_EVERY: u32 = 20;
/// From this on a waiter looks for the dead, too.
pub(crate) const NAP_DEATHS: Duration = Duration::from_millis(3);

thread_local! {
    static INTERRUPT: Cell<Option<fn() -> bool>> = const { Cell::new(None) };
}

/// Sets a function that the calling thread runs after each sleep of a wait for a lock, so every
/// 50 ms at most, and as soon as a signal has interrupted the sleep. If it returns true, the wait
/// ends as at a deadline, with [`Error::TimedOut`]. For bindings of languages whose signal handlers
/// run in the waiting thread. Futures do not run it.
pub fn set_interrupt(interrupt: Option<fn() -> bool>) {
    INTERRUPT.set(interrupt);
}

fn is_interrupted() -> bool {
    INTERRUPT.get().is_some_and(|interrupt| interrupt())
}

impl<M: ConstMachine> Owner<'_, M> {
    /// Waits until the request is decided, or until a deadline.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`], [`Error::Deadlock`], [`Error::Aborted`], [`Error::Region`]. The request
    /// is withdrawn then; what was held before is held still.
    pub fn finish(&self, deadline: Option<Deadline>) -> Result<(), Error> {
        if self.pending.get().is_null() {
            return Ok(self.memory.region().check()?);
        }
        self.until_decided(deadline).unwrap_or_else(|error| self.give_up(error))
    }

    /// Withdraws a request that cannot be looked after any more, and says why; a success if it was
    /// granted meanwhile.
    pub(crate) fn give_up(&self, error: Error) -> Result<(), Error> {
        if self.pending.get().is_null() {
            // The request has ended already, and the error says how.
            return Err(error);
        }
        match self.withdraw(Outcome::Withdrawn) {
            Ok(false) => Ok(()),
            // A request that was refused meanwhile is gone, too.
            Ok(true) | Err(_) => Err(error),
        }
    }

    /// Waits; an error of its own if the wait cannot go on.
    fn until_decided(&self, deadline: Option<Deadline>) -> Result<Result<(), Error>, Error> {
        let mut spin = Spin::<M>::new(M::SPIN_NS);
        loop {
            if let Some(end) = self.poll()? {
                return Ok(end);
            }
            if !spin.again() {
                break;
            }
        }
        let word = &self.memory.request(self.pending.get())?.state;
        let (mut nap, mut ahead) = first_nap(self.memory.inner().options.detect_after);
        let (mut naps, mut again) = (0u32, false);
        let mut since = get(&self.cell.since);
        // Most waits end soon, and a look costs latches: so it waits a nap, as a rule.
        if self.may_be_awaited()? && self.waits_for_a_waiter()? {
            let looked = self.memory.now();
            again = self.memory.detect_from(self.index, since, deadline)?;
            since = if again { since } else { looked };
        }
        loop {
            // Acquire: as in `poll`.
            let state = word.load(Acquire);
            if state.waits() && !state.is_called() {
                M::wait(&word.word, state.word(), Some(self.memory.nap_until(nap, deadline)));
            }
            if let Some(end) = self.poll()? {
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

    /// Looks whether the request is decided: the outcome, or nothing if it waits still. Nothing to
    /// wait for is a success.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] if it cannot look. The outcome has errors of its own.
    pub fn poll(&self) -> Result<Option<Result<(), Error>>, Error> {
        self.memory.region().check()?;
        let at = self.pending.get();
        if at.is_null() {
            return Ok(Some(Ok(())));
        }
        self.wait_seen();
        let request = self.memory.request(at)?;
        // Acquire: synchronizes with the Release in `set`: what the last holder did is seen.
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
            // Granted in this very moment it is held, and the next request fails.
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
        // A report that cannot be read is the end, too: the request goes in any case.
        let end = self.refusal(state.why).unwrap_or_else(|error| error);
        if state.status == status::HELD {
            let latched = self.memory.latch(get(&request.partition))?;
            let object = self.memory.object(get(&request.object))?;
            latched.set(object, request, State::held(state.mode));
        } else {
            // The thread that refused it said so first and then took it out of the queue: once the
            // latch was ours, that is done.
            drop(self.memory.latch(get(&request.partition))?);
            put(&self.cell.waiting, Offset::NULL);
            self.discard(at, request)?;
        }
        // Not before: should the latch not be had, the request is in the owner's list still, and
        // this is to be called again.
        self.pending.set(Offset::NULL);
        self.wait_ended(Outcome::Refused(why_not(state.why)));
        Ok(Some(Err(end)))
    }

    /// Comes for the lock for which this waiter was called.
    #[cold]
    fn come(&self, at: RequestAt<M>, request: &Request<M>) -> Result<(), Error> {
        let latched = self.memory.latch(get(&request.partition))?;
        if get(&request.state).is_called() {
            latched.come(self.memory.object(get(&request.object))?, at, request)?;
        }
        drop(latched);
        self.memory.wake_all()
    }

    /// Withdraws the request. False if it was granted meanwhile, or if there is none: then the lock
    /// is held, once more than before the request.
    ///
    /// # Errors
    ///
    /// What the request ended with, if it was refused meanwhile; [`Error::Region`].
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

/// The low bits of the word by which an owner is told to fail say why. Above them is which owner of
/// the cell it is: what comes when that one has ended says nothing to the next. That has 30 bits,
/// 18 minutes of a million owners a second: a thread that stops between its look at the owner and
/// its store, for exactly 2^30 owners of the cell, makes another one fail, which may be run again.
const REASON_BITS: u32 = 2;

impl<M: ConstMachine> OwnerCell<M> {
    /// Why the cell's owner of this generation is to fail, as a number; zero if it is not.
    #[inline]
    pub(crate) fn told(&self, generation: u32) -> u32 {
        let word = get(&self.abort);
        let is_its = word >> REASON_BITS == generation << REASON_BITS >> REASON_BITS;
        if is_its { word & ((1 << REASON_BITS) - 1) } else { 0 }
    }
}

impl<M: ConstMachine> Owner<'_, M> {
    /// Why it is to fail, as a number; zero if it is not.
    #[inline]
    pub(crate) fn told(&self) -> u32 {
        self.cell.told(self.generation)
    }

    /// Whether a thread has called [`Session::kill`](crate::Session::kill) on this owner. An owner
    /// that requests no other lock learns of it by this alone. Reads one word of the owner's own
    /// memory; false in the child of a fork.
    #[inline]
    pub fn is_killed(&self) -> bool {
        self.memory.region().check().is_ok() && self.told() == reason_number(Reason::Killed)
    }
}

/// How long a wait's first nap is, and how many come before it looks for deadlocks, which is up to
/// one nap later than `detect_after` then. None is longer than the rest: the thread that was to
/// wake this one may be dead, or the lock's holder. None is nothing, which would stay so.
pub(crate) fn first_nap(detect_after: Duration) -> (Duration, u32) {
    let detect_after = detect_after.max(Duration::from_micros(1));
    let ahead = detect_after.as_nanos().saturating_sub(1) / NAP_MAX.as_nanos();
    (detect_after.min(NAP_MAX), u32::try_from(ahead).unwrap_or(u32::MAX))
}

/// Why a request was refused.
fn why_not(why: u32) -> Reason {
    if let Error::Aborted(reason) = reason(why) { reason } else { Reason::Killed }
}

impl<M: ConstMachine> Memory<M> {
    /// Tells an owner to fail: its wait, if it waits, and all its requests from now on. It keeps
    /// what it holds until it releases it.
    pub(crate) fn kill(&self, owner: OwnerId) -> Result<(), Error> {
        let cell = self.owner_cell(owner.number())?.ok_or(Error::NoOwner(owner))?;
        if !get(&cell.state).is_live() || get(&cell.generation) != owner.generation {
            return Err(Error::NoOwner(owner));
        }
        self.abort(owner, Reason::Killed)
    }

    /// When a nap ends: no later than a deadline, by whatever clock that is read.
    ///
    /// A deadline of the wall's clock may be set further away while somebody sleeps towards it. So
    /// it ends a nap if it is nearer now, and is no reason for a longer one.
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

    /// Forgets that an owner was told to fail, and why.
    pub(crate) fn clear_abort(&self, cell: &OwnerCell<M>) -> Result<(), Error> {
        put(&cell.abort, 0);
        self.drop_report(cell)
    }

    /// Tells an owner to fail, if it is there still: not the next one that has its cell.
    pub(crate) fn abort(&self, owner: OwnerId, why: Reason) -> Result<(), Error> {
        let (index, generation) = (owner.number(), owner.generation);
        let Some(cell) = self.owner_cell(index)? else { return Ok(()) };
        let told = generation << REASON_BITS | reason_number(why);
        loop {
            // Acquire: what the next owner is told is stored when the cell is that one's.
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

    /// Refuses an owner's request if it still waits for it, and it is that wait.
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
        // Under the latch a wait in this partition neither begins nor ends.
        let mut refused = false;
        if cell.wait() == (at, partition, ticket) {
            let request = self.request(at)?;
            // A wait that a death ended may be named still, and its cell be one that holds.
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

//! A request for a range, until it is decided. `range/claims.rs` has the rules.

use core::cell::Cell;
use core::fmt;

use latchwork_machine::{ConstMachine, Native};
use latchwork_region::Offset;

use crate::Error;
use crate::error::corrupt_list;
use crate::memory::cells::{generation_at, get};
use crate::memory::handle::Owner;
use crate::memory::latch::Latched;
use crate::options::{Step, Wait};
use crate::range::cells::{ClaimId, TICKET, is_that, no_claim, ticket};

/// A request for a range. Dropping it before it is granted withdraws it; dropping it afterwards
/// changes nothing.
///
/// While it waits, its owner can perform no other operation.
pub struct RangeRequest<'o, 's, M: ConstMachine = Native> {
    owner: &'o Owner<'s, M>,
    id: ClaimId<M>,
    wait: Wait,
    /// The conflicting claim whose ticket was requested.
    behind: Cell<ClaimId<M>>,
    /// Whether it still waits.
    open: Cell<bool>,
    /// Whether it was refused or withdrawn.
    gone: Cell<bool>,
}

impl<M: ConstMachine> fmt::Debug for RangeRequest<'_, '_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.open.get() { "waiting" } else { "decided" };
        write!(f, "{state} range request of {}", self.owner.id())
    }
}

impl<'o, 's, M: ConstMachine> RangeRequest<'o, 's, M> {
    /// Creates a request for a claim in the index whose ticket is held.
    pub(crate) fn new(owner: &'o Owner<'s, M>, id: ClaimId<M>, wait: Wait, open: bool) -> Self {
        let (behind, gone) = (Cell::new(no_claim()), Cell::new(false));
        Self { owner, id, wait, behind, open: Cell::new(open), gone }
    }

    /// Returns whether the request waits or is decided, as of the last [`poll`](Self::poll).
    pub fn step(&self) -> Step {
        if self.open.get() { Step::Waiting } else { Step::Granted }
    }

    /// Checks whether the request is decided. Returns the outcome, or `None` if it still waits.
    /// Call this instead of [`Owner::poll`], not in addition to it.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] if the request cannot be read. If the outcome is an error, the request is
    /// withdrawn, and later calls return [`Error::NotHeld`].
    pub fn poll(&self) -> Result<Option<Result<(), Error>>, Error> {
        self.owner.memory.region().check()?;
        if !self.open.get() {
            return Ok(Some(if self.gone.get() { Err(Error::NotHeld) } else { Ok(()) }));
        }
        let owner = self.owner;
        let mut last = no_claim();
        loop {
            if self.behind.get() != no_claim() {
                match owner.poll()? {
                    None => return Ok(None),
                    Some(Err(error)) => return self.refused(error).map(Some),
                    Some(Ok(())) => last = self.let_go()?,
                }
            }
            match self.look(last)? {
                Err(end) => return Ok(Some(end)),
                Ok(other) => self.behind.set(other),
            }
            let (_, wanted) = owner.memory.tickets()?;
            let ticket = self.ticket(self.behind.get());
            if let Err(error) = owner.request_ticket(&ticket, wanted, self.wait) {
                return self.refused(error).map(Some);
            }
        }
    }

    /// Blocks until the request is decided, or until its deadline, if it has one.
    ///
    /// # Errors
    ///
    /// The errors of [`Owner::lock_range`]. At an error the request is withdrawn.
    pub fn finish(self) -> Result<(), Error> {
        let deadline = if let Wait::Until(deadline) = self.wait { Some(deadline) } else { None };
        loop {
            if let Some(end) = self.poll()? {
                return end;
            }
            if let Err(error) = self.owner.finish(deadline) {
                return self.refused(error)?;
            }
        }
    }

    fn ticket(&self, id: ClaimId<M>) -> [u8; TICKET] {
        ticket(self.owner.memory.region(), id.0, id.1)
    }

    /// Releases the ticket that it waited for, and returns its claim. Returns no claim if the
    /// ticket is not held, because the wait was ended by other means.
    fn let_go(&self) -> Result<ClaimId<M>, Error> {
        let got = self.behind.replace(no_claim());
        match self.owner.unlock(&self.ticket(got)) {
            Ok(()) => Ok(got),
            Err(Error::NotHeld) => Ok(no_claim()),
            Err(error) => Err(error),
        }
    }

    /// Returns the claim that blocks the request now, or how the request ended. `last` is the claim
    /// whose ticket was obtained.
    #[allow(clippy::type_complexity, reason = "an end is the exception here")]
    fn look(&self, last: ClaimId<M>) -> Result<Result<ClaimId<M>, Result<(), Error>>, Error> {
        let memory = self.owner.memory;
        let region = memory.region();
        if !is_that(region, self.id)? {
            // Its owner released everything.
            self.open.set(false);
            self.gone.set(true);
            return Ok(Err(Err(Error::NotHeld)));
        }
        let space = get(&memory.claim(self.id.0)?.space);
        let latched = memory.latch_keyspace(space)?;
        latched.repair_keyspace(space)?;
        let mut dropped = Offset::NULL;
        loop {
            let Some(other) = latched.in_the_way(space, self.id.0, true)? else {
                self.grant(&latched)?;
                return Ok(Err(Ok(())));
            };
            let id = (other, generation_at(region, other)?);
            if id != last {
                return Ok(Ok(id));
            }
            // This owner had its ticket: a claim without an owner, which is damage, and holds
            // nothing. If it is found again, it is not where the tree has it: also damage.
            if other == dropped {
                return corrupt_list();
            }
            latched.drop_claim(space, other)?;
            dropped = other;
        }
    }

    fn grant(&self, latched: &Latched<'_, M>) -> Result<(), Error> {
        latched.grant_claim(self.id.0)?;
        self.owner.memory.point("claim granted");
        self.open.set(false);
        Ok(())
    }

    /// Handles a refused wait for a blocking claim. If all blocking claims only wait, the request
    /// precedes them.
    fn refused(&self, error: Error) -> Result<Result<(), Error>, Error> {
        self.behind.set(no_claim());
        let memory = self.owner.memory;
        if matches!(error, Error::Deadlock(_)) && is_that(memory.region(), self.id)? {
            let space = get(&memory.claim(self.id.0)?.space);
            let latched = memory.latch_keyspace(space)?;
            latched.repair_keyspace(space)?;
            if latched.in_the_way(space, self.id.0, false)?.is_none() {
                self.grant(&latched)?;
                return Ok(Ok(()));
            }
        }
        self.withdraw()?;
        Ok(Err(error))
    }

    /// Removes the claim and releases its ticket.
    fn withdraw(&self) -> Result<(), Error> {
        if !self.open.replace(false) {
            return Ok(());
        }
        self.gone.set(true);
        let (owner, memory) = (self.owner, self.owner.memory);
        if self.behind.get() != no_claim() {
            // If the ticket was granted in the meantime it is released; if it was refused, there is
            // none.
            if owner.cancel() == Ok(false) {
                self.let_go()?;
            }
            self.behind.set(no_claim());
        }
        if is_that(memory.region(), self.id)? {
            memory.remove_claim(self.id)?;
            owner.count_down();
        }
        match owner.unlock(&self.ticket(self.id)) {
            Err(Error::NotHeld) => Ok(()),
            end => end,
        }
    }
}

impl<M: ConstMachine> Drop for RangeRequest<'_, '_, M> {
    fn drop(&mut self) {
        // A claim that cannot be removed here is removed when its owner ends.
        let _ = self.withdraw();
    }
}

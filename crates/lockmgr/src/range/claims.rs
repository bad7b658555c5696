//! Locks on ranges of keys: gaps, next keys, insert intentions.
//!
//! # The index and the tickets
//!
//! Each range that an owner holds or waits for is a *claim*, in an index of its keyspace that finds
//! those with a common key (`range/tree.rs`). But nobody waits there. With each claim goes a
//! *ticket*: an ordinary object with a name of its own, which the claim's owner holds from before
//! the claim is in the index until after it is out. A request that finds a claim in the way asks
//! for its ticket, waits as one waits for any lock, and looks again. A ticket is always in the
//! table, never in its owner's own memory (`fastpath/reserved.rs`), for it is by the table that its
//! claim is found. So queues, deadlocks, wait-die and wound-wait, deaths and orphans are those of
//! all locks, and in a report of who waits for whom a range is an object like others.
//!
//! ```text
//! keyspace "orders" ── claims: [b, d) gap, owner 1      c insert, owner 2, waiting
//!                                 │                        │
//! table of objects:            ticket: held by 1        ticket: held by 2
//!                              waited for by 2
//! ```
//!
//! # The rules
//!
//! 1. A request is granted if no claim of a stranger stops its kind on a common key: no hold, and
//!    no waiting one that was there before. Families are as for other locks: what an ancestor has
//!    stops nobody.
//! 2. A waiting claim that is stopped by what its finder or the finder's ancestors hold is passed
//!    by: to wait for it would be a deadlock.
//! 3. No owner grants another's claim; each looks for itself, when it gets the ticket.
//!
//! # Why no deadlock is missed
//!
//! A claim waits for one claim at a time, though several may be in its way. So a cycle may be there
//! and not seen, while one of its owners waits for an owner that runs. That one ends its claim some
//! day, or waits itself. Of owners that wait for ever each waits for one that waits for ever: in
//! the end there is a cycle of tickets, and its last edge is searched from.
//!
//! The edges are all hard, for tickets are held; no detector moves a claim before another. But a
//! victim that stands behind waiting claims alone goes before them instead.
//!
//! # What it costs
//!
//! With n claims in a keyspace: an ordinary strong lock, two latches, O(log n) for the claim and
//! O(log n) for each claim with a common key and a kind that stops this one, up to the first that
//! is in the way. It also looks for a claim of its own of the same range: O(log n), and one more
//! for each other claim of that range. All of a keyspace is under one latch. In memory, 256 bytes
//! for a claim on keys of up to 32 bytes.

use latchwork_machine::ConstMachine;
use latchwork_region::Error as RegionError;

use crate::Error;
use crate::memory::Memory;
use crate::memory::cells::{ObjectAt, OwnerCell, Request, RequestAt, get, put};
use crate::memory::handle::Owner;
use crate::memory::names::Name;
use crate::memory::numbers::OwnerNumber;
use crate::mode::{Mode, Modes};
use crate::range::cells::{ClaimId, KEYSPACE_MAX, Short, TICKET, claim, of_ticket};
use crate::range::keyspaces::what;
use crate::range::kinds::RangeKind;

/// The modes in which tickets are held and waited for: such that many can wait at once, if the set
/// has two of that kind.
pub(crate) fn tickets(modes: &Modes) -> Option<(Mode, Mode)> {
    let strong = || modes.each().filter(|mode| !modes.is_weak(*mode));
    let pairs = || strong().flat_map(|held| modes.each().map(move |wanted| (held, wanted)));
    let fits = |pair: &(Mode, Mode)| modes.conflicts(pair.0, pair.1);
    let shared = |pair: &(Mode, Mode)| fits(pair) && !modes.conflicts(pair.1, pair.1);
    let quiet = |pair: &(Mode, Mode)| shared(pair) && !modes.is_weak(pair.1);
    pairs().find(quiet).or_else(|| pairs().find(shared)).or_else(|| pairs().find(fits))
}

impl<M: ConstMachine> Owner<'_, M> {
    pub(crate) fn count_down(&self) {
        put(&self.cell.ranges, get(&self.cell.ranges).saturating_sub(1));
    }

    /// Makes the claim behind a request another owner's, if there is one. The request follows: so
    /// an owner that gets the ticket in between is told whose the claim is.
    pub(crate) fn hand_over_range<'o>(
        &'o self,
        at: RequestAt<M>,
        to: &'o Owner<'_, M>,
    ) -> Result<HandedOver<'o, M>, Error> {
        let (memory, ticket) = (self.memory, get(&self.memory.request(at)?.object));
        let none = HandedOver { memory, claim: None, ticket, giver: self.index, to: to.cell };
        let Some(id) = memory.claim_of(self.cell, at)? else { return Ok(none) };
        let it = memory.claim(id.0)?;
        let latched = memory.latch_keyspace(get(&it.space))?;
        // This one's count stays too high until all are handed over: after a death both look.
        put(&to.cell.ranges, get(&to.cell.ranges) + 1);
        put(&it.owner, to.index);
        drop(latched);
        memory.point("claim handed over");
        Ok(HandedOver { claim: Some(it), ..none })
    }
}

/// A claim that was handed over, whose ticket is to follow. If this is dropped before, by an error
/// or a callback that panics, it is its giver's again.
pub(crate) struct HandedOver<'s, M: ConstMachine> {
    memory: &'s Memory<M>,
    claim: Option<&'s Short<M>>,
    ticket: ObjectAt<M>,
    giver: OwnerNumber,
    to: &'s OwnerCell<M>,
}

impl<M: ConstMachine> HandedOver<'_, M> {
    /// The ticket has followed.
    pub(crate) fn stays(self) {
        core::mem::forget(self);
    }
}

impl<M: ConstMachine> Drop for HandedOver<'_, M> {
    fn drop(&mut self) {
        let Some(claim) = self.claim else { return };
        let memory = self.memory;
        // The giver and the other are this thread's: no latch is needed to see what they hold.
        let is_ticket = |at: &RequestAt<M>| {
            let request = memory.request(*at);
            request.is_ok_and(|it| get(&it.object) == self.ticket && get(&it.state).holds())
        };
        if memory.own_list(self.to).is_ok_and(|list| list.iter().any(is_ticket)) {
            return;
        }
        // Without the latch of its keyspace, which may be what could not be had. The giver has the
        // ticket still, so that the claim stays what it is; and those that look at it meanwhile are
        // told of one of the two, both of which are there.
        put(&claim.owner, self.giver);
        put(&self.to.ranges, get(&self.to.ranges).saturating_sub(1));
    }
}

impl<M: ConstMachine> Memory<M> {
    pub(crate) fn tickets(&self) -> Result<(Mode, Mode), Error> {
        self.inner().tickets.ok_or(Error::Mode(Mode(0)))
    }

    pub(crate) fn keyspace_named<'n>(&self, bytes: &'n [u8]) -> Result<Name<'n>, Error> {
        if bytes.is_empty() || bytes.len() > KEYSPACE_MAX {
            return Err(Error::Keyspace(bytes.len()));
        }
        self.named(bytes)
    }

    /// The claim behind an owner's request, if the request holds a ticket.
    pub(crate) fn claim_of(
        &self,
        cell: &OwnerCell<M>,
        at: RequestAt<M>,
    ) -> Result<Option<ClaimId<M>>, Error> {
        if get(&cell.ranges) == 0 {
            return Ok(None);
        }
        let request = self.request(at)?;
        if !self.has_as_owner(request) {
            return Ok(None);
        }
        Ok(self.ticket_of(request)?.and_then(|(id, is_there)| is_there.then_some(id)))
    }

    /// Whether a request is held in the mode in which a claim's owner has its ticket.
    fn has_as_owner(&self, request: &Request<M>) -> bool {
        let state = get(&request.state);
        state.holds() && self.inner().tickets.is_some_and(|(held, _)| held == state.mode)
    }

    /// The claim of whose ticket a request is, and whether it is there still.
    fn ticket_of(&self, request: &Request<M>) -> Result<Option<(ClaimId<M>, bool)>, Error> {
        let object = get(&request.object);
        if self.object(object)?.name_length() != TICKET {
            return Ok(None);
        }
        let Some(id) = of_ticket(self.region(), &self.name_of(object)?) else { return Ok(None) };
        match self.region().lent(id.0) {
            // A name that a user has made, to look like a ticket's.
            Err(RegionError::OutOfRange(_) | RegionError::Corrupt { .. }) => Ok(None),
            lent => Ok(Some((id, lent? == Some(id.1)))),
        }
    }

    /// What the claim behind an owner's request says, if there is one.
    #[inline]
    pub(crate) fn kind_of(
        &self,
        cell: &OwnerCell<M>,
        at: RequestAt<M>,
    ) -> Result<Option<RangeKind>, Error> {
        if get(&cell.ranges) == 0 {
            return Ok(None);
        }
        match self.claim_of(cell, at)? {
            Some(id) => Ok(Some(what(self.claim(id.0)?)?.0)),
            None => Ok(None),
        }
    }

    /// Takes out the claim behind an owner's request, which is about to be released.
    #[inline]
    pub(crate) fn forget_range(&self, cell: &OwnerCell<M>, at: RequestAt<M>) -> Result<(), Error> {
        if get(&cell.ranges) == 0 {
            return Ok(());
        }
        if let Some(id) = self.claim_of(cell, at)? {
            if self.is_handed_over(self.request(at)?, id)? {
                return Ok(());
            }
            self.remove_claim(id)?;
            put(&cell.ranges, get(&cell.ranges).saturating_sub(1));
        }
        Ok(())
    }

    /// Whether a claim was handed over, with its ticket, by an owner that died before it let go of
    /// its own request of that.
    pub(crate) fn is_handed_over(
        &self,
        request: &Request<M>,
        id: ClaimId<M>,
    ) -> Result<bool, Error> {
        let (mine, other) = (get(&request.owner), get(&self.claim(id.0)?.owner));
        if mine == other {
            return Ok(false);
        }
        let latched = self.latch(get(&request.partition).within(self.partitions()))?;
        for each in latched.requests(self.object(get(&request.object))?) {
            let (_, each, state) = each?;
            if get(&each.owner) == other && state.holds() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a request that is held is of a ticket that is no lock of its owner's: of a claim
    /// that is gone, or of its own that waits, or was not yet in its index.
    pub(crate) fn is_idle_ticket(&self, request: &Request<M>) -> Result<bool, Error> {
        let Some((id, is_there)) = self.ticket_of(request)? else { return Ok(false) };
        if !is_there {
            return Ok(true);
        }
        // What is no claim is that of a name made by intent, too.
        let is_held = what(self.claim(id.0)?).map_or(true, |it| it.1 == claim::HELD);
        Ok(self.has_as_owner(request) && !is_held)
    }

    /// Claims, held or waited for.
    pub(crate) fn count_ranges(&self) -> Result<u64, Error> {
        let Some(known) = self.keyspaces()? else { return Ok(0) };
        let has = |chain: u32| !get(&known.heads[chain as usize]).is_null();
        let mut count = 0;
        for number in self.blocks.each().filter(|at| self.blocks.chains(*at).any(has)) {
            let latched = self.latch(number)?;
            let spaces = latched.each_keyspace()?.len();
            count += (latched.all_of_ranges()?.len() - spaces) as u64;
        }
        Ok(count)
    }
}

//! Locks on ranges of keys: gaps, next keys, insert intentions.
//!
//! # The index and the tickets
//!
//! Each range that an owner holds or waits for is a *claim*, in an index of its keyspace that finds
//! claims with a common key (`range/tree.rs`). No thread waits in the index. Each claim has a
//! *ticket*: an ordinary object with a name of its own, which the claim's owner locks before the
//! claim enters the index and unlocks after the claim has left it. A request that finds a
//! conflicting claim requests that claim's ticket, waits as for any lock, and searches again. A
//! ticket is always in the table, never in its owner's own memory (`fastpath/reserved.rs`), because
//! its claim is found through the table. So queues, deadlocks, wait-die and wound-wait, deaths and
//! orphans of ranges are those of other locks, and a report of waiters shows a range like any
//! object.
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
//! 1. A request is granted if no claim of another family blocks its kind on a common key: neither a
//!    held claim, nor an earlier waiting one. As for other locks, an ancestor's claim does not
//!    block.
//! 2. A waiting claim that is blocked by a claim of the requester or its ancestors is ignored:
//!    waiting for it would be a deadlock.
//! 3. No owner grants another owner's claim; each searches again when it gets the ticket.
//!
//! # Why every deadlock is found
//!
//! A claim waits for one claim at a time, although several may conflict with it. So a cycle may
//! exist and not be visible, while one of its owners waits for an owner that runs. That owner
//! eventually releases its claim or waits itself. If owners wait forever, each of them waits for
//! another such owner, so a cycle of tickets finally exists, and the search begins at its last
//! edge.
//!
//! All edges are hard, because tickets are held; the detector never moves a claim before another.
//! But a victim that is blocked only by waiting claims precedes them instead.
//!
//! # Cost
//!
//! With n claims in a keyspace: an ordinary strong lock, two latches, O(log n) for the claim, and
//! O(log n) for each claim with a common key and a conflicting kind, up to the first blocking one.
//! A search for an own claim of the same range costs O(log n), and one step for each other claim of
//! that range. One latch guards a keyspace. Memory: 256 bytes for a claim on keys of up to 32
//! bytes.

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

/// Returns the modes in which tickets are held and waited for. Prefers modes with which many owners
/// can wait at once, if the set has such a pair.
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

    /// Gives the claim of a request, if any, to another owner. The ticket follows later; an owner
    /// that gets the ticket in between finds the new owner of the claim.
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
        // This owner's count stays too high until all claims are handed over: after a death both
        // owners are inspected.
        put(&to.cell.ranges, get(&to.cell.ranges) + 1);
        put(&it.owner, to.index);
        drop(latched);
        memory.point("claim handed over");
        Ok(HandedOver { claim: Some(it), ..none })
    }
}

/// A claim that was handed over and whose ticket must follow. Dropping it earlier, by an error or a
/// panic of a callback, returns the claim to its giver.
pub(crate) struct HandedOver<'s, M: ConstMachine> {
    memory: &'s Memory<M>,
    claim: Option<&'s Short<M>>,
    ticket: ObjectAt<M>,
    giver: OwnerNumber,
    to: &'s OwnerCell<M>,
}

impl<M: ConstMachine> HandedOver<'_, M> {
    /// Completes the handover, after the ticket has followed.
    pub(crate) fn stays(self) {
        core::mem::forget(self);
    }
}

impl<M: ConstMachine> Drop for HandedOver<'_, M> {
    fn drop(&mut self) {
        let Some(claim) = self.claim else { return };
        let memory = self.memory;
        // Both owners belong to this thread: reading what they hold needs no latch.
        let is_ticket = |at: &RequestAt<M>| {
            let request = memory.request(*at);
            request.is_ok_and(|it| get(&it.object) == self.ticket && get(&it.state).holds())
        };
        if memory.own_list(self.to).is_ok_and(|list| list.iter().any(is_ticket)) {
            return;
        }
        // Without the latch of its keyspace, because taking that may be what failed. The giver
        // still has the ticket, so the claim stays valid, and a thread that reads it now finds
        // one of the two owners; both exist.
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

    /// Returns the claim of an owner's request, if the request holds a ticket.
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

    /// Returns whether a request is held in the mode in which a claim's owner has its ticket.
    fn has_as_owner(&self, request: &Request<M>) -> bool {
        let state = get(&request.state);
        state.holds() && self.inner().tickets.is_some_and(|(held, _)| held == state.mode)
    }

    /// Returns the claim of a ticket's request, and whether it still exists.
    fn ticket_of(&self, request: &Request<M>) -> Result<Option<(ClaimId<M>, bool)>, Error> {
        let object = get(&request.object);
        if self.object(object)?.name_length() != TICKET {
            return Ok(None);
        }
        let Some(id) = of_ticket(self.region(), &self.name_of(object)?) else { return Ok(None) };
        match self.region().lent(id.0) {
            // The name of a user's lock that imitates a ticket's name.
            Err(RegionError::OutOfRange(_) | RegionError::Corrupt { .. }) => Ok(None),
            lent => Ok(Some((id, lent? == Some(id.1)))),
        }
    }

    /// Returns the kind of the claim of an owner's request, if any.
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

    /// Removes the claim of an owner's request that is about to be released.
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

    /// Returns whether a claim was handed over, with its ticket, by an owner that died before it
    /// released its own request of the ticket.
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

    /// Returns whether a held request of a ticket stands for no lock of its owner: the claim has
    /// ended, is the owner's own and waits, or was not yet in the index.
    pub(crate) fn is_idle_ticket(&self, request: &Request<M>) -> Result<bool, Error> {
        let Some((id, is_there)) = self.ticket_of(request)? else { return Ok(false) };
        if !is_there {
            return Ok(true);
        }
        // A cell that is no claim belongs to a name that imitates a ticket's.
        let is_held = what(self.claim(id.0)?).map_or(true, |it| it.1 == claim::HELD);
        Ok(self.has_as_owner(request) && !is_held)
    }

    /// Returns the number of claims, held and waited for.
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

//! Granting: which requests of an object may hold the lock, and which owners block a request.
//!
//! 1. A request is granted if no *other* owner holds a mode that conflicts with it. A lock of an
//!    ancestor does not conflict.
//! 2. A conversion considers holders only: it precedes all requests that hold nothing.
//! 3. A new request also stays behind every earlier waiter, converting or not, whose mode clashes
//!    with its own, so that no waiter starves. Exception: if a lock of the requester's ancestors
//!    blocks that waiter, the requester would wait forever behind it, so it precedes the waiter.
//! 4. The thread that releases decides for all waiters, front to back, and updates their requests.
//!    It wakes them after it has opened the latch.
//! 5. If [barging](crate::Options::barge_for) is allowed, the next waiter may only be *called*:
//!    other requests precede it, contrary to rule 3, until it runs and requests the lock by rules 1
//!    to 3. It keeps its place, so the same waiter is called again. A waiter that has waited for
//!    the limit is granted the lock by rule 4.

use latchwork_machine::{ConstMachine, Level};
use latchwork_region::Offset;

use crate::Error;
use crate::error::corrupt_list;
use crate::memory::cells::{OwnerCell, Request, RequestAt, Small, get, put};
use crate::memory::latch::Latched;
use crate::memory::masks::Masks;
use crate::memory::numbers::OwnerNumber;
use crate::memory::state::{CALLED, State, status};
use crate::mode::Mode;
use crate::table::queues::Listed;

/// An owner that blocks a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocker {
    pub(crate) owner: OwnerNumber,
    /// Whether it holds the lock, rather than merely waiting before the request.
    pub(crate) hard: bool,
}

impl<M: ConstMachine> Latched<'_, M> {
    /// Returns whether `owner` is `of` or one of its ancestors.
    pub(crate) fn is_kin(&self, owner: OwnerNumber, of: OwnerNumber) -> Result<bool, Error> {
        let mut at = of;
        for _ in 0..1000 {
            if at == owner {
                return Ok(true);
            }
            match self.parent_of(at)? {
                None => return Ok(false),
                Some(parent) => at = parent,
            }
        }
        Ok(false)
    }

    /// Returns an owner's parent. An owner that is kept for recovery may outlive its parent: then
    /// the parent's cell may have another owner now.
    fn parent_of(&self, owner: OwnerNumber) -> Result<Option<OwnerNumber>, Error> {
        let Some(cell) = self.memory.owner_cell(owner)? else { return Ok(None) };
        let Some(parent) = get(&cell.parent) else { return Ok(None) };
        let same = |it: &OwnerCell<M>| get(&it.generation) == get(&cell.parent_generation);
        Ok(self.memory.owner_cell(parent)?.is_some_and(same).then_some(parent))
    }

    /// Returns the first holder that blocks a request of `owner` for `want`. Makes the mask of held
    /// modes exact if there is none.
    #[inline(always)]
    pub(crate) fn stopped(
        &self,
        object: &Small<M>,
        owner: OwnerNumber,
        want: Mode,
    ) -> Result<Option<OwnerNumber>, Error> {
        let stops = self.memory.modes().stopped_by(want);
        if get(&object.masks).held & stops == 0 {
            return Ok(None);
        }
        self.stopped_by(object, owner, stops)
    }

    #[inline(never)]
    fn stopped_by(
        &self,
        object: &Small<M>,
        owner: OwnerNumber,
        stops: u16,
    ) -> Result<Option<OwnerNumber>, Error> {
        // A queue may be long, and usually no holder is in it.
        let (first, scattered) = (get(&object.first), object.is_scattered());
        let (mut exact, mut in_queue, mut behind) = (0, false, false);
        for each in self.requests(object) {
            let (at, request, state) = each?;
            in_queue |= at == first;
            if in_queue && !scattered {
                break;
            }
            if !state.holds() {
                continue;
            }
            behind |= in_queue;
            exact |= state.mode.bit();
            let other = get(&request.owner);
            if state.mode.bit() & stops != 0 && !self.is_kin(other, owner)? {
                return Ok(Some(other));
            }
        }
        put(&object.masks, Masks { held: exact, ..get(&object.masks) });
        if scattered && !behind {
            object.scatter(false);
        }
        Ok(None)
    }

    /// Returns the modes that an owner and its ancestors hold, or zero without ancestors. An owner
    /// never queues behind a waiter that such a lock blocks.
    fn held_by_kin(&self, object: &Small<M>, owner: OwnerNumber) -> Result<u16, Error> {
        let mut held = 0;
        if self.parent_of(owner)?.is_none() {
            return Ok(held);
        }
        for each in self.requests(object) {
            let (_, request, state) = each?;
            if state.holds() && self.is_kin(get(&request.owner), owner)? {
                held |= state.mode.bit();
            }
        }
        Ok(held)
    }

    /// Returns the waiter that a new request must stay behind, and the waiter that it must precede.
    #[inline(always)]
    pub(crate) fn behind(
        &self,
        object: &Small<M>,
        owner: OwnerNumber,
        want: Mode,
    ) -> Result<(Option<OwnerNumber>, RequestAt<M>), Error> {
        let clash = self.memory.modes().clash(want);
        if get(&object.masks).waited & clash == 0 {
            return Ok((None, Offset::NULL));
        }
        self.behind_among(object, owner, clash, self.is_alone(want))
    }

    #[inline(never)]
    fn behind_among(
        &self,
        object: &Small<M>,
        owner: OwnerNumber,
        clash: u16,
        may_barge: bool,
    ) -> Result<(Option<OwnerNumber>, RequestAt<M>), Error> {
        let (mut exact, mut before, mut blocker) = (0, Offset::NULL, None);
        let families = self.memory.inner().has_families()?;
        let kin = if families { self.held_by_kin(object, owner)? } else { 0 };
        let converting = object.conversions() != 0;
        let from = if converting { get(&object.head) } else { get(&object.first) };
        for each in self.requests_from(from) {
            let (at, request, state) = each?;
            if !state.waits() {
                continue;
            }
            exact |= state.want.bit();
            if state.want.bit() & clash == 0 || !before.is_null() {
                continue;
            }
            if state.is_called() && may_barge {
                return Ok((None, Offset::NULL));
            }
            if !families {
                // The first one decides, and the mask stays as it is: a new request reads only the
                // head of the queue.
                return Ok((Some(get(&request.owner)), Offset::NULL));
            }
            if self.memory.modes().stopped_by(state.want) & kin != 0 {
                // Conversions are in no order; rule 2 lets them precede anyway.
                before = if state.status == status::WAITING { at } else { before };
            } else {
                blocker = blocker.or(Some(get(&request.owner)));
            }
        }
        put(&object.masks, Masks { waited: exact, ..get(&object.masks) });
        Ok((blocker, before))
    }

    /// Grants the requests that can be granted, by the rules above. Called after every release.
    #[inline]
    pub(crate) fn advance(&self, object: &Small<M>) -> Result<(), Error> {
        if get(&object.first).is_null() && object.conversions() == 0 {
            return Ok(());
        }
        self.advance_slow(object, Offset::NULL)
    }

    /// Grants a called waiter its lock if it is still next. Otherwise the waiter continues to wait.
    #[cold]
    pub(crate) fn come(
        &self,
        object: &Small<M>,
        at: RequestAt<M>,
        request: &Request<M>,
    ) -> Result<(), Error> {
        self.advance_slow(object, at)?;
        self.memory.to_wake.borrow_mut().retain(|woken| *woken != at);
        let state = get(&request.state);
        if state.is_called() {
            self.set(object, request, State { why: 0, ..state });
        }
        Ok(())
    }

    /// Returns whether a mode conflicts with itself, so that only one owner at a time holds it.
    fn is_alone(&self, mode: Mode) -> bool {
        self.memory.modes().clash(mode) & mode.bit() != 0
    }

    /// Calls the next waiter if calling is sufficient. Returns false if the waiter must be granted
    /// the lock.
    fn calls(
        &self,
        object: &Small<M>,
        at: RequestAt<M>,
        request: &Request<M>,
        state: State,
    ) -> Result<bool, Error> {
        let limit = self.memory.inner().options.barge_for.as_nanos() as u64;
        if limit == 0 || self.memory.in_turn.get() || !self.is_alone(state.want) {
            return Ok(false);
        }
        let Some(owner) = self.memory.owner_cell(get(&request.owner))? else { return Ok(false) };
        if self.memory.now().saturating_sub(get(&owner.since)) >= limit {
            return Ok(false);
        }
        if !state.is_called() {
            self.set(object, request, State { why: CALLED, ..state });
            self.memory.to_wake.borrow_mut().push(at);
            self.wake_ahead(get(&request.next))?;
        }
        Ok(true)
    }

    /// Wakes the waiter behind one that was granted the lock or called, so that it is awake when
    /// its own turn comes. Not on machines with one cache: there the holder needs the processor.
    fn wake_ahead(&self, at: RequestAt<M>) -> Result<(), Error> {
        if !at.is_null()
            && M::spread(Level::Cache)
            && get(&self.memory.request(at)?.state).status == status::WAITING
        {
            self.memory.to_wake.borrow_mut().push(at);
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn advance_slow(&self, object: &Small<M>, come: RequestAt<M>) -> Result<(), Error> {
        let modes = self.memory.modes();
        let families = self.memory.inner().has_families()?;
        let mut blocked = 0u16;
        if object.conversions() != 0 {
            for (_, (at, request, state)) in self.converting(object)? {
                if self.stopped(object, get(&request.owner), state.want)?.is_none() {
                    self.grant(object, at, request, state)?;
                } else {
                    blocked |= state.want.bit();
                }
            }
        }
        let (mut first, mut denied, mut exact) = (Offset::NULL, 0u16, blocked);
        let mut granted = false;
        for each in self.requests_from(get(&object.first)) {
            let (at, request, state) = each?;
            if state.status != status::WAITING {
                continue;
            }
            let owner = get(&request.owner);
            let behind = modes.clash(state.want) & blocked != 0
                && self.still_behind(object, at, owner, state.want)?;
            if !behind
                && self.stopped(object, owner, state.want)?.is_none()
                && (at == come || families || !self.calls(object, at, request, state)?)
            {
                self.grant(object, at, request, state)?;
                granted = true;
                // Before the next call of `stopped`, which relies on it.
                match first.is_null() {
                    true => put(&object.first, get(&request.next)),
                    false => object.scatter(true),
                }
                continue;
            }
            if first.is_null() {
                first = at;
                if granted {
                    self.wake_ahead(at)?;
                }
            }
            blocked |= state.want.bit();
            denied |= state.want.bit();
            exact |= state.want.bit();
            // A mode that blocks one waiter blocks all waiters for the same mode, as does an
            // earlier waiter that clashes. Once every mode that is waited for is blocked, the rest
            // stays. Waiters with ancestors are the exception: they may pass, and no other thread
            // would grant them.
            let wanted = get(&object.masks).waited;
            let stays = |m: Mode| modes.clash(m) & blocked | m.bit() & denied != 0;
            if !families && modes.each().all(|m| wanted & m.bit() == 0 || stays(m)) {
                put(&object.first, first);
                return Ok(());
            }
        }
        put(&object.first, first);
        // All waiters were read: a mode without waiters no longer makes releasers read the queue.
        put(&object.masks, Masks { waited: exact, ..get(&object.masks) });
        Ok(())
    }

    /// Returns the conversions that wait, in the order of their positions.
    fn converting<'a>(&'a self, object: &Small<M>) -> Result<Vec<(u32, Listed<'a, M>)>, Error> {
        let mut found = Vec::new();
        for each in self.requests(object) {
            let each = each?;
            if each.2.status == status::CONVERTING {
                let owner = self.memory.owner_cell(get(&each.1.owner))?;
                found.push((owner.map_or(0, |cell| get(&cell.position)), each));
            }
        }
        found.sort_by_key(|(turn, _)| *turn);
        Ok(found)
    }

    /// Begins a conversion, behind the other conversions of the object.
    pub(crate) fn begin_conversion(
        &self,
        object: &Small<M>,
        request: &Request<M>,
        waiting: State,
    ) -> Result<(), Error> {
        let mut turn = 1;
        if object.conversions() != 0 {
            let last = self.converting(object)?.last().map_or(0, |last| last.0);
            turn = last.saturating_add(1);
        }
        if let Some(cell) = self.memory.owner_cell(get(&request.owner))? {
            put(&cell.position, turn);
        }
        self.set(object, request, waiting);
        Ok(())
    }

    /// Returns whether an earlier waiter still blocks this one.
    fn still_behind(
        &self,
        object: &Small<M>,
        me: RequestAt<M>,
        owner: OwnerNumber,
        want: Mode,
    ) -> Result<bool, Error> {
        let kin = self.held_by_kin(object, owner)?;
        if kin == 0 {
            return Ok(true);
        }
        let modes = self.memory.modes();
        let clash = modes.clash(want);
        for each in self.requests(object) {
            let (at, _, state) = each?;
            if at == me {
                break;
            }
            let clashes = state.waits() && state.want.bit() & clash != 0;
            if clashes && modes.stopped_by(state.want) & kin == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Grants a waiting request, and adds it to the wake list.
    fn grant(
        &self,
        object: &Small<M>,
        at: RequestAt<M>,
        request: &Request<M>,
        state: State,
    ) -> Result<(), Error> {
        if let Some(cell) = self.memory.owner_cell(get(&request.owner))? {
            put(&cell.waiting, Offset::NULL);
        }
        self.memory.point("about to grant");
        self.set(object, request, State::held(state.want));
        self.memory.to_wake.borrow_mut().push(at);
        Ok(())
    }

    /// Refuses a waiting request. A conversion keeps the mode that it held; another request leaves
    /// the queue. Adds the request to the wake list; its owner frees it.
    pub(crate) fn refuse(
        &self,
        at: RequestAt<M>,
        request: &Request<M>,
        why: u32,
    ) -> Result<(), Error> {
        if get(&request.partition) != self.number {
            // The caller found the request by another partition: this latch does not guard its
            // queue.
            return corrupt_list();
        }
        let object_at = get(&request.object);
        let object = self.memory.object(object_at)?;
        let state = get(&request.state);
        if let Some(cell) = self.memory.owner_cell(get(&request.owner))? {
            put(&cell.waiting, Offset::NULL);
        }
        if state.status == status::CONVERTING {
            self.set(object, request, State { why, ..State::held(state.mode) });
        } else {
            self.unlink(object, at, request, State { status: status::DENIED, why, ..state })?;
        }
        self.memory.to_wake.borrow_mut().push(at);
        self.advance(object)?;
        if get(&object.head).is_null() {
            self.retire(object_at, object)?;
        }
        Ok(())
    }

    /// Returns all owners that block a waiting request.
    pub(crate) fn blockers(
        &self,
        object: &Small<M>,
        me: RequestAt<M>,
        owner: OwnerNumber,
        state: State,
    ) -> Result<Vec<Blocker>, Error> {
        let modes = self.memory.modes();
        let (stops, clash) = (modes.stopped_by(state.want), modes.clash(state.want));
        let kin = self.held_by_kin(object, owner)?;
        let mut found = Vec::new();
        let mut before = true;
        for each in self.requests(object) {
            let (at, request, other) = each?;
            before &= at != me;
            let who = get(&request.owner);
            if at == me || who == owner {
                continue;
            }
            if other.holds() && other.mode.bit() & stops != 0 && !self.is_kin(who, owner)? {
                found.push(Blocker { owner: who, hard: true });
                continue;
            }
            let earlier = state.status == status::WAITING
                && (other.status == status::CONVERTING
                    || (before && other.status == status::WAITING));
            if earlier && other.want.bit() & clash != 0 && modes.stopped_by(other.want) & kin == 0 {
                found.push(Blocker { owner: who, hard: false });
            }
        }
        Ok(found)
    }
    /// Removes a request from its queue, and grants the requests that it blocked.
    #[inline]
    pub(crate) fn release(&self, at: RequestAt<M>, request: &Request<M>) -> Result<(), Error> {
        let object_at = get(&request.object);
        let object = self.memory.object(object_at)?;
        let state = get(&request.state);
        if state.status == status::HELD && get(&object.head) == at && get(&request.next).is_null() {
            self.unlink_only(object, request, state);
            return self.retire(object_at, object);
        }
        self.unlink(object, at, request, State { status: status::NEW, ..state })?;
        self.advance(object)?;
        if get(&object.head).is_null() {
            self.retire(object_at, object)?;
        }
        Ok(())
    }
}

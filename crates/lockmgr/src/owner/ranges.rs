//! Locking and releasing ranges of keys. `range/claims.rs` has the rules.

use latchwork_machine::ConstMachine;
use latchwork_region::Offset;

use crate::Error;
use crate::memory::cells::{generation_at, get, put};
use crate::memory::handle::Owner;
use crate::memory::latch::Latched;
use crate::memory::names::Name;
use crate::mode::Mode;
use crate::options::{Step, Wait};
use crate::owner::range_request::RangeRequest;
use crate::range::cells::{ClaimAt, ClaimId, Keys, NewClaim, OwnKeys, claim, no_claim, ticket};
use crate::range::keyspaces::what;
use crate::range::kinds::{KeyRange, RangeKind, Span};

impl<'s, M: ConstMachine> Owner<'s, M> {
    /// Locks a range of keys of a keyspace, waiting as `wait` says. The same range in the same kind
    /// is counted. Any other range is a separate lock, even if a held one covers it.
    ///
    /// [`release_all`](Self::release_all) and [`roll_back_to`](Self::roll_back_to) release it like
    /// other locks, [`release_reads`](Self::release_reads) does if its kind does not write, and
    /// [`Child::inherit`](crate::Child::inherit) transfers it. It counts as one lock of its owner,
    /// and as two while it waits.
    ///
    /// # Errors
    ///
    /// [`Error::Keyspace`], [`Error::Key`], [`Error::EmptyRange`]; [`Error::Mode`] if no two modes
    /// of the manager's set conflict; the errors of [`lock_with`](Self::lock_with).
    pub fn lock_range(
        &self,
        keyspace: &[u8],
        range: KeyRange<'_>,
        kind: RangeKind,
        wait: Wait,
    ) -> Result<(), Error> {
        self.request_range(keyspace, range, kind, wait)?.finish()
    }

    /// Requests a lock on a range, as [`lock_range`](Self::lock_range) does, without waiting for
    /// it.
    ///
    /// # Errors
    ///
    /// The errors of [`lock_range`](Self::lock_range), except for deadlocks and timeouts, which the
    /// returned request reports.
    pub fn request_range<'o>(
        &'o self,
        keyspace: &[u8],
        range: KeyRange<'_>,
        kind: RangeKind,
        wait: Wait,
    ) -> Result<RangeRequest<'o, 's, M>, Error> {
        self.request_span(keyspace, &Span::of(range)?, kind, wait)
    }

    pub(crate) fn request_span<'o>(
        &'o self,
        keyspace: &[u8],
        span: &Span,
        kind: RangeKind,
        wait: Wait,
    ) -> Result<RangeRequest<'o, 's, M>, Error> {
        self.ready()?;
        let memory = self.memory;
        let (held, _) = memory.tickets()?;
        let name = memory.keyspace_named(keyspace)?;
        memory.with_room(|| self.claim_range(&name, span, kind, (held, wait)))
    }

    fn claim_range<'o>(
        &'o self,
        name: &Name<'_>,
        span: &Span,
        kind: RangeKind,
        (held, wait): (Mode, Wait),
    ) -> Result<RangeRequest<'o, 's, M>, Error> {
        let memory = self.memory;
        if get(&self.cell.ranges) != 0 && self.take_again(name, span, kind)? {
            return Ok(RangeRequest::new(self, no_claim(), wait, false));
        }
        let new = memory.new_claim(self.index, span, kind)?;
        let id = (new.at, new.generation);
        put(&self.cell.ranges, get(&self.cell.ranges) + 1);
        let own = ticket(memory.region(), id.0, id.1);
        let taken = self.request_ticket(&own, held, Wait::Never).and_then(|_| {
            memory.point("ticket taken");
            let staked = self.stake(name, new, matches!(wait, Wait::Never));
            if staked.is_err() {
                self.unlock(&own)?;
            }
            staked
        });
        let granted = taken.inspect_err(|_| self.count_down())?;
        let request = RangeRequest::new(self, id, wait, !granted);
        match request.poll()? {
            Some(end) => end.map(|()| request),
            None => Ok(request),
        }
    }

    /// Requests a ticket, always in the table. The thread that releases an owner's locks finds its
    /// claims through the tickets in the owner's list; a ticket in the owner's own memory, such as
    /// a reserved lock, would leave its claim behind.
    pub(crate) fn request_ticket(
        &self,
        ticket: &[u8],
        mode: Mode,
        wait: Wait,
    ) -> Result<Step, Error> {
        self.ready()?;
        self.allowed(mode)?;
        let name = self.memory.named(ticket)?;
        self.memory.counters.request();
        self.request_in_table(&name, self.memory.spot(name.hash), mode, wait)
    }

    /// Releases a range once, by the same range and kind; the last release frees it. A range that
    /// was locked 2^32 - 1 times, 72 minutes at a million a second, stays held until all locks are
    /// released.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`], [`Error::Waiting`]; [`Error::Keyspace`], [`Error::Key`],
    /// [`Error::EmptyRange`], [`Error::Region`].
    pub fn unlock_range(
        &self,
        keyspace: &[u8],
        range: KeyRange<'_>,
        kind: RangeKind,
    ) -> Result<(), Error> {
        self.unlock_span(keyspace, &Span::of(range)?, kind)
    }

    pub(crate) fn unlock_span(
        &self,
        keyspace: &[u8],
        span: &Span,
        kind: RangeKind,
    ) -> Result<(), Error> {
        self.at_rest()?;
        let memory = self.memory;
        let (name, keys) = (memory.keyspace_named(keyspace)?, OwnKeys::of(span));
        let latched = memory.latch(memory.spot(name.hash).partition)?;
        let at = self.same(&latched, &name, keys.keys(), kind)?;
        if at.is_null() {
            return Err(Error::NotHeld);
        }
        let it = memory.claim(at)?;
        let count = get(&it.count);
        if count == u32::MAX {
            return Ok(());
        }
        if count > 1 {
            put(&it.count, count - 1);
            return Ok(());
        }
        let region = memory.region();
        let own = ticket(region, at, generation_at(region, at)?);
        latched.drop_claim(get(&it.space), at)?;
        drop(latched);
        memory.point("claim given back");
        self.count_down();
        self.unlock(&own)
    }

    /// Returns how often the owner locked this range in this kind, or `None` if it does not hold
    /// it.
    ///
    /// # Errors
    ///
    /// [`Error::Keyspace`], [`Error::Key`], [`Error::EmptyRange`], [`Error::Region`].
    pub fn holds_range(
        &self,
        keyspace: &[u8],
        range: KeyRange<'_>,
        kind: RangeKind,
    ) -> Result<Option<u32>, Error> {
        self.holds_span(keyspace, &Span::of(range)?, kind)
    }

    pub(crate) fn holds_span(
        &self,
        keyspace: &[u8],
        span: &Span,
        kind: RangeKind,
    ) -> Result<Option<u32>, Error> {
        let memory = self.memory;
        let (name, keys) = (memory.keyspace_named(keyspace)?, OwnKeys::of(span));
        let latched = memory.latch(memory.spot(name.hash).partition)?;
        let at = self.same(&latched, &name, keys.keys(), kind)?;
        if at.is_null() { Ok(None) } else { Ok(Some(get(&memory.claim(at)?.count))) }
    }

    /// Returns this owner's held claim of a range and kind.
    pub(crate) fn held_claim(
        &self,
        keyspace: &[u8],
        range: KeyRange<'_>,
        kind: RangeKind,
    ) -> Result<Option<ClaimId<M>>, Error> {
        let memory = self.memory;
        let (name, span) = (memory.keyspace_named(keyspace)?, Span::of(range)?);
        let keys = OwnKeys::of(&span);
        let latched = memory.latch(memory.spot(name.hash).partition)?;
        let at = self.same(&latched, &name, keys.keys(), kind)?;
        if at.is_null() {
            return Ok(None);
        }
        Ok(Some((at, generation_at(memory.region(), at)?)))
    }

    /// Returns this owner's held claim of the same keyspace, kind and range, or null.
    fn same(
        &self,
        latched: &Latched<'_, M>,
        name: &Name<'_>,
        keys: Keys<'_, M>,
        kind: RangeKind,
    ) -> Result<ClaimAt<M>, Error> {
        let space = latched.find_keyspace(name)?;
        if space.is_null() {
            return Ok(Offset::NULL);
        }
        let memory = self.memory;
        let mut same = Offset::NULL;
        let root = get(&memory.keyspace(space)?.root);
        latched.search_same(root, keys, 0, &mut |at, other| {
            if get(&other.owner) == self.index && what(other)? == (kind, claim::HELD) {
                same = at;
            }
            Ok(!same.is_null())
        })?;
        Ok(same)
    }

    fn take_again(&self, name: &Name<'_>, span: &Span, kind: RangeKind) -> Result<bool, Error> {
        let keys = OwnKeys::of(span);
        let latched = self.memory.latch(self.memory.spot(name.hash).partition)?;
        let at = self.same(&latched, name, keys.keys(), kind)?;
        if !at.is_null() {
            let count = &self.memory.claim(at)?.count;
            put(count, get(count).saturating_add(1));
        }
        Ok(!at.is_null())
    }

    /// Links a claim, whose ticket is held, into its keyspace: as held if no claim blocks it,
    /// otherwise as waiting, unless it must not wait. Returns whether it is held.
    fn stake(&self, name: &Name<'_>, new: NewClaim<'_, M>, never: bool) -> Result<bool, Error> {
        let latched = self.memory.latch(self.memory.spot(name.hash).partition)?;
        let space = latched.find_or_make_keyspace(name)?;
        let free = latched.in_the_way(space, new.at, true)?.is_none();
        if !free && never {
            return Err(Error::NotGranted);
        }
        latched.link_claim(space, new.at, if free { claim::HELD } else { claim::WAITING })?;
        self.memory.point("claim staked");
        new.publish();
        Ok(free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Manager, shared};

    /// A range whose count is saturated is not released early.
    #[test]
    fn a_range_with_a_saturated_count_stays_held() {
        let manager = Manager::private(shared::modes()).unwrap();
        let session = manager.session().unwrap();
        let owner = session.owner().unwrap();
        let range = KeyRange::key(b"k");
        let kind = RangeKind::WriteNext;
        let take = || owner.lock_range(b"space", range, kind, Wait::Never).unwrap();
        take();
        let (at, _) = owner.held_claim(b"space", range, kind).unwrap().unwrap();
        put(&owner.memory.claim(at).unwrap().count, u32::MAX - 1);
        (0..3).for_each(|_| take());
        for _ in 0..3 {
            owner.unlock_range(b"space", range, kind).unwrap();
        }
        assert_eq!(owner.holds_range(b"space", range, kind), Ok(Some(u32::MAX)));
        owner.release_all().unwrap();
        assert_eq!(owner.holds_range(b"space", range, kind), Ok(None));
    }
}

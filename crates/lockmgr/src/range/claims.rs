//! Locks on ranges of keys: gaps, next keys, insert intentions.
//!
//! # The index and the tickets
//!
//! Each range that an owner holds or wishes for is a *claim*, in an index of its keyspace that
//! finds those with a common key (`range/tree.rs`). But nobody waits there. With each claim goes a
//! *ticket*: an ordinary object with a name of its own, which the claim's owner holds from before
//! the claim is in the index until after it is out. Who finds a claim in the way asks for its
//! ticket, waits as one waits for any lock, and looks again. A ticket is always in the table, never
//! in its owner's own memory (`fastpath/reserved.rs`), for it is by the table that its claim is
//! found. So queues, deadlocks, wait-die and wound-wait, deaths and orphans are those of all locks,
//! and in a report of who waits for whom a range is an object like others.
//!
//! ```text
//! keyspace "orders" ── claims: [b, d) gap, owner 1      c insert, owner 2, wished
//!                                 │                        │
//! table of objects:            ticket: held by 1        ticket: held by 2
//!                              waited for by 2
//! ```
//!
//! # The rules
//!
//! 1. A wish is granted if no claim of a stranger stops its kind on a common key: no hold, and no
//!    wish that was there before. Families are as for other locks: what an ancestor has stops
//!    nobody.
//! 2. A wish that is stopped by what its finder or the finder's ancestors hold is passed by: to
//!    wait for it would be a ring.
//! 3. Nobody grants another's wish; each looks for itself, when it gets the ticket.
//!
//! # Why no deadlock is missed
//!
//! A wish waits for one claim at a time, though several may be in its way. So a ring may be there
//! and not seen, while one of its owners waits for an owner that runs. That one ends its claim some
//! day, or waits itself. Of owners that wait for ever each waits for one that waits for ever: in
//! the end there is a ring of tickets, and its last edge is searched from.
//!
//! The edges are all hard, for tickets are held; no detector moves a wish before another. But a
//! victim that stands behind mere wishes goes before them instead.
//!
//! # What it costs
//!
//! With n claims in a keyspace: an ordinary strong lock, two latches, O(log n) for the claim and
//! O(log n) for each claim with a common key and a kind that stops this one, up to the first that
//! is in the way. All of a keyspace is under one latch. In memory, 256 bytes for a claim on keys
//! of up to 32 bytes.

use core::cmp::Ordering;

use latchwork_machine::ConstMachine;
use latchwork_region::Offset;

use crate::Error;
use crate::memory::cells::{OwnerCell, PARTITIONS, Request, Spot, get, put};
use crate::memory::latch::Latched;
use crate::memory::names::Name;
use crate::mode::{Mode, Modes};
use crate::owner::handle::{Owner, Step, Wait};
use crate::range::cells::{
    KEYSPACE_MAX, Keys, NewClaim, OwnKeys, Short, TICKET, claim, is_that, keys_of, of_ticket,
    ticket,
};
use crate::range::keyspaces::what;
use crate::range::kinds::{KeyRange, RangeKind, Span};
use crate::range::request::RangeRequest;
use crate::session::Session;
use crate::table::queues::State;

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

impl<'s, M: ConstMachine> Owner<'s, M> {
    /// Takes a lock on a range of keys of a keyspace, waiting as told. The same range in the same
    /// kind is counted; others are beside it, also those that cover it.
    ///
    /// [`release_all`](Self::release_all) and [`roll_back_to`](Self::roll_back_to) release it like
    /// other locks, [`release_reads`](Self::release_reads) if its kind does not write, and
    /// [`Child::inherit`](crate::Child::inherit) passes it on. It counts as one lock of its owner,
    /// as two while it waits.
    ///
    /// # Errors
    ///
    /// [`Error::Keyspace`], [`Error::Key`], [`Error::EmptyRange`]; [`Error::Mode`] if no mode of
    /// the manager's set stops another; others as for [`lock_with`](Self::lock_with).
    pub fn lock_range(
        &self,
        keyspace: &[u8],
        range: KeyRange<'_>,
        kind: RangeKind,
        wait: Wait,
    ) -> Result<(), Error> {
        self.request_range(keyspace, range, kind, wait)?.finish()
    }

    /// Asks for a lock on a range: as [`lock_range`](Self::lock_range), without waiting.
    ///
    /// # Errors
    ///
    /// As for `lock_range`, but for deadlocks and time, which come later.
    pub fn request_range<'o>(
        &'o self,
        keyspace: &[u8],
        range: KeyRange<'_>,
        kind: RangeKind,
        wait: Wait,
    ) -> Result<RangeRequest<'o, 's, M>, Error> {
        self.ready()?;
        let session = self.session;
        let (held, _) = session.tickets()?;
        let (name, span) = (session.keyspace_named(keyspace)?, Span::of(range)?);
        session.with_room(|| self.claim_range(&name, &span, kind, (held, wait)))
    }

    fn claim_range<'o>(
        &'o self,
        name: &Name<'_>,
        span: &Span,
        kind: RangeKind,
        (held, wait): (Mode, Wait),
    ) -> Result<RangeRequest<'o, 's, M>, Error> {
        let session = self.session;
        if get(&self.cell.ranges) != 0 && self.take_again(name, span, kind)? {
            return Ok(RangeRequest::new(self, (0, 0), wait, false));
        }
        let new = session.new_claim(self.index, span, kind)?;
        let id = (new.at, new.generation);
        put(&self.cell.ranges, get(&self.cell.ranges) + 1);
        let own = ticket(session.region(), id.0, id.1);
        let taken = self.request_ticket(&own, held, Wait::Never).and_then(|_| {
            session.point("ticket taken");
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

    /// Asks for a ticket, in the table always: whoever releases an owner's locks finds the claims
    /// behind its tickets in the owner's list, so a ticket in the owner's own memory, as a strong
    /// lock that is kept there, would leave its claim behind.
    pub(crate) fn request_ticket(
        &self,
        ticket: &[u8],
        mode: Mode,
        wait: Wait,
    ) -> Result<Step, Error> {
        self.ready()?;
        self.allowed(mode)?;
        let name = self.session.named(ticket)?;
        self.session.counters.request();
        self.request_in_table(&name, Spot::of(name.hash), mode, wait)
    }

    /// Gives a range back once, by the same range and kind; the last time releases it.
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
        self.at_rest()?;
        let session = self.session;
        let (name, span) = (session.keyspace_named(keyspace)?, Span::of(range)?);
        let keys = OwnKeys::of(&span);
        let latched = session.latch(Spot::of(name.hash).partition)?;
        let at = self.same(&latched, &name, keys.keys(), kind)?;
        if at == 0 {
            return Err(Error::NotHeld);
        }
        let it = session.claim(at)?;
        let count = get(&it.count);
        if count > 1 {
            put(&it.count, count - 1);
            return Ok(());
        }
        let region = session.region();
        let own = ticket(region, at, region.generation(Offset::<Short<M>>::from_raw(at))?);
        latched.drop_claim(get(&it.space), at)?;
        drop(latched);
        session.point("claim given back");
        self.count_down();
        self.unlock(&own)
    }

    /// Whether an owner holds this range in this kind, and how often it took it.
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
        let session = self.session;
        let (name, span) = (session.keyspace_named(keyspace)?, Span::of(range)?);
        let keys = OwnKeys::of(&span);
        let latched = session.latch(Spot::of(name.hash).partition)?;
        match self.same(&latched, &name, keys.keys(), kind)? {
            0 => Ok(None),
            at => Ok(Some(get(&session.claim(at)?.count))),
        }
    }

    /// This owner's held claim of a range and kind.
    pub(crate) fn held_claim(
        &self,
        keyspace: &[u8],
        range: KeyRange<'_>,
        kind: RangeKind,
    ) -> Result<Option<(u32, u32)>, Error> {
        let session = self.session;
        let (name, span) = (session.keyspace_named(keyspace)?, Span::of(range)?);
        let keys = OwnKeys::of(&span);
        let latched = session.latch(Spot::of(name.hash).partition)?;
        match self.same(&latched, &name, keys.keys(), kind)? {
            0 => Ok(None),
            at => {
                let generation = session.region().generation(Offset::<Short<M>>::from_raw(at))?;
                Ok(Some((at, generation)))
            }
        }
    }

    pub(crate) fn count_down(&self) {
        put(&self.cell.ranges, get(&self.cell.ranges).saturating_sub(1));
    }

    /// This owner's held claim of the same keyspace, kind and range; null if there is none.
    fn same(
        &self,
        latched: &Latched<'_, M>,
        name: &Name<'_>,
        keys: Keys<'_, M>,
        kind: RangeKind,
    ) -> Result<u32, Error> {
        let space = latched.find_keyspace(name)?;
        if space == 0 {
            return Ok(0);
        }
        let session = self.session;
        let region = session.region();
        let (from, to) = keys;
        let mut same = 0;
        let root = get(&session.keyspace(space)?.root);
        latched.search(root, keys, kind.bit(), 0, &mut |at, other| {
            let (begins, ends) = keys_of(region, at)?;
            let equal = begins.order(from) == Ordering::Equal && ends.order(to) == Ordering::Equal;
            if equal && get(&other.owner) == self.index && what(other)?.1 == claim::HELD {
                same = at;
            }
            Ok(same != 0)
        })?;
        Ok(same)
    }

    fn take_again(&self, name: &Name<'_>, span: &Span, kind: RangeKind) -> Result<bool, Error> {
        let keys = OwnKeys::of(span);
        let latched = self.session.latch(Spot::of(name.hash).partition)?;
        let at = self.same(&latched, name, keys.keys(), kind)?;
        if at != 0 {
            let count = &self.session.claim(at)?.count;
            put(count, get(count).saturating_add(1));
        }
        Ok(at != 0)
    }

    /// Puts a claim, whose ticket is held, into its keyspace: held if nothing is in the way, or
    /// else as a wish, unless it is not to wait. Returns whether it is held.
    fn stake(&self, name: &Name<'_>, new: NewClaim<'_, M>, never: bool) -> Result<bool, Error> {
        let latched = self.session.latch(Spot::of(name.hash).partition)?;
        let space = latched.find_or_make_keyspace(name)?;
        let free = latched.in_the_way(space, new.at, true)?.is_none();
        if !free && never {
            return Err(Error::NotGranted);
        }
        latched.link_claim(space, new.at, if free { claim::HELD } else { claim::WISH })?;
        self.session.point("claim staked");
        new.publish();
        Ok(free)
    }

    /// Makes the claim behind a request another owner's, if there is one. The request follows: so
    /// who gets the ticket in between is told whose the claim is.
    pub(crate) fn hand_over_range(&self, at: u32, to: &Owner<'_, M>) -> Result<(), Error> {
        let session = self.session;
        let Some(id) = session.claim_of(self.cell, at)? else { return Ok(()) };
        // This one's count stays too high until all are handed over: after a death both look.
        put(&to.cell.ranges, get(&to.cell.ranges) + 1);
        let it = session.claim(id.0)?;
        let latched = session.latch_keyspace(get(&it.space))?;
        put(&it.owner, to.index);
        drop(latched);
        session.point("claim handed over");
        Ok(())
    }
}

impl<M: ConstMachine> Session<M> {
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
        at: u32,
    ) -> Result<Option<(u32, u32)>, Error> {
        if get(&cell.ranges) == 0 {
            return Ok(None);
        }
        let request: &Request<M> = self.request(at)?;
        let state = State::of(get(&request.state));
        if !state.holds() || self.inner().tickets.is_none_or(|(held, _)| held != state.mode) {
            return Ok(None);
        }
        let object = get(&request.object);
        if self.object(object)?.name_length() != TICKET {
            return Ok(None);
        }
        let region = self.region();
        let Some(id) = of_ticket(region, &self.name_of(object)?) else { return Ok(None) };
        Ok(is_that(region, id)?.then_some(id))
    }

    /// What the claim behind an owner's request says, if there is one.
    #[inline]
    pub(crate) fn kind_of(&self, cell: &OwnerCell<M>, at: u32) -> Result<Option<RangeKind>, Error> {
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
    pub(crate) fn forget_range(&self, cell: &OwnerCell<M>, at: u32) -> Result<(), Error> {
        if get(&cell.ranges) == 0 {
            return Ok(());
        }
        if let Some(id) = self.claim_of(cell, at)? {
            self.remove_claim(id)?;
            put(&cell.ranges, get(&cell.ranges).saturating_sub(1));
        }
        Ok(())
    }

    /// Whether there is a mere wish behind an owner's request.
    pub(crate) fn is_wish(&self, cell: &OwnerCell<M>, at: u32) -> Result<bool, Error> {
        let Some(id) = self.claim_of(cell, at)? else { return Ok(false) };
        Ok(what(self.claim(id.0)?)?.1 == claim::WISH)
    }

    /// Claims, held or wished for.
    pub(crate) fn count_ranges(&self) -> Result<u64, Error> {
        let Some(known) = self.keyspaces()? else { return Ok(0) };
        let mut count = 0;
        for number in (0..PARTITIONS).filter(|at| get(&known.heads[*at as usize]) != 0) {
            let latched = self.latch(number)?;
            let spaces = latched.each_keyspace()?.len();
            count += (latched.all_of_ranges()?.len() - spaces) as u64;
        }
        Ok(count)
    }
}

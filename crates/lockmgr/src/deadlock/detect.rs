//! Deadlocks: found off the path, without stopping anyone.
//!
//! A waiter notes in its owner's cell what it waits for, and after a moment looks whether it waits
//! for itself. A search goes from owner to owner, depth first; for each that waits it takes the
//! latch of that one partition, reads which owners are in the way, and lets go. It never holds two.
//! It is in `deadlock/search.rs`, and costs time linear in the queues that it meets.
//!
//! # Why a cycle that was found is one
//!
//! The parts of a cycle were read at different instants. So it is read again: if each of its owners
//! is in the same wait (by its ticket) and still behind the next, then between the two readings
//! there was an instant at which all of them waited. An owner that waits releases nothing, so all
//! edges stood at that instant, and the deadlock is real.
//!
//! # Why none is missed
//!
//! An owner that runs is in no cycle. So the last edge of a cycle appears when an owner begins to
//! wait, and that one searches, after [`detect_after`](crate::Options::detect_after), until it is
//! in none: one wait may close several. It searches at once if one that holds what it waits for
//! waits, too: as a rule that is a cycle just closed, and else this costs a latch. If a cycle
//! changed while it was looked at, so that another searcher may have gone by its older shape, it
//! searches again after the next nap. It does so now and then anyway, at a cost of nothing that
//! matters.
//!
//! An owner that holds nothing need not search: those who stand behind it began to wait later, so
//! its edge is the last one of no cycle.
//!
//! # What all searches cost together
//!
//! A waiter first goes [`NEAR`] steps. A search that is not over then is a matter of many waiters:
//! one thread of the process looks at all that wait, in the name of all whose waits began before,
//! and the others look for themselves only if it found nothing for them. Looks at all take a fifth
//! of the time at most. So 10,000 waiters on one name cost a few looks, not 10,000.
//!
//! A waiter's deadline ends its search, and that of those it looks for; so does a future's, whose
//! look is a part of its task's poll.
//!
//! # What is done about it
//!
//! If an owner of the cycle merely stands behind another in a queue (a soft edge, as PostgreSQL
//! calls it), it is moved before that one, up to 16 times in each wait; if that breaks the cycle,
//! nobody is killed. Otherwise one victim is chosen (`deadlock/victim.rs`), its request refused,
//! and the cycle told to it. The owner that waits for what the victim holds is moved before all who
//! asked for that earlier, for the next of them would be the next victim: of 16 threads that lock
//! two names in either order each was, in turn (900 transactions a second on two processors; with
//! this and the search at once 125,000).
//!
//! # Why there is one victim
//!
//! Several owners of a cycle may find it at once. The choice depends on the cycle alone, not on who
//! found it or when, with one exception: an owner that was a victim too often is spared. That is
//! counted after the request was refused, so a thread that reads the new count finds the cycle
//! broken when it reads that once more.

use core::sync::atomic::Ordering::Relaxed;
use std::collections::HashMap;

use latchwork_machine::{ConstMachine, Deadline, Word};
use latchwork_region::Offset;

use crate::deadlock::search::{Bounds, Search, Searched};
use crate::error::{corrupt_list, reason_number};
use crate::memory::Memory;
use crate::memory::cells::{RequestAt, Small, get, put};
use crate::memory::handle::Owner;
use crate::memory::latch::Latched;
use crate::memory::numbers::{OwnerNumber, PartitionNumber};
use crate::memory::state::{State, status};
use crate::range::cells::told;
use crate::{Error, Link, Reason};

/// Steps of a waiter's own search.
const NEAR: usize = 512;
/// How much longer than a look at all took it is until the next one, at least.
const REST: u64 = 4;
/// A look at all that is not over after so many nanoseconds counts as given up.
const STUCK: u64 = 100_000_000;

/// How often a waiter is moved forward in one wait: each of two might be moved before the other for
/// ever.
const MOVES: u32 = 16;

/// What a search for a deadlock came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    None,
    /// One, which had changed when it was looked at again.
    Changed,
    /// One, and somebody was refused.
    Broken,
    /// It is not known: a bound was met first.
    Bounded,
}

/// How a search ended.
enum Ended<M: ConstMachine> {
    None,
    /// One was found, and is none any more.
    Changed,
    Bounded,
    Cycle(Vec<Waiting<M>>),
}

/// An owner that waits, and for which.
struct Waiting<M: ConstMachine> {
    owner: OwnerNumber,
    at: RequestAt<M>,
    partition: PartitionNumber,
    ticket: u32,
    blockers: Vec<crate::table::granting::Blocker>,
    link: Link,
}

impl<M: ConstMachine> Memory<M> {
    /// Looks at all owners that wait, breaks each deadlock, and returns how many there were.
    pub(crate) fn detect(&self) -> Result<usize, Error> {
        self.region().check()?;
        Ok(self.break_all(None)?.0)
    }

    /// Breaks all deadlocks of all owners that wait, until a deadline. How many there were, and
    /// whether there are none left of those that were there when it began.
    fn break_all(&self, deadline: Option<Deadline>) -> Result<(usize, bool), Error> {
        let waiting = || {
            let all = self.each_owner().filter(|(_, cell)| !get(&cell.waiting).is_null());
            all.map(|(owner, _)| owner).collect()
        };
        let bounds = Bounds::new(usize::MAX, deadline);
        let mut broken = 0;
        // As many as there can be, and no more, should somebody make new ones all the time.
        for _ in 0..1_000_000 {
            match self.break_one(waiting(), bounds)? {
                Found::Broken => broken += 1,
                found => return Ok((broken, found == Found::None)),
            }
        }
        Ok((broken, false))
    }

    /// What an owner waits for, if it does.
    fn waiting_of(&self, owner: OwnerNumber) -> Result<Option<Waiting<M>>, Error> {
        let Some(cell) = self.owner_cell(owner)? else { return Ok(None) };
        let (at, partition, _) = cell.wait();
        if at.is_null() || !self.blocks.has(partition) {
            return Ok(None);
        }
        let latched = self.latch(partition)?;
        // Under the latch a wait in this partition neither begins nor ends.
        let now = cell.wait();
        if (now.0, now.1) != (at, partition) {
            return Ok(None);
        }
        let request = self.request(at)?;
        let (object_at, state) = (get(&request.object), get(&request.state));
        if !state.waits() || get(&request.owner) != owner {
            return Ok(None);
        }
        let blockers = latched.blockers(self.object(object_at)?, at, owner, state)?;
        let object = told(&self.inner().region, self.name_of(object_at)?);
        let link = Link {
            owner: owner.id(get(&cell.generation)),
            length: object.len(),
            object,
            held: (state.status == status::CONVERTING).then_some(state.mode),
            wanted: state.want,
            hard: true,
        };
        Ok(Some(Waiting { owner, at, partition, ticket: now.2, blockers, link }))
    }

    /// Breaks all deadlocks that an owner is part of, or waits for: its one wait may have closed
    /// several. Whether it should look again soon: one changed while it was looked at, or the
    /// deadline came first. `since` is when the owner began to wait, or looked last.
    pub(crate) fn detect_from(
        &self,
        owner: OwnerNumber,
        since: u64,
        deadline: Option<Deadline>,
    ) -> Result<bool, Error> {
        for _ in 0..1000 {
            match self.break_one(vec![owner], Bounds::new(NEAR, deadline))? {
                Found::Broken => {}
                Found::Bounded => return Ok(!self.look_for_all(since, deadline)?),
                found => return Ok(found == Found::Changed),
            }
        }
        Ok(true)
    }

    /// Looks at all who wait, unless another thread of the process has done so since an instant, or
    /// does so now. Whether it is done.
    fn look_for_all(&self, since: u64, deadline: Option<Deadline>) -> Result<bool, Error> {
        let (looked, rests) = (&self.inner().looked, &self.inner().rests);
        let (begun, seen) = (self.now(), get(rests));
        if get(looked) > since {
            return Ok(true);
        }
        let later = begun.saturating_add(STUCK);
        // Relaxed: it says who looks, and no more; what is looked at is read under latches.
        if begun < seen || rests.compare_exchange(seen, later, Relaxed, Relaxed).is_err() {
            return Ok(false);
        }
        let done = self.break_all(deadline)?.1;
        if done && get(looked) < begun {
            put(looked, begun);
        }
        let end = self.now();
        put(rests, end.saturating_add(end.saturating_sub(begun).saturating_mul(REST)));
        Ok(done)
    }

    /// Breaks one deadlock that these owners lead to.
    ///
    /// Those of hard edges come first: if b stands behind c for what a holds, and a waits for b,
    /// then c is in a cycle, too, but to abort it would help nobody.
    fn break_one(&self, starts: Vec<OwnerNumber>, bounds: Bounds) -> Result<Found, Error> {
        // Each round ends with a move or a victim; a move is made once in each wait.
        for _ in 0..1000 {
            let cycle = match self.find(&starts, bounds)? {
                Ended::None => return Ok(Found::None),
                Ended::Changed => return Ok(Found::Changed),
                Ended::Bounded => return Ok(Found::Bounded),
                Ended::Cycle(cycle) => cycle,
            };
            if !self.is_real(&cycle)? {
                return Ok(Found::Changed);
            }
            if self.reorder(&cycle)? {
                self.counters.reordered();
                continue;
            }
            let broken = self.abort_victim(&cycle)?;
            return Ok(if broken { Found::Broken } else { Found::Changed });
        }
        Ok(Found::Changed)
    }

    /// A cycle that these owners lead to, read once.
    fn find(&self, starts: &[OwnerNumber], bounds: Bounds) -> Result<Ended<M>, Error> {
        if self.inner().has_families()? {
            for hard in [true, false] {
                match self.cycle(starts, hard, bounds)? {
                    Ended::None => {}
                    end => return Ok(end),
                }
            }
            return Ok(Ended::None);
        }
        let edges = match Search::new(self, bounds).run(starts)? {
            Searched::None => return Ok(Ended::None),
            Searched::Bounded => return Ok(Ended::Bounded),
            Searched::Cycle(edges) => edges,
        };
        let mut cycle = Vec::with_capacity(edges.len());
        for (owner, hard) in edges {
            let Some(mut waiting) = self.waiting_of(owner)? else { return Ok(Ended::Changed) };
            waiting.link.hard = hard;
            cycle.push(waiting);
        }
        Ok(Ended::Cycle(cycle))
    }

    /// A cycle that these owners lead to: of hard edges alone, or of any. Asks for each owner's
    /// blockers, as families need it. Bounded by the deadline alone.
    fn cycle(&self, starts: &[OwnerNumber], hard: bool, bounds: Bounds) -> Result<Ended<M>, Error> {
        // Where on the path an owner is; none if all that it leads to was seen.
        let mut seen: HashMap<OwnerNumber, Option<usize>> = HashMap::new();
        for start in starts {
            if seen.contains_key(start) {
                continue;
            }
            let Some(first) = self.waiting_of(*start)? else { continue };
            seen.insert(*start, Some(0));
            let mut path = vec![(first, 0)];
            while let Some((waiting, next)) = path.last_mut() {
                if bounds.passed::<M>() {
                    return Ok(Ended::Bounded);
                }
                let Some(blocker) = waiting.blockers.get(*next).copied() else {
                    seen.insert(waiting.owner, None);
                    path.pop();
                    continue;
                };
                *next += 1;
                if hard && !blocker.hard {
                    continue;
                }
                waiting.link.hard = blocker.hard;
                match seen.get(&blocker.owner) {
                    Some(Some(place)) => {
                        let cycle = path.drain(*place..).map(|(waiting, _)| waiting);
                        return Ok(Ended::Cycle(cycle.collect()));
                    }
                    Some(None) => {}
                    None => match self.waiting_of(blocker.owner)? {
                        Some(waiting) => {
                            seen.insert(blocker.owner, Some(path.len()));
                            path.push((waiting, 0));
                        }
                        None => {
                            seen.insert(blocker.owner, None);
                        }
                    },
                }
            }
        }
        Ok(Ended::None)
    }

    /// Whether all of a cycle stands, read once more.
    fn is_real(&self, cycle: &[Waiting<M>]) -> Result<bool, Error> {
        for (place, old) in cycle.iter().enumerate() {
            let next = cycle[(place + 1) % cycle.len()].owner;
            let Some(now) = self.waiting_of(old.owner)? else { return Ok(false) };
            let same = now.at == old.at && now.ticket == old.ticket;
            if !same || !now.blockers.iter().any(|blocker| blocker.owner == next) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Moves an owner of the cycle before the one that it merely stands behind. There may be others
    /// that it stands behind still, and passes when they are in a cycle.
    fn reorder(&self, cycle: &[Waiting<M>]) -> Result<bool, Error> {
        for (place, waiting) in cycle.iter().enumerate().filter(|(_, waiting)| !waiting.link.hard) {
            let next = &cycle[(place + 1) % cycle.len()];
            if next.partition != waiting.partition {
                continue;
            }
            let (Some(cell), Some(other)) =
                (self.owner_cell(waiting.owner)?, self.owner_cell(next.owner)?)
            else {
                continue;
            };
            let latched = self.latch(waiting.partition)?;
            let same = cell.wait() == (waiting.at, waiting.partition, waiting.ticket);
            let still = other.wait() == (next.at, next.partition, next.ticket);
            let (request, ahead) = (self.request(waiting.at)?, self.request(next.at)?);
            if !same || !still || get(&request.object) != get(&ahead.object) {
                continue;
            }
            if [request, ahead].iter().any(|each| get(&each.partition) != latched.number) {
                return corrupt_list();
            }
            let states = (get(&request.state), get(&ahead.state));
            let both = states.0.status == status::WAITING && states.1.status == status::WAITING;
            let moves = get(&cell.forward);
            if !both || moves >= MOVES {
                continue;
            }
            let object = self.object(get(&request.object))?;
            // Not if a holder stops it: the cycle would only change its shape.
            if latched.stopped(object, waiting.owner, states.0.want)?.is_some() {
                continue;
            }
            put(&cell.forward, moves + 1);
            latched.move_before(object, waiting.at, next.at)?;
            latched.advance(object)?;
            drop(latched);
            self.wake_all()?;
            #[cfg(feature = "tracing")]
            crate::meter::events::moved(&waiting.link, next.link.owner);
            return Ok(true);
        }
        Ok(false)
    }

    /// Moves the owner that waits for what the victim holds before all that wait for it, too. They
    /// asked earlier, but each would have it while that owner holds what it asks for next, and be
    /// the next victim: on two names that are locked in either order, one after the other.
    fn put_first(&self, waiting: &Waiting<M>) -> Result<(), Error> {
        let Some(cell) = self.owner_cell(waiting.owner)? else { return Ok(()) };
        let latched = self.latch(waiting.partition)?;
        if cell.wait() != (waiting.at, waiting.partition, waiting.ticket) {
            return Ok(());
        }
        let request = self.request(waiting.at)?;
        let (object, moves) = (self.object(get(&request.object))?, get(&cell.forward));
        let first = get(&object.first);
        // A conversion goes before them anyway; children may be behind their ancestors' waiters.
        if get(&request.state).status != status::WAITING
            || self.inner().has_families()?
            || [Offset::NULL, waiting.at].contains(&first)
            || moves >= MOVES
        {
            return Ok(());
        }
        let ahead = self.request(first)?;
        let same = get(&ahead.object) == get(&request.object);
        if !same || [request, ahead].iter().any(|each| get(&each.partition) != latched.number) {
            return corrupt_list();
        }
        put(&cell.forward, moves + 1);
        latched.move_before(object, waiting.at, first)
    }

    /// Refuses one request of the cycle.
    fn abort_victim(&self, cycle: &[Waiting<M>]) -> Result<bool, Error> {
        let owners: Vec<OwnerNumber> = cycle.iter().map(|waiting| waiting.owner).collect();
        let place = self.choose(&owners)?;
        // If another victim was aborted meanwhile, the choice may have followed from it.
        if !self.is_real(cycle)? {
            return Ok(false);
        }
        let victim = &cycle[place];
        let behind = &cycle[(place + cycle.len() - 1) % cycle.len()];
        if behind.link.hard {
            self.put_first(behind)?;
        }
        let Some(cell) = self.owner_cell(victim.owner)? else { return Ok(false) };
        let state = get(&cell.state);
        // An adopted one waits as any other does.
        if !state.is_live() && !state.is_adopted() {
            return Ok(false);
        }
        let links: Vec<&Link> =
            cycle[place..].iter().chain(&cycle[..place]).map(|waiting| &waiting.link).collect();
        let (report, words) = (self.write_report(&links), self.describe(&links)?);
        let latched = self.latch(victim.partition)?;
        if cell.wait() != (victim.at, victim.partition, victim.ticket) {
            return Ok(false);
        }
        let request = self.request(victim.at)?;
        // A wait that a death ended may be named still, and its cell be one that holds.
        if get(&request.owner) != victim.owner || !get(&request.state).waits() {
            return Ok(false);
        }
        // What an earlier victim of this slot did not read is replaced: the cell is the slot's.
        self.place_report(cell, report, links.len() as u32)?;
        let why = reason_number(Reason::Deadlock);
        latched.refuse(victim.at, request, why)?;
        put(&cell.spared, get(&cell.spared).saturating_add(1));
        drop(latched);
        self.counters.deadlock();
        let recorded = self.record(&words);
        self.wake_all()?;
        recorded?;
        #[cfg(feature = "tracing")]
        crate::meter::events::deadlock(&links, self.modes());
        Ok(true)
    }
}

impl<M: ConstMachine> Latched<'_, M> {
    /// Moves a waiter before another of its queue.
    fn move_before(
        &self,
        object: &Small<M>,
        at: RequestAt<M>,
        ahead: RequestAt<M>,
    ) -> Result<(), Error> {
        let request = self.memory.request(at)?;
        let state = get(&request.state);
        // Should we die in between, the sweep refuses what is away.
        self.memory.note_away(at)?;
        self.unlink(object, at, request, State { status: status::AWAY, ..state })?;
        self.link_before(object, at, ahead, state)
    }
}

impl<M: ConstMachine> Owner<'_, M> {
    /// Whether one that holds what it waits for waits, too: then a cycle may well be closed.
    pub(crate) fn waits_for_a_waiter(&self) -> Result<bool, Error> {
        let memory = self.memory;
        let request = memory.request(self.pending.get())?;
        let latched = memory.latch(get(&request.partition).within(memory.partitions()))?;
        let state = get(&request.state);
        if !state.waits() {
            return Ok(false);
        }
        let object = memory.object(get(&request.object))?;
        let Some(holder) = latched.stopped(object, self.index, state.want)? else {
            return Ok(false);
        };
        Ok(memory.owner_cell(holder)?.is_some_and(|cell| !get(&cell.waiting).is_null()))
    }

    /// Whether its wait may be the last edge of a cycle: it holds something that others may wait
    /// for.
    pub(crate) fn may_be_awaited(&self) -> Result<bool, Error> {
        Ok(self.converting.get()
            || self.entries.get() != 0
            || get(&self.cell.held) > 1
            || self.memory.inner().has_families()?)
    }
}

//! Deadlocks: detected by waiters, without delaying other requests.
//!
//! A waiter records in its owner's cell what it waits for, and after a short time checks whether it
//! waits for itself. A search proceeds from owner to owner, depth first. For each waiting owner it
//! takes the latch of one partition, reads which owners block the request, and releases the latch.
//! It never holds two latches. The search is in `deadlock/search.rs`; its time is linear in the
//! queues that it reads.
//!
//! # Why a reported cycle is real
//!
//! The parts of a cycle were read at different instants. So they are read again: if each owner of
//! the cycle is in the same wait (by its ticket) and still behind the next, there was an instant
//! between the two readings at which all of them waited. An owner that waits releases nothing, so
//! all edges existed at that instant, and the deadlock is real.
//!
//! # Why every cycle is found
//!
//! An owner that runs is in no cycle. So the last edge of a cycle appears when an owner begins to
//! wait. That owner searches after [`detect_after`](crate::Options::detect_after), until it is in
//! no cycle, because one wait may close several. It searches immediately if a holder of the lock
//! also waits: this is usually a cycle that has just been closed, and otherwise costs one latch. If
//! a cycle changed during the search, another searcher may have acted on its earlier shape, so the
//! owner searches again after the next nap. It also searches periodically, at negligible cost.
//!
//! An owner that holds nothing need not search: the owners behind it began to wait later, so its
//! edge is not the last one of any cycle.
//!
//! # Total cost of all searches
//!
//! A waiter's own search is limited to [`NEAR`] steps. A longer search means many waiters: then one
//! thread of the process searches from all waiters, on behalf of all whose waits began before. The
//! other waiters rely on that search if it was completed. Searches from all waiters take at most a
//! fifth of the time. So 10,000 waiters on one name cause a few searches, not 10,000.
//!
//! A waiter's deadline ends its search, including a search on behalf of others. The same holds for
//! a future, whose search is a part of its task's poll.
//!
//! # Breaking a cycle
//!
//! If an owner of the cycle merely waits behind another one in a queue (a soft edge, in
//! PostgreSQL's terms), it is moved before that owner, up to 16 times in each wait. If this breaks
//! the cycle, no owner is aborted. Otherwise one victim is chosen (`deadlock/victim.rs`), its
//! request is refused, and the cycle is reported to it. The owner that waits for the victim's lock
//! is moved before all earlier waiters for it, because the next of these would become the next
//! victim: when 16 threads lock two names in either order, each of them was aborted in turn (900
//! transactions a second on two processors; 125,000 with this move and the immediate search).
//!
//! # Why there is one victim
//!
//! Several owners of a cycle may find it at the same time. The choice depends on the cycle alone,
//! not on the finder or the time, with one exception: an owner that was a victim too often is
//! spared. Its counter is incremented after the request was refused, so a thread that reads the new
//! value also finds the cycle broken when it reads it again.

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
/// After a search from all waiters, the next one begins at the earliest after this many times its
/// duration.
const REST: u64 = 4;
/// A search from all waiters that has not ended after this many nanoseconds counts as abandoned.
const STUCK: u64 = 100_000_000;

/// How often a waiter is moved forward in one wait. Without a limit, two waiters might be moved
/// before each other forever.
const MOVES: u32 = 16;

/// The result of a search for a deadlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    None,
    /// A cycle that had changed when it was read again.
    Changed,
    /// A cycle that was broken by refusing a request.
    Broken,
    /// Unknown: a bound was reached first.
    Bounded,
}

/// The end of a search.
enum Ended<M: ConstMachine> {
    None,
    /// A cycle was found, and no longer exists.
    Changed,
    Bounded,
    Cycle(Vec<Waiting<M>>),
}

/// A waiting owner, and the owners that it waits for.
struct Waiting<M: ConstMachine> {
    owner: OwnerNumber,
    at: RequestAt<M>,
    partition: PartitionNumber,
    ticket: u32,
    blockers: Vec<crate::table::granting::Blocker>,
    link: Link,
}

impl<M: ConstMachine> Memory<M> {
    /// Searches from all waiting owners, breaks each deadlock, and returns the number of deadlocks.
    pub(crate) fn detect(&self) -> Result<usize, Error> {
        self.region().check()?;
        Ok(self.break_all(None)?.0)
    }

    /// Breaks the deadlocks of all waiting owners, until a deadline. Returns how many there were,
    /// and whether none of the initial ones is left.
    fn break_all(&self, deadline: Option<Deadline>) -> Result<(usize, bool), Error> {
        let waiting = || {
            let all = self.each_owner().filter(|(_, cell)| !get(&cell.waiting).is_null());
            all.map(|(owner, _)| owner).collect()
        };
        let bounds = Bounds::new(usize::MAX, deadline);
        let mut broken = 0;
        // A bound above any possible number, in case other owners create deadlocks continuously.
        for _ in 0..1_000_000 {
            match self.break_one(waiting(), bounds)? {
                Found::Broken => broken += 1,
                found => return Ok((broken, found == Found::None)),
            }
        }
        Ok((broken, false))
    }

    /// Returns the wait of an owner, or `None` if it does not wait.
    fn waiting_of(&self, owner: OwnerNumber) -> Result<Option<Waiting<M>>, Error> {
        let Some(cell) = self.owner_cell(owner)? else { return Ok(None) };
        let (at, partition, _) = cell.wait();
        if at.is_null() || !self.blocks.has(partition) {
            return Ok(None);
        }
        let latched = self.latch(partition)?;
        // While this thread has the latch, no wait in this partition begins or ends.
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

    /// Breaks all deadlocks that an owner is part of or waits for; its one wait may have closed
    /// several. Returns whether the owner should search again soon, because a cycle changed during
    /// the search or the deadline passed first. `since` is when the owner began to wait, or last
    /// searched.
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

    /// Searches from all waiters, unless another thread of the process has done so since an
    /// instant, or is doing so now. Returns whether the search is done.
    fn look_for_all(&self, since: u64, deadline: Option<Deadline>) -> Result<bool, Error> {
        let (looked, rests) = (&self.inner().looked, &self.inner().rests);
        let (begun, seen) = (self.now(), get(rests));
        if get(looked) > since {
            return Ok(true);
        }
        let later = begun.saturating_add(STUCK);
        // Relaxed: it only decides which thread searches; the search itself reads under latches.
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
    /// Cycles of hard edges come first: if b is behind c in the queue for a lock that a holds, and
    /// a waits for b, then c is also in a cycle, but aborting c would not help.
    fn break_one(&self, starts: Vec<OwnerNumber>, bounds: Bounds) -> Result<Found, Error> {
        // Each round ends with a move or a victim, and the moves in each wait are limited.
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

    /// Returns a cycle that these owners lead to, read once.
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

    /// Returns a cycle that these owners lead to: of hard edges only, or of any. Reads the blockers
    /// of each owner, as families require. Bounded only by the deadline.
    fn cycle(&self, starts: &[OwnerNumber], hard: bool, bounds: Bounds) -> Result<Ended<M>, Error> {
        // The position of an owner on the path; `None` if everything that it leads to was visited.
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

    /// Returns whether the whole cycle still exists, read once more.
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

    /// Moves an owner of the cycle before the owner that it merely waits behind. It may still be
    /// behind others; it passes them if they are in a cycle.
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
            // Not if a holder blocks it: the cycle would only change its shape.
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

    /// Moves the owner that waits for the victim's lock before all earlier waiters for it. Each of
    /// these would hold the lock while this owner holds the lock that they request next, and would
    /// become the next victim: with two names that are locked in either order, one after the other.
    fn put_first(&self, waiting: &Waiting<M>) -> Result<(), Error> {
        let Some(cell) = self.owner_cell(waiting.owner)? else { return Ok(()) };
        let latched = self.latch(waiting.partition)?;
        if cell.wait() != (waiting.at, waiting.partition, waiting.ticket) {
            return Ok(());
        }
        let request = self.request(waiting.at)?;
        let (object, moves) = (self.object(get(&request.object))?, get(&cell.forward));
        let first = get(&object.first);
        // A conversion precedes them anyway; children may be behind waiters that their ancestors
        // block.
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
        // If another victim was aborted in the meantime, the choice may have followed from that.
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
        // An adopted owner waits like any other.
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
        // The cell may still name a wait that a death ended, and the request's cell may hold
        // another lock.
        if get(&request.owner) != victim.owner || !get(&request.state).waits() {
            return Ok(false);
        }
        // A report that an earlier victim of this slot did not read is replaced: the cell belongs
        // to the slot.
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
    /// Moves a waiter before another one in its queue.
    fn move_before(
        &self,
        object: &Small<M>,
        at: RequestAt<M>,
        ahead: RequestAt<M>,
    ) -> Result<(), Error> {
        let request = self.memory.request(at)?;
        let state = get(&request.state);
        // If this thread dies in between, the sweep refuses the request that is away.
        self.memory.note_away(at)?;
        self.unlink(object, at, request, State { status: status::AWAY, ..state })?;
        self.link_before(object, at, ahead, state)
    }
}

impl<M: ConstMachine> Owner<'_, M> {
    /// Returns whether a holder of the lock that it waits for also waits: then its wait may have
    /// closed a cycle.
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

    /// Returns whether its wait may be the last edge of a cycle, because it holds a lock that
    /// others may wait for.
    pub(crate) fn may_be_awaited(&self) -> Result<bool, Error> {
        Ok(self.converting.get()
            || self.entries.get() != 0
            || get(&self.cell.held) > 1
            || self.memory.inner().has_families()?)
    }
}

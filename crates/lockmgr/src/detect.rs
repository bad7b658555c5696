//! Deadlocks: found off the path, without stopping anyone.
//!
//! A waiter notes in its owner's cell what it waits for, and after a moment looks whether it waits
//! for itself. A search goes from owner to owner, depth first; for each that waits it takes the
//! latch of that one partition, reads who is in the way, and lets go. It never holds two.
//!
//! # Why a cycle that was found is one
//!
//! The parts of a cycle were read at different instants. So it is read again: if each of its owners
//! is in the same wait (by its ticket) and still behind the next, then between the two readings
//! there was an instant at which all of them waited. Who waits releases nothing, so all edges stood
//! at that instant, and the deadlock is real.
//!
//! # Why none is missed
//!
//! Who runs is in no cycle. So the last edge of a cycle appears when an owner begins to wait, and
//! that one searches, after [`detect_after`](crate::Options::detect_after), until it is in none: one
//! wait may close several. If a cycle changed while it was looked at, so that another searcher may
//! have gone by its older shape, it searches again after the next nap. It does so now and then
//! anyway, at a cost of nothing that matters.
//!
//! # What is done about it
//!
//! If an owner of the cycle merely stands behind another in a queue (a soft edge, as PostgreSQL
//! calls it), it is moved before that one, once in each wait; if that lets it go, nobody is killed.
//! Otherwise one victim is chosen (`victim.rs`), its request refused, and the cycle told to it.
//!
//! # Why there is one victim
//!
//! Several owners of a cycle may find it at once. The choice depends on the cycle alone, not on who
//! found it or when, with one exception: an owner that was a victim too often is spared. That is
//! counted after the request was refused, so who reads the new count finds the cycle broken when it
//! reads that once more.

use std::collections::HashMap;

use latchwork_machine::ConstMachine;

use crate::layout::{LIVE, PARTITIONS, get, put, status};
use crate::queue::State;
use crate::range_cell::told;
use crate::session::Session;
use crate::{Error, Link, OwnerId, Reason};

/// What a search for a deadlock came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    None,
    /// One, which had changed when it was looked at again.
    Changed,
    /// One, and somebody was refused.
    Broken,
}

/// Who waits, and for whom.
struct Wish {
    owner: u32,
    at: u32,
    partition: u32,
    ticket: u32,
    blockers: Vec<crate::turn::Blocker>,
    link: Link,
}

impl<M: ConstMachine> Session<M> {
    /// Looks at all owners that wait, breaks each deadlock, and returns how many there were.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn detect(&self) -> Result<usize, Error> {
        let waiting = || {
            let all = self.each_owner().filter(|(_, cell)| get(&cell.waiting) != 0);
            all.map(|(owner, _)| owner).collect()
        };
        let mut broken = 0;
        // As many as there can be, and no more, should somebody make new ones all the time.
        for _ in 0..1_000_000 {
            if self.break_one(waiting())? != Found::Broken {
                break;
            }
            broken += 1;
        }
        Ok(broken)
    }

    /// What an owner waits for, if it does.
    fn wish(&self, owner: u32) -> Result<Option<Wish>, Error> {
        let Some(cell) = self.owner_cell(owner)? else { return Ok(None) };
        let (at, partition, _) = cell.wait();
        if at == 0 || partition >= PARTITIONS {
            return Ok(None);
        }
        let latched = self.latch(partition)?;
        // Under the latch a wait in this partition neither begins nor ends.
        let now = cell.wait();
        if (now.0, now.1) != (at, partition) {
            return Ok(None);
        }
        let request = self.request(at)?;
        let (object_at, state) = (get(&request.object), State::of(get(&request.state)));
        if !state.waits() || get(&request.owner) != owner {
            return Ok(None);
        }
        let blockers = latched.blockers(self.object(object_at)?, at, owner, state)?;
        let link = Link {
            owner: OwnerId { index: owner, generation: get(&cell.generation) },
            object: told(&self.inner().region, self.name_of(object_at)?),
            held: (state.status == status::CONVERTING).then_some(state.mode),
            wanted: state.want,
            hard: true,
        };
        Ok(Some(Wish { owner, at, partition, ticket: now.2, blockers, link }))
    }

    /// Breaks all deadlocks that an owner is part of, or waits for: its one wait may have closed
    /// several. Whether it should look again soon, for one changed while it was looked at.
    pub(crate) fn detect_from(&self, owner: u32) -> Result<bool, Error> {
        for _ in 0..1000 {
            match self.break_one(vec![owner])? {
                Found::Broken => {}
                found => return Ok(found == Found::Changed),
            }
        }
        Ok(true)
    }

    /// Breaks one deadlock that these owners lead to.
    ///
    /// Those of hard edges come first: if b stands behind c for what a holds, and a waits for b,
    /// then c is in a cycle, too, but to sacrifice it would help nobody.
    fn break_one(&self, starts: Vec<u32>) -> Result<Found, Error> {
        // Each round ends with a move or a victim; a move is made once in each wait.
        for _ in 0..1000 {
            let found = match self.cycle(&starts, true)? {
                Some(cycle) => Some(cycle),
                None => self.cycle(&starts, false)?,
            };
            let Some(cycle) = found else { return Ok(Found::None) };
            if !self.is_real(&cycle)? {
                return Ok(Found::Changed);
            }
            if self.soften(&cycle)? {
                self.counters.softened();
                continue;
            }
            let broken = self.sacrifice(&cycle)?;
            return Ok(if broken { Found::Broken } else { Found::Changed });
        }
        Ok(Found::Changed)
    }

    /// A cycle that these owners lead to: of hard edges alone, or of any.
    fn cycle(&self, starts: &[u32], hard: bool) -> Result<Option<Vec<Wish>>, Error> {
        // Where on the path an owner is; none if all that it leads to was seen.
        let mut seen: HashMap<u32, Option<usize>> = HashMap::new();
        for start in starts {
            if seen.contains_key(start) {
                continue;
            }
            let Some(first) = self.wish(*start)? else { continue };
            seen.insert(*start, Some(0));
            let mut path = vec![(first, 0)];
            while let Some((wish, next)) = path.last_mut() {
                let Some(blocker) = wish.blockers.get(*next).copied() else {
                    seen.insert(wish.owner, None);
                    path.pop();
                    continue;
                };
                *next += 1;
                if hard && !blocker.hard {
                    continue;
                }
                wish.link.hard = blocker.hard;
                match seen.get(&blocker.owner) {
                    Some(Some(place)) => {
                        return Ok(Some(path.drain(*place..).map(|(wish, _)| wish).collect()));
                    }
                    Some(None) => {}
                    None => match self.wish(blocker.owner)? {
                        Some(wish) => {
                            seen.insert(blocker.owner, Some(path.len()));
                            path.push((wish, 0));
                        }
                        None => {
                            seen.insert(blocker.owner, None);
                        }
                    },
                }
            }
        }
        Ok(None)
    }

    /// Whether all of a cycle stands, read once more.
    fn is_real(&self, cycle: &[Wish]) -> Result<bool, Error> {
        for (place, old) in cycle.iter().enumerate() {
            let next = cycle[(place + 1) % cycle.len()].owner;
            let Some(now) = self.wish(old.owner)? else { return Ok(false) };
            let same = now.at == old.at && now.ticket == old.ticket;
            if !same || !now.blockers.iter().any(|blocker| blocker.owner == next) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Moves an owner of the cycle before the one that it merely stands behind.
    fn soften(&self, cycle: &[Wish]) -> Result<bool, Error> {
        for (place, wish) in cycle.iter().enumerate().filter(|(_, wish)| !wish.link.hard) {
            let next = &cycle[(place + 1) % cycle.len()];
            if next.partition != wish.partition {
                continue;
            }
            let (Some(cell), Some(other)) =
                (self.owner_cell(wish.owner)?, self.owner_cell(next.owner)?)
            else {
                continue;
            };
            let latched = self.latch(wish.partition)?;
            let same = cell.wait() == (wish.at, wish.partition, wish.ticket);
            let still = other.wait() == (next.at, next.partition, next.ticket);
            let (request, ahead) = (self.request(wish.at)?, self.request(next.at)?);
            if !same || !still || get(&request.object) != get(&ahead.object) {
                continue;
            }
            if [request, ahead].iter().any(|each| get(&each.partition) != latched.number) {
                return crate::table::ring();
            }
            let states = (State::of(get(&request.state)), State::of(get(&ahead.state)));
            let both = states.0.status == status::WAITING && states.1.status == status::WAITING;
            if !both || get(&cell.forward) == wish.ticket {
                continue;
            }
            let object = self.object(get(&request.object))?;
            // Only if it can go at once: otherwise the cycle would only change its shape.
            if latched.stopped(object, wish.owner, states.0.want)?.is_some() {
                continue;
            }
            put(&cell.forward, wish.ticket);
            // Should we die in between, the sweep refuses what is away.
            self.note_away(wish.at)?;
            latched.unlink(object, wish.at, request, State { status: status::AWAY, ..states.0 })?;
            latched.link_before(object, wish.at, next.at, states.0)?;
            latched.advance(object)?;
            drop(latched);
            self.wake_all()?;
            #[cfg(feature = "tracing")]
            crate::trace::moved(&wish.link, next.link.owner);
            return Ok(true);
        }
        Ok(false)
    }

    /// Refuses one request of the cycle.
    fn sacrifice(&self, cycle: &[Wish]) -> Result<bool, Error> {
        let owners: Vec<u32> = cycle.iter().map(|wish| wish.owner).collect();
        let place = self.choose(&owners)?;
        // If somebody sacrificed another meanwhile, the choice may have followed from it.
        if !self.is_real(cycle)? {
            return Ok(false);
        }
        let victim = &cycle[place];
        let Some(cell) = self.owner_cell(victim.owner)? else { return Ok(false) };
        if get(&cell.state) != LIVE {
            return Ok(false);
        }
        let links: Vec<&Link> =
            cycle[place..].iter().chain(&cycle[..place]).map(|wish| &wish.link).collect();
        let (verdict, words) = (self.write_verdict(&links)?, self.describe(&links)?);
        let latched = self.latch(victim.partition)?;
        if cell.wait() != (victim.at, victim.partition, victim.ticket) {
            return Ok(false);
        }
        // What an earlier victim of this slot did not read is replaced: the cell is the slot's.
        self.place_verdict(cell, verdict)?;
        let request = self.request(victim.at)?;
        let why = crate::owner::reason_number(Reason::Deadlock);
        latched.refuse(victim.at, request, why)?;
        put(&cell.spared, get(&cell.spared).saturating_add(1));
        drop(latched);
        self.counters.deadlock();
        let recorded = self.record(&words);
        self.wake_all()?;
        recorded?;
        #[cfg(feature = "tracing")]
        crate::trace::deadlock(&links, self.modes());
        Ok(true)
    }
}

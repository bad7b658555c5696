//! Records in flight: records that have a place which `end` has not passed. This file repairs the
//! records in flight of dead threads, and fills the places of threads that are stopped before they
//! copy (`pass_over`).
//!
//! The place of a dead thread that did not set `DONE` is filled with a record that is
//! [`VOID`](crate::Flags::VOID), and the thread's slot is restored from its note. The result is the
//! same as if the thread had appended nothing. The void record has the size of the missing one, so
//! all places after it stay valid.
//!
//! Then `end` moves over all whole records at the front, because a leader may have died, or may be
//! stopped, with its batch unpublished.
//!
//! A repair needs the latch, and this process must have claimed the slot of each dead thread. Each
//! step can be repeated, because the repairing thread may also die.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{ConstMachine, Word};

use crate::append::note;
use crate::group::{Request, State};
use crate::layout::Shared;
use crate::point::point;
use crate::record::extent;
use crate::wait::Wait;
use crate::{Error, Log, Record, Session};

/// A record in flight.
pub(crate) struct Flight<'a, M: ConstMachine> {
    word: &'a M::AtomicU64,
    request: Request,
    lsn: u64,
    /// The end of the place.
    pub(crate) to: u64,
}

impl<M: ConstMachine> Log<M> {
    /// Returns all records in flight. The latch is held.
    pub(crate) fn flights<'a>(
        &'a self,
        shared: &'a Shared<M>,
    ) -> impl Iterator<Item = Result<Flight<'a, M>, Error>> + 'a {
        // A word whose record the end has passed stays `DONE`, and the buffer may no longer hold
        // the record. Records beyond the end are all in the buffer while no places are given.
        let end = shared.end.0.load(Relaxed);
        let words = shared.groups.iter().flat_map(|group| group.requests());
        words.filter_map(move |word| {
            loop {
                // Acquire: synchronizes with the Release of `DONE`, for the record's first word.
                let request = Request(word.load(Acquire));
                let flight = self.flight(shared, word, request, end).transpose();
                // Acquire: the slot is read before the word is loaded again.
                M::fence(Acquire);
                // A thread that has continued may already append another record.
                if word.load(Relaxed) == request.0 {
                    return flight;
                }
            }
        })
    }

    /// Returns the record in flight of a request, if its place is beyond `end`.
    fn flight<'a>(
        &self,
        shared: &Shared<M>,
        word: &'a M::AtomicU64,
        request: Request,
        end: u64,
    ) -> Result<Option<Flight<'a, M>>, Error> {
        let slot = || self.slot_of(request.slot().unwrap_or(u32::MAX));
        let (lsn, bytes) = match (request.state(), request.slot()) {
            (State::Idle | State::Asked | State::Refused, _) => return Ok(None),
            (State::Placed, Some(_)) => (request.lsn(), slot()?.flight_bytes()),
            // The previous holder died while it filled this place.
            (State::Placed, None) => (request.lsn(), shared.append.filled_bytes.load(Relaxed)),
            (State::Copying, _) => (slot()?.note.lsn.load(Relaxed), slot()?.flight_bytes()),
            (State::Done, _) if request.lsn() < end => return Ok(None),
            (State::Done, _) => (request.lsn(), self.size_at(request.lsn())?),
        };
        Ok((lsn >= end).then_some(Flight { word, request, lsn, to: lsn.saturating_add(bytes) }))
    }

    /// Fills a place with a void record. The latch is held.
    fn fill(&self, shared: &Shared<M>, slot: u32, (lsn, bytes): (u64, u64)) -> Result<(), Error> {
        let record = Record::void(self.inner.seed, slot, bytes as usize);
        let mut record = record.ok_or(Error::Corrupt { what: "a record in flight" })?;
        record.place(lsn);
        self.buffer_in(shared)?.store(lsn, record.words())
    }

    /// Completes the place that a dead holder of the latch was filling.
    pub(crate) fn fill_again(&self, shared: &Shared<M>) -> Result<(), Error> {
        for flight in self.flights(shared) {
            let Flight { word, request, lsn, to } = flight?;
            if request.state() == State::Placed && request.slot().is_none() {
                let base = shared.append.filled_base.load(Relaxed);
                shared.append.base.store(base, Relaxed);
                self.fill(shared, 0, (lsn, to - lsn))?;
                // Release: as in `end_flight`.
                word.store(request.done().0, Release);
            }
        }
        Ok(())
    }

    /// Returns the size of the record in the buffer at a place.
    fn size_at(&self, lsn: u64) -> Result<u64, Error> {
        let first = self.buffer()?.word(lsn)?.load(Relaxed);
        extent(first).map(|bytes| bytes as u64).ok_or(Error::Corrupt { what: "a record in flight" })
    }
}

impl<M: ConstMachine> Session<M> {
    /// Repairs the records in flight of dead threads. Cost: one load for each request.
    pub(crate) fn end_dead_flights(&self) -> Result<(), Error> {
        let shared = self.log.shared()?;
        let end = shared.end.0.load(Relaxed);
        for group in &shared.groups {
            for word in group.requests() {
                let request = Request(word.load(Relaxed));
                let Some(slot) = request.slot().filter(|_| !request.is_free(end)) else {
                    continue;
                };
                if self.log.is_dead(u64::from(slot) + 1) {
                    let end = || {
                        self.open_latch(slot)?;
                        let latched = self.latch()?;
                        let ended = self.end_flight(shared, slot);
                        drop(latched);
                        ended
                    };
                    self.log.for_dead(u64::from(slot) + 1, end)?.unwrap_or(Ok(()))?;
                }
            }
        }
        Ok(())
    }

    /// Ends the request of a dead thread. The latch is held, and the slot is claimed.
    pub(crate) fn end_flight(&self, shared: &Shared<M>, dead: u32) -> Result<(), Error> {
        for word in shared.groups.iter().flat_map(|group| group.requests()) {
            // Acquire: synchronizes with the Release in `serve`.
            let request = Request(word.load(Acquire));
            if request.slot() != Some(dead) {
                continue;
            }
            let lsn = match request.state() {
                State::Idle | State::Done => continue,
                State::Asked | State::Refused => {
                    word.store(0, Relaxed);
                    continue;
                }
                State::Placed => request.lsn(),
                State::Copying => self.log.slot_of(dead)?.note.lsn.load(Relaxed),
            };
            let bytes = self.restore(shared, dead, lsn)?;
            self.log.fill(shared, dead, (lsn, bytes))?;
            point("repair: filled");
            // Release: synchronizes with the Acquire of the thread that moves `end`.
            word.store(request.placed(lsn).done().without_owner().0, Release);
        }
        self.move_end(shared)
    }

    /// Ends the requests of these dead threads, and waits until `end` has passed all places that
    /// are given at that time. Afterwards the state in each slot is in the log, or was restored
    /// from the note. This process has claimed the slots. Another thread may have ended one of
    /// these requests before.
    pub(crate) fn end_flights_of(&self, dead: impl Iterator<Item = u32>) -> Result<(), Error> {
        let (shared, mut to) = (self.log.shared()?, 0);
        for dead in dead {
            let latched = self.latch()?;
            self.end_flight(shared, dead)?;
            to = shared.append.reserved.load(Relaxed);
            drop(latched);
        }
        let mut wait = Wait::new(shared.group().1);
        // Acquire: synchronizes with the Release that moved the end: the records are in the buffer.
        while shared.end.0.load(Acquire) < to {
            self.wait(shared, &mut wait)?;
        }
        Ok(())
    }

    /// Restores the slot of a dead thread that has a place without a record. Returns the bytes of
    /// the place.
    fn restore(&self, shared: &Shared<M>, dead: u32, lsn: u64) -> Result<u64, Error> {
        let slot = self.log.slot_of(dead)?;
        let bytes = slot.flight_bytes();
        if bytes > shared.append.reserved.load(Relaxed).saturating_sub(lsn) {
            return Err(Error::Corrupt { what: "a record in flight" });
        }
        if slot.note.lsn.load(Relaxed) != lsn {
            // The thread died before it changed the slot.
            note(slot, lsn);
        }
        for (word, value) in [(&slot.first, &slot.note.first), (&slot.last, &slot.note.last)] {
            word.store(value.load(Relaxed), Relaxed);
        }
        slot.used.store(slot.note.used.load(Relaxed) + bytes, Relaxed);
        // Release: synchronizes with the Acquire in `being_committed`: a reader that sees the
        // commit taken back sees the transaction.
        slot.commits.store(slot.note.commits.load(Relaxed), Release);
        point("repair: slot");
        Ok(bytes)
    }

    /// Fills the place at `end` if its thread has not begun to copy its record and the buffer has
    /// room for a second record. The thread may be stopped; it requests a new place when it
    /// continues. The latch is held. Returns whether there was room.
    pub(crate) fn pass_over(&self, shared: &Shared<M>) -> Result<bool, Error> {
        let append = &shared.append;
        let end = shared.end.0.load(Relaxed);
        let front = self.log.flights(shared).find_map(|flight| {
            flight
                .ok()
                .filter(|flight| flight.lsn == end && flight.request.state() == State::Placed)
        });
        let Some((Some(slot), flight)) = front.map(|flight| (flight.request.slot(), flight)) else {
            return Ok(true);
        };
        let bytes = flight.to - flight.lsn;
        // Its thread uses its own credit for the record that it appends when it continues.
        let (reserved, promised) = (append.reserved.load(Relaxed), append.promised.load(Relaxed));
        // Acquire, both: as in `grant`.
        let used = reserved.saturating_sub(shared.written.0.load(Acquire));
        let space = shared.prepared.0.load(Acquire);
        let sums = (reserved, used, promised.saturating_sub(reserved));
        let room = self.log.buffer_size(shared)?.room(self.log.inner.buffer_base, sums);
        if bytes > room.min(space.saturating_sub(promised + self.all_aside(shared))) {
            return Ok(false);
        }
        let base = append.base.load(Relaxed) + bytes;
        append.filled_base.store(base, Relaxed);
        // Release: a holder that dies leaves the bytes and the base of the place that it fills.
        append.filled_bytes.store(bytes, Release);
        let (own, ownerless) = (flight.request.0, flight.request.without_owner());
        // Release: after that store. The thread of the place cannot begin to copy after this
        // exchange.
        if flight.word.compare_exchange(own, ownerless.0, Release, Relaxed).is_err() {
            return Ok(true);
        }
        point("pass over: taken");
        append.base.store(base, Relaxed);
        append.promised.store(promised + bytes, Relaxed);
        self.log.fill(shared, slot, (flight.lsn, bytes))?;
        // Release: as in `end_flight`.
        flight.word.store(ownerless.done().0, Release);
        self.move_end(shared)?;
        Ok(true)
    }

    /// Moves `end` over all whole records at the front. The latch is held.
    pub(crate) fn move_end(&self, shared: &Shared<M>) -> Result<(), Error> {
        let mut done = Vec::new();
        let mut end = shared.end.0.load(Relaxed);
        for flight in self.log.flights(shared) {
            let flight = flight?;
            if flight.request.state() == State::Done {
                done.push(flight);
            }
        }
        loop {
            let front = done.iter().find(|flight| flight.lsn == end);
            let Some(to) = front.map(|flight| flight.to) else { break };
            // Release: as in `publish`. If a leader has moved the end, that leader continues.
            end = match shared.end.0.compare_exchange(end, to, Release, Relaxed) {
                Ok(_) => to,
                Err(moved) => moved,
            };
        }
        shared.groups.iter().for_each(|group| group.raise_end(end));
        Ok(())
    }
}

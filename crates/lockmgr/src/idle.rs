//! Requests that stay in their queue for an owner that comes back.
//!
//! An owner that has given one lock back twice will most likely ask for it again. If nobody else is
//! in the queue, its request stays where it is, *idle*: it holds nothing and stops nobody, and to
//! take the lock again is to write its state. That saves two lists, a look for the object and one
//! for a request: half of a lock's cost and more.
//!
//! An idle request is in its owner's list and in its object's queue as any other, and is taken out
//! of both when its owner ends, releases all, or is not alone any more. So nothing that walks a list
//! has to know it, but that it neither holds nor waits; and after a death it is what the state says.
//!
//! Which requests are idle is known to their session alone: 512 *seats* by the hash of the name. A
//! seat that is taken by a name that does not come back goes to one that does, at the second try.

use core::cell::Cell;

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::latch::Latched;
use crate::layout::{Request, Small, Spot, get, put, status};
use crate::mode::Mode;
use crate::name::Name;
use crate::owner::{Last, Owner};
use crate::queue::State;
use crate::session::Session;

/// Seats of a session.
const SEATS: usize = 512;

/// Which name came by last, and its idle request.
#[derive(Default)]
pub(crate) struct Seat {
    /// Of the name and the owner: equal for equal ones, and nearly always different for others.
    tag: Cell<u32>,
    /// Null if the seat is free.
    request: Cell<u32>,
    /// Whether another wanted the seat since this one came back.
    doubted: Cell<bool>,
}

/// The seats of a session.
pub(crate) struct Seats {
    seats: [Seat; SEATS],
    /// How many are taken.
    taken: Cell<u32>,
}

impl Default for Seats {
    fn default() -> Self {
        Self { seats: core::array::from_fn(|_| Seat::default()), taken: Cell::new(0) }
    }
}

impl Seats {
    #[inline(always)]
    fn of(&self, hash: u32) -> &Seat {
        &self.seats[(hash >> 23) as usize % SEATS]
    }

    #[inline(always)]
    fn take(&self, seat: &Seat, request: u32) {
        seat.request.set(request);
        self.taken.set(self.taken.get() + 1);
    }

    #[inline(always)]
    fn leave(&self, seat: &Seat) -> u32 {
        seat.doubted.set(false);
        self.taken.set(self.taken.get() - 1);
        seat.request.take()
    }
}

/// What to do with a request that is given back.
pub(crate) enum Leave {
    /// It is idle now.
    Idle,
    /// Take it out.
    Out,
    /// Take it out; and afterwards, with no latch held, this one too, which has lost its seat.
    OutWith(u32),
}

impl<'s, M: ConstMachine> Owner<'s, M> {
    #[inline(always)]
    fn tag(&self, hash: u32) -> u32 {
        hash ^ (self.index ^ self.generation.rotate_left(16)).wrapping_mul(0x9e37_79b1)
    }

    /// The request that is most likely this owner's idle one for a hash; null if there is none.
    #[inline(always)]
    pub(crate) fn idle_for(&self, hash: u32) -> u32 {
        let seat = self.session.seats.of(hash);
        if seat.tag.get() == self.tag(hash) { seat.request.get() } else { 0 }
    }

    /// Takes a lock again by its idle request, if it is that and nobody else is in the queue. One
    /// that is not alone is taken out.
    #[inline(never)]
    pub(crate) fn retake(
        &self,
        at: u32,
        name: &Name<'_>,
        spot: Spot,
        mode: Mode,
    ) -> Result<bool, Error> {
        let session: &'s Session<M> = self.session;
        let request = session.request(at)?;
        let object_at = get(&request.object);
        let object = session.object(object_at)?;
        // In a queue, so that its object has its name for good: no latch is needed to read it.
        if get(&request.owner) != self.index || !session.has_name(object_at, object, name.bytes)? {
            return Ok(false);
        }
        let latched = session.latch(spot.partition)?;
        if session.modes().is_weak(mode) {
            latched.missed(spot.bias)?;
        } else {
            // What it moves of others', or of this owner's, is in the queue then.
            latched.close(spot.bias)?;
        }
        session.seats.leave(session.seats.of(name.hash as u32));
        if get(&object.length) != 1 {
            return self.evict_latched(latched, at);
        }
        put(&request.count, 1);
        put(&request.mark, self.next_mark());
        latched.weigh_in(spot.bias, mode);
        // Nobody else is there: these are all.
        put(&object.masks, u32::from(mode.bit()));
        put(&request.state, State::held(mode).word());
        session.point("idle request taken again");
        self.remember_as(Last { at, object_at, request, object });
        session.counters.granted();
        Ok(true)
    }

    /// Whether a request that is given back for good may stay, and if so leaves it idle.
    #[inline(always)]
    pub(crate) fn leave(
        &self,
        latched: &Latched<'_, M>,
        at: u32,
        request: &Request<M>,
        object: &Small<M>,
    ) -> Leave {
        let hash = get(&object.hash);
        let seat = self.session.seats.of(hash);
        let tag = self.tag(hash);
        let state = State::of(get(&request.state));
        if get(&object.length) != 1 || state.status != status::HELD || self.session.modest {
            return Leave::Out;
        }
        if seat.tag.get() != tag {
            return match (seat.request.get(), seat.doubted.get()) {
                (0, _) => {
                    seat.tag.set(tag);
                    Leave::Out
                }
                (_, false) => {
                    seat.doubted.set(true);
                    Leave::Out
                }
                (_, true) => {
                    seat.tag.set(tag);
                    Leave::OutWith(self.session.seats.leave(seat))
                }
            };
        }
        if seat.request.get() != 0 {
            return Leave::Out;
        }
        latched.weigh_out(get(&request.bias), state.mode);
        put(&object.masks, 0);
        put(&request.state, State::idle(state.mode).word());
        self.session.point("request left idle");
        self.session.seats.take(seat, at);
        self.forget_last();
        Leave::Idle
    }

    /// Takes an idle request, which has no seat any more, out of its queue and its owner's list.
    #[cold]
    #[inline(never)]
    fn evict_latched(&self, latched: Latched<'_, M>, at: u32) -> Result<bool, Error> {
        latched.release(at)?;
        drop(latched);
        self.discard(at)?;
        self.session.wake_all()?;
        Ok(false)
    }

    /// From here on none of its requests is idle for this session: whoever walks the owner's list
    /// takes them out.
    pub(crate) fn forget_idle(&self) -> Result<(), Error> {
        for seat in self.idle_seats()? {
            self.session.seats.leave(seat);
        }
        Ok(())
    }

    /// Takes all of its idle requests out.
    pub(crate) fn evict_all(&self) -> Result<(), Error> {
        for seat in self.idle_seats()? {
            self.session.evict(self.session.seats.leave(seat))?;
        }
        Ok(())
    }

    /// The seats of its idle requests.
    pub(crate) fn idle_seats(&self) -> Result<Vec<&Seat>, Error> {
        let mut found = Vec::new();
        if self.session.seats.taken.get() != 0 {
            for seat in &self.session.seats.seats {
                let at = seat.request.get();
                if at != 0 && get(&self.session.request(at)?.owner) == self.index {
                    found.push(seat);
                }
            }
        }
        Ok(found)
    }
}

impl<M: ConstMachine> Session<M> {
    /// Takes out an idle request of any owner of this session's, which has lost its seat.
    #[cold]
    #[inline(never)]
    pub(crate) fn evict(&self, at: u32) -> Result<(), Error> {
        let request = self.request(at)?;
        let latched = self.latch(get(&request.partition))?;
        latched.release(at)?;
        drop(latched);
        match self.owner_cell(get(&request.owner))? {
            Some(cell) => self.discard(cell, at),
            None => crate::table::ring(),
        }
    }
}

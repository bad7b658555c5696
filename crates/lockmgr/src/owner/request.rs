//! Requests, and their path to the table: granted immediately, or queued.

use core::sync::atomic::Ordering::SeqCst;

use latchwork_machine::ConstMachine;
use latchwork_region::Offset;

use crate::fastpath::entry::Taken;
use crate::ids::OwnerId;
use crate::memory::cells::{ObjectAt, Request, RequestAt, Small, Spot, get, put};
use crate::memory::handle::{Last, Owner};
use crate::memory::latch::Latched;
use crate::memory::names::Name;
use crate::memory::numbers::PartitionNumber;
use crate::memory::state::{State, status};
use crate::mode::Mode;
use crate::options::{Step, Wait};
use crate::{Error, Reason};

impl<'s, M: ConstMachine> Owner<'s, M> {
    /// Requests a lock, and returns whether it is granted or waits. While it waits, the owner can
    /// only [`poll`](Self::poll), [`finish`](Self::finish) or [`cancel`](Self::cancel).
    ///
    /// # Errors
    ///
    /// The errors of [`lock_with`](Self::lock_with), except for deadlocks and timeouts, which the
    /// wait reports.
    #[inline]
    pub fn request(&self, name: &[u8], mode: Mode, wait: Wait) -> Result<Step, Error> {
        self.ready()?;
        self.allowed(mode)?;
        self.note_hold(name)?;
        let name = self.memory.named(name)?;
        let spot = self.memory.spot(name.hash);
        let mut taken = Taken::No;
        if self.memory.weak & mode.bit() != 0 {
            taken = self.weak_take(&name, spot, mode);
        } else if self.may_have_reserved(name.hash) {
            taken = self.reserved_take(&name, spot, mode);
        } else {
            // The partition's line is usually in no near cache, and is latched some hundred
            // instructions later: this makes puts by two threads 2 to 7 % faster.
            M::prefetch(&self.memory.partition(spot.partition)?.heads.word);
        }
        if taken == Taken::Yes {
            self.memory.counters.weak();
            return Ok(Step::Granted);
        }
        self.request_slow(name, spot, mode, wait, taken)
    }

    /// Continues a request that the first attempt in the owner's own memory did not grant.
    #[inline(never)]
    fn request_slow(
        &self,
        name: Name<'_>,
        spot: Spot,
        mode: Mode,
        wait: Wait,
        taken: Taken,
    ) -> Result<Step, Error> {
        let memory = self.memory;
        if memory.weak & mode.bit() != 0 {
            if self.weak_lock(&name, spot, mode, taken)? {
                memory.counters.weak();
                return Ok(Step::Granted);
            }
            // The name may be reserved for this slot, which serves any mode.
            match self.reserved_take(&name, spot, mode) {
                Taken::Yes => {
                    memory.counters.weak();
                    return Ok(Step::Granted);
                }
                Taken::No => {}
                Taken::Closed(at, old) => {
                    self.weak_undo(spot, at, old)?;
                }
            }
        } else if let Taken::Closed(at, old) = taken {
            self.weak_undo(spot, at, old)?;
        }
        memory.counters.request();
        if self.asks_often(&name, mode) && memory.with_room(|| self.reserve(&name, spot, mode))? {
            memory.counters.granted();
            return Ok(Step::Granted);
        }
        self.request_in_table(&name, spot, mode, wait)
    }

    /// Makes a request in the table.
    #[inline(always)]
    pub(crate) fn request_in_table(
        &self,
        name: &Name<'_>,
        spot: Spot,
        mode: Mode,
        wait: Wait,
    ) -> Result<Step, Error> {
        self.memory.with_room(|| self.request_once(name, spot, mode, wait))
    }

    #[inline(never)]
    pub(crate) fn request_once(
        &self,
        name: &Name<'_>,
        spot: Spot,
        mode: Mode,
        wait: Wait,
    ) -> Result<Step, Error> {
        // Not if it may convert its last lock: then others wait for this owner.
        let is_patient = || {
            let last = get(&self.cell.head);
            let elsewhere = |it: &Request<M>| get(&it.partition) != spot.partition;
            !matches!(wait, Wait::Never)
                && (last.is_null() || self.memory.request(last).is_ok_and(elsewhere))
        };
        let latched = self.memory.latch_unless_others(spot.partition, is_patient)?;
        if self.memory.modes().is_weak(mode) {
            self.note_in_table(name.hash);
            latched.missed(spot.bias)?;
        } else {
            latched.close_by(spot.bias, wait.deadline())?;
        }
        if self.entries.get() != 0
            && let Some(page) = self.weak_page()?
            && let Some(at) = self.entry_of(page, name)
        {
            self.settle(&latched, page, at)?;
        }
        let (object_at, object) = latched.find_or_make(name)?;
        let mut younger = Vec::new();
        let asked = self.ask(&latched, (object_at, object), spot, mode, wait, &mut younger);
        if get(&object.head).is_null() {
            latched.retire(object_at, object)?;
        }
        drop(latched);
        let woken = self.memory.wake_all();
        let step = asked?;
        let wound = |owner| self.memory.abort(owner, Reason::Wounded);
        match woken.and_then(|()| younger.into_iter().try_for_each(wound)) {
            // The request must not stay in the queue if the caller receives an error.
            Err(error) if step == Step::Waiting => self.give_up(error).map(|()| Step::Granted),
            // The lock is granted to the caller; the error concerns other owners' requests.
            _ => Ok(step),
        }
    }

    /// Makes the request, with the latch held.
    #[inline]
    fn ask(
        &self,
        latched: &Latched<'s, M>,
        (object_at, object): (ObjectAt<M>, &'s Small<M>),
        spot: Spot,
        mode: Mode,
        wait: Wait,
        younger: &mut Vec<OwnerId>,
    ) -> Result<Step, Error> {
        let modes = self.memory.modes();
        let own = self.find_own(latched, object_at, object)?;
        if !own.is_null() {
            let request = self.memory.request(own)?;
            let old = get(&request.state);
            if request.count() >= 0xffff {
                return Err(Error::Count);
            }
            let made = modes.convert(old.mode, mode);
            if !modes.is_weak(made) {
                latched.close_by(spot.bias, wait.deadline())?;
            }
            if made == old.mode || latched.stopped(object, self.index, made)?.is_none() {
                if made != old.mode {
                    latched.set(object, request, State::held(made));
                    // A child of this owner may precede the waiters that this mode blocks.
                    if self.memory.inner().has_families()? {
                        latched.advance(object)?;
                    }
                }
                put(&request.count, get(&request.count) + 1);
                self.memory.counters.granted();
                return Ok(Step::Granted);
            }
            let waiting = State { status: status::CONVERTING, mode: old.mode, want: made, why: 0 };
            self.may_wait(latched, object_at, own, waiting, wait, younger)?;
            latched.begin_conversion(object, request, waiting)?;
            self.converting.set(true);
            self.begin_wait(own, spot.partition, made);
            return Ok(Step::Waiting);
        }
        let held = get(&self.cell.held);
        if let Some(cap) = self.memory.inner().options.owner_locks.filter(|cap| held >= *cap) {
            return Err(Error::Cap("locks of an owner", cap));
        }
        let stopped = latched.stopped(object, self.index, mode)?;
        let (behind, before) = latched.behind(object, self.index, mode)?;
        let free = stopped.is_none() && behind.is_none();
        if !free {
            self.may_wait(latched, object_at, Offset::NULL, State::waiting(mode), wait, younger)?;
        }
        let (at, request) = self.new_request(object_at, spot.partition, 1)?;
        if free {
            latched.link_front(object, at, request, mode)?;
            self.remember_as(Last { at, object_at, request, object });
            self.memory.counters.granted();
            return Ok(Step::Granted);
        }
        latched.link_before(object, at, before, State::waiting(mode))?;
        self.converting.set(false);
        self.begin_wait(at, spot.partition, mode);
        Ok(Step::Waiting)
    }

    /// Applies the kind of wait to the owners in the way: returns an error, or the `younger` owners
    /// to wound.
    #[cold]
    fn may_wait(
        &self,
        latched: &Latched<'_, M>,
        object_at: ObjectAt<M>,
        me: RequestAt<M>,
        waiting: State,
        wait: Wait,
        younger: &mut Vec<OwnerId>,
    ) -> Result<(), Error> {
        let object = self.memory.object(object_at)?;
        match wait {
            Wait::Never => return Err(Error::NotGranted),
            Wait::Detect | Wait::Until(_) => {}
            Wait::Die | Wait::Wound => {
                for blocker in latched.blockers(object, me, self.index, waiting)? {
                    let Some(cell) = self.memory.owner_cell(blocker.owner)? else { continue };
                    let older = (get(&cell.age), blocker.owner) < (self.age()?, self.index);
                    let id = blocker.owner.id(get(&cell.generation));
                    if matches!(wait, Wait::Wound) && !older {
                        younger.push(id);
                    } else if matches!(wait, Wait::Die) && older {
                        return Err(Error::Died(id));
                    }
                }
            }
        }
        Ok(())
    }

    fn begin_wait(&self, at: RequestAt<M>, partition: PartitionNumber, want: Mode) {
        self.note_wait(at, want);
        put(&self.cell.since, self.memory.now());
        put(&self.cell.partition, partition);
        put(&self.cell.ticket, get(&self.cell.ticket).wrapping_add(1));
        put(&self.cell.forward, 0);
        put(&self.cell.waiting, at);
        // SeqCst: this store precedes the load of `abort` in `Owner::poll`, as in `Memory::abort`
        // the store of `abort` precedes the load of `waiting`: at least one of the two threads sees
        // the other's store.
        M::fence(SeqCst);
        self.pending.set(at);
        self.memory.counters.waited();
    }
}

//! Releasing what owners have whose thread is gone, and what a thread had in hand as it died.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use latchwork_machine::{ConstMachine, Integer, Word};
use latchwork_region::{Dead, Offset, Thread};

use crate::Error;
use crate::memory::cells::{
    ObjectAt, OwnerCell, PAGES, Request, RequestAt, Table, WEAK, WeakPage, cell_at, get, put,
};
use crate::memory::entry::Entry;
use crate::memory::latch::Latched;
use crate::memory::names::Name;
use crate::memory::numbers::{OwnerNumber, PartitionNumber};
use crate::memory::owner_state::OwnerState;
use crate::memory::state::{State, status};
use crate::memory::typed::Stored;
use crate::memory::{Memory, intents, names};
use crate::mode::Mode;
use crate::recovery::orphans::label_of;

impl<M: ConstMachine> Memory<M> {
    /// The places of the pages that each of these dead threads has: in one walk, for there are as
    /// many pages as threads that ever had owners at once.
    pub(crate) fn pages_of(&self, dead: &[Dead<'_, M>]) -> Result<Vec<Vec<u32>>, Error> {
        let mut found = vec![Vec::new(); dead.len()];
        for place in 0..PAGES as u32 {
            let Some(page) = self.page(place)? else { break };
            let thread = get(&page.thread);
            let its = dead.iter().position(|dead| dead.number() + 1 == thread);
            its.into_iter().for_each(|its| found[its].push(place));
        }
        Ok(found)
    }

    /// Releases what a dead thread's owners held, or keeps it for recovery: those in the pages at
    /// these places, which are the thread's.
    pub(crate) fn release_dead(&self, dead: &Dead<'_, M>, places: &[u32]) -> Result<(), Error> {
        let (mut released, mut orphaned) = (0u32, 0u32);
        for &place in places {
            let Some(page) = self.page(place)? else { break };
            let (mut orphans, mut undecided) = (0, false);
            for (at, cell) in page.owners.iter().enumerate() {
                // One that is kept already was kept by a sweeper that died.
                if !get(&cell.state).is_live() {
                    undecided |= get(&cell.state) == OwnerState::UNDECIDED;
                    orphans += u32::from(get(&cell.state).is_kept());
                    continue;
                }
                let index = OwnerNumber::new(place, at);
                self.withdraw_of(cell)?;
                let holds = self.has_strong(cell)? || self.has_weak(cell)?;
                let id = index.id(get(&cell.generation));
                let label = label_of(cell);
                let kept = if holds { self.kept_as(id, &label)? } else { None };
                if let Some(state) = kept {
                    self.keep_owner(dead, cell, state)?;
                    undecided |= state == OwnerState::UNDECIDED;
                    orphans += 1;
                    self.inner().orphaned.fetch_add(1, Relaxed);
                    #[cfg(feature = "tracing")]
                    crate::meter::events::orphaned(id, &label);
                } else {
                    self.release_cell(index, cell)?;
                    released += 1;
                }
                self.point("dead owner released");
                self.point("dead owner decided");
            }
            // Before the page is done: else a sweeper that comes after our death would pass it by.
            if undecided {
                self.tell_deciders()?;
            }
            if orphans != 0 {
                self.make_orphanage(place, page)?;
            } else {
                self.free_page(place, page)?;
            }
            orphaned += orphans;
        }
        #[cfg(feature = "tracing")]
        crate::meter::events::swept(dead.number(), released, orphaned);
        let _ = (released, orphaned);
        Ok(())
    }

    /// Releases what ended owners of this session could not, as far as that goes now.
    #[cold]
    pub(crate) fn release_ended(&self) {
        for index in self.ended.take() {
            let Ok(Some(cell)) = self.owner_cell(index) else { continue };
            match self.release_cell(index, cell) {
                Ok(()) => self.give_owner(index),
                Err(_) => self.ended.borrow_mut().push(index),
            }
        }
    }

    /// Releases what owners hold that the last session of this thread's slot left there.
    pub(crate) fn release_left(&self) -> Result<(), Error> {
        let thread = self.thread.number() + 1;
        for place in 0..PAGES as u32 {
            let Some(page) = self.page(place)? else { break };
            if get(&page.thread) != thread {
                continue;
            }
            for (at, cell) in page.owners.iter().enumerate() {
                if get(&cell.state).is_live() {
                    self.withdraw_of(cell)?;
                    self.release_cell(OwnerNumber::new(place, at), cell)?;
                    self.point("left owner released");
                }
            }
            self.free_page(place, page)?;
        }
        Ok(())
    }

    /// Whether it holds anything in the table.
    fn has_strong(&self, cell: &OwnerCell<M>) -> Result<bool, Error> {
        for at in self.own_list(cell)? {
            if get(&self.request(at)?.state).holds() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn has_weak(&self, cell: &OwnerCell<M>) -> Result<bool, Error> {
        if get(&cell.weak).is_null() {
            return Ok(false);
        }
        let page = cell_at(self.region(), get(&cell.weak))?;
        Ok(page.states.iter().any(|state| get(state).count != 0))
    }

    /// Withdraws what an owner that is gone waited for.
    pub(crate) fn withdraw_of(&self, cell: &OwnerCell<M>) -> Result<(), Error> {
        for at in self.own_list(cell)? {
            let request = self.request(at)?;
            let latched = self.latch(get(&request.partition).within(self.partitions()))?;
            let state = get(&request.state);
            let object_at = get(&request.object);
            match state.status {
                status::HELD if self.is_waiting_claim(cell, at)? => {
                    drop(latched);
                    self.forget_range(cell, at)?;
                    let latched = self.latch(get(&request.partition).within(self.partitions()))?;
                    self.take_out(&latched, object_at, at)?;
                }
                status::CONVERTING => {
                    let object = self.object(object_at)?;
                    latched.set(object, request, State::held(state.mode));
                    latched.advance(object)?;
                }
                status::WAITING => self.take_out(&latched, object_at, at)?,
                _ => {}
            }
        }
        put(&cell.waiting, Offset::NULL);
        self.wake_all()
    }

    fn take_out(
        &self,
        latched: &Latched<'_, M>,
        object_at: ObjectAt<M>,
        at: RequestAt<M>,
    ) -> Result<(), Error> {
        let object = self.object(object_at)?;
        let request = self.request(at)?;
        let state = get(&request.state);
        latched.unlink(object, at, request, State { status: status::NEW, ..state })?;
        latched.advance(object)?;
        if get(&object.head).is_null() {
            latched.retire(object_at, object)?;
        }
        Ok(())
    }

    /// Releases all that an owner has, though its thread is gone, and frees its cell.
    pub(crate) fn release_cell(
        &self,
        index: OwnerNumber,
        cell: &OwnerCell<M>,
    ) -> Result<(), Error> {
        if !get(&cell.weak).is_null() {
            let page = cell_at(self.region(), get(&cell.weak))?;
            for at in 0..WEAK {
                self.release_entry(index, cell, page, at)?;
            }
        }
        loop {
            let at = get(&cell.head);
            if at.is_null() {
                break;
            }
            let request = self.request(at)?;
            self.forget_range(cell, at)?;
            let latched = self.latch(get(&request.partition).within(self.partitions()))?;
            let state = get(&request.state);
            if state.holds() || state.waits() {
                self.take_out(&latched, get(&request.object), at)?;
            }
            put(&request.own_prev, Offset::NULL);
            self.note_listed(at)?;
            let next = get(&request.own_next);
            put(&cell.head, next);
            self.point("dead owner's request taken");
            if !next.is_null() {
                put(&self.request(next)?.own_prev, Offset::NULL);
            }
            put(&cell.held, get(&cell.held).saturating_sub(1));
            self.free_cell(at)?;
            drop(latched);
        }
        self.drop_report(cell)?;
        put(&cell.held, 0);
        put(&cell.ranges, 0);
        put(&cell.notifier, 0);
        put(&cell.waiting, Offset::NULL);
        put(&cell.state, OwnerState::FREE);
        self.wake_all()
    }

    /// Releases a weak lock, in the page or moved. Also one whose entry is free: its owner may have
    /// died before it took the moved request out.
    fn release_entry(
        &self,
        index: OwnerNumber,
        cell: &OwnerCell<M>,
        page: &WeakPage<M>,
        at: usize,
    ) -> Result<(), Error> {
        let entry = get(&page.states[at]);
        let hash = get(&page.hashes[at]);
        if entry.length == 0 || entry.length > 64 {
            return Ok(());
        }
        let latched = self.latch(self.spot(hash).partition)?;
        let bytes = names::read::<M>(&page.names[at], entry.length);
        let object_at = latched.find(&Name { bytes: &bytes, hash })?;
        let moved = if object_at.is_null() {
            Offset::NULL
        } else {
            latched.moved_of(page, at, object_at, index)?
        };
        // One that its owner had begun to make its own is in its list, and goes with that.
        if !moved.is_null() && !self.own_list(cell)?.contains(&moved) {
            self.note_moved(moved)?;
            self.take_out(&latched, object_at, moved)?;
            self.free_cell(moved)?;
        }
        put(&page.moved[at], Offset::NULL);
        // Last: should we die before, the next sweeper finds the moved request by the entry.
        put(&page.states[at], Entry { count: 0, length: 0, mode: Mode(0), ..entry });
        Ok(())
    }

    /// Frees what a dead thread had taken out of a list and not yet freed.
    pub(crate) fn free_noted(&self, dead: &Dead<'_, M>) -> Result<(), Error> {
        let notes = dead.intent();
        self.free_noted_request(get(&notes[intents::REQUEST]))?;
        if let Some(at) = self.noted(get(&notes[intents::OBJECT]))? {
            let number = PartitionNumber::of(get(&notes[intents::OBJECT_IN]) as u32);
            let latched = self.latch(number.within(self.partitions()))?;
            // Once more, under the latch: it may be another object by now.
            let is_it = self.noted::<()>(get(&notes[intents::OBJECT]))?.is_some();
            if is_it && !latched.each_object()?.contains(&at) {
                self.note_object(at, latched.number)?;
                let length = self.object(at)?.name_length();
                let _ = self.free_object(at, length);
            }
        }
        if let Some(at) = self.noted::<()>(get(&notes[intents::TABLE]))? {
            let place = get(&notes[intents::TABLE_IN]);
            let latched =
                self.latch(PartitionNumber::of(place as u32).within(self.partitions()))?;
            let is_it = self.noted::<()>(get(&notes[intents::TABLE]))?.is_some();
            let used = [get(&latched.heads), get(&latched.fresh)];
            if is_it && used.iter().all(|table| table.at != at) {
                let table = Table { at, tier: (place >> 32) as u32 };
                self.note_table(table, latched.number)?;
                let _ = self.free_chains(table);
            }
        }
        self.free_noted_report(dead)?;
        self.free_noted_range(notes)
    }

    /// Frees a request that a dead thread had noted, unless something leads to it still. If that is
    /// its queue it is a lock that a closer moved, of an owner that lives or is kept, who takes it
    /// out itself: the note is void then, by a new generation. If it is an owner's list, that owner
    /// is dead or kept, and the thread that died was releasing it.
    fn free_noted_request(&self, note: u64) -> Result<(), Error> {
        let Some(at) = self.noted(note)? else { return Ok(()) };
        let request = self.request(at)?;
        // What a closer moved leaves its queue and is freed under this latch.
        let latched = self.latch(get(&request.partition).within(self.partitions()))?;
        if self.noted::<Request<M>>(note)?.is_none() || self.is_listed(at, request)? {
            return Ok(());
        }
        if latched.is_queued(at)? {
            return Ok(self.thread.adopt(at)?);
        }
        // What still held or waited was released above.
        self.note_freed(at)?;
        let _ = self.free_cell(at);
        Ok(())
    }

    /// Notes a request, which is in no queue, that is about to leave a dead owner's list and be
    /// freed, under the latch of its partition. All other notes of it are void from here on.
    pub(crate) fn note_listed(&self, at: RequestAt<M>) -> Result<(), Error> {
        self.note_freed(at)?;
        self.point("dead owner's request noted");
        Ok(())
    }

    /// Whether a request that was [noted so](Self::note_listed) has yet to leave its owner's list.
    ///
    /// Two links tell, and no walk: another thread may be releasing that owner by now. It takes
    /// from the head, or what does not hold; before a request that was noted so all hold, if it is
    /// not the head. So the one before is freed only when this one is the head, and that it is for
    /// as long as the caller has its latch: so the head is looked at last.
    fn is_listed(&self, at: RequestAt<M>, request: &Request<M>) -> Result<bool, Error> {
        let Some(cell) = self.owner_cell(get(&request.owner))? else { return Ok(false) };
        let prev = get(&request.own_prev);
        // Acquire: the look at the head comes after it. If this is not the link any more, for its
        // cell is another's, the head of before that is seen.
        let leads = |prev: &Request<M>| prev.own_next.load(Acquire) == at;
        let follows = !prev.is_null() && self.request(prev).is_ok_and(leads);
        Ok(follows || get(&cell.head) == at)
    }
}

impl<M: ConstMachine> Drop for Memory<M> {
    fn drop(&mut self) {
        if !self.thread.has_slot() {
            // It was given up: a sweep releases what its owners have, or has done it.
            return;
        }
        // Its locks would be no session's, and no dead thread's: a sweep has them to release. So it
        // is if a callback panics on the way.
        let kept = Kept(&self.thread);
        let mut all = true;
        for place in self.pages.take() {
            let Ok(Some(page)) = self.page(place) else { continue };
            let clean = page.owners.iter().enumerate().all(|(at, cell)| {
                let index = OwnerNumber::new(place, at);
                get(&cell.state).is_free() || self.release_cell(index, cell).is_ok()
            });
            if clean {
                let _ = self.free_page(place, page);
            }
            all &= clean;
        }
        let _ = self.free_spare();
        if all {
            core::mem::forget(kept);
        }
    }
}

/// A slot that is given up with what it has, if this is dropped.
struct Kept<'t, M: ConstMachine>(&'t Thread<M>);

impl<M: ConstMachine> Drop for Kept<'_, M> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use latchwork_machine::Native;
    use latchwork_region::{Offset, Region};

    use crate::granular::{IS, X, modes};
    use crate::memory::cells::{OwnerCell, RequestAt, get, put};
    use crate::memory::entry::Entry;
    use crate::memory::state::{State, status};
    use crate::memory::{Memory, intents};
    use crate::options::{Step, Wait};
    use crate::{Error, KeyRange, Manager, Options, OwnerId, RangeKind, Session};

    const NAMES: [&[u8]; 3] = [b"a", b"b", b"c"];

    /// A thread that held three names and died; its session, which is nobody's now.
    fn dies(manager: &Manager) -> (Session, OwnerId) {
        let session = manager.session().unwrap();
        let owner = session.owner().unwrap();
        NAMES.iter().for_each(|name| owner.lock(name, X).unwrap());
        let id = owner.id();
        core::mem::forget(owner);
        session.thread().abandon();
        (session, id)
    }

    fn cell_of(memory: &Memory<Native>, id: OwnerId) -> &OwnerCell<Native> {
        memory.owner_cell(id.number()).unwrap().unwrap()
    }

    /// What a sweeper does of the first lock of a dead thread's owner: it takes the request out of
    /// its queue and notes it, or out of the owner's list, too. Then it dies.
    fn sweeps(sweeper: &Session, id: OwnerId, unlists: bool) -> (RequestAt<Native>, u32) {
        let owner = sweeper.owner().unwrap();
        let (memory, cell) = (owner.memory, cell_of(owner.memory, id));
        let at = get(&cell.head);
        let request = memory.request(at).unwrap();
        let latched = memory.latch(get(&request.partition)).unwrap();
        memory.take_out(&latched, get(&request.object), at).unwrap();
        put(&request.own_prev, Offset::NULL);
        memory.note_listed(at).unwrap();
        if unlists {
            put(&cell.head, get(&request.own_next));
        }
        drop(latched);
        let generation = memory.region().lent(at).unwrap().unwrap();
        drop(owner);
        sweeper.thread().abandon();
        (at, generation)
    }

    /// The sweeper's own slot is swept before the thread's: what it had yet to take out of the
    /// list is the list's still, and what it had taken out is freed.
    #[test]
    fn what_a_dead_sweeper_was_releasing_is_released_once() {
        for unlists in [false, true] {
            let manager = Manager::private(modes()).unwrap();
            let dead = dies(&manager);
            let sweeper = manager.session().unwrap();
            let (at, generation) = sweeps(&sweeper, dead.1, unlists);
            let last = manager.session().unwrap();
            let wants = last.owner().unwrap();
            let region = manager.region();
            let number = sweeper.thread().number();
            for dead in region.dead_threads().unwrap().filter(|dead| dead.number() == number) {
                wants.memory.free_noted(&dead).unwrap();
            }
            let is_lent = region.lent(at) == Ok(Some(generation));
            assert_eq!(is_lent, !unlists);
            assert_eq!(manager.sweep(), Ok(2));
            assert_eq!(region.lent(at), Ok(None));
            NAMES.iter().for_each(|name| wants.try_lock(name, X).unwrap());
            drop(wants);
            assert!(region.audit().unwrap().is_sound());
        }
    }

    /// The note of the thread whose owner it was, which died as it put it in the list, frees
    /// nothing that a sweeper has in hand.
    #[test]
    fn what_a_sweeper_takes_no_older_note_names() {
        let manager = Manager::private(modes()).unwrap();
        let (session, id) = dies(&manager);
        let sweeper = manager.session().unwrap();
        let region = manager.region();
        let number = session.thread().number();
        let of_dead = || region.dead_threads().unwrap().find(|dead| dead.number() == number);
        let last = manager.session().unwrap();
        let memory = last.owner().unwrap().memory;
        let at = get(&cell_of(memory, id).head);
        let note = memory.name_cell(at).unwrap();
        put(&of_dead().unwrap().intent()[intents::REQUEST], note);
        let (taken, generation) = sweeps(&sweeper, id, true);
        assert_eq!(taken, at);
        memory.free_noted(&of_dead().unwrap()).unwrap();
        assert_eq!(region.lent(at), Ok(Some(generation)), "it is the sweeper's to free");
        assert_eq!(manager.sweep(), Ok(2));
        assert_eq!(region.lent(at), Ok(None));
        assert!(region.audit().unwrap().is_sound());
    }

    /// A note that a dead sweeper had taken over is its own, and that of the thread before is void.
    #[test]
    fn a_note_is_taken_over_by_one_sweeper() {
        let manager = Manager::private(modes()).unwrap();
        let [session, sweeper, last] = [(); 3].map(|()| manager.session().unwrap());
        let owner = session.owner().unwrap();
        owner.lock(b"a", X).unwrap();
        owner.unlock(b"a").unwrap();
        let at = owner.memory.spare.get();
        core::mem::forget(owner);
        session.thread().abandon();
        sweeper.owner().unwrap().memory.note_freed(at).unwrap();
        sweeper.thread().abandon();
        let region = manager.region();
        let memory = last.owner().unwrap().memory;
        for (dies, is_lent) in [(&session, true), (&sweeper, false)] {
            let number = dies.thread().number();
            let dead = region.dead_threads().unwrap().find(|dead| dead.number() == number);
            memory.free_noted(&dead.unwrap()).unwrap();
            assert_eq!(region.lent(at).unwrap().is_some(), is_lent);
        }
        assert_eq!(manager.sweep(), Ok(2));
        assert!(region.audit().unwrap().is_sound());
    }

    /// An owner that is kept, and that handed a claim over but not yet the ticket, has it again.
    #[test]
    fn a_claim_that_was_half_handed_over_is_the_givers() {
        let manager = keeps();
        let session = manager.session().unwrap();
        let [giver, taker] = [(); 2].map(|()| session.owner().unwrap());
        giver.lock_range(b"s", KeyRange::key(b"k"), RangeKind::WriteNext, Wait::Never).unwrap();
        let index = giver.index;
        let claim = giver.hand_over_range(get(&giver.cell.head), &taker).unwrap().unwrap();
        core::mem::forget((giver, taker));
        session.thread().abandon();
        assert_eq!(manager.sweep(), Ok(1));
        let last = manager.session().unwrap();
        let memory = last.owner().unwrap().memory;
        assert_eq!(get(&memory.claim(claim.0).unwrap().owner), index);
    }

    /// The request before it was freed, and its cell is another's by now, whose taker died before
    /// it said so in this one.
    #[test]
    fn the_head_of_a_list_is_in_it_whatever_was_before() {
        let manager = Manager::private(modes()).unwrap();
        let (_session, id) = dies(&manager);
        let last = manager.session().unwrap();
        let wants = last.owner().unwrap();
        let (memory, cell) = (wants.memory, cell_of(wants.memory, id));
        let first = get(&cell.head);
        let second = get(&memory.request(first).unwrap().own_next);
        let request = memory.request(second).unwrap();
        assert_eq!(get(&request.own_prev), first);
        assert_eq!(memory.is_listed(second, request), Ok(true));
        let (taken, _) = sweeps(&manager.session().unwrap(), id, true);
        assert_eq!(taken, first);
        put(&memory.request(first).unwrap().own_next, Offset::NULL);
        assert_eq!(memory.is_listed(second, request), Ok(true));
        put(&cell.head, get(&request.own_next));
        assert_eq!(memory.is_listed(second, request), Ok(false));
    }

    /// A thread that waits for one of the dead, however soon or late it is to look for deadlocks.
    #[test]
    fn a_waiter_finds_the_dead() {
        for detect_after in [Duration::ZERO, Duration::from_secs(3600), Duration::MAX] {
            let region = Region::private(&Default::default()).unwrap();
            let options = Options { detect_after, ..Options::default() };
            let manager = Manager::new(region, modes(), options).unwrap();
            let _dead = dies(&manager);
            let session = manager.session().unwrap();
            session.owner().unwrap().lock_timeout(NAMES[0], X, Duration::from_secs(60)).unwrap();
        }
    }

    fn keeps() -> Manager {
        let region = Region::private(&Default::default()).unwrap();
        let options = Options { opens_early: true, ..Options::default() };
        Manager::with_recovery(region, modes(), options, Box::new(|_, _: &[u8]| false)).unwrap()
    }

    /// An orphan that could be released in part only has a list that others can go on with.
    #[test]
    fn an_orphan_that_is_released_in_part_has_its_other_locks() {
        let manager = keeps();
        let (_session, id) = dies(&manager);
        assert_eq!(manager.sweep(), Ok(1));
        let session = manager.session().unwrap();
        let owner = session.owner().unwrap();
        let memory = owner.memory;
        // The last that it took goes first.
        let shut = memory.spot(memory.named(NAMES[1]).unwrap().hash).partition;
        let latched = memory.latch(shut).unwrap();
        assert!(session.release_orphan(id).is_err());
        drop(latched);
        assert_eq!(get(&cell_of(memory, id).held), 2);
        // Each gets the cell that was freed.
        owner.lock(NAMES[2], X).unwrap();
        owner.lock(b"d", X).unwrap();
        let adopted = session.adopt(id).unwrap();
        adopted.unlock(NAMES[1]).unwrap();
        adopted.end().unwrap();
        assert_eq!(owner.locks().unwrap().len(), 2);
        NAMES[..2].iter().for_each(|name| owner.try_lock(name, X).unwrap());
    }

    /// An adopter that is dropped while it waits, where it cannot withdraw, leaves no request that
    /// the next one would take for a lock.
    #[test]
    fn what_an_adopter_waited_for_the_next_one_does_not_hold() {
        let manager = keeps();
        let (_session, id) = dies(&manager);
        assert_eq!(manager.sweep(), Ok(1));
        let session = manager.session().unwrap();
        let holder = session.owner().unwrap();
        holder.lock(b"d", X).unwrap();
        let memory = holder.memory;
        let adopted = session.adopt(id).unwrap();
        let waits = adopted.request(b"d", X, Wait::Detect);
        assert_eq!(waits, Ok(Step::Waiting));
        let latched = memory.latch(memory.spot(memory.named(b"d").unwrap().hash).partition);
        drop(adopted);
        drop(latched.unwrap());
        let adopted = session.adopt(id).unwrap();
        assert_eq!(adopted.try_lock(b"d", X), Err(Error::NotGranted));
        assert_eq!(adopted.holds(b"d"), Ok(None));
        adopted.end().unwrap();
        holder.unlock(b"d").unwrap();
        holder.try_lock(b"d", X).unwrap();
    }

    /// Nor one that was refused since.
    #[test]
    fn what_an_adopter_was_refused_is_in_no_queue() {
        let manager = keeps();
        let (_session, id) = dies(&manager);
        assert_eq!(manager.sweep(), Ok(1));
        let session = manager.session().unwrap();
        let holder = session.owner().unwrap();
        holder.lock(b"d", X).unwrap();
        let (memory, cell) = (holder.memory, cell_of(holder.memory, id));
        let adopted = session.adopt(id).unwrap();
        assert_eq!(adopted.request(b"d", X, Wait::Detect), Ok(Step::Waiting));
        let at = get(&cell.waiting);
        let request = memory.request(at).unwrap();
        let latched = memory.latch(get(&request.partition)).unwrap();
        memory.take_out(&latched, get(&request.object), at).unwrap();
        let denied = State { status: status::DENIED, ..get(&request.state) };
        put(&request.state, denied);
        put(&cell.waiting, Offset::NULL);
        drop(adopted);
        drop(latched);
        let adopted = session.adopt(id).unwrap();
        assert_eq!(memory.own_list(cell).unwrap().len(), NAMES.len());
        adopted.end().unwrap();
        assert_eq!(holder.locks().unwrap().len(), 1);
    }

    /// Nor a range, of which a request that was forgotten is nobody's.
    #[test]
    fn what_range_an_adopter_waited_for_is_withdrawn() {
        let manager = keeps();
        let (_session, id) = dies(&manager);
        assert_eq!(manager.sweep(), Ok(1));
        let session = manager.session().unwrap();
        let [holder, other] = [(); 2].map(|()| session.owner().unwrap());
        let key = KeyRange::key(b"k");
        holder.lock_range(b"s", key, RangeKind::WriteNext, Wait::Never).unwrap();
        let adopted = session.adopt(id).unwrap();
        let waits = adopted.request_range(b"s", key, RangeKind::WriteNext, Wait::Detect).unwrap();
        assert_eq!(waits.step(), Step::Waiting);
        core::mem::forget(waits);
        drop(adopted);
        let adopted = session.adopt(id).unwrap();
        holder.release_all().unwrap();
        other.lock_range(b"s", key, RangeKind::WriteNext, Wait::Never).unwrap();
        adopted.end().unwrap();
    }

    /// An owner gave a weak lock back and died as a closer had yet to move it.
    #[test]
    fn what_is_moved_after_it_was_given_back_is_settled_by_an_adopter() {
        let manager = keeps();
        let session = manager.session().unwrap();
        let owner = session.owner().unwrap();
        owner.lock(b"held", X).unwrap();
        owner.lock(b"weak", IS).unwrap();
        let (id, memory) = (owner.id(), owner.memory);
        let name = memory.named(b"weak").unwrap();
        let spot = memory.spot(name.hash);
        let page = owner.weak_page().unwrap().unwrap();
        let at = owner.entry_of(page, &name).unwrap();
        let counted = get(&page.states[at]);
        let given_back = Entry { count: 0, ..counted };
        core::mem::forget(owner);
        session.thread().abandon();
        let other = manager.session().unwrap();
        let closer = other.owner().unwrap();
        // It is swept as one that gave it back under a bias that was closed by then.
        put(&page.states[at], given_back);
        let word = &memory.biases(spot.partition).unwrap()[spot.bias as usize];
        let open = get(word);
        put(word, open.closed());
        assert_eq!(manager.sweep(), Ok(1));
        let latched = closer.memory.latch(spot.partition).unwrap();
        assert!(other.adopt(id).is_err(), "it comes for the latch");
        // And the closer had seen it before that.
        put(&page.states[at], counted);
        latched.collect(spot.bias, open, None, &mut 0).unwrap();
        put(&page.states[at], given_back);
        drop(latched);
        other.adopt(id).unwrap().end().unwrap();
        closer.try_lock(b"weak", X).unwrap();
    }
}

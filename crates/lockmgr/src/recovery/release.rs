//! Releasing the locks of owners whose thread is dead or has ended.

use core::sync::atomic::Ordering::{Acquire, Relaxed};
use std::collections::HashSet;

use latchwork_machine::{ConstMachine, Integer, Word};
use latchwork_region::{Dead, Offset, Thread};

use crate::Error;
use crate::memory::cells::{
    ObjectAt, OwnerCell, PAGES, RequestAt, WEAK, WeakPage, cell_at, get, put,
};
use crate::memory::entry::Entry;
use crate::memory::latch::Latched;
use crate::memory::names::Name;
use crate::memory::numbers::OwnerNumber;
use crate::memory::owner_state::OwnerState;
use crate::memory::state::{State, status};
use crate::memory::{Memory, names};
use crate::mode::Mode;
use crate::recovery::orphans::label_of;

impl<M: ConstMachine> Memory<M> {
    /// Returns the indexes of the pages that each of these dead threads has. Walks all pages once,
    /// because there are as many pages as threads that ever had owners at once.
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

    /// Releases the locks of a dead thread's owners, or keeps them for recovery. The owners are in
    /// the pages at these indexes, which belong to the thread.
    pub(crate) fn release_dead(&self, dead: &Dead<'_, M>, places: &[u32]) -> Result<(), Error> {
        let (mut released, mut orphaned) = (0u32, 0u32);
        for &place in places {
            let Some(page) = self.page(place)? else { break };
            let (mut orphans, mut undecided) = (0, false);
            for (at, cell) in page.owners.iter().enumerate() {
                // An owner that is kept already was kept by a sweeper that died. Acquire: it may be
                // free since, and the next session of the page must see it as it was left.
                let state = cell.state.load(Acquire);
                if !state.is_live() {
                    undecided |= state == OwnerState::UNDECIDED;
                    orphans += u32::from(state.is_kept());
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
            // Before the page is done: otherwise, if this thread died, the next sweeper would skip
            // the page.
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

    /// Releases the locks that owners of this session could not release at their end, as far as
    /// possible now.
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

    /// Releases the locks of owners that the last session of this thread's slot left.
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

    /// Returns whether it holds a lock in the table.
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

    /// Withdraws the waiting request of an owner whose thread has ended.
    pub(crate) fn withdraw_of(&self, cell: &OwnerCell<M>) -> Result<(), Error> {
        for at in self.own_list(cell)? {
            let request = self.request(at)?;
            let latched = self.latch(get(&request.partition).within(self.partitions()))?;
            let state = get(&request.state);
            let object_at = get(&request.object);
            match state.status {
                status::HELD if self.is_idle_ticket(request)? => {
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

    /// Removes a request from its queue, and grants the requests that it blocked.
    pub(crate) fn take_out(
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

    /// Releases all locks of an owner, although its thread has ended, and frees its cell.
    pub(crate) fn release_cell(
        &self,
        index: OwnerNumber,
        cell: &OwnerCell<M>,
    ) -> Result<(), Error> {
        if !get(&cell.weak).is_null() {
            let page = cell_at(self.region(), get(&cell.weak))?;
            let is_moved = page.moved.iter().any(|moved| !get(moved).is_null());
            // One walk for all entries: no other thread changes the list.
            let list = if is_moved { self.own_list(cell)? } else { Vec::new() };
            let mine = HashSet::from_iter(list);
            for at in 0..WEAK {
                self.release_entry(index, &mine, page, at)?;
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

    /// Releases a weak lock, in the page or moved. Also handles an entry that is free, because its
    /// owner may have died before it removed the moved request.
    fn release_entry(
        &self,
        index: OwnerNumber,
        mine: &HashSet<RequestAt<M>>,
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
        // A request that its owner had begun to adopt is in its list, and is released with that.
        if !moved.is_null() && !mine.contains(&moved) {
            self.note_moved(moved)?;
            self.take_out(&latched, object_at, moved)?;
            self.free_cell(moved)?;
        }
        put(&page.moved[at], Offset::NULL);
        // Last: if this thread dies before, the next sweeper finds the moved request by the entry.
        put(&page.states[at], Entry { count: 0, length: 0, mode: Mode(0), ..entry });
        Ok(())
    }
}

impl<M: ConstMachine> Drop for Memory<M> {
    fn drop(&mut self) {
        if !self.thread.has_slot() {
            // The slot was abandoned: a sweep releases the owners' locks, or has done so.
            return;
        }
        // Otherwise its locks would belong to no session and no dead thread, so a sweep must
        // release them. The same holds if a callback panics on the way.
        let given_up = GivenUp(&self.thread);
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
            core::mem::forget(given_up);
        }
    }
}

/// Abandons a slot with its owners when dropped.
struct GivenUp<'t, M: ConstMachine>(&'t Thread<M>);

impl<M: ConstMachine> Drop for GivenUp<'_, M> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

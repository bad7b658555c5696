//! What is done when a process has died, at any instruction. `docs/death.md` has the steps.

use core::sync::atomic::Ordering::{Acquire, Relaxed};
use std::collections::HashSet;

use latchwork_machine::{ConstMachine, Integer, Word};
use latchwork_region::{Dead, Offset};

use crate::fastpath::bias::Bias;
use crate::fastpath::weak::Entry;
use crate::memory::cells::{
    FREE, LIVE, OWNERS, OwnerCell, OwnerPage, PAGES, PARTITIONS, Request, WEAK, WeakPage,
    adopted_by, get, is_kept, put, status,
};
use crate::memory::intents;
use crate::memory::latch::Latched;
use crate::memory::names::{self, Name};
use crate::mode::Mode;
use crate::owner::handle::{OwnerId, reason_number};
use crate::recovery::orphans::label_of;
use crate::session::Session;
use crate::table::queues::State;
use crate::table::reclaiming::is_short;
use crate::{Error, Reason};

impl<M: ConstMachine> Session<M> {
    /// Puts right what dead threads left, and releases their owners' locks.
    pub(crate) fn repair(&self, dead: &[Dead<'_, M>]) -> Result<(), Error> {
        // All latches are opened first: while one thread is put right another's may be met.
        for number in 0..PARTITIONS {
            let holder = get(&self.partition(number)?.latch);
            if holder != 0
                && let Some(thread) = dead.iter().find(|thread| thread.number() + 1 == holder)
            {
                self.mend(number, thread)?;
                self.point("dead thread's latch opened");
            }
        }
        for thread in dead {
            self.bury(thread)?;
            self.orphan_again(thread)?;
            self.free_noted(thread)?;
            self.free_noted_record(thread)?;
            self.point("about to finish a sweep");
        }
        Ok(())
    }

    /// Opens the latches of all who are dead by now, and leaves the rest to the next sweep.
    pub(crate) fn open_latches(&self) -> Result<(), Error> {
        for thread in self.region().dead_threads()? {
            for number in 0..PARTITIONS {
                if get(&self.partition(number)?.latch) == thread.number() + 1 {
                    self.mend(number, &thread)?;
                }
            }
        }
        Ok(())
    }

    /// Puts a partition right whose latch a dead thread holds, and opens the latch. The latch keeps
    /// the dead thread's name until then: should we die or fail, the next sweeper begins anew.
    fn mend(&self, number: u32, dead: &Dead<'_, M>) -> Result<(), Error> {
        let latched = self.take_over(number)?;
        if let Err(error) = self.mend_latched(&latched, dead) {
            // Not dropped, which would open it.
            core::mem::forget(latched);
            return Err(error);
        }
        drop(latched);
        self.wake_all()
    }

    fn mend_latched(&self, latched: &Latched<'_, M>, dead: &Dead<'_, M>) -> Result<(), Error> {
        let number = latched.number;
        if get(&latched.fresh) != 0 {
            let moving = get(&latched.moving);
            if moving != 0 && get(&latched.fresh) != get(&latched.heads) {
                let fresh = latched.fresh_heads()?;
                let mut found = latched.each_object()?;
                found.extend(latched.objects_of(fresh)?);
                if !found.contains(&moving) {
                    latched.push(fresh, moving)?;
                }
            }
            put(&latched.moving, 0);
            latched.move_all()?;
        }
        latched.strong.iter().for_each(|count| put(count, 0));
        let mut linked = HashSet::new();
        let objects = latched.each_object()?;
        put(&latched.objects, objects.len() as u32);
        for at in &objects {
            self.mend_object(latched, *at, &mut linked)?;
        }
        if let Some(at) = self.noted(get(&dead.intent()[intents::AWAY]))? {
            let request = self.request(at)?;
            let state = State::of(get(&request.state));
            if state.status == status::AWAY && get(&request.partition) == number {
                let why = reason_number(Reason::Deadlock);
                put(&request.state, State { status: status::DENIED, why, ..state }.word());
                self.to_wake.borrow_mut().push(at);
            }
        }
        for cell in self.owners_of(dead.number() + 1)? {
            for at in self.own_list(cell.1)? {
                let request = self.request(at)?;
                if get(&request.partition) == number && !linked.contains(&at) {
                    put(&request.state, 0);
                }
            }
        }
        self.mend_biases(latched)?;
        for at in latched.each_object()? {
            latched.advance(self.object(at)?)?;
        }
        Ok(())
    }

    /// Collects once more under each bias that is closed: one of them the dead may have been
    /// closing.
    fn mend_biases(&self, latched: &Latched<'_, M>) -> Result<(), Error> {
        let biases = self.biases(latched.number)?;
        let was_open = |word: u32| Bias(word).is_closed() && Bias(word).before().is_some();
        if biases.iter().any(|word| was_open(get(word))) {
            // It may have died before its own.
            self.pass_barrier()?;
        }
        for (bias, word) in (0..).zip(biases) {
            let closed = Bias(get(word));
            let Some(open) = closed.before().filter(|_| closed.is_closed()) else { continue };
            match latched.collect(bias, open, None, &mut 0) {
                // Who closes asks for its lock afterwards: nothing is under it that is in the way.
                Err(error) if is_short(&error) && get(&latched.strong[bias as usize]) == 0 => {
                    latched.reopen(bias, open, u32::MAX)?;
                }
                end => end?,
            }
        }
        Ok(())
    }

    /// Makes an object's derived fields anew from the one link that is the truth.
    fn mend_object(
        &self,
        latched: &Latched<'_, M>,
        at: u32,
        linked: &mut HashSet<u32>,
    ) -> Result<(), Error> {
        let object = self.object(at)?;
        let (mut prev, mut first, mut length) = (0, 0, 0);
        let (mut masks, mut converting) = (0, 0);
        let mut seen = get(&object.head);
        while seen != 0 {
            if !linked.insert(seen) {
                return crate::table::objects::ring();
            }
            let request = self.request(seen)?;
            let (next, state) = (get(&request.next), State::of(get(&request.state)));
            if !state.holds() && state.status != status::WAITING {
                // It was about to leave.
                match prev {
                    0 => put(&object.head, next),
                    prev => put(&self.request(prev)?.next, next),
                }
                linked.remove(&seen);
                seen = next;
                continue;
            }
            put(&request.prev, prev);
            put(&request.object, at);
            length += 1;
            converting += u32::from(state.status == status::CONVERTING);
            if state.holds() {
                masks |= u32::from(state.mode.bit());
            }
            if state.waits() {
                masks |= u32::from(state.want.bit()) << 16;
            }
            if state.status == status::WAITING && first == 0 {
                first = seen;
            }
            latched.weigh(object, State { status: status::NEW, ..state }, state);
            (prev, seen) = (seen, next);
        }
        put(&object.tail, prev);
        put(&object.first, first);
        put(&object.length, length);
        put(&object.masks, masks);
        object.set_conversions(converting);
        Ok(())
    }

    /// The owners in the pages of a thread, and those that it has adopted.
    fn owners_of(&self, thread: u32) -> Result<Vec<(u32, &OwnerCell<M>)>, Error> {
        let mut found = Vec::new();
        for place in 0..PAGES as u32 {
            let Some(page) = self.page(place)? else { break };
            let all = get(&page.thread) == thread;
            let cells = page.owners.iter().enumerate();
            let its = cells.filter(|(_, cell)| all || get(&cell.state) == adopted_by(thread - 1));
            found.extend(its.map(|(at, cell)| (place * OWNERS + at as u32, cell)));
        }
        Ok(found)
    }

    pub(crate) fn own_list(&self, cell: &OwnerCell<M>) -> Result<Vec<u32>, Error> {
        let (mut found, mut at) = (Vec::new(), get(&cell.head));
        while at != 0 {
            found.push(at);
            at = get(&self.request(at)?.own_next);
            if found.len() > 1 << 26 {
                return crate::table::objects::ring();
            }
        }
        Ok(found)
    }

    /// Releases what a dead thread's owners held, or keeps it for recovery.
    fn bury(&self, dead: &Dead<'_, M>) -> Result<(), Error> {
        let thread = dead.number() + 1;
        let (mut released, mut orphaned) = (0u32, 0u32);
        for place in 0..PAGES as u32 {
            let Some(page) = self.page(place)? else { break };
            if get(&page.thread) != thread {
                continue;
            }
            let mut orphans = 0;
            for (at, cell) in page.owners.iter().enumerate() {
                // One that is kept already was kept by a sweeper that died.
                if get(&cell.state) != LIVE {
                    orphans += u32::from(is_kept(get(&cell.state)));
                    continue;
                }
                let index = place * OWNERS + at as u32;
                self.withdraw_of(cell)?;
                let holds = self.has_strong(cell)? || self.has_weak(cell)?;
                let id = OwnerId { index, generation: get(&cell.generation) };
                let label = label_of(cell);
                let recovery = self.inner().recovery.as_ref().filter(|_| holds);
                if recovery.is_none_or(|recovery| recovery(id, &label)) {
                    self.release_cell(index, cell)?;
                    released += 1;
                } else {
                    self.keep_owner(dead, cell)?;
                    orphans += 1;
                    self.inner().orphaned.fetch_add(1, Relaxed);
                    #[cfg(feature = "tracing")]
                    crate::observe::events::orphaned(id, &label);
                }
                self.point("dead owner buried");
                self.point("dead owner decided");
            }
            if orphans != 0 {
                self.make_orphanage(place, page)?;
            } else {
                self.free_page(place, page)?;
            }
            orphaned += orphans;
        }
        #[cfg(feature = "tracing")]
        crate::observe::events::swept(thread - 1, released, orphaned);
        let _ = (released, orphaned);
        Ok(())
    }

    /// Whether it holds anything in the table.
    fn has_strong(&self, cell: &OwnerCell<M>) -> Result<bool, Error> {
        for at in self.own_list(cell)? {
            if State::of(get(&self.request(at)?.state)).holds() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn has_weak(&self, cell: &OwnerCell<M>) -> Result<bool, Error> {
        if get(&cell.weak) == 0 {
            return Ok(false);
        }
        let page: &WeakPage<M> = self.region().resolve(Offset::from_raw(get(&cell.weak)))?;
        Ok(page.states.iter().any(|state| Entry::of(get(state)).count != 0))
    }

    /// Withdraws what an owner that is gone waited for.
    pub(crate) fn withdraw_of(&self, cell: &OwnerCell<M>) -> Result<(), Error> {
        for at in self.own_list(cell)? {
            let request = self.request(at)?;
            let latched = self.latch(get(&request.partition) % PARTITIONS)?;
            let state = State::of(get(&request.state));
            let object_at = get(&request.object);
            match state.status {
                status::HELD if self.is_wish(cell, at)? => {
                    drop(latched);
                    self.forget_range(cell, at)?;
                    let latched = self.latch(get(&request.partition) % PARTITIONS)?;
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
        put(&cell.waiting, 0);
        self.wake_all()
    }

    fn take_out(&self, latched: &Latched<'_, M>, object_at: u32, at: u32) -> Result<(), Error> {
        let object = self.object(object_at)?;
        let request = self.request(at)?;
        let state = State::of(get(&request.state));
        latched.unlink(object, at, request, State { status: status::NEW, ..state })?;
        latched.advance(object)?;
        if get(&object.head) == 0 {
            latched.retire(object_at, object)?;
        }
        Ok(())
    }

    /// Releases all that an owner has, though its thread is gone, and frees its cell.
    pub(crate) fn release_cell(&self, index: u32, cell: &OwnerCell<M>) -> Result<(), Error> {
        if get(&cell.weak) != 0 {
            let page: &WeakPage<M> = self.region().resolve(Offset::from_raw(get(&cell.weak)))?;
            for at in 0..WEAK {
                self.release_entry(index, cell, page, at)?;
            }
        }
        loop {
            let at = get(&cell.head);
            if at == 0 {
                break;
            }
            let request = self.request(at)?;
            self.forget_range(cell, at)?;
            let latched = self.latch(get(&request.partition) % PARTITIONS)?;
            let state = State::of(get(&request.state));
            if state.holds() || state.waits() {
                self.take_out(&latched, get(&request.object), at)?;
            }
            drop(latched);
            self.note_request(at)?;
            put(&cell.head, get(&request.own_next));
            self.point("dead owner's request taken");
            self.thread.free(Offset::<Request<M>>::from_raw(at))?;
        }
        self.drop_verdict(cell)?;
        put(&cell.held, 0);
        put(&cell.ranges, 0);
        put(&cell.bell, 0);
        put(&cell.waiting, 0);
        put(&cell.state, FREE);
        self.wake_all()
    }

    /// Releases a weak lock, in the page or moved. Also one whose entry is free: its owner may have
    /// died before it took the moved request out.
    fn release_entry(
        &self,
        index: u32,
        cell: &OwnerCell<M>,
        page: &WeakPage<M>,
        at: usize,
    ) -> Result<(), Error> {
        let entry = Entry::of(get(&page.states[at]));
        let hash = get(&page.hashes[at]);
        if entry.length == 0 || entry.length > 64 {
            return Ok(());
        }
        let latched = self.latch(crate::memory::cells::Spot::of(hash).partition)?;
        let bytes = names::read::<M>(&page.names[at], entry.length);
        let object_at = latched.find(&Name { bytes: &bytes, hash })?;
        let moved =
            if object_at == 0 { 0 } else { latched.moved_of(page, at, object_at, index)? };
        put(&page.states[at], Entry { count: 0, length: 0, mode: Mode(0), ..entry }.word());
        // One that its owner had begun to make its own is in its list, and goes with that.
        if moved != 0 && !self.own_list(cell)?.contains(&moved) {
            self.note_request(moved)?;
            self.take_out(&latched, object_at, moved)?;
            self.thread.free(Offset::<Request<M>>::from_raw(moved))?;
        }
        Ok(())
    }

    /// Frees what a dead thread had taken out of a list and not yet freed.
    fn free_noted(&self, dead: &Dead<'_, M>) -> Result<(), Error> {
        let notes = dead.intent();
        if let Some(at) = self.noted(get(&notes[intents::REQUEST]))?
            && !self.is_orphans(at)?
        {
            // What still held or waited was released above; a free cell is refused, rightly.
            let _ = self.thread.free(Offset::<Request<M>>::from_raw(at));
        }
        if let Some(at) = self.noted(get(&notes[intents::OBJECT]))? {
            let number = get(&notes[intents::OBJECT_IN]) as u32 % PARTITIONS;
            let latched = self.latch(number)?;
            if !latched.each_object()?.contains(&at) {
                let length = self.object(at)?.name_length();
                let _ = self.free_object(at, length);
            }
        }
        if let Some(at) = self.noted(get(&notes[intents::TABLE]))? {
            let place = get(&notes[intents::TABLE_IN]);
            let latched = self.latch(place as u32 % PARTITIONS)?;
            let used = [get(&latched.heads), get(&latched.fresh)];
            if used.iter().all(|table| *table as u32 != at) {
                let _ = self.free_chains(place >> 32 << 32 | u64::from(at));
            }
        }
        self.free_noted_verdict(dead)?;
        self.free_noted_range(notes)
    }

    /// Whether a request is in the list of an owner that is kept for recovery.
    fn is_orphans(&self, at: u32) -> Result<bool, Error> {
        match self.owner_cell(get(&self.request(at)?.owner))? {
            Some(cell) if is_kept(get(&cell.state)) => Ok(self.own_list(cell)?.contains(&at)),
            _ => Ok(false),
        }
    }

    /// All cells that the manager's structures lead to.
    pub(crate) fn reachable(&self) -> Result<HashSet<u32>, Error> {
        let mut found = HashSet::new();
        for number in 0..PARTITIONS {
            let latched = self.latch(number)?;
            found.extend([get(&latched.heads) as u32, get(&latched.fresh) as u32]);
            found.extend(latched.all_of_ranges()?);
            for at in latched.each_object()? {
                found.insert(at);
                for each in latched.requests(self.object(at)?) {
                    found.insert(each?.0);
                }
            }
        }
        found.extend(self.recorded()?);
        let directory = self.region().resolve(self.inner().directory)?;
        for page in directory.pages.iter().map(get).take_while(|page| *page != 0) {
            found.insert(page);
            let page: &OwnerPage<M> = self.region().resolve(Offset::from_raw(page))?;
            for cell in &page.owners {
                // Acquire: synchronizes with the Release in `drop_verdict`. Where a verdict was
                // taken away, its new generation is seen.
                found.extend([get(&cell.weak), cell.verdict.load(Acquire) as u32]);
                if get(&cell.state) != LIVE {
                    found.extend(self.own_list(cell)?);
                }
            }
        }
        let region = self.region();
        for root in 0..latchwork_region::ROOTS {
            if crate::manager::is_root(region, get(region.root(root)?) as u32)? {
                found.insert(get(region.root(root)?) as u32);
            }
        }
        Ok(found)
    }
}

//! Repair after the death of a process at any instruction. `docs/death.md` has the steps.

use core::sync::atomic::Ordering::Acquire;
use std::collections::HashSet;

use latchwork_machine::{ConstMachine, Word};
use latchwork_region::{Dead, Offset};

use crate::error::{corrupt_list, is_short, reason_number};
use crate::memory::bias::Bias;
use crate::memory::cells::{ObjectAt, OwnerCell, PAGES, RequestAt, cell_at, get, put};
use crate::memory::latch::Latched;
use crate::memory::masks::Masks;
use crate::memory::numbers::{OwnerNumber, PartitionNumber};
use crate::memory::owner_state::OwnerState;
use crate::memory::state::{State, status};
use crate::memory::{Memory, intents, roots};
use crate::table::queues::LIST_MAX;
use crate::{Error, Reason};

impl<M: ConstMachine> Memory<M> {
    /// Repairs the state that dead threads left, and releases their owners' locks.
    pub(crate) fn repair(&self, dead: &[Dead<'_, M>]) -> Result<(), Error> {
        // All latches are opened first: the repair of one thread may need a latch that another one
        // held.
        self.open_latches_of(dead).1?;
        self.settle_claims(dead)?;
        // Before a thread's recorded cells are freed: an orphan may be kept with one of them.
        self.orphan_again(dead)?;
        for (thread, places) in dead.iter().zip(self.pages_of(dead)?) {
            self.release_dead(thread, &places)?;
            self.free_noted(thread)?;
            self.free_noted_record(thread)?;
            self.point("about to finish a sweep");
        }
        Ok(())
    }

    /// Opens the latches of all threads that are dead now, and leaves the rest of their repair to
    /// the next sweep. Returns how many it opened; returns an error only if that is none.
    ///
    /// It claims only threads that hold a latch, one at a time: no other sweeper can sweep a thread
    /// that a stopped sweeper has claimed.
    pub(crate) fn open_latches(&self) -> Result<usize, Error> {
        let (mut holders, mut failed) = (HashSet::new(), None);
        for number in self.blocks.each() {
            match self.partition(number) {
                Ok(partition) => holders.extend(get(&partition.latch).checked_sub(1)),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let mut count = 0;
        for holder in holders {
            let Some(thread) = self.region().dead_thread(holder)? else { continue };
            let (opened, end) = self.open_latches_of(core::slice::from_ref(&thread));
            count += opened;
            failed = failed.or(end.err());
        }
        failed.filter(|_| count == 0).map_or(Ok(count), Err)
    }

    /// Opens the latches of these dead threads, continuing after a failure. Returns how many it
    /// opened, and the first failure.
    pub(crate) fn open_latches_of(&self, dead: &[Dead<'_, M>]) -> (usize, Result<(), Error>) {
        let (mut count, mut opened) = (0, Ok(()));
        for number in self.blocks.each() {
            let holder = match self.partition(number) {
                Ok(partition) => get(&partition.latch),
                Err(error) => return (count, opened.and(Err(error))),
            };
            if holder != 0
                && let Some(thread) = dead.iter().find(|thread| thread.number() + 1 == holder)
            {
                let end = self.repair_partition(number, thread);
                count += usize::from(end.is_ok());
                opened = opened.and(end);
                self.point("dead thread's latch opened");
            }
        }
        (count, opened)
    }

    /// Repairs a partition whose latch a dead thread holds, and opens the latch. The latch names
    /// its holder until then: if this thread dies or fails, the next sweeper starts again.
    fn repair_partition(&self, number: PartitionNumber, dead: &Dead<'_, M>) -> Result<(), Error> {
        let latched = self.take_over(number)?;
        if let Err(error) = self.repair_latched(&latched, dead) {
            // Not dropped, because that would open it.
            core::mem::forget(latched);
            return Err(error);
        }
        drop(latched);
        self.wake_all()
    }

    fn repair_latched(&self, latched: &Latched<'_, M>, dead: &Dead<'_, M>) -> Result<(), Error> {
        let number = latched.number;
        if !get(&latched.fresh).is_none() {
            let moving = get(&latched.moving);
            if !moving.is_null() && get(&latched.fresh) != get(&latched.heads) {
                let fresh = latched.fresh_heads()?;
                let mut found = latched.each_object()?;
                found.extend(latched.objects_of(fresh)?);
                if !found.contains(&moving) {
                    latched.push(fresh, moving)?;
                }
            }
            put(&latched.moving, Offset::NULL);
            latched.move_all()?;
        }
        latched.strong.iter().for_each(|count| put(count, 0));
        let mut linked = HashSet::new();
        let objects = latched.each_object()?;
        put(&latched.objects, objects.len() as u32);
        for at in &objects {
            self.repair_object(latched, *at, &mut linked)?;
        }
        if let Some(at) = self.noted(get(&dead.intent()[intents::AWAY]))? {
            let request = self.request(at)?;
            let state = get(&request.state);
            // A dead thread was moving it, and had not yet marked it as away, or had already
            // cleared the mark.
            let lost = state.status == status::WAITING && !linked.contains(&at);
            if (state.status == status::AWAY || lost) && get(&request.partition) == number {
                let why = reason_number(Reason::Deadlock);
                put(&request.state, State { status: status::DENIED, why, ..state });
                self.to_wake.borrow_mut().push(at);
            }
        }
        for cell in self.owners_of(dead.number() + 1)? {
            for at in self.own_list(cell.1)? {
                let request = self.request(at)?;
                if get(&request.partition) == number && !linked.contains(&at) {
                    put(&request.state, State::NEW);
                }
            }
        }
        self.repair_biases(latched)?;
        for at in latched.each_object()? {
            latched.advance(self.object(at)?)?;
        }
        Ok(())
    }

    /// Collects again under each closed bias, because the holder may have been closing it. If there
    /// is no room for that and the closing had not ended, the bias is opened again: so a partition
    /// can be repaired in a full region.
    fn repair_biases(&self, latched: &Latched<'_, M>) -> Result<(), Error> {
        let biases = self.biases(latched.number)?;
        let was_open = |bias: Bias| bias.is_closed() && bias.before().is_some();
        if biases.iter().any(|word| was_open(get(word))) {
            // The holder may have died before its own barrier.
            self.pass_barrier()?;
        }
        for (bias, word) in (0..).zip(biases) {
            let closed = get(word);
            let Some(open) = closed.before().filter(|_| closed.is_closed()) else { continue };
            match latched.collect(bias, open, None, &mut 0) {
                Err(error) if is_short(&error) => {
                    if !latched.is_collected(bias, open)? {
                        latched.reopen(bias, open, u32::MAX)?;
                    }
                }
                end => end?,
            }
        }
        Ok(())
    }

    /// Rebuilds an object's derived fields from its authoritative links.
    fn repair_object(
        &self,
        latched: &Latched<'_, M>,
        at: ObjectAt<M>,
        linked: &mut HashSet<RequestAt<M>>,
    ) -> Result<(), Error> {
        let object = self.object(at)?;
        let (mut prev, mut first, mut length) = (Offset::NULL, Offset::NULL, 0);
        let (mut masks, mut converting) = (Masks::NONE, 0);
        let (mut seen, mut left) = (get(&object.head), 0);
        while !seen.is_null() {
            if !linked.insert(seen) {
                return corrupt_list();
            }
            let request = self.request(seen)?;
            let (next, state) = (get(&request.next), get(&request.state));
            if !state.holds() && state.status != status::WAITING {
                // It was being removed.
                left += 1;
                if left > LIST_MAX {
                    return corrupt_list();
                }
                if prev.is_null() {
                    put(&object.head, next);
                } else {
                    put(&self.request(prev)?.next, next);
                }
                linked.remove(&seen);
                seen = next;
                continue;
            }
            put(&request.prev, prev);
            put(&request.object, at);
            if state.waits()
                && let Some(cell) = self.owner_cell(get(&request.owner))?
                && get(&cell.waiting).is_null()
            {
                // A dead thread was about to begin or end the wait, and other threads had read that
                // it was over.
                put(&cell.partition, latched.number);
                put(&cell.waiting, seen);
            }
            length += 1;
            converting += u32::from(state.status == status::CONVERTING);
            masks = masks.with(state);
            if state.status == status::WAITING && first.is_null() {
                first = seen;
            }
            latched.count_strong(object, State { status: status::NEW, ..state }, state);
            (prev, seen) = (seen, next);
        }
        put(&object.tail, prev);
        put(&object.first, first);
        put(&object.length, length);
        put(&object.masks, masks);
        object.set_conversions(converting);
        Ok(())
    }

    /// Returns the owners in the pages of a thread, and the owners that it has adopted or asks
    /// about.
    fn owners_of(&self, thread: u32) -> Result<Vec<(OwnerNumber, &OwnerCell<M>)>, Error> {
        let mut found = Vec::new();
        let taken = [OwnerState::adopted_by(thread - 1), OwnerState::asked_by(thread - 1)];
        for place in 0..PAGES as u32 {
            let Some(page) = self.page(place)? else { break };
            let all = get(&page.thread) == thread;
            let cells = page.owners.iter().enumerate();
            let its = cells.filter(|(_, cell)| all || taken.contains(&get(&cell.state)));
            found.extend(its.map(|(at, cell)| (OwnerNumber::new(place, at), cell)));
        }
        Ok(found)
    }

    /// Returns all cells to which the manager's structures link.
    pub(crate) fn reachable(&self) -> Result<HashSet<u32>, Error> {
        let mut found = HashSet::new();
        for number in self.blocks.each() {
            let latched = self.latch(number)?;
            found.extend([get(&latched.heads).at.raw(), get(&latched.fresh).at.raw()]);
            found.extend(latched.all_of_ranges()?.iter().map(|at| at.raw()));
            for at in latched.each_object()? {
                found.insert(at.raw());
                for each in latched.requests(self.object(at)?) {
                    found.insert(each?.0.raw());
                }
            }
        }
        found.extend(self.recorded()?);
        let directory = cell_at(self.region(), self.inner().directory)?;
        // Acquire: as in `page`.
        let pages = directory.pages.iter().map(|page| page.load(Acquire));
        for page in pages.take_while(|page| !page.is_null()) {
            found.insert(page.raw());
            let page = cell_at(self.region(), page)?;
            for cell in &page.owners {
                // Acquire: synchronizes with the Release in `drop_report`. If a report was removed,
                // its new generation is visible.
                found.extend([get(&cell.weak).raw(), cell.report.load(Acquire) as u32]);
                if !get(&cell.state).is_live() {
                    found.extend(self.own_list(cell)?.iter().map(|at| at.raw()));
                }
            }
        }
        let region = self.region();
        for root in 0..latchwork_region::ROOTS {
            if roots::is_root(region, get(region.root(root)?) as u32)? {
                found.insert(get(region.root(root)?) as u32);
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use latchwork_machine::Native;
    use latchwork_region::{Dead, Error as RegionError, InHand, Layer, Region, Repair};

    use crate::memory::bias::Bias;
    use crate::memory::cells::{Request, get, put};
    use crate::{Error, Manager, Mode, Options, Owner, granular};

    const NAME: &[u8] = b"a name";

    /// A layer that cannot repair the state that dead threads left.
    struct Unable;

    impl Repair for Unable {
        fn layer(&self) -> Layer {
            Layer::Tree
        }

        fn repair(&self, _: &[Dead<'_>]) -> Result<(), RegionError> {
            Err(RegionError::Repair(Layer::Tree))
        }

        fn leads_to(&self, cells: &[InHand]) -> Result<Vec<bool>, RegionError> {
            Ok(vec![false; cells.len()])
        }
    }

    /// A thread died with a latch, and another layer cannot repair its work. Its locks stay held,
    /// and its latch is opened.
    #[test]
    fn a_latch_is_opened_even_if_its_holder_cannot_be_swept() {
        let manager = small_region(2);
        let unable: Arc<dyn Repair> = Arc::new(Unable);
        manager.region().register(&unable).unwrap();
        let dies = manager.session().unwrap();
        let owner = dies.owner().unwrap();
        owner.lock(NAME, granular::X).unwrap();
        let memory = owner.memory;
        let partition = memory.spot(memory.named(NAME).unwrap().hash).partition;
        core::mem::forget(memory.latch(partition).unwrap());
        core::mem::forget(owner);
        dies.thread().abandon();
        let session = manager.session().unwrap();
        let lives = session.owner().unwrap();
        assert_eq!(lives.try_lock(NAME, granular::X), Err(Error::NotGranted));
        assert!(session.sweep().is_err(), "the sweep still fails");
    }

    /// Fills a region.
    fn fill(ballast: &Owner<'_>) {
        let name = |number: u32| [b"ballast", &number.to_le_bytes()[..]].concat();
        assert!((0..).any(|number| ballast.lock(&name(number), granular::X).is_err()));
    }

    fn small_region(keep_after: u32) -> Manager {
        let options = latchwork_region::Options { limit: 4 << 20, ..Default::default() };
        let region = Region::<Native>::private(&options).unwrap();
        let options = Options { keep_after, opens_early: true, ..Options::default() };
        Manager::new(region, granular::modes(), options).unwrap()
    }

    /// A sweeper collects under a closed bias, in a region that may be full. An owner that has not
    /// yet seen the closing counts an entry under the bias, and will take it back; another owner
    /// holds the name now, in mode `second`. Returns the bias after that, and the value before it
    /// was closed.
    fn repaired(first: Mode, second: Mode, full: bool) -> (Bias, Bias) {
        let manager = small_region(2);
        let sessions = [(); 3].map(|()| manager.session().unwrap());
        let [before, after, ballast] = [0, 1, 2].map(|at| sessions[at].owner().unwrap());
        // The second request reserves it, if it is strong.
        before.lock(NAME, first).unwrap();
        before.unlock(NAME).unwrap();
        before.lock(NAME, first).unwrap();
        let memory = before.memory;
        let spot = memory.spot(memory.named(NAME).unwrap().hash);
        let bias = &memory.biases(spot.partition).unwrap()[spot.bias as usize];
        let open = get(bias);
        assert_eq!(
            (open.is_open(), open.is_reserved()),
            (first != granular::X, first == granular::X)
        );
        let page = before.weak_page().unwrap().unwrap();
        let at = before.entries.get().trailing_zeros() as usize;
        let counted = get(&page.states[at]);
        assert_eq!((counted.bias, counted.count), (open, 1));
        before.unlock(NAME).unwrap();
        after.lock(NAME, second).unwrap();
        put(&page.states[at], counted);
        let sweeper = ballast.memory;
        if full {
            fill(&ballast);
            // Including the last free cells.
            while let Ok(cell) = sweeper.thread.alloc::<Request<Native>>() {
                cell.publish();
            }
        }
        let latched = sweeper.latch(spot.partition).unwrap();
        sweeper.repair_biases(&latched).unwrap();
        let now = get(bias);
        drop(latched);
        assert_eq!(after.holds(NAME), Ok(Some((second, 1))));
        assert!(get(&page.moved[at]).is_null(), "an entry that counts no more is moved");
        (now, open)
    }

    #[test]
    fn a_formerly_reserved_name_stays_in_the_table_while_another_owner_holds_it() {
        for mode in [granular::IS, granular::X] {
            let (now, reserved) = repaired(granular::X, mode, true);
            assert_eq!(now.before(), Some(reserved), "reserved again despite {mode:?}");
        }
    }

    /// With room for the request.
    #[test]
    fn an_entry_taken_after_the_closing_is_not_moved() {
        for (first, second) in [(granular::X, granular::IS), (granular::IS, granular::X)] {
            let (now, open) = repaired(first, second, false);
            assert_eq!(now.before(), Some(open));
        }
    }

    #[test]
    fn a_bias_stays_closed_while_a_strong_lock_is_under_it() {
        let (now, open) = repaired(granular::IS, granular::X, true);
        assert_eq!(now.before(), Some(open), "opened again");
    }
}

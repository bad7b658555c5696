//! Freeing the cells that a dead thread had recorded in its intents ([`intents`]), whether it had
//! unlinked them or not.

use core::sync::atomic::Ordering::Acquire;

use latchwork_machine::{ConstMachine, Word};
use latchwork_region::Dead;

use crate::Error;
use crate::memory::cells::{Request, RequestAt, Table, get};
use crate::memory::numbers::PartitionNumber;
use crate::memory::typed::Stored;
use crate::memory::{Memory, intents};

impl<M: ConstMachine> Memory<M> {
    /// Frees the cells that a dead thread had unlinked and not yet freed.
    pub(crate) fn free_noted(&self, dead: &Dead<'_, M>) -> Result<(), Error> {
        let notes = dead.intent();
        self.free_noted_request(get(&notes[intents::REQUEST]))?;
        if let Some(at) = self.noted(get(&notes[intents::OBJECT]))? {
            let number = PartitionNumber::of(get(&notes[intents::OBJECT_IN]) as u32);
            let latched = self.latch(number.within(self.partitions()))?;
            // Checked again under the latch: the cell may be another object now.
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

    /// Frees a request that a dead thread had recorded, unless it is still linked. If it is in its
    /// queue, it is a lock that a closer moved, of an owner that lives or is kept, which will
    /// remove it itself: a new generation makes this intent void. If it is in an owner's list, that
    /// owner is dead or kept, and the dead thread was releasing it.
    fn free_noted_request(&self, note: u64) -> Result<(), Error> {
        let Some(at) = self.noted(note)? else { return Ok(()) };
        let request = self.request(at)?;
        // A request that a closer moved leaves its queue and is freed under this latch.
        let latched = self.latch(get(&request.partition).within(self.partitions()))?;
        if self.noted::<Request<M>>(note)?.is_none() || self.is_listed(at, request)? {
            return Ok(());
        }
        if latched.is_queued(at)? {
            return Ok(self.thread.adopt(at)?);
        }
        // A request that held or waited was released above.
        self.note_freed(at)?;
        let _ = self.free_cell(at);
        Ok(())
    }

    /// Records a request, which is in no queue, before it leaves a dead owner's list and is freed.
    /// The caller holds the latch of its partition. This makes all other intents that name it void.
    pub(crate) fn note_listed(&self, at: RequestAt<M>) -> Result<(), Error> {
        self.note_freed(at)?;
        self.point("dead owner's request noted");
        Ok(())
    }

    /// Returns whether a request that was [recorded](Self::note_listed) is still in its owner's
    /// list.
    ///
    /// Two links decide this without a walk, because another thread may be releasing that owner
    /// now. That thread removes requests at the head, or requests that hold nothing; all requests
    /// before a recorded one hold, unless it is the head. So the request before it is freed only
    /// when this one is the head, and then it stays the head as long as the caller has its latch.
    /// So the head is read last.
    fn is_listed(&self, at: RequestAt<M>, request: &Request<M>) -> Result<bool, Error> {
        let Some(cell) = self.owner_cell(get(&request.owner))? else { return Ok(false) };
        let prev = get(&request.own_prev);
        // Acquire: the load of the head comes after it. If this is no longer the link, because the
        // cell was reused, the head from before that is visible: it synchronizes with the Release
        // in `Thread::alloc`, or with the Release of `put`.
        let leads = |prev: &Request<M>| prev.own_next.load(Acquire) == at;
        let follows = !prev.is_null() && self.request(prev).is_ok_and(leads);
        Ok(follows || get(&cell.head) == at)
    }
}

#[cfg(test)]
mod tests {
    use latchwork_machine::Native;
    use latchwork_region::Offset;

    use crate::granular::{X, modes};
    use crate::memory::cells::{RequestAt, get, put};
    use crate::memory::intents;
    use crate::recovery::staged::{NAMES, cell_of, dies};
    use crate::{Manager, OwnerId, Session};

    /// Does what a sweeper does with the first lock of a dead thread's owner: removes the request
    /// from its queue and records it, and removes it from the owner's list if `unlists` is set.
    /// Then the sweeper dies.
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

    /// The sweeper's own slot is swept before the thread's. A request that it had not removed from
    /// the list stays there, and a request that it had removed is freed.
    #[test]
    fn a_request_that_a_dead_sweeper_was_releasing_is_released_once() {
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

    /// The intent of the thread that owned the list, which died as it linked the request, frees no
    /// request that a sweeper has in hand.
    #[test]
    fn a_request_that_a_sweeper_takes_makes_older_intents_void() {
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

    /// A dead sweeper's intent is taken over by its sweeper, and the earlier thread's intent is
    /// void.
    #[test]
    fn an_intent_is_taken_over_by_one_sweeper() {
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

    /// The request before it was freed and its cell reused, by a thread that died before it updated
    /// the backward link of this one.
    #[test]
    fn the_head_of_a_list_is_listed_whatever_its_backward_link() {
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
}

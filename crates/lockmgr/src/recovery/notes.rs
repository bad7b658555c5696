//! Freeing what a thread had in hand as it died: what it noted ([`intents`]), and had taken out of
//! a list or not yet.

use core::sync::atomic::Ordering::Acquire;

use latchwork_machine::{ConstMachine, Word};
use latchwork_region::Dead;

use crate::Error;
use crate::memory::cells::{Request, RequestAt, Table, get};
use crate::memory::numbers::PartitionNumber;
use crate::memory::typed::Stored;
use crate::memory::{Memory, intents};

impl<M: ConstMachine> Memory<M> {
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
        // cell is another's, the head of before that is seen: it synchronizes with the Release in
        // `Thread::alloc`, or with that of `put`.
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
}

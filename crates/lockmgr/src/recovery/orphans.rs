//! Orphans: owners whose process died, and whose locks are kept until their work is rolled back.
//!
//! ```text
//!            its process dies, the callback returns false
//!  live ───────────────────────────────────────────▶ orphaned ◀──────────┐
//!                                                     │                  │ dropped, or its
//!                                       adopt: CAS    ▼                  │ thread died: sweep
//!                                                    adopted by slot n ──┘
//!                                                     │ end, release_orphan
//!                                                     ▼
//!                                                    free
//! ```
//!
//! Before it is orphaned it may be *undecided*, if its sweeper had no callback: `policy.rs`.
//!
//! The state word names the thread that works on an orphan, so that only one does. A page with
//! orphans belongs to no thread:
//!
//! ```text
//!  page.thread:  n ──▶ ORPHANAGE | how often it was one ──▶ 0, when all its owners are free
//!                 sweep                                CAS
//! ```
//!
//! Invariants. While a page is an `ORPHANAGE`, no owner in it becomes live, so its owners stay free
//! once they are. The thread that frees the page has seen all owners free under the count that it
//! exchanges: a page that belonged to a session in between has another count. A sweeper that makes
//! a page an orphanage, and a thread that frees its last orphan, each store first, pass a fence,
//! and then load: at least one of them sees the page empty. If it dies before it frees the page,
//! the next sweep frees it.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

use latchwork_machine::{ConstMachine, Word};
use latchwork_region::{Dead, Offset};

use crate::ids::OwnerId;
use crate::memory::cells::{
    MOVED, ORPHANAGE, OwnerCell, OwnerPage, PAGES, Request, RequestAt, cell_at, get, put,
};
use crate::memory::entry::Entry;
use crate::memory::numbers::OwnerNumber;
use crate::memory::owner_state::OwnerState;
use crate::memory::{Memory, intents, names};
use crate::range::cells::{claim, is_that};
use crate::range::keyspaces::what;
use crate::{Error, Mode};

/// Returns an owner's label: 32 bytes, padded with zeros.
pub(crate) fn label_of<M: ConstMachine>(cell: &OwnerCell<M>) -> Vec<u8> {
    cell.label.iter().flat_map(|word| get(word).to_le_bytes()).collect()
}

/// An orphan that this thread has taken. If an error or a panic ends its work, the orphan gets the
/// state `again`.
pub(crate) struct TakenOrphan<'c, M: ConstMachine> {
    pub(crate) cell: &'c OwnerCell<M>,
    pub(crate) again: OwnerState,
}

impl<M: ConstMachine> TakenOrphan<'_, M> {
    pub(crate) fn ends(self) {
        core::mem::forget(self);
    }
}

impl<M: ConstMachine> Drop for TakenOrphan<'_, M> {
    fn drop(&mut self) {
        put(&self.cell.state, self.again);
    }
}

impl<M: ConstMachine> Memory<M> {
    /// Returns the owners whose process died and whose locks are kept for recovery, without those
    /// that a thread has adopted.
    pub(crate) fn orphans(&self) -> Result<Vec<OwnerId>, Error> {
        self.region().check()?;
        let orphaned = self.each_owner().filter(|(_, cell)| get(&cell.state).is_orphan());
        Ok(orphaned.map(|(number, cell)| number.id(get(&cell.generation))).collect())
    }

    /// Returns the orphans with their labels, without trailing zeros.
    pub(crate) fn labelled_orphans(&self) -> Result<Vec<(OwnerId, Vec<u8>)>, Error> {
        let label = |id: OwnerId| {
            let cell = self.owner_cell(id.number()).ok().flatten()?;
            let mut label = label_of(cell);
            let length = label.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            label.truncate(length);
            (get(&cell.generation) == id.generation).then_some((id, label))
        };
        Ok(self.orphans()?.into_iter().filter_map(label).collect())
    }

    /// Releases an orphan's locks, after its work was rolled back. If several threads try, one
    /// succeeds.
    pub(crate) fn release_orphan(&self, orphan: OwnerId) -> Result<(), Error> {
        let cell = self.take_orphan(orphan)?;
        let taken = TakenOrphan { cell, again: OwnerState::ORPHANED };
        self.release_cell(orphan.number(), cell)?;
        taken.ends();
        #[cfg(feature = "tracing")]
        crate::meter::events::orphan_released(orphan);
        self.after_orphan(orphan.number())
    }

    /// Assigns an orphan to this thread.
    pub(crate) fn take_orphan(&self, orphan: OwnerId) -> Result<&OwnerCell<M>, Error> {
        let none = Error::NoOwner(orphan);
        let Some(cell) = self.owner_cell(orphan.number())? else { return Err(none) };
        let mine = OwnerState::adopted_by(self.thread.number());
        let was = get(&cell.state);
        // An outdated id names an earlier owner of the cell; this one must not be changed.
        if get(&cell.generation) != orphan.generation {
            return Err(none);
        }
        // AcqRel: synchronizes with the Release of the sweeper that kept it, and of the thread that
        // adopted it last: its lists are visible as they were left.
        if !was.is_orphan() || cell.state.compare_exchange(was, mine, AcqRel, Relaxed).is_err() {
            return Err(none);
        }
        // It may be a later owner of the same cell.
        if get(&cell.generation) != orphan.generation {
            put(&cell.state, was);
            return Err(none);
        }
        Ok(cell)
    }

    /// Frees the page of an orphan that has become free, if it was the last one.
    pub(crate) fn after_orphan(&self, index: OwnerNumber) -> Result<(), Error> {
        let place = index.page();
        let Some(page) = self.page(place)? else { return Ok(()) };
        self.point("orphan released");
        self.end_orphanage(place, page)
    }

    /// Makes a page of a thread an orphanage, which belongs to no thread.
    pub(crate) fn make_orphanage(&self, place: u32, page: &OwnerPage<M>) -> Result<(), Error> {
        let times = get(&page.orphanages).wrapping_add(1);
        put(&page.orphanages, times);
        put(&page.thread, ORPHANAGE | times & !ORPHANAGE);
        self.end_orphanage(place, page)
    }

    /// Frees a page of orphans if all its owners are free.
    fn end_orphanage(&self, place: u32, page: &OwnerPage<M>) -> Result<(), Error> {
        // SeqCst: between this thread's store, of the page's or of an owner's state, and its load
        // of the other; the same fence is between the other thread's store and load.
        M::fence(SeqCst);
        let seen = get(&page.thread);
        // Acquire: synchronizes with the Release of the thread that ended the owner; the cell is
        // visible as it left it, also to the session that gets the page from this thread.
        let is_used = |cell: &OwnerCell<M>| !cell.state.load(Acquire).is_free();
        if seen & ORPHANAGE == 0 || page.owners.iter().any(is_used) {
            return Ok(());
        }
        self.point("page of orphans about to be free");
        // AcqRel: synchronizes with the AcqRel in `claims`, by the session that claims it next.
        if page.thread.compare_exchange(seen, 0, AcqRel, Relaxed).is_ok() {
            return self.list_page(place, page);
        }
        Ok(())
    }

    /// Makes a dead owner an orphan, decided or not. The sweep has withdrawn its waiting request.
    pub(crate) fn keep_owner(
        &self,
        dead: &Dead<'_, M>,
        cell: &OwnerCell<M>,
        state: OwnerState,
    ) -> Result<(), Error> {
        self.renew_list(cell)?;
        let in_hand = dead.in_hand();
        for at in self.own_list(cell)? {
            // A new generation makes the dead thread's intents for it void. From now on another
            // thread may change the list, so the sweep could no longer find there that the request
            // must not be freed.
            let is_noted = get(&dead.intent()[intents::REQUEST]) as u32 == at.raw();
            if is_noted || in_hand.iter().any(|noted| noted.offset.raw() == at.raw()) {
                self.thread.adopt(at)?;
            }
        }
        put(&cell.state, state);
        Ok(())
    }

    /// Reduces the list of a dead owner's requests to the locks that it holds, and restores all
    /// fields that another thread needs to use it.
    pub(crate) fn renew_list(&self, cell: &OwnerCell<M>) -> Result<(), Error> {
        let (mut prev, mut held) = (Offset::NULL, 0);
        for at in self.own_list(cell)? {
            let request = self.request(at)?;
            if get(&request.state).holds() {
                self.settle_moved(cell, request)?;
                self.settle_claim(cell, at)?;
            }
            if get(&request.state).holds() {
                put(&request.own_prev, prev);
                (prev, held) = (at, held + 1);
                continue;
            }
            // It is in no queue.
            self.forget_range(cell, at)?;
            let _latched = self.latch(get(&request.partition).within(self.partitions()))?;
            put(&request.own_prev, prev);
            self.note_listed(at)?;
            let next = get(&request.own_next);
            if prev.is_null() {
                put(&cell.head, next);
            } else {
                put(&self.request(prev)?.own_next, next);
            }
            self.free_cell(at)?;
        }
        put(&cell.held, held);
        Ok(())
    }

    /// Completes a transfer of a claim that the owner was making when it died. If the ticket had
    /// followed, the owner's own request of the ticket leaves the queue. If not, the claim becomes
    /// its own again: otherwise it would belong to the next owner in the other's cell.
    fn settle_claim(&self, cell: &OwnerCell<M>, at: RequestAt<M>) -> Result<(), Error> {
        let Some(id) = self.claim_of(cell, at)? else { return Ok(()) };
        let (request, it) = (self.request(at)?, self.claim(id.0)?);
        let mine = get(&request.owner);
        if get(&it.owner) == mine {
            return Ok(());
        }
        if self.is_handed_over(request, id)? {
            let latched = self.latch(get(&request.partition).within(self.partitions()))?;
            return self.take_out(&latched, get(&request.object), at);
        }
        let latched = self.latch_keyspace(get(&it.space))?;
        // Checked again under the latch: the cell may have been reused.
        if is_that(self.region(), id)? && what(it)?.1 != claim::GONE {
            put(&it.owner, mine);
        }
        drop(latched);
        Ok(())
    }

    /// Completes the adoption of a moved request that the owner was making when it died: strikes
    /// the weak lock that the request came from.
    fn settle_moved(&self, cell: &OwnerCell<M>, request: &Request<M>) -> Result<(), Error> {
        if !request.is_moved() {
            return Ok(());
        }
        let bytes = self.name_of(get(&request.object))?;
        if !get(&cell.weak).is_null() {
            let page = cell_at(self.region(), get(&cell.weak))?;
            for (at, state) in page.states.iter().enumerate() {
                let entry = get(state);
                if entry.count != 0 && names::read::<M>(&page.names[at], entry.length) == bytes {
                    put(state, Entry { count: 0, length: 0, mode: Mode(0), ..entry });
                }
            }
        }
        put(&request.count, get(&request.count) & !MOVED);
        Ok(())
    }

    /// Completes the transfers of claims that owners of dead threads were making, before another
    /// thread can have one of the two owners or its cell. Walks all pages once.
    pub(crate) fn settle_claims(&self, dead: &[Dead<'_, M>]) -> Result<(), Error> {
        if self.keyspaces()?.is_none() {
            return Ok(());
        }
        let is_dead = |thread: u32| dead.iter().any(|dead| dead.number() == thread);
        for place in 0..PAGES as u32 {
            let Some(page) = self.page(place)? else { break };
            let owned = get(&page.thread);
            for cell in page.owners.iter().filter(|cell| get(&cell.ranges) != 0) {
                let state = get(&cell.state);
                if state.is_free() || !state.thread(owned).is_some_and(is_dead) {
                    continue;
                }
                for at in self.own_list(cell)? {
                    if get(&self.request(at)?.state).holds() {
                        self.settle_claim(cell, at)?;
                    }
                }
            }
        }
        self.wake_all()
    }

    /// Turns owners that dead threads had adopted or asked about into orphans again, and frees
    /// pages of orphans whose owners are all free. Walks all pages once.
    pub(crate) fn orphan_again(&self, dead: &[Dead<'_, M>]) -> Result<(), Error> {
        for place in 0..PAGES as u32 {
            let Some(page) = self.page(place)? else { break };
            for cell in &page.owners {
                let state = get(&cell.state);
                // An orphan without a thread names none.
                let Some(thread) = state.thread(0).filter(|_| state.is_kept()) else { continue };
                let its = |dead: &&Dead<'_, M>| dead.number() == thread;
                let Some(dead) = dead.iter().find(its) else { continue };
                let to = if state.is_asked() {
                    // Before it is undecided: until then, a process that finds nothing searches
                    // again.
                    self.tell_deciders()?;
                    OwnerState::UNDECIDED
                } else {
                    OwnerState::ORPHANED
                };
                self.withdraw_of(cell)?;
                self.keep_owner(dead, cell, to)?;
                self.point("orphan an orphan again");
            }
            if get(&page.thread) & ORPHANAGE != 0 {
                self.end_orphanage(place, page)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use latchwork_region::Offset;

    use crate::granular::{IS, IX, S, X};
    use crate::memory::cells::{get, put};
    use crate::memory::entry::Entry;
    use crate::memory::state::{State, status};
    use crate::options::{Step, Wait};
    use crate::recovery::staged::{NAMES, cell_of, keeps, orphan};
    use crate::{Error, KeyRange, RangeKind};

    /// An owner died as it took a weak lock in a stronger mode, after a closer had moved the lock
    /// in the weaker mode, the only granted one. With and without a lock in the table.
    #[test]
    fn a_mode_that_was_being_taken_at_death_is_not_held() {
        for in_table in [false, true] {
            let manager = keeps();
            let sessions = [(); 2].map(|()| manager.session().unwrap());
            let [owner, other] = [0, 1].map(|at| sessions[at].owner().unwrap());
            let id = owner.id();
            if in_table {
                other.lock(b"n", S).unwrap();
                owner.lock(b"n", IS).unwrap();
                other.unlock(b"n").unwrap();
                // Weak requests that find the bias closed open it again.
                for _ in 0..40 {
                    other.lock(b"n", IS).unwrap();
                    other.unlock(b"n").unwrap();
                }
            }
            owner.lock(b"n", IS).unwrap();
            let (at, _) = owner.last_entry().unwrap();
            let page = owner.known_page().unwrap();
            let old = get(&page.states[at]);
            assert_eq!((old.count, old.mode), (1, IS));
            other.lock(b"n", S).unwrap();
            put(&page.states[at], Entry { count: 2, mode: IX, ..old });
            core::mem::forget(owner);
            sessions[0].thread().abandon();
            assert_eq!(manager.sweep(), Ok(1));
            let last = manager.session().unwrap();
            let adopted = last.adopt(id).unwrap();
            assert_eq!(adopted.try_lock(b"n", IX), Err(Error::NotGranted));
            assert_eq!(adopted.holds(b"n"), Ok(Some((IS, 2 + u32::from(in_table)))));
            other.unlock(b"n").unwrap();
            adopted.try_lock(b"n", IX).unwrap();
            adopted.end().unwrap();
        }
    }

    const SPACE: &[u8] = b"a keyspace";

    /// An owner that will be kept died as it transferred a claim, with or without the ticket. One
    /// of the two owners has claim and ticket.
    #[test]
    fn a_claim_in_transfer_at_death_has_one_owner() {
        for followed in [false, true] {
            let manager = keeps();
            let session = manager.session().unwrap();
            let [giver, taker] = [(); 2].map(|()| session.owner().unwrap());
            let key = KeyRange::key(b"k");
            giver.lock_range(SPACE, key, RangeKind::WriteNext, Wait::Never).unwrap();
            let ids = [giver.id(), taker.id()];
            let at = get(&giver.cell.head);
            giver.hand_over_range(at, &taker).unwrap().stays();
            if followed {
                // Does what `hand_over` does, except for the last step.
                let ticket = get(&giver.memory.request(at).unwrap().object);
                let memory = giver.memory;
                let latched = memory.latch(get(&memory.request(at).unwrap().partition)).unwrap();
                let (new, request) = taker.new_request(ticket, latched.number, 1).unwrap();
                let object = memory.object(ticket).unwrap();
                let (held, _) = memory.tickets().unwrap();
                latched.link_front(object, new, request, held).unwrap();
            }
            core::mem::forget((giver, taker));
            session.thread().abandon();
            assert_eq!(manager.sweep(), Ok(1));
            let last = manager.session().unwrap();
            let kept = last.orphans().unwrap();
            assert_eq!(kept, [ids[usize::from(followed)]]);
            let other = last.owner().unwrap();
            let refused = other.try_lock_range(SPACE, key, RangeKind::WriteNext);
            assert_eq!(refused, Err(Error::NotGranted));
            let adopted = last.adopt(kept[0]).unwrap();
            adopted.unlock_range(SPACE, key, RangeKind::WriteNext).unwrap();
            adopted.end().unwrap();
            other.try_lock_range(SPACE, key, RangeKind::WriteNext).unwrap();
        }
    }

    /// If the ticket does not follow, because of an error or a panic, the claim belongs to the
    /// giver again.
    #[test]
    fn a_claim_whose_ticket_does_not_follow_is_returned() {
        let manager = keeps();
        let session = manager.session().unwrap();
        let [giver, taker] = [(); 2].map(|()| session.owner().unwrap());
        let key = KeyRange::key(b"k");
        giver.lock_range(SPACE, key, RangeKind::WriteNext, Wait::Never).unwrap();
        let memory = giver.memory;
        let keyspace = memory.spot(memory.named(SPACE).unwrap().hash).partition;
        let handed_over = giver.hand_over_range(get(&giver.cell.head), &taker).unwrap();
        // Held by this session, so taking it again is an error.
        let latched = memory.latch(keyspace).unwrap();
        drop(handed_over);
        drop(latched);
        assert_eq!(get(&taker.cell.ranges), 0);
        assert_eq!(giver.holds_range(SPACE, key, RangeKind::WriteNext), Ok(Some(1)));
        giver.trade_range(SPACE, key, RangeKind::WriteNext, &taker).unwrap();
        assert_eq!(taker.holds_range(SPACE, key, RangeKind::WriteNext), Ok(Some(1)));
        taker.release_all().unwrap();
        assert_eq!(giver.try_lock_range(SPACE, key, RangeKind::WriteNext), Ok(()));
    }

    /// Its owner died as it released a range, or before it had taken it: the ticket is not kept as
    /// a lock of an orphan, and its waiters continue.
    #[test]
    fn a_ticket_without_a_claim_is_not_kept() {
        let manager = keeps();
        let session = manager.session().unwrap();
        let [owner, nothing] = [(); 2].map(|()| session.owner().unwrap());
        owner.lock(b"held", X).unwrap();
        for owner in [&owner, &nothing] {
            let at: &[u8] = if core::ptr::eq(owner, &nothing) { b"n" } else { b"o" };
            owner.lock_range(SPACE, KeyRange::key(at), RangeKind::ReadNext, Wait::Never).unwrap();
            let id = owner.memory.claim_of(owner.cell, get(&owner.cell.head)).unwrap().unwrap();
            owner.memory.remove_claim(id).unwrap();
        }
        // Nor is the ticket of another owner's claim that it waited for and obtained after that
        // claim had ended.
        let gone = owner.memory.request(get(&owner.cell.head)).unwrap();
        let gone = owner.memory.name_of(get(&gone.object)).unwrap();
        let waited = session.owner().unwrap();
        owner.unlock(&gone).unwrap();
        waited.lock(&gone, S).unwrap();
        // But a name that looks like a ticket's is kept: there is no such cell.
        let looks = [&gone[..16], &[0xff; 8]].concat();
        let (held, _) = owner.memory.tickets().unwrap();
        owner.lock(&looks, held).unwrap();
        owner.lock_range(SPACE, KeyRange::key(b"r"), RangeKind::ReadNext, Wait::Never).unwrap();
        let id = owner.id();
        core::mem::forget((owner, nothing, waited));
        session.thread().abandon();
        assert_eq!(manager.sweep(), Ok(1));
        let last = manager.session().unwrap();
        let kept = last.orphans().unwrap();
        assert_eq!(kept, [id]);
        let memory = last.owner().unwrap().memory;
        let list = memory.own_list(cell_of(memory, id)).unwrap();
        let names = list.iter().map(|at| get(&memory.request(*at).unwrap().object));
        let names: Vec<_> = names.map(|object| memory.name_of(object).unwrap()).collect();
        assert_eq!(names[1..], [looks, b"held".to_vec()]);
        last.adopt(id).unwrap().end().unwrap();
        assert_eq!(last.orphans(), Ok(Vec::new()));
    }

    /// An orphan that could only be released in part has a list that other threads can use.
    #[test]
    fn a_partly_released_orphan_keeps_its_other_locks() {
        let manager = keeps();
        let id = orphan(&manager);
        let session = manager.session().unwrap();
        let owner = session.owner().unwrap();
        let memory = owner.memory;
        // The lock that was taken last is released first.
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

    /// An adopter that is dropped while it waits, and cannot withdraw, leaves no request that the
    /// next adopter would take for a lock.
    #[test]
    fn the_next_adopter_does_not_hold_what_the_last_one_waited_for() {
        let manager = keeps();
        let id = orphan(&manager);
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

    /// Nor a request that was refused since.
    #[test]
    fn a_request_that_an_adopter_was_refused_is_in_no_queue() {
        let manager = keeps();
        let id = orphan(&manager);
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

    /// Nor a range, if its request was forgotten.
    #[test]
    fn a_range_that_an_adopter_waited_for_is_withdrawn() {
        let manager = keeps();
        let id = orphan(&manager);
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

    /// An owner released a weak lock and died before a closer moved it.
    #[test]
    fn an_adopter_settles_a_request_that_was_moved_after_its_release() {
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
        // It is swept as an owner that released the lock under a bias that was already closed.
        put(&page.states[at], given_back);
        let word = &memory.biases(spot.partition).unwrap()[spot.bias as usize];
        let open = get(word);
        put(word, open.closed());
        assert_eq!(manager.sweep(), Ok(1));
        let latched = closer.memory.latch(spot.partition).unwrap();
        assert!(other.adopt(id).is_err(), "it needs the latch");
        // The closer had read the entry before that.
        put(&page.states[at], counted);
        latched.collect(spot.bias, open, None, &mut 0).unwrap();
        put(&page.states[at], given_back);
        drop(latched);
        other.adopt(id).unwrap().end().unwrap();
        closer.try_lock(b"weak", X).unwrap();
    }
}

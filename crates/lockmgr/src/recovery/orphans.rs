//! Orphans: owners whose process died, and whose locks are kept until their work is undone.
//!
//! ```text
//!            its process dies, the callback says no
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
//! The state word says whose an orphan is, so that one thread works on it at a time. The page that
//! it lies in is no thread's while it has orphans:
//!
//! ```text
//!  page.thread:  n ──▶ ORPHANAGE | times it came to this ──▶ 0, when all its owners are free
//!                 sweep                                CAS
//! ```
//!
//! Invariants. While a page says `ORPHANAGE` no owner in it becomes live, so all its owners stay
//! free once they are. The thread that frees the page has seen them free under the very count that
//! it exchanges: a page that went to a session meanwhile, and came back, has another. A sweeper
//! that makes a page an orphanage and a thread that frees its last orphan each store first, pass a
//! fence, and look then: one of them sees the page empty. If it dies before it frees the page, the
//! next sweep does.

use core::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};

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

/// What an owner is called by people: 32 bytes, zeros at the end.
pub(crate) fn label_of<M: ConstMachine>(cell: &OwnerCell<M>) -> Vec<u8> {
    cell.label.iter().flat_map(|word| get(word).to_le_bytes()).collect()
}

/// An orphan that this thread has taken. If an error or a panic ends its work, the orphan is what
/// `again` says.
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
    /// Owners whose process died and whose locks are kept for recovery, those left out that a
    /// thread has adopted.
    pub(crate) fn orphans(&self) -> Result<Vec<OwnerId>, Error> {
        self.region().check()?;
        let orphaned = self.each_owner().filter(|(_, cell)| get(&cell.state).is_orphan());
        Ok(orphaned.map(|(number, cell)| number.id(get(&cell.generation))).collect())
    }

    /// The orphans with their labels, zeros at the end cut off: to find one by what its process
    /// called it.
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

    /// Releases an orphan's locks, after its work was undone. Of several threads that try, one
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

    /// Makes an orphan this thread's.
    pub(crate) fn take_orphan(&self, orphan: OwnerId) -> Result<&OwnerCell<M>, Error> {
        let none = Error::NoOwner(orphan);
        let Some(cell) = self.owner_cell(orphan.number())? else { return Err(none) };
        let mine = OwnerState::adopted_by(self.thread.number());
        let was = get(&cell.state);
        // What an outdated name names is not this one, and not to be touched.
        if get(&cell.generation) != orphan.generation {
            return Err(none);
        }
        // AcqRel: synchronizes with the Release of the sweeper that kept it, and of the thread that
        // adopted it last: its lists are seen as they were left.
        if !was.is_orphan() || cell.state.compare_exchange(was, mine, AcqRel, Relaxed).is_err() {
            return Err(none);
        }
        // It may be a later one in the same cell.
        if get(&cell.generation) != orphan.generation {
            put(&cell.state, was);
            return Err(none);
        }
        Ok(cell)
    }

    /// After an orphan has become free: so is its page if that was the last one.
    pub(crate) fn after_orphan(&self, index: OwnerNumber) -> Result<(), Error> {
        let place = index.page();
        let Some(page) = self.page(place)? else { return Ok(()) };
        self.point("orphan released");
        self.end_orphanage(place, page)
    }

    /// Says that a page has orphans and is no thread's any more.
    pub(crate) fn make_orphanage(&self, place: u32, page: &OwnerPage<M>) -> Result<(), Error> {
        let times = get(&page.orphanages).wrapping_add(1);
        put(&page.orphanages, times);
        put(&page.thread, ORPHANAGE | times & !ORPHANAGE);
        self.end_orphanage(place, page)
    }

    /// Frees a page of orphans if it has none any more.
    fn end_orphanage(&self, place: u32, page: &OwnerPage<M>) -> Result<(), Error> {
        // SeqCst: between this thread's store, of the page's or of an owner's state, and its look
        // at the other; the same fence stands between the other thread's two.
        M::fence(SeqCst);
        let seen = get(&page.thread);
        if seen & ORPHANAGE == 0 || page.owners.iter().any(|cell| !get(&cell.state).is_free()) {
            return Ok(());
        }
        self.point("page of orphans about to be free");
        // AcqRel: synchronizes with the AcqRel in `claims`, of the session that has it next.
        if page.thread.compare_exchange(seen, 0, AcqRel, Relaxed).is_ok() {
            return self.list_page(place, page);
        }
        Ok(())
    }

    /// Makes a dead owner an orphan, decided or not. The sweep has withdrawn what it waited for.
    pub(crate) fn keep_owner(
        &self,
        dead: &Dead<'_, M>,
        cell: &OwnerCell<M>,
        state: OwnerState,
    ) -> Result<(), Error> {
        self.renew_list(cell)?;
        let in_hand = dead.in_hand();
        for at in self.own_list(cell)? {
            // A new generation makes the dead thread's notes of it void: from now on another thread
            // may change the list, by which the sweep would find that it is not to be freed.
            let is_noted = get(&dead.intent()[intents::REQUEST]) as u32 == at.raw();
            if is_noted || in_hand.iter().any(|noted| noted.offset.raw() == at.raw()) {
                self.thread.adopt(at)?;
            }
        }
        put(&cell.state, state);
        Ok(())
    }

    /// Makes the list of a dead owner's requests one of locks that it holds, with all fields that
    /// another thread needs to go on with it.
    pub(crate) fn renew_list(&self, cell: &OwnerCell<M>) -> Result<(), Error> {
        let (mut prev, mut held) = (Offset::NULL, 0);
        for at in self.own_list(cell)? {
            let request = self.request(at)?;
            if get(&request.state).holds() {
                self.settle_moved(cell, request)?;
                self.take_claim_back(cell, at)?;
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

    /// Undoes what the owner did when it died: it handed a claim over, and had yet to hand over the
    /// ticket. The claim would be that of the next owner in the other's cell.
    fn take_claim_back(&self, cell: &OwnerCell<M>, at: RequestAt<M>) -> Result<(), Error> {
        let Some(id) = self.claim_of(cell, at)? else { return Ok(()) };
        let (request, it) = (self.request(at)?, self.claim(id.0)?);
        let mine = get(&request.owner);
        if get(&it.owner) == mine || self.is_handed_over(request, id)? {
            return Ok(());
        }
        let latched = self.latch_keyspace(get(&it.space))?;
        // Once more, under the latch: it may be another by now.
        if is_that(self.region(), id)? && what(it)?.1 != claim::GONE {
            put(&it.owner, mine);
        }
        drop(latched);
        Ok(())
    }

    /// Finishes what the owner did when it died: it made a moved request its own, and had yet to
    /// strike the weak lock that the request came from.
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

    /// Gives claims back to those owners of dead threads that had handed them over, and not yet the
    /// ticket: before another thread can have the other owner, or its cell. One walk through all
    /// pages.
    pub(crate) fn take_claims_back(&self, dead: &[Dead<'_, M>]) -> Result<(), Error> {
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
                        self.take_claim_back(cell, at)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes orphans again of those that dead threads had adopted or asked about, and frees pages
    /// of orphans that have none. One walk through all pages.
    pub(crate) fn orphan_again(&self, dead: &[Dead<'_, M>]) -> Result<(), Error> {
        for place in 0..PAGES as u32 {
            let Some(page) = self.page(place)? else { break };
            for cell in &page.owners {
                let state = get(&cell.state);
                // An orphan that no thread is at work on names none.
                let Some(thread) = state.thread(0).filter(|_| state.is_kept()) else { continue };
                let its = |dead: &&Dead<'_, M>| dead.number() == thread;
                let Some(dead) = dead.iter().find(its) else { continue };
                let to = if state.is_asked() {
                    // Before it is undecided: until then a process that looks in vain looks again.
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

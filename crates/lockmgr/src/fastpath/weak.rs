//! Weak locks: modes that do not conflict with each other are locked in the owner's own memory.
//!
//! The fast path of PostgreSQL's lock manager (Haas, 2011), without its private latch, and with
//! biases instead of counters, as in BRAVO (Dice and Kogan, 2019).
//!
//! # The bias
//!
//! Names share *biases* by their hash: 65,408 of them, or 261,632 on a machine with many cores. A
//! bias begins closed. Under an open bias, weak locks on these names are in their owners' pages,
//! and no strong lock is granted. Under a closed bias all locks on these names are in the table.
//! (The third state is in `fastpath/reserved.rs`.) Every change increases the value. A weak lock's
//! entry records the value under which it was taken, and **counts only while the bias has that
//! value**.
//!
//! ```text
//!        strong request: close, heavy barrier, collect
//!  open ─────────────────────────────────────────────────▶ closed
//!       ◀─────────────────────────────────────────────────
//!        no strong request in the table, and many weak ones went through it
//! ```
//!
//! Both changes are made under the latch of the partition.
//!
//! # Why a closer misses no entry
//!
//! A weak lock or unlock stores its entry, passes the light barrier, and reads the bias. A closer
//! stores the bias, passes the heavy barrier, and reads the entries. So at least one of the two
//! sees the other's store. If the owner sees the bias closed, it restores its entry, waits for the
//! latch and settles in the table, where it finds any request that the closer created from the
//! entry. If the owner does not see it, the closer saw the entry and has *moved* it: created a
//! request in the table on the owner's behalf. Only the owner writes to an entry; the value of the
//! bias shows it that the entry was moved.
//!
//! A moved request is marked, and becomes an ordinary one when its owner next uses the lock. If
//! there is no room for all of them, the closer removes them and restores the bias
//! (`Latched::reopen`).

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{ConstMachine, Word};
use latchwork_region::Offset;

use crate::Error;
use crate::fastpath::entry::{Taken, group_of};
use crate::memory::bias::Bias;
use crate::memory::cells::{BiasWord, MOVED, RequestAt, Spot, WEAK, WeakPage, cell_at, get, put};
use crate::memory::entry::{Entry, LENGTH_MAX};
use crate::memory::handle::Owner;
use crate::memory::latch::Latched;
use crate::memory::names;
use crate::memory::names::Name;
use crate::memory::state::{State, status};
use crate::mode::Mode;

impl<'s, M: ConstMachine> Owner<'s, M> {
    /// Returns the owner's weak page, if it ever had one.
    pub(crate) fn weak_page(&self) -> Result<Option<&'s WeakPage<M>>, Error> {
        // In the child of a fork the page and the cell are unmapped. This check, and the one in
        // `Owner::ready`, report that.
        self.memory.region().check()?;
        let page = get(&self.cell.weak);
        if !page.is_null() && self.page.get().is_none() {
            let page = cell_at(self.memory.region(), page)?;
            self.page.set(Some(self.note(page)));
        }
        Ok(self.known_page())
    }

    /// Returns the weak page, if it was found before.
    #[inline(always)]
    pub(crate) fn known_page(&self) -> Option<&'s WeakPage<M>> {
        // SAFETY: `weak_page` stored it with `note`.
        self.page.get().map(|page| unsafe { self.at(page) })
    }

    /// Returns the entry that was taken last, and its bias.
    #[inline(always)]
    pub(crate) fn last_entry(&self) -> Option<(usize, &'s BiasWord<M>)> {
        // SAFETY: `entry_taken` stored it with `note`.
        self.last_entry.get().map(|(at, bias)| (at, unsafe { self.at(bias) }))
    }

    #[cold]
    #[inline(never)]
    fn make_weak_page(&self) -> Result<(), Error> {
        let cell = self.memory.thread.alloc::<WeakPage<M>>()?;
        self.memory.note_weak(self.index)?;
        put(&self.cell.weak, cell.offset());
        cell.publish();
        Ok(())
    }

    /// Returns the entries of a mask that count something or must be settled.
    #[inline(always)]
    pub(crate) fn entries_among(&self, mask: u32) -> impl Iterator<Item = usize> + use<M> {
        let mut rest = self.entries.get() & mask;
        core::iter::from_fn(move || {
            let at = rest.trailing_zeros() as usize;
            rest &= rest.wrapping_sub(1);
            (at < WEAK).then_some(at)
        })
    }

    /// Returns the entry for a name, if it counts something or must be settled.
    #[inline(always)]
    pub(crate) fn entry_of(&self, page: &WeakPage<M>, name: &Name<'_>) -> Option<usize> {
        self.entries_among(self.likely(page, name.hash)).find(|at| {
            get(&page.hashes[*at]) == name.hash
                && get(&page.states[*at]).length == name.bytes.len()
                && name.is_in(&page.names[*at])
        })
    }

    /// Records whether an entry counts something or must be settled.
    #[inline(always)]
    fn mark_entry(&self, at: usize, counts: bool) {
        let (old, bit) = (self.entries.get(), 1 << (at % WEAK));
        self.entries.set(if counts { old | bit } else { old & !bit });
    }

    /// Records which entry was taken last.
    #[inline(always)]
    pub(crate) fn entry_taken(&self, at: usize, bias: &'s BiasWord<M>) {
        self.mark_entry(at, true);
        self.last_entry.set(Some((at, self.note(bias))));
    }

    /// Takes a weak lock of a name that has no entry yet. This is the usual path, and no step of it
    /// can fail.
    #[inline(always)]
    pub(crate) fn weak_take(&self, name: &Name<'_>, spot: Spot, mode: Mode) -> Taken {
        let (Some(page), Ok(biases)) = (self.known_page(), self.memory.biases(spot.partition))
        else {
            return Taken::No;
        };
        let bias = &biases[spot.bias as usize];
        let (seen, group, taken) = (get(bias), group_of(name.hash), self.entries.get());
        let free = (group & !(taken | self.reserved.get())).trailing_zeros() as usize;
        if !seen.is_open() || name.bytes.len() > LENGTH_MAX || free >= WEAK {
            return Taken::No;
        }
        if group & taken != 0
            && self.entries_among(group).any(|at| get(&page.hashes[at]) == name.hash)
        {
            return Taken::No;
        }
        self.note_filter(spot);
        // Relaxed: the entry is free, and no thread reads it until its state changes.
        page.hashes[free].store(name.hash, Relaxed);
        name.write(&page.names[free]);
        page.marks[free].store(self.next_mark(), Relaxed);
        let old = get(&page.states[free]);
        let new = Entry { bias: seen, count: 1, length: name.bytes.len(), mode };
        // Release: synchronizes with the Acquire in `collect`, so that the name is seen with it.
        page.states[free].store(new, Release);
        self.entry_taken(free, bias);
        // The closer's half is in `close`.
        M::reached_barrier();
        // Acquire: synchronizes with the Release in `put`, by the thread that opened it: all writes
        // under the strong locks before that are visible. This is the last load, because an old
        // value returns when a closing is undone.
        if bias.load(Acquire) == seen { Taken::Yes } else { Taken::Closed(free, old) }
    }

    /// Takes a weak lock of any name. Returns false if it must be taken in the table.
    #[inline(never)]
    pub(crate) fn weak_lock(
        &self,
        name: &Name<'_>,
        spot: Spot,
        mode: Mode,
        taken: Taken,
    ) -> Result<bool, Error> {
        if let Taken::Closed(at, old) = taken {
            return self.weak_undo(spot, at, old);
        }
        let bias = &self.memory.biases(spot.partition)?[spot.bias as usize];
        let mut seen = get(bias);
        let inner = self.memory.inner();
        if seen == Bias::NEW && inner.options.opens_early && inner.weak {
            seen = self.memory.latch(spot.partition)?.open_first(name, spot.bias)?;
        }
        if !seen.is_open() || name.bytes.len() > LENGTH_MAX || !self.has_page()? {
            return Ok(false);
        }
        let Some(page) = self.known_page() else { return Ok(false) };
        if let Some(found) = self.entry_of(page, name) {
            if get(&page.states[found]).count == 0 {
                self.settle_latched(page, found, spot)?;
                return Ok(false);
            }
            return self.weak_again(page, found, bias, seen, spot, mode);
        }
        self.give_up_reserved(page, name.hash);
        match self.weak_take(name, spot, mode) {
            Taken::Yes => Ok(true),
            Taken::No => Ok(false),
            Taken::Closed(at, old) => self.weak_undo(spot, at, old),
        }
    }

    /// Creates the weak page if it does not exist. Returns false if there is no room for it; there
    /// may still be room for a request.
    pub(crate) fn has_page(&self) -> Result<bool, Error> {
        if self.known_page().is_some() || self.weak_page()?.is_some() {
            return Ok(true);
        }
        match self.make_weak_page() {
            Ok(()) => Ok(self.weak_page()?.is_some()),
            Err(error) if crate::error::is_short(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes a weak lock of a name that has an entry: counts it.
    fn weak_again(
        &self,
        page: &WeakPage<M>,
        at: usize,
        bias: &'s BiasWord<M>,
        seen: Bias,
        spot: Spot,
        mode: Mode,
    ) -> Result<bool, Error> {
        let old = get(&page.states[at]);
        let modes = self.memory.modes();
        let made = modes.convert(old.mode, mode);
        if old.bias != seen || !modes.is_weak(made) {
            return Ok(false);
        }
        if old.count == 0xffff {
            return Err(Error::Count);
        }
        let new = Entry { count: old.count + 1, mode: made, ..old };
        // Release: as in `weak_take`.
        page.states[at].store(new, Release);
        self.entry_taken(at, bias);
        // The closer's half is in `close`.
        M::reached_barrier();
        // Acquire: as in `weak_take`.
        if bias.load(Acquire) == seen { Ok(true) } else { self.weak_undo(spot, at, old) }
    }

    /// Takes back a lock whose bias was closed while it was taken, and settles a moved request.
    pub(crate) fn weak_undo(&self, spot: Spot, at: usize, old: Entry) -> Result<bool, Error> {
        let Some(page) = self.weak_page()? else { return Ok(false) };
        // A formerly free entry keeps its new name, by which a moved request is found.
        let kept = if old.count == 0 { Entry { count: 0, ..get(&page.states[at]) } } else { old };
        put(&page.states[at], kept);
        self.mark_entry(at, old.count != 0);
        self.settle_latched(page, at, spot)?;
        Ok(false)
    }

    /// Settles an entry that a closer may have moved.
    ///
    /// If taking the latch fails, or a callback panics during the wait for it, the entry stays
    /// marked. It keeps its name, by which the moved request is found, and is settled at the next
    /// request for that name or at the end of the owner.
    #[cold]
    #[inline(never)]
    fn settle_latched(&self, page: &WeakPage<M>, at: usize, spot: Spot) -> Result<(), Error> {
        self.mark_entry(at, true);
        self.last_entry.set(None);
        let latched = self.memory.latch(spot.partition)?;
        self.settle(&latched, page, at)?;
        drop(latched);
        self.memory.wake_all()
    }

    /// Removes the requests that a closer created, or is about to create, from entries that no
    /// longer count: a dead owner may have released such an entry without settling it.
    pub(crate) fn settle_given_back(&self, page: &WeakPage<M>) -> Result<(), Error> {
        for at in 0..WEAK {
            let entry = get(&page.states[at]);
            let named = (1..=LENGTH_MAX).contains(&entry.length);
            if entry.count == 0 && named {
                let spot = self.memory.spot(get(&page.hashes[at]));
                if self.memory.may_be_moved(page, at)? {
                    self.settle_latched(page, at, spot)?;
                }
            }
        }
        Ok(())
    }

    /// Releases a weak lock once, or entirely. Returns false if it is not in the page.
    #[inline]
    pub(crate) fn weak_unlock(
        &self,
        name: &Name<'_>,
        spot: Spot,
        all: bool,
    ) -> Result<bool, Error> {
        let Some(page) = self.weak_page()? else { return Ok(false) };
        let Some(at) = self.entry_of(page, name) else { return Ok(false) };
        if get(&page.states[at]).count == 0 {
            self.settle_latched(page, at, spot)?;
            return Ok(false);
        }
        let bias = &self.memory.biases(spot.partition)?[spot.bias as usize];
        self.drop_entry(page, at, bias, all)?;
        Ok(true)
    }

    /// Decrements the count of an entry.
    #[inline(always)]
    pub(crate) fn drop_entry(
        &self,
        page: &WeakPage<M>,
        at: usize,
        bias: &BiasWord<M>,
        all: bool,
    ) -> Result<(), Error> {
        let entry = get(&page.states[at]);
        let count = if all { 0 } else { entry.count.saturating_sub(1) };
        put(&page.states[at], Entry { count, ..entry });
        if count == 0 {
            self.mark_entry(at, false);
        }
        // The closer's half is in `close`.
        M::reached_barrier();
        if get(bias) == entry.bias {
            return Ok(());
        }
        self.memory.point("weak lock given back, closed");
        let settled = self.settle_latched(page, at, self.memory.spot(get(&page.hashes[at])));
        // The lock is released in any case. If the entry still counts, it may be settled later.
        if count == 0 { settled } else { Ok(()) }
    }

    /// Turns a moved request into an ordinary one, with the entry's own count, and frees the entry.
    /// An entry that counts by itself is left alone.
    pub(crate) fn settle(
        &self,
        latched: &Latched<'_, M>,
        page: &WeakPage<M>,
        at: usize,
    ) -> Result<(), Error> {
        let entry = get(&page.states[at]);
        let hash = get(&page.hashes[at]);
        let spot = self.memory.spot(hash);
        if entry.bias == get(&self.memory.biases(spot.partition)?[spot.bias as usize]) {
            self.mark_entry(at, entry.count != 0);
            return Ok(());
        }
        let bytes = names::read::<M>(&page.names[at], entry.length);
        let name = Name { bytes: &bytes, hash };
        let object_at = latched.find(&name)?;
        let moved = if object_at.is_null() {
            Offset::NULL
        } else {
            latched.moved_of(page, at, object_at, self.index)?
        };
        if moved.is_null() {
            self.strike(page, at);
            return Ok(());
        }
        let object = self.memory.object(object_at)?;
        let request = self.memory.request(moved)?;
        let own = self.find_own(latched, object_at, object)?;
        // The closer may have seen another mode: a stronger one, taken back by the owner, or that
        // the owner took as it died, so that it was never granted.
        let seen = get(&request.state);
        let granted = self.memory.modes().covers(seen.mode, entry.mode);
        let mode = if granted { entry.mode } else { seen.mode };
        if entry.count != 0 && own.is_null() {
            // The closer may have died before it cleared its intent; when that slot is swept, this
            // request may have left its queue and be our spare one.
            self.memory.thread.adopt(moved)?;
            put(&request.count, entry.count | MOVED);
            put(&request.mark, get(&page.marks[at]));
            self.adopt(moved, request)?;
            self.note_in_table(hash);
            self.memory.point("moved request in the owner's list");
            let mut advanced = Ok(());
            if mode != seen.mode {
                latched.set(object, request, State { mode, ..seen });
                advanced = latched.advance(object);
            }
            // In any case the request is no longer a moved one, because it is in the list.
            put(&request.count, entry.count);
            if advanced.is_err() {
                self.strike(page, at);
                return advanced;
            }
        } else {
            if entry.count != 0 {
                self.add_to(latched, own, page, (at, mode))?;
            }
            self.memory.note_moved(moved)?;
            let last = State { status: status::NEW, ..State::held(Mode(0)) };
            latched.unlink(object, moved, request, last)?;
            latched.advance(object)?;
            if get(&object.head).is_null() {
                latched.retire(object_at, object)?;
            }
            self.memory.free_cell(moved)?;
        }
        self.strike(page, at);
        Ok(())
    }

    /// Adds the count and mode of an entry to the owner's request of the same name.
    pub(crate) fn add_to(
        &self,
        latched: &Latched<'_, M>,
        own: RequestAt<M>,
        page: &WeakPage<M>,
        (at, mode): (usize, Mode),
    ) -> Result<(), Error> {
        let (request, entry) = (self.memory.request(own)?, get(&page.states[at]));
        let state = get(&request.state);
        let mode = self.memory.modes().convert(state.mode, mode);
        let object = self.memory.object(get(&request.object))?;
        latched.set(object, request, State { mode, ..state });
        put(&request.count, request.count() + entry.count);
        // The lock is as old as the older of the two.
        let mark = get(&page.marks[at]).min(get(&request.mark));
        put(&request.mark, mark);
        Ok(())
    }

    /// Frees an entry without a moved request.
    pub(crate) fn strike(&self, page: &WeakPage<M>, at: usize) {
        put(&page.states[at], Entry { count: 0, ..get(&page.states[at]) });
        put(&page.moved[at], Offset::NULL);
        self.mark_entry(at, false);
    }
}

#[cfg(test)]
mod tests {
    use latchwork_region::Region;

    use crate::fastpath::entry::{Taken, group_of};
    use crate::granular::{IS, IX, S, X, modes};
    use crate::memory::cells::{get, put};
    use crate::memory::entry::Entry;
    use crate::{Manager, Options, Owner};

    const NAME: &[u8] = b"a name";

    /// A closer moves a weak lock of `first`, which then releases it, or takes it back, while the
    /// latch is unavailable. Later locks of `first` must not hide the moved request: after `first`
    /// has ended, no lock on the name is held.
    fn moved(gives_back: impl Fn(&Owner<'_>)) {
        let region = Region::private(&Default::default()).unwrap();
        let options = Options { opens_early: true, ..Options::default() };
        let manager = Manager::new(region, modes(), options).unwrap();
        let sessions = [(); 2].map(|()| manager.session().unwrap());
        let [first, second] = [0, 1].map(|at| sessions[at].owner().unwrap());
        let memory = first.memory;
        let name = memory.named(NAME).unwrap();
        let others = (0u32..).map(u32::to_le_bytes).filter(|other| {
            let hash = memory.named(other).unwrap().hash;
            group_of(hash) == group_of(name.hash) && memory.spot(hash) != memory.spot(name.hash)
        });
        first.lock(NAME, IS).unwrap();
        {
            // Held by the session of `second`; a wait for it in the same thread is an error.
            let latched = memory.latch(memory.spot(name.hash).partition).unwrap();
            latched.close(memory.spot(name.hash).bias).unwrap();
            gives_back(&first);
        }
        for other in others.take(3) {
            first.lock(&other, IS).unwrap();
        }
        drop(first);
        // The next owner has the same cell.
        let next = sessions[0].owner().unwrap();
        second.try_lock(NAME, X).unwrap();
        assert!(next.try_lock(NAME, IS).is_err());
    }

    #[test]
    fn a_release_without_the_latch_leaves_no_request() {
        moved(|first| assert!(first.unlock(NAME).is_err()));
    }

    #[test]
    fn repeated_releases_without_the_latch_leave_no_request() {
        moved(|first| {
            assert!(first.unlock(NAME).is_err());
            assert!(first.unlock(NAME).is_err());
            assert!(first.try_lock(NAME, IS).is_err());
            assert!(first.release_all().is_err());
            assert_eq!(first.entries.get().count_ones(), 1);
        });
    }

    #[test]
    fn a_lock_taken_after_the_closing_leaves_no_request() {
        moved(|first| {
            let (at, _) = first.last_entry().unwrap();
            let page = first.known_page().unwrap();
            let taken = get(&page.states[at]);
            let spot = first.memory.spot(get(&page.hashes[at]));
            let free = Entry { count: 0, ..taken };
            let name = first.memory.named(NAME).unwrap();
            assert!(first.weak_lock(&name, spot, IS, Taken::Closed(at, free)).is_err());
        });
    }

    /// A closer saw a stronger mode that its owner took back when it saw the bias closed.
    #[test]
    fn a_mode_taken_after_the_closing_is_not_kept() {
        let region = Region::private(&Default::default()).unwrap();
        let options = Options { opens_early: true, ..Options::default() };
        let manager = Manager::new(region, modes(), options).unwrap();
        let sessions = [(); 2].map(|()| manager.session().unwrap());
        let [first, second] = [0, 1].map(|at| sessions[at].owner().unwrap());
        first.lock(NAME, IS).unwrap();
        let name = first.memory.named(NAME).unwrap();
        let spot = first.memory.spot(name.hash);
        let (at, _) = first.last_entry().unwrap();
        let page = first.known_page().unwrap();
        let old = get(&page.states[at]);
        put(&page.states[at], Entry { count: 2, mode: IX, ..old });
        second.memory.latch(spot.partition).unwrap().close(spot.bias).unwrap();
        let taken = Taken::Closed(at, old);
        assert_eq!(first.weak_lock(&name, spot, IX, taken), Ok(false));
        assert_eq!(first.holds(NAME), Ok(Some((IS, 1))));
        second.try_lock(NAME, S).unwrap();
    }
}

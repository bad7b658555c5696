//! Biases: closing a bias, which moves the locks under it to the table, and opening it again.
//!
//! `fastpath/weak.rs` defines biases. A bias begins closed, and opens after enough weak requests
//! for it went through the table. So a strong lock on a name that has no readers does not inspect
//! other owners' entries. In a transaction system that is nearly every strong lock.
//!
//! # Which owners a closer inspects
//!
//! To close an open bias, a thread searches for the entries under it. Each page of owners has a
//! *filter* of 64 bits; each bias maps to one of them. An owner sets its bit before it stores an
//! entry, so an owner whose bit a closer missed sees the closed bias, as an owner whose entry a
//! closer missed does. A bit stays set when the entry is freed: an owner that releases all its
//! locks rebuilds the filter of its page once a quarter of the bits are set. So a closer reads one
//! rarely written line for 31 owners, and reads more only of owners that may have an entry.
//!
//! # Finding a moved request
//!
//! A closer stores next to an entry which request it created from that entry. It does so before it
//! links the request, so every linked request is recorded. The owner, or the thread that releases a
//! dead owner, accepts the record only if the request names the same owner and object and is
//! linked, because a closer may have died in between.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{ConstMachine, Deadline, Integer, Word};
use latchwork_region::Offset;

use crate::Error;
use crate::fastpath::learned::Learned;
use crate::memory::bias::Bias;
use crate::memory::cells::{
    BIASES, GROUP, MOVED, ObjectAt, OwnerCell, PAGES, Request, RequestAt, Spot, WEAK, WeakPage,
    cell_at, get, put,
};
use crate::memory::entry::{Entry, LENGTH_MAX, WEAK_WORDS};
use crate::memory::handle::Owner;
use crate::memory::latch::Latched;
use crate::memory::names::Name;
use crate::memory::numbers::OwnerNumber;
use crate::memory::state::{State, status};
use crate::memory::typed::{Link, Stored};
use crate::memory::{Memory, names};
use crate::mode::Mode;

/// Owners that a closer inspects between two checks of its deadline.
const LOOKED: usize = 512;
/// Number of set bits from which a filter is rebuilt.
const FULL: u32 = 16;

impl<M: ConstMachine> Latched<'_, M> {
    /// Returns the request that a closer created from an entry of an owner, or null.
    pub(crate) fn moved_of(
        &self,
        page: &WeakPage<M>,
        entry: usize,
        object_at: ObjectAt<M>,
        owner: OwnerNumber,
    ) -> Result<RequestAt<M>, Error> {
        let at = get(&page.moved[entry]);
        // A freed cell may contain anything now; then it fails the comparison below.
        let (true, Ok(request)) = (!at.is_null(), self.memory.request(at)) else {
            return Ok(Offset::NULL);
        };
        let same = get(&request.owner) == owner
            && get(&request.object) == object_at
            && get(&request.partition) == self.number
            && request.is_moved();
        let linked = same
            && match get(&request.prev) {
                none if none.is_null() => get(&self.memory.object(object_at)?.head) == at,
                prev => self.memory.request(prev).is_ok_and(|prev| get(&prev.next) == at),
            };
        Ok(if linked { at } else { Offset::NULL })
    }

    /// Closes a bias, if it is not closed, and moves all locks under it to the table.
    #[inline(always)]
    pub(crate) fn close(&self, bias: u32) -> Result<(), Error> {
        self.close_by(bias, None)
    }

    /// Closes a bias until a deadline.
    ///
    /// If the deadline passes before all locks are moved, the bias is restored and opened again,
    /// which takes as long once more.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] if the deadline passed.
    #[inline(always)]
    pub(crate) fn close_by(&self, bias: u32, deadline: Option<Deadline>) -> Result<(), Error> {
        let word = &self.memory.biases(self.number)?[(bias % BIASES) as usize];
        let now = get(word);
        let mut learned = Learned::of(get(&self.learned));
        learned.strong(now.is_open());
        // Stored even if unchanged: the number of steps of an acquisition must not depend on the
        // actions of other threads, or its models do not terminate.
        put(&self.learned, learned.word());
        if now.is_closed() { Ok(()) } else { self.close_now(bias, deadline) }
    }

    #[cold]
    #[inline(never)]
    fn close_now(&self, bias: u32, deadline: Option<Deadline>) -> Result<(), Error> {
        let word = &self.memory.biases(self.number)?[(bias % BIASES) as usize];
        let open = get(word);
        let since = self.memory.now();
        put(word, open.closed());
        self.memory.point("bias closed");
        let mut reached = 0;
        let passed = self.memory.pass_barrier();
        let end = passed.and_then(|()| self.collect(bias, open, deadline, &mut reached));
        if open.is_open() {
            let mut learned = Learned::of(get(&self.learned));
            learned.closed(self.memory.now().saturating_sub(since));
            put(&self.learned, learned.word());
        }
        end.or_else(|error| {
            self.reopen(bias, open, reached)?;
            Err(error)
        })
    }

    /// Moves all entries that were taken under a bias that is now closed. May be repeated.
    /// `reached` is set to one more than the last owner that was inspected.
    pub(crate) fn collect(
        &self,
        bias: u32,
        open: Bias,
        deadline: Option<Deadline>,
        reached: &mut u32,
    ) -> Result<(), Error> {
        let memory = self.memory;
        let here = Spot { partition: self.number, bias };
        let first = bias as usize % (WEAK / GROUP) * GROUP;
        for (seen, (owner, cell)) in memory.each_weak(here).enumerate() {
            let asks = seen % LOOKED == LOOKED - 1;
            if asks && deadline.is_some_and(|deadline| deadline.passed::<M>()) {
                return Err(Error::TimedOut);
            }
            *reached = owner.word() + 1;
            // Acquire: synchronizes with the Release in `make_weak_page`, so that the page is
            // visible as it was created, and not what the cell contained before.
            let page = cell.weak.load(Acquire);
            if page.is_null() {
                continue;
            }
            let page = cell_at(memory.region(), page)?;
            for at in first..first + GROUP {
                // Acquire: synchronizes with the Release in `weak_take`.
                let entry = page.states[at].load(Acquire);
                let hash = get(&page.hashes[at]);
                if entry.count == 0 || entry.bias != open || self.memory.spot(hash) != here {
                    continue;
                }
                if entry.length == 0 || entry.length > LENGTH_MAX || !memory.modes().has(entry.mode)
                {
                    continue;
                }
                let bytes = names::read::<M>(&page.names[at], entry.length);
                self.move_entry((owner, page, at), &Name { bytes: &bytes, hash }, entry)?;
            }
        }
        Ok(())
    }

    /// Returns whether the closing of a bias is known to have ended. If so, all that its owners
    /// hold under it is in the table, and the owners are about to take back any other entry that
    /// seems to count.
    ///
    /// If the bias was open, a strong request is created only after the end. If it was reserved, a
    /// request for the reserved name enters the table only after the end; requests for other names
    /// prove nothing.
    pub(crate) fn is_collected(&self, bias: u32, open: Bias) -> Result<bool, Error> {
        if open.is_open() {
            return Ok(get(&self.strong[(bias % BIASES) as usize]) != 0);
        }
        let here = Spot { partition: self.number, bias };
        for (_, cell) in self.memory.each_weak(here) {
            // Acquire: as in `collect`.
            let page = cell.weak.load(Acquire);
            if page.is_null() {
                continue;
            }
            let page = cell_at(self.memory.region(), page)?;
            for at in 0..WEAK {
                let entry = get(&page.states[at]);
                let hash = get(&page.hashes[at]);
                let named = (1..=LENGTH_MAX).contains(&entry.length);
                if entry.bias != open || !named || self.memory.spot(hash) != here {
                    continue;
                }
                let bytes = names::read::<M>(&page.names[at], entry.length);
                let object_at = self.find(&Name { bytes: &bytes, hash })?;
                if !object_at.is_null() && !get(&self.memory.object(object_at)?.head).is_null() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn move_entry(
        &self,
        (owner, page, at): (OwnerNumber, &WeakPage<M>, usize),
        name: &Name<'_>,
        entry: Entry,
    ) -> Result<(), Error> {
        let (object_at, object) = self.find_or_make(name)?;
        // The request exists already. Or the entry was stored after the bias was closed, by an
        // owner that died before it noticed: a repair collects again, when another owner may hold
        // the lock.
        if !self.moved_of(page, at, object_at, owner)?.is_null()
            || self.stopped(object, owner, entry.mode)?.is_some()
        {
            return Ok(());
        }
        let cell = self.memory.thread.alloc::<Request<M>>()?;
        put(&cell.object, object_at);
        put(&cell.owner, owner);
        put(&cell.count, entry.count | MOVED);
        put(&cell.partition, self.number);
        put(&page.moved[at], cell.offset());
        self.memory.point("moved request told");
        self.link_front(object, cell.offset(), &cell, entry.mode)?;
        self.memory.point("weak lock moved");
        cell.publish();
        Ok(())
    }

    /// Undoes a closing that could not move every entry: removes the requests that it created and
    /// restores the bias. No strong request may be under the bias yet. Owners from `end` on were
    /// not inspected.
    ///
    /// The entries are authoritative again. The bias may take an old value, because none of its
    /// entries was settled since: that needs the latch. An owner that saw it closed took its entry
    /// back and waits for the latch; it finds no moved request, and its entry as it left it. If
    /// this thread dies on the way, the bias is closed, and the sweeper collects again.
    #[cold]
    pub(crate) fn reopen(&self, bias: u32, open: Bias, end: u32) -> Result<(), Error> {
        let memory = self.memory;
        let here = Spot { partition: self.number, bias };
        let some = memory.each_weak(here).take_while(|(owner, _)| owner.word() < end);
        for (owner, cell) in some {
            // Acquire: as in `collect`.
            let page = cell.weak.load(Acquire);
            if page.is_null() {
                continue;
            }
            let page = cell_at(memory.region(), page)?;
            for at in 0..WEAK {
                // Acquire: before the load of the entry; see below for the reason.
                let told = page.moved[at].load(Acquire);
                // Acquire: synchronizes with the Release in `weak_take`. An entry that no longer
                // counts may have been moved while it did.
                let entry = page.states[at].load(Acquire);
                let hash = get(&page.hashes[at]);
                if entry.bias != open
                    || self.memory.spot(hash) != here
                    || !(1..=WEAK_WORDS * 8).contains(&entry.length)
                {
                    continue;
                }
                let bytes = names::read::<M>(&page.names[at], entry.length);
                let object_at = self.find(&Name { bytes: &bytes, hash })?;
                let moved = match object_at.is_null() {
                    true => Offset::NULL,
                    false => self.moved_of(page, at, object_at, owner)?,
                };
                if moved.is_null() {
                    self.forget_moved(&page.moved[at], told);
                    continue;
                }
                if get(&cell.head) == moved {
                    // Its owner died while it took the request over: the request is released with
                    // that owner's list.
                    continue;
                }
                let object = memory.object(object_at)?;
                memory.note_moved(moved)?;
                let last = State { status: status::NEW, ..State::held(Mode(0)) };
                self.unlink(object, moved, memory.request(moved)?, last)?;
                if get(&object.head).is_null() {
                    self.retire(object_at, object)?;
                }
                // Otherwise the cell, once reused, would pass for this entry's request.
                put(&page.moved[at], Offset::NULL);
                memory.free_cell(moved)?;
            }
        }
        put(&memory.biases(self.number)?[(bias % BIASES) as usize], open);
        Ok(())
    }

    /// Clears the record of a moved request that does not exist: a closer may have died before it
    /// linked the request, and a reused cell would pass for it.
    ///
    /// Keeps a record that was stored since it was read. The owner may reuse an entry that counts
    /// nothing for another name, and a closer with another latch may have recorded a request for
    /// that name.
    fn forget_moved(&self, moved: &Link<M, Request<M>>, told: RequestAt<M>) {
        self.memory.point("nothing moved found");
        if !told.is_null() {
            // Release: as `put`.
            let _ = moved.compare_exchange(told, Offset::NULL, Release, Relaxed);
        }
    }

    /// Opens a bias that was never used, if the name has no requests in the table, and returns the
    /// new value of the bias.
    pub(crate) fn open_first(&self, name: &Name<'_>, bias: u32) -> Result<Bias, Error> {
        let word = &self.memory.biases(self.number)?[(bias % BIASES) as usize];
        let object = self.find(name)?;
        if get(word) == Bias::NEW
            && (object.is_null() || get(&self.memory.object(object)?.head).is_null())
            && get(&self.strong[(bias % BIASES) as usize]) == 0
            && let Some(opened) = Bias::NEW.opened()
        {
            put(word, opened);
        }
        Ok(get(word))
    }

    /// Counts a weak request that went through the table, and opens its bias after enough of them.
    pub(crate) fn missed(&self, bias: u32) -> Result<(), Error> {
        let word = &self.memory.biases(self.number)?[(bias % BIASES) as usize];
        let closed = get(word);
        if closed.is_reserved() {
            return self.close_now(bias, None);
        }
        if closed.is_open() || !self.memory.inner().weak {
            return Ok(());
        }
        let mut learned = Learned::of(get(&self.learned));
        let opens = learned.missed();
        put(&self.learned, learned.word());
        if opens
            && get(&self.strong[(bias % BIASES) as usize]) == 0
            && let Some(opened) = closed.opened()
        {
            learned.opened();
            put(&self.learned, learned.word());
            put(word, opened);
        }
        Ok(())
    }
}

impl<M: ConstMachine> Memory<M> {
    /// Executes the closer's half of the barrier. The owners' half is in `weak_take`,
    /// `count_reserved` and `drop_entry`.
    ///
    /// # Errors
    ///
    /// [`Error::Barrier`] if owners rely on the barrier and this process may not execute it, for
    /// example because it entered a sandbox.
    pub(crate) fn pass_barrier(&self) -> Result<(), Error> {
        let passed = M::heavy_barrier();
        if passed || !self.inner().relied_on { Ok(()) } else { Err(Error::Barrier) }
    }

    /// Returns whether a closer has moved the lock of an entry that no longer counts, or may still
    /// move it because it read the entry earlier.
    pub(crate) fn may_be_moved(&self, page: &WeakPage<M>, at: usize) -> Result<bool, Error> {
        let (entry, spot) = (get(&page.states[at]), self.spot(get(&page.hashes[at])));
        let bias = get(&self.biases(spot.partition)?[spot.bias as usize]);
        let latch = &self.partition(spot.partition)?.latch;
        // Acquire: if a closer no longer has the latch, the requests that it recorded are visible
        // below.
        let is_closing = bias != entry.bias && latch.load(Acquire) != 0;
        Ok(is_closing || !get(&page.moved[at]).is_null())
    }

    /// Makes closers inspect an owner from now on. Called before its first weak lock.
    ///
    /// Stored before the owner's page, so that a death in between leaves an owner that is inspected
    /// in vain, never a skipped one. If a closer misses this store, the owner sees the
    /// closed bias, as it does if the closer misses an entry; see `fastpath/weak.rs`.
    pub(crate) fn note_weak(&self, owner: OwnerNumber) -> Result<(), Error> {
        let Some(page) = self.page(owner.page())? else { return Ok(()) };
        let (mut seen, end) = (get(&page.weak_end), owner.at() as u32 + 1);
        while seen < end {
            // Relaxed: as above. Several threads may have adopted owners of one page.
            match page.weak_end.compare_exchange(seen, end, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        Ok(())
    }

    /// Returns all owner cells that may have an entry under a bias, with their numbers.
    pub(crate) fn each_weak(
        &self,
        under: Spot,
    ) -> impl Iterator<Item = (OwnerNumber, &OwnerCell<M>)> {
        let bit = under.filter();
        (0..PAGES as u32)
            .map_while(|place| self.page(place).ok().flatten().map(|page| (place, page)))
            // Acquire: synchronizes with the Release in `make_filter`: the closer skips an entry
            // only after the writes under its lock are visible.
            .filter(move |(_, page)| page.filter.load(Acquire) & bit != 0)
            .flat_map(|(place, page)| {
                let end = get(&page.weak_end) as usize;
                let cells = page.owners.iter().take(end).enumerate();
                cells.map(move |(at, cell)| (OwnerNumber::new(place, at), cell))
            })
    }
}

impl<M: ConstMachine> Owner<'_, M> {
    /// Sets the bit of a bias in the filter. Called before an entry under the bias is stored.
    #[inline(always)]
    pub(crate) fn note_filter(&self, spot: Spot) {
        let bit = spot.filter();
        if get(self.filter) & bit == 0 {
            // Relaxed: the entry's own store, which is Release, comes after it.
            self.filter.fetch_or(bit, Relaxed);
        }
    }

    /// Rebuilds the filter of the owner's page, if too many bits are set. The page belongs to this
    /// session, so no other thread changes its entries.
    #[inline]
    pub(crate) fn refresh_filter(&self) -> Result<(), Error> {
        if get(self.filter).count_ones() < FULL { Ok(()) } else { self.make_filter() }
    }

    #[cold]
    #[inline(never)]
    fn make_filter(&self) -> Result<(), Error> {
        let memory = self.memory;
        let Some(owners) = memory.page(self.index.page())? else { return Ok(()) };
        if get(&owners.thread) != memory.thread.number() + 1 {
            return Ok(());
        }
        let mut filter = 0;
        for cell in owners.owners.iter().filter(|cell| !get(&cell.weak).is_null()) {
            let page = cell_at(memory.region(), get(&cell.weak))?;
            for at in 0..WEAK {
                // If a closing is undone, the closer must find again the entries that it moved.
                if get(&page.states[at]).count != 0 || memory.may_be_moved(page, at)? {
                    filter |= memory.spot(get(&page.hashes[at])).filter();
                }
            }
        }
        put(self.filter, filter);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "points")]
    use std::cell::RefCell;

    use latchwork_region::Region;

    use super::FULL;
    #[cfg(feature = "points")]
    use crate::fastpath::entry::group_of;
    use crate::granular::{IS, X, modes};
    use crate::memory::cells::get;
    use crate::{Error, Manager, Options};
    #[cfg(feature = "points")]
    use crate::{Owner, Session};

    /// After an owner has released its locks, it rebuilds the filter of its page: the bits for its
    /// neighbour's locks stay, and of its own bits only the one for a lock that a closer may still
    /// move.
    #[test]
    fn a_rebuilt_filter_has_the_bits_of_held_locks() {
        let region = Region::private(&Default::default()).unwrap();
        let options = Options { opens_early: true, ..Options::default() };
        let manager = Manager::new(region, modes(), options).unwrap();
        let sessions = [(); 2].map(|()| manager.session().unwrap());
        let [owner, neighbour] = [(); 2].map(|()| sessions[0].owner().unwrap());
        let other = sessions[1].owner().unwrap();
        let memory = owner.memory;
        neighbour.lock(b"kept", IS).unwrap();
        let bit_of = |name: &[u8]| memory.spot(memory.named(name).unwrap().hash).filter();
        let kept = bit_of(b"kept");
        assert_eq!(get(owner.filter), kept, "they share a page");
        let mut set = kept;
        let names = (0u32..).map(u32::to_le_bytes);
        let mut names = names.filter(|name| bit_of(name) & kept == 0);
        while set.count_ones() < FULL + 1 {
            let name = names.next().unwrap();
            owner.lock(&name, IS).unwrap();
            set |= bit_of(&name);
            owner.unlock(&name).unwrap();
        }
        assert_eq!(get(owner.filter), set);
        // The owner releases a lock that a closer has seen while it holds the latch. The latch is
        // held by this session, so taking it again is an error.
        let moves = names.next().unwrap();
        owner.lock(&moves, IS).unwrap();
        let spot = memory.spot(memory.named(&moves).unwrap().hash);
        let latched = memory.latch(spot.partition).unwrap();
        latched.close(spot.bias).unwrap();
        assert!(owner.unlock(&moves).is_err());
        neighbour.refresh_filter().unwrap();
        assert_eq!(get(owner.filter), kept | bit_of(&moves));
        drop(latched);
        owner.release_all().unwrap();
        assert_eq!(other.try_lock(b"kept", X), Err(Error::NotGranted));
        neighbour.unlock(b"kept").unwrap();
        other.try_lock(b"kept", X).unwrap();
        other.try_lock(&moves, X).unwrap();
    }

    #[cfg(feature = "points")]
    thread_local! {
        /// The action between two reads of a closer.
        static THEN: RefCell<Option<Box<dyn FnOnce()>>> = RefCell::default();
    }

    #[cfg(feature = "points")]
    fn at_point(step: &'static str) {
        if step == "nothing moved found"
            && let Some(then) = THEN.take()
        {
            then();
        }
    }

    /// A closing is undone. It must leave alone an entry whose lock was released during the
    /// closing: the entry now belongs to another name, and another closer has moved that lock.
    #[cfg(feature = "points")]
    #[test]
    fn undoing_a_closing_keeps_the_record_of_another_name() {
        crate::set_point_hook(at_point);
        let region = Region::private(&Default::default()).unwrap();
        let options = Options { opens_early: true, ..Options::default() };
        let manager = Manager::new(region, modes(), options).unwrap();
        // For the hook, whose lifetime is not bounded.
        let sessions: &[Session; 3] =
            Box::leak(Box::new([(); 3].map(|()| manager.session().unwrap())));
        let owners = Box::leak(Box::new([0, 1, 2].map(|at| sessions[at].owner().unwrap())));
        let [owner, first, second]: &'static [Owner<'static>; 3] = owners;
        let memory = owner.memory;
        let before = memory.named(b"before").unwrap();
        let spot = memory.spot(before.hash);
        let mut names = (0u32..).map(|number| number.to_le_bytes());
        let after = names.find(|name| {
            let hash = memory.named(name).unwrap().hash;
            group_of(hash) == group_of(before.hash) && memory.spot(hash).partition != spot.partition
        });
        let after = after.unwrap();
        let next = memory.spot(memory.named(&after).unwrap().hash);
        for name in [&b"before"[..], &after] {
            owner.lock(name, IS).unwrap();
            owner.unlock(name).unwrap();
        }
        // The entry is that of the first name again.
        owner.lock(b"before", IS).unwrap();
        owner.unlock(b"before").unwrap();
        THEN.set(Some(Box::new(move || {
            owner.lock(&after, IS).unwrap();
            second.memory.latch(next.partition).unwrap().close(next.bias).unwrap();
        })));
        let latched = first.memory.latch(spot.partition).unwrap();
        let open = get(&memory.biases(spot.partition).unwrap()[spot.bias as usize]);
        latched.reopen(spot.bias, open, u32::MAX).unwrap();
        assert!(THEN.take().is_none(), "the crash point was not reached");
        drop(latched);
        assert_eq!(owner.holds(&after), Ok(Some((IS, 1))));
        owner.unlock(&after).unwrap();
        second.try_lock(&after, X).unwrap();
    }
}

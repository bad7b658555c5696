//! Weak locks: those that conflict with no other of their kind are taken in the owner's own memory.
//!
//! The fast path of PostgreSQL's lock manager (Haas, 2011), without its private latch, and with
//! biases in the place of counters, as in BRAVO (Dice and Kogan, 2019).
//!
//! # The bias
//!
//! Names share 261,632 *biases* by their hash. Even is open: weak locks on these names lie in their
//! owners' pages, strong ones are not to be had. Odd is closed: all locks on these names are in the
//! table. Every change adds one, so a weak lock's entry notes the bias under which it was taken,
//! and **counts only while the bias has that value**.
//!
//! ```text
//!        strong request: close, heavy barrier, collect
//!  open ─────────────────────────────────────────────────▶ closed
//!       ◀─────────────────────────────────────────────────
//!        no strong request in the table, and many weak ones had to go there
//! ```
//!
//! Both changes are made under the latch of the partition.
//!
//! # Why nobody is missed
//!
//! A weak lock or unlock stores its entry, passes the light barrier, reads the bias. A closer
//! stores the bias, passes the heavy barrier, reads the entries. So at least one of the two sees
//! the other's store. If the owner sees the bias closed it puts its entry back, waits for the latch
//! and settles in the table; whatever the closer made of the entry is there by then. If it does not,
//! the closer saw the entry, and has *moved* it: made a request in the table on the owner's behalf.
//! Nobody but the owner writes to an entry: that it was moved it knows by the bias.
//!
//! A moved request is marked so, and becomes an ordinary one when its owner comes by.
//!
//! # The entry
//!
//! ```text
//!  63       32 31       16 15     8 7     0
//! | bias      | count     | length | mode |     count 0 is free; hash and name are still there
//! ```

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{ConstMachine, Word};
use latchwork_region::Offset;

use crate::Error;
use crate::latch::Latched;
use crate::layout::{
    BIASES, GROUP, OWNERS, OwnerCell, PAGES, Request, Spot, WEAK, WEAK_WORDS, WeakPage, get, put,
    status,
};
use crate::mode::Mode;
use crate::name::{self, Name};
use crate::owner::Owner;
use crate::queue::State;
use crate::session::Session;

/// The longest name of an entry, in bytes.
const LENGTH_MAX: usize = WEAK_WORDS * 8;

/// Weak requests that go to the table before the bias is opened again.
const MISSES: u32 = 32;

/// Marks a request that a closer made.
pub(crate) const MOVED: u32 = 1;

/// An entry, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) bias: u32,
    pub(crate) count: u32,
    pub(crate) length: usize,
    pub(crate) mode: Mode,
}

impl Entry {
    #[inline(always)]
    pub(crate) fn of(word: u64) -> Self {
        Self {
            bias: (word >> 32) as u32,
            count: (word >> 16) as u32 & 0xffff,
            length: (word >> 8) as usize & 0xff,
            mode: Mode(word as u8),
        }
    }

    #[inline(always)]
    pub(crate) fn word(self) -> u64 {
        u64::from(self.bias) << 32
            | u64::from(self.count) << 16
            | (self.length as u64) << 8
            | u64::from(self.mode.0)
    }
}

/// The entries in which a name may be, as a mask.
#[inline(always)]
fn group_of(hash: u64) -> u32 {
    const ONE: u32 = (1 << GROUP) - 1;
    ONE << (hash as usize % (WEAK / GROUP) * GROUP)
}

impl<M: ConstMachine> Owner<'_, M> {
    /// The owner's weak page, if it ever had one.
    #[inline(always)]
    pub(crate) fn weak_page(&self) -> Result<Option<&WeakPage<M>>, Error> {
        // In the child of a fork the cell is gone: it is told so, here and in `Owner::ready`.
        self.session.region().check()?;
        match get(&self.cell.weak) {
            0 => Ok(None),
            page => Ok(Some(self.session.region().resolve(Offset::from_raw(page))?)),
        }
    }

    #[cold]
    #[inline(never)]
    fn make_weak_page(&self) -> Result<(), Error> {
        let cell = self.session.thread.alloc::<WeakPage<M>>()?;
        self.session.note_weak(self.index)?;
        put(&self.cell.weak, cell.offset().raw());
        cell.publish();
        Ok(())
    }

    /// The entries of a mask that count something.
    #[inline(always)]
    pub(crate) fn entries_among(&self, mask: u32) -> impl Iterator<Item = usize> + use<M> {
        let mut rest = self.entries.get() & mask;
        core::iter::from_fn(move || {
            let at = rest.trailing_zeros() as usize;
            rest &= rest.wrapping_sub(1);
            (at < WEAK).then_some(at)
        })
    }

    /// The entry for a name, if it counts something.
    #[inline(always)]
    pub(crate) fn entry_of(&self, page: &WeakPage<M>, name: &Name<'_>) -> Option<usize> {
        self.entries_among(group_of(name.hash)).find(|at| {
            get(&page.hashes[*at]) == name.hash
                && Entry::of(get(&page.states[*at])).length == name.bytes.len()
                && name.is_in(&page.names[*at])
        })
    }

    /// Notes that an entry counts something from now on, or nothing.
    #[inline(always)]
    fn mark_entry(&self, at: usize, counts: bool) {
        let (old, bit) = (self.entries.get(), 1 << (at % WEAK));
        self.entries.set(if counts { old | bit } else { old & !bit });
    }

    /// Takes a weak lock in the page. False if it must be taken in the table.
    #[inline]
    pub(crate) fn weak_lock(&self, name: &Name<'_>, spot: Spot, mode: Mode) -> Result<bool, Error> {
        let bias = &self.session.biases(spot.partition)?[spot.bias as usize];
        let seen = get(bias);
        if seen % 2 != 0 || name.bytes.len() > LENGTH_MAX {
            return Ok(false);
        }
        let Some(page) = self.weak_page()? else {
            self.make_weak_page()?;
            return self.weak_lock(name, spot, mode);
        };
        let (group, taken) = (group_of(name.hash), self.entries.get());
        if group & taken != 0
            && let Some(found) = self.entry_of(page, name)
        {
            return self.weak_again(page, found, bias, seen, spot, mode);
        }
        let free = (group & !taken).trailing_zeros() as usize;
        if free >= WEAK {
            return Ok(false);
        }
        // Relaxed: the entry is free, and read by nobody until its state says otherwise.
        page.hashes[free].store(name.hash, Relaxed);
        name.write(&page.names[free]);
        page.marks[free].store(self.next_mark(), Relaxed);
        let old = get(&page.states[free]);
        let new = Entry { bias: seen, count: 1, length: name.bytes.len(), mode };
        self.weak_settled(page, free, old, new, bias, spot)
    }

    /// The same for a name that has an entry: counts it.
    #[inline(never)]
    fn weak_again(
        &self,
        page: &WeakPage<M>,
        at: usize,
        bias: &M::AtomicU32,
        seen: u32,
        spot: Spot,
        mode: Mode,
    ) -> Result<bool, Error> {
        let word = get(&page.states[at]);
        let old = Entry::of(word);
        let modes = self.session.modes();
        let made = modes.convert(old.mode, mode);
        if old.bias != seen || !modes.is_weak(made) {
            return Ok(false);
        }
        if old.count == 0xffff {
            return Err(Error::Count);
        }
        let new = Entry { count: old.count + 1, mode: made, ..old };
        self.weak_settled(page, at, word, new, bias, spot)
    }

    /// Writes an entry, and takes that back if the bias was closed.
    #[inline(always)]
    fn weak_settled(
        &self,
        page: &WeakPage<M>,
        at: usize,
        old: u64,
        new: Entry,
        bias: &M::AtomicU32,
        spot: Spot,
    ) -> Result<bool, Error> {
        // Release: synchronizes with the Acquire in `collect`, so that the name is seen with it.
        page.states[at].store(new.word(), Release);
        self.mark_entry(at, true);
        // The closer's half is in `close`.
        M::light_barrier();
        if get(bias) == new.bias { Ok(true) } else { self.weak_undo(page, at, old, spot) }
    }

    /// The bias was closed while a lock was taken: takes it back, and settles what was moved.
    #[cold]
    #[inline(never)]
    fn weak_undo(
        &self,
        page: &WeakPage<M>,
        at: usize,
        old: u64,
        spot: Spot,
    ) -> Result<bool, Error> {
        let entry = Entry::of(old);
        // An entry that was free keeps its new name, by which a moved request is found.
        let kept = if entry.count == 0 {
            Entry { count: 0, ..Entry::of(get(&page.states[at])) }.word()
        } else {
            old
        };
        put(&page.states[at], kept);
        self.mark_entry(at, entry.count != 0);
        let latched = self.session.latch(spot.partition)?;
        self.settle(&latched, page, at)?;
        drop(latched);
        self.session.wake_all()?;
        Ok(false)
    }

    /// Gives a weak lock back once, or all of it. False if it is not in the page.
    #[inline]
    pub(crate) fn weak_unlock(
        &self,
        name: &Name<'_>,
        spot: Spot,
        all: bool,
    ) -> Result<bool, Error> {
        let Some(page) = self.weak_page()? else { return Ok(false) };
        let Some(at) = self.entry_of(page, name) else { return Ok(false) };
        self.drop_entry(page, at, spot, all)?;
        Ok(true)
    }

    /// Counts an entry down.
    #[inline]
    pub(crate) fn drop_entry(
        &self,
        page: &WeakPage<M>,
        at: usize,
        spot: Spot,
        all: bool,
    ) -> Result<(), Error> {
        let bias = &self.session.biases(spot.partition)?[spot.bias as usize];
        let entry = Entry::of(get(&page.states[at]));
        let count = if all { 0 } else { entry.count - 1 };
        put(&page.states[at], Entry { count, ..entry }.word());
        self.mark_entry(at, count != 0);
        // The closer's half is in `close`.
        M::light_barrier();
        if get(bias) != entry.bias {
            self.session.point("weak lock given back, closed");
            let latched = self.session.latch(spot.partition)?;
            self.settle(&latched, page, at)?;
            drop(latched);
            self.session.wake_all()?;
        }
        Ok(())
    }

    /// Makes an ordinary request of what a closer moved, with the entry's own count, and frees the
    /// entry. Nothing is done to one that still counts.
    pub(crate) fn settle(
        &self,
        latched: &Latched<'_, M>,
        page: &WeakPage<M>,
        at: usize,
    ) -> Result<(), Error> {
        let entry = Entry::of(get(&page.states[at]));
        let hash = get(&page.hashes[at]);
        let spot = Spot::of(hash);
        if entry.bias == get(&self.session.biases(spot.partition)?[spot.bias as usize]) {
            return Ok(());
        }
        let bytes = name::read::<M>(&page.names[at], entry.length);
        let name = Name { bytes: &bytes, hash };
        let object_at = latched.find(&name)?;
        let moved = match object_at {
            0 => 0,
            _ => latched.moved_of(object_at, self.index)?,
        };
        if moved == 0 {
            put(&page.states[at], Entry { count: 0, ..entry }.word());
            self.mark_entry(at, false);
            return Ok(());
        }
        let object = self.session.object(object_at)?;
        let request = self.session.request(moved)?;
        let own = self.find_own(latched, object_at, object)?;
        if entry.count != 0 && own == 0 {
            put(&request.count, entry.count);
            put(&request.mark, get(&page.marks[at]));
            self.adopt(moved, request)?;
            put(&request.moved, 0);
        } else {
            if entry.count != 0 {
                let own = self.session.request(own)?;
                let (mine, theirs) = (State::of(get(&own.state)), State::of(get(&request.state)));
                let made = self.session.modes().convert(mine.mode, theirs.mode);
                latched.set(object, own, State { mode: made, ..mine });
                put(&own.count, get(&own.count).saturating_add(entry.count));
            }
            self.session.note_request(moved)?;
            latched.unlink(object, moved, State { status: status::NEW, ..State::held(Mode(0)) })?;
            latched.advance(object)?;
            if get(&object.head) == 0 {
                latched.retire(object_at)?;
            }
            self.session.thread.free(Offset::<Request<M>>::from_raw(moved))?;
        }
        put(&page.states[at], Entry { count: 0, ..entry }.word());
        self.mark_entry(at, false);
        Ok(())
    }
}

impl<M: ConstMachine> Session<M> {
    /// Before an owner's first weak lock: from here on those who collect look at it.
    ///
    /// Stored before the owner's page is, so that a death in between leaves an owner that is looked
    /// at for nothing, and not one that is passed over. A closer that misses it is seen by the owner,
    /// as one that misses an entry is; see `weak.rs`.
    pub(crate) fn note_weak(&self, owner: u32) -> Result<(), Error> {
        if let Some(page) = self.page(owner / OWNERS)?
            && get(&page.weak_end) <= owner % OWNERS
        {
            put(&page.weak_end, owner % OWNERS + 1);
        }
        Ok(())
    }

    /// All owner cells that may have a weak page, with their numbers.
    pub(crate) fn each_weak(&self) -> impl Iterator<Item = (u32, &OwnerCell<M>)> {
        (0..PAGES as u32)
            .map_while(|place| self.page(place).ok().flatten().map(|page| (place, page)))
            .flat_map(|(place, page)| {
                let end = get(&page.weak_end) as usize;
                let cells = page.owners.iter().take(end).enumerate();
                cells.map(move |(at, cell)| (place * OWNERS + at as u32, cell))
            })
    }
}

impl<M: ConstMachine> Latched<'_, M> {
    /// The request that a closer made for an owner.
    pub(crate) fn moved_of(&self, object_at: u32, owner: u32) -> Result<u32, Error> {
        for each in self.requests(self.session.object(object_at)?) {
            let (at, request, _) = each?;
            if get(&request.owner) == owner && get(&request.moved) == MOVED {
                return Ok(at);
            }
        }
        Ok(0)
    }

    /// Closes a bias, if it is open, and moves all weak locks under it to the table.
    #[inline]
    pub(crate) fn close(&self, bias: u32) -> Result<(), Error> {
        let word = &self.session.biases(self.number)?[(bias % BIASES) as usize];
        put(&self.misses, 0);
        if get(word) % 2 != 0 { Ok(()) } else { self.close_open(bias) }
    }

    #[cold]
    #[inline(never)]
    fn close_open(&self, bias: u32) -> Result<(), Error> {
        let word = &self.session.biases(self.number)?[(bias % BIASES) as usize];
        let open = get(word);
        put(word, open + 1);
        self.session.point("bias closed");
        // The owners' half is in `weak_lock` and `drop_entry`. Where the system has no such
        // barrier nobody takes weak locks.
        M::heavy_barrier();
        self.collect(bias, open)
    }

    /// Moves all entries that were taken under a bias that is now closed. May be done again.
    pub(crate) fn collect(&self, bias: u32, open: u32) -> Result<(), Error> {
        let session = self.session;
        let first = bias as usize % (WEAK / GROUP) * GROUP;
        for (owner, cell) in session.each_weak() {
            let page = get(&cell.weak);
            if page == 0 {
                continue;
            }
            let page: &WeakPage<M> = session.region().resolve(Offset::from_raw(page))?;
            for at in first..first + GROUP {
                // Acquire: synchronizes with the Release in `weak_lock`.
                let entry = Entry::of(page.states[at].load(Acquire));
                let hash = get(&page.hashes[at]);
                let here = Spot { partition: self.number, bias };
                if entry.count == 0 || entry.bias != open || Spot::of(hash) != here {
                    continue;
                }
                if entry.length == 0
                    || entry.length > LENGTH_MAX
                    || !session.modes().has(entry.mode)
                {
                    continue;
                }
                let bytes = name::read::<M>(&page.names[at], entry.length);
                self.move_entry(owner, &Name { bytes: &bytes, hash }, entry)?;
            }
        }
        Ok(())
    }

    fn move_entry(&self, owner: u32, name: &Name<'_>, entry: Entry) -> Result<(), Error> {
        let (object_at, object) = self.find_or_make(name)?;
        if self.moved_of(object_at, owner)? != 0 {
            return Ok(());
        }
        let cell = self.session.thread.alloc::<Request<M>>()?;
        put(&cell.object, object_at);
        put(&cell.owner, owner);
        put(&cell.count, entry.count);
        put(&cell.partition, self.number);
        put(&cell.bias, name.hash as u32 % BIASES);
        put(&cell.moved, MOVED);
        self.link_front(object, cell.offset().raw(), cell.value(), entry.mode)?;
        self.session.point("weak lock moved");
        cell.publish();
        Ok(())
    }

    /// Counts a weak request that had to come here, and opens its bias again if many have.
    pub(crate) fn missed(&self, bias: u32) -> Result<(), Error> {
        let word = &self.session.biases(self.number)?[(bias % BIASES) as usize];
        let closed = get(word);
        if closed % 2 == 0 || !self.session.inner().weak {
            return Ok(());
        }
        let misses = get(&self.misses).saturating_add(1);
        put(&self.misses, misses);
        // Near the top it stays closed: an entry must never meet its bias's value again.
        if misses >= MISSES
            && get(&self.strong[(bias % BIASES) as usize]) == 0
            && closed < u32::MAX - 2
        {
            put(&self.misses, 0);
            put(word, closed + 1);
        }
        Ok(())
    }
}

//! A thread at work in a manager.

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::time::Duration;

use latchwork_machine::{Clock, ConstMachine, Deadline, Native, Word};
use latchwork_region::{Offset, Region, Thread};

use crate::blocks::Blocks;
use crate::kept::Seats;
use crate::layout::{
    FREE, NAME_AT, OWNERS, OwnerCell, OwnerPage, PAGES, Partition, Request, Small, get, put,
};
use crate::manager::Inner;
use crate::name::{self, Name};
use crate::stats::Counters;
use crate::waits::Waits;
use crate::{Error, Manager, Modes};

/// A thread at work in a manager: a thread slot of its region, and pages of owners.
///
/// It and its owners are used by one thread. Dropping it gives the slot back; what owners it
/// still has then (they were forgotten) are released.
pub struct Session<M: ConstMachine = Native> {
    pub(crate) manager: Manager<M>,
    pub(crate) thread: Thread<M>,
    blocks: Blocks<M>,
    /// The modes that are taken in owners' own memory, as a mask.
    pub(crate) weak: u16,
    /// The request that left its owner's list last; null if it is in use again. See `death.rs`.
    pub(crate) spare: Cell<u32>,
    /// Whether strong locks may be kept. Not where the locks of an owner are limited.
    pub(crate) keeps: bool,
    /// Names that it asks for often.
    pub(crate) seats: Box<Seats>,
    /// Pages of owners, by their place in the directory.
    pub(crate) pages: RefCell<Vec<(u32, u32)>>,
    /// Requests to wake when the latch is open.
    pub(crate) to_wake: RefCell<Vec<u32>>,
    pub(crate) counters: Counters,
    /// Touched by those who really wait.
    pub(crate) waits: Box<RefCell<Waits>>,
}

impl<M: ConstMachine> Manager<M> {
    /// Opens a session for this thread.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] if the region's thread slots are all held.
    pub fn session(&self) -> Result<Session<M>, Error> {
        let thread = self.inner.region.thread()?;
        let weak = if self.inner.weak { self.inner.modes.weak_mask() } else { 0 };
        Ok(Session {
            manager: self.clone(),
            thread,
            blocks: self.inner.blocks.clone(),
            weak,
            keeps: self.inner.weak && self.inner.options.owner_locks.is_none(),
            spare: Cell::new(0),
            seats: Box::default(),
            pages: RefCell::default(),
            to_wake: RefCell::default(),
            counters: Counters::default(),
            waits: Box::default(),
        })
    }
}

impl<M: ConstMachine> Session<M> {
    /// The manager that it works in.
    pub fn manager(&self) -> &Manager<M> {
        &self.manager
    }

    #[inline(always)]
    pub(crate) fn inner(&self) -> &Inner<M> {
        &self.manager.inner
    }

    /// The region, by this session's own handle: a look at a cell goes through nothing shared.
    #[inline(always)]
    pub(crate) fn region(&self) -> &Region<M> {
        self.thread.region()
    }

    #[inline(always)]
    pub(crate) fn modes(&self) -> &Modes {
        &self.manager.inner.modes
    }

    /// A place where a test kills; nothing otherwise.
    #[inline(always)]
    pub(crate) fn point(&self, name: &'static str) {
        crate::point::point(name);
    }

    pub(crate) fn now(&self) -> u64 {
        M::now(Clock::Monotonic)
    }

    #[inline(always)]
    pub(crate) fn partition(&self, number: u32) -> Result<&Partition<M>, Error> {
        self.blocks.partition(self.region(), number)
    }

    #[inline(always)]
    pub(crate) fn biases(&self, partition: u32) -> Result<&[M::AtomicU32; 16], Error> {
        self.blocks.biases(partition)
    }

    #[inline(always)]
    pub(crate) fn object(&self, offset: u32) -> Result<&Small<M>, Error> {
        Ok(self.region().resolve(Offset::from_raw(offset))?)
    }

    #[inline(always)]
    pub(crate) fn request(&self, offset: u32) -> Result<&Request<M>, Error> {
        Ok(self.region().resolve(Offset::from_raw(offset))?)
    }

    /// The words of an object's name.
    #[inline]
    pub(crate) fn name_words(&self, offset: u32, words: usize) -> Result<&[M::AtomicU64], Error> {
        let all = words + NAME_AT;
        let cell = self.region().words64(Offset::<Small<M>>::from_raw(offset), all as u32)?;
        Ok(&cell[NAME_AT..])
    }

    /// An object's name, out of its cell.
    pub(crate) fn name_of(&self, offset: u32) -> Result<Vec<u8>, Error> {
        let length = (get(&self.object(offset)?.info) & 0xffff) as usize;
        let words = self.name_words(offset, length.div_ceil(8))?;
        Ok(name::read::<M>(words, length))
    }

    #[inline(always)]
    pub(crate) fn named<'n>(&self, bytes: &'n [u8]) -> Result<Name<'n>, Error> {
        Name::new(bytes, self.inner().seed)
    }

    /// The page of owners at a place of the directory.
    pub(crate) fn page(&self, place: u32) -> Result<Option<&OwnerPage<M>>, Error> {
        let directory = self.region().resolve(self.inner().directory)?;
        let Some(entry) = directory.pages.get(place as usize) else { return Ok(None) };
        // Acquire: synchronizes with the exchange in `claim_page`.
        match entry.load(Acquire) {
            0 => Ok(None),
            page => Ok(Some(self.region().resolve(Offset::from_raw(page))?)),
        }
    }

    /// The cell of an owner, if there is one with this number.
    #[inline]
    pub(crate) fn owner_cell(&self, index: u32) -> Result<Option<&OwnerCell<M>>, Error> {
        Ok(self.page(index / OWNERS)?.map(|page| &page.owners[(index % OWNERS) as usize]))
    }

    /// All owner cells that were ever made, with their numbers.
    pub(crate) fn each_owner(&self) -> impl Iterator<Item = (u32, &OwnerCell<M>)> {
        (0..PAGES as u32)
            .map_while(|place| self.page(place).ok().flatten().map(|p| (place, p)))
            .flat_map(|(place, page)| {
                page.owners
                    .iter()
                    .enumerate()
                    .map(move |(at, cell)| (place * OWNERS + at as u32, cell))
            })
    }

    /// A free owner cell of this session's.
    pub(crate) fn free_owner(&self) -> Result<(u32, &OwnerCell<M>), Error> {
        let mut pages = self.pages.borrow_mut();
        for (place, hint) in pages.iter_mut() {
            let Some(page) = self.page(*place)? else { continue };
            for step in 0..OWNERS {
                let at = (*hint + step) % OWNERS;
                let cell = &page.owners[at as usize];
                if get(&cell.state) == FREE {
                    *hint = at;
                    return Ok((*place * OWNERS + at, cell));
                }
            }
        }
        let place = self.claim_page()?;
        pages.push((place, 0));
        drop(pages);
        let cell = self.owner_cell(place * OWNERS)?;
        // The page was claimed above; a null entry there is a peer's doing.
        cell.map(|cell| (place * OWNERS, cell)).ok_or(Error::Foreign)
    }

    /// Makes a page of owners this session's: one that nobody has, or a new one.
    fn claim_page(&self) -> Result<u32, Error> {
        let directory = self.region().resolve(self.inner().directory)?;
        let me = self.thread.number() + 1;
        let mut fresh = None;
        for (place, entry) in directory.pages.iter().enumerate() {
            // Acquire: synchronizes with the exchange below.
            let seen = entry.load(Acquire);
            if seen != 0 {
                let page: &OwnerPage<M> = self.region().resolve(Offset::from_raw(seen))?;
                // AcqRel: the owners are seen as the last session left them.
                if get(&page.thread) == 0
                    && page.thread.compare_exchange(0, me, AcqRel, Relaxed).is_ok()
                {
                    return Ok(place as u32);
                }
                continue;
            }
            let cell = match fresh.take() {
                Some(cell) => cell,
                None => self.thread.alloc::<OwnerPage<M>>()?,
            };
            put(&cell.thread, me);
            // AcqRel: synchronizes with the Acquire in `page`.
            if entry.compare_exchange(0, cell.offset().raw(), AcqRel, Acquire).is_ok() {
                cell.publish();
                return Ok(place as u32);
            }
            fresh = Some(cell);
        }
        Err(Error::Cap("owners", OWNERS * PAGES as u32))
    }

    /// Wakes those whose requests were decided, with no latch held.
    #[inline(always)]
    pub(crate) fn wake_all(&self) -> Result<(), Error> {
        if self.to_wake.borrow().is_empty() { Ok(()) } else { self.wake_each() }
    }

    #[cold]
    #[inline(never)]
    fn wake_each(&self) -> Result<(), Error> {
        self.point("before the wake-up");
        for request in self.to_wake.take() {
            let request = self.request(request)?;
            M::wake(&request.state);
            self.ring_for(request)?;
        }
        Ok(())
    }

    /// A deadline this far away.
    pub(crate) fn after(&self, wait: Duration) -> Deadline {
        Deadline::after::<M>(wait)
    }
}

impl<M: ConstMachine> Drop for Session<M> {
    fn drop(&mut self) {
        for (place, _) in self.pages.take() {
            let Ok(Some(page)) = self.page(place) else { continue };
            let clean = (0..OWNERS).all(|at| {
                let cell = &page.owners[at as usize];
                get(&cell.state) == FREE || self.release_cell(place * OWNERS + at, cell).is_ok()
            });
            if clean {
                // Release, in `put`: synchronizes with the exchange in `claim_page`.
                put(&page.thread, 0);
            }
        }
        let _ = self.free_spare();
    }
}

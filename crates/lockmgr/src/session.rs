//! A thread at work in a manager.

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use latchwork_machine::{Clock, ConstMachine, Deadline, Native, Word};
use latchwork_region::{Offset, Region, Thread};

use crate::fastpath::reserved::Seats;
use crate::manager::Inner;
use crate::memory::blocks::Blocks;
use crate::memory::cells::{
    FREE, NAME_AT, OWNERS, OwnerCell, OwnerPage, PAGES, Partition, Request, Small, get,
};
use crate::memory::names::{self, Name};
use crate::observe::stats::Counters;
use crate::observe::waits::Waits;
use crate::{Error, Manager, Modes};

/// A thread at work in a manager: a thread slot of its region, and pages of owners.
///
/// It and its owners are used by one thread. Dropping it gives the slot back; what owners it
/// still has then (they were forgotten) are released.
pub struct Session<M: ConstMachine = Native> {
    pub(crate) manager: Manager<M>,
    pub(crate) thread: Thread<M>,
    /// Whether it was opened to sweep: then it does not sweep as it waits.
    pub(crate) sweeper: bool,
    blocks: Blocks<M>,
    /// The modes that are taken in owners' own memory, as a mask.
    pub(crate) weak: u16,
    /// The request that left its owner's list last; null if it is in use again. See
    /// `recovery/repair.rs`.
    pub(crate) spare: Cell<u32>,
    /// Whether strong locks may be kept. Not where the locks of an owner are limited.
    pub(crate) keeps: bool,
    /// Names that it asks for often.
    pub(crate) seats: Box<Seats>,
    /// Pages of owners, by their place in the directory; and which owners of them are free.
    pub(crate) pages: RefCell<Vec<u32>>,
    pub(crate) free: RefCell<Vec<u32>>,
    /// Requests to wake when the latch is open.
    pub(crate) to_wake: RefCell<Vec<u32>>,
    pub(crate) counters: Counters,
    /// Touched by those who really wait.
    pub(crate) waits: Box<RefCell<Waits>>,
}

impl<M: ConstMachine> Manager<M> {
    /// Opens a session for this thread. If all thread slots are held it sweeps first.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] if the region's thread slots are all held, and not by the dead; or by the
    /// dead, in a region that this process [cannot sweep](Self::sweep).
    pub fn session(&self) -> Result<Session<M>, Error> {
        let thread = match self.inner.region.thread() {
            Err(full @ latchwork_region::Error::Threads(_)) => match self.sweep() {
                Ok(_) => self.inner.region.thread()?,
                Err(Error::Region(latchwork_region::Error::NoRepair(_))) => Err(full)?,
                Err(error) => return Err(error),
            },
            thread => thread?,
        };
        Ok(Session::on(self, thread, false))
    }
}

impl<M: ConstMachine> Session<M> {
    /// A session on this thread slot; a sweeper's, or a user's.
    pub(crate) fn on(manager: &Manager<M>, thread: Thread<M>, sweeper: bool) -> Self {
        let inner = &manager.inner;
        Self {
            manager: manager.clone(),
            thread,
            sweeper,
            blocks: inner.blocks.clone(),
            weak: if inner.weak { inner.modes.weak_mask() } else { 0 },
            keeps: inner.weak && inner.options.owner_locks.is_none(),
            spare: Cell::new(0),
            seats: Box::default(),
            pages: RefCell::default(),
            free: RefCell::default(),
            to_wake: RefCell::default(),
            counters: Counters::default(),
            waits: Box::default(),
        }
    }

    /// The manager that it works in.
    pub fn manager(&self) -> &Manager<M> {
        &self.manager
    }

    /// The thread slot that it works on, for the other layers that this thread uses: a sweep finds
    /// by one slot all that the thread left.
    pub fn thread(&self) -> &Thread<M> {
        &self.thread
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
        crate::testing::crash_points::point(name);
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
        let length = self.object(offset)?.name_length();
        let words = self.name_words(offset, length.div_ceil(8))?;
        Ok(names::read::<M>(words, length))
    }

    #[inline(always)]
    pub(crate) fn named<'n>(&self, bytes: &'n [u8]) -> Result<Name<'n>, Error> {
        Name::new(bytes, self.inner().seed)
    }

    /// The page of owners at a place of the directory.
    pub(crate) fn page(&self, place: u32) -> Result<Option<&OwnerPage<M>>, Error> {
        let directory = self.region().resolve(self.inner().directory)?;
        let Some(entry) = directory.pages.get(place as usize) else { return Ok(None) };
        // Acquire: synchronizes with the exchange in `claim_page`, in `memory/pages.rs`.
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
        for place in self.pages.take() {
            let Ok(Some(page)) = self.page(place) else { continue };
            let clean = (0..OWNERS).all(|at| {
                let cell = &page.owners[at as usize];
                get(&cell.state) == FREE || self.release_cell(place * OWNERS + at, cell).is_ok()
            });
            if clean {
                let _ = self.free_page(place, page);
            }
        }
        let _ = self.free_spare();
    }
}

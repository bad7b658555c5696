//! The cells in the region, and a thread's handle to them.
//!
//! [`Memory`] is the lowest type of the crate: it gives access to cells, partitions, biases, modes,
//! crash points, the thread's slot and the wake list. A held latch borrows it, and so does an
//! owner. The folders above add methods to it.

pub(crate) mod bias;
pub(crate) mod blocks;
pub(crate) mod cells;
pub(crate) mod crash_points;
pub(crate) mod entry;
pub(crate) mod handle;
pub(crate) mod inner;
pub(crate) mod intents;
pub(crate) mod journal;
pub(crate) mod latch;
pub(crate) mod masks;
pub(crate) mod names;
pub(crate) mod notifiers;
pub(crate) mod numbers;
pub(crate) mod owner_state;
pub(crate) mod pages;
pub(crate) mod roots;
pub(crate) mod state;
pub(crate) mod typed;
pub(crate) mod wakers;

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Acquire;
use std::sync::Arc;
use std::time::Duration;

use latchwork_machine::{Clock, ConstMachine, Deadline, Word};
use latchwork_region::{Offset, Plain, Region, Thread};

use self::blocks::Blocks;
use self::cells::{
    BiasLine, NAME_AT, OwnerCell, OwnerPage, PAGES, Partition, Request, Small, Spot, cell_at,
    words64_at,
};
use self::inner::Inner;
use self::names::Name;
use crate::memory::cells::{ObjectAt, RequestAt};
use crate::memory::numbers::{OwnerNumber, PartitionNumber};
use crate::meter::asked::RequestCounters;
use crate::meter::counters::Counters;
use crate::meter::released::ReleasedNames;
use crate::meter::waits::Waits;
use crate::{Error, Modes};

/// A thread's handle to the region: a slot, the cells, and pages of owners.
///
/// Only one thread uses it at a time. Dropping it releases the locks of owners that were forgotten
/// (`mem::forget`): see `recovery/release.rs`.
pub(crate) struct Memory<M: ConstMachine> {
    pub(crate) inner: Arc<Inner<M>>,
    pub(crate) thread: Thread<M>,
    /// Called periodically during a long wait for a latch; sweeps dead threads.
    stuck: fn(&Self) -> Result<(), Error>,
    pub(crate) blocks: Blocks<M>,
    /// A mask of the modes that are locked in owners' own memory.
    pub(crate) weak: u16,
    /// The request that left its owner's list last; null if it is in use again. See
    /// `memory/intents.rs`.
    pub(crate) spare: Cell<RequestAt<M>>,
    /// Whether names may be reserved. False if the locks of an owner are limited.
    pub(crate) reserves: bool,
    /// Names that this session requests often.
    pub(crate) asked: Box<RequestCounters>,
    /// Names that this session released recently.
    pub(crate) released: Box<ReleasedNames>,
    /// Pages of owners, by their index in the directory; and the free owners of them.
    pub(crate) pages: RefCell<Vec<u32>>,
    pub(crate) free: RefCell<Vec<OwnerNumber>>,
    /// Owners that have ended and whose locks could not be released. The release is retried before
    /// the next owner begins and at the end of the session.
    pub(crate) ended: RefCell<Vec<OwnerNumber>>,
    /// Requests to wake after the latch is released.
    pub(crate) to_wake: RefCell<Vec<RequestAt<M>>>,
    /// Grants what is released now in queue order, without barging.
    pub(crate) in_turn: Cell<bool>,
    /// Until when this thread assumes that others want its processor: monotonic nanoseconds.
    pub(crate) crowded_until: Cell<u64>,
    pub(crate) counters: Counters,
    /// Used only when a wait has ended.
    pub(crate) waits: Box<RefCell<Waits>>,
}

impl<M: ConstMachine> Memory<M> {
    /// Creates a handle for a thread slot. `stuck` is called periodically during a long wait for a
    /// latch.
    pub(crate) fn new(
        inner: &Arc<Inner<M>>,
        thread: Thread<M>,
        stuck: fn(&Self) -> Result<(), Error>,
    ) -> Self {
        Self {
            thread,
            stuck,
            blocks: inner.blocks.clone(),
            weak: if inner.weak { inner.modes.weak_mask() } else { 0 },
            reserves: inner.weak && inner.options.owner_locks.is_none(),
            spare: Cell::new(Offset::NULL),
            asked: Box::default(),
            released: Box::default(),
            pages: RefCell::default(),
            free: RefCell::default(),
            ended: RefCell::default(),
            to_wake: RefCell::default(),
            in_turn: Cell::new(false),
            crowded_until: Cell::new(0),
            counters: Counters::default(),
            waits: Box::default(),
            inner: inner.clone(),
        }
    }

    #[inline(always)]
    pub(crate) fn inner(&self) -> &Inner<M> {
        &self.inner
    }

    /// Returns the region through this session's own handle, so that access to a cell touches no
    /// shared line.
    #[inline(always)]
    pub(crate) fn region(&self) -> &Region<M> {
        self.thread.region()
    }

    #[inline(always)]
    pub(crate) fn modes(&self) -> &Modes {
        &self.inner.modes
    }

    /// A crash point: a test may kill the process here.
    #[inline(always)]
    pub(crate) fn point(&self, name: &'static str) {
        crash_points::point(name);
    }

    pub(crate) fn now(&self) -> u64 {
        M::now(Clock::Monotonic)
    }

    /// Returns the number of partitions.
    #[inline(always)]
    pub(crate) fn partitions(&self) -> u32 {
        self.blocks.count()
    }

    /// Returns the partition and bias of a hash.
    #[inline(always)]
    pub(crate) fn spot(&self, hash: u64) -> Spot {
        self.blocks.spot(hash)
    }

    #[inline(always)]
    pub(crate) fn partition(&self, number: PartitionNumber) -> Result<&Partition<M>, Error> {
        self.blocks.partition(self.region(), number)
    }

    #[inline(always)]
    pub(crate) fn biases(&self, partition: PartitionNumber) -> Result<&BiasLine<M>, Error> {
        self.blocks.biases(partition)
    }

    #[inline(always)]
    pub(crate) fn object(&self, at: ObjectAt<M>) -> Result<&Small<M>, Error> {
        Ok(cell_at(self.region(), at)?)
    }

    #[inline(always)]
    pub(crate) fn request(&self, at: RequestAt<M>) -> Result<&Request<M>, Error> {
        Ok(cell_at(self.region(), at)?)
    }

    /// Frees a cell that was removed from everything that led to it.
    #[inline]
    pub(crate) fn free_cell<T: Plain>(&self, at: Offset<T>) -> Result<(), latchwork_region::Error> {
        // SAFETY: the caller removed the cell under the latch that guards it; threads that have an
        // old offset only load, see `cell_at`.
        unsafe { self.thread.free(at) }
    }

    /// Returns the words of an object's name.
    #[inline]
    pub(crate) fn name_words(
        &self,
        at: ObjectAt<M>,
        words: usize,
    ) -> Result<&[M::AtomicU64], Error> {
        Ok(&words64_at(self.region(), at, NAME_AT + words)?[NAME_AT..])
    }

    /// Reads an object's name from its cell.
    pub(crate) fn name_of(&self, at: ObjectAt<M>) -> Result<Vec<u8>, Error> {
        let length = self.object(at)?.name_length();
        let words = self.name_words(at, length.div_ceil(8))?;
        Ok(names::read::<M>(words, length))
    }

    #[inline(always)]
    pub(crate) fn named<'n>(&self, bytes: &'n [u8]) -> Result<Name<'n>, Error> {
        Name::new(bytes, self.inner().seed)
    }

    /// Returns the page of owners at an index of the directory.
    pub(crate) fn page(&self, place: u32) -> Result<Option<&OwnerPage<M>>, Error> {
        let directory = cell_at(self.region(), self.inner().directory)?;
        let Some(entry) = directory.pages.get(place as usize) else { return Ok(None) };
        // Acquire: synchronizes with the exchange in `claim_page`, in `memory/pages.rs`.
        match entry.load(Acquire) {
            page if page.is_null() => Ok(None),
            page => Ok(Some(cell_at(self.region(), page)?)),
        }
    }

    /// Returns the cell of an owner, if its page exists.
    #[inline]
    pub(crate) fn owner_cell(&self, number: OwnerNumber) -> Result<Option<&OwnerCell<M>>, Error> {
        Ok(self.page(number.page())?.map(|page| &page.owners[number.at()]))
    }

    /// Returns all owner cells that were ever created, with their numbers.
    pub(crate) fn each_owner(&self) -> impl Iterator<Item = (OwnerNumber, &OwnerCell<M>)> {
        (0..PAGES as u32)
            .map_while(|place| self.page(place).ok().flatten().map(|p| (place, p)))
            .flat_map(|(place, page)| {
                page.owners
                    .iter()
                    .enumerate()
                    .map(move |(at, cell)| (OwnerNumber::new(place, at), cell))
            })
    }

    /// Wakes the waiters whose requests were decided. No latch may be held.
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
            M::wake(&request.state.word);
            self.notify_for(request)?;
        }
        Ok(())
    }

    /// Returns the deadline at this distance from now.
    pub(crate) fn after(&self, wait: Duration) -> Deadline {
        Deadline::after::<M>(wait)
    }
}

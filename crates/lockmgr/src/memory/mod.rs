//! What lies in the region, and what a thread has in hand to work in it.
//!
//! [`Memory`] is the bottom of the crate: cells, partitions, biases, modes, crash points, the
//! thread's slot, the wake list. A held latch borrows it, and so does an owner. The folders above
//! add to it what they can do, each by what those below it can.

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

/// What a thread has in hand: a slot of the region, the region's cells by it, pages of owners.
///
/// Used by one thread at a time. When it is dropped, what owners it still has (they were forgotten)
/// are released: `recovery/release.rs`.
pub(crate) struct Memory<M: ConstMachine> {
    pub(crate) inner: Arc<Inner<M>>,
    pub(crate) thread: Thread<M>,
    /// What is done now and then while a latch is waited for: to look for the dead.
    stuck: fn(&Self) -> Result<(), Error>,
    pub(crate) blocks: Blocks<M>,
    /// The modes that are taken in owners' own memory, as a mask.
    pub(crate) weak: u16,
    /// The request that left its owner's list last; null if it is in use again. See
    /// `memory/intents.rs`.
    pub(crate) spare: Cell<RequestAt<M>>,
    /// Whether strong locks may be reserved. Not where the locks of an owner are limited.
    pub(crate) reserves: bool,
    /// Names that it asks for often.
    pub(crate) asked: Box<RequestCounters>,
    /// Names that it let go of lately.
    pub(crate) released: Box<ReleasedNames>,
    /// Pages of owners, by their place in the directory; and which owners of them are free.
    pub(crate) pages: RefCell<Vec<u32>>,
    pub(crate) free: RefCell<Vec<OwnerNumber>>,
    /// Owners that have ended, and whose locks could not be released: they are before the next one
    /// begins, or at the session's end.
    pub(crate) ended: RefCell<Vec<OwnerNumber>>,
    /// Requests to wake when the latch is open.
    pub(crate) to_wake: RefCell<Vec<RequestAt<M>>>,
    /// What is released now goes to the next in turn, barging or not.
    pub(crate) in_turn: Cell<bool>,
    pub(crate) counters: Counters,
    /// Touched when a wait has ended.
    pub(crate) waits: Box<RefCell<Waits>>,
}

impl<M: ConstMachine> Memory<M> {
    /// What a thread has in hand on this slot. `stuck` is called now and then while a latch is
    /// waited for.
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
            counters: Counters::default(),
            waits: Box::default(),
            inner: inner.clone(),
        }
    }

    #[inline(always)]
    pub(crate) fn inner(&self) -> &Inner<M> {
        &self.inner
    }

    /// The region, by this session's own handle: a look at a cell goes through nothing shared.
    #[inline(always)]
    pub(crate) fn region(&self) -> &Region<M> {
        self.thread.region()
    }

    #[inline(always)]
    pub(crate) fn modes(&self) -> &Modes {
        &self.inner.modes
    }

    /// A place where a test kills; nothing otherwise.
    #[inline(always)]
    pub(crate) fn point(&self, name: &'static str) {
        crash_points::point(name);
    }

    pub(crate) fn now(&self) -> u64 {
        M::now(Clock::Monotonic)
    }

    /// How many partitions there are.
    #[inline(always)]
    pub(crate) fn partitions(&self) -> u32 {
        self.blocks.count()
    }

    /// Where a hash leads.
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

    /// Gives a cell back that was taken out of all that led to it.
    #[inline]
    pub(crate) fn free_cell<T: Plain>(&self, at: Offset<T>) -> Result<(), latchwork_region::Error> {
        // SAFETY: the caller took it out under the latch that guards it; threads that have an old
        // offset only load, see `cell_at`.
        unsafe { self.thread.free(at) }
    }

    /// The words of an object's name.
    #[inline]
    pub(crate) fn name_words(
        &self,
        at: ObjectAt<M>,
        words: usize,
    ) -> Result<&[M::AtomicU64], Error> {
        Ok(&words64_at(self.region(), at, NAME_AT + words)?[NAME_AT..])
    }

    /// An object's name, out of its cell.
    pub(crate) fn name_of(&self, at: ObjectAt<M>) -> Result<Vec<u8>, Error> {
        let length = self.object(at)?.name_length();
        let words = self.name_words(at, length.div_ceil(8))?;
        Ok(names::read::<M>(words, length))
    }

    #[inline(always)]
    pub(crate) fn named<'n>(&self, bytes: &'n [u8]) -> Result<Name<'n>, Error> {
        Name::new(bytes, self.inner().seed)
    }

    /// The page of owners at a place of the directory.
    pub(crate) fn page(&self, place: u32) -> Result<Option<&OwnerPage<M>>, Error> {
        let directory = cell_at(self.region(), self.inner().directory)?;
        let Some(entry) = directory.pages.get(place as usize) else { return Ok(None) };
        // Acquire: synchronizes with the exchange in `claim_page`, in `memory/pages.rs`.
        match entry.load(Acquire) {
            page if page.is_null() => Ok(None),
            page => Ok(Some(cell_at(self.region(), page)?)),
        }
    }

    /// The cell of an owner, if there is one with this number.
    #[inline]
    pub(crate) fn owner_cell(&self, number: OwnerNumber) -> Result<Option<&OwnerCell<M>>, Error> {
        Ok(self.page(number.page())?.map(|page| &page.owners[number.at()]))
    }

    /// All owner cells that were ever made, with their numbers.
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
            M::wake(&request.state.word);
            self.notify_for(request)?;
        }
        Ok(())
    }

    /// A deadline this far away.
    pub(crate) fn after(&self, wait: Duration) -> Deadline {
        Deadline::after::<M>(wait)
    }
}

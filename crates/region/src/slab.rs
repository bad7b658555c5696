//! Allocates and frees cells of fixed sizes without touching a line that other threads write.
//!
//! The design is that of magazines (Bonwick and Adams, 2001), in memory that outlives its users. A
//! thread slot has for each size, a *list* of free cells, a *spare* batch, and a stretch of a block
//! to *carve* cells from. Surplus batches move to one of 8 *depots* of that size, and come from
//! there. Blocks of 65,536 bytes come from the end of the heap and keep their size for good.
//!
//! ```text
//! cell:  | link: generation, next | payload ...                |     48, 64, 128 .. 4,096 bytes,
//!        8 bytes                   40, 56, 120 .. 4,088 bytes         or a block's 65,472
//! link:  next = 0xffff_ffff while in use; 0 at a list's end; otherwise the next free cell
//! ```
//!
//! **Killed anywhere.** All of a thread's stores here are Release, so a killed process leaves a
//! prefix of the sequences below, and `sweep.rs` determines from the state how far it came. No step
//! depends on a compare-exchange whose success cannot be determined afterwards: a depot and a block
//! are first marked as *owned*, by name, then changed, then released. Other threads skip an owned
//! one, so dead threads delay no thread.
//!
//! | step | stores, in order | distinguished by |
//! |---|---|---|
//! | alloc | taking = (cell, g+1); head = next; link = (g+1, in use) | head, link |
//! | publish | taking = 0 | |
//! | free | giving = (cell, g); link = (g, head); head = cell; giving = 0 | link, head |
//! | list to spare | spare = head; head = 0 | spare = head |
//! | spare to list | head = spare; spare = 0 | spare = head |
//! | to a depot | depot = (top, me); below = top; depot = (batch, me); spare = 0; depot = (batch, 0) | spare = depot's top |
//! | from a depot | depot = (top, me); head = top; depot = (below, 0) | head = depot's top |
//! | carve | head = first carved; carve = rest | head = carve's first |
//! | new block | block = b; state = (size, me); carve = all of it; state = (size, 0); block = 0 | carve lies in b |

use core::fmt;
use core::ops::Deref;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{ConstMachine, Native, Word};

use crate::header::CLASSES;
use crate::slots::{TAKING, ThreadSlot, pack, unpack};
use crate::{Error, Offset, Plain, Region, Thread};

/// `next` of a cell in use.
pub(crate) const USED: u32 = u32::MAX;
/// The bytes of one unit of an offset.
pub(crate) const UNIT: u64 = 16;
/// Units in a block, and in its first line, which contains no cell.
pub(crate) const BLOCK_UNITS: u32 = 4096;
pub(crate) const FIRST: u32 = 4;
/// Units in a cell of each size. All but the first begin at a cache line.
pub(crate) const UNITS: [u32; CLASSES] = [3, 4, 8, 16, 32, 64, 128, 256, BLOCK_UNITS - FIRST];

/// Cells that move together.
pub(crate) const fn batch(class: usize) -> u32 {
    [32, 32, 32, 32, 16, 8, 4, 2, 1][class]
}

/// The end of the last cell in a block of this size, in units.
pub(crate) const fn end_of(class: usize) -> u32 {
    FIRST + (BLOCK_UNITS - FIRST) / UNITS[class] * UNITS[class]
}

/// The size class of a payload.
pub(crate) const fn class_of(bytes: usize) -> usize {
    let mut class = 0;
    while class < CLASSES {
        if bytes + 8 <= UNITS[class] as usize * UNIT as usize {
            return class;
        }
        class += 1;
    }
    panic!("a cell holds at most 65,464 bytes")
}

/// Whether a cell of this size begins at `unit`.
pub(crate) const fn is_cell(unit: u32, class: usize) -> bool {
    let within = unit % BLOCK_UNITS;
    within >= FIRST && within < end_of(class) && (within - FIRST).is_multiple_of(UNITS[class])
}

/// Whether a cell begins at a unit of a block whose cells have this size: a class plus one, or zero
/// while it has none.
pub(crate) fn begins(unit: u32, size: u32) -> bool {
    (1..=CLASSES as u32).contains(&size) && is_cell(unit, size as usize - 1)
}

/// A cell in hand: allocated by this thread and recorded in its slot.
///
/// Dropping it frees the cell. [`publish`](Self::publish) it as soon as the region's structures
/// lead to it. If the process is killed before, the sweeper asks the layers whether they do.
pub struct Cell<'t, T: Plain, M: ConstMachine = Native> {
    thread: &'t Thread<M>,
    value: &'t T,
    offset: Offset<T>,
    generation: u32,
    entry: u32,
}

impl<'t, T: Plain, M: ConstMachine> Cell<'t, T, M> {
    /// Returns its offset, to be stored in the region.
    #[inline(always)]
    pub fn offset(&self) -> Offset<T> {
        self.offset
    }

    /// Returns how often the cell was allocated.
    #[inline(always)]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Erases the record: from here on the region's structures own the cell.
    #[inline(always)]
    pub fn publish(self) -> Offset<T> {
        if let Ok(slot) = self.thread.slot() {
            // Release: a sweeper that finds no record finds the cell linked.
            slot.taking[self.entry as usize].store(0, Release);
        }
        self.thread.entries.set(self.thread.entries.get() | 1 << self.entry);
        let offset = self.offset;
        core::mem::forget(self);
        offset
    }
}

impl<T: Plain, M: ConstMachine> Deref for Cell<'_, T, M> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T: Plain, M: ConstMachine> Drop for Cell<'_, T, M> {
    fn drop(&mut self) {
        // The cell belongs to the caller. This fails only in the child of a fork, or if the link
        // was overwritten; then the cell is lost.
        let _ = self.thread.take_back(self.offset);
        if let Ok(slot) = self.thread.slot() {
            // Release: as in `publish`.
            slot.taking[self.entry as usize].store(0, Release);
        }
        self.thread.entries.set(self.thread.entries.get() | 1 << self.entry);
    }
}

impl<T: Plain, M: ConstMachine> fmt::Debug for Cell<'_, T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cell({:?}, generation {})", self.offset, self.generation)
    }
}

impl<M: ConstMachine> Thread<M> {
    /// Allocates a cell that holds a zeroed `T`. At most 65,464 bytes; larger types do not compile.
    /// Does not block.
    ///
    /// # Errors
    ///
    /// [`Error::Full`], [`Error::NoSpace`], [`Error::TooLarge`] if the region cannot grow;
    /// [`Error::InHand`] with 7 cells in hand; [`Error::Corrupt`], [`Error::Forked`].
    #[inline]
    pub fn alloc<T: Plain>(&self) -> Result<Cell<'_, T, M>, Error> {
        let cell = self.alloc_dirty::<T>()?;
        let words = (cell.value as *const T).cast::<M::AtomicU64>();
        // Release: a thread that follows an old link and finds a zero also sees what was done
        // before the cell was freed.
        M::fence(Release);
        for at in 0..const { size_of::<T>().div_ceil(8) } {
            // SAFETY: within the payload, whose size is a multiple of 8. Words are plain.
            unsafe { &*words.wrapping_add(at) }.store(0, Relaxed);
        }
        Ok(cell)
    }

    /// Allocates a cell with the content that its last user left, except the first 8 bytes. Unused
    /// memory is zero.
    ///
    /// # Errors
    ///
    /// The errors of [`alloc`](Self::alloc).
    #[inline]
    pub fn alloc_dirty<T: Plain>(&self) -> Result<Cell<'_, T, M>, Error> {
        let class = const { class_of(size_of::<T>()) };
        let slot = self.slot()?;
        let entry = self.entries.get().trailing_zeros();
        if entry >= TAKING as u32 {
            return Err(Error::InHand(TAKING as u32));
        }
        let list = &slot.lists[class];
        let mut unit = list.head.load(Relaxed);
        if unit == 0 {
            unit = self.region.refill(self.number, slot, class)?;
        }
        // SAFETY: this thread took it out of a free list; the `Cell` is the only way to it until it
        // is published.
        let value = unsafe { self.region.resolve(Offset::<T>::from_raw(unit)) }?;
        let link = self.region.link(unit)?;
        let (last, next) = unpack(link.load(Relaxed));
        if next == USED {
            return Err(corrupt("free list", self.region.at(unit)));
        }
        let generation = last.wrapping_add(1);
        // Release, all three: in this order for the sweeper; see the table of this module.
        slot.taking[entry as usize].store(pack(generation, unit), Release);
        list.head.store(next, Release);
        link.store(pack(generation, USED), Release);
        list.count.store(list.count.load(Relaxed).saturating_sub(1), Relaxed);
        self.entries.set(self.entries.get() & !(1 << entry));
        Ok(Cell { thread: self, value, offset: Offset::from_raw(unit), generation, entry })
    }

    /// Frees a cell. Does not block.
    ///
    /// # Safety
    ///
    /// No structure leads to the cell any more, it is no [`Cell`] that a thread has in hand, and no
    /// reference to it is used except to load values that are then discarded: it may be allocated
    /// again as another type at once. See [`Region::resolve`].
    ///
    /// # Errors
    ///
    /// [`Error::NotInUse`] if it is already free or is no cell of a `T`'s size;
    /// [`Error::OutOfRange`], [`Error::Forked`]. Nothing is changed then.
    #[inline]
    pub unsafe fn free<T: Plain>(&self, offset: Offset<T>) -> Result<(), Error> {
        self.take_back(offset)
    }

    #[inline]
    fn take_back<T: Plain>(&self, offset: Offset<T>) -> Result<(), Error> {
        let class = const { class_of(size_of::<T>()) };
        let (slot, unit) = (self.slot()?, offset.raw());
        let link = self.link_of(unit, class)?;
        let (generation, next) = unpack(link.load(Relaxed));
        if next != USED {
            return Err(Error::NotInUse(unit));
        }
        give(slot, class, link, unit, generation);
        let list = &slot.lists[class];
        let count = list.count.load(Relaxed).saturating_add(1);
        list.count.store(count, Relaxed);
        if count >= batch(class) {
            self.region.set_aside(self.number, slot, class)?;
        }
        Ok(())
    }

    /// The link word of a cell of this size, or [`Error::NotInUse`] if none begins at this unit, so
    /// that no word of another cell is taken for a link.
    #[inline(always)]
    fn link_of(&self, unit: u32, class: usize) -> Result<&M::AtomicU64, Error> {
        let link = self.region.link(unit)?;
        let found = is_cell(unit, class) && self.is_of(unit, class)?;
        if found { Ok(link) } else { Err(Error::NotInUse(unit)) }
    }

    /// Whether a unit lies in a block of this size. Blocks keep their size for good, and most cells
    /// are in the same block as the last one.
    #[inline(always)]
    fn is_of(&self, unit: u32, class: usize) -> Result<bool, Error> {
        let number = unit / BLOCK_UNITS;
        if self.freed_in[class].get() == number {
            return Ok(true);
        }
        self.is_of_block(number, class)
    }

    #[inline(never)]
    fn is_of_block(&self, number: u32, class: usize) -> Result<bool, Error> {
        let (_, size) = unpack(self.region.block(u64::from(number))?.load(Relaxed));
        if size != class as u32 + 1 {
            return Ok(false);
        }
        self.freed_in[class].set(number);
        Ok(true)
    }

    /// Gives a cell in use the next generation, so that it is no longer the cell that another
    /// thread allocated. If that thread was killed before it erased its record, its sweeper leaves
    /// the cell alone. For a cell to which soon only this thread's own structures will lead, while
    /// threads that might search for it are excluded.
    ///
    /// # Errors
    ///
    /// [`Error::NotInUse`], [`Error::OutOfRange`], [`Error::Forked`].
    pub fn adopt<T: Plain>(&self, offset: Offset<T>) -> Result<(), Error> {
        self.renew(offset.raw()).map(drop)
    }

    /// Gives a cell in use the next generation, and returns that.
    fn renew(&self, unit: u32) -> Result<u32, Error> {
        self.slot()?;
        let link = self.region.link_of_cell(unit)?.ok_or(Error::NotInUse(unit))?;
        let (generation, next) = unpack(link.load(Relaxed));
        if next != USED {
            return Err(Error::NotInUse(unit));
        }
        let generation = generation.wrapping_add(1);
        // Release: a thread that finds no structure leading to the cell sees this first.
        link.store(pack(generation, USED), Release);
        Ok(generation)
    }

    /// [`adopt`](Self::adopt) for a cell that is about to be freed, with a note of its offset and,
    /// above that, its new generation. No other note then names the cell: if this thread and others
    /// that had noted it are killed, one sweeper frees it. A thread killed between the two stores
    /// leaves a cell that no note names: it is still linked, or lost.
    ///
    /// # Errors
    ///
    /// The errors of [`adopt`](Self::adopt).
    pub fn adopt_as<T: Plain>(&self, offset: Offset<T>, note: &M::AtomicU64) -> Result<(), Error> {
        let generation = self.renew(offset.raw())?;
        // Release: after the new generation. An earlier note would name the cell after the next
        // thread adopted it.
        note.store(pack(generation, offset.raw()), Release);
        Ok(())
    }
}

/// An impossible value in the region.
pub(crate) fn corrupt(what: &'static str, at: u64) -> Error {
    Error::Corrupt { what, at }
}

/// Puts a cell, by its link, on the slot's list.
#[inline(always)]
pub(crate) fn give<M: ConstMachine>(
    slot: &ThreadSlot<M>,
    class: usize,
    link: &M::AtomicU64,
    unit: u32,
    generation: u32,
) {
    let list = &slot.lists[class];
    // Release, all four: in this order for the sweeper.
    slot.giving.store(pack(generation, unit), Release);
    link.store(pack(generation, list.head.load(Relaxed)), Release);
    list.head.store(unit, Release);
    slot.giving.store(0, Release);
}

impl<M: ConstMachine> Region<M> {
    /// Where a unit lies, in bytes from the region's start.
    pub(crate) fn at(&self, unit: u32) -> u64 {
        self.header().heap_at() + u64::from(unit) * UNIT
    }

    /// The list is a full batch: makes it the spare one, and moves the last spare to a depot.
    #[cold]
    #[inline(never)]
    fn set_aside(&self, number: u32, slot: &ThreadSlot<M>, class: usize) -> Result<(), Error> {
        let list = &slot.lists[class];
        let spare = list.spare.load(Relaxed);
        if spare != 0 && !self.to_depot(number, slot, class, spare)? {
            // All depots are busy: the list grows, and the next call tries again.
            return Ok(());
        }
        // Release: in this order for the sweeper.
        list.spare.store(list.head.load(Relaxed), Release);
        list.head.store(0, Release);
        list.count.store(0, Relaxed);
        Ok(())
    }

    /// The word in a batch's first cell that names the batch below it in a depot.
    fn below(&self, unit: u32) -> Result<&M::AtomicU64, Error> {
        let at = self.payload(unit, 8)?;
        // SAFETY: `payload` found the word mapped for as long as `self`; words are plain.
        Ok(unsafe { &*at.cast::<M::AtomicU64>() })
    }

    /// The batch below one in a depot.
    pub(crate) fn below_of(&self, unit: u32) -> Result<u32, Error> {
        Ok(self.below(unit)?.load(Relaxed) as u32)
    }

    /// Owns a depot that is empty or not, as requested: returns its place and its top.
    fn own(&self, number: u32, class: usize, empty: bool) -> Option<(&M::AtomicU64, u32)> {
        let depots = self.depots(class);
        (0..depots.len()).find_map(|step| {
            let word = &depots[(number as usize + step) % depots.len()].word;
            let seen = word.load(Relaxed);
            let (owner, top) = unpack(seen);
            if owner != 0 || (top == 0 && !empty) {
                return None;
            }
            // Acquire: synchronizes with the Release of the last owner, so that the batches are
            // seen as it left them.
            let ours = word.compare_exchange(seen, pack(number + 1, top), Acquire, Relaxed);
            ours.is_ok().then_some((word, top))
        })
    }

    fn to_depot(
        &self,
        number: u32,
        slot: &ThreadSlot<M>,
        class: usize,
        spare: u32,
    ) -> Result<bool, Error> {
        let below = self.below(spare)?;
        let Some((word, top)) = self.own(number, class, true) else { return Ok(false) };
        // Release, all four: in this order for the sweeper; the last also synchronizes with the
        // Acquire in `own`.
        below.store(u64::from(top), Release);
        word.store(pack(number + 1, spare), Release);
        slot.lists[class].spare.store(0, Release);
        word.store(u64::from(spare), Release);
        Ok(true)
    }

    /// Fills the slot's empty list, and returns its head.
    #[cold]
    #[inline(never)]
    pub(crate) fn refill(
        &self,
        number: u32,
        slot: &ThreadSlot<M>,
        class: usize,
    ) -> Result<u32, Error> {
        let list = &slot.lists[class];
        list.count.store(batch(class), Relaxed);
        let spare = list.spare.load(Relaxed);
        if spare != 0 {
            // Release: in this order for the sweeper.
            list.head.store(spare, Release);
            list.spare.store(0, Release);
            return Ok(spare);
        }
        if let Some((word, top)) = self.own(number, class, false) {
            let below = match self.below_of(top) {
                Ok(below) => below,
                Err(error) => {
                    // Release: as below. The stack is corrupt and is discarded.
                    word.store(0, Release);
                    return Err(error);
                }
            };
            // Release: in this order for the sweeper; and with the Acquire in `own`.
            list.head.store(top, Release);
            word.store(u64::from(below), Release);
            return Ok(top);
        }
        self.carve(number, slot, class)
    }

    /// Makes cells from unused memory.
    fn carve(&self, number: u32, slot: &ThreadSlot<M>, class: usize) -> Result<u32, Error> {
        let carve = &slot.carve[class];
        let (mut end, mut at) = unpack(carve.load(Relaxed));
        if at >= end {
            self.take_block(number, slot, class)?;
            (end, at) = unpack(carve.load(Relaxed));
        }
        // The following additions cannot overflow: the block exists up to its end.
        self.link(at)?;
        let limit = at - at % BLOCK_UNITS + end_of(class);
        if !is_cell(at, class) || end != limit {
            return Err(corrupt("carving", self.at(at)));
        }
        let units = UNITS[class];
        let count = ((end - at) / units).min(batch(class));
        let rest = at + count * units;
        for step in 0..count {
            let (unit, last) = (at + step * units, step + 1 == count);
            let next = if last { 0 } else { unit + units };
            // Relaxed: no other thread sees it before the head.
            self.link(unit)?.store(u64::from(next), Relaxed);
        }
        slot.lists[class].count.store(count, Relaxed);
        // Release: in this order for the sweeper.
        slot.lists[class].head.store(at, Release);
        carve.store(pack(end, rest), Release);
        Ok(at)
    }

    /// Takes the next block of the heap for this slot, to carve cells of one size from.
    fn take_block(&self, number: u32, slot: &ThreadSlot<M>, class: usize) -> Result<(), Error> {
        let blocks = &self.live().blocks;
        loop {
            // Acquire: synchronizes with the AcqRel of the thread that raised it.
            let next = blocks.load(Acquire);
            self.grow_to(next)?;
            let state = self.block(next)?;
            let size = class as u32 + 1;
            // Release: in this order for the sweeper, down to the end.
            slot.block.store(next + 1, Release);
            // AcqRel: a thread that sees the block taken may raise the count over it.
            let ours = state.compare_exchange(0, pack(number + 1, size), AcqRel, Relaxed).is_ok();
            // AcqRel: as above. If it fails, another thread has raised it.
            let _ = blocks.compare_exchange(next, next + 1, AcqRel, Relaxed);
            if ours {
                let first = next as u32 * BLOCK_UNITS;
                slot.carve[class].store(pack(first + end_of(class), first + FIRST), Release);
                state.store(u64::from(size), Release);
            }
            slot.block.store(0, Release);
            if ours {
                return Ok(());
            }
        }
    }
}

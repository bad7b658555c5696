//! The region: resolving offsets, growing, lists of processes and threads.

use core::any::Any;
use core::fmt;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use latchwork_machine::{Attached, ConstMachine, Native, Word};

use crate::header::{
    BLOCK, DEPOTS, DEPOTS_AT, Depot, Header, LIVE_AT, Live, ROOTS, SWEEPERS, WAITERS_AT,
};
use crate::memory::Memory;
use crate::slab::UNIT;
use crate::slots::{
    INTENT_WORDS, PROCESS_BYTES, ProcessInfo, ProcessSlot, THREAD_BYTES, ThreadInfo, ThreadSlot,
    owned,
};
use crate::{Error, Layer, Offset, Plain, slab, slots, token};

/// A region as one process has it: an address range and a process slot.
///
/// Clones share the process slot; the region is closed when the last of them, and of its
/// [`Thread`](crate::Thread)s, is dropped. A process that opens one file twice counts as two.
pub struct Region<M: ConstMachine = Native> {
    pub(crate) inner: Arc<Inner<M>>,
    /// Values that every access to a cell needs, kept here to avoid an indirection through `inner`:
    /// where offsets count from, ...
    pub(crate) heap: *mut u8,
    /// ... how far that is from the base, ...
    pub(crate) heap_at: u64,
    /// ... and, in `inner.memory`, the bytes from the base that may be touched.
    pub(crate) mapped: *const M::AtomicU64,
}

// SAFETY: the pointers are into `inner.memory`, which is both.
unsafe impl<M: ConstMachine> Send for Region<M> {}
// SAFETY: as above.
unsafe impl<M: ConstMachine> Sync for Region<M> {}

impl<M: ConstMachine> Clone for Region<M> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), ..*self }
    }
}

/// State that the clones of a region share.
pub(crate) struct Inner<M: ConstMachine> {
    pub(crate) header: Header,
    /// Slot and generation; none in a view.
    pub(crate) process: Option<(u32, u32)>,
    /// Before the memory, so that it is detached first.
    pub(crate) attached: Option<Attached<'static>>,
    pub(crate) memory: Arc<Memory<M>>,
    /// The file, if it has one.
    pub(crate) path: Option<PathBuf>,
    /// Whether all areas exist, so that none is created.
    pub(crate) whole: bool,
    /// The repairs of this process; only `repair.rs` knows their types.
    pub(crate) repairs: Mutex<Vec<Box<dyn Any + Send + Sync>>>,
}

impl<M: ConstMachine> Region<M> {
    /// Checks that the region can be used.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`] in the child of a fork.
    #[inline]
    pub fn check(&self) -> Result<(), Error> {
        if self.mapped() == 0 { Err(Error::Forked) } else { Ok(()) }
    }

    /// Returns the value in the cell at `offset`, if it lies within the region. Costs one
    /// comparison.
    ///
    /// The reference stays valid memory for as long as the region, even when the cell is freed and
    /// allocated again.
    ///
    /// # Safety
    ///
    /// While the reference is used, no thread of this process uses the same bytes as words of other
    /// sizes: as a cell of another type, by [`words32`](Self::words32) or
    /// [`words64`](Self::words64), or by [`image`](Self::image). Racing atomic accesses of
    /// different sizes are undefined in Rust. An offset that [`alloc`] returned satisfies this
    /// until the cell is freed.
    ///
    /// This workspace has one use that the language does not cover and that works on the supported
    /// processors: a thread that may have an old offset only loads, and discards the result if the
    /// cell's [`generation`](Self::generation) has changed.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], [`Error::Forked`]; [`Error::Truncated`] or [`Error::Corrupt`] if the
    /// region has grown and cannot be mapped further.
    ///
    /// [`alloc`]: crate::Thread::alloc
    #[inline(always)]
    pub unsafe fn resolve<T: Plain>(&self, offset: Offset<T>) -> Result<&T, Error> {
        const { assert!(align_of::<T>() <= 8 && !core::mem::needs_drop::<T>()) };
        let at = self.payload(offset.raw(), size_of::<T>() as u64)?;
        // SAFETY: `payload` found so many bytes there, which stay for as long as `self`; they begin
        // 8 bytes behind a unit, so they are aligned; any bytes are a `T`; and the caller excludes
        // words of other sizes.
        Ok(unsafe { &*at.cast::<T>() })
    }

    /// Returns the first `count` words of 4 bytes in the cell at `offset`.
    ///
    /// # Safety
    ///
    /// The contract of [`resolve`](Self::resolve), for an array of such words.
    ///
    /// # Errors
    ///
    /// The errors of [`resolve`](Self::resolve).
    #[inline(always)]
    pub unsafe fn words32<T: Plain>(
        &self,
        offset: Offset<T>,
        count: u32,
    ) -> Result<&[M::AtomicU32], Error> {
        let at = self.payload(offset.raw(), u64::from(count) * 4)?;
        // SAFETY: `payload` found so many bytes there, which stay for as long as `self`; they begin
        // 8 bytes behind a unit, so they are aligned; any bytes are words; and the caller excludes
        // others.
        Ok(unsafe { core::slice::from_raw_parts(at.cast(), count as usize) })
    }

    /// Returns the first `count` words of 8 bytes in the cell at `offset`.
    ///
    /// # Safety
    ///
    /// The contract of [`resolve`](Self::resolve), for an array of such words.
    ///
    /// # Errors
    ///
    /// The errors of [`resolve`](Self::resolve).
    #[inline(always)]
    pub unsafe fn words64<T: Plain>(
        &self,
        offset: Offset<T>,
        count: u32,
    ) -> Result<&[M::AtomicU64], Error> {
        let at = self.payload(offset.raw(), u64::from(count) * 8)?;
        // SAFETY: as in `words32`.
        Ok(unsafe { core::slice::from_raw_parts(at.cast(), count as usize) })
    }

    /// Bytes from the base that may be touched; zero in the child of a fork.
    #[inline(always)]
    fn mapped(&self) -> u64 {
        // SAFETY: `inner.memory` has the word, and keeps it for as long as `self`.
        let mapped = unsafe { &*self.mapped };
        // Acquire: synchronizes with the Release in `Memory::map`.
        mapped.load(Acquire)
    }

    /// The bytes behind the link word of the cell at `unit`.
    #[inline(always)]
    pub(crate) fn payload(&self, unit: u32, size: u64) -> Result<*mut u8, Error> {
        // Null becomes the highest position, which is never mapped: one comparison covers both.
        let at = u64::from(unit.wrapping_sub(1)) * UNIT + UNIT + 8;
        let end = self.heap_at + at + size;
        if end > self.mapped() {
            self.reach(unit, self.heap_at.wrapping_add(at), end)?;
        }
        Ok(self.heap.wrapping_add(at as usize))
    }

    /// The word before the cell at `unit`: its generation, and the next cell in a list.
    #[inline(always)]
    pub(crate) fn link(&self, unit: u32) -> Result<&M::AtomicU64, Error> {
        let at = self.payload(unit, 8)?.wrapping_sub(8);
        // SAFETY: `payload` found it mapped for as long as `self`; words are plain.
        Ok(unsafe { &*at.cast::<M::AtomicU64>() })
    }

    /// Returns how often the cell at `offset` was allocated, so that a reader can detect reuse. It
    /// wraps after 2^32 allocations of the cell, 72 minutes at a million per second. A reader, or a
    /// sweep that examines a dead thread's note of the cell, is deceived only after exactly that
    /// many.
    ///
    /// # Safety
    ///
    /// A cell begins at this offset, of any type, in use or free: the value read is a word of 8
    /// bytes before it. See [`resolve`](Self::resolve).
    ///
    /// # Errors
    ///
    /// The errors of [`resolve`](Self::resolve).
    ///
    /// [`alloc`]: crate::Thread::alloc
    #[inline]
    pub unsafe fn generation<T: Plain>(&self, offset: Offset<T>) -> Result<u32, Error> {
        // Acquire: synchronizes with the Release in `alloc`, so that later loads from the cell are
        // not older than the generation.
        Ok((self.link(offset.raw())?.load(Acquire) >> 32) as u32)
    }

    /// Returns the generation of a cell that is in use; none if it is free, or if no cell begins
    /// there.
    ///
    /// # Errors
    ///
    /// The errors of [`resolve`](Self::resolve).
    pub fn lent<T: Plain>(&self, offset: Offset<T>) -> Result<Option<u32>, Error> {
        let Some(link) = self.link_of_cell(offset.raw())? else { return Ok(None) };
        // Acquire: as in `generation`.
        let (generation, next) = slots::unpack(link.load(Acquire));
        Ok((next == slab::USED).then_some(generation))
    }

    /// The link word of the cell that begins at `unit`, if one does. The size of the block decides,
    /// so no word of another cell is taken for a link.
    pub(crate) fn link_of_cell(&self, unit: u32) -> Result<Option<&M::AtomicU64>, Error> {
        let link = self.link(unit)?;
        let block = self.block(u64::from(unit / slab::BLOCK_UNITS))?;
        let (_, size) = slots::unpack(block.load(Relaxed));
        Ok(slab::begins(unit, size).then_some(link))
    }

    /// Maps what other processes have added, until `end` can be touched. A view copies from `from`
    /// on.
    #[cold]
    #[inline(never)]
    fn reach(&self, unit: u32, from: u64, end: u64) -> Result<(), Error> {
        self.check()?;
        let memory = &self.inner.memory;
        // Acquire: synchronizes with the AcqRel in `grow`, so that the file is as long.
        let mut length = self.live().length.load(Acquire);
        if let (Some(copied), true) = (memory.copied(), end > length) {
            copied.copy(memory.base(), LIVE_AT as u64, LIVE_AT as u64 + 8)?;
            // Acquire: as above; it was just copied.
            length = self.live().length.load(Acquire);
        }
        if unit == 0 || end > length {
            return Err(Error::OutOfRange(unit));
        }
        memory.map(self.inner.header.check_length(length)?)?;
        memory.copied().map_or(Ok(()), |copied| copied.bring(memory.base(), from, end))
    }

    /// Makes stores visible that others made since a [view](Region::view) was opened or last
    /// refreshed. Has no effect on other regions, where stores are visible at once.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] if the file has become too short; [`Error::Forked`].
    pub fn refresh(&self) -> Result<(), Error> {
        self.check()?;
        let Inner { header, memory, .. } = &*self.inner;
        let Some(copied) = memory.copied() else { return Ok(()) };
        copied.copy(memory.base(), 0, WAITERS_AT as u64)?;
        // Threads before processes: a process that is missing after its threads were copied is
        // dead.
        let (processes, threads) = (header.processes_at(), header.threads_at());
        let bytes = |slots: u32| u64::from(slots) * THREAD_BYTES as u64;
        copied.copy(memory.base(), threads, threads + bytes(self.threads_high()))?;
        let first = threads + bytes(header.threads);
        copied.copy(memory.base(), first, first + bytes(self.sweepers_high()))?;
        copied.copy(memory.base(), processes, threads)?;
        copied.forget();
        Ok(())
    }

    /// Makes block `number` part of the region.
    pub(crate) fn grow_to(&self, number: u64) -> Result<(), Error> {
        let Inner { header, memory, .. } = &*self.inner;
        let end = number.saturating_add(1).saturating_mul(BLOCK).saturating_add(self.heap_at);
        if end > header.limit {
            return Err(Error::Full(header.limit));
        }
        while end > memory.mapped() {
            self.check()?;
            // Acquire: as in `reach`.
            let length = header.check_length(self.live().length.load(Acquire))?;
            if length >= end {
                memory.map(length)?;
                continue;
            }
            let next = header.next_length(length);
            memory.extend(length, next)?;
            // AcqRel: synchronizes with the Acquire in `reach`. If it fails, another process has
            // grown the region and allocated the same space.
            let _ = self.live().length.compare_exchange(length, next, AcqRel, Acquire);
        }
        Ok(())
    }

    /// Returns a word of the header with which an upper layer finds its data. Zero in a new region.
    ///
    /// # Panics
    ///
    /// If `number` is not below [`ROOTS`].
    ///
    /// # Errors
    ///
    /// [`Error::Forked`].
    pub fn root(&self, number: usize) -> Result<&M::AtomicU64, Error> {
        assert!(number < ROOTS, "latchwork: root {number} of {ROOTS}");
        self.check()?;
        Ok(&self.live().roots[number])
    }

    pub(crate) fn live(&self) -> &Live<M> {
        let at = self.inner.memory.base().wrapping_add(LIVE_AT);
        // SAFETY: the fixed part is mapped for as long as `self`, and this is its address.
        unsafe { &*at.cast::<Live<M>>() }
    }

    pub(crate) fn depots(&self, class: usize) -> &[Depot<M>; DEPOTS] {
        let at = DEPOTS_AT + class * size_of::<[Depot<M>; DEPOTS]>();
        let at = self.inner.memory.base().wrapping_add(at);
        // SAFETY: as in `live`; it has room for `CLASSES` of them, and `class` is one.
        unsafe { &*at.cast::<[Depot<M>; DEPOTS]>() }
    }

    /// The state of block `number`: its size class and the thread that is taking it.
    #[inline]
    pub(crate) fn block(&self, number: u64) -> Result<&M::AtomicU64, Error> {
        let end = self.heap_at.saturating_add(number.saturating_add(1).saturating_mul(BLOCK));
        if end > self.mapped() {
            self.reach(u32::MAX, end - BLOCK, end)?;
        }
        let at = self.heap.wrapping_add((number * BLOCK) as usize);
        // SAFETY: the block is mapped for as long as `self`, by the check above.
        Ok(unsafe { &*at.cast::<M::AtomicU64>() })
    }

    pub(crate) fn process_slot(&self, number: u32) -> &ProcessSlot<M> {
        assert!(number < self.inner.header.processes);
        let at = self.inner.header.processes_at() as usize + number as usize * PROCESS_BYTES;
        // SAFETY: as in `live`; `number` is below their count.
        unsafe { &*self.inner.memory.base().wrapping_add(at).cast::<ProcessSlot<M>>() }
    }

    pub(crate) fn thread_slot(&self, number: u32) -> &ThreadSlot<M> {
        assert!(number < self.thread_slots());
        let at = self.inner.header.threads_at() as usize + number as usize * THREAD_BYTES;
        // SAFETY: as in `live`; `number` is below their count.
        unsafe { &*self.inner.memory.base().wrapping_add(at).cast::<ThreadSlot<M>>() }
    }

    pub(crate) fn header(&self) -> &Header {
        &self.inner.header
    }

    /// Returns this process's slot and its generation.
    ///
    /// # Errors
    ///
    /// [`Error::View`] in a view; [`Error::Forked`].
    pub fn process(&self) -> Result<(u32, u32), Error> {
        self.check()?;
        self.inner.process.ok_or(Error::View)
    }

    /// Returns whether the owner of a process slot in this generation lives. Costs a system call if
    /// the region has a file.
    ///
    /// Never false for a living process. True for a dead process for a moment while another takes
    /// the slot, and as long as a child made by a bare `clone` holds its parent's files.
    pub fn alive(&self, process: u32, generation: u32) -> bool {
        if process >= self.inner.header.processes || generation == 0 || self.check().is_err() {
            return false;
        }
        let slot = self.process_slot(process);
        let held = match self.inner.memory.descriptor() {
            // A file's own lock is not visible through the same file.
            Some(file) => self.is_mine(process) || token::taken(file, process),
            // Acquire: synchronizes with the Release in `Inner::drop`.
            None => slot.held.load(Acquire) != 0,
        };
        // Acquire: synchronizes with the AcqRel in `join_in`. Read after the lock: while this
        // generation holds it, no other can begin.
        held && slot.generation.load(Acquire) == generation
    }

    /// Returns the process slots that were ever used.
    pub fn processes(&self) -> Vec<ProcessInfo> {
        if self.check().is_err() {
            return Vec::new();
        }
        let info = |number| {
            let slot = self.process_slot(number);
            let generation = slot.generation.load(Relaxed);
            ProcessInfo {
                slot: number,
                generation,
                pid: slot.pid.load(Relaxed),
                start: slot.start.load(Relaxed),
                namespace: slot.namespace.load(Relaxed),
                alive: self.alive(number, generation),
            }
        };
        (0..self.inner.header.processes).map(info).filter(|p| p.generation != 0).collect()
    }

    /// Returns the pid of a process slot's owner in this generation, alive or dead; none if the
    /// slot has another owner.
    pub fn pid(&self, process: u32, generation: u32) -> Option<u32> {
        if process >= self.inner.header.processes || self.check().is_err() {
            return None;
        }
        let slot = self.process_slot(process);
        let pid = slot.pid.load(Relaxed);
        // Relaxed: a snapshot; a pid and a generation that do not match are those of an owner that
        // is starting.
        (slot.generation.load(Relaxed) == generation).then_some(pid)
    }

    fn is_mine(&self, process: u32) -> bool {
        self.inner.process.is_some_and(|(mine, _)| mine == process)
    }

    /// Returns how many thread slots were ever used. Only these may be in use.
    pub fn threads_high(&self) -> u32 {
        if self.check().is_err() {
            return 0;
        }
        // Relaxed: a count; the slots themselves name their owners.
        self.live().high.load(Relaxed).min(self.inner.header.threads)
    }

    /// Returns how many thread slots exist, including those reserved for sweepers: each has a lower
    /// number.
    pub fn thread_slots(&self) -> u32 {
        self.inner.header.threads + SWEEPERS
    }

    /// Returns the most bytes that it may grow to.
    pub fn limit(&self) -> u64 {
        self.inner.header.limit
    }

    /// Returns the layers that live in the region, in the order of repair.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`].
    pub fn layers(&self) -> Result<impl Iterator<Item = Layer> + use<M>, Error> {
        self.check()?;
        // Acquire: synchronizes with the AcqRel in `register`.
        let mask = self.live().layers.load(Acquire);
        Ok(Layer::ALL.into_iter().filter(move |layer| mask & layer.bit() != 0))
    }

    /// How many of the sweepers' slots were ever used.
    fn sweepers_high(&self) -> u32 {
        // Relaxed: as in `threads_high`.
        self.check().map_or(0, |()| self.live().sweepers.load(Relaxed).min(SWEEPERS))
    }

    /// Returns the numbers of the thread slots that were ever used, with those of sweepers at the
    /// end, and one more of each kind, whose first owner may have died before it was counted.
    pub fn used_slots(&self) -> impl Iterator<Item = u32> + use<M> {
        let (threads, more) = (self.header().threads, u32::from(self.check().is_ok()));
        let sweepers = (self.sweepers_high() + more).min(SWEEPERS);
        (0..(self.threads_high() + more).min(threads)).chain(threads..threads + sweepers)
    }

    /// Returns the thread slots that are not free.
    pub fn threads(&self) -> impl Iterator<Item = ThreadInfo> {
        self.used_slots().filter_map(|slot| {
            let thread = self.thread_slot(slot);
            // Relaxed: a snapshot, which may be outdated at once.
            let (process_generation, process, state) = owned(thread.owner.load(Relaxed));
            let generation = thread.generation.load(Relaxed);
            let (swept, retained) = (state == slots::SWEPT, state == slots::RETAINED);
            (state != slots::FREE).then_some(ThreadInfo {
                slot,
                generation,
                process,
                process_generation,
                swept,
                retained,
            })
        })
    }

    /// Returns the lock manager's words of a thread slot; none if the slot does not exist.
    pub fn intent(&self, thread: u32) -> Option<&[M::AtomicU64; INTENT_WORDS]> {
        self.is_slot(thread).then(|| &self.thread_slot(thread).intent)
    }

    /// Whether a thread slot with this number exists.
    pub(crate) fn is_slot(&self, thread: u32) -> bool {
        thread < self.thread_slots() && self.check().is_ok()
    }

    /// Returns the current size of the region in bytes.
    pub fn len(&self) -> u64 {
        // Relaxed: a figure for display.
        self.check().map_or(0, |()| self.live().length.load(Relaxed).min(self.header().limit))
    }

    /// Returns false, except in the child of a fork: a region has at least its fixed part.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the random number that identifies the region.
    pub fn creation(&self) -> u128 {
        self.inner.header.creation
    }

    /// Returns whether it lies in a file, which other processes may open.
    pub fn has_file(&self) -> bool {
        self.inner.path.is_some()
    }

    /// Copies the region's bytes, torn by concurrent writes: to be examined, or opened by
    /// [`from_image`](Self::from_image).
    ///
    /// # Safety
    ///
    /// No thread of this process stores into the region at the same time except in words of 8
    /// bytes: see [`resolve`](Self::resolve).
    ///
    /// # Errors
    ///
    /// [`Error::Forked`]; [`Error::Truncated`] or [`Error::Corrupt`] if the region's length is
    /// impossible.
    pub unsafe fn image(&self) -> Result<Vec<u8>, Error> {
        self.check()?;
        // Acquire: as in `reach`.
        let length = self.inner.header.check_length(self.live().length.load(Acquire))?;
        self.inner.memory.map(length)?;
        if let Some(copied) = self.inner.memory.copied() {
            copied.bring(self.inner.memory.base(), self.heap_at, length)?;
        }
        let mut bytes = Vec::with_capacity(length as usize);
        for at in (0..length as usize).step_by(8) {
            let word = self.inner.memory.base().wrapping_add(at).cast::<M::AtomicU64>();
            // SAFETY: below `length`, which is mapped, and aligned.
            bytes.extend(unsafe { &*word }.load(Relaxed).to_ne_bytes());
        }
        Ok(bytes)
    }
}

impl<M: ConstMachine> fmt::Debug for Region<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Header { processes, threads, limit, creation, .. } = self.inner.header;
        f.debug_struct("Region")
            .field("creation", &format_args!("{creation:032x}"))
            .field("process", &self.inner.process)
            .field("bytes", &self.len())
            .field("limit", &limit)
            .field("processes", &processes)
            .field("threads", &threads)
            .finish()
    }
}

//! Creating, opening and closing regions.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::path::Path;
use std::sync::{Arc, Mutex};

use latchwork_machine::{Attached, ConstMachine, Integer, Native, Shared, Word};

use crate::header::{BLOCK, Header, LIVE_AT, WAITERS_AT};
use crate::memory::Memory;
use crate::region::Inner;
use crate::slots::{PROCESS_BYTES, ProcessSlot, bare, pack};
use crate::token::{self, Tokens};
use crate::{Error, Options, Region, file, mount};

impl Region<Native> {
    /// Creates a region of this process alone, without a file: the default.
    ///
    /// Its latches wait with private futexes. The child of a fork has no access to it.
    ///
    /// # Errors
    ///
    /// [`Error::Options`], [`Error::TooLarge`].
    pub fn private(options: &Options) -> Result<Self, Error> {
        let header = Header::new(options, file::random()?)?;
        let memory = Memory::anonymous(header.limit as usize)?;
        memory.map(header.first_length())?;
        Self::found(memory, header)
    }
}

impl<M: ConstMachine> Region<M> {
    /// Creates a region in ordinary memory, all `options.limit` bytes at once, for models and
    /// simulators. The machine must find its waiter slots without the region, so it cannot be
    /// [`Shared`].
    ///
    /// A fork copies it without notice.
    ///
    /// # Errors
    ///
    /// [`Error::Options`], [`Error::TooLarge`].
    pub fn heap(options: &Options) -> Result<Self, Error> {
        // No random number: a simulation must run the same way twice.
        let header = Header::new(options, 1)?;
        Self::found(Memory::heap(header.limit as usize)?, header)
    }

    /// Creates a region in ordinary memory that begins with these bytes, as if they were a file.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Region::open) for the content of a file.
    pub fn from_image(image: &[u8]) -> Result<Self, Error> {
        let header = Header::decode(image)?;
        let found = image.len() as u64;
        let needed = header.heap_at() + BLOCK;
        let Some(length) = image.get(LIVE_AT..).and_then(|rest| rest.first_chunk()) else {
            return Err(Error::Truncated { needed, found });
        };
        let needed = header.check_length(u64::from_ne_bytes(*length))?;
        if found < needed {
            return Err(Error::Truncated { needed, found });
        }
        // It cannot grow: this memory is all it has.
        let header = Header { limit: needed, ..header };
        let memory = Memory::heap(needed as usize)?;
        // SAFETY: both are `needed` bytes long, and no other thread has the memory yet.
        unsafe { core::ptr::copy_nonoverlapping(image.as_ptr(), memory.base(), needed as usize) };
        Self::join(memory.into(), header, None)
    }

    /// Lays out zeroed memory of this process.
    fn found(memory: Memory<M>, header: Header) -> Result<Self, Error> {
        let fixed = header.encode();
        // SAFETY: the first page exists, and no other thread has the memory yet.
        unsafe { core::ptr::copy_nonoverlapping(fixed.as_ptr(), memory.base(), fixed.len()) };
        let region = Self::build(memory.into(), header, None);
        // Relaxed: no other thread has it. On the heap all of it exists, and it never grows.
        region.live().length.store(region.inner.memory.mapped(), Relaxed);
        region.join_in()
    }

    fn build(memory: Arc<Memory<M>>, header: Header, attached: Option<Attached<'static>>) -> Self {
        const { bare::<M>() };
        let heap_at = header.heap_at();
        let heap = memory.base().wrapping_add(heap_at as usize);
        let mapped = memory.mapped_word();
        let repairs = Mutex::default();
        let whole = false;
        let inner = Inner { header, process: None, attached, memory, path: None, whole, repairs };
        Self { inner: Arc::new(inner), heap, heap_at, mapped }
    }

    fn join(
        memory: Arc<Memory<M>>,
        header: Header,
        attached: Option<Attached<'static>>,
    ) -> Result<Self, Error> {
        Self::build(memory, header, attached).join_in()
    }

    /// Takes a process slot.
    fn join_in(mut self) -> Result<Self, Error> {
        let slot = self.take_slot()?;
        let process = self.process_slot(slot);
        // AcqRel: synchronizes with the Acquire in `alive`. Everything that the last owner left
        // belongs to the ended generation, which is dead from here on.
        let mut generation = 0;
        while generation == 0 {
            generation = process.generation.fetch_add(1, AcqRel).wrapping_add(1);
        }
        let (pid, start, namespace) = token::identity();
        process.pid.store(pid, Relaxed);
        process.start.store(start, Relaxed);
        process.namespace.store(namespace, Relaxed);
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            inner.process = Some((slot, generation));
            if let Some(attached) = &inner.attached {
                attached.set_owner(pack(generation, slot));
            }
        }
        Ok(self)
    }

    fn take_slot(&self) -> Result<u32, Error> {
        let memory = &self.inner.memory;
        for slot in 0..self.inner.header.processes {
            let free = match memory.tokens() {
                Some(tokens) => tokens.take(slot)?,
                None => {
                    let held = &self.process_slot(slot).held;
                    // Acquire: synchronizes with the Release in `Inner::drop`.
                    held.compare_exchange(0, 1, Acquire, Relaxed).is_ok()
                }
            };
            if free {
                return Ok(slot);
            }
        }
        Err(Error::Processes(self.inner.header.processes))
    }

    /// Opens the same memory under another process slot, for tests in which threads stand in for
    /// processes. Not for files: open the file again.
    ///
    /// # Errors
    ///
    /// [`Error::Processes`]; [`Error::View`] if the region has a file.
    pub fn another(&self) -> Result<Self, Error> {
        self.check()?;
        if self.inner.memory.tokens().is_some() || self.inner.memory.is_view() {
            return Err(Error::View);
        }
        Self::join(self.inner.memory.clone(), self.inner.header, None)
    }

    /// Sets how many owners a free process slot has had, for tests of the end of that count.
    #[cfg(feature = "internals")]
    pub fn set_owners_ever(&self, process: u32, owners: u32) {
        if process < self.inner.header.processes {
            // Relaxed: the slot is free.
            self.process_slot(process).generation.store(owners, Relaxed);
        }
    }

    /// Declares this region's process slot dead and leaves its content as it is, as if the process
    /// were killed. For tests; the region and its threads must not be used afterwards. Has no
    /// effect with a file, where the kernel decides.
    pub fn die(&self) {
        if let Some((slot, _)) = self.inner.process {
            // Release: as in `Inner::drop`, below.
            self.process_slot(slot).held.store(0, Release);
        }
    }
}

impl Region<Shared> {
    /// Creates a region in a new file. Allocates the file's first length.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`], [`Error::Permission`], [`Error::NoSpace`], [`Error::ReadOnly`],
    /// [`Error::NoFallocate`], [`Error::NoLocks`], [`Error::NoMmap`], [`Error::Options`], and
    /// others of the system.
    pub fn create(path: impl AsRef<Path>, options: &Options) -> Result<Self, Error> {
        let (file, fresh) = file::create(path.as_ref(), options)?;
        let memory = Memory::file(fresh.header.limit as usize, Tokens::new(file)?)?;
        memory.map(fresh.header.first_length())?;
        let base = memory.base().wrapping_add(WAITERS_AT);
        let length = fresh.header.heap_at() as usize - WAITERS_AT;
        // SAFETY: that much is mapped, zeroed, and unknown to others.
        let laid_out = unsafe { Shared::create(base, length, fresh.header.waiters) };
        drop(laid_out.map_err(Error::Waiters)?);
        let region = Self::attach(memory, fresh.header)?.join_in()?.found_at(path.as_ref())?;
        if let Some(file) = region.inner.memory.descriptor() {
            mount::mark(file);
            fresh.name.link(file, path.as_ref())?;
        }
        Ok(region)
    }

    /// Returns whether the content of a region's file is as its processes left it, even if all are
    /// dead: whether its file system has been mounted since the file was created. Also false if
    /// that is unknown: on a disk file system after the kernel evicted the inode, and on systems
    /// without the mark (before Linux 4.13, and gVisor).
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open) for files that are no region.
    pub fn is_as_left(path: impl AsRef<Path>, options: &Options) -> Result<bool, Error> {
        let (file, _) = file::open_checked(path.as_ref(), options.mode, false)?;
        Ok(mount::is_marked(&file))
    }

    /// Opens an existing region. Of `options`, only `mode` is used.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`], [`Error::Symlink`], [`Error::NotRegular`], [`Error::HardLinked`],
    /// [`Error::TooOpen`], [`Error::ForeignOwner`], [`Error::Foreign`], [`Error::Endian`],
    /// [`Error::Version`], [`Error::Corrupt`], [`Error::PageSize`], [`Error::Truncated`], and
    /// others of the system.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self, Error> {
        let (file, header) = file::open(path.as_ref(), options.mode, true)?;
        let memory = Memory::file(header.limit as usize, Tokens::new(file)?)?;
        memory.map(header.first_length())?;
        Self::attach(memory, header)?.join_in()?.found_at(path.as_ref())
    }

    /// Opens a region and never creates its areas: a missing area is [`Error::NotFound`] when it is
    /// requested. For a region that was complete and may have lost a part.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open).
    pub fn open_whole(path: impl AsRef<Path>, options: &Options) -> Result<Self, Error> {
        let mut region = Self::open(path, options)?;
        if let Some(inner) = Arc::get_mut(&mut region.inner) {
            inner.whole = true;
        }
        Ok(region)
    }

    /// Opens a region, or creates it if the file does not exist.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open) and of [`create`](Self::create).
    pub fn open_or_create(path: impl AsRef<Path>, options: &Options) -> Result<Self, Error> {
        loop {
            match Self::open(path.as_ref(), options) {
                Err(Error::NotFound) => {}
                other => return other,
            }
            match Self::create(path.as_ref(), options) {
                Err(Error::Exists) => {}
                other => return other,
            }
        }
    }

    /// Opens a region as a view, which takes no slot and writes nothing, unnoticed by its users.
    /// Blocks are copied on first use and again after each [`refresh`](Region::refresh). A process
    /// that truncates the file therefore causes an error and no signal. Stores through a view stay
    /// in this process.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open).
    pub fn view(path: impl AsRef<Path>, options: &Options) -> Result<Self, Error> {
        let (file, header) = file::open(path.as_ref(), options.mode, false)?;
        let memory = Memory::view(header.limit as usize, file, header.heap_at())?;
        memory.map(header.first_length())?;
        let region = Self::build(memory.into(), header, None).found_at(path.as_ref())?;
        region.refresh()?;
        Ok(region)
    }

    /// Records the file's absolute path, which stays valid if this process changes its folder.
    fn found_at(mut self, path: &Path) -> Result<Self, Error> {
        let path = std::path::absolute(path).map_err(|_| Error::NotFound)?;
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            inner.path = Some(path);
        }
        Ok(self)
    }

    /// Attaches the waiter slots, so that latches anywhere in the region find them.
    fn attach(memory: Memory<Shared>, header: Header) -> Result<Self, Error> {
        let base = memory.base().wrapping_add(WAITERS_AT);
        let length = header.processes_at() as usize - WAITERS_AT;
        let reserved = header.limit as usize - WAITERS_AT;
        // SAFETY: the fixed part is mapped, the rest is reserved, and everything lent out of it is
        // mapped; all for as long as `Inner`, which drops this first.
        let attached = unsafe { Shared::attach_growing(base, length, reserved) };
        Ok(Self::build(memory.into(), header, Some(attached.map_err(Error::Waiters)?)))
    }
}

impl<M: ConstMachine> Drop for Inner<M> {
    fn drop(&mut self) {
        let _ = self.attached.take();
        // With a file, closing it drops the lock; `self.memory` does that.
        let local = self.memory.tokens().is_none() && self.memory.mapped() != 0;
        if let (Some((slot, generation)), true) = (self.process, local) {
            let at = self.header.processes_at() as usize + slot as usize * PROCESS_BYTES;
            let at = self.memory.base().wrapping_add(at).cast::<ProcessSlot<M>>();
            // SAFETY: the fixed part is mapped as long as the memory, and `slot` was claimed.
            let process = unsafe { &*at };
            if process.generation.load(Relaxed) == generation {
                // Release: synchronizes with the Acquire in `take_slot` and in `alive`.
                process.held.store(0, Release);
            }
        }
    }
}

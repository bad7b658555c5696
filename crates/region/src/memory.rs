//! The sources of a region's bytes: the heap, an anonymous mapping, a file.
//!
//! The addresses of the whole limit are reserved at once, so that base plus offset stays valid as
//! the region grows. Addresses that are not yet part of the region have no access rights. After a
//! fork the child has none of the memory (`MADV_DONTFORK`), and the word that every access is
//! checked against reads zero there (`MADV_WIPEONFORK`). So the check of an offset also detects a
//! fork.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};

use latchwork_machine::{ConstMachine, Word};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use crate::copied::Copied;
use crate::header::page_size;
use crate::space::{HUGE, extend, reserve, reserve_aligned, unmap};
use crate::token::Tokens;
use crate::{Error, huge};

enum Kind<M: ConstMachine> {
    /// Ordinary memory, all of it allocated from the start: for models and simulators.
    Heap,
    /// Pages of this process alone.
    Anonymous,
    /// A file shared with other processes, and the same file opened once more if possible.
    File { tokens: Tokens, growth: Option<File> },
    /// A file next to a region's, without locks of its own; mapped read-only in a view.
    Beside { file: File, write: bool },
    /// A viewed file: private pages, with copies of its blocks.
    View(Copied<M>),
}

/// Values that differ between processes.
#[repr(C)]
struct Local<M: ConstMachine> {
    /// Bytes from the base that may be touched; zero in the child of a fork.
    mapped: M::AtomicU64,
}

/// The memory of an area, and the area's name.
pub(crate) type Named<M> = (&'static str, Arc<Memory<M>>);

/// Reserved addresses, and the bytes mapped at some of them.
pub(crate) struct Memory<M: ConstMachine> {
    base: *mut u8,
    reserved: usize,
    local: *mut Local<M>,
    kind: Kind<M>,
    /// Bytes from the base with access rights; held while this process maps more.
    mapping: Mutex<u64>,
    /// Whether huge pages are requested.
    pub(crate) huge: bool,
    /// The areas in memory of this process, by name.
    pub(crate) areas: Mutex<Vec<Named<M>>>,
}

// SAFETY: the pointers are to memory that it owns and that is accessed by atomics.
unsafe impl<M: ConstMachine> Send for Memory<M> {}
// SAFETY: as above.
unsafe impl<M: ConstMachine> Sync for Memory<M> {}

const ALIGN: usize = 1 << 16;

fn heap_layout(bytes: usize) -> Result<Layout, Error> {
    Layout::from_size_align(bytes, ALIGN).map_err(|_| Error::TooLarge(bytes as u64))
}

/// Zeroed memory from the allocator.
fn allocate(bytes: usize) -> Result<*mut u8, Error> {
    let layout = heap_layout(bytes)?;
    // SAFETY: no region is empty.
    let base = unsafe { alloc_zeroed(layout) };
    if base.is_null() { Err(Error::TooLarge(bytes as u64)) } else { Ok(base) }
}

/// A page that reads as zero in the child of a fork.
fn local_page<M: ConstMachine>() -> Result<*mut Local<M>, Error> {
    let (bytes, rights) = (page_size() as usize, ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new mapping, at any free address.
    let page = unsafe {
        rustix::mm::mmap_anonymous(core::ptr::null_mut(), bytes, rights, MapFlags::PRIVATE)
    };
    let page = page.map_err(|e| Error::of("mmap", e))?;
    // SAFETY: the page was mapped above, and no other thread has it.
    let wiped = unsafe { rustix::mm::madvise(page, bytes, Advice::LinuxWipeOnFork) };
    wiped.map_err(|e| Error::of("madvise", e))?;
    Ok(page.cast())
}

impl<M: ConstMachine> Memory<M> {
    /// Memory from the allocator, `reserved` bytes at once.
    pub(crate) fn heap(reserved: usize) -> Result<Self, Error> {
        let base = allocate(reserved)?;
        // SAFETY: the layout is a page's worth and not empty; zero is a value of the word.
        let local = unsafe { alloc_zeroed(local_layout()) }.cast::<Local<M>>();
        let memory = Self::new(base, reserved, local, Kind::Heap);
        memory.local().mapped.store(reserved as u64, Relaxed);
        Ok(memory)
    }

    /// Creates memory of this process alone, with no pages yet.
    pub(crate) fn anonymous(reserved: usize) -> Result<Self, Error> {
        Self::set_aside(reserved, Kind::Anonymous)
    }

    /// Creates memory in a file that other processes also map.
    pub(crate) fn file(reserved: usize, tokens: Tokens) -> Result<Self, Error> {
        let growth = opened_again(tokens.file());
        Self::set_aside(reserved, Kind::File { tokens, growth })
    }

    /// Creates memory for a viewed file with a fixed part of `fixed` bytes. Bytes behind that never
    /// count as mapped, so each use requests a copy.
    pub(crate) fn view(reserved: usize, file: File, fixed: u64) -> Result<Self, Error> {
        Self::set_aside(reserved, Kind::View(Copied::new(file, reserved, fixed)))
    }

    /// Creates memory of this process alone, of the same kind.
    pub(crate) fn like(&self, reserved: usize) -> Result<Self, Error> {
        if let Kind::Heap = self.kind { Self::heap(reserved) } else { Self::anonymous(reserved) }
    }

    /// Checks that so many addresses can be reserved now.
    pub(crate) fn has_addresses(&self, bytes: usize) -> Result<(), Error> {
        if !matches!(self.kind, Kind::Heap) {
            unmap(reserve(bytes)?, bytes);
        }
        Ok(())
    }

    /// Returns how many addresses were reserved.
    pub(crate) fn reserved(&self) -> usize {
        self.reserved
    }

    /// Creates memory in a file next to a region's.
    pub(crate) fn beside(reserved: usize, file: File, write: bool) -> Result<Self, Error> {
        Self::set_aside(reserved, Kind::Beside { file, write })
    }

    fn set_aside(reserved: usize, kind: Kind<M>) -> Result<Self, Error> {
        let local = local_page()?;
        let base = reserve_aligned(reserved);
        let base = base.inspect_err(|_| unmap(local.cast(), page_size() as usize))?;
        Ok(Self::new(base, reserved, local, kind))
    }

    fn new(base: *mut u8, reserved: usize, local: *mut Local<M>, kind: Kind<M>) -> Self {
        let (mapping, areas) = (Mutex::new(0), Mutex::new(Vec::new()));
        Self { base, reserved, local, kind, mapping, huge: false, areas }
    }

    #[inline(always)]
    fn local(&self) -> &Local<M> {
        // SAFETY: it was allocated with this value and is freed with it; zero is a value.
        unsafe { &*self.local }
    }

    /// Bytes from the base that may be touched; zero in the child of a fork.
    #[inline(always)]
    pub(crate) fn mapped(&self) -> u64 {
        // Acquire: synchronizes with the Release in `map`. It is free on x86, and whatever an
        // offset leads to was mapped before.
        self.local().mapped.load(Acquire)
    }

    /// Returns the word that holds it, whose address does not change.
    pub(crate) fn mapped_word(&self) -> *const M::AtomicU64 {
        &self.local().mapped
    }

    #[inline(always)]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Returns the locks on this region's file, if it has one.
    pub(crate) fn tokens(&self) -> Option<&Tokens> {
        match &self.kind {
            Kind::File { tokens, .. } => Some(tokens),
            _ => None,
        }
    }

    /// Returns the region's file, if it has one.
    pub(crate) fn descriptor(&self) -> Option<&File> {
        match &self.kind {
            Kind::File { tokens, .. } => Some(tokens.file()),
            Kind::View(copied) => Some(&copied.file),
            Kind::Beside { file, .. } => Some(file),
            Kind::Heap | Kind::Anonymous => None,
        }
    }

    /// Returns the memory of the bytes from `from` to `to` to the system. They stay mapped and read
    /// as zero. Later stores allocate memory again.
    pub(crate) fn punch(&self, from: u64, to: u64) -> Result<(), Error> {
        let at = self.base.wrapping_add(from as usize).cast();
        let length = (to - from) as usize;
        let done = match &self.kind {
            Kind::Heap => return Ok(()),
            Kind::View(_) | Kind::Beside { write: false, .. } => return Err(Error::View),
            // SAFETY: the caller checked that the range is mapped; it stays so.
            Kind::Anonymous => unsafe { rustix::mm::madvise(at, length, Advice::LinuxDontNeed) },
            Kind::File { .. } | Kind::Beside { .. } => {
                // SAFETY: as above.
                unsafe { rustix::mm::madvise(at, length, Advice::LinuxRemove) }
            }
        };
        done.map_err(|e| Error::of("madvise", e))
    }

    /// Returns whether stores stay in this process.
    pub(crate) fn is_view(&self) -> bool {
        matches!(self.kind, Kind::View(_))
    }

    /// Allocates space for the bytes from `from` to `to`, so that touching them cannot fail.
    ///
    /// Idempotent, and harmless if the region grows at the same time.
    pub(crate) fn extend(&self, from: u64, to: u64) -> Result<(), Error> {
        match &self.kind {
            Kind::File { tokens, .. } => extend(tokens.file(), from, to),
            Kind::Beside { file, write: true } => {
                if self.huge {
                    huge::prefer::<M>(file, from, to);
                }
                extend(file, from, to)
            }
            Kind::Beside { .. } | Kind::View(_) => Err(Error::View),
            Kind::Heap | Kind::Anonymous => Ok(()),
        }
    }

    /// Maps the bytes up to `to` in this process. `to` is a multiple of 65,536.
    ///
    /// A file that was truncated below `to` is refused. A later truncation kills the processes that
    /// touch the missing pages, except views, which have copies: the system offers no free defence.
    pub(crate) fn map(&self, to: u64) -> Result<(), Error> {
        if to > self.reserved as u64 {
            return Err(Error::Corrupt { what: "length of the region", at: 1024 });
        }
        let mut rights_to = self.mapping.lock().unwrap_or_else(PoisonError::into_inner);
        let mapped = *rights_to;
        if to <= mapped || matches!(self.kind, Kind::Heap) {
            return Ok(());
        }
        let at = self.base.wrapping_add(mapped as usize);
        let length = (to - mapped) as usize;
        if let Some(file) = self.descriptor() {
            let found = file.metadata().map_err(|_| Error::Truncated { needed: to, found: 0 })?;
            if found.len() < to {
                return Err(Error::Truncated { needed: to, found: found.len() });
            }
        }
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let done = match &self.kind {
            Kind::Heap => Ok(()),
            // SAFETY: the range was reserved by `reserve`, and nothing is mapped there yet.
            Kind::Anonymous | Kind::View(_) => unsafe {
                rustix::mm::mprotect(at.cast(), length, MprotectFlags::READ | MprotectFlags::WRITE)
            },
            Kind::File { tokens, growth } => {
                let flags = MapFlags::SHARED | MapFlags::FIXED;
                // The first part is mapped through the descriptor with the lock that marks this
                // process alive, so that descriptor lasts even if the program closes others.
                // Further parts are not: a child that is forked before the advice below keeps the
                // mapping, and with it the open file.
                let growth = growth.as_ref().filter(|_| mapped != 0);
                let file = growth.unwrap_or(tokens.file());
                // SAFETY: as above, so it replaces no mapping; the file is long enough.
                unsafe { rustix::mm::mmap(at.cast(), length, rights, flags, file, mapped) }
                    .map(drop)
            }
            Kind::Beside { file, write } => {
                let flags = MapFlags::SHARED | MapFlags::FIXED;
                let rights = if *write { rights } else { ProtFlags::READ };
                // SAFETY: as above.
                unsafe { rustix::mm::mmap(at.cast(), length, rights, flags, file, mapped) }
                    .map(drop)
            }
        };
        done.map_err(|e| match e {
            Errno::NODEV | Errno::OPNOTSUPP | Errno::INVAL => Error::NoMmap,
            Errno::NOMEM => Error::TooLarge(to),
            _ => Error::of("mmap", e),
        })?;
        // SAFETY: the range was mapped above.
        let kept = unsafe { rustix::mm::madvise(at.cast(), length, Advice::LinuxDontFork) };
        kept.map_err(|e| Error::of("madvise", e))?;
        if self.huge {
            // Optional: a system without huge pages for this memory works, only slower. SAFETY: the
            // range was mapped above.
            let _ = unsafe { rustix::mm::madvise(at.cast(), length, Advice::LinuxHugepage) };
            // Bytes touched while only a part of the huge page was mapped have small pages.
            let begun = mapped as usize / HUGE * HUGE;
            if begun < mapped as usize && begun + HUGE <= to as usize {
                huge::collapse(self.base.wrapping_add(begun));
            }
        }
        *rights_to = to;
        let said = if let Kind::View(copied) = &self.kind { to.min(copied.fixed) } else { to };
        // Release: synchronizes with the Acquire in `mapped`.
        self.local().mapped.store(said, Release);
        Ok(())
    }

    /// Returns the blocks that a view has copied; none for other memory, where all that is mapped
    /// exists.
    pub(crate) fn copied(&self) -> Option<&Copied<M>> {
        if let Kind::View(copied) = &self.kind { Some(copied) } else { None }
    }
}

/// Opens the same file once more; none where that is not possible, as without `/proc`.
fn opened_again(file: &File) -> Option<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let again = File::from(latchwork_machine::open(&*path, OFlags::RDWR, Mode::empty()).ok()?);
    let [it, same] = [file, &again].map(|file| rustix::fs::fstat(file).ok());
    let (it, same) = (it?, same?);
    (it.st_dev == same.st_dev && it.st_ino == same.st_ino).then_some(again)
}

/// A line of its own, so that its neighbours do not affect the cost of reading it.
const fn local_layout() -> Layout {
    match Layout::from_size_align(64, 64) {
        Ok(layout) => layout,
        Err(_) => unreachable!(),
    }
}

impl<M: ConstMachine> Drop for Memory<M> {
    fn drop(&mut self) {
        let was_mapped = *self.mapping.get_mut().unwrap_or_else(PoisonError::into_inner) != 0;
        let forked = was_mapped && self.mapped() == 0;
        if let Kind::Heap = self.kind {
            if let Ok(layout) = heap_layout(self.reserved) {
                // SAFETY: allocated with this layout in `heap`.
                unsafe { dealloc(self.base, layout) };
            }
            // SAFETY: allocated with this layout in `heap`.
            unsafe { dealloc(self.local.cast(), local_layout()) };
            return;
        }
        // In the child of a fork the mapped part is gone, and other mappings may have its
        // addresses. The rest is left as well, because its start is unknown.
        if !forked {
            unmap(self.base, self.reserved);
        }
        unmap(self.local.cast(), page_size() as usize);
    }
}

//! An area: one long run of words next to a region, for data that is too large for cells.
//!
//! A region ends at 64 GiB and its cells at 64 KiB. An [`Area`] is separate memory: a file in the
//! folder of the region's file, named by the region's creation number and the area's name, or pages
//! of this process if the region has no file. Its words are addressed by numbers that mean the same
//! in every process.
//!
//! | byte of the file | content | written |
//! |---|---|---|
//! | 0 | magic number, creation, limit, name: 64 bytes | before the file has its name; checksum |
//! | 1024 | current size of the area in bytes | grows |
//! | 65,536 | the words | at any time |
//!
//! Invariants: the file is at least as long as its recorded length, because space is allocated
//! before the length is raised. So a word below the length can be touched without a `SIGBUS` for
//! lack of space. The length never falls, and nothing is unmapped while an `Area` lives: a
//! reference to a word stays valid memory. The child of a fork has no area ([`Error::Forked`]).
//!
//! Death: a process that is killed while it grows an area has allocated space or not; the next
//! process that grows the area does so again. A file is created without a name and linked when it
//! is complete.
//!
//! Latches in an area of a region with a file use the region's waiter slots.

use core::fmt;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use latchwork_machine::{Attached, ConstMachine, Word};

use crate::file::{Fresh, fill, open_checked};
use crate::header::{LIVE_AT, page_size};
use crate::memory::Memory;
use crate::{Error, Plain, Region, huge};

const MAGIC: u64 = u64::from_ne_bytes(*b"latchara");
const VERSION: u32 = 1;
/// Bytes before the first word, so that words are aligned for any page size.
const HEAD: u64 = 1 << 16;
/// Bytes of the header that its checksum covers, which follows them.
const SUMMED: usize = 60;
/// An area grows in multiples of this.
const STEP: u64 = 1 << 16;
/// The longest name.
const NAME: usize = 16;

/// Options for creating an area. An existing area keeps the options it was created with.
#[derive(Clone, Copy, Debug)]
pub struct AreaOptions {
    /// Bytes at first, rounded up to 64 KiB.
    pub first: u64,
    /// The most bytes that it may grow to. Each process reserves as many addresses.
    pub limit: u64,
    /// Whether to ask the system for huge pages (2 MiB), which it may silently refuse. They reduce
    /// page tables, and the processor's caches of them, to a 512th in each process. In memory file
    /// systems this uses `MADV_COLLAPSE` of Linux 6.1.
    pub huge: bool,
}

/// A run of words next to a region: see [`Region::area`].
pub struct Area<M: ConstMachine> {
    inner: Arc<Inner<M>>,
    /// The first word ...
    data: *mut u8,
    /// ... and, in `inner.memory`, the bytes from the file's start that may be touched.
    mapped: *const M::AtomicU64,
}

struct Inner<M: ConstMachine> {
    /// Declared before the region, whose waiter slots it uses, so that it is dropped first.
    _attached: Option<Attached<'static>>,
    memory: Arc<Memory<M>>,
    region: Region<M>,
    limit: u64,
}

// SAFETY: the pointers are into `inner.memory`, whose words are atomic.
unsafe impl<M: ConstMachine> Send for Area<M> {}
// SAFETY: as above.
unsafe impl<M: ConstMachine> Sync for Area<M> {}

impl<M: ConstMachine> Clone for Area<M> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), ..*self }
    }
}

impl<M: ConstMachine> Region<M> {
    /// Opens the area of this name, or creates it with these options. All words of a new area are
    /// zero.
    ///
    /// `name` consists of 1 to 16 characters `a` to `z`, `0` to `9` and `-`. Through a
    /// [view](Region::view) the area is mapped read-only and must exist; a process that then
    /// truncates its file kills the viewing process.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] for a name or sizes out of range; [`Error::ForeignArea`],
    /// [`Error::Truncated`], [`Error::Corrupt`] for a file that is not this area or is incomplete;
    /// the errors of [`Region::open`] and [`Region::create`]; [`Error::NotFound`] through a view;
    /// [`Error::Forked`].
    pub fn area(&self, name: &'static str, options: &AreaOptions) -> Result<Area<M>, Error> {
        self.check()?;
        let fits = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        if name.is_empty() || name.len() > NAME || !name.bytes().all(fits) {
            return Err(Error::Options("name of an area"));
        }
        let limit = options.limit.checked_next_multiple_of(STEP).ok_or(Error::Options("limit"))?;
        let first = options.first.checked_next_multiple_of(STEP).ok_or(Error::Options("first"))?;
        if first == 0 || first > limit || limit > 1 << 46 {
            return Err(Error::Options("size of an area"));
        }
        let head = Head { creation: self.creation(), limit: HEAD + limit, huge: options.huge };
        let (memory, head) = match &self.inner.path {
            Some(path) => self.file_area(&beside(path, head.creation, name), name, head, first)?,
            None => self.memory_area(name, head, first)?,
        };
        self.finish_area(memory, head)
    }

    /// Checks that this process has addresses left for areas of `bytes` in total. Call it before
    /// storing something that only such areas make valid.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`]; [`Error::Forked`].
    pub fn has_addresses(&self, bytes: u64) -> Result<(), Error> {
        self.check()?;
        let bytes = usize::try_from(bytes).map_err(|_| Error::TooLarge(bytes))?;
        self.inner.memory.has_addresses(bytes)
    }

    fn finish_area(&self, memory: Arc<Memory<M>>, head: Head) -> Result<Area<M>, Error> {
        let length = (head.limit - HEAD) as usize;
        let data = memory.base().wrapping_add(HEAD as usize);
        // SAFETY: the words are atomic; everything that a caller is lent is mapped; `Inner` keeps
        // the memory and the region, and drops this first.
        let beside = |home: &Attached<'_>| unsafe { home.attach_beside(data, length) };
        let attached = self.inner.attached.as_ref().map(beside);
        let attached = attached.transpose().map_err(Error::Waiters)?;
        let mapped = memory.mapped_word();
        let (region, limit) = (self.clone(), head.limit);
        Ok(Area {
            inner: Arc::new(Inner { _attached: attached, memory, region, limit }),
            data,
            mapped,
        })
    }

    /// The area in memory of this process, which all clones of the region share.
    fn memory_area(
        &self,
        name: &'static str,
        head: Head,
        first: u64,
    ) -> Result<(Arc<Memory<M>>, Head), Error> {
        let home = &self.inner.memory;
        let mut areas = home.areas.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, memory)) = areas.iter().find(|(known, _)| *known == name) {
            let limit = memory.reserved() as u64;
            return Ok((memory.clone(), Head { limit, ..head }));
        }
        let mut memory = home.like(head.limit as usize)?;
        memory.huge = head.huge;
        memory.map(HEAD + first)?;
        // Relaxed: no other thread has it yet. On the heap all of it exists, and it never grows.
        length_of(&memory).store(memory.mapped(), Relaxed);
        let memory = Arc::new(memory);
        areas.push((name, memory.clone()));
        Ok((memory, head))
    }

    /// The area in a file next to the region's.
    fn file_area(
        &self,
        path: &Path,
        name: &str,
        head: Head,
        first: u64,
    ) -> Result<(Arc<Memory<M>>, Head), Error> {
        let mine = self.inner.memory.descriptor().ok_or(Error::View)?;
        let mode = mine.metadata().map_err(|_| Error::NotFound)?.mode() & 0o777;
        let write = !self.inner.memory.is_view();
        loop {
            let (file, found) = match open_checked(path, mode, write) {
                Ok(opened) => opened,
                Err(Error::NotFound) if write && !self.inner.whole => {
                    let (file, fresh) = Fresh::file(path)?;
                    if head.huge {
                        huge::prefer::<M>(&file, 0, HEAD + first);
                    }
                    fill(&file, HEAD + first, &head.encode(name), mode)?;
                    match fresh.link(&file, path) {
                        Ok(()) | Err(Error::Exists) => continue,
                        Err(other) => return Err(other),
                    }
                }
                Err(other) => return Err(other),
            };
            let head = Head::decode(&file, found, head.creation, name)?;
            let mut memory = Memory::beside(head.limit as usize, file, write)?;
            // A view requests no huge pages: it must not move pages that others use.
            memory.huge = head.huge && write;
            memory.map(HEAD)?;
            return Ok((Arc::new(memory), head));
        }
    }

    /// Removes the file of a region and those of its areas. Processes that have them open keep
    /// them.
    ///
    /// # Errors
    ///
    /// The errors of [`Region::view`]; [`Error::Permission`] and others of unlink(2).
    pub fn remove(path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let (_, header) = crate::file::open(path, 0o777, false)?;
        let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
        rustix::fs::unlink(path).map_err(|e| Error::of("unlink", e))?;
        let prefix = format!("{:032x}.", header.creation);
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                rustix::fs::unlink(entry.path()).map_err(|e| Error::of("unlink", e))?;
            }
        }
        Ok(())
    }
}

impl<M: ConstMachine> Area<M> {
    /// Returns how many words it has now, in all processes.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if the recorded length is impossible; [`Error::Forked`].
    pub fn words(&self) -> Result<u64, Error> {
        Ok((self.length()? - HEAD) / 8)
    }

    /// Returns how many words it may grow to.
    pub fn limit(&self) -> u64 {
        (self.inner.limit - HEAD) / 8
    }

    /// Returns the region that it belongs to.
    pub fn region(&self) -> &Region<M> {
        &self.inner.region
    }

    /// Grows it to at least `words`. New words are zero. May be called by several processes at
    /// once.
    ///
    /// # Errors
    ///
    /// [`Error::Full`] beyond the limit; [`Error::NoSpace`]; [`Error::View`]; [`Error::Forked`].
    pub fn grow(&self, words: u64) -> Result<(), Error> {
        let end =
            words.checked_mul(8).and_then(|bytes| (bytes + HEAD).checked_next_multiple_of(STEP));
        let end =
            end.filter(|end| *end <= self.inner.limit).ok_or(Error::Full(self.inner.limit))?;
        loop {
            let length = self.length()?;
            if length >= end {
                return self.inner.memory.map(length);
            }
            self.inner.memory.extend(length, end)?;
            // AcqRel: synchronizes with the Acquire in `length`, so that a process that sees the
            // length finds the file as long. If it fails, another process has grown the area.
            let live = length_of(&self.inner.memory);
            let _ = live.compare_exchange(length, end, AcqRel, Acquire);
        }
    }

    /// Returns the memory of `count` words from `at` on to the system. They then read as zero and
    /// may be used again. Both ends are rounded inwards to whole pages of memory.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfArea`], [`Error::View`], [`Error::Forked`].
    pub fn release(&self, at: u64, count: u64) -> Result<(), Error> {
        self.slice(at, count)?;
        let page = u64::from(page_size());
        let (from, to) =
            ((HEAD + at * 8).next_multiple_of(page), (HEAD + (at + count) * 8) / page * page);
        if from < to { self.inner.memory.punch(from, to) } else { Ok(()) }
    }

    /// Allocates memory for `count` words from `at` on that were [released](Self::release), so that
    /// storing there cannot fail.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`], [`Error::OutOfArea`], [`Error::View`], [`Error::Forked`].
    pub fn reclaim(&self, at: u64, count: u64) -> Result<(), Error> {
        self.slice(at, count)?;
        self.inner.memory.extend(HEAD + at * 8, HEAD + (at + count) * 8)
    }

    /// Returns whether references into the area are valid: always, except in the child of a fork.
    #[inline(always)]
    pub fn is_mapped(&self) -> bool {
        // SAFETY: `inner.memory` has the word, and keeps it for as long as `self`.
        let mapped = unsafe { &*self.mapped };
        // Acquire: as in `place`.
        mapped.load(Acquire) != 0
    }

    /// Returns the word with this number.
    ///
    /// # Errors
    ///
    /// The errors of [`slice`](Self::slice).
    #[inline(always)]
    pub fn word(&self, at: u64) -> Result<&M::AtomicU64, Error> {
        let place = self.place(at, 8)?;
        // SAFETY: `place` found the word mapped for as long as `self`; any bytes are a word.
        Ok(unsafe { &*place.cast::<M::AtomicU64>() })
    }

    /// Returns `count` words from number `at` on.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfArea`]; [`Error::Truncated`] or [`Error::Corrupt`] if the area has grown and
    /// cannot be mapped further; [`Error::Forked`].
    #[inline(always)]
    pub fn slice(&self, at: u64, count: u64) -> Result<&[M::AtomicU64], Error> {
        let bytes = count.checked_mul(8).ok_or(Error::OutOfArea(at))?;
        let place = self.place(at, bytes)?;
        // SAFETY: `place` found `count` words mapped for as long as `self`; any bytes are words.
        Ok(unsafe { core::slice::from_raw_parts(place.cast(), count as usize) })
    }

    /// Returns a value that begins at word `at`, if that fits its alignment.
    ///
    /// # Safety
    ///
    /// While the reference is used, no thread of this process uses the same bytes as words of other
    /// sizes: as another type, or by [`word`](Self::word) or [`slice`](Self::slice). Racing atomic
    /// accesses of different sizes are undefined in Rust.
    ///
    /// # Errors
    ///
    /// The errors of [`slice`](Self::slice); [`Error::OutOfArea`] also if `at` does not fit the
    /// alignment.
    #[inline(always)]
    pub unsafe fn resolve<T: Plain>(&self, at: u64) -> Result<&T, Error> {
        const { assert!(align_of::<T>() <= HEAD as usize && !core::mem::needs_drop::<T>()) };
        let place = self.place(at, size_of::<T>() as u64)?;
        if !place.addr().is_multiple_of(align_of::<T>()) {
            return Err(Error::OutOfArea(at));
        }
        // SAFETY: `place` found so many bytes mapped for as long as `self`; they are aligned, as
        // checked; any bytes are a `T`; and the caller excludes words of other sizes.
        Ok(unsafe { &*place.cast::<T>() })
    }

    #[inline(always)]
    fn place(&self, at: u64, bytes: u64) -> Result<*mut u8, Error> {
        // No area has 2^46 bytes, so a clamped `at` stays beyond its end.
        let end = (at.min(1 << 48) * 8).saturating_add(HEAD).saturating_add(bytes);
        // SAFETY: `inner.memory` has the word, and keeps it for as long as `self`.
        let mapped = unsafe { &*self.mapped };
        // Acquire: synchronizes with the Release in `Memory::map`.
        if end > mapped.load(Acquire) {
            self.reach(at, end)?;
        }
        Ok(self.data.wrapping_add(at as usize * 8))
    }

    /// Maps what other processes have added, until `end` can be touched.
    #[cold]
    #[inline(never)]
    fn reach(&self, at: u64, end: u64) -> Result<(), Error> {
        let length = self.length()?;
        if end > length { Err(Error::OutOfArea(at)) } else { self.inner.memory.map(length) }
    }

    /// The checked length in bytes, including the head.
    fn length(&self) -> Result<u64, Error> {
        if self.inner.memory.mapped() == 0 {
            return Err(Error::Forked);
        }
        // Acquire: synchronizes with the AcqRel in `grow`.
        let length = length_of(&self.inner.memory).load(Acquire);
        if (HEAD + STEP..=self.inner.limit).contains(&length) && length.is_multiple_of(STEP) {
            return Ok(length);
        }
        Err(Error::Corrupt { what: "length of an area", at: LIVE_AT as u64 })
    }
}

/// The word with the area's size in bytes.
fn length_of<M: ConstMachine>(memory: &Memory<M>) -> &M::AtomicU64 {
    let at = memory.base().wrapping_add(LIVE_AT);
    // SAFETY: the head of an area is mapped from its creation on; any bytes are a word.
    unsafe { &*at.cast::<M::AtomicU64>() }
}

fn beside(region: &Path, creation: u128, name: &str) -> PathBuf {
    region.with_file_name(format!("{creation:032x}.{name}"))
}

/// The start of an area's file.
#[derive(Clone, Copy)]
struct Head {
    creation: u128,
    /// The most bytes of the file.
    limit: u64,
    huge: bool,
}

impl Head {
    fn encode(&self, name: &str) -> [u8; SUMMED + 4] {
        let mut bytes = [0; SUMMED + 4];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &MAGIC.to_ne_bytes());
        put(8, &VERSION.to_ne_bytes());
        put(12, &[u8::from(self.huge)]);
        put(16, &self.creation.to_ne_bytes());
        put(32, &self.limit.to_ne_bytes());
        put(40, name.as_bytes());
        let sum = crc32fast::hash(&bytes[..SUMMED]);
        bytes[SUMMED..].copy_from_slice(&sum.to_ne_bytes());
        bytes
    }

    /// Checks a file's first bytes, which were read and not mapped.
    fn decode(file: &File, found: u64, creation: u128, name: &str) -> Result<Self, Error> {
        let needed = HEAD + STEP;
        let truncated = |_| Error::Truncated { needed, found };
        let (mut bytes, mut length) = ([0; SUMMED + 4], [0; 8]);
        file.read_exact_at(&mut bytes, 0).map_err(truncated)?;
        file.read_exact_at(&mut length, LIVE_AT as u64).map_err(truncated)?;
        let (length, mut limit) = (u64::from_ne_bytes(length), [0; 8]);
        limit.copy_from_slice(&bytes[32..40]);
        let head = Self { creation, limit: u64::from_ne_bytes(limit), huge: bytes[12] == 1 };
        if bytes[..8] != MAGIC.to_ne_bytes() || bytes[16..32] != creation.to_ne_bytes() {
            return Err(Error::ForeignArea);
        }
        if bytes != head.encode(name) {
            return Err(Error::Corrupt { what: "header of an area", at: 0 });
        }
        if !(needed..=head.limit).contains(&length) || !length.is_multiple_of(STEP) {
            return Err(Error::Corrupt { what: "length of an area", at: LIVE_AT as u64 });
        }
        // Read again: other processes grow the file first and then record it in the header.
        let found = file.metadata().map_or(found, |now| now.len());
        if found < length { Err(Error::Truncated { needed: length, found }) } else { Ok(head) }
    }
}

impl<M: ConstMachine> fmt::Debug for Area<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Area").field("words", &self.words()).field("limit", &self.limit()).finish()
    }
}

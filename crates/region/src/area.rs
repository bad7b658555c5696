//! An area: one long run of words beside a region, for what is too large for cells.
//!
//! A region ends at 64 GiB and its cells at 64 KiB. An [`Area`] is memory of its own: a file in
//! the folder of the region's file, named by the region's creation number and the area's name, or
//! pages of this process if the region has no file. It is addressed by the numbers of its words,
//! which mean the same in every process.
//!
//! | byte of the file | what | written |
//! |---|---|---|
//! | 0 | magic number, creation, limit, name: 64 bytes | before the file has its name; checksum |
//! | 1024 | how many bytes the area has now | grows |
//! | 65,536 | the words | at any time |
//!
//! Invariants: the file is at least as long as the length that it says, for space is set aside
//! before the length is raised; so a word below it can be touched without `SIGBUS` for want of
//! space. The length never falls, and nothing is unmapped while an `Area` lives: a reference to a
//! word stays good as memory. In the child of a fork there is no area ([`Error::Forked`]).
//!
//! Death: a process that is killed while it grows an area has set space aside or not; the next one
//! to grow it does so again. A file is made without a name and linked when it is whole.
//!
//! Latches in an area of a region with a file wait in the region's own waiter slots.

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
/// Bytes before the first word: so that words are aligned to whatever a page may want.
const HEAD: u64 = 1 << 16;
/// Bytes of the header that are believed only with their checksum, which follows them.
const SUMMED: usize = 60;
/// An area grows in multiples of this.
const STEP: u64 = 1 << 16;
/// The longest name.
const NAME: usize = 16;

/// How an area is made. One that exists keeps what it was made with.
#[derive(Clone, Copy, Debug)]
pub struct AreaOptions {
    /// Bytes that it has at first, rounded up to 64 KiB.
    pub first: u64,
    /// The most bytes that it may grow to. Each process sets as many addresses aside.
    pub limit: u64,
    /// Whether huge pages (2 MiB) are asked of the system for it, which may decline without a word:
    /// page tables, and what a processor caches of them, are then a 512th in each process. Where
    /// the folder is in memory that is `MADV_COLLAPSE`, of Linux 6.1.
    pub huge: bool,
}

/// A run of words beside a region: see [`Region::area`].
pub struct Area<M: ConstMachine> {
    inner: Arc<Inner<M>>,
    /// The first word ...
    data: *mut u8,
    /// ... and, in `inner.memory`, the bytes from the file's start that may be touched.
    mapped: *const M::AtomicU64,
}

struct Inner<M: ConstMachine> {
    /// Before the region, whose waiter slots it uses. It is kept to be dropped.
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
    /// The area of this name: found, or made with these options. All words of a new one are zero.
    ///
    /// `name` has 1 to 16 of the characters `a` to `z`, `0` to `9` and `-`. Through a
    /// [view](Region::view) the area is mapped without the right to write, and must exist; a peer
    /// that then truncates its file kills the process that looks.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] for a name or sizes out of range; [`Error::ForeignArea`],
    /// [`Error::Truncated`], [`Error::Corrupt`] for a file that is not this area whole; those of
    /// opening and making a region's file; [`Error::NotFound`] through a view; [`Error::Forked`].
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

    /// Whether this process has addresses left for areas of so many bytes in all: asked before
    /// something is stored that only such areas make good.
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
        // SAFETY: the words are atomic; what a caller is lent is mapped; the memory and the region
        // are kept by `Inner`, which drops this first.
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

    /// The area in memory of this process, which all of the region's clones have in common.
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
        // Relaxed: nobody else has it yet. On the heap it is all there, and never grows.
        length_of(&memory).store(memory.mapped(), Relaxed);
        let memory = Arc::new(memory);
        areas.push((name, memory.clone()));
        Ok((memory, head))
    }

    /// The area in a file beside the region's.
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
            // A view asks the system for nothing: it must not move pages that others use.
            memory.huge = head.huge && write;
            memory.map(HEAD)?;
            return Ok((Arc::new(memory), head));
        }
    }

    /// Removes the file of a region and those of its areas, if there are any. Processes that have
    /// them open keep what they have.
    ///
    /// # Errors
    ///
    /// Those of opening the region to look at it; [`Error::Permission`] and others of unlinking.
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
    /// How many words it has now, in all processes.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if what the area says of its length cannot be; [`Error::Forked`].
    pub fn words(&self) -> Result<u64, Error> {
        Ok((self.length()? - HEAD) / 8)
    }

    /// How many words it may grow to.
    pub fn limit(&self) -> u64 {
        (self.inner.limit - HEAD) / 8
    }

    /// The region that it lies beside.
    pub fn region(&self) -> &Region<M> {
        &self.inner.region
    }

    /// Makes it at least `words` long. What is new is zero.
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
            // AcqRel: synchronizes with the Acquire in `length`, so that a file that says so is as
            // long. If it fails, another process has grown the area.
            let live = length_of(&self.inner.memory);
            let _ = live.compare_exchange(length, end, AcqRel, Acquire);
        }
    }

    /// Gives the memory of `count` words from `at` on back to the system. They read zero
    /// afterwards, and may be used again. Both are rounded inwards to whole pages of memory.
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

    /// Sets memory aside for `count` words from `at` on that were [released](Self::release), so
    /// that storing there cannot fail.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`], [`Error::OutOfArea`], [`Error::View`], [`Error::Forked`].
    pub fn reclaim(&self, at: u64, count: u64) -> Result<(), Error> {
        self.slice(at, count)?;
        self.inner.memory.extend(HEAD + at * 8, HEAD + (at + count) * 8)
    }

    /// Whether what the area has lent is still there: all of it, or in the child of a fork nothing.
    #[inline(always)]
    pub fn is_mapped(&self) -> bool {
        // SAFETY: `inner.memory` has the word, and keeps it for as long as `self`.
        let mapped = unsafe { &*self.mapped };
        // Acquire: as in `place`.
        mapped.load(Acquire) != 0
    }

    /// The word of this number.
    ///
    /// # Errors
    ///
    /// As [`slice`](Self::slice).
    #[inline(always)]
    pub fn word(&self, at: u64) -> Result<&M::AtomicU64, Error> {
        let place = self.place(at, 8)?;
        // SAFETY: `place` found the word mapped for as long as `self`; any bytes are one.
        Ok(unsafe { &*place.cast::<M::AtomicU64>() })
    }

    /// `count` words from number `at` on.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfArea`]; [`Error::Truncated`] or [`Error::Corrupt`] if the area has grown and
    /// cannot be mapped further; [`Error::Forked`].
    #[inline(always)]
    pub fn slice(&self, at: u64, count: u64) -> Result<&[M::AtomicU64], Error> {
        let bytes = count.checked_mul(8).ok_or(Error::OutOfArea(at))?;
        let place = self.place(at, bytes)?;
        // SAFETY: `place` found so many words mapped for as long as `self`; any bytes are words.
        Ok(unsafe { core::slice::from_raw_parts(place.cast(), count as usize) })
    }

    /// A value that begins at word `at`, which suits its alignment.
    ///
    /// # Safety
    ///
    /// While the reference is used, no thread of this process uses the same bytes as words of
    /// other sizes: as another type, by [`word`](Self::word) or [`slice`](Self::slice). Rust gives
    /// no meaning to two atomic accesses of different sizes that race.
    ///
    /// # Errors
    ///
    /// As [`slice`](Self::slice); [`Error::OutOfArea`] also if `at` does not suit.
    #[inline(always)]
    pub unsafe fn resolve<T: Plain>(&self, at: u64) -> Result<&T, Error> {
        const { assert!(align_of::<T>() <= HEAD as usize && !core::mem::needs_drop::<T>()) };
        let place = self.place(at, size_of::<T>() as u64)?;
        if !place.addr().is_multiple_of(align_of::<T>()) {
            return Err(Error::OutOfArea(at));
        }
        // SAFETY: `place` found so many bytes mapped for as long as `self`; they are aligned, as
        // checked; any bytes are a `T`; and the caller keeps words of other sizes away.
        Ok(unsafe { &*place.cast::<T>() })
    }

    #[inline(always)]
    fn place(&self, at: u64, bytes: u64) -> Result<*mut u8, Error> {
        // No area has 2^46 bytes: what is more is beyond its end whatever is added.
        let end = (at.min(1 << 48) * 8).saturating_add(HEAD).saturating_add(bytes);
        // SAFETY: `inner.memory` has the word, and keeps it for as long as `self`.
        let mapped = unsafe { &*self.mapped };
        // Acquire: synchronizes with the Release in `Memory::map`.
        if end > mapped.load(Acquire) {
            self.reach(at, end)?;
        }
        Ok(self.data.wrapping_add(at as usize * 8))
    }

    /// Maps what others have added, until `end` can be touched.
    #[cold]
    #[inline(never)]
    fn reach(&self, at: u64, end: u64) -> Result<(), Error> {
        let length = self.length()?;
        if end > length { Err(Error::OutOfArea(at)) } else { self.inner.memory.map(length) }
    }

    /// The length in bytes, head and all, believed.
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

/// The word that says how many bytes an area has.
fn length_of<M: ConstMachine>(memory: &Memory<M>) -> &M::AtomicU64 {
    let at = memory.base().wrapping_add(LIVE_AT);
    // SAFETY: the head of an area is mapped from its making on; any bytes are a word.
    unsafe { &*at.cast::<M::AtomicU64>() }
}

fn beside(region: &Path, creation: u128, name: &str) -> PathBuf {
    region.with_file_name(format!("{creation:032x}.{name}"))
}

/// What the file of an area begins with.
#[derive(Clone, Copy)]
struct Head {
    creation: u128,
    /// Bytes of the file, at most.
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

    /// Believes a file's first bytes, read and not mapped, or says what is wrong with them.
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
        // Asked again: others grow the file first, and then say so in the header.
        let found = file.metadata().map_or(found, |now| now.len());
        if found < length { Err(Error::Truncated { needed: length, found }) } else { Ok(head) }
    }
}

impl<M: ConstMachine> fmt::Debug for Area<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Area").field("words", &self.words()).field("limit", &self.limit()).finish()
    }
}

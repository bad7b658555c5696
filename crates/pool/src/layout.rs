//! The content of the pool's areas, word by word.
//!
//! Four areas next to the region: `pool-head`, `pool-xlat`, `pool-desc`, `pool-frames`. All zero is
//! an empty pool except for the configuration, which is one word set by one exchange.
//!
//! | word of `pool-head` | content |
//! |---|---|
//! | 0 | configuration: bit 63 set, the layout, log2 of the bytes of a frame, the most frames |
//! | 8 | number of frames |
//! | 16 | the clock's hand: how many frames it has passed |
//! | 24 | number of allocated chunks of the translation |
//! | 32 | not zero once a process with a write-ahead callback has opened the pool |
//! | 40 | the latch of the table of files and of new chunks |
//! | 48 | how many frames the clock may use |
//! | 56 | the latch for resizing |
//! | 64 | thread slots below this may have pins |
//! | 72 | the hash table: its first chunk above six bits, which are log2 of its buckets |
//! | 80 | the hash table's secret |
//! | 88 | number of overflow lines of buckets |
//! | 96 | the latch for removing a file's pages |
//! | 104 | how many frames the pool may grow to by itself |
//! | 512 | the hash table's latches, 64 of them, a line each |
//! | 1,024 | 256 files, 128 words each |
//! | 33,792 | durations of slow operations: three times 64 words, of which 40 are used |
//! | 33,984 | for each thread slot 32 words: 16 counts, 1 mark of use, 8 pins, 7 spare |
//!
//! | word of a file | content |
//! |---|---|
//! | 0 | bytes of a page (none: unused), flags, number of earlier files in the place; stored last |
//! | 1 | owner, and number of pages |
//! | 2 | the number of the file whose sync failed, plus one |
//! | 3, 4 | number of writes to files of this place, and how many the last sync covered |
//! | 5 | bytes of the path |
//! | 6 | owner, the first of the file's free pages, and how often that changed |
//! | 7 | owner, and for how many pages the disk has room |
//! | 8 .. 72 | the top of its translation: numbers of chunks |
//! | 72 .. 104 | the path |
//! | 104 .. 110 | counts of operations on its pages |
//! | 112 | owner, and how many threads sync the file or died in a sync |
//!
//! A frame's descriptor is one cache line; see `Desc`.

use latchwork_latch::OptLatch;
use latchwork_machine::{ConstMachine, Machine};
use latchwork_region::Plain;

pub(crate) const CONFIG: u64 = 0;
pub(crate) const ACTIVE: u64 = 8;
pub(crate) const HAND: u64 = 16;
pub(crate) const CHUNKS: u64 = 24;
pub(crate) const LOGGED: u64 = 32;
pub(crate) const TABLE_LATCH: u64 = 40;
pub(crate) const TARGET: u64 = 48;
pub(crate) const RESIZE_LATCH: u64 = 56;
pub(crate) const PINNED_HIGH: u64 = 64;
pub(crate) const HASH_TABLE: u64 = 72;
pub(crate) const HASH_SECRET: u64 = 80;
pub(crate) const HASH_LINES: u64 = 88;
pub(crate) const REMOVAL_LATCH: u64 = 96;
pub(crate) const WANTED: u64 = 104;
pub(crate) const HASH_LATCHES_AT: u64 = 512;

/// Words of a chunk, the allocation unit of the translation's area.
pub(crate) const CHUNK: u64 = 2048;

/// The most files at a time.
pub(crate) const FILES: u64 = 256;
const FILES_AT: u64 = 1024;
const FILE_WORDS: u64 = 128;
pub(crate) const FILE_KIND: u64 = 0;
pub(crate) const FILE_PAGES: u64 = 1;
pub(crate) const FILE_BROKEN: u64 = 2;
pub(crate) const FILE_WRITES: u64 = 3;
pub(crate) const FILE_SYNCED: u64 = 4;
pub(crate) const FILE_PATH_LENGTH: u64 = 5;
pub(crate) const FILE_FREE: u64 = 6;
pub(crate) const FILE_ROOM: u64 = 7;
pub(crate) const FILE_TOP: u64 = 8;
pub(crate) const FILE_PATH: u64 = 72;
pub(crate) const FILE_COUNTS: u64 = 104;
/// How many syncs are in progress, or were when their threads died.
pub(crate) const FILE_SYNCING: u64 = 112;
/// The longest path, in bytes.
pub(crate) const PATH_MAX: usize = 256;

/// Flags in a file's word 0, above the bytes of its pages.
pub(crate) const KIND_DIRECT: u64 = 1 << 32;
pub(crate) const KIND_TEMPORARY: u64 = 1 << 33;
pub(crate) const KIND_AHEAD: u64 = 1 << 34;
pub(crate) const KIND_SPARSE: u64 = 1 << 35;
/// The file is being removed.
pub(crate) const KIND_LEAVING: u64 = 1 << 36;
/// From this bit on, word 0 counts the files that had the entry before: 24 bits.
const KIND_BEFORE: u32 = 40;
/// After so many files the numbers of an entry repeat.
const GENERATIONS: u32 = 127;

/// Returns how many files had an entry before the one with this word 0.
pub(crate) const fn files_before(kind: u64) -> u32 {
    (kind >> KIND_BEFORE) as u32
}

/// Returns the number of the file whose entry has this place and this word 0. Consecutive files in
/// one entry have different numbers, and so their pages have different tags.
pub(crate) const fn number_of(place: u16, kind: u64) -> u16 {
    (files_before(kind) % GENERATIONS) as u16 * FILES as u16 + place
}

/// Returns word 0 of an entry that is free again.
pub(crate) const fn kind_after(kind: u64) -> u64 {
    ((kind >> KIND_BEFORE) + 1) << KIND_BEFORE
}

/// Returns the place of a file's entry among [`FILES`].
#[inline(always)]
pub(crate) const fn place_of(file: u16) -> u16 {
    file % FILES as u16
}

/// From this bit on, some words of an entry contain their owner, so that the exchange of a late
/// thread for a removed file fails on the next file's word.
const OWNER: u32 = 57;
/// The bits of such a word that are its value.
pub(crate) const VALUE: u64 = (1 << OWNER) - 1;

/// Returns a word of an entry that belongs to this file, with the value zero.
pub(crate) const fn owned(file: u16) -> u64 {
    ((file / FILES as u16) as u64) << OWNER
}

/// Returns whether a word of an entry belongs to this file.
pub(crate) const fn is_owned(word: u64, file: u16) -> bool {
    word & !VALUE == owned(file)
}

/// Returns the position of a word of a file.
#[inline(always)]
pub(crate) const fn file_at(file: u16, word: u64) -> u64 {
    FILES_AT + place_of(file) as u64 * FILE_WORDS + word
}

pub(crate) const TIMES_AT: u64 = FILES_AT + FILES * FILE_WORDS;
const THREADS_AT: u64 = TIMES_AT + 3 * 64;
pub(crate) const THREAD_WORDS: u64 = 32;
/// Not zero while a handle uses the thread slot, and after the handle's thread died.
pub(crate) const THREAD_IN_USE: u64 = 16;
/// The frames that the slot has pinned, each plus one.
pub(crate) const THREAD_PINS: u64 = 17;
pub(crate) const PINS: u64 = 8;
/// Slots from here on cannot hold latches.
pub(crate) const THREADS: u64 = (1 << 14) - 1;

/// Returns the position of a word of a thread slot.
pub(crate) const fn thread_at(slot: u32, word: u64) -> u64 {
    THREADS_AT + slot as u64 * THREAD_WORDS + word
}

/// Words of the head at first, and at most.
pub(crate) const HEAD_FIRST: u64 = THREADS_AT + 256 * THREAD_WORDS;
pub(crate) const HEAD_LIMIT: u64 = THREADS_AT + THREADS * THREAD_WORDS;

const _: () = assert!(FILE_TOP + 64 <= FILE_PATH && FILE_PATH + 32 <= FILE_COUNTS);
const _: () = assert!(FILE_COUNTS + 8 <= FILE_SYNCING && FILE_SYNCING < FILE_WORDS);
const _: () = assert!(TIMES_AT == 33_792);

/// The version of this layout. A pool with another layout belongs to another version of this crate.
pub const LAYOUT: u64 = 5;

/// The fewest frames of a pool.
pub(crate) const FRAMES_MIN: u32 = 16;

/// A pool's configuration: one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) frame_bytes: u32,
    pub(crate) frames_max: u32,
}

impl Config {
    pub(crate) fn pack(self) -> u64 {
        let shift = u64::from(self.frame_bytes.trailing_zeros());
        1 << 63 | LAYOUT << 48 | shift << 32 | u64::from(self.frames_max)
    }

    /// Decodes a configuration; none if it is invalid, or of another version.
    pub(crate) fn unpack(word: u64) -> Option<Self> {
        let (shift, frames_max) = ((word >> 32) as u32 & 0xffff, word as u32);
        let fits = word >> 48 == 1 << 15 | LAYOUT && (9..=16).contains(&shift);
        let fits = fits && (FRAMES_MIN..=1 << 31).contains(&frames_max);
        fits.then(|| Self { frame_bytes: 1 << shift, frames_max })
    }

    /// Positions in `pool-desc`: a byte for each frame's reference mark, then the descriptors.
    pub(crate) fn desc_at(self, frame: u32) -> u64 {
        u64::from(self.frames_max).div_ceil(64) * 8 + u64::from(frame) * 8
    }

    /// Bytes of addresses that all areas except the head may take.
    pub(crate) fn bytes_max(self) -> u64 {
        let frames = u64::from(self.frames_max) * self.frame_words();
        (frames + self.desc_at(self.frames_max) + self.xlat_limit()) * 8
    }

    pub(crate) fn frame_words(self) -> u64 {
        u64::from(self.frame_bytes) / 8
    }

    /// The most words of `pool-xlat`: room for sixteen pages per frame and for 2^26 pages.
    pub(crate) fn xlat_limit(self) -> u64 {
        (u64::from(self.frames_max) * 16).max(1 << 26)
    }
}

/// The content of a frame: the low byte of its state.
pub(crate) mod kind {
    /// No page; its tag is zero.
    pub(crate) const FREE: u64 = 0;
    /// A page that is being read, created or evicted. Its latch is held.
    pub(crate) const CLAIMED: u64 = 1;
    /// A page.
    pub(crate) const VALID: u64 = 2;
    /// A page left half changed. Its tag is marked so that no reader uses it.
    pub(crate) const POISONED: u64 = 3;
    /// The bits of the content.
    pub(crate) const MASK: u64 = 0xff;
}

/// The disk does not have the page as it is in the frame.
pub(crate) const DIRTY: u64 = 1 << 8;
/// The page's words are being changed.
pub(crate) const MODIFYING: u64 = 1 << 9;

/// The mark in the tag of a poisoned page.
pub(crate) const TAG_POISONED: u64 = 1 << 63;

/// Page numbers are below this.
pub(crate) const PAGES_MAX: u64 = 1 << 28;
/// The same in a sparse file.
pub(crate) const SPARSE_PAGES_MAX: u64 = 1 << 40;

/// The bits of a page's number in a tag.
pub(crate) const PAGE_BITS: u32 = 48;

/// Returns the name of a page in a descriptor: never zero. The page's number has at most
/// [`PAGE_BITS`].
#[inline(always)]
pub(crate) const fn tag(file: u16, page: u64) -> u64 {
    (file as u64 + 1) << PAGE_BITS | page
}

/// Returns file and page of a tag; none for a frame without a page.
pub(crate) const fn untag(tag: u64) -> Option<(u16, u64)> {
    let file = (tag & !TAG_POISONED) >> PAGE_BITS;
    if file == 0 { None } else { Some((file as u16 - 1, tag & ((1 << PAGE_BITS) - 1))) }
}

/// The descriptor of a frame: 64 bytes. All zero is a free frame.
///
/// All words except the latch, `writer` and `pinned` are stored only by the latch's holder, or by
/// the thread that has claimed the slot of a dead holder and then found the latch still in its
/// name. `tag` and `lsn` are read by any thread, under a version.
#[repr(C, align(64))]
pub(crate) struct Desc<M: Machine> {
    /// Its versions are those of the page.
    pub(crate) latch: OptLatch<M>,
    /// File and page.
    pub(crate) tag: M::AtomicU64,
    /// Content, `DIRTY`, `MODIFYING`.
    pub(crate) state: M::AtomicU64,
    /// The page's LSN: that of the last completed change.
    pub(crate) lsn: M::AtomicU64,
    /// While dirty, the LSN of the first change since it was clean.
    pub(crate) rec_lsn: M::AtomicU64,
    /// While `MODIFYING`, the LSN of the change.
    pub(crate) next_lsn: M::AtomicU64,
    /// The holder number of the thread that writes the page out, or zero. Set by an exchange.
    pub(crate) writer: M::AtomicU64,
    /// Not zero if a thread may have pinned the frame; zeroed when the clock evicts its page.
    pub(crate) pinned: M::AtomicU64,
}

// SAFETY: it consists of atomic words of 8 bytes, of which any bytes are a value, and has no
// destructor.
unsafe impl<M: ConstMachine> Plain for Desc<M> {}

/// The reference marks of 64 frames: a line.
#[repr(C, align(64))]
pub(crate) struct Marks<M: Machine>(pub(crate) [M::AtomicU8; 64]);

// SAFETY: atomic bytes, of which any are values.
unsafe impl<M: ConstMachine> Plain for Marks<M> {}

/// A latch in an area.
#[repr(transparent)]
pub(crate) struct Latch<M: Machine>(pub(crate) OptLatch<M>);

// SAFETY: an atomic word, of which any bytes are a value.
unsafe impl<M: ConstMachine> Plain for Latch<M> {}

/// Does not compile if a descriptor on `M` is not one cache line.
pub(crate) const fn lines<M: ConstMachine>() {
    assert!(size_of::<Desc<M>>() == 64 && size_of::<Marks<M>>() == 64);
}

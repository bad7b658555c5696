//! The start of a region, and the arithmetic of its layout.
//!
//! | byte | content | written |
//! |---|---|---|
//! | 0 | the fixed part of the header, 80 bytes | before the file has a name; under a checksum |
//! | 1024 | the variable part, and the roots | at any time |
//! | 4096 | depots | |
//! | 12288 | waiter slots of the machine `Shared` | |
//! | then | process slots, thread slots | |
//! | a multiple of 65,536 | the heap: blocks of 65,536 bytes | |

use latchwork_machine::{Machine, Shared};

use crate::Error;
use crate::slots::{PROCESS_BYTES, THREAD_BYTES};

/// The number of cell sizes.
pub const CLASSES: usize = 9;

/// The number of words in the header with which upper layers find their first cells.
pub const ROOTS: usize = 64;

/// Depots of each size.
pub(crate) const DEPOTS: usize = 8;

/// A block: the unit from which a thread makes cells of one size.
pub(crate) const BLOCK: u64 = 1 << 16;

const MAGIC: u64 = u64::from_ne_bytes(*b"latchrgn");
const VERSION: u32 = 6;
const ENDIAN: u32 = 0x0102_0304;
/// The bytes that are read and checked first.
pub(crate) const FIXED: usize = 80;
const SUMMED: usize = FIXED - 8;

pub(crate) const LIVE_AT: usize = 1024;
pub(crate) const DEPOTS_AT: usize = 4096;
pub(crate) const WAITERS_AT: usize = 12_288;

const PROCESSES_MAX: u32 = 4096;
pub(crate) const THREADS_MAX: u32 = (1 << 15) - SWEEPERS;
/// Thread slots after the others, reserved for sweepers, so that a full table can be swept.
pub(crate) const SWEEPERS: u32 = 16;
/// Offsets count 16 bytes in 32 bits.
const LIMIT_MAX: u64 = 1 << 36;

/// Options for creating a region. An opened region keeps those it was created with, except `mode`.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many processes may have it open at a time: 1 to 4,096. A slot takes 128 bytes.
    pub processes: u32,
    /// How many threads may use it at a time: 1 to 32,752. A slot takes 768 bytes.
    pub threads: u32,
    /// How many threads may wait for latches in it at a time: 1 to 65,534, 64 bytes each.
    pub waiters: u32,
    /// The most bytes that it may grow to, up to 2^36. Each process reserves as many addresses.
    pub limit: u64,
    /// The permission bits of the file. An existing file that allows more is refused.
    pub mode: u32,
}

impl Default for Options {
    /// Returns 256 processes, 2,048 threads, 2,048 waiters, at most 64 GiB, mode 0600.
    fn default() -> Self {
        Self { processes: 256, threads: 2048, waiters: 2048, limit: 1 << 36, mode: 0o600 }
    }
}

/// The variable part of the header.
#[repr(C, align(64))]
pub(crate) struct Live<M: Machine> {
    /// How many bytes of the region may be used.
    pub(crate) length: M::AtomicU64,
    pad0: [M::AtomicU64; 7],
    /// How many blocks were ever allocated.
    pub(crate) blocks: M::AtomicU64,
    pad1: [M::AtomicU64; 7],
    /// Thread slots from here on were never used.
    pub(crate) high: M::AtomicU32,
    /// The same for the sweepers' slots, counted from their first.
    pub(crate) sweepers: M::AtomicU32,
    /// The layers that live here, by bit; see `layer.rs`.
    pub(crate) layers: M::AtomicU32,
    /// Where to search for a free thread slot; see `thread.rs`.
    pub(crate) next: M::AtomicU32,
    pad2: [M::AtomicU32; 12],
    pub(crate) roots: [M::AtomicU64; ROOTS],
}

/// One of the stacks of batches of free cells: the first cell's offset, and the thread slot that is
/// changing it plus one.
#[repr(C, align(64))]
pub(crate) struct Depot<M: Machine> {
    pub(crate) word: M::AtomicU64,
    pad: [M::AtomicU64; 7],
}

/// The checked fixed part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) processes: u32,
    pub(crate) threads: u32,
    pub(crate) waiters: u32,
    pub(crate) limit: u64,
    pub(crate) creation: u128,
}

const fn up(value: u64, to: u64) -> u64 {
    value.div_ceil(to) * to
}

impl Header {
    pub(crate) fn new(options: &Options, creation: u128) -> Result<Self, Error> {
        let Options { processes, threads, waiters, limit, .. } = *options;
        let header = Self { processes, threads, waiters, limit: limit / BLOCK * BLOCK, creation };
        match header.flaw() {
            Some((what, _)) => Err(Error::Options(what)),
            None => Ok(header),
        }
    }

    /// The number that is out of range, and its position.
    fn flaw(&self) -> Option<(&'static str, u64)> {
        if !(1..=PROCESSES_MAX).contains(&self.processes) {
            return Some(("processes", 24));
        }
        if !(1..=THREADS_MAX).contains(&self.threads) {
            return Some(("threads", 28));
        }
        if !(1..=latchwork_machine::MAX_SLOTS).contains(&self.waiters) {
            return Some(("waiters", 32));
        }
        let fits = (self.heap_at() + BLOCK..=LIMIT_MAX).contains(&self.limit);
        (!fits || !self.limit.is_multiple_of(BLOCK)).then_some(("limit", 40))
    }

    pub(crate) fn processes_at(&self) -> u64 {
        up(WAITERS_AT as u64 + Shared::overhead(self.waiters) as u64, 4096)
    }

    pub(crate) fn threads_at(&self) -> u64 {
        up(self.processes_at() + u64::from(self.processes) * PROCESS_BYTES as u64, 4096)
    }

    pub(crate) fn heap_at(&self) -> u64 {
        up(self.threads_at() + u64::from(self.threads + SWEEPERS) * THREAD_BYTES as u64, BLOCK)
    }

    /// Returns the length that follows `length` as a region grows: an eighth more, but at least 1
    /// and at most 256 MiB.
    pub(crate) fn next_length(&self, length: u64) -> u64 {
        let step = up(length / 8, BLOCK).clamp(1 << 20, 1 << 28);
        length.saturating_add(step).min(self.limit)
    }

    /// Returns the first length of a new region.
    pub(crate) fn first_length(&self) -> u64 {
        self.next_length(self.heap_at())
    }

    /// Encodes the fixed part.
    pub(crate) fn encode(&self) -> [u8; FIXED] {
        let mut bytes = [0; FIXED];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &MAGIC.to_ne_bytes());
        put(8, &VERSION.to_ne_bytes());
        put(12, &ENDIAN.to_ne_bytes());
        put(16, &page_size().to_ne_bytes());
        put(20, &(FIXED as u32).to_ne_bytes());
        put(24, &self.processes.to_ne_bytes());
        put(28, &self.threads.to_ne_bytes());
        put(32, &self.waiters.to_ne_bytes());
        put(40, &self.limit.to_ne_bytes());
        put(48, &(self.creation as u64).to_ne_bytes());
        put(56, &((self.creation >> 64) as u64).to_ne_bytes());
        put(64, &(BLOCK as u32).to_ne_bytes());
        put(68, &(CLASSES as u32).to_ne_bytes());
        let sum = crc32fast::hash(&bytes[..SUMMED]);
        bytes[SUMMED..SUMMED + 4].copy_from_slice(&sum.to_ne_bytes());
        bytes
    }

    /// Checks the first bytes of a file.
    ///
    /// The order of the checks is: too short, foreign, byte order, version, checksum, page size,
    /// numbers. So a region of a later version is reported as one, whatever else that version
    /// changed.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let Some(bytes) = bytes.first_chunk::<FIXED>() else {
            return Err(Error::Truncated { needed: FIXED as u64, found: bytes.len() as u64 });
        };
        if word64(bytes, 0) != MAGIC {
            return Err(Error::Foreign);
        }
        match word32(bytes, 12) {
            ENDIAN => {}
            other if other == ENDIAN.swap_bytes() => return Err(Error::Endian),
            _ => return Err(Error::Corrupt { what: "byte-order mark", at: 12 }),
        }
        let found = word32(bytes, 8);
        if found != VERSION {
            return Err(Error::Version { found, known: VERSION });
        }
        if word32(bytes, SUMMED) != crc32fast::hash(&bytes[..SUMMED]) {
            return Err(Error::Corrupt { what: "checksum of the header", at: SUMMED as u64 });
        }
        let found = word32(bytes, 16);
        if found != page_size() {
            return Err(Error::PageSize { found, here: page_size() });
        }
        let sizes = (word32(bytes, 20), word32(bytes, 64), word32(bytes, 68));
        if sizes != (FIXED as u32, BLOCK as u32, CLASSES as u32) {
            return Err(Error::Corrupt { what: "sizes in the header", at: 20 });
        }
        let header = Self {
            processes: word32(bytes, 24),
            threads: word32(bytes, 28),
            waiters: word32(bytes, 32),
            limit: word64(bytes, 40),
            creation: u128::from(word64(bytes, 48)) | u128::from(word64(bytes, 56)) << 64,
        };
        match header.flaw() {
            Some((what, at)) => Err(Error::Corrupt { what, at }),
            None => Ok(header),
        }
    }

    /// Checks the length in the live part.
    pub(crate) fn check_length(&self, length: u64) -> Result<u64, Error> {
        let fits = (self.heap_at() + BLOCK..=self.limit).contains(&length);
        if fits && length.is_multiple_of(BLOCK) {
            return Ok(length);
        }
        Err(Error::Corrupt { what: "length of the region", at: LIVE_AT as u64 })
    }
}

fn word32(bytes: &[u8; FIXED], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(word)
}

fn word64(bytes: &[u8; FIXED], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(word)
}

/// The size of a page of memory here.
pub(crate) fn page_size() -> u32 {
    rustix::param::page_size() as u32
}

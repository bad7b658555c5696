//! The segment: a header, three tables, a text. All zero is empty.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// The way in which a latch was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    /// A mutex.
    Mutex = 1,
    /// A reader-writer lock, in shared mode.
    Read = 2,
    /// A reader-writer lock, in exclusive mode.
    Write = 3,
    /// A spin lock.
    Spin = 4,
}

impl Class {
    /// Returns the class with this number.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        [Self::Mutex, Self::Read, Self::Write, Self::Spin]
            .into_iter()
            .find(|class| *class as u32 == number)
    }
}

/// Number of wait buckets: bucket `b` counts waits of `2^(b-1)` to `2^b - 1` ns.
pub const BUCKETS: usize = 48;

pub(crate) const LATCHES: usize = 8192;
pub(crate) const SITES: usize = 4096;
pub(crate) const CHAINS: usize = 1024;
/// The most words of a waiter's stack that are kept: 2 KiB.
pub(crate) const STACK: usize = 256;
pub(crate) const MAPS: usize = 64 << 10;
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"latchpf2");
pub(crate) const EXE: usize = 256;

/// The start of a segment.
#[repr(C)]
pub(crate) struct Header {
    /// Written last, when the rest of the header is complete.
    pub(crate) magic: AtomicU64,
    pub(crate) pid: AtomicU32,
    /// Odd while the text is being written.
    pub(crate) maps_sequence: AtomicU32,
    pub(crate) maps_length: AtomicU32,
    pub(crate) reserved: AtomicU32,
    /// The start time of the process, in wall-clock time.
    pub(crate) began: AtomicU64,
    /// Acquisitions of latches that found the table full.
    pub(crate) lost_latches: AtomicU64,
    /// Acquisitions at call sites that found the table full.
    pub(crate) lost_sites: AtomicU64,
    /// Failed tries, and waits that timed out.
    pub(crate) refused: AtomicU64,
    /// Waits whose call chain found the table full, or a stack that could not be read.
    pub(crate) lost_chains: AtomicU64,
    pub(crate) latch_name: [AtomicU8; 16],
    pub(crate) exe: [AtomicU8; EXE],
    pad: [u8; 3760],
}

/// One latch, one call site, or one call chain.
#[repr(C)]
pub(crate) struct Entry {
    /// The address, with the class in the top four bits for a site; for a chain a hash. Zero while
    /// unused.
    pub(crate) key: AtomicU64,
    /// Low half: the class; for a latch that was taken in several ways, the last.
    pub(crate) class: AtomicU64,
    /// For a chain only acquisitions that waited, or for which others had waited.
    pub(crate) acquisitions: AtomicU64,
    pub(crate) contended: AtomicU64,
    pub(crate) wait_total: AtomicU64,
    pub(crate) wait_max: AtomicU64,
    /// For a latch, the site of its longest wait; for a site, that latch.
    pub(crate) peer: AtomicU64,
    /// For a latch, the place where its last holder took it: a `Place`, see `place.rs`. It shares
    /// the line of the counters above, which every acquisition writes.
    pub(crate) holder: AtomicU64,
    /// When it was first seen, in monotonic time.
    pub(crate) first_seen: AtomicU64,
    /// For a latch, the site that took it first.
    pub(crate) first_caller: AtomicU64,
    /// For a latch, the `Place` of the holder during the longest wait.
    pub(crate) peer_holder: AtomicU64,
    /// For a place, waits of other threads that began while a latch was held from here, and their
    /// sum; for a latch, waits that began.
    pub(crate) blocked: AtomicU64,
    pub(crate) blocked_total: AtomicU64,
    spare: [u64; 3],
    pub(crate) waits: [AtomicU32; BUCKETS],
}

/// The way in which a thread came to a latch for which it waited: the data to unwind its stack
/// later.
#[repr(C)]
pub(crate) struct Chain {
    pub(crate) entry: Entry,
    /// The return address of the latch function, and the stack and frame pointers at its entry.
    pub(crate) caller: AtomicU64,
    pub(crate) sp: AtomicU64,
    pub(crate) fp: AtomicU64,
    /// How many words of the stack follow. Written last.
    pub(crate) length: AtomicU64,
    spare: [u64; 4],
    /// The stack from `sp` upwards.
    pub(crate) stack: [AtomicU64; STACK],
}

/// The whole segment.
#[repr(C)]
pub(crate) struct Segment {
    pub(crate) header: Header,
    pub(crate) latches: [Entry; LATCHES],
    pub(crate) sites: [Entry; SITES],
    pub(crate) chains: [Chain; CHAINS],
    pub(crate) maps: [AtomicU8; MAPS],
}

const _: () = assert!(size_of::<Entry>() == 320 && size_of::<Header>() == 4096);
const _: () = assert!(size_of::<Chain>() == 320 + 64 + 8 * STACK);

/// Returns the bucket of a wait.
pub(crate) fn bucket(ns: u64) -> usize {
    ((u64::BITS - ns.leading_zeros()) as usize).min(BUCKETS - 1)
}

/// Stores as much of `text` as fits.
pub(crate) fn store_bytes(room: &[AtomicU8], text: &[u8]) {
    for (to, from) in room.iter().zip(text) {
        to.store(*from, Relaxed);
    }
}

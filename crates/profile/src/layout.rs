//! The segment: a header, two tables, a text. All zero is an empty one.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// How a latch was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    /// A mutex.
    Mutex = 1,
    /// A reader-writer lock, for a share.
    Read = 2,
    /// A reader-writer lock, for oneself.
    Write = 3,
    /// A spin lock.
    Spin = 4,
}

impl Class {
    /// The class with this number.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        [Self::Mutex, Self::Read, Self::Write, Self::Spin]
            .into_iter()
            .find(|class| *class as u32 == number)
    }
}

/// Waits are counted by their magnitude: bucket `b` has those from `2^(b-1)` to `2^b - 1` ns.
pub const BUCKETS: usize = 48;

pub(crate) const LATCHES: usize = 8192;
pub(crate) const SITES: usize = 4096;
pub(crate) const MAPS: usize = 64 << 10;
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"latchpf1");
pub(crate) const EXE: usize = 256;

/// What a segment begins with.
#[repr(C)]
pub(crate) struct Header {
    /// Written last, when the rest of the header is whole.
    pub(crate) magic: AtomicU64,
    pub(crate) pid: AtomicU32,
    /// Odd while the text is being written.
    pub(crate) maps_sequence: AtomicU32,
    pub(crate) maps_length: AtomicU32,
    pub(crate) reserved: AtomicU32,
    /// When the process began, on the wall's clock.
    pub(crate) began: AtomicU64,
    /// Acquisitions of latches that found the table full.
    pub(crate) lost_latches: AtomicU64,
    /// Acquisitions at call sites that found the table full.
    pub(crate) lost_sites: AtomicU64,
    /// Tries that failed, and waits that timed out.
    pub(crate) refused: AtomicU64,
    pub(crate) latch_name: [AtomicU8; 16],
    pub(crate) exe: [AtomicU8; EXE],
    pad: [u8; 3768],
}

/// One latch, or one call site.
#[repr(C)]
pub(crate) struct Entry {
    /// The address, with the class in the top four bits for a site; zero while unused.
    pub(crate) key: AtomicU64,
    /// Low half the class; of a latch that was taken in several ways, the last.
    pub(crate) class: AtomicU64,
    pub(crate) acquisitions: AtomicU64,
    pub(crate) contended: AtomicU64,
    pub(crate) wait_total: AtomicU64,
    pub(crate) wait_max: AtomicU64,
    /// Of a latch, where it was waited for longest; of a site, the latch that was.
    pub(crate) peer: AtomicU64,
    /// When it was first seen, on the monotonic clock.
    pub(crate) first_seen: AtomicU64,
    pub(crate) waits: [AtomicU32; BUCKETS],
}

/// All of it.
#[repr(C)]
pub(crate) struct Segment {
    pub(crate) header: Header,
    pub(crate) latches: [Entry; LATCHES],
    pub(crate) sites: [Entry; SITES],
    pub(crate) maps: [AtomicU8; MAPS],
}

pub(crate) const KEY_CLASS_SHIFT: u32 = 60;

const _: () = assert!(size_of::<Entry>() == 256 && size_of::<Header>() == 4096);

/// The bucket of a wait.
pub(crate) fn bucket(ns: u64) -> usize {
    ((u64::BITS - ns.leading_zeros()) as usize).min(BUCKETS - 1)
}

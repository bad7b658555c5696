//! The reader's side: bytes of a file that any process may have written.

use core::fmt;

use crate::layout::{
    BUCKETS, CHAINS, Chain, Class, EXE, Entry, Header, LATCHES, MAGIC, MAPS, SITES, STACK, Segment,
};
use crate::maps;
use crate::place::Place;
use core::mem::offset_of;

/// How far below its known extent an address still counts as the stack; the kernel keeps more than
/// this free.
const STACK_GROWS: u64 = 8 << 20;

/// The reason why bytes are no segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatError {
    /// The file is too short.
    TooShort {
        /// Bytes of a segment.
        needed: usize,
        /// Bytes given.
        given: usize,
    },
    /// The bytes do not begin like a segment of this version.
    Foreign,
    /// The text of code files has this length, which is too large.
    Maps(u32),
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort { needed, given } => {
                write!(f, "{given} bytes, where a profile has {needed}")
            }
            Self::Foreign => f.write_str("not a profile, or one of another version"),
            Self::Maps(length) => write!(f, "a list of code files of {length} bytes"),
        }
    }
}

impl core::error::Error for FormatError {}

/// A latch, or a call site.
#[derive(Clone, Debug)]
pub struct Row {
    /// The latch's address, or the call's return address.
    pub address: u64,
    /// How it was taken; for a latch that was taken in several ways, the last.
    pub class: Class,
    /// The number of acquisitions.
    pub acquisitions: u64,
    /// The number of acquisitions that waited.
    pub contended: u64,
    /// The sum of the waits, in nanoseconds.
    pub wait_total: u64,
    /// The longest wait, in nanoseconds.
    pub wait_max: u64,
    /// For a latch, the site of its longest wait; for a site, that latch. Zero if none.
    pub peer: u64,
    /// When it was first taken, in nanoseconds of monotonic time.
    pub first_seen: u64,
    /// For a latch, the return address of the call that took it first; otherwise zero.
    pub first_caller: u64,
    /// For a latch, the place where the holder had taken it when its longest wait began.
    pub peer_holder: Option<Place>,
    /// The number of waits of other threads that began while a latch was held from here.
    pub blocked: u64,
    /// The sum of those waits, in nanoseconds.
    pub blocked_total: u64,
    /// Waits by magnitude: from `2^(b-1)` to `2^b - 1` nanoseconds.
    pub waits: [u32; BUCKETS],
}

impl Row {
    /// Returns an upper bound of the wait that `share` of the contended acquisitions did not
    /// exceed.
    ///
    /// Exact to a factor of two, and never above the longest wait. None without a wait.
    pub fn wait_quantile(&self, share: f64) -> Option<u64> {
        let total: u64 = self.waits.iter().map(|n| u64::from(*n)).sum();
        let rank = ((total as f64 * share).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        for (bucket, n) in self.waits.iter().enumerate() {
            seen += u64::from(*n);
            if *n != 0 && seen >= rank {
                return Some(((1u64 << bucket) - 1).min(self.wait_max));
            }
        }
        None
    }

    /// Subtracts another row's counts.
    pub fn subtract(&mut self, other: &Row) {
        self.acquisitions = self.acquisitions.saturating_sub(other.acquisitions);
        self.contended = self.contended.saturating_sub(other.contended);
        self.wait_total = self.wait_total.saturating_sub(other.wait_total);
        for (from, other) in self.waits.iter_mut().zip(other.waits) {
            *from = from.saturating_sub(other);
        }
    }

    /// Adds another row's counts.
    pub fn add(&mut self, other: &Row) {
        self.acquisitions = self.acquisitions.saturating_add(other.acquisitions);
        self.contended = self.contended.saturating_add(other.contended);
        self.wait_total = self.wait_total.saturating_add(other.wait_total);
        self.blocked = self.blocked.saturating_add(other.blocked);
        self.blocked_total = self.blocked_total.saturating_add(other.blocked_total);
        if other.wait_max > self.wait_max {
            (self.wait_max, self.peer) = (other.wait_max, other.peer);
        }
        for (to, from) in self.waits.iter_mut().zip(other.waits) {
            *to = to.saturating_add(from);
        }
    }
}

/// A call chain that ended in waits: the bottom of a thread's stack at that time.
#[derive(Clone, Debug)]
pub struct Stack {
    /// The chain's index, as in `Place::Chain`.
    pub index: usize,
    /// The waits. The address is the return address of the latch function.
    pub row: Row,
    /// The stack pointer at the entry of the latch function.
    pub sp: u64,
    /// The frame pointer there, in code that has one.
    pub fp: u64,
    /// The stack's words, from the stack pointer upwards.
    pub words: Vec<u64>,
}

/// A piece of a code file in the process's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its start address.
    pub start: u64,
    /// Its end address.
    pub end: u64,
    /// Its offset in the file.
    pub offset: u64,
    /// The file.
    pub path: String,
}

/// The content of a segment at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The process.
    pub pid: u32,
    /// Its start time, in nanoseconds of wall-clock time.
    pub began: u64,
    /// The program; the end of its path if that is long.
    pub exe: String,
    /// The latch that was used.
    pub latch: String,
    /// Acquisitions of latches beyond the 8,192 that fit.
    pub lost_latches: u64,
    /// Acquisitions at call sites beyond the 4,096 that fit.
    pub lost_sites: u64,
    /// Waits whose call chain is unknown: the first 1,024 chains fit.
    pub lost_chains: u64,
    /// Failed tries, and waits that timed out.
    pub refused: u64,
    /// Latches, in undefined order.
    pub latches: Vec<Row>,
    /// Call sites, in undefined order.
    pub sites: Vec<Row>,
    /// Call chains, in undefined order.
    pub chains: Vec<Stack>,
    /// The process's code files, and the first thread's stack.
    pub maps: Vec<Mapping>,
}

impl Snapshot {
    /// The most bytes of a segment that are read.
    pub const SIZE: usize = size_of::<Segment>();

    /// Parses a segment's bytes.
    ///
    /// # Errors
    ///
    /// [`FormatError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        if bytes.len() < Self::SIZE {
            return Err(FormatError::TooShort { needed: Self::SIZE, given: bytes.len() });
        }
        let word = |at| u64_at(bytes, at);
        if word(offset_of!(Header, magic)) != MAGIC {
            return Err(FormatError::Foreign);
        }
        let length = u32_at(bytes, offset_of!(Header, maps_length));
        if length as usize > MAPS {
            return Err(FormatError::Maps(length));
        }
        let text_at = offset_of!(Segment, maps);
        Ok(Self {
            pid: u32_at(bytes, offset_of!(Header, pid)),
            began: word(offset_of!(Header, began)),
            exe: text(&bytes[offset_of!(Header, exe)..][..EXE]),
            latch: text(&bytes[offset_of!(Header, latch_name)..][..16]),
            lost_latches: word(offset_of!(Header, lost_latches)),
            lost_sites: word(offset_of!(Header, lost_sites)),
            lost_chains: word(offset_of!(Header, lost_chains)),
            refused: word(offset_of!(Header, refused)),
            latches: rows(bytes, offset_of!(Segment, latches), LATCHES, u64::MAX),
            sites: rows(bytes, offset_of!(Segment, sites), SITES, (1 << 60) - 1),
            chains: chains(&bytes[offset_of!(Segment, chains)..][..CHAINS * size_of::<Chain>()]),
            maps: mappings(&bytes[text_at..text_at + length as usize]),
        })
    }

    /// Returns the number of acquisitions.
    pub fn acquisitions(&self) -> u64 {
        self.latches.iter().fold(self.lost_latches, |sum, row| sum.saturating_add(row.acquisitions))
    }

    /// Returns whether `address` lies on the first thread's stack, which may have grown since it
    /// was seen.
    pub fn is_on_stack(&self, address: u64) -> bool {
        let grown = |m: &Mapping| m.start.saturating_sub(STACK_GROWS)..m.end;
        let is_stack = |m: &&Mapping| m.path.as_bytes() == maps::STACK;
        self.maps.iter().filter(is_stack).any(|stack| grown(stack).contains(&address))
    }

    /// Returns the code file around `address`, and the offset in it.
    pub fn place(&self, address: u64) -> Option<(&Mapping, u64)> {
        let mapping = self.maps.iter().find(|m| (m.start..m.end).contains(&address))?;
        Some((mapping, (address - mapping.start).checked_add(mapping.offset)?))
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map_or(0, u64::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].try_into().map_or(0, u32::from_ne_bytes)
}

/// Text up to its first zero byte, with invalid characters and terminal controls replaced.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end])
        .chars()
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect()
}

fn rows(bytes: &[u8], at: usize, count: usize, address: u64) -> Vec<Row> {
    let entries = bytes[at..at + count * size_of::<Entry>()].chunks_exact(size_of::<Entry>());
    entries.filter_map(|entry| row(entry, address)).collect()
}

/// The row in an entry; none if it is unused or invalid.
fn row(entry: &[u8], address: u64) -> Option<Row> {
    let word = |at| u64_at(entry, at);
    let key = word(offset_of!(Entry, key));
    if key == 0 {
        return None;
    }
    let class = Class::from_number(word(offset_of!(Entry, class)) as u32)?;
    let mut waits = [0; BUCKETS];
    for (bucket, n) in waits.iter_mut().enumerate() {
        *n = u32_at(entry, offset_of!(Entry, waits) + 4 * bucket);
    }
    let acquisitions = word(offset_of!(Entry, acquisitions));
    Some(Row {
        address: key & address,
        class,
        acquisitions,
        // The two are written one after the other.
        contended: word(offset_of!(Entry, contended)).min(acquisitions),
        wait_total: word(offset_of!(Entry, wait_total)),
        wait_max: word(offset_of!(Entry, wait_max)),
        peer: word(offset_of!(Entry, peer)),
        first_seen: word(offset_of!(Entry, first_seen)),
        first_caller: word(offset_of!(Entry, first_caller)),
        peer_holder: Place::from_word(word(offset_of!(Entry, peer_holder))),
        blocked: word(offset_of!(Entry, blocked)),
        blocked_total: word(offset_of!(Entry, blocked_total)),
        waits,
    })
}

/// The complete chains.
fn chains(bytes: &[u8]) -> Vec<Stack> {
    let all = bytes.chunks_exact(size_of::<Chain>()).enumerate();
    all.filter_map(|(index, chain)| {
        let word = |at| u64_at(chain, at);
        let mut row = row(chain, u64::MAX)?;
        row.address = word(offset_of!(Chain, caller));
        let length = word(offset_of!(Chain, length)).min(STACK as u64) as usize;
        let words = (0..length).map(|n| word(offset_of!(Chain, stack) + 8 * n)).collect();
        let (sp, fp) = (word(offset_of!(Chain, sp)), word(offset_of!(Chain, fp)));
        (length > 0).then_some(Stack { index, row, sp, fp, words })
    })
    .collect()
}

/// The lines `START-END OFFSET PATH`; invalid lines are skipped.
fn mappings(bytes: &[u8]) -> Vec<Mapping> {
    fn number(text: &str) -> Option<u64> {
        u64::from_str_radix(text, 16).ok()
    }
    let lines = bytes.split(|b| *b == b'\n').map(text);
    lines
        .filter_map(|line| {
            let mut parts = line.splitn(3, ' ');
            let (start, end) = parts.next()?.split_once('-')?;
            let (start, end) = (number(start)?, number(end)?);
            let offset = number(parts.next()?)?;
            let path = parts.next()?.to_owned();
            (start < end).then_some(Mapping { start, end, offset, path })
        })
        .collect()
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;

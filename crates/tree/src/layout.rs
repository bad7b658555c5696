//! The meaning of each word of a page.
//!
//! ```text
//!  word  63                48 47             32 31             16 15      8 7       0
//!  0     the pool's: CRC32C and page number
//!  1     the pool's: LSN of the last change
//!  2    │ prefix, bytes      │ count           │ flags           │ level   │ kind    │
//!  3    │ heap, first word   │ right sibling, 48 bits                                │
//!  4    │ high, bytes        │ high, word      │ low, bytes      │ low, word         │
//!  5    │ 0                  │ 0               │ changes        │ dead words        │
//!  6     first child of an inner page
//!  7     skip: how many bytes all suffixes begin with alike, at least
//!  8 ..  slots, one for each record, in the order of keys
//!  ..    free
//!  heap  records and fences
//!
//!  slot │ head: 4 bytes of suffix from skip │ ghost │ suffix, bytes │ record, word │
//!
//!  leaf record    header: slot 16 │ LSN 48      length 16 │ capacity 16 │ 0     suffix, value
//!  inner record   child, 48 bits                suffix
//! ```
//!
//! All keys of a page begin with the bytes that its two fences have in common, so records omit them
//! (prefix truncation); the rest of a key is its *suffix*. A slot contains the first bytes in which
//! suffixes of the page differ (poor man's normalized keys: Graefe and Larson, ICDE 2001), so most
//! steps of a search load one word. The first suffix has the bytes before those.
//!
//! Records are packed from the end of the page downwards. An abandoned record is *dead* until the
//! page is compacted. A value may be shorter than its capacity, so that the longer value that it
//! replaced can be restored in place. When no transaction can restore it, a full leaf reuses that
//! room. A *ghost* is a deleted record that still exists.

use core::fmt;

use crate::words::Page;

/// The word at which slots begin.
pub(crate) const SLOTS: usize = 8;
pub(crate) const KIND: usize = 2;
pub(crate) const RIGHT: usize = 3;
pub(crate) const FENCES: usize = 4;
pub(crate) const DEAD: usize = 5;
pub(crate) const FIRST: usize = 6;
pub(crate) const SKIP: usize = 7;
/// Words of a record before its bytes.
pub(crate) const LEAF_WORDS: usize = 2;
pub(crate) const INNER_WORDS: usize = 1;
/// Words of a cache line.
pub(crate) const LINE_WORDS: usize = 8;
/// `high, bytes` where there is no upper fence.
pub(crate) const NO_FENCE: usize = 0xffff;
pub(crate) const GHOST: u64 = 1 << 31;
pub(crate) const PAGE_NUMBERS: u64 = 1 << 48;

/// In `flags`: the right sibling is not in the parent yet.
pub(crate) const INCOMPLETE: u64 = 1;

const _: () = assert!(SLOTS * 8 == 64);

/// The kind of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Keys and values.
    Leaf,
    /// Keys and children.
    Inner,
}

impl Kind {
    pub(crate) const fn code(self) -> u64 {
        match self {
            Self::Leaf => 1,
            Self::Inner => 2,
        }
    }

    pub(crate) const fn of(code: u64) -> Option<Self> {
        match code {
            1 => Some(Self::Leaf),
            2 => Some(Self::Inner),
            _ => None,
        }
    }

    pub(crate) const fn record_words(self) -> usize {
        match self {
            Self::Leaf => LEAF_WORDS,
            Self::Inner => INNER_WORDS,
        }
    }
}

/// The last writer of a record: the thread slot of its transaction, and the LSN of the log record.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Header(u64);

impl Header {
    /// No writer: older than every transaction.
    pub const NONE: Self = Self(0);

    /// Creates a header from a slot and an LSN, which is a multiple of 16 below 2^52.
    pub const fn new(slot: u16, lsn: u64) -> Self {
        Self((slot as u64) << 48 | (lsn >> 4) & (PAGE_NUMBERS - 1))
    }

    /// Returns the thread slot.
    pub const fn slot(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// Returns the LSN.
    pub const fn lsn(self) -> u64 {
        (self.0 & (PAGE_NUMBERS - 1)) << 4
    }

    /// Returns it as a word of memory.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Creates it from a word of memory.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header").field("slot", &self.slot()).field("lsn", &self.lsn()).finish()
    }
}

/// Limits of keys and records, by page size.
///
/// Two records and both fences always fit, so a full page can always be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a key: 1,890 in a page of 8 KiB.
    pub key: usize,
    /// Bytes of key and value together: 2,016 in a page of 8 KiB.
    pub record: usize,
}

impl Limits {
    /// Returns the limits of pages with `words` words: 64 (512 bytes) to 8,192 (64 KiB).
    pub const fn of(words: usize) -> Self {
        let record = (words.saturating_sub(SLOTS) / 4 * 8).saturating_sub(LEAF_WORDS * 8);
        Self { key: record - record / 16, record }
    }
}

/// A page that has changed this often since it was logged whole is logged whole again, which bounds
/// the log that a rebuild reads.
pub(crate) const CHANGES_MAX: u64 = 512;

/// Upper bound of the bytes of a log record without the keys and values of its change.
pub(crate) const RECORD_BYTES: u64 = 256;

/// The smallest page, and the largest, in words.
pub(crate) const SMALLEST: usize = 64;
pub(crate) const LARGEST: usize = 8192;

/// The word with the kind of a page, decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word2 {
    pub(crate) kind: Kind,
    pub(crate) level: u8,
    pub(crate) flags: u64,
    pub(crate) count: usize,
    pub(crate) prefix: usize,
}

impl Word2 {
    #[inline]
    pub(crate) fn of(word: u64) -> Option<Self> {
        Some(Self {
            kind: Kind::of(word & 0xff)?,
            level: (word >> 8) as u8,
            flags: word >> 16 & 0xffff,
            count: (word >> 32 & 0xffff) as usize,
            prefix: (word >> 48) as usize,
        })
    }

    pub(crate) fn word(self) -> u64 {
        self.kind.code()
            | u64::from(self.level) << 8
            | self.flags << 16
            | (self.count as u64) << 32
            | (self.prefix as u64) << 48
    }
}

/// A decoded slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) at: usize,
    pub(crate) suffix: usize,
    pub(crate) ghost: bool,
    pub(crate) head: u32,
}

impl Slot {
    #[inline(always)]
    pub(crate) fn of(word: u64) -> Self {
        Self {
            at: (word & 0xffff) as usize,
            suffix: (word >> 16 & 0x7fff) as usize,
            ghost: word & GHOST != 0,
            head: (word >> 32) as u32,
        }
    }

    pub(crate) fn word(self) -> u64 {
        self.at as u64
            | (self.suffix as u64) << 16
            | if self.ghost { GHOST } else { 0 }
            | u64::from(self.head) << 32
    }
}

/// Returns how often a page has changed since it was logged whole.
pub(crate) fn changes<P: Page + ?Sized>(page: &P) -> u64 {
    page.word(DEAD).unwrap_or(0) >> 16 & 0xffff
}

/// The position of a fence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fence {
    pub(crate) at: usize,
    pub(crate) length: usize,
}

/// Returns both fences; the upper one may be missing.
pub(crate) fn fences<P: Page + ?Sized>(page: &P) -> Option<(Fence, Option<Fence>)> {
    let word = page.word(FENCES)?;
    let part = |shift: u32| (word >> shift & 0xffff) as usize;
    let low = Fence { at: part(0), length: part(16) };
    let high = Fence { at: part(32), length: part(48) };
    Some((low, (high.length != NO_FENCE).then_some(high)))
}

/// Returns the first 4 bytes of a suffix.
#[inline(always)]
pub(crate) fn head(suffix: &[u8]) -> u32 {
    (crate::words::ordered(suffix) >> 32) as u32
}

//! A record: seven words of header, a payload, zeros up to a multiple of 16 bytes.
//!
//! ```text
//! word   63            48 47      40 39       32 31                             0
//!  0    | slot           | flags    | kind      | bytes of header and payload   |
//!  1    | its own LSN                                                           |
//!  2    | prev: the LSN of this transaction's record before; in a CLR, of what is undone next |
//!  3    | page 48                                              | durable, high 16 |
//!  4    | page_prev: the LSN that the page had                                  |
//!  5    | durable, low 16 | older: an LSN in units of 16 bytes, 48               |
//!  6    | aux                                | CRC32C                           |
//! ```
//!
//! All is little-endian. The checksum is over all of the record, with zeros for word 1 and for
//! itself, begun with the log's identity: so it is computed before the record has a place. Word 1
//! must be the record's place, so the bytes of a recycled segment never pass for a record.
//!
//! `durable` is up to where the log was durable when the record was built, in units of 16 bytes,
//! its low 32 bits: so recovery tells damage from the log's end as soon as one record behind it
//! is there. Zero says nothing.

use core::fmt;

use latchwork_disk::crc32c_append;

/// Bytes of the header.
pub(crate) const HEADER: usize = 56;
/// Records begin at multiples of this.
pub const UNIT: u64 = 16;
/// The largest record of any log.
pub const RECORD_MAX: usize = 1 << 20;

/// A place in the log: bytes since its creation, a multiple of 16. Zero is never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// No place.
    pub const NEVER: Self = Self(0);
    /// Where the first record of a log is.
    pub const FIRST: Self = Self(64);
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Marks of a record. Bits that have no name here are the user's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// The last record of its transaction, which commits with it.
    pub const LAST: Self = Self(1);
    /// Holds the page as it was before.
    pub const IMAGE: Self = Self(2);
    /// Belongs to no transaction and is never undone.
    pub const SYSTEM: Self = Self(4);
    /// Undoes another record.
    pub const CLR: Self = Self(8);

    /// Whether all marks of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl core::ops::BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What the header of a record says, but for what the log itself sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// What the payload is; the user's.
    pub kind: u8,
    /// Marks.
    pub flags: Flags,
    /// The transaction's record before; in a CLR, of what is undone next.
    pub prev: Lsn,
    /// The page that changes; 48 bits.
    pub page: u64,
    /// The LSN that the page had.
    pub page_prev: Lsn,
    /// An LSN that leads to an older version.
    pub older: Lsn,
    /// The user's.
    pub aux: u32,
}

/// The least that is set aside with a record.
pub const ASIDE_LEAST: u64 = 128;

/// A record built by one thread, to be appended: the checksum is there, the place is not.
#[derive(Clone, Debug, Default)]
pub struct Record {
    bytes: Vec<u8>,
    /// Bytes that are set aside with it.
    pub(crate) aside: u64,
}

/// A record as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place.
    pub lsn: Lsn,
    /// The thread slot that appended it.
    pub slot: u16,
    /// Up to where the log was durable when it was built; [`Lsn::NEVER`] if that is not known.
    pub durable: Lsn,
    /// What its header says.
    pub head: Head,
    /// Its payload.
    pub payload: Vec<u8>,
}

impl Entry {
    /// Where the record after it begins.
    pub fn next(&self) -> Lsn {
        Lsn(self.lsn.0 + Record::size(self.payload.len()) as u64)
    }
}

/// A record as it lies in memory that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryView<'b> {
    /// Its place.
    pub lsn: Lsn,
    /// The thread slot that appended it.
    pub slot: u16,
    /// Up to where the log was durable when it was built; [`Lsn::NEVER`] if that is not known.
    pub durable: Lsn,
    /// What its header says.
    pub head: Head,
    /// Its payload.
    pub payload: &'b [u8],
}

impl EntryView<'_> {
    /// Where the record after it begins.
    pub(crate) fn next(&self) -> Lsn {
        Lsn(self.lsn.0 + Record::size(self.payload.len()) as u64)
    }

    /// The record by itself.
    pub(crate) fn to_entry(self) -> Entry {
        let Self { lsn, slot, durable, head, payload } = self;
        Entry { lsn, slot, durable, head, payload: payload.to_vec() }
    }
}

impl Record {
    /// How many bytes a record with so much payload has in the log.
    pub const fn size(payload: usize) -> usize {
        (HEADER + payload).next_multiple_of(UNIT as usize)
    }

    /// How many bytes it has in the log.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Makes it another record, in the memory that it has. None if that would be larger than
    /// [`RECORD_MAX`] or a field has too many bits; then it is as it was.
    pub(crate) fn rebuild(
        &mut self,
        seed: u32,
        slot: u32,
        durable: Lsn,
        head: &Head,
        payload: &[&[u8]],
    ) -> Option<()> {
        let length = payload.iter().map(|part| part.len()).sum::<usize>();
        let fits = length <= RECORD_MAX - HEADER
            && slot < 1 << 16
            && head.page < 1 << 48
            && head.older.0.is_multiple_of(UNIT)
            && head.older.0 / UNIT < 1 << 48;
        if !fits {
            return None;
        }
        self.bytes.clear();
        self.aside = 0;
        let total = (HEADER + length) as u64;
        let durable = u64::from((durable.0 / UNIT) as u32);
        let words = [
            total
                | u64::from(head.kind) << 32
                | u64::from(head.flags.0) << 40
                | u64::from(slot) << 48,
            0,
            head.prev.0,
            head.page << 16 | durable >> 16,
            head.page_prev.0,
            (head.older.0 / UNIT) | durable << 48,
            u64::from(head.aux) << 32,
        ];
        self.bytes.extend_from_slice(words.map(u64::to_le_bytes).as_flattened());
        payload.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.bytes.resize(Self::size(length), 0);
        let crc = crc32c_append(seed, &self.bytes);
        self.bytes[48..52].copy_from_slice(&crc.to_le_bytes());
        Some(())
    }

    /// Gives it its place.
    pub(crate) fn place(&mut self, lsn: u64) {
        self.bytes[8..16].copy_from_slice(&lsn.to_le_bytes());
    }

    /// Its words.
    pub(crate) fn words(&self) -> &[[u8; 8]] {
        self.bytes.as_chunks().0
    }

    /// The slot that it names.
    pub(crate) fn slot(&self) -> u32 {
        (self.first() >> 48) as u32
    }

    fn first(&self) -> u64 {
        word_of(&self.bytes, 0)
    }

    /// Sets so many bytes of the log aside with it, for the record that undoes it; at least
    /// [`ASIDE_LEAST`](crate::ASIDE_LEAST). There is credit for both. Nothing is set aside for a
    /// record that commits, or is [`SYSTEM`](Flags::SYSTEM).
    pub fn set_aside(&mut self, bytes: u64) {
        self.aside = if self.is_last() || self.is_system() || bytes == 0 {
            0
        } else {
            bytes.max(ASIDE_LEAST)
        };
    }

    pub(crate) fn is_last(&self) -> bool {
        Flags((self.first() >> 40) as u8).has(Flags::LAST)
    }

    pub(crate) fn is_system(&self) -> bool {
        Flags((self.first() >> 40) as u8).has(Flags::SYSTEM)
    }
}

/// The word at byte `at`, zero beyond the end.
pub(crate) fn word_of(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..at + 8).and_then(|found| found.try_into().ok());
    found.map_or(0, u64::from_le_bytes)
}

/// Over all bytes, those of the LSN and of the checksum itself taken for zeros.
fn checksum(seed: u32, bytes: &[u8]) -> u32 {
    let (header, payload) = bytes.split_at(HEADER);
    let mut summed = [0; HEADER];
    summed.copy_from_slice(header);
    summed[8..16].fill(0);
    summed[48..52].fill(0);
    crc32c_append(crc32c_append(seed, &summed), payload)
}

/// How many bytes of the log a record takes, by its first word; none if no record begins so.
pub(crate) fn extent(first: u64) -> Option<usize> {
    let total = (first & 0xffff_ffff) as usize;
    (HEADER..=RECORD_MAX).contains(&total).then(|| total.next_multiple_of(UNIT as usize))
}

/// The same of a record that begins at `lsn` with these bytes, two words at least. Its place is
/// looked at first: what is no record may have any length.
pub(crate) fn extent_at(lsn: Lsn, start: &[u8]) -> Option<usize> {
    if word_of(start, 8) == lsn.0 { extent(word_of(start, 0)) } else { None }
}

/// The record that begins at `lsn` and has exactly these bytes; none if they are not one.
pub(crate) fn decode(seed: u32, lsn: Lsn, bytes: &[u8]) -> Option<Entry> {
    decode_view(seed, lsn, bytes).map(EntryView::to_entry)
}

/// The same, where it lies.
pub(crate) fn decode_view(seed: u32, lsn: Lsn, bytes: &[u8]) -> Option<EntryView<'_>> {
    let view = decode_unsummed(lsn, bytes)?;
    (word_of(bytes, 48) as u32 == checksum(seed, bytes)).then_some(view)
}

/// The record that these bytes are by length and place; they may be damaged.
pub(crate) fn decode_unsummed(lsn: Lsn, bytes: &[u8]) -> Option<EntryView<'_>> {
    let first = word_of(bytes, 0);
    if extent_at(lsn, bytes)? != bytes.len() {
        return None;
    }
    let (place, old) = (word_of(bytes, 24), word_of(bytes, 40));
    let total = (first & 0xffff_ffff) as usize;
    let durable = (place as u32) << 16 | (old >> 48) as u32;
    Some(EntryView {
        lsn,
        slot: (first >> 48) as u16,
        durable: durable_before(lsn, durable),
        head: Head {
            kind: (first >> 32) as u8,
            flags: Flags((first >> 40) as u8),
            prev: Lsn(word_of(bytes, 16)),
            page: place >> 16,
            page_prev: Lsn(word_of(bytes, 32)),
            older: Lsn((old & ((1 << 48) - 1)) * UNIT),
            aux: (word_of(bytes, 48) >> 32) as u32,
        },
        payload: &bytes[HEADER..total],
    })
}

/// The last place up to `lsn` whose low bits these are; none for zero. 32 bits of 16 bytes are 64
/// GiB of log: a record that lies farther behind what was durable says zero.
fn durable_before(lsn: Lsn, low: u32) -> Lsn {
    let at = lsn.0 / UNIT;
    let behind = u64::from((at as u32).wrapping_sub(low));
    if low == 0 { Lsn::NEVER } else { Lsn(at.saturating_sub(behind) * UNIT) }
}

//! A record: seven words of header, a payload, zeros up to a multiple of 16 bytes.
//!
//! ```text
//! word   63            48 47      40 39       32 31                             0
//!  0    | slot           | flags    | kind      | bytes of header and payload   |
//!  1    | its own LSN                                                           |
//!  2    | prev: the LSN of this transaction's record before; in a CLR, of the next one to undo |
//!  3    | page 48                                              | durable, high 16 |
//!  4    | page_prev: the LSN that the page had                                  |
//!  5    | durable, low 16 | older: an LSN in units of 16 bytes, 48               |
//!  6    | aux                                | CRC32C                           |
//! ```
//!
//! All words are little-endian. The checksum starts with the log's identity and covers the whole
//! record, with zeros for word 1 and for itself. It is therefore computed before the record has a
//! place. Word 1 must equal the record's place, so the bytes of a recycled segment never pass for a
//! record.
//!
//! `durable` is the place up to which the log was durable when the record was built: the low 32
//! bits, in units of 16 bytes. With it, recovery distinguishes damage from the end of the log as
//! soon as one later record exists. Zero states nothing.

use core::fmt;

use latchwork_disk::crc32c_append;

/// Bytes of the header.
pub(crate) const HEADER: usize = 56;
/// The alignment of records in bytes.
pub const UNIT: u64 = 16;
/// The maximum size of a record in any log, in bytes.
pub const RECORD_MAX: usize = 1 << 20;

/// A place in the log: bytes since its creation, a multiple of 16. Zero is no place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// No place.
    pub const NEVER: Self = Self(0);
    /// The place of the first record of a log.
    pub const FIRST: Self = Self(64);
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Flags of a record. Bits without a name here belong to the user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// The last record of its transaction, which commits with it.
    pub const LAST: Self = Self(1);
    /// Holds the former contents of the page.
    pub const IMAGE: Self = Self(2);
    /// Belongs to no transaction and is never undone.
    pub const SYSTEM: Self = Self(4);
    /// Undoes another record (compensation log record).
    pub const CLR: Self = Self(8);
    /// Fills the place of a record whose thread was killed before the record was in the log, or
    /// stopped before it began to copy. Scans skip it.
    pub const VOID: Self = Self(16);

    /// Returns whether all flags of `other` are set.
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

/// The fields of a record's header that the user sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The kind of the payload, defined by the user.
    pub kind: u8,
    /// The flags.
    pub flags: Flags,
    /// The previous record of the transaction; in a CLR, the next record to undo.
    pub prev: Lsn,
    /// The page that changes; 48 bits.
    pub page: u64,
    /// The LSN that the page had before the change.
    pub page_prev: Lsn,
    /// An LSN that leads to an older version.
    pub older: Lsn,
    /// A value defined by the user.
    pub aux: u32,
}

/// The minimum number of bytes that is set aside with a record.
pub const ASIDE_LEAST: u64 = 128;

/// A record built by one thread, before it is appended: it has its checksum, but no place.
#[derive(Clone, Debug, Default)]
pub struct Record {
    bytes: Vec<u8>,
    /// Bytes that are set aside with it.
    pub(crate) aside: u64,
}

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The place of the record.
    pub lsn: Lsn,
    /// The thread slot that appended it.
    pub slot: u16,
    /// The place up to which the log was durable when the record was built; [`Lsn::NEVER`] if
    /// unknown.
    pub durable: Lsn,
    /// The header of the record.
    pub head: Head,
    /// The payload of the record.
    pub payload: Vec<u8>,
}

impl Entry {
    /// Returns whether the record fills the place of a record that is not in the log.
    pub(crate) fn is_void(&self) -> bool {
        self.head.flags.has(Flags::VOID)
    }

    /// Returns where the next record begins.
    pub fn next(&self) -> Lsn {
        Lsn(self.lsn.0 + Record::size(self.payload.len()) as u64)
    }
}

/// A record in memory that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryView<'b> {
    /// The place of the record.
    pub lsn: Lsn,
    /// The thread slot that appended it.
    pub slot: u16,
    /// The place up to which the log was durable when the record was built; [`Lsn::NEVER`] if
    /// unknown.
    pub durable: Lsn,
    /// The header of the record.
    pub head: Head,
    /// The payload of the record.
    pub payload: &'b [u8],
}

impl EntryView<'_> {
    /// Returns where the next record begins.
    pub(crate) fn next(&self) -> Lsn {
        Lsn(self.lsn.0 + Record::size(self.payload.len()) as u64)
    }

    /// Copies the record into an owned entry.
    pub(crate) fn to_entry(self) -> Entry {
        let Self { lsn, slot, durable, head, payload } = self;
        Entry { lsn, slot, durable, head, payload: payload.to_vec() }
    }
}

impl Record {
    /// Returns how many bytes of the log a record with `payload` bytes of payload takes.
    pub const fn size(payload: usize) -> usize {
        (HEADER + payload).next_multiple_of(UNIT as usize)
    }

    /// Returns how many bytes of the log the record takes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Turns this into another record, in the same memory. Returns `None` if that would be larger
    /// than [`RECORD_MAX`] or a field has too many bits; then the record is unchanged.
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

    /// Creates a void record of `bytes` bytes. Returns `None` if no record has that size.
    pub(crate) fn void(seed: u32, slot: u32, bytes: usize) -> Option<Self> {
        let zeros = bytes.checked_sub(HEADER).filter(|_| bytes <= RECORD_MAX)?;
        let (mut record, zeros) = (Self::default(), vec![0; zeros]);
        let head = Head { flags: Flags::VOID | Flags::SYSTEM, ..Head::default() };
        record.rebuild(seed, slot, Lsn::NEVER, &head, &[&zeros])?;
        (record.bytes() == bytes).then_some(record)
    }

    /// Stores the record's place in it.
    pub(crate) fn place(&mut self, lsn: u64) {
        self.bytes[8..16].copy_from_slice(&lsn.to_le_bytes());
    }

    /// Returns the words of the record.
    pub(crate) fn words(&self) -> &[[u8; 8]] {
        self.bytes.as_chunks().0
    }

    /// Returns the slot that the record names.
    pub(crate) fn slot(&self) -> u32 {
        (self.first() >> 48) as u32
    }

    fn first(&self) -> u64 {
        word_of(&self.bytes, 0)
    }

    /// Sets `bytes` of the log aside with the record, for the record that undoes it, but at least
    /// [`ASIDE_LEAST`](crate::ASIDE_LEAST). The append needs credit for both. Nothing is set aside
    /// for a record that commits or is [`SYSTEM`](Flags::SYSTEM).
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

/// Returns the word at byte `at`; zero beyond the end.
pub(crate) fn word_of(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..at + 8).and_then(|found| found.try_into().ok());
    found.map_or(0, u64::from_le_bytes)
}

/// Computes the checksum over all bytes, with zeros for the LSN and the checksum itself.
fn checksum(seed: u32, bytes: &[u8]) -> u32 {
    let (header, payload) = bytes.split_at(HEADER);
    let mut summed = [0; HEADER];
    summed.copy_from_slice(header);
    summed[8..16].fill(0);
    summed[48..52].fill(0);
    crc32c_append(crc32c_append(seed, &summed), payload)
}

/// Returns how many bytes of the log a record takes, from its first word; `None` if no record
/// begins with this word.
pub(crate) fn extent(first: u64) -> Option<usize> {
    let total = (first & 0xffff_ffff) as usize;
    (HEADER..=RECORD_MAX).contains(&total).then(|| total.next_multiple_of(UNIT as usize))
}

/// Returns how many bytes of the log the record takes that begins at `lsn` with these bytes, at
/// least two words. The place is compared first: other bytes may state any length.
pub(crate) fn extent_at(lsn: Lsn, start: &[u8]) -> Option<usize> {
    if word_of(start, 8) == lsn.0 { extent(word_of(start, 0)) } else { None }
}

/// Decodes the record that begins at `lsn` and has exactly these bytes; `None` if they are no
/// record.
pub(crate) fn decode(seed: u32, lsn: Lsn, bytes: &[u8]) -> Option<Entry> {
    decode_view(seed, lsn, bytes).map(EntryView::to_entry)
}

/// Decodes the record without copying it.
pub(crate) fn decode_view(seed: u32, lsn: Lsn, bytes: &[u8]) -> Option<EntryView<'_>> {
    let view = decode_unsummed(lsn, bytes)?;
    (word_of(bytes, 48) as u32 == checksum(seed, bytes)).then_some(view)
}

/// Decodes the record by length and place alone. It may be damaged.
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

/// Returns the last place up to `lsn` that has these low bits; [`Lsn::NEVER`] for zero. 32 bits of
/// 16 bytes are 64 GiB of log: a record that lies farther after the durable place states zero.
fn durable_before(lsn: Lsn, low: u32) -> Lsn {
    let at = lsn.0 / UNIT;
    let behind = u64::from((at as u32).wrapping_sub(low));
    if low == 0 { Lsn::NEVER } else { Lsn(at.saturating_sub(behind) * UNIT) }
}

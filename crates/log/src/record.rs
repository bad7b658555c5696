//! A record: a header of 26 to 55 bytes, a payload, zeros up to a multiple of 16 bytes.
//!
//! ```text
//! byte   63            48 47      40 39       32 31 30                          0
//!  0    | slot           | flags    | kind      | 1 | bytes of header and payload |
//!  8    | durable, low   | its own LSN                                           |
//! 16    |                | durable, high         | CRC32C                        |
//! 22    aux, page, page_prev, prev, and with the flag `LAST` older: numbers
//! ```
//!
//! | number | content |
//! |---|---|
//! | page_prev | the LSN that the page had |
//! | prev | the LSN of this transaction's record before; in a CLR, of the next one to undo |
//! | older | an LSN that leads to an older record |
//!
//! All words are little-endian, and LSNs are in units of 16 bytes. A number of 7 `k` bits has `k`
//! bytes: its bits follow the lowest set bit of the first byte, which is bit `k - 1`.
//!
//! The checksum starts with the log's identity and covers the whole record, with zeros for its own
//! LSN and for itself. It is therefore computed before the record has a place. The LSN must equal
//! the record's place, so the bytes of a recycled segment never pass for a record.
//!
//! In formats 1 and 2 of the log, bit 31 of the first word is 0 and the header has 56 bytes:
//!
//! ```text
//!  8    | its own LSN, in bytes                                                 |
//! 16    | prev, in bytes                                                        |
//! 24    | page 48                                              | durable, high 16 |
//! 32    | page_prev, in bytes                                                   |
//! 40    | durable, low 16 | older                                                |
//! 48    | aux                                | CRC32C                           |
//! ```
//!
//! `durable` is the place up to which the log was durable when the record was built: the low 32
//! bits, in units of 16 bytes. With it, recovery distinguishes damage from the end of the log as
//! soon as one later record exists. Zero states nothing.

use core::fmt;

use latchwork_disk::crc32c_append;

/// Bytes of the header before the numbers; with four numbers, each of one byte; the most; and in
/// formats 1 and 2.
const FIXED: usize = 22;
const HEADER: usize = 26;
const HEADER_MOST: usize = 55;
const HEADER_LONG: usize = 56;
/// In the length of a record: the header is not that of formats 1 and 2.
const SHORT: u64 = 1 << 31;
/// The bits of an LSN in units of 16 bytes.
const PLACE: u64 = (1 << 48) - 1;
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
    /// An LSN that leads to an older record. Only a record with [`Flags::LAST`] has it.
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
    next: Lsn,
}

impl Entry {
    /// Returns whether the record fills the place of a record that is not in the log.
    pub(crate) fn is_void(&self) -> bool {
        self.head.flags.has(Flags::VOID)
    }

    /// Returns where the next record begins.
    pub fn next(&self) -> Lsn {
        self.next
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
    next: Lsn,
}

impl EntryView<'_> {
    /// Returns where the next record begins.
    pub(crate) fn next(&self) -> Lsn {
        self.next
    }

    /// Copies the record into an owned entry.
    pub(crate) fn to_entry(self) -> Entry {
        let Self { lsn, slot, durable, head, payload, next } = self;
        Entry { lsn, slot, durable, head, payload: payload.to_vec(), next }
    }
}

impl Record {
    /// Returns how many bytes of the log a record with `payload` bytes of payload takes at most.
    pub const fn size(payload: usize) -> usize {
        (HEADER_MOST + payload).next_multiple_of(UNIT as usize)
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
        let places = [head.page_prev, head.prev, head.older];
        let fits = slot < 1 << 16
            && head.page <= PLACE
            && places.iter().all(|at| at.0.is_multiple_of(UNIT) && at.0 / UNIT <= PLACE);
        let (mut front, header) = if fits { numbers(head) } else { return None };
        if length > RECORD_MAX - header {
            return None;
        }
        self.bytes.clear();
        self.aside = 0;
        let durable = u64::from((durable.0 / UNIT) as u32);
        let first = (header + length) as u64
            | SHORT
            | u64::from(head.kind) << 32
            | u64::from(head.flags.0) << 40
            | u64::from(slot) << 48;
        front[..8].copy_from_slice(&first.to_le_bytes());
        front[8..16].copy_from_slice(&(durable << 48).to_le_bytes());
        front[20..22].copy_from_slice(&((durable >> 16) as u16).to_le_bytes());
        self.bytes.extend_from_slice(&front);
        self.bytes.truncate(header);
        payload.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.bytes.resize((header + length).next_multiple_of(UNIT as usize), 0);
        let crc = crc32c_append(seed, &self.bytes);
        self.bytes[16..20].copy_from_slice(&crc.to_le_bytes());
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
        let word = word_of(&self.bytes, 8) & !PLACE | (lsn / UNIT);
        self.bytes[8..16].copy_from_slice(&word.to_le_bytes());
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

/// Encodes the numbers of a header in their place. Returns where they end.
fn numbers(head: &Head) -> ([u8; 64], usize) {
    let (mut bytes, mut at) = ([0; 64], FIXED);
    let mut put = |number: u64| {
        let count = 1 + (number | 1).ilog2() as usize / 7;
        let word = (2 * number + 1) << (count - 1);
        // A store of constant size; the next number overwrites what is too much.
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        at += count;
    };
    put(head.aux.into());
    put(head.page);
    put(head.page_prev.0 / UNIT);
    put(head.prev.0 / UNIT);
    if head.flags.has(Flags::LAST) {
        put(head.older.0 / UNIT);
    }
    (bytes, at)
}

/// Decodes the number at byte `at` and moves `at` behind it.
fn number(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let rest = bytes.get(*at..)?;
    let count = 1 + rest.first()?.trailing_zeros() as usize;
    let mut word = [0; 8];
    match rest.first_chunk() {
        Some(eight) if count <= 8 => word = *eight,
        _ => word.get_mut(..count)?.copy_from_slice(rest.get(..count)?),
    }
    *at += count;
    Some((u64::from_le_bytes(word) & u64::MAX >> (64 - 8 * count as u32)) >> count)
}

/// Returns the word at byte `at`; zero beyond the end.
pub(crate) fn word_of(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..at + 8).and_then(|found| found.try_into().ok());
    found.map_or(0, u64::from_le_bytes)
}

/// Computes the checksum over all bytes, with zeros for the LSN and the checksum itself.
fn checksum(seed: u32, bytes: &[u8], is_short: bool) -> u32 {
    let (front, place, sum) =
        if is_short { (HEADER, 8..14, 16..20) } else { (HEADER_LONG, 8..16, 48..52) };
    let (header, rest) = bytes.split_at(front);
    let mut summed = [0; HEADER_LONG];
    let summed = &mut summed[..front];
    summed.copy_from_slice(header);
    summed[place].fill(0);
    summed[sum].fill(0);
    crc32c_append(crc32c_append(seed, summed), rest)
}

/// Returns how many bytes of the log a record takes, from its first word; `None` if no record
/// begins with this word.
pub(crate) fn extent(first: u64) -> Option<usize> {
    let total = (first & 0xffff_ffff & !SHORT) as usize;
    let header = if first & SHORT == 0 { HEADER_LONG } else { HEADER };
    (header..=RECORD_MAX).contains(&total).then(|| total.next_multiple_of(UNIT as usize))
}

/// Returns how many bytes of the log the record takes that begins at `lsn` with these bytes, at
/// least two words. The place is compared first: other bytes may state any length.
pub(crate) fn extent_at(lsn: Lsn, start: &[u8]) -> Option<usize> {
    let (first, word) = (word_of(start, 0), word_of(start, 8));
    let own = if first & SHORT == 0 { Lsn(word) } else { place(word) };
    if own == lsn { extent(first) } else { None }
}

/// Decodes the record that begins at `lsn` and has exactly these bytes; `None` if they are no
/// record.
pub(crate) fn decode(seed: u32, lsn: Lsn, bytes: &[u8]) -> Option<Entry> {
    decode_view(seed, lsn, bytes).map(EntryView::to_entry)
}

/// Decodes the record without copying it.
pub(crate) fn decode_view(seed: u32, lsn: Lsn, bytes: &[u8]) -> Option<EntryView<'_>> {
    let view = decode_unsummed(lsn, bytes)?;
    let is_short = word_of(bytes, 0) & SHORT != 0;
    let sum = word_of(bytes, if is_short { 16 } else { 48 }) as u32;
    (sum == checksum(seed, bytes, is_short)).then_some(view)
}

/// Decodes the record by length and place alone. It may be damaged.
pub(crate) fn decode_unsummed(lsn: Lsn, bytes: &[u8]) -> Option<EntryView<'_>> {
    let first = word_of(bytes, 0);
    if extent_at(lsn, bytes)? != bytes.len() {
        return None;
    }
    let total = (first & 0xffff_ffff & !SHORT) as usize;
    let flags = Flags((first >> 40) as u8);
    let (head, durable, header) = if first & SHORT == 0 {
        decode_long(bytes)
    } else {
        decode_short(bytes, flags.has(Flags::LAST))?
    };
    Some(EntryView {
        lsn,
        slot: (first >> 48) as u16,
        durable: durable_before(lsn, durable),
        head: Head { kind: (first >> 32) as u8, flags, ..head },
        payload: bytes.get(header..total)?,
        next: Lsn(lsn.0 + bytes.len() as u64),
    })
}

/// Converts an LSN in units of 16 bytes; the upper bits of the word belong to another field.
fn place(word: u64) -> Lsn {
    Lsn((word & PLACE) * UNIT)
}

/// Decodes the header behind its first word: its fields, the low bits of the durable place, and its
/// length.
fn decode_short(bytes: &[u8], is_last: bool) -> Option<(Head, u32, usize)> {
    let mut at = FIXED;
    let mut next = || number(bytes, &mut at).filter(|number| *number <= PLACE);
    let head = Head {
        aux: u32::try_from(next()?).ok()?,
        page: next()?,
        page_prev: place(next()?),
        prev: place(next()?),
        older: if is_last { place(next()?) } else { Lsn::NEVER },
        ..Head::default()
    };
    let durable = word_of(bytes, 8) >> 48 | (word_of(bytes, 16) >> 32 & 0xffff) << 16;
    Some((head, durable as u32, at))
}

/// Decodes the header of formats 1 and 2.
fn decode_long(bytes: &[u8]) -> (Head, u32, usize) {
    let word = |at: usize| word_of(bytes, at);
    let head = Head {
        prev: Lsn(word(16)),
        page: word(24) >> 16,
        page_prev: Lsn(word(32)),
        older: place(word(40)),
        aux: (word(48) >> 32) as u32,
        ..Head::default()
    };
    (head, (word(24) as u32) << 16 | (word(40) >> 48) as u32, HEADER_LONG)
}

/// Returns the last place up to `lsn` that has these low bits; [`Lsn::NEVER`] for zero. 32 bits of
/// 16 bytes are 64 GiB of log: a record that lies farther after the durable place states zero.
fn durable_before(lsn: Lsn, low: u32) -> Lsn {
    let at = lsn.0 / UNIT;
    let behind = u64::from((at as u32).wrapping_sub(low));
    if low == 0 { Lsn::NEVER } else { Lsn(at.saturating_sub(behind) * UNIT) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record as formats 1 and 2 have it.
    fn long(seed: u32, lsn: Lsn, slot: u64, durable: u64, head: &Head, payload: &[u8]) -> Vec<u8> {
        let durable = (durable / UNIT) & 0xffff_ffff;
        let first = (HEADER_LONG + payload.len()) as u64
            | u64::from(head.kind) << 32
            | u64::from(head.flags.0) << 40
            | slot << 48;
        let words = [
            first,
            lsn.0,
            head.prev.0,
            head.page << 16 | durable >> 16,
            head.page_prev.0,
            (head.older.0 / UNIT) | durable << 48,
            u64::from(head.aux) << 32,
        ];
        let mut bytes = words.map(u64::to_le_bytes).as_flattened().to_vec();
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len().next_multiple_of(UNIT as usize), 0);
        let mut summed = bytes.clone();
        summed[8..16].fill(0);
        bytes[48..52].copy_from_slice(&crc32c_append(seed, &summed).to_le_bytes());
        bytes
    }

    fn heads() -> Vec<Head> {
        let most = Lsn(PLACE * UNIT);
        let full = Head {
            kind: 0xab,
            flags: Flags(0xff),
            prev: most,
            page: PLACE,
            page_prev: most,
            older: most,
            aux: u32::MAX,
        };
        let some = Head {
            kind: 1,
            flags: Flags::LAST,
            prev: Lsn(0x1234_5678_9ab0),
            page: 0xfedc_ba98_7654,
            page_prev: Lsn(0x0fed_cba9_8760),
            older: Lsn(0x1111_2222_3330),
            aux: 0x8765_4321,
        };
        vec![Head::default(), some, full, Head { flags: Flags::CLR, older: Lsn::NEVER, ..some }]
    }

    #[test]
    fn a_record_is_read_as_it_was_built() {
        let lsn = Lsn(0x4567_89ab_cde0);
        for (head, length) in heads().iter().flat_map(|head| (0..70).map(move |n| (head, n))) {
            let payload = vec![length as u8; length];
            let durable = Lsn(lsn.0 - 0x2_3456_7890);
            let mut record = Record::default();
            record.rebuild(7, 0xfedc, durable, head, &[&payload]).unwrap();
            record.place(16);
            record.place(lsn.0);
            let bytes = &record.bytes;
            assert_eq!(extent(word_of(bytes, 0)), Some(bytes.len()));
            assert!(bytes.len() <= Record::size(length) && record.slot() == 0xfedc);
            let old = long(7, lsn, 0xfedc, durable.0, head, &payload);
            for bytes in [bytes, &old] {
                let entry = decode(7, lsn, bytes).unwrap();
                assert_eq!((entry.lsn, entry.slot, entry.durable), (lsn, 0xfedc, durable));
                assert_eq!((entry.head, &entry.payload), (*head, &payload));
                assert_eq!(entry.next(), Lsn(lsn.0 + bytes.len() as u64));
                assert_eq!(decode(8, lsn, bytes), None, "another log");
                assert_eq!(decode(7, Lsn(lsn.0 + 16), bytes), None, "another place");
                for bit in 0..bytes.len() * 8 {
                    let mut damaged = bytes.clone();
                    damaged[bit / 8] ^= 1 << (bit % 8);
                    assert_eq!(decode(7, lsn, &damaged), None, "bit {bit}");
                }
            }
        }
    }

    #[test]
    fn fields_that_are_too_large_are_refused() {
        let build = |head: Head, length: usize| {
            let payload = vec![0; length];
            Record::default().rebuild(7, 0, Lsn::NEVER, &head, &[&payload])
        };
        assert!(build(Head::default(), RECORD_MAX - HEADER).is_some());
        assert!(build(Head::default(), RECORD_MAX - HEADER + 1).is_none());
        for bad in [Lsn(8), Lsn((PLACE + 1) * UNIT)] {
            assert!(build(Head { prev: bad, ..Head::default() }, 0).is_none());
            assert!(build(Head { page_prev: bad, ..Head::default() }, 0).is_none());
            assert!(build(Head { older: bad, ..Head::default() }, 0).is_none());
        }
        assert!(build(Head { page: PLACE + 1, ..Head::default() }, 0).is_none());
        for bytes in (32..400).step_by(16).chain([RECORD_MAX]) {
            assert_eq!(Record::void(7, 3, bytes).unwrap().bytes(), bytes);
        }
        assert!(Record::void(7, 3, 16).is_none());
    }
}

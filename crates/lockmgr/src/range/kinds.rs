//! The kinds of locks on ranges, and ranges of keys.

use core::ops::Bound;

use crate::Error;

/// The longest key, in bytes.
pub const KEY_MAX: usize = 2000;

/// The kind of a lock on a range: InnoDB's kinds, and one more.
///
/// A range has *records*, which are read or written, and *gaps* between them, into which records
/// are inserted. Held against wanted; `x` means wait:
///
/// | held | ReadRecord | WriteRecord | Gap | ReadNext | WriteNext | Intention | Insert |
/// |---|---|---|---|---|---|---|---|
/// | ReadRecord | | x | | | x | | x |
/// | WriteRecord | x | x | | x | x | | x |
/// | Gap | | | | | | x | x |
/// | ReadNext | | x | | | x | x | x |
/// | WriteNext | x | x | | x | x | x | x |
/// | Intention | | | | | | | |
/// | Insert | x | x | | x | x | | x |
///
/// So a gap lock never waits, and two gap locks never conflict (InnoDB, reference manual 8.4,
/// chapter 17.7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum RangeKind {
    /// Reads the records of the range.
    ReadRecord = 0,
    /// Writes the records of the range.
    WriteRecord = 1,
    /// Prevents other owners from inserting into the range.
    Gap = 2,
    /// `ReadRecord` and `Gap`: InnoDB's next-key lock, shared.
    ReadNext = 3,
    /// `WriteRecord` and `Gap`: InnoDB's next-key lock, exclusive.
    WriteNext = 4,
    /// Requests permission to insert: waits for the holders of the gap; once granted, blocks no
    /// request. For an owner that inserts and locks the record before any other owner can read it.
    Intention = 5,
    /// `Intention`, and from the same instant `WriteRecord` against all other owners. Between a
    /// granted `Intention` and a record lock another owner may scan the gap and miss the record;
    /// with this kind it cannot.
    Insert = 6,
}

impl RangeKind {
    /// All kinds, by number.
    pub const ALL: [Self; 7] = [
        Self::ReadRecord,
        Self::WriteRecord,
        Self::Gap,
        Self::ReadNext,
        Self::WriteNext,
        Self::Intention,
        Self::Insert,
    ];

    /// Returns whether a request for `wanted` waits while another owner holds this kind, on a
    /// common key.
    #[inline]
    pub fn stops(self, wanted: Self) -> bool {
        wanted.stopped_by() & self.bit() != 0
    }

    /// Returns whether this kind implies another: it blocks every kind that `other` blocks, and
    /// every kind that blocks `other` blocks it.
    pub fn covers(self, other: Self) -> bool {
        let stops = Self::ALL.iter().all(|wanted| self.stops(*wanted) || !other.stops(*wanted));
        stops && other.stopped_by() & !self.stopped_by() == 0
    }

    /// Returns whether this kind is for writers. [`release_reads`](crate::Owner::release_reads)
    /// releases all others, including gaps, which protect data that was read.
    pub fn is_write(self) -> bool {
        matches!(self, Self::WriteRecord | Self::WriteNext | Self::Intention | Self::Insert)
    }

    #[inline]
    pub(crate) fn bit(self) -> u32 {
        1 << self as u32
    }

    /// Returns the held kinds that block this one, as a mask.
    #[inline]
    pub(crate) fn stopped_by(self) -> u32 {
        const READS: u32 = 1 << 0 | 1 << 3;
        const WRITES: u32 = 1 << 1 | 1 << 4 | 1 << 6;
        const GAPS: u32 = 1 << 2 | 1 << 3 | 1 << 4;
        match self {
            Self::ReadRecord | Self::ReadNext => WRITES,
            Self::WriteRecord | Self::WriteNext => READS | WRITES,
            Self::Gap => 0,
            Self::Intention => GAPS,
            Self::Insert => READS | WRITES | GAPS,
        }
    }

    pub(crate) fn of(number: u32) -> Result<Self, Error> {
        Self::ALL.get(number as usize).copied().ok_or(Error::Foreign)
    }

    /// Returns its name in lower case.
    pub fn name(self) -> &'static str {
        ["read-record", "write-record", "gap", "read-next", "write-next", "intention", "insert"]
            [self as usize]
    }
}

/// A lock on a range of keys, in the report of a lock whose name is a ticket's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RangeInfo {
    /// The keyspace.
    pub keyspace: Vec<u8>,
    /// The kind of the lock.
    pub kind: RangeKind,
    /// The first key.
    pub from: Vec<u8>,
    /// The key before which the range ends, or `None` if it has no end.
    pub to: Option<Vec<u8>>,
    /// Whether its owner waits for this range, by waiting for a lock on another one.
    pub waiting: bool,
}

/// A range of keys, in the order of their bytes. Each end may be included, excluded or unbounded.
/// Without an upper bound the range extends beyond the last key, to InnoDB's supremum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange<'k> {
    /// Lower bound.
    pub from: Bound<&'k [u8]>,
    /// Upper bound.
    pub to: Bound<&'k [u8]>,
}

impl<'k> KeyRange<'k> {
    /// Returns the range of one key.
    pub fn key(key: &'k [u8]) -> Self {
        Self { from: Bound::Included(key), to: Bound::Included(key) }
    }

    /// Returns the range of all keys.
    pub fn all() -> Self {
        Self { from: Bound::Unbounded, to: Bound::Unbounded }
    }

    /// Returns the range from a key, included, to another, excluded.
    pub fn half_open(from: &'k [u8], to: &'k [u8]) -> Self {
        Self { from: Bound::Included(from), to: Bound::Excluded(to) }
    }

    /// Returns the range between two keys, both excluded: the gap between neighbours.
    pub fn between(from: &'k [u8], to: &'k [u8]) -> Self {
        Self { from: Bound::Excluded(from), to: Bound::Excluded(to) }
    }

    /// Returns the range from one key, excluded, to another, included: the range of a next-key lock
    /// on the second key.
    pub fn next_key(from: &'k [u8], to: &'k [u8]) -> Self {
        Self { from: Bound::Excluded(from), to: Bound::Included(to) }
    }

    /// Returns the range from a key, included, without an upper bound.
    pub fn at_least(from: &'k [u8]) -> Self {
        Self { from: Bound::Included(from), to: Bound::Unbounded }
    }

    /// Returns the range after a key, without an upper bound.
    pub fn after(from: &'k [u8]) -> Self {
        Self { from: Bound::Excluded(from), to: Bound::Unbounded }
    }
}

impl KeyRange<'_> {
    /// Returns whether another range begins where this one ends.
    pub(crate) fn meets(self, next: Self) -> Result<bool, Error> {
        Ok(Span::of(self)?.to.is_some_and(|to| Span::of(next).is_ok_and(|next| next.from == to)))
    }
}

/// A range in its stored form: from an included key to an excluded one, or to the end (`None`). The
/// successor of `k` is `k` and a zero byte, so every range has this form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from: Vec<u8>,
    pub(crate) to: Option<Vec<u8>>,
}

impl Span {
    pub(crate) fn of(range: KeyRange<'_>) -> Result<Self, Error> {
        let checked = |key: &[u8]| match key.len() {
            0..=KEY_MAX => Ok(key.to_vec()),
            length => Err(Error::Key(length)),
        };
        let after = |key: &[u8]| {
            let mut key = checked(key)?;
            key.push(0);
            Ok::<_, Error>(key)
        };
        let from = match range.from {
            Bound::Included(key) => checked(key)?,
            Bound::Excluded(key) => after(key)?,
            Bound::Unbounded => Vec::new(),
        };
        let to = match range.to {
            Bound::Included(key) => Some(after(key)?),
            Bound::Excluded(key) => Some(checked(key)?),
            Bound::Unbounded => None,
        };
        if to.as_ref().is_some_and(|to| *to <= from) {
            return Err(Error::EmptyRange);
        }
        Ok(Self { from, to })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_cover_the_kinds_that_they_imply() {
        use RangeKind::{Gap, Insert, Intention, ReadNext, ReadRecord, WriteNext, WriteRecord};
        assert!(RangeKind::ALL.iter().all(|kind| kind.covers(*kind)));
        assert!(WriteNext.covers(ReadNext) && WriteNext.covers(WriteRecord));
        assert!(ReadNext.covers(ReadRecord) && ReadNext.covers(Gap));
        assert!(Insert.covers(WriteRecord) && Insert.covers(Intention));
        assert!(!ReadNext.covers(WriteRecord) && !Gap.covers(ReadNext) && !WriteRecord.covers(Gap));
        assert!(!Intention.covers(Insert) && !WriteNext.covers(Insert));
    }

    #[test]
    fn ranges_meet_end_to_end() {
        let (ab, bc) = (KeyRange::half_open(b"a", b"b"), KeyRange::half_open(b"b", b"c"));
        assert_eq!((ab.meets(bc), bc.meets(ab)), (Ok(true), Ok(false)));
        assert_eq!(KeyRange::key(b"a").meets(KeyRange::after(b"a")), Ok(true));
        assert_eq!(KeyRange::all().meets(KeyRange::all()), Ok(false));
    }

    #[test]
    fn the_next_key_is_one_zero_longer() {
        let span = |range| Span::of(range).unwrap();
        assert_eq!(span(KeyRange::key(b"k")), span(KeyRange::half_open(b"k", b"k\0")));
        assert_eq!(span(KeyRange::all()), Span { from: vec![], to: None });
        assert_eq!(span(KeyRange::next_key(b"a", b"b")), span(KeyRange::half_open(b"a\0", b"b\0")));
        assert_eq!(span(KeyRange::after(b"a")).from, b"a\0");
        // No key lies between a key and its successor.
        assert_eq!(Span::of(KeyRange::between(b"a", b"a\0")), Err(Error::EmptyRange));
        assert_eq!(Span::of(KeyRange::half_open(b"b", b"a")), Err(Error::EmptyRange));
        let long = vec![7; KEY_MAX + 1];
        assert_eq!(Span::of(KeyRange::key(&long)), Err(Error::Key(KEY_MAX + 1)));
    }
}

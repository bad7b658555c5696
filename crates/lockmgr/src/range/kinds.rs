//! What a lock on a range of keys says, and on which keys.

use core::ops::Bound;

use crate::Error;

/// The longest key, in bytes.
pub const KEY_MAX: usize = 2000;

/// What a lock on a range says: InnoDB's kinds, and one more.
///
/// A range has *records*, which are read or written, and *gaps* between them, into which records
/// are inserted. Held against wanted, `x` waits:
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
/// So a gap lock never waits, and two of them never conflict (InnoDB, reference manual 8.4, chapter
/// 17.7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum RangeKind {
    /// Reads the records of the range.
    ReadRecord = 0,
    /// Writes the records of the range.
    WriteRecord = 1,
    /// Nobody else inserts into the range.
    Gap = 2,
    /// `ReadRecord` and `Gap`: InnoDB's next-key lock, shared.
    ReadNext = 3,
    /// `WriteRecord` and `Gap`: the same, exclusive.
    WriteNext = 4,
    /// Asks whether it may insert: waits for those who hold the gap, and once granted stops nobody.
    /// For an owner that inserts, and locks the record, before anybody else can look.
    Intention = 5,
    /// `Intention`, and from the same instant `WriteRecord`: for all others. Between a granted
    /// `Intention` and a record lock somebody may scan the gap and see nothing; here nobody can.
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

    /// Whether a request for `wanted` waits while another owner holds this, on a common key.
    #[inline]
    pub fn stops(self, wanted: Self) -> bool {
        wanted.stopped_by() & self.bit() != 0
    }

    /// Whether it says all that another says: it stops all that that stops, and was stopped by all
    /// that stops that.
    pub fn covers(self, other: Self) -> bool {
        let stops = Self::ALL.iter().all(|wanted| self.stops(*wanted) || !other.stops(*wanted));
        stops && other.stopped_by() & !self.stopped_by() == 0
    }

    /// Whether it is for one who writes. The others are given back by
    /// [`release_reads`](crate::Owner::release_reads), gaps among them: they protect what was read.
    pub fn is_write(self) -> bool {
        matches!(self, Self::WriteRecord | Self::WriteNext | Self::Intention | Self::Insert)
    }

    #[inline]
    pub(crate) fn bit(self) -> u32 {
        1 << self as u32
    }

    /// The held kinds that stop this one, as a mask.
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

    /// Its name, in small letters.
    pub fn name(self) -> &'static str {
        ["read-record", "write-record", "gap", "read-next", "write-next", "intention", "insert"]
            [self as usize]
    }
}

/// A lock on a range of keys, as found: a row of a lock whose name is the range's own.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RangeInfo {
    /// The keyspace.
    pub keyspace: Vec<u8>,
    /// What the lock says.
    pub kind: RangeKind,
    /// The first key.
    pub from: Vec<u8>,
    /// The key before which it ends; none if it has no end.
    pub to: Option<Vec<u8>>,
    /// Whether the range itself is waited for: its owner waits for a lock on another range.
    pub waiting: bool,
}

/// Keys from one to another, in the order of their bytes. Each end belongs to the range, or does
/// not, or there is none: then the range reaches beyond the last key, to what InnoDB calls the
/// supremum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange<'k> {
    /// Where it begins.
    pub from: Bound<&'k [u8]>,
    /// Where it ends.
    pub to: Bound<&'k [u8]>,
}

impl<'k> KeyRange<'k> {
    /// One key.
    pub fn key(key: &'k [u8]) -> Self {
        Self { from: Bound::Included(key), to: Bound::Included(key) }
    }

    /// All keys.
    pub fn all() -> Self {
        Self { from: Bound::Unbounded, to: Bound::Unbounded }
    }

    /// From a key, which belongs to it, to another, which does not.
    pub fn half_open(from: &'k [u8], to: &'k [u8]) -> Self {
        Self { from: Bound::Included(from), to: Bound::Excluded(to) }
    }

    /// Between two keys, of which neither belongs to it: the gap between neighbours.
    pub fn between(from: &'k [u8], to: &'k [u8]) -> Self {
        Self { from: Bound::Excluded(from), to: Bound::Excluded(to) }
    }

    /// From one key, which does not belong to it, to another, which does: what a next-key lock on
    /// the second one covers.
    pub fn next_key(from: &'k [u8], to: &'k [u8]) -> Self {
        Self { from: Bound::Excluded(from), to: Bound::Included(to) }
    }

    /// From a key on, which belongs to it, and beyond the last.
    pub fn at_least(from: &'k [u8]) -> Self {
        Self { from: Bound::Included(from), to: Bound::Unbounded }
    }

    /// All behind a key, and beyond the last.
    pub fn after(from: &'k [u8]) -> Self {
        Self { from: Bound::Excluded(from), to: Bound::Unbounded }
    }
}

impl KeyRange<'_> {
    /// Whether another range begins where this one ends.
    pub(crate) fn meets(self, next: Self) -> Result<bool, Error> {
        Ok(Span::of(self)?.to.is_some_and(|to| Span::of(next).is_ok_and(|next| next.from == to)))
    }
}

/// A range in the one form that is stored: from a key, which belongs to it, to another, which does
/// not, or to the end of all (none). The next key after `k` is `k` and a zero byte, so every range
/// has this form.
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
    fn kinds_cover_what_they_say() {
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
        // There is no key between one and the next.
        assert_eq!(Span::of(KeyRange::between(b"a", b"a\0")), Err(Error::EmptyRange));
        assert_eq!(Span::of(KeyRange::half_open(b"b", b"a")), Err(Error::EmptyRange));
        let long = vec![7; KEY_MAX + 1];
        assert_eq!(Span::of(KeyRange::key(&long)), Err(Error::Key(KEY_MAX + 1)));
    }
}

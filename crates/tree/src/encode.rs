//! The bytes of a change in a log record.
//!
//! ```text
//! code, 1 byte │ fields of the change, in a fixed order
//! ```
//!
//! | field | bytes |
//! |---|---|
//! | number | of 7 `k` bits: `k` bytes; its bits follow the lowest set bit of the first byte, |
//! | | which is bit `k - 1` |
//! | string | its length as a number, then its bytes |
//! | header | the LSN in units of 16, then the slot, as numbers |
//! | page number, LSN | 8, little-endian |
//! | difference | number: where it begins; number: twice the length of `before`, plus 1 if that |
//! | | of `after` is another, which is then the next number; `before`; `after` |
//!
//! The high bit of the code marks this encoding. Formats 5 and 6 of a store have codes without it:
//! lengths of 4 bytes, headers of 8, and no differences.

use crate::change::Change;
use crate::difference::Difference;
use crate::layout::{Header, PAGE_NUMBERS};

/// In the code: numbers have the shortest form.
const SHORT: u8 = 0x80;

/// Reads the fields of a change.
struct Reader<'b> {
    bytes: &'b [u8],
    short: bool,
}

impl<'b> Reader<'b> {
    fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let (front, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(front)
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    /// A number of 8 bytes.
    fn word(&mut self) -> Option<u64> {
        let (first, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(u64::from_le_bytes(*first))
    }

    fn number(&mut self) -> Option<u64> {
        let count = 1 + self.bytes.first()?.trailing_zeros() as usize;
        let mut word = [0; 8];
        word.get_mut(..count)?.copy_from_slice(self.take(count)?);
        Some(u64::from_le_bytes(word) >> count)
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok()
    }

    fn header(&mut self) -> Option<Header> {
        if !self.short {
            return self.word().map(Header::from_bits);
        }
        let (lsn, slot) = (self.number()?, self.number()?);
        let slot = u16::try_from(slot).ok()?;
        (lsn < PAGE_NUMBERS).then_some(Header::new(slot, lsn << 4))
    }

    fn string(&mut self) -> Option<&'b [u8]> {
        if self.short {
            let length = self.length()?;
            return self.take(length);
        }
        let (length, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        self.take(u32::from_le_bytes(*length) as usize)
    }

    fn difference(&mut self) -> Option<Difference<'b>> {
        let (at, lengths) = (self.length()?, self.length()?);
        let before = lengths / 2;
        let after = if lengths % 2 == 0 { before } else { self.length()? };
        Some(Difference { at, before: self.take(before)?, after: self.take(after)? })
    }
}

/// The number must have less than 56 bits: lengths, slots, and LSNs in units of 16.
#[inline]
fn put_number(number: u64, to: &mut Vec<u8>) {
    if number < 0x80 {
        return to.push(2 * number as u8 + 1);
    }
    let count = 1 + number.ilog2() as usize / 7;
    let word = (2 * number + 1) << (count - 1);
    // A store of constant size, and then the end, costs less than a copy of a few bytes.
    let end = to.len() + count;
    to.extend_from_slice(&word.to_le_bytes());
    to.truncate(end);
}

fn put_string(string: &[u8], to: &mut Vec<u8>) {
    put_number(string.len() as u64, to);
    to.extend_from_slice(string);
}

fn put_header(header: Header, to: &mut Vec<u8>) {
    put_number(header.lsn() >> 4, to);
    put_number(header.slot().into(), to);
}

fn put_difference(difference: Difference<'_>, to: &mut Vec<u8>) {
    let Difference { at, before, after } = difference;
    put_number(at as u64, to);
    let differ = before.len() != after.len();
    put_number(2 * before.len() as u64 + u64::from(differ), to);
    if differ {
        put_number(after.len() as u64, to);
    }
    to.extend_from_slice(before);
    to.extend_from_slice(after);
}

impl<'b> Change<'b> {
    const fn code(&self) -> u8 {
        match self {
            Self::Insert { .. } => 1,
            Self::Replace { .. } => 2,
            Self::Delete { .. } => 3,
            Self::Ghost { .. } => 4,
            Self::Restore { .. } => 5,
            Self::Purge { .. } => 6,
            Self::Image { .. } => 7,
            Self::Split { .. } => 8,
            Self::Attach { .. } => 9,
            Self::Grow { .. } => 10,
            Self::Complete => 11,
            Self::Clear { trims: false, .. } => 12,
            Self::Incomplete => 13,
            Self::Absorb { .. } => 14,
            Self::Clear { trims: true, .. } => 15,
            Self::Update { .. } => 16,
            Self::Revert { .. } => 17,
        }
    }

    /// Appends the encoded change to `to`.
    pub fn encode(&self, to: &mut Vec<u8>) {
        to.push(self.code() | SHORT);
        match *self {
            Self::Insert { key, value, was } | Self::Restore { key, value, was } => {
                put_header(was, to);
                [key, value].iter().for_each(|string| put_string(string, to));
            }
            Self::Replace { key, before, value, was } => {
                put_header(was, to);
                [key, before, value].iter().for_each(|string| put_string(string, to));
            }
            Self::Update { key, difference, was } | Self::Revert { key, difference, was } => {
                put_header(was, to);
                put_string(key, to);
                put_difference(difference, to);
            }
            Self::Delete { key, before, was } => {
                put_header(was, to);
                [key, before].iter().for_each(|string| put_string(string, to));
            }
            Self::Complete | Self::Incomplete => {}
            Self::Ghost { key, was } => {
                put_header(was, to);
                put_string(key, to);
            }
            Self::Purge { key } => put_string(key, to),
            Self::Clear { before, .. } => to.extend_from_slice(&before.to_le_bytes()),
            Self::Image { image } => put_string(image, to),
            Self::Split { right, separator, image } => {
                to.extend_from_slice(&right.to_le_bytes());
                put_string(separator, to);
                put_string(image, to);
            }
            Self::Attach { key, child, left, left_prev } => {
                for number in [child, left, left_prev] {
                    to.extend_from_slice(&number.to_le_bytes());
                }
                put_string(key, to);
            }
            Self::Absorb { gone, right, high, key, child } => {
                for number in [gone, right, child] {
                    to.extend_from_slice(&number.to_le_bytes());
                }
                [high, key].iter().for_each(|string| put_string(string, to));
            }
            Self::Grow { level, left, right, separator, left_image, right_image } => {
                to.push(level);
                to.extend_from_slice(&left.to_le_bytes());
                to.extend_from_slice(&right.to_le_bytes());
                for string in [separator, left_image, right_image] {
                    put_string(string, to);
                }
            }
        }
    }

    /// Decodes the change at the start of `bytes`. More bytes may follow.
    pub fn decode(bytes: &'b [u8]) -> Option<Self> {
        let (code, bytes) = bytes.split_first()?;
        let mut from = Reader { bytes, short: code & SHORT != 0 };
        let code = code & !SHORT;
        match code {
            1..=5 => {
                let (was, key) = (from.header()?, from.string()?);
                from.of_record(code, key, was)
            }
            16 | 17 if from.short => {
                let (was, key, difference) = (from.header()?, from.string()?, from.difference()?);
                Some(match code {
                    16 => Self::Update { key, difference, was },
                    _ => Self::Revert { key, difference, was },
                })
            }
            _ => from.of_page(code),
        }
    }
}

impl<'b> Reader<'b> {
    /// The rest of a change of a whole record.
    fn of_record(&mut self, code: u8, key: &'b [u8], was: Header) -> Option<Change<'b>> {
        Some(match code {
            1 => Change::Insert { key, value: self.string()?, was },
            2 => Change::Replace { key, before: self.string()?, value: self.string()?, was },
            3 => Change::Delete { key, before: self.string()?, was },
            4 => Change::Ghost { key, was },
            _ => Change::Restore { key, value: self.string()?, was },
        })
    }

    /// A change that is none of a record's value.
    fn of_page(&mut self, code: u8) -> Option<Change<'b>> {
        Some(match code {
            6 => Change::Purge { key: self.string()? },
            7 => Change::Image { image: self.string()? },
            8 => {
                let right = self.word()?;
                Change::Split { right, separator: self.string()?, image: self.string()? }
            }
            9 => {
                let (child, left, left_prev) = (self.word()?, self.word()?, self.word()?);
                Change::Attach { key: self.string()?, child, left, left_prev }
            }
            10 => {
                let (level, left, right) = (self.byte()?, self.word()?, self.word()?);
                let separator = self.string()?;
                let (left_image, right_image) = (self.string()?, self.string()?);
                Change::Grow { level, left, right, separator, left_image, right_image }
            }
            11 => Change::Complete,
            12 | 15 => Change::Clear { before: self.word()?, trims: code == 15 },
            13 => Change::Incomplete,
            14 => {
                let (gone, right, child) = (self.word()?, self.word()?, self.word()?);
                let high = self.string()?;
                Change::Absorb { gone, right, high, key: self.string()?, child }
            }
            _ => return None,
        })
    }
}

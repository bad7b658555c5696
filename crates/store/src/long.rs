//! Values that are too long for a page: the record contains their beginning, and the tree
//! [`PIECES`] the rest.
//!
//! ```text
//! record     beginning of the value | number, 8 bytes | length of the value, 8 bytes
//! pieces     number, index (4 bytes, from 0) -> the following bytes; the last piece has the rest
//! ```
//!
//! A record has a long value if its key and its value together have exactly the maximum length of a
//! record; all others are shorter. So other records need no flag, and the test costs one
//! comparison.
//!
//! Pieces are ordinary records: their transaction logs them and rolls them back, and a snapshot
//! that sees an old record of a long value sees the old versions of its pieces. The transaction
//! that holds the lock of the record writes and removes its pieces, which have no locks of their
//! own. The number consists of the thread slot and the end of the log before the first piece. It is
//! unique, and different threads write to different places of the tree.

use crate::Error;
use crate::error::of_tree;
use crate::stamp::Stamp;
use crate::value::VALUE_MAX;

/// The tree of pieces: its root is the second page.
pub(crate) const PIECES: u32 = 1;

/// Bytes of a record after the beginning of the value.
const TRAILER: usize = 16;
/// Bytes of a piece's key.
const PIECE_KEY: usize = 12;

/// The description of a long value in its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Long {
    number: u64,
    /// Length of the value in bytes.
    length: usize,
    /// How many of them are in the record.
    begins: usize,
}

/// Returns how many bytes of a value are in its record.
fn beginning(max: usize, key: &[u8]) -> usize {
    max.saturating_sub(key.len() + TRAILER)
}

/// Returns the length of a piece, except the last: four of them fill a leaf, and their records are
/// shorter than the maximum.
fn piece_bytes(max: usize) -> usize {
    max - 40
}

/// Returns whether a value must be stored in pieces, if records have at most `max` bytes. If the
/// key leaves no room for the beginning, it is not, and the tree refuses the record.
#[inline]
pub(crate) fn is_long(max: usize, key: &[u8], value: &[u8]) -> bool {
    key.len() + value.len() >= max && beginning(max, key) > 0
}

impl Long {
    /// Returns the description in a record's value, if the value is long.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] if the length in it is impossible.
    #[inline]
    pub(crate) fn of(
        max: usize,
        tree: u32,
        key: &[u8],
        value: &[u8],
    ) -> Result<Option<Self>, Error> {
        match key.len() + value.len() == max {
            true => Self::read(max, tree, key, value).map(Some),
            false => Ok(None),
        }
    }

    #[cold]
    fn read(max: usize, tree: u32, key: &[u8], value: &[u8]) -> Result<Self, Error> {
        let what = "a long value of no length that it can have";
        let damaged = || Error::Damaged { table: of_tree(tree), key: key.to_vec(), what };
        let begins = beginning(max, key);
        let (_, trailer) = value.split_at_checked(begins).ok_or_else(damaged)?;
        let (number, length) = trailer.split_at_checked(8).ok_or_else(damaged)?;
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let (number, length) = (word(number), word(length));
        match usize::try_from(length) {
            Ok(length) if (max - key.len()..=VALUE_MAX).contains(&length) => {
                Ok(Self { number, length, begins })
            }
            _ => Err(damaged()),
        }
    }

    /// Creates the description of a value that the thread of a slot will write at this position of
    /// the log.
    ///
    /// # Errors
    ///
    /// [`Error::ValueTooLong`].
    pub(crate) fn new(
        max: usize,
        key: &[u8],
        value: &[u8],
        slot: u16,
        at: u64,
    ) -> Result<Self, Error> {
        let (length, begins) = (value.len(), beginning(max, key));
        if length > VALUE_MAX {
            return Err(Error::ValueTooLong { length });
        }
        Ok(Self { number: Stamp::new(slot, at).get(), length, begins })
    }

    /// Returns how many bytes of the value are in pieces.
    pub(crate) fn bytes_in_pieces(&self) -> u64 {
        (self.length - self.begins) as u64
    }

    /// Returns the contents of the value's record.
    pub(crate) fn record(&self, value: &[u8]) -> Vec<u8> {
        let mut record = value[..self.begins].to_vec();
        record.extend_from_slice(&self.number.to_le_bytes());
        record.extend_from_slice(&(self.length as u64).to_le_bytes());
        record
    }

    /// Returns the keys and bytes of the value's pieces.
    pub(crate) fn pieces<'v>(
        &self,
        max: usize,
        value: &'v [u8],
    ) -> impl Iterator<Item = ([u8; PIECE_KEY], &'v [u8])> {
        let of = *self;
        let pieces = value[self.begins..].chunks(piece_bytes(max)).enumerate();
        pieces.map(move |(index, piece)| (of.key(index), piece))
    }

    /// Returns the keys of the pieces.
    pub(crate) fn keys(&self, max: usize) -> impl Iterator<Item = [u8; PIECE_KEY]> {
        let of = *self;
        (0..(self.length - self.begins).div_ceil(piece_bytes(max))).map(move |at| of.key(at))
    }

    fn key(&self, index: usize) -> [u8; PIECE_KEY] {
        let mut key = [0; PIECE_KEY];
        key[..8].copy_from_slice(&self.number.to_be_bytes());
        // A value has fewer pieces than bytes.
        key[8..].copy_from_slice(&(index as u32).to_be_bytes());
        key
    }

    /// Completes the value from the pieces that `fetch` reads.
    fn gather(
        &self,
        max: usize,
        (tree, key): (u32, &[u8]),
        value: &mut Vec<u8>,
        fetch: &mut Fetch<'_>,
    ) -> Result<(), Error> {
        let mut piece = Vec::new();
        value.truncate(self.begins);
        for at in self.keys(max) {
            let there = fetch(&at, &mut piece)?;
            let wanted = (self.length - value.len()).min(piece_bytes(max));
            if !there || piece.len() != wanted {
                let what = "a piece of its value is missing";
                return Err(Error::Damaged { table: of_tree(tree), key: key.to_vec(), what });
            }
            value.extend_from_slice(&piece);
        }
        Ok(())
    }
}

/// Reads the record of a piece into a buffer; returns false if it does not exist.
pub(crate) type Fetch<'f> = dyn FnMut(&[u8], &mut Vec<u8>) -> Result<bool, Error> + 'f;

/// Completes the value of a record if it is a long one; records have at most `max` bytes.
///
/// # Errors
///
/// [`Error::Damaged`]; what `fetch` returns.
#[inline]
pub(crate) fn whole(
    max: usize,
    (tree, key): (u32, &[u8]),
    value: &mut Vec<u8>,
    fetch: &mut Fetch<'_>,
) -> Result<(), Error> {
    match Long::of(max, tree, key, value)? {
        Some(long) => long.gather(max, (tree, key), value, fetch),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 64;

    #[test]
    fn a_long_value_is_known_by_its_length_and_comes_apart_and_together() {
        for length in [MAX - 3, MAX, 200, 1000] {
            let value: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
            assert!(is_long(MAX, b"key", &value) && !is_long(MAX, b"key", &value[..MAX - 4]));
            let long = Long::new(MAX, b"key", &value, 3, 160).unwrap();
            let mut record = long.record(&value);
            assert_eq!(record.len() + 3, MAX);
            assert_eq!(Long::of(MAX, 0, b"key", &record), Ok(Some(long)));
            assert_eq!(Long::of(MAX, 0, b"other", &record[1..]), Ok(None));
            let pieces: Vec<_> = long.pieces(MAX, &value).collect();
            assert!(pieces.iter().all(|(key, piece)| key.len() + piece.len() < MAX));
            assert!(long.keys(MAX).eq(pieces.iter().map(|piece| piece.0)));
            let fetch: &mut Fetch<'_> = &mut |key, to| {
                let found = pieces.iter().find(|piece| piece.0 == key);
                found.map_or(&[][..], |piece| piece.1).clone_into(to);
                Ok(found.is_some())
            };
            assert_eq!(whole(MAX, (0, b"key"), &mut record, fetch), Ok(()));
            assert_eq!(record, value);
        }
    }

    #[test]
    fn damaged_records_and_missing_pieces_are_told() {
        let damaged = |why| matches!(why, Error::Damaged { .. });
        for length in [0, 60, VALUE_MAX as u64 + 1, u64::MAX] {
            let mut record = [7; MAX - 3];
            record[MAX - 11..].copy_from_slice(&length.to_le_bytes());
            assert!(damaged(Long::of(MAX, 0, b"key", &record).unwrap_err()), "{length}");
        }
        assert!(damaged(Long::of(MAX, 0, &[0; 60], &[0; 4]).unwrap_err()));
        let long = Long::new(MAX, b"key", &[1; 100], 3, 160).unwrap();
        let mut record = long.record(&[1; 100]);
        let nothing: &mut Fetch<'_> = &mut |_, _| Ok(false);
        assert!(damaged(whole(MAX, (0, b"key"), &mut record, nothing).unwrap_err()));
    }
}

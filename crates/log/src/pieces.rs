//! Reads all records from a place on, in large pieces of the files. Redo uses it, because it reads
//! much.
//!
//! A piece is some megabytes of whole records. It is divided by their lengths and places alone. The
//! checksum of a record is verified when the record is read, so threads that share a piece also
//! share that work.

use core::sync::atomic::Ordering::Acquire;

use latchwork_machine::{ConstMachine, Word};

use crate::record::{RECORD_MAX, decode_unsummed, decode_view, extent, extent_at, word_of};
use crate::{EntryView, Error, Flags, Log, Lsn};

/// Bytes per read. At this size a page has several records in a piece, unless the log changes very
/// many pages, and threads that share the work seldom wait for each other.
const PIECE: usize = 4 << 20;

const _: () = assert!(PIECE >= RECORD_MAX, "a piece has room for any record");

/// Reads the files in order, a piece at a time.
#[derive(Debug)]
pub struct Pieces<M: ConstMachine> {
    log: Log<M>,
    at: Lsn,
    end: u64,
}

/// Whole records, one after the other, in the layout of the files.
#[derive(Debug, Default)]
pub struct Piece {
    from: Lsn,
    seed: u32,
    bytes: Vec<u8>,
    /// How many of the bytes are whole records.
    length: usize,
}

impl<M: ConstMachine> Log<M> {
    /// Returns a reader of all records that are in the files now, from `from` on, where a record
    /// must begin.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Region`] if the region fails or was opened before a fork.
    pub fn pieces(&self, from: Lsn) -> Result<Pieces<M>, Error> {
        // Acquire: synchronizes with the Release in `lead`: the bytes below it are in the files.
        let end = self.shared()?.written.0.load(Acquire);
        Ok(Pieces { log: self.clone(), at: from.max(Lsn::FIRST), end })
    }
}

impl<M: ConstMachine> Pieces<M> {
    /// Returns where the next piece begins.
    pub fn position(&self) -> Lsn {
        self.at
    }

    /// Reads the next piece into the memory of a piece that is no longer needed. Returns `None` at
    /// the end.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NotARecord`] or [`Error::Disk`]. The log may have been recycled up to a
    /// later place.
    pub fn next_piece(&mut self, old: Piece) -> Result<Option<Piece>, Error> {
        let left = self.end.saturating_sub(self.at.0).min(PIECE as u64) as usize;
        if left == 0 {
            return Ok(None);
        }
        let inner = &self.log.inner;
        let mut piece = Piece { from: self.at, seed: inner.seed, ..old };
        piece.bytes.resize(left, 0);
        inner.segments.read(self.at.0, &mut piece.bytes)?;
        piece.length = 0;
        while piece.length < left {
            let rest = &piece.bytes[piece.length..];
            let here = Lsn(piece.from.0 + piece.length as u64);
            match extent_at(here, rest) {
                // `entries` would end at a header that cannot be decoded.
                Some(bytes) if bytes <= rest.len() => {
                    decode_unsummed(here, &rest[..bytes]).ok_or(Error::NotARecord(here))?;
                    piece.length += bytes;
                }
                // The rest of the record is in the next piece.
                Some(_) if left == PIECE => break,
                _ => return Err(Error::NotARecord(here)),
            }
        }
        self.at = piece.next();
        Ok(Some(piece))
    }
}

impl Piece {
    /// Returns where the records after this piece begin.
    fn next(&self) -> Lsn {
        Lsn(self.from.0 + self.length as u64)
    }

    /// Iterates over the records with their places in the piece, in order. Their checksums are not
    /// verified: [`entry`](Self::entry) does that.
    pub fn entries(&self) -> impl Iterator<Item = (u32, EntryView<'_>)> {
        let mut at = 0;
        let all = core::iter::from_fn(move || {
            let bytes = self.record(at)?;
            let found = (at as u32, decode_unsummed(Lsn(self.from.0 + at as u64), bytes)?);
            at += bytes.len();
            Some(found)
        });
        all.filter(|(_, entry)| !entry.head.flags.has(Flags::VOID))
    }

    /// Returns the record at a place in the piece.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NotARecord`] if the record is damaged.
    pub fn entry(&self, place: u32) -> Result<EntryView<'_>, Error> {
        let lsn = Lsn(self.from.0 + u64::from(place));
        let bytes = self.record(place as usize);
        bytes.and_then(|bytes| decode_view(self.seed, lsn, bytes)).ok_or(Error::NotARecord(lsn))
    }

    fn record(&self, at: usize) -> Option<&[u8]> {
        let rest = self.bytes[..self.length].get(at..).filter(|rest| !rest.is_empty())?;
        rest.get(..extent(word_of(rest, 0))?)
    }
}

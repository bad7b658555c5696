//! Reads records from files: a single record, or all in order up to the end of the log.

use latchwork_disk::Error as DiskError;

use crate::control::BLOCK;
use crate::record::{decode, decode_view, extent, extent_at};
use crate::segment::Segments;
use crate::spans::Spans;
use crate::{Entry, EntryView, Error, Lsn, UNIT};

/// Bytes per read.
const CHUNK: usize = 256 << 10;

/// Returns the record at `lsn`, from files that hold the log up to `end`.
pub(crate) fn read_files(
    segments: &Segments,
    seed: u32,
    lsn: Lsn,
    end: u64,
) -> Result<Entry, Error> {
    let mut first = [0; 8];
    if lsn.0 + 16 > end {
        return Err(Error::NotARecord(lsn));
    }
    segments.read(lsn.0, &mut first)?;
    let bytes = extent(u64::from_le_bytes(first)).filter(|bytes| lsn.0 + *bytes as u64 <= end);
    let mut copy = vec![0; bytes.ok_or(Error::NotARecord(lsn))?];
    segments.read(lsn.0, &mut copy)?;
    decode(seed, lsn, &copy).ok_or(Error::NotARecord(lsn))
}

/// Reads records from the files in order, to find the end of the log.
pub(crate) struct Files<'s> {
    segments: &'s Segments,
    seed: u32,
    /// The log's bytes from `from` on.
    chunk: Vec<u8>,
    from: u64,
    /// No file extends beyond this place.
    limit: u64,
}

impl<'s> Files<'s> {
    pub(crate) fn new(segments: &'s Segments, limit: u64) -> Self {
        Self { segments, seed: segments.id as u32, chunk: Vec::new(), from: 0, limit }
    }

    /// Returns the place after the last byte in the file of the segment at `at`, if it is a segment
    /// of the log.
    pub(crate) fn reach(&self, at: Lsn) -> Result<u64, Error> {
        let number = self.segments.spans.number(at.0);
        let length = match self.segments.file(number) {
            Ok(file) => file.length()?,
            Err(
                Error::Corrupt { .. }
                | Error::Foreign
                | Error::Disk(DiskError::NotFound(_) | DiskError::ShortRead { .. }),
            ) => 0,
            Err(why) => return Err(why),
        };
        Ok(self.segments.spans.start(number) + length.saturating_sub(BLOCK as u64))
    }

    /// Returns the division of the log into segments.
    pub(crate) fn spans(&self) -> Spans {
        self.segments.spans
    }

    /// Returns the record at `at`; `None` if there is no record or it cannot be read.
    pub(crate) fn at(&mut self, at: Lsn) -> Result<Option<EntryView<'_>>, Error> {
        let Some(start) = self.bytes(at.0, 16)? else { return Ok(None) };
        let Some(count) = extent_at(at, start) else { return Ok(None) };
        let seed = self.seed;
        Ok(self.bytes(at.0, count)?.and_then(|bytes| decode_view(seed, at, bytes)))
    }

    /// Returns the next place after `at` where a record begins, in the segments with these numbers.
    /// O(bytes).
    pub(crate) fn next_behind(&mut self, at: Lsn, numbers: &[u64]) -> Result<Option<Lsn>, Error> {
        let (mut at, spans) = (at, self.segments.spans);
        let mut reach = self.reach(at)?;
        loop {
            let before = spans.number(at.0);
            at = Lsn(at.0 + UNIT);
            if at.0 >= self.limit {
                return Ok(None);
            }
            if spans.number(at.0) != before {
                reach = self.reach(at)?;
            }
            if at.0 >= reach {
                // The file of this segment ends earlier, or does not exist: continue in the next
                // segment.
                let next = numbers.partition_point(|number| *number <= spans.number(at.0));
                let Some(next) = numbers.get(next) else { return Ok(None) };
                at = Lsn(spans.start(*next) - UNIT);
                continue;
            }
            match self.at(at) {
                Ok(None) | Err(Error::Corrupt { .. } | Error::Disk(DiskError::NotFound(_))) => {}
                Err(other) => return Err(other),
                Ok(Some(_)) => return Ok(Some(at)),
            }
        }
    }

    /// Returns `count` bytes from `at` on; `None` beyond the files.
    fn bytes(&mut self, at: u64, count: usize) -> Result<Option<&[u8]>, Error> {
        let end = at.saturating_add(count as u64);
        if end > self.limit {
            return Ok(None);
        }
        if at < self.from || end > self.from + self.chunk.len() as u64 {
            let length = (self.limit - at).min(CHUNK.max(count) as u64) as usize;
            self.chunk.resize(length, 0);
            self.from = at;
            let mut read = self.segments.read(at, &mut self.chunk);
            if let Err(Error::Disk(DiskError::ShortRead { .. } | DiskError::NotFound(_))) = read {
                // The file was truncated, or the next file is missing. The requested bytes alone
                // may still exist, so read only those.
                self.chunk.resize(count, 0);
                read = self.segments.read(at, &mut self.chunk);
            }
            if let Err(error) = read {
                self.chunk.clear();
                return match error {
                    Error::Disk(DiskError::ShortRead { .. }) => Ok(None),
                    other => Err(other),
                };
            }
        }
        let start = (at - self.from) as usize;
        Ok(Some(&self.chunk[start..start + count]))
    }
}

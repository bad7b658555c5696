//! Reading: one record by its LSN, or all from one on.
//!
//! A record that is in the buffer is read there without a latch: its words are copied, and then
//! `end` says whether an append may have come over them. What is not there any more is read
//! from its segment. Either way the record's own LSN and its checksum decide.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use latchwork_disk::Error as DiskError;
use latchwork_machine::{ConstMachine, Word};

use crate::files::read_files;
use crate::record::{decode, extent};
use crate::recover::read_control;
use crate::{Entry, Error, Log, Lsn};

/// Bytes of the files that are compared with the buffer.
const COMPARED: u64 = 1 << 16;

/// Reads records in order, up to where the log ended when the scan last looked.
#[derive(Debug)]
pub struct Scan<M: ConstMachine> {
    log: Log<M>,
    at: Lsn,
}

impl<M: ConstMachine> Log<M> {
    /// The record that begins at `lsn`.
    ///
    /// # Errors
    ///
    /// [`Error::NotARecord`], [`Error::Gone`], [`Error::Disk`].
    pub fn read(&self, lsn: Lsn) -> Result<Entry, Error> {
        self.read_below(lsn, self.end().0)
    }

    /// The same, of a log that ends at `end`, or did.
    fn read_below(&self, lsn: Lsn, end: u64) -> Result<Entry, Error> {
        let shared = self.shared()?;
        if lsn < Lsn::FIRST || lsn.0 >= end || !lsn.0.is_multiple_of(crate::UNIT) {
            return Err(Error::NotARecord(lsn));
        }
        if lsn.0 >= shared.buffer_from.load(Relaxed)
            && let Some(entry) = self.read_buffer(lsn, end)?
        {
            return Ok(entry);
        }
        // Acquire: synchronizes with the Release in `lead`. What left the buffer is in the
        // files.
        let written = shared.written.0.load(Acquire);
        let read = read_files(&self.inner.segments, self.inner.seed, lsn, written);
        let oldest = self.oldest();
        match read {
            // Of a file that was open before it was recycled. It is told as gone, for a place
            // behind it may have been: so what lies before one that is gone is gone, too.
            Ok(_) if lsn < oldest => Err(Error::Gone { oldest }),
            Err(Error::NotARecord(_) | Error::Disk(DiskError::NotFound(_))) if lsn < oldest => {
                Err(Error::Gone { oldest })
            }
            Err(Error::Corrupt { .. }) if lsn < oldest => Err(Error::Gone { oldest }),
            other => other,
        }
    }

    /// Whether the files have what was made durable last, as far as the buffer has it still; else
    /// what was written last. Those of another log have not, nor those of an earlier time, or of a
    /// copy that went on by itself. For a process that finds a log in memory that dead ones left:
    /// O(1).
    ///
    /// # Errors
    ///
    /// [`Error::Disk`], but for files that are not there or too short.
    pub fn has_its_files(&self) -> Result<bool, Error> {
        let (shared, segments) = (self.shared()?, &self.inner.segments);
        let control = match read_control(&segments.disk, &segments.folder) {
            Err(why @ Error::Disk(_)) => return Err(why),
            other => other.ok().flatten(),
        };
        // The control file is written before the memory says so.
        let redo = shared.found.redo.load(Relaxed);
        if control.is_none_or(|control| control.id != self.id() || control.redo.0 < redo) {
            return Ok(false);
        }
        // Acquire: as in `read_below`.
        let (end, written) = (self.end().0, shared.written.0.load(Acquire));
        // A thread that died may have begun to append over the oldest.
        let (buffer, size) = (self.buffer()?, self.buffer_size(shared)?.bytes());
        let kept = (end + self.record_max()).saturating_sub(size);
        let kept = kept.max(shared.buffer_from.load(Relaxed)).max(self.oldest().0);
        // What is behind that the buffer has, too, and it is written once more.
        let flushed = shared.flushed.0.load(Relaxed);
        let until = if kept < flushed { flushed } else { written };
        let from = until.saturating_sub(COMPARED).max(kept);
        let (from, to) = (from.next_multiple_of(8), until / 8 * 8);
        if self.goes_on_otherwise(Lsn(flushed), written)? {
            return Ok(false);
        }
        let mut found = vec![0; to.saturating_sub(from) as usize];
        match segments.read(from, &mut found) {
            Err(Error::Disk(DiskError::NotFound(_) | DiskError::ShortRead { .. })) => Ok(false),
            Err(why) => Err(why),
            Ok(()) => {
                let (first, second) = buffer.parts(from, found.len() / 8)?;
                let own = first.iter().chain(second).map(|word| word.load(Relaxed).to_le_bytes());
                Ok(found.chunks_exact(8).zip(own).all(|(found, own)| *found == own))
            }
        }
    }

    /// Whether the files have other records than the buffer has behind `at`, where one begins, or
    /// one behind its last: a copy of them went on by itself. Where there are none the system has
    /// lost what it was to write, and the buffer has it.
    fn goes_on_otherwise(&self, at: Lsn, written: u64) -> Result<bool, Error> {
        let (mut next, end) = (at, self.end().0);
        let stop = written.min(at.0.saturating_add(COMPARED));
        while next.0 <= stop {
            let found = match read_files(&self.inner.segments, self.inner.seed, next, u64::MAX) {
                Err(
                    Error::NotARecord(_)
                    | Error::Corrupt { .. }
                    | Error::Disk(DiskError::NotFound(_) | DiskError::ShortRead { .. }),
                ) => return Ok(false),
                found => found?,
            };
            match self.read_buffer(next, end)? {
                Some(own) if own == found => next = own.next(),
                Some(_) => return Ok(true),
                None => return Ok(next.0 >= end),
            }
        }
        Ok(false)
    }

    /// The record, if it is in the buffer and stays there while it is read.
    fn read_buffer(&self, lsn: Lsn, end: u64) -> Result<Option<Entry>, Error> {
        let shared = self.shared()?;
        // Behind the load of `end`.
        let (buffer, size) = (self.buffer()?, self.buffer_size(shared)?.bytes());
        // An append writes behind `end`, so much at most, before it moves `end`; and it writes
        // over nothing that is not in the files.
        let margin = self.record_max();
        let kept = |end: u64, written: u64| end + margin <= lsn.0 + size || written <= lsn.0;
        // Relaxed: looked at again below.
        if !kept(end, shared.written.0.load(Relaxed)) {
            return Ok(None);
        }
        let Some(bytes) =
            extent(buffer.word(lsn.0)?.load(Relaxed)).filter(|bytes| lsn.0 + *bytes as u64 <= end)
        else {
            return Ok(None);
        };
        let (first, second) = buffer.parts(lsn.0, bytes / 8)?;
        let words = first.iter().chain(second);
        let copy: Vec<u8> = words.flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
        // Acquire: synchronizes with the Release fence that begins the latch in `append`: if a
        // word of a later record was read, the `end` before that record is seen now.
        M::fence(Acquire);
        // Relaxed, both: behind the fence. Room over these words is given when `written` has passed
        // them: the thread that stored there had seen that.
        if !kept(shared.end.0.load(Relaxed), shared.written.0.load(Relaxed)) {
            return Ok(None);
        }
        Ok(decode(self.inner.seed, lsn, &copy))
    }

    /// All records from `from` on, where one must begin. A scan holds nothing: what it has not
    /// read may be recycled unless it is pinned.
    pub fn scan(&self, from: Lsn) -> Scan<M> {
        Scan { log: self.clone(), at: from.max(Lsn::FIRST) }
    }
}

impl<M: ConstMachine> Scan<M> {
    /// Where the next record begins.
    pub fn position(&self) -> Lsn {
        self.at
    }

    /// The next record; none at the log's end, where it may be called again later.
    ///
    /// # Errors
    ///
    /// As [`Log::read`].
    pub fn next_entry(&mut self) -> Result<Option<Entry>, Error> {
        let end = self.log.end();
        if self.at >= end {
            return Ok(None);
        }
        let entry = self.log.read_below(self.at, end.0)?;
        self.at = entry.next();
        Ok(Some(entry))
    }
}

impl<M: ConstMachine> Iterator for Scan<M> {
    type Item = Result<Entry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_entry().transpose()
    }
}

//! Reads one record by its LSN, or all records from a place on.
//!
//! A record that is in the buffer is read without a latch: its words are copied, and then `end`
//! shows whether an append may have overwritten them. A record that is no longer in the buffer is
//! read from its segment. In both cases the record is valid if its own LSN and its checksum match.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use latchwork_disk::Error as DiskError;
use latchwork_machine::{ConstMachine, Word};

use crate::files::read_files;
use crate::record::{decode, extent};
use crate::recover::read_control;
use crate::{Entry, Error, Log, Lsn};

/// Bytes of the files that are compared with the buffer.
const COMPARED: u64 = 1 << 16;

/// Reads records in order, up to the end of the log at the scan's last check.
#[derive(Debug)]
pub struct Scan<M: ConstMachine> {
    log: Log<M>,
    at: Lsn,
}

impl<M: ConstMachine> Log<M> {
    /// Returns the record that begins at `lsn`.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NotARecord`] if no record begins at `lsn`, [`Error::Gone`] if its segment
    /// was recycled, and [`Error::Disk`] if the disk fails.
    pub fn read(&self, lsn: Lsn) -> Result<Entry, Error> {
        self.read_below(lsn, self.end().0)
    }

    /// Reads the record in a log that ends at `end` or ended there.
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
        // Acquire: synchronizes with the Release in `lead`. Bytes that left the buffer are in the
        // files.
        let written = shared.written.0.load(Acquire);
        let read = read_files(&self.inner.segments, self.inner.seed, lsn, written);
        let oldest = self.oldest();
        match read {
            // The file was open before it was recycled. The record is reported as recycled, because
            // the file of a later record may be recycled already: all places before a recycled one
            // count as recycled.
            Ok(_) if lsn < oldest => Err(Error::Gone { oldest }),
            Err(Error::NotARecord(_) | Error::Disk(DiskError::NotFound(_))) if lsn < oldest => {
                Err(Error::Gone { oldest })
            }
            Err(Error::Corrupt { .. }) if lsn < oldest => Err(Error::Gone { oldest }),
            other => other,
        }
    }

    /// Returns whether the files hold the bytes that were made durable last, as far as the buffer
    /// still holds them; otherwise it compares the bytes that were written last. Returns false for
    /// the files of another log, for older files, and for a copy that was continued independently.
    /// Call it in a process that finds the log in memory that dead processes left. O(1).
    ///
    /// # Errors
    ///
    /// Returns [`Error::Disk`], except for files that are missing or too short.
    pub fn has_its_files(&self) -> Result<bool, Error> {
        let (shared, segments) = (self.shared()?, &self.inner.segments);
        let control = match read_control(&segments.disk, &segments.folder) {
            Err(why @ Error::Disk(_)) => return Err(why),
            other => other.ok().flatten(),
        };
        // The control file is written before the shared word is stored.
        let redo = shared.found.redo.load(Relaxed);
        if control.is_none_or(|control| control.id != self.id() || control.redo.0 < redo) {
            return Ok(false);
        }
        // Acquire: as in `read_below`.
        let (end, written) = (self.end().0, shared.written.0.load(Acquire));
        // A thread that died may have begun to overwrite the oldest bytes.
        let (buffer, size) = (self.buffer()?, self.buffer_size(shared)?.bytes());
        let kept = (end + self.record_max()).saturating_sub(size);
        let kept = kept.max(shared.buffer_from.load(Relaxed)).max(self.oldest().0);
        // The bytes after that are also in the buffer, and are written once more.
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

    /// Returns whether the files differ from the buffer in the records after `at`, where a record
    /// begins, or have a record after the buffer's last one: then a copy of the files was continued
    /// independently. If the files have no record there, the system lost a write, and the buffer
    /// still has the bytes.
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

    /// Returns the record if it is in the buffer and stays there during the read.
    fn read_buffer(&self, lsn: Lsn, end: u64) -> Result<Option<Entry>, Error> {
        let shared = self.shared()?;
        // After the load of `end`.
        let (buffer, size) = (self.buffer()?, self.buffer_size(shared)?.bytes());
        // Before an append moves `end`, it writes at most this far after `end`. It overwrites only
        // bytes that are in the files.
        let margin = self.record_max();
        let kept = |end: u64, written: u64| end + margin <= lsn.0 + size || written <= lsn.0;
        // Relaxed: loaded again below.
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
        // Acquire: synchronizes with the Release fence in `append_if`: if a word of a later record
        // was read, the `end` before that record is seen now.
        M::fence(Acquire);
        // Relaxed, both: after the fence. Room over these words is given when `written` has passed
        // them: the thread that stored there had seen that.
        if !kept(shared.end.0.load(Relaxed), shared.written.0.load(Relaxed)) {
            return Ok(None);
        }
        Ok(decode(self.inner.seed, lsn, &copy))
    }

    /// Creates a scan of all records from `from` on, where a record must begin. A scan holds
    /// nothing: the log after its position may be recycled unless it is pinned.
    pub fn scan(&self, from: Lsn) -> Scan<M> {
        Scan { log: self.clone(), at: from.max(Lsn::FIRST) }
    }
}

impl<M: ConstMachine> Scan<M> {
    /// Returns where the next record begins.
    pub fn position(&self) -> Lsn {
        self.at
    }

    /// Reads the next record. Returns `None` at the end of the log; a later call may then return a
    /// record.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Log::read`].
    pub fn next_entry(&mut self) -> Result<Option<Entry>, Error> {
        let end = self.log.end();
        while self.at < end {
            let entry = self.log.read_below(self.at, end.0)?;
            self.at = entry.next();
            if !entry.is_void() {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }
}

impl<M: ConstMachine> Iterator for Scan<M> {
    type Item = Result<Entry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_entry().transpose()
    }
}

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
use crate::{Entry, Error, Log, Lsn};

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
            Err(Error::NotARecord(_) | Error::Disk(DiskError::NotFound(_))) if lsn < oldest => {
                Err(Error::Gone { oldest })
            }
            Err(Error::Corrupt { .. }) if lsn < oldest => Err(Error::Gone { oldest }),
            other => other,
        }
    }

    /// The record, if it is in the buffer and stays there while it is read.
    fn read_buffer(&self, lsn: Lsn, end: u64) -> Result<Option<Entry>, Error> {
        let (buffer, shared) = (self.buffer()?, self.shared()?);
        let mask = buffer.len() as u64 - 1;
        // An append writes behind `end`, so much at most, before it moves `end`; and it writes
        // over nothing that is not in the files.
        let margin = self.record_max();
        let kept =
            |end: u64, written: u64| end + margin <= lsn.0 + self.inner.buffer || written <= lsn.0;
        // Relaxed: looked at again below.
        if !kept(end, shared.written.0.load(Relaxed)) {
            return Ok(None);
        }
        let word = |index: u64| buffer[((lsn.0 / 8 + index) & mask) as usize].load(Relaxed);
        let Some(bytes) = extent(word(0)).filter(|bytes| lsn.0 + *bytes as u64 <= end) else {
            return Ok(None);
        };
        let copy: Vec<u8> = (0..bytes as u64 / 8).flat_map(|i| word(i).to_le_bytes()).collect();
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

//! Reads a log's files without changing them, also while other processes have the log open and if
//! the log is damaged.
//!
//! A scan reads records as recovery does, by length, place and checksum. At a place where recovery
//! ends or reports damage, [`FileScan::skip`] continues at the next place that has a record. A
//! record's checksum starts with the log's identity, and the record contains its own place. Bytes
//! with the right number at the wrong place therefore pass for a record with probability 1 in 2^32.

use std::path::Path;
use std::sync::Arc;

use latchwork_disk::{Disk, Error as DiskError, Open};

use crate::control::{BLOCK, Control};
use crate::files::Files;
use crate::segment::Segments;
use crate::spans::Spans;
use crate::{Entry, EntryView, Error, Lsn, UNIT};

/// The files of a log.
#[derive(Debug)]
pub struct LogFiles {
    segments: Segments,
    control: Control,
    /// The first existing segment after which no segment is missing up to the redo point's.
    first: u64,
    /// The segments that have a name, in order.
    numbers: Vec<u64>,
    /// The end of the last segment.
    limit: u64,
}

impl LogFiles {
    /// Opens the files of a log. Writes nothing.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoControl`] if there is no control file, [`Error::Corrupt`] or
    /// [`Error::Version`] for an invalid one, and [`Error::Disk`] if the disk fails.
    pub fn open(disk: Arc<dyn Disk>, folder: &Path) -> Result<Self, Error> {
        let file = match disk.open(&folder.join("control"), Open::READ) {
            Err(DiskError::NotFound(_)) => return Err(Error::NoControl),
            other => other?,
        };
        let mut bytes = vec![0; 2 * BLOCK];
        // A control file that cannot be read is treated as damaged: the segments may contain the
        // same facts.
        file.read(0, &mut bytes).map_err(|_| Error::Corrupt { what: "control file" })?;
        Self::of(disk, folder, Control::decode(&bytes)?)
    }

    /// Opens the files of a log whose control file is lost or damaged, using the header and the
    /// length of the first segment that has records of its own. Redo begins at the first of these
    /// records, and the durable place is taken from the headers. Writes nothing.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoControl`] if there is no such segment, and [`Error::Disk`] if the disk
    /// fails.
    pub fn without_control(disk: Arc<dyn Disk>, folder: &Path) -> Result<Self, Error> {
        // The sizes are not used: only headers and lengths are read.
        let any = Spans::new(4096, 4096).ok_or(Error::NoControl)?;
        let unknown = Segments::to_read(disk.clone(), folder, 0, any);
        let numbers = unknown.numbers()?;
        let header = |number: &u64| unknown.header(*number).ok().flatten();
        for number in &numbers {
            let Some(header_here) = header(number).filter(|it| it.number == *number) else {
                continue;
            };
            // Format 1 does not state the length of segments. If the segment was truncated, every
            // place derived from its length would be wrong.
            let bytes = unknown.bytes(*number).unwrap_or(0);
            let Some(spans) = header_here.spans.or_else(|| Spans::new(bytes, bytes)) else {
                continue;
            };
            if !spans.has(*number) {
                continue;
            }
            let all = numbers.iter().filter_map(header).filter(|it| it.id == header_here.id);
            let mut control = Control {
                id: header_here.id,
                sequence: 0,
                spans,
                checkpoint: Lsn::NEVER,
                redo: Lsn(spans.start(*number)).max(Lsn::FIRST),
                flushed: all.map(|it| it.flushed).max().unwrap_or(Lsn::FIRST),
                clean: false,
                clearing: false,
            };
            let found = Self::of(disk.clone(), folder, control).and_then(|files| files.oldest());
            if let Ok(Some(first)) = found {
                control.redo = first;
                return Self::of(disk, folder, control);
            }
        }
        Err(Error::NoControl)
    }

    fn of(disk: Arc<dyn Disk>, folder: &Path, control: Control) -> Result<Self, Error> {
        if control.redo < Lsn::FIRST || !control.redo.0.is_multiple_of(UNIT) {
            return Err(Error::Corrupt { what: "control file" });
        }
        let segments = Segments::to_read(disk, folder, control.id, control.spans);
        let has = |number: u64| {
            let header = segments.header(number).ok().flatten();
            header.is_some_and(|header| header.number == number && header.id == control.id)
        };
        let redo = control.spans.number(control.redo.0);
        let mut first = redo;
        while first > 0 && has(first - 1) {
            first -= 1;
        }
        // A segment whose header is damaged still has its records. A number whose bytes would have
        // no LSN is ignored.
        let mut numbers = segments.numbers()?;
        numbers.retain(|number| control.spans.has(*number));
        let limit = numbers.last().map_or(redo, |last| redo.max(last + 1));
        Ok(Self { segments, control, first, numbers, limit })
    }

    /// Returns where recovery begins.
    pub fn redo(&self) -> Lsn {
        self.control.redo
    }

    /// Returns the place up to which the log was durable, according to the control file.
    pub fn flushed(&self) -> Lsn {
        self.control.flushed
    }

    /// Returns the place of the first existing record.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Disk`] if the disk fails.
    pub fn oldest(&self) -> Result<Option<Lsn>, Error> {
        let from = Lsn(self.segments.spans.start(self.first)).max(Lsn::FIRST);
        let mut scan = self.scan(from);
        match scan.next_entry()? {
            Some(entry) => Ok(Some(entry.lsn)),
            None => scan.skip(),
        }
    }

    /// Creates a scan of the records from `from` on.
    pub fn scan(&self, from: Lsn) -> FileScan<'_> {
        let limit = self.segments.spans.start(self.limit);
        let at = from.0.min(limit).max(Lsn::FIRST.0).next_multiple_of(UNIT);
        FileScan {
            files: Files::new(&self.segments, limit),
            at: Lsn(at),
            numbers: &self.numbers,
            limit,
        }
    }
}

/// Reads records of files in order.
pub struct FileScan<'f> {
    files: Files<'f>,
    at: Lsn,
    numbers: &'f [u64],
    limit: u64,
}

impl FileScan<'_> {
    /// Returns where the scan expects the next record.
    pub fn position(&self) -> Lsn {
        self.at
    }

    /// Reads the next record. Returns `None` where no record exists: at the end of the log, or at
    /// damage.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Disk`] if the disk fails.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, Error> {
        loop {
            let entry = match self.files.at(self.at) {
                Err(Error::Corrupt { .. } | Error::Disk(DiskError::NotFound(_))) => None,
                other => other?.map(EntryView::to_entry),
            };
            if let Some(entry) = &entry {
                self.at = entry.next();
            }
            if !entry.as_ref().is_some_and(Entry::is_void) {
                return Ok(entry);
            }
        }
    }

    /// Returns whether the file of the segment at the position is shorter than a segment.
    pub fn is_cut(&self) -> bool {
        let spans = self.files.spans();
        let reach = || self.files.reach(self.at).unwrap_or(0);
        self.at.0 < self.limit && reach() < spans.end(spans.number(self.at.0))
    }

    /// Moves to the next record after this place, skipping damage, and returns its place; `None` if
    /// there is no such record. O(bytes).
    ///
    /// # Errors
    ///
    /// Returns [`Error::Disk`] if the disk fails.
    pub fn skip(&mut self) -> Result<Option<Lsn>, Error> {
        let found = self.files.next_behind(self.at, self.numbers)?;
        self.at = found.unwrap_or(self.at);
        Ok(found)
    }
}

impl core::fmt::Debug for FileScan<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "FileScan({})", self.at)
    }
}

//! A log's files, looked at by one who changes nothing: whether others have the log open, or it is
//! damaged.
//!
//! A scan reads records as recovery does, by length, place and checksum. Where recovery ends, or
//! says that the log is damaged, this one may be told to go on: at the next place where a record
//! is. A record's checksum is begun with the log's identity and it has its own place in it, so that
//! what passes for one at the wrong place is 1 in 2^32 of what has the right number there.

use std::path::Path;
use std::sync::Arc;

use latchwork_disk::{Disk, Error as DiskError, Open};

use crate::control::{BLOCK, Control};
use crate::files::Files;
use crate::segment::Segments;
use crate::spans::Spans;
use crate::{Entry, EntryView, Error, Lsn, UNIT};

/// A log's files.
#[derive(Debug)]
pub struct LogFiles {
    segments: Segments,
    control: Control,
    /// The first segment that is there, with all behind it up to the redo point's.
    first: u64,
    /// The segments that have a name, in order.
    numbers: Vec<u64>,
    /// Behind the last of them.
    limit: u64,
}

impl LogFiles {
    /// Finds the files of a log. Nothing is written.
    ///
    /// # Errors
    ///
    /// [`Error::NoControl`] if there is no control file; [`Error::Corrupt`], [`Error::Version`];
    /// [`Error::Disk`].
    pub fn open(disk: Arc<dyn Disk>, folder: &Path) -> Result<Self, Error> {
        let file = match disk.open(&folder.join("control"), Open::READ) {
            Err(DiskError::NotFound(_)) => return Err(Error::NoControl),
            other => other?,
        };
        let mut bytes = vec![0; 2 * BLOCK];
        // One that cannot be read is lost as much: the segments may tell what it said.
        file.read(0, &mut bytes).map_err(|_| Error::Corrupt { what: "control file" })?;
        Self::of(disk, folder, Control::decode(&bytes)?)
    }

    /// Finds them where the control file is lost or damaged, by the header and the length of the
    /// first segment that has records of its own. Recovery would begin with the first of them, and
    /// durable is what the headers say. Nothing is written.
    ///
    /// # Errors
    ///
    /// [`Error::NoControl`] if there is no such segment; [`Error::Disk`].
    pub fn without_control(disk: Arc<dyn Disk>, folder: &Path) -> Result<Self, Error> {
        // Its sizes are not used: headers and lengths are all that is read.
        let any = Spans::new(4096, 4096).ok_or(Error::NoControl)?;
        let unknown = Segments::to_read(disk.clone(), folder, 0, any);
        let numbers = unknown.numbers()?;
        let header = |number: &u64| unknown.header(*number).ok().flatten();
        for number in &numbers {
            let Some(header_here) = header(number).filter(|it| it.number == *number) else {
                continue;
            };
            // Format 1 does not say how long segments are. Of one that was cut off, no place would
            // be right.
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
        // A segment whose header is damaged has its records all the same. One whose bytes would
        // have no LSN is none.
        let mut numbers = segments.numbers()?;
        numbers.retain(|number| control.spans.has(*number));
        let limit = numbers.last().map_or(redo, |last| redo.max(last + 1));
        Ok(Self { segments, control, first, numbers, limit })
    }

    /// Where recovery begins.
    pub fn redo(&self) -> Lsn {
        self.control.redo
    }

    /// Up to where the log was durable, as the control file says.
    pub fn flushed(&self) -> Lsn {
        self.control.flushed
    }

    /// The first record that is there.
    ///
    /// # Errors
    ///
    /// [`Error::Disk`].
    pub fn oldest(&self) -> Result<Option<Lsn>, Error> {
        let from = Lsn(self.segments.spans.start(self.first)).max(Lsn::FIRST);
        let mut scan = self.scan(from);
        match scan.next_entry()? {
            Some(entry) => Ok(Some(entry.lsn)),
            None => scan.skip(),
        }
    }

    /// Reads records from `from` on.
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
    /// Where the next record is looked for.
    pub fn position(&self) -> Lsn {
        self.at
    }

    /// The next record; none where there is no record: the log's end, or damage.
    ///
    /// # Errors
    ///
    /// [`Error::Disk`].
    pub fn next_entry(&mut self) -> Result<Option<Entry>, Error> {
        let entry = match self.files.at(self.at) {
            Err(Error::Corrupt { .. } | Error::Disk(DiskError::NotFound(_))) => None,
            other => other?.map(EntryView::to_entry),
        };
        if let Some(entry) = &entry {
            self.at = entry.next();
        }
        Ok(entry)
    }

    /// Whether the file of the segment here is shorter than a segment.
    pub fn is_cut(&self) -> bool {
        let spans = self.files.spans();
        let reach = || self.files.reach(self.at).unwrap_or(0);
        self.at.0 < self.limit && reach() < spans.end(spans.number(self.at.0))
    }

    /// Goes to the next place behind this one where a record is, and says where; none if there is
    /// none. O(bytes).
    ///
    /// # Errors
    ///
    /// [`Error::Disk`].
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
